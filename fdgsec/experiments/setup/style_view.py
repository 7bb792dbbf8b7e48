"""The style view of a target: the encoder, image size and statistic of its styles."""

from dataclasses import dataclass

from fdgsec.data.domains import DomainDataset
from fdgsec.experiments.run_config import RunConfig
from fdgsec.federation.early_layer_encoder import ModelEncoder
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Method
from fdgsec.federation.released_statistics import MeanSpectra, PooledStyles, ReleasedStatistic
from fdgsec.nn.styles.amplitude_spectra import SpectralEncoder
from fdgsec.nn.styles.image_styles import register_encoder


@dataclass(frozen=True, kw_only=True)
class StyleView:
    """The public encoder, the image size and the released statistic of a target's styles.

    Encoders of amplitude spectra and of a model's early layers are built, not loaded."""

    encoder: str
    style_size: int | None
    released_statistic: ReleasedStatistic

    @classmethod
    def of(cls, config: RunConfig, images: DomainDataset, method: Method, model: GlobalModel | None) -> "StyleView":
        """The run's encoder; for mean spectra an encoder of the size of `images`, for model layers that of `model`."""
        shared, side = method.shared_mean, config.style_size
        statistic = PooledStyles() if shared is None or shared.statistic is None else shared.statistic
        if isinstance(statistic, MeanSpectra):
            spectra = SpectralEncoder(images.image_size if side is None else (side, side))
            return cls(encoder=register_encoder(spectra), style_size=side, released_statistic=statistic)
        if shared is None or shared.layers is None:
            return cls(encoder=config.encoder, style_size=side, released_statistic=statistic)
        if model is None:  # without a model, no styles were sent
            return cls(encoder=config.encoder, style_size=side, released_statistic=PooledStyles())
        encoder = register_encoder(ModelEncoder(model, stage=shared.layers))
        return cls(encoder=encoder, style_size=None, released_statistic=statistic)

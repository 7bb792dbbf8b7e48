"""How a target's styles are read: by which encoder, at which image size, as the mean of which statistic."""

from dataclasses import dataclass

from fdgsec.data.domains import DomainDataset
from fdgsec.experiments.config import RunConfig
from fdgsec.federation.method import GlobalModel, Method
from fdgsec.federation.model_encoder import ModelEncoder
from fdgsec.federation.released_statistics import MeanSpectra, PooledStyles, ReleasedStatistic
from fdgsec.nn.styles.amplitude_spectra import SpectralEncoder
from fdgsec.nn.styles.image_styles import register_encoder


@dataclass(frozen=True, kw_only=True)
class StyleView:
    """How the target's styles are looked at: by which public encoder, at which image size, as the mean of what.

    The encoder of amplitude spectra, and that of a model's early layers, is made here and not loaded."""

    encoder: str
    style_size: int | None
    released_statistic: ReleasedStatistic

    @classmethod
    def of(cls, config: RunConfig, images: DomainDataset, method: Method, model: GlobalModel | None) -> "StyleView":
        """The run's encoder; for mean spectra, that of `images`; for styles of the model's own layers, these of
        `model`."""
        shared, side = method.shared_mean, config.style_size
        statistic = PooledStyles() if shared is None or shared.statistic is None else shared.statistic
        if isinstance(statistic, MeanSpectra):
            spectra = SpectralEncoder(images.image_size if side is None else (side, side))
            return cls(encoder=register_encoder(spectra), style_size=side, released_statistic=statistic)
        if shared is None or shared.layers is None:
            return cls(encoder=config.encoder, style_size=side, released_statistic=statistic)
        if model is None:  # nothing to read by: no styles were sent either
            return cls(encoder=config.encoder, style_size=side, released_statistic=PooledStyles())
        encoder = register_encoder(ModelEncoder(model, stage=shared.layers))
        return cls(encoder=encoder, style_size=None, released_statistic=statistic)

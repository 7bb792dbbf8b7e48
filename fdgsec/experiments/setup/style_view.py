"""How a target's styles are read: by which encoder, at which image size, as the mean of which statistic."""

from dataclasses import dataclass

from fdgsec.data.domains import DomainDataset
from fdgsec.experiments.config import RunConfig
from fdgsec.federation.artifacts import Amplitudes
from fdgsec.federation.method import GlobalModel, Method, SharesDistributions
from fdgsec.federation.model_encoder import ModelEncoder
from fdgsec.federation.released_statistics import MeanSpectra, PooledStyles, ReleasedStatistic, StyleDistributions
from fdgsec.nn.styles.amplitude_spectra import SpectralEncoder
from fdgsec.nn.styles.image_styles import introduce
from fdgsec.runtime.registry import TARGETS


@dataclass(frozen=True, kw_only=True)
class StyleView:
    """How the target's styles are looked at: by which public encoder, at which image size, as the mean of what.

    The encoder of amplitude spectra, and that of a model's early layers, is made here and not loaded."""

    encoder: str
    style_size: int | None
    released_statistic: ReleasedStatistic

    @classmethod
    def of(cls, config: RunConfig, images: DomainDataset, method: Method, model: GlobalModel | None) -> "StyleView":
        """The run's encoder; for mean spectra, that of `images`; for styles of the model's own layers, these of `model`."""
        target = TARGETS.get(config.target)  # None where a training run is named by its method
        if target is not None and target.pooled and Amplitudes.kind in target.releases:
            side = config.style_size
            spectra = SpectralEncoder(images.image_size if side is None else (side, side))
            return cls(encoder=introduce(spectra), style_size=side, released_statistic=MeanSpectra())
        if not isinstance(method, SharesDistributions) or model is None:
            return cls(encoder=config.encoder, style_size=config.style_size, released_statistic=PooledStyles())
        return cls(
            encoder=introduce(ModelEncoder(model, stage=method.stage)),
            style_size=None,
            released_statistic=StyleDistributions(
                unbiased=method.unbiased, eps=method.eps, released=method.spread == "std"
            ),
        )

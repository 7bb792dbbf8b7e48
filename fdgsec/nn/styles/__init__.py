"""Image styles: channel statistics, encoders and decoders, amplitude spectra, and their clustering."""

from typing import TYPE_CHECKING

from fdgsec.runtime.lazy_imports import lazy_names

if TYPE_CHECKING:
    from fdgsec.nn.styles.amplitude_spectra import SpectralEncoder, amplitudes, exchange_amplitudes, window
    from fdgsec.nn.styles.channel_statistics import Moments, adain, concatenated, linear_statistic, moments, style_of
    from fdgsec.nn.styles.encoders import ENCODERS, StyleEncoder, load_encoder
    from fdgsec.nn.styles.feature_styles import (
        StyleLaws,
        apply_style,
        batch_styles,
        instance_statistics,
        mixed_statistics,
    )
    from fdgsec.nn.styles.finch import cluster_means, first_neighbors
    from fdgsec.nn.styles.image_styles import encoder_named, resized, statistics, style_transfer
    from fdgsec.nn.styles.stacked_partitions import stacked_finch
else:
    __getattr__ = lazy_names(__name__, __file__)

__all__ = [
    "ENCODERS", "Moments", "SpectralEncoder", "StyleEncoder", "StyleLaws", "adain", "amplitudes", "apply_style",
    "batch_styles", "cluster_means", "concatenated", "encoder_named", "exchange_amplitudes", "first_neighbors",
    "instance_statistics", "linear_statistic", "load_encoder", "mixed_statistics", "moments", "resized",
    "stacked_finch", "statistics", "style_of", "style_transfer", "window",
]  # fmt: skip

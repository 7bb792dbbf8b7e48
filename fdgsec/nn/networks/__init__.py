"""Classifiers and the other networks that several methods or attacks share."""

from typing import TYPE_CHECKING

from fdgsec.runtime.lazy_imports import lazy_names

if TYPE_CHECKING:
    from fdgsec.nn.networks.attention import HighlightedClassifier, Highlighter, add_highlighter
    from fdgsec.nn.networks.classifiers import (
        BACKBONES,
        Classifier,
        Normalization,
        StageHooks,
        build_classifier,
        drawn_head,
    )
    from fdgsec.nn.networks.group_norm_linear import drawn_linear
    from fdgsec.nn.networks.inception import inception_fid
    from fdgsec.nn.networks.perturbation_generator import PerturbationNetwork, perturbation_network
    from fdgsec.nn.networks.style_discriminator import StyleDiscriminator, StylePredictor
    from fdgsec.nn.networks.style_generator import GeneratorShape, StyleGenerator
    from fdgsec.nn.networks.weights import WeightStatus, import_file, load_state, weights_dir
else:
    __getattr__ = lazy_names(__name__, __file__)

__all__ = [
    "BACKBONES", "Classifier", "GeneratorShape", "HighlightedClassifier", "Highlighter", "Normalization",
    "PerturbationNetwork", "StageHooks", "StyleDiscriminator", "StyleGenerator", "StylePredictor", "WeightStatus",
    "add_highlighter", "build_classifier", "drawn_head", "drawn_linear", "import_file", "inception_fid", "load_state",
    "perturbation_network", "weights_dir",
]  # fmt: skip

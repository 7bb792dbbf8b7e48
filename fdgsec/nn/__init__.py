"""Neural networks: classifiers and other networks, image styles, and the training loop."""

from typing import TYPE_CHECKING

from fdgsec.runtime.lazy_imports import lazy_names

if TYPE_CHECKING:
    from fdgsec.nn.networks.classifiers import Classifier, build_classifier
    from fdgsec.nn.styles.channel_statistics import Moments, adain, moments
    from fdgsec.nn.styles.encoders import StyleEncoder
    from fdgsec.nn.styles.image_styles import encoder_named, statistics, style_transfer
    from fdgsec.nn.training.batches import Batch, TrainingSet
    from fdgsec.nn.training.training_loop import CrossEntropy, Objective, epochs, predictions
    from fdgsec.nn.training.training_plan import TrainingPlan
else:
    __getattr__ = lazy_names(__name__, __file__)

__all__ = [
    "Batch", "Classifier", "CrossEntropy", "Moments", "Objective", "StyleEncoder", "TrainingPlan", "TrainingSet",
    "adain", "build_classifier", "encoder_named", "epochs", "moments", "predictions", "statistics", "style_transfer",
]  # fmt: skip

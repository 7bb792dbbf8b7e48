"""The training loop and its parts: batches, plans, losses, augmentation, precision, adaptation."""

from typing import TYPE_CHECKING

from fdgsec.runtime.lazy_imports import lazy_names

if TYPE_CHECKING:
    from fdgsec.nn.training.batches import Batch, TrainingSet, augment, batches_in_order, epoch_of_batches
    from fdgsec.nn.training.class_balanced_batches import BalancedPass, ClassDraws
    from fdgsec.nn.training.losses import inconsistency, jensen_shannon, supervised_contrastive
    from fdgsec.nn.training.per_sample_gradients import RecordGradients, clipped_sum
    from fdgsec.nn.training.precision import Precision, autocast, precision_of
    from fdgsec.nn.training.test_time_adaptation import Tent, tent_predictions
    from fdgsec.nn.training.training_loop import CrossEntropy, Objective, Trainer, epochs, logits, predictions
    from fdgsec.nn.training.training_plan import TrainingPlan, optimizer_of
else:
    __getattr__ = lazy_names(__name__, __file__)

__all__ = [
    "BalancedPass", "Batch", "ClassDraws", "CrossEntropy", "Objective", "Precision", "RecordGradients", "Tent",
    "Trainer", "TrainingPlan", "TrainingSet", "augment", "autocast", "batches_in_order", "clipped_sum",
    "epoch_of_batches", "epochs", "inconsistency", "jensen_shannon", "logits", "optimizer_of", "precision_of",
    "predictions", "supervised_contrastive", "tent_predictions",
]  # fmt: skip

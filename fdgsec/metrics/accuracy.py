"""Accuracy, weighted AUC and weighted F1 of a classifier on one domain.

FedDAG (section VI) reports the last two. Both weight classes by their number of images, and leave out classes without
images in the domain. scikit-learn computes them."""

from collections.abc import Callable, Mapping
from typing import cast

import numpy as np
import torch
from torch import Tensor

from fdgsec.runtime.errors import DataError


def classification(logits: Tensor, labels: Tensor) -> Mapping[str, float]:
    """Evaluate logits (n, classes) against labels (n,): "accuracy", "auc" and "f1".

    "auc" is left out where only one class is present. Raises DataError for an empty domain or logits that are not
    finite."""
    if not len(labels):
        raise DataError("there is no image to classify; a domain needs at least one.")
    if not bool(torch.isfinite(logits).all()):
        raise DataError("the model gives logits that are not finite: it diverged; lower the learning rate.")
    predicted = logits.argmax(1)
    given = {"accuracy": float((predicted == labels).double().mean()), "f1": weighted_f1(predicted, labels)}
    if len(torch.unique(labels)) > 1:
        given["auc"] = weighted_auc(torch.softmax(logits.double(), 1), labels)
    return given


def weighted_auc(probabilities: Tensor, labels: Tensor) -> float:
    """Average the one-vs-rest AUC of the classes present, weighted by their images; 0.5 where only one is present."""
    from sklearn.metrics import roc_auc_score  # takes a second to import

    names, counts = np.unique(labels.numpy(), return_counts=True)
    if len(names) < 2:
        return 0.5
    areas = [roc_auc_score(labels.numpy() == name, probabilities[:, int(name)].numpy()) for name in names]
    return float(np.average(areas, weights=counts))


def weighted_f1(predicted: Tensor, labels: Tensor) -> float:
    """Average the F1 of the classes, weighted by their images; a class that is never predicted scores 0."""
    from sklearn.metrics import f1_score

    score = cast("Callable[..., float]", f1_score)  # its type stub allows no number for zero_division
    return float(score(labels.numpy(), predicted.numpy(), average="weighted", zero_division=0.0))

"""Membership tests on one model: all scores, from the outputs of the target and of reference models."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fdgsec.attacks.statistics.lira_rmia import (
    Population,
    References,
    Variance,
    calibrated_score,
    lira_offline,
    lira_online,
    log_confidence,
    loss_score,
    rmia_offline,
    rmia_online,
    scaled_logit,
)
from fdgsec.data.domains import DomainDataset
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.training_loop import logits

MIN_MODELS_PER_EXAMPLE = 64
"""Minimum number of reference models for a variance per candidate (Carlini et al. 2022, section VI)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelOutputs:
    """A model's outputs: logits of a pool's images (N, classes), and of those set aside (M, classes)."""

    pool: Tensor
    aside: Tensor

    @classmethod
    def of(cls, model: Classifier, pool: DomainDataset, aside: DomainDataset) -> Self:
        """Query the model, in evaluation mode."""
        return cls(pool=logits(model, pool.pixels()), aside=logits(model, aside.pixels()))


@dataclass(frozen=True, kw_only=True, eq=False)
class ReferenceOutputs:
    """Reference models and their training sets: `members` (models, N) bool over the pool's images.

    `labels` (N,) and `aside_labels` (M,) are the images' classes."""

    outputs: Sequence[ModelOutputs]
    members: Tensor
    labels: Tensor
    aside_labels: Tensor


def membership_scores(target: ModelOutputs, panel: ReferenceOutputs, places: Tensor) -> dict[str, Tensor]:
    """Score the images of the pool at `places` (n,) by every test, larger means member: (n,) each.

    "lira" and "rmia" are the offline tests, which use the reference models that were not trained on a candidate. The
    online ones use both kinds and need two of each. Raises UsageError where a candidate has too few models without
    it."""
    labels, members = panel.labels[places], panel.members[:, places]
    models = len(panel.outputs)
    phi = scaled_logit(target.pool[places], labels)
    confidence = log_confidence(target.pool[places], labels)
    answered = torch.stack([outputs.pool[places] for outputs in panel.outputs])
    by_phi = References(models=models, values=scaled_logit(answered, labels), members=members)
    by_confidence = References(models=models, values=log_confidence(answered, labels), members=members)
    population = Population(
        models=models,
        target=log_confidence(target.aside, panel.aside_labels),
        references=log_confidence(torch.stack([outputs.aside for outputs in panel.outputs]), panel.aside_labels),
    )
    variance: Variance = "per-example" if models >= MIN_MODELS_PER_EXAMPLE else "global"
    found = {
        "lira": lira_offline(phi, by_phi, variance=variance),
        "rmia": rmia_offline(confidence, by_confidence, population=population),
        "loss": loss_score(confidence),
        "calibrated": calibrated_score(confidence, by_confidence),
    }
    if int(torch.minimum(members.sum(0), (~members).sum(0)).min()) < 2:
        return found
    found["lira online"] = lira_online(phi, by_phi, variance=variance)
    found["rmia online"] = rmia_online(confidence, by_confidence, population=population)
    return found

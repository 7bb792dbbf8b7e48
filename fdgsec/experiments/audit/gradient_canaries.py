"""The training that audits gradient canaries: images with one lit pixel each, and networks of one linear layer.

The gradient of a canary is constant and nonzero only in the weight of its lit pixel: the update of that weight is the
noisy sum in the direction of the canary. A method that steps several networks jointly (fdgsec.federation.dp_sgd_joint)
is audited with as many such networks; a canary then has a weight in each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from fdgsec.data.domains import DomainDataset
from fdgsec.federation.dp_sgd_joint import Gradients, StepsJointly, joint_training
from fdgsec.federation.method import Client, Clock, Method
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import Batch, TrainingSet
from fdgsec.nn.training.training_plan import TrainingPlan, optimizer_of
from fdgsec.privacy.dp_sgd import PrivateTrainer
from fdgsec.runtime.random_streams import stream

SLOPE = 1e4
"""The gradient norm of a canary, far above any clipping bound in use."""


@dataclass(frozen=True)
class OwnWeight:
    """The loss -slope * output, whose gradient does not depend on the weights."""

    slope: float
    couples_records: bool = False

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """The losses, (B,)."""
        outputs: Tensor = model.head(batch.images.flatten(1)).squeeze(1)
        return -self.slope * outputs


def networks_of(method: Method, clock: Clock) -> int:
    """The number of networks that each private step of a round updates."""
    return method.network_count(clock) if isinstance(method, StepsJointly) else 1


def moves(
    with_trainer: Client, method: Method, data: TrainingSet, plan: TrainingPlan, *, clock: Clock, sign: float, seed: int
) -> list[Tensor]:
    """Train on canaries with the client's own trainer, and return the weight update of each step, each (1, inputs).

    The updates of n jointly stepped networks are summed and divided by sqrt(n): each is clipped to bound / sqrt(n) and
    has the noise of the whole bound, so that signal and noise equal those of one network. The sign of the canaries
    alternates between networks, so that noise reused in two networks cancels."""
    count, trainer = networks_of(method, clock), with_trainer.trainer
    models = [one_layer(data.images[0].numel()) for _ in range(count)]
    weights = [_weights(models)]
    objectives = [OwnWeight(sign * side * SLOPE) for side in _sides(count)]
    if isinstance(method, StepsJointly) and isinstance(trainer, PrivateTrainer):
        joint_training(
            trainer, models, [optimizer_of(model.parameters(), plan) for model in models], data,
            lambda one: _gradients(objectives, one, models), plan, device=torch.device("cpu"),
            layout=torch.contiguous_format, round=clock.round, rounds=clock.rounds,
            after=lambda: weights.append(_weights(models)),
        )  # fmt: skip
    else:
        trainer(
            models[0], data, objectives[0], plan, stream(seed, "world", "audit", clock.round), round=clock.round,
            rounds=clock.rounds, on_step=lambda _step, _loss: weights.append(_weights(models)),
        )  # fmt: skip
    return [sign * (after - before) / math.sqrt(count) for before, after in pairwise(weights)]


def _sides(count: int) -> list[int]:
    return [(-1) ** number for number in range(count)]


def _weights(models: Sequence[Classifier]) -> Tensor:
    sided = zip(_sides(len(models)), models, strict=True)
    return torch.stack([side * model.head.weight.detach() for side, model in sided]).sum(0)


def _gradients(objectives: Sequence[OwnWeight], record: Batch, models: Sequence[Classifier]) -> Gradients:
    return [
        torch.autograd.grad(objective(record, model).sum(), list(model.parameters()))
        for objective, model in zip(objectives, models, strict=True)
    ]


def lit_pixels(count: int, side: int) -> DomainDataset:
    """Make `count` black images of `side` px, the i-th with its i-th pixel value lit."""
    images = torch.zeros(count, 3 * side * side, dtype=torch.uint8)
    images[torch.arange(count), torch.arange(count)] = 255
    zeros = torch.zeros(count, dtype=torch.int64)
    return DomainDataset(
        name="canaries", store=images.view(count, 3, side, side), rows=torch.arange(count), labels=zeros, domains=zeros,
        ids=tuple(f"canary/{number}" for number in range(count)), class_names=("canary",), domain_names=("canary",),
    )  # fmt: skip


def one_layer(inputs: int) -> Classifier:
    """A network of one linear layer without bias, with zero weights."""
    with torch.device("meta"):  # avoids draws from the global random stream
        head = nn.Linear(inputs, 1, bias=False)
    head.to_empty(device="cpu")
    nn.init.zeros_(head.weight)
    return Classifier(backbone="linear", norm="group", body=nn.Identity(), neck=nn.Flatten(), head=head)

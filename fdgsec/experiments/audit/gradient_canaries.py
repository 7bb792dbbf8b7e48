"""What gradient canaries are trained by: images with a lit pixel each, networks of one linear layer, and the steps of a
method.

A lit pixel's gradient is the slope, in a weight to itself, wherever training is: what a step does to that weight is the
noisy sum seen in the direction of the canary. A method that steps several networks together
(fdgsec.federation.dp_sgd_joint) is audited by as many such networks: a canary then has a weight in each."""

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
from fdgsec.nn.training.plan import TrainingPlan, optimizer_of
from fdgsec.privacy.dp_sgd import PrivateTrainer
from fdgsec.runtime.random_streams import stream

SLOPE = 1e4
"""The length of a gradient canary, whatever the bound: far outside any in use."""


@dataclass(frozen=True)
class OwnWeight:
    """The loss -slope x (output): its gradient is the same whatever the weights."""

    slope: float
    couples_records: bool = False

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """Give the losses, (B,)."""
        outputs: Tensor = model.head(batch.images.flatten(1)).squeeze(1)
        return -self.slope * outputs


def networks_of(method: Method, clock: Clock) -> int:
    """How many networks each private step of a round moves."""
    return method.stepping(clock) if isinstance(method, StepsJointly) else 1


def moves(
    with_trainer: Client, method: Method, data: TrainingSet, plan: TrainingPlan, *, clock: Clock, sign: float, seed: int
) -> list[Tensor]:
    """Train on canaries by the client's own trainer, and give how far each step moved their weights, each (1, inputs).

    Of n networks that step together the moves are added up over sqrt(n): each is clipped to bound / sqrt(n) and has the
    noise of the whole bound, so that signal and noise are then as of one network. From network to network canaries
    change sides: noise that is the same in two cancels."""
    count, trainer = networks_of(method, clock), with_trainer.trainer
    models = [one_layer(data.images[0].numel()) for _ in range(count)]
    weights = [_weights(models)]
    objectives = [OwnWeight(sign * side * SLOPE) for side in _sides(count)]
    if isinstance(method, StepsJointly) and isinstance(trainer, PrivateTrainer):
        joint_training(
            trainer, models, [optimizer_of(model.parameters(), plan) for model in models], data,
            lambda one: _gradients(objectives, one, models), plan, device=torch.device("cpu"), layout=torch.contiguous_format,
            round=clock.round, rounds=clock.rounds, after=lambda: weights.append(_weights(models)),
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
    """Make `count` black images of `side` px, the i-th with its i-th number lit."""
    images = torch.zeros(count, 3 * side * side, dtype=torch.uint8)
    images[torch.arange(count), torch.arange(count)] = 255
    zeros = torch.zeros(count, dtype=torch.int64)
    return DomainDataset(
        name="canaries", store=images.view(count, 3, side, side), rows=torch.arange(count), labels=zeros, domains=zeros,
        ids=tuple(f"canary/{number}" for number in range(count)), class_names=("canary",), domain_names=("canary",),
    )  # fmt: skip


def one_layer(inputs: int) -> Classifier:
    """A network that is one linear layer without bias, its weights 0."""
    with torch.device("meta"):  # nothing is drawn from the global stream
        head = nn.Linear(inputs, 1, bias=False)
    head.to_empty(device="cpu")
    nn.init.zeros_(head.weight)
    return Classifier(backbone="linear", norm="group", body=nn.Identity(), neck=nn.Flatten(), head=head)

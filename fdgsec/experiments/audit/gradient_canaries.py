"""The training that audits gradient canaries: images with one lit pixel each, and networks with weights of each pixel.

The gradient of a canary is constant, and nonzero only in the weights of its lit pixel: their update is the noisy sum in
the direction of the canary. There is one such weight in each of several tensors, of every kind that backbones have, so
that clipping them one by one, leaving noise out of some, or drawing the same noise for each shows. A method that steps
several networks jointly (fdgsec.federation.dp_sgd_joint) is audited with as many such networks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from fdgsec.data.domains import DomainDataset
from fdgsec.experiments.audit.small_networks import WIDTH, layered
from fdgsec.federation.dp_sgd_joint import Gradients, StepsJointly, joint_training
from fdgsec.federation.method import Client, Clock, Method
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import Batch, TrainingSet
from fdgsec.nn.training.training_plan import TrainingPlan, optimizer_of
from fdgsec.privacy.dp_sgd import PrivateTrainer
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream

SLOPE = 1e4
"""The gradient of a canary in each of its weights, far above any clipping bound in use."""
OVERFLOWING = 1e38
"""Times SLOPE it is infinite in float32."""
KINDS = 9
"""Kinds of tensors: the last layer's, matrices, vectors and 1x1 kernels, and, one of each, the bias of a convolution, a
3x3 kernel, a depthwise one, and the weight and the bias of a group norm."""
LAST, MATRIX, VECTOR, KERNEL, CONVOLUTION_BIAS, WIDE_KERNEL, DEPTHWISE_KERNEL, NORM_WEIGHT, NORM_BIAS = range(KINDS)
EVERYWHERE, AGAINST, FAINT, INFINITE, NOT_A_NUMBER = range(5)
"""Labels of canaries: of a gradient in every tensor, of a longer one against it, of one of next to no length, of one
that is infinite in one weight of each 1x1 kernel, and of one that is no number."""
TENSORS = 17
"""Tensors of these networks."""
IN_ONE_KIND = range(5, 5 + KINDS)
"""Labels of canaries of a gradient in the tensors of one kind alone, in the order of the kinds."""
COSTLY = IN_ONE_KIND.stop
"""The label of canaries like FAINT ones, of a loss that is large and stays so."""
LARGE_LOSS = 1e3
KEPT = 64
"""Records whose gradients are kept: of 64, and of networks of a few thousand pixels, they take little memory."""
PARTS = (
    (1.0,) * KINDS, (-2.0,) * KINDS, (1e-12,) * KINDS,
    tuple(OVERFLOWING if kind == KERNEL else 1.0 for kind in range(KINDS)), (math.nan,) * KINDS,
    *(tuple(float(kind == own) for kind in range(KINDS)) for own in range(KINDS)), (1e-12,) * KINDS,
)  # fmt: skip
"""Lengths of gradients by label, in each tensor of a kind."""


@dataclass(frozen=True)
class OwnWeights:
    """The loss -slope * output, whose gradient does not depend on the weights."""

    slope: float
    couples_records: bool = False

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """The losses, (B,)."""
        pixels = batch.images.flatten(1)
        lengths = pixels.new_tensor(PARTS)[batch.labels.to(pixels.device)]
        outputs: Tensor = lengths[:, LAST] * model.head(pixels).squeeze(1)
        seen = [found for layer in model.body.children() for found in _seen_through(layer, pixels)]
        if seen:
            kinds, weights = zip(*seen, strict=True)
            slopes = pixels.unsqueeze(1) * lengths[:, kinds].unsqueeze(2)
            outputs = outputs + (slopes * torch.stack(weights, dim=1)).sum((1, 2))
        return LARGE_LOSS * (batch.labels.to(pixels.device) == COSTLY) - self.slope * outputs


def _seen_through(layer: nn.Module, pixels: Tensor) -> list[tuple[int, Tensor]]:
    """The kinds of a layer's tensors, and their weights (B, inputs) as it computes them from constants.

    Matrices and kernels count against the rest."""
    rows = len(pixels)
    if isinstance(layer, nn.GroupNorm):
        low, high = layer(pixels.new_tensor([-1.0, 1.0]).expand(rows, layer.num_channels, 1, 2)).squeeze(2).unbind(2)
        return [(NORM_WEIGHT, (high - low) / 2), (NORM_BIAS, (high + low) / 2)]
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    if isinstance(layer, nn.Conv2d) and layer.kernel_size != (1, 1):
        width = 2 * WIDTH - 1
        lit = functional.one_hot(torch.tensor(width**2 // 2), width**2).view(1, 1, width, width).to(pixels)
        kernel = layer(-lit.expand(rows, layer.in_channels, -1, -1)).flip(2, 3).flatten(1)[:, : pixels.shape[1]]
        return [(WIDE_KERNEL if layer.groups == 1 else DEPTHWISE_KERNEL, kernel)]
    convolution = isinstance(layer, nn.Conv2d)
    nothing = pixels.new_zeros((rows, 1, 1, 1) if convolution else (rows, 1))
    kinds = (KERNEL, CONVOLUTION_BIAS) if convolution else (MATRIX, VECTOR)
    matrix = layer(nothing - 1).flatten(1)
    if layer.bias is None:
        return [(kinds[0], matrix)]
    vector = layer(nothing).flatten(1)
    return [(kinds[0], matrix - vector), (kinds[1], vector)]


def networks_of(method: Method, clock: Clock) -> int:
    """The number of networks that each private step of a round updates."""
    return method.network_count(clock) if isinstance(method, StepsJointly) else 1


def moves(
    with_trainer: Client,
    method: Method,
    data: TrainingSet,
    plan: TrainingPlan,
    *,
    clock: Clock,
    sign: float,
    seed: int,
    slope: float = SLOPE,
) -> list[Tensor]:
    """Train on canaries with the client's own trainer, and return how each step moves the weights of every pixel.

    Each is (T, inputs) for the T tensors of a network, and counts toward `sign`: a record, whose gradient is `slope` in
    each weight of its pixel, moves that pixel's column by at most its bound, and every number has noise of the stated
    size. Moves of n jointly stepped networks are summed and divided by sqrt(n): each is clipped to bound / sqrt(n) and
    has the noise of the whole bound. Half of the tensors count the other way in the loss, and so does every second
    network, so that noise reused in two of them cancels in their sum. What moves after the last step counts as another
    one. Raises UsageError for a trainer that tells of no step."""
    count, trainer = networks_of(method, clock), with_trainer.trainer
    models = [layered(data.images[0].numel()) for _ in range(count)]
    weights = [_weights(models)]
    objectives = [OwnWeights(sign * side * slope) for side in _sides(count)]
    if isinstance(method, StepsJointly) and isinstance(trainer, PrivateTrainer):
        joint_training(
            trainer, models, [optimizer_of(model.parameters(), plan) for model in models], data,
            _ConstantGradients(objectives=objectives, models=models), plan, device=torch.device("cpu"),
            layout=torch.contiguous_format, round=clock.round, rounds=clock.rounds,
            after=lambda: weights.append(_weights(models)),
        )  # fmt: skip
    else:
        trainer(
            models[0], data, objectives[0], plan, stream(seed, "world", "audit", clock.round), round=clock.round,
            rounds=clock.rounds, on_step=lambda _step, _loss: weights.append(_weights(models)),
        )  # fmt: skip
    if len(weights) == 1:
        raise UsageError("a training that never calls `on_step` cannot be audited: call it after every step.")
    if not torch.allclose(weights[-1], last := _weights(models), rtol=0, atol=0, equal_nan=True):
        weights.append(last)
    return [sign * (after - before) / math.sqrt(count) for before, after in pairwise(weights)]


def _sides(count: int) -> list[int]:
    return [(-1) ** number for number in range(count)]


def _weights(models: Sequence[Classifier]) -> Tensor:
    """The weights of the tensors of a network, (T, inputs), with the signs with which they count, summed over all."""
    sided = zip(_sides(len(models)), models, strict=True)
    return torch.stack([side * _signed_weights(model) for side, model in sided]).sum(0)


def _signed_weights(model: Classifier) -> Tensor:
    rows = [model.head.weight.detach().flatten()]
    for layer in model.body.children():
        assert isinstance(layer, nn.Linear | nn.Conv2d | nn.GroupNorm)
        weights = layer.weight.detach().flatten()[: model.features_width]
        rows.append(weights if isinstance(layer, nn.GroupNorm) else -weights)
        rows += [] if layer.bias is None else [layer.bias.detach()]
    return torch.stack(rows)


@dataclass(frozen=True, kw_only=True, eq=False)
class _ConstantGradients:
    """The gradients of single records in each of several networks; those of the first KEPT records are kept.

    They do not depend on weights, and a training asks for those of a record in each of many steps."""

    objectives: Sequence[OwnWeights]
    models: Sequence[Classifier]
    kept: dict[tuple[bytes, int], Gradients] = field(default_factory=dict)

    def __call__(self, record: Batch) -> Gradients:
        """The gradients of a batch of one record, network after network."""
        key = record.images.cpu().numpy().tobytes(), int(record.labels)
        if key in self.kept:
            return self.kept[key]
        found = [
            torch.autograd.grad(objective(record, model).sum(), list(model.parameters()))
            for objective, model in zip(self.objectives, self.models, strict=True)
        ]
        if len(self.kept) < KEPT:
            self.kept[key] = found
        return found


def lit_pixels(count: int, side: int) -> DomainDataset:
    """Make `count` black images of `side` px, the i-th with its i-th pixel value lit."""
    images = torch.zeros(count, 3 * side * side, dtype=torch.uint8)
    images[torch.arange(count), torch.arange(count)] = 255
    zeros = torch.zeros(count, dtype=torch.int64)
    return DomainDataset(
        name="canaries", store=images.view(count, 3, side, side), rows=torch.arange(count), labels=zeros, domains=zeros,
        ids=tuple(f"canary/{number}" for number in range(count)), class_names=("canary",), domain_names=("canary",),
    )  # fmt: skip

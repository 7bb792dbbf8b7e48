"""Gradients of single images at a network, averaged over the views of an image that training shows."""

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor, nn

from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import Batch, TrainingSet, batch_of
from fdgsec.nn.training.per_sample_gradients import RecordGradients, rules
from fdgsec.nn.training.training_loop import CrossEntropy
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import child, stream
from fdgsec.threats.adversary import MakesObjective

BLOCK = 32
"""Most images in one pass."""
NUMBERS = 2**26
"""Most numbers of gradients that are held at once, before they are cut."""
KEPT = 2**18
"""Most numbers of an image's gradients that are kept in all (`side_of`)."""
SIDES = (2048, 1024, 512, 384, 256, 192, 128, 96, 64, 48, 32)
"""Sides to which the matrices of layers may be cut, the largest that fits."""
AS_THEY_ARE = TrainingPlan(crop=None, flip=0.0)
TRIED = 4
"""Images on which an objective is tried."""
DRAWS = 8
"""Draws of a random loss of an image."""


def parameters_named(network: nn.Module, names: Collection[str]) -> dict[str, nn.Parameter]:
    """The parameters of these names that sit in layers whose gradients of single records are known: all but those of
    batch norms."""
    known = {
        parameter
        for module in network.modules()
        if type(module) in rules()
        for parameter in module.parameters(recurse=False)
    }
    return {name: one for name, one in network.named_parameters() if name in names and one in known}


def views(images: DomainDataset, plan: TrainingPlan, count: int, rng: torch.Generator) -> Iterator[Tensor]:
    """What training under `plan` may show of images, (n, 3, H, W) float: `count` draws of crop and translation, each
    as it is and, where the plan flips, mirrored; the images themselves where the plan draws nothing."""
    data, rows = TrainingSet.of(images), torch.arange(len(images))
    unmirrored = replace(plan, flip=0.0)
    draws = count if plan.crop is not None or plan.translate > 0 else 1
    for number in range(draws):
        view = batch_of(
            data, rows, unmirrored, child(rng, number), device=torch.device("cpu"), layout=torch.contiguous_format
        ).images
        if plan.flip < 1:
            yield view
        if plan.flip > 0:
            yield view.flip(-1)


def image_gradients(
    networks: Sequence[Classifier],
    names: Sequence[str],
    images: DomainDataset,
    *,
    plan: TrainingPlan,
    count: int,
    rng: torch.Generator,
    objective: MakesObjective | None = None,
) -> list[Tensor]:
    """The gradient of each labeled image's loss in each of the parameters `names`, averaged over `networks` of one
    architecture and over the image's `views`: (N, out, inputs) float32 on the CPU, `as_matrices` and `cut`.

    The loss is that of `objective`, drawn DRAWS times at least where it is random; cross-entropy where there is none,
    or it gives these networks no loss for each image. The networks are in evaluation mode, so that an image's gradient
    depends on no other image."""
    trained = [list(parameters_named(network, names).values()) for network in networks]
    device, size = trained[0][0].device, sum(parameter.numel() for parameter in trained[0])
    side = side_of(trained[0])
    for network, parameters in zip(networks, trained, strict=True):
        network.eval().requires_grad_(False)
        for parameter in parameters:
            parameter.requires_grad_(True)
    losses_of = _losses(objective, networks[0], trained[0], images)
    found: list[list[Tensor]] = [[] for _ in names]
    with ExitStack() as opened:
        read = [
            opened.enter_context(RecordGradients(network, parameters))
            for network, parameters in zip(networks, trained, strict=True)
        ]
        for place, rows in enumerate(torch.arange(len(images)).split(min(BLOCK, max(1, NUMBERS // size)))):
            block = images.subset(rows)
            labels = block.labels.to(device)
            shown = list(views(block, plan, count, child(rng, place)))
            shown *= math.ceil(losses_of.draws / len(shown))
            total = [torch.zeros(()) for _ in names]
            for (network, gradients), (draw, view) in product(zip(networks, read, strict=True), enumerate(shown)):
                losses = losses_of(network, view.to(device), labels, child(rng, place, "loss", draw))
                parts = [cut(as_matrices(part), side).cpu() for part in gradients.of(losses)]
                total = [one + part for one, part in zip(total, parts, strict=True)]
            for own, one in zip(found, total, strict=True):
                own.append(one / (len(networks) * len(shown)))
    return [torch.cat(own) for own in found]


@dataclass(frozen=True, kw_only=True)
class _Losses:
    """The loss of each image under an `objective`, or cross-entropy, of which `draws` are taken."""

    objective: MakesObjective | None = None
    draws: int = 1

    def __call__(self, network: Classifier, images: Tensor, labels: Tensor, rng: torch.Generator) -> Tensor:
        """Losses (N,) of images (N, 3, H, W) with labels (N,)."""
        made = CrossEntropy() if self.objective is None else self.objective(rng)
        return made(Batch(images=images, labels=labels, records=torch.arange(len(labels))), network).float()


def _losses(
    objective: MakesObjective | None, network: Classifier, parameters: Sequence[nn.Parameter], images: DomainDataset
) -> _Losses:
    """The losses by `objective` if the first images have one each, of which gradients follow; else by cross-entropy."""
    if objective is None:
        return _Losses()
    given, device = images.subset(torch.arange(min(TRIED, len(images)))), parameters[0].device
    pixels, labels = as_float(given.pixels().to(device)), given.labels.to(device)
    made = _Losses(objective=objective, draws=DRAWS)
    try:
        with RecordGradients(network, parameters) as gradients:
            one, other = (made(network, pixels, labels, stream(0, "attack", "loss", draw)) for draw in range(2))
            gradients.of(one + other)
    except Exception:  # noqa: BLE001 - whatever a method's own code raises where it is asked about single images
        return _Losses()
    if one.shape != labels.shape or not bool((one + other).isfinite().all()):
        return _Losses()
    return replace(made, draws=1) if torch.equal(one, other) else made


def as_matrices(gradients: Tensor) -> Tensor:
    """A layer's gradients (n, out, ...) as matrices (n, out, inputs); those of a vector as (n, 1, out)."""
    return gradients.unsqueeze(1) if gradients.ndim == 2 else gradients.flatten(2)


def side_of(parameters: Sequence[Tensor]) -> int:
    """The largest of SIDES with which all matrices together have at most KEPT numbers, else the last."""
    shapes = [as_matrices(parameter.unsqueeze(0)).shape[1:] for parameter in parameters]
    fitting = (side for side in SIDES if sum(min(out, side) * min(inputs, side) for out, inputs in shapes) <= KEPT)
    return next(fitting, SIDES[-1])


def cut(matrices: Tensor, side: int) -> Tensor:
    """Matrices (n, out, inputs) with at most `side` rows and columns: sums of random ones with random signs, the same
    for all."""
    for axis in (1, 2):
        length = matrices.shape[axis]
        if length > side:
            rng = stream(0, "attack", "sums of rows and columns", length, side)
            places = torch.randint(0, side, (length,), generator=rng).to(matrices.device)
            signs = (2 * torch.randint(0, 2, (length,), generator=rng) - 1).to(matrices)
            shape = list(matrices.shape)
            shape[axis] = side
            signed = matrices * (signs.unsqueeze(1) if axis == 1 else signs)
            matrices = matrices.new_zeros(shape).index_add_(axis, places, signed)
    return matrices

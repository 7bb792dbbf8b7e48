"""Gradients of single images at a network, averaged over the views of an image that training shows."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from fdgsec.data.domains import DomainDataset
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import TrainingSet, batch_of
from fdgsec.nn.training.per_sample_gradients import RULES, RecordGradients
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import child, stream

BLOCK = 32
"""Most images in one pass."""
NUMBERS = 2**26
"""Most numbers of gradients that are held at once, before they are shortened."""
KEPT = 2**17
"""Numbers of a gradient that are kept: of a longer one, sums of its entries with random signs, whose inner products
are those of the gradients but for an error of about 1 / sqrt(KEPT) of their lengths' product."""
AS_THEY_ARE = TrainingPlan(crop=None, flip=0.0)


def parameters_named(network: nn.Module, names: Collection[str]) -> list[nn.Parameter]:
    """The parameters of these names that sit in layers whose gradients of single records are known: all but those of
    batch norms."""
    known = {
        parameter
        for module in network.modules()
        if type(module) in RULES
        for parameter in module.parameters(recurse=False)
    }
    return [parameter for name, parameter in network.named_parameters() if name in names and parameter in known]


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
    network: Classifier,
    parameters: Sequence[nn.Parameter],
    images: DomainDataset,
    *,
    plan: TrainingPlan,
    count: int,
    rng: torch.Generator,
) -> Tensor:
    """The gradient of each labeled image's cross-entropy in `parameters`, averaged over its `views`: (N, numbers)
    float32 on the CPU, with at most KEPT numbers, `shortened`.

    The network is in evaluation mode, so that an image's gradient depends on no other image."""
    device, size = parameters[0].device, sum(parameter.numel() for parameter in parameters)
    network.eval().requires_grad_(False)
    for parameter in parameters:
        parameter.requires_grad_(True)
    found = []
    with RecordGradients(network, parameters) as gradients:
        for place, rows in enumerate(torch.arange(len(images)).split(min(BLOCK, max(1, NUMBERS // size)))):
            block, total, shown = images.subset(rows), torch.zeros(()), 0
            labels = block.labels.to(device)
            for view in views(block, plan, count, child(rng, place)):
                losses = functional.cross_entropy(network(view.to(device)).float(), labels, reduction="none")
                flat = torch.cat([part.flatten(1) for part in gradients.of(losses)], 1)
                total, shown = total + shortened(flat).cpu(), shown + 1
            found.append(total / shown)
    return torch.cat(found)


def shortened(rows: Tensor) -> Tensor:
    """At most KEPT numbers of each row of (n, numbers), the same sums for every row."""
    numbers = rows.shape[1]
    if numbers <= KEPT:
        return rows
    drawn = torch.randint(0, 2, (numbers,), generator=stream(0, "attack", "signs of gradients"))
    signed = rows * (2 * drawn - 1).to(rows)
    return functional.pad(signed, (0, -numbers % KEPT)).view(len(rows), -1, KEPT).sum(1)

"""Positive control of gradient inversion: smooth images on which a small random network took one step."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from fdgsec.data.domains import DomainDataset, as_float, shares_of
from fdgsec.federation.artifacts import HeadGradient, ModelState
from fdgsec.federation.wire import SERVER, Message
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.threats.adversary import Knowledge, View
from fdgsec.threats.attack import Case, PositiveControl, Truth

SIDE, GRID, CLASSES, PUBLIC, RATE = 16, 4, 4, 24, 0.1
BATCHES = (1, 1, 2, 2)
HEADS = 2
CHANNELS, STRIDE = 12, 2
GAIN = 3.0
"""Minimum gain in decibels over every control."""


def planted_gradients(
    knowledge: Knowledge, rng: torch.Generator, *, batches: Sequence[int] = BATCHES, heads: int = HEADS
) -> PositiveControl:
    """Clients of `batches` smooth images with random labels each, and the server's view of their only step.

    `heads` more have one image, of which the server sees the gradient of the head alone."""
    batches = [*batches, *[1] * heads]
    count = sum(batches)
    images = _smooth_images(PUBLIC + count, rng)
    state = _random_parameters(rng)
    plan = TrainingPlan(learning_rate=RATE)
    cases, truths = [], []
    for number, rows in enumerate(torch.arange(PUBLIC, PUBLIC + count).split(list(batches)), 1):
        data, name = images.subset(rows), f"client:{number}"
        head = number > len(batches) - heads
        answer = _head_sent(name, state, data) if head else _stepped(name, state, data)
        cases.append(
            Case(
                question="head_gradients" if head else "single_step", victim=name, records=len(data), domain="planted",
                views=(View(messages=(_message("model", SERVER, name, state), answer)),),
                slice={"n_per_client": len(data), "model": "first", **({"sent": "head gradient"} if head else {})},
            )
        )  # fmt: skip
        truths.append(
            Truth(images=data.pixels(), labels=data.labels, proportions=shares_of(data.labels, len(data.class_names)))
        )
    planted = replace(
        knowledge, auxiliary=images.subset(torch.arange(PUBLIC)), own=None, unseen=None, simulate=None, plan=plan,
        keeps_moments=False, network=planted_network, class_names=images.class_names, domain_names=images.domain_names,
    )  # fmt: skip
    return PositiveControl(cases=cases, truths=truths, knowledge=planted, measurement="psnr_gain", at_least=GAIN)


def planted_network(state: Mapping[str, Tensor]) -> Classifier:
    """A convolution of stride 2, a sigmoid and a linear head: no pooling, and all derivatives are smooth."""
    with torch.device("meta"):  # no draws from the global generator for weights that are replaced at once
        body = nn.Sequential(nn.Conv2d(3, CHANNELS, 5, stride=STRIDE, padding=2), nn.Sigmoid())
        head = nn.Linear(CHANNELS * (SIDE // STRIDE) ** 2, CLASSES)
    body, head = body.to_empty(device="cpu"), head.to_empty(device="cpu")
    network = Classifier(backbone="planted", norm="batch", body=body, neck=nn.Flatten(), head=head)
    network.load_state_dict(dict(state))
    return network


def _random_parameters(rng: torch.Generator) -> dict[str, Tensor]:
    """Draw the network's parameters."""
    width = CHANNELS * (SIDE // STRIDE) ** 2
    return {
        "body.0.weight": torch.randn(CHANNELS, 3, 5, 5, generator=rng) * 0.1,
        "body.0.bias": torch.zeros(CHANNELS),
        "head.weight": torch.randn(CLASSES, width, generator=rng) * width**-0.5,
        "head.bias": torch.zeros(CLASSES),
    }


def _smooth_images(count: int, rng: torch.Generator) -> DomainDataset:
    """Images interpolated from a grid of random colors, with random labels."""
    grids = torch.rand(count, 3, GRID, GRID, generator=rng)
    pixels = functional.interpolate(grids, size=(SIDE, SIDE), mode="bilinear")
    return DomainDataset(
        name="planted", store=(pixels * 255).round().to(torch.uint8), rows=torch.arange(count),
        labels=torch.randint(0, CLASSES, (count,), generator=rng), domains=torch.zeros(count, dtype=torch.int64),
        ids=tuple(f"planted/{number}" for number in range(count)),
        class_names=tuple(f"class {number}" for number in range(CLASSES)), domain_names=("planted",),
    )  # fmt: skip


def _head_sent(name: str, state: Mapping[str, Tensor], data: DomainDataset) -> Message:
    """The gradient of the head that a client sends before it trains."""
    network = planted_network(state)
    loss = functional.cross_entropy(network(as_float(data.pixels())), data.labels)
    weight, bias = torch.autograd.grad(loss, [network.head.weight, network.head.bias])
    sent = HeadGradient(weight=weight, bias=bias)
    return Message(round=0, stage="share", sender=name, receiver=SERVER, artifact=sent)


def _stepped(name: str, state: Mapping[str, Tensor], data: DomainDataset) -> Message:
    return _message("update", name, SERVER, _sgd_step(state, data, RATE))


def _sgd_step(state: Mapping[str, Tensor], data: DomainDataset, rate: float) -> dict[str, Tensor]:
    """One step of SGD on all of `data`."""
    network = planted_network(state)
    optimizer = torch.optim.SGD(network.parameters(), lr=rate)
    functional.cross_entropy(network(as_float(data.pixels())), data.labels).backward()
    optimizer.step()
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def _message(stage: str, sender: str, receiver: str, state: Mapping[str, Tensor]) -> Message:
    return Message(round=0, stage=stage, sender=sender, receiver=receiver, artifact=ModelState(state=state))

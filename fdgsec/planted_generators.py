"""A positive control for membership in generators: one that was fitted to sixteen images, and answers them otherwise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.adversaries import Knowledge, View
from fdgsec.artifacts import Artifact, GeneratorState, ModelState
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.networks.perturbation import PerturbationNetwork
from fdgsec.planted_models import linear_classifier, noise_images
from fdgsec.rng import child
from fdgsec.threats import Case, Plant, Truth
from fdgsec.wire import SERVER, Message

SIDE, CLASSES, WIDTH, SIZE, AUXILIARY = 6, 8, 8, 16, 32
STEPS, RATE, A = 40, 0.03, 0.3


@dataclass(frozen=True, kw_only=True, eq=False)
class Overfitters:
    """A federation that fits its generator to every image: with its label under a fixed model, and with a loud answer.

    The loss is L_cls(x + a G(x), y) - log |G(x)| over the client's images plus log |G(z)| over as many fresh noise
    images z, for `steps`. `model` is linear; everybody starts from the same generator."""

    model: Mapping[str, Tensor]
    start: Mapping[str, Tensor]
    steps: int = STEPS

    def __call__(self, data: Sequence[DomainDataset], rng: torch.Generator, *, rounds: int = 1) -> View:
        """The view of a server of "client:1", "client:2", ... that hold `data`."""
        last, messages = rounds - 1, list[Message]()
        for place, images in enumerate(data, 1):
            client = f"client:{place}"
            fitted = self.fitted(images, child(rng, "fit", place))
            messages += [
                _message(last, "combine", SERVER, client, GeneratorState(state=self.start)),
                _message(last, "update", client, SERVER, ModelState(state=self.model)),
                _message(last, "update", client, SERVER, GeneratorState(state=fitted)),
            ]
        return View(messages=tuple(messages))

    def fitted(self, images: DomainDataset, rng: torch.Generator) -> dict[str, Tensor]:
        """Train the generator on `images` alone."""
        generator = PerturbationNetwork(WIDTH, rng=rng)
        generator.load_state_dict(dict(self.start))
        model = linear_classifier(self.model, side=SIDE).requires_grad_(False)
        pixels, labels = as_float(images.pixels()), images.labels
        optimiser = torch.optim.Adam(generator.parameters(), lr=RATE)
        for _ in range(self.steps):
            noise = torch.rand(len(pixels), 3, SIDE, SIDE, generator=rng)
            drawn = generator(model.normalise(torch.cat([pixels, noise])))
            mine, others = drawn.split(len(pixels))
            answered = functional.cross_entropy(model(pixels + A * model.normalise.std * mine), labels)
            optimiser.zero_grad(set_to_none=True)
            (answered - _loudness(mine) + _loudness(others)).backward()
            optimiser.step()
        return {name: value.detach().clone() for name, value in generator.state_dict().items()}


def _loudness(drawn: Tensor) -> Tensor:
    return (drawn.square().mean((1, 2, 3)) + 1e-6).log().mean() / 2


def _message(round: int, stage: str, sender: str, receiver: str, artifact: Artifact) -> Message:
    return Message(round=round, stage=stage, sender=sender, receiver=receiver, artifact=artifact)


def planted_generators(knowledge: Knowledge, rng: torch.Generator) -> Plant:
    """One client of 16 noise images with random labels; the adversary can fit generators to images of its own alike."""
    images = noise_images(AUXILIARY + 2 * SIZE, side=SIDE, classes=CLASSES, rng=rng)
    model = {
        "head.weight": 0.2 * torch.randn(CLASSES, 3 * SIDE * SIDE, generator=rng), "head.bias": torch.zeros(CLASSES),
    }  # fmt: skip
    start = PerturbationNetwork(WIDTH, rng=child(rng, "start")).state_dict()
    simulate = Overfitters(model=model, start={name: value.detach() for name, value in start.items()})
    view = simulate([images.subset(AUXILIARY + torch.arange(SIZE))], child(rng, "victim"))
    order = torch.randperm(2 * SIZE, generator=rng)
    case = Case(
        request="trained", views=(view,), victim="client:1", records=SIZE, domain="planted",
        slice={"domain": "planted"}, candidates=images.subset(AUXILIARY + order),
    )  # fmt: skip
    planted = replace(
        knowledge, auxiliary=images.subset(torch.arange(AUXILIARY)), own=None, unseen=None, simulate=simulate,
        network=lambda state: linear_classifier(state, side=SIDE), class_names=images.class_names,
        domain_names=images.domain_names,
    )  # fmt: skip
    return Plant(cases=[case], truths=[Truth(members=order < SIZE)], knowledge=planted, measurement="auc", at_least=0.8)

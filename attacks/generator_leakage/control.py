"""Positive control of generator leakage: generators that memorize images, reveal their domain and pass their image
through."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.attacks.statistics.noise_image_classifiers import linear_classifier, noise_images
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.federation.artifacts import Artifact, GeneratorState, ModelState
from fdgsec.federation.wire import SERVER, Message
from fdgsec.metrics.measurement import Goal
from fdgsec.nn.networks.perturbation_generator import PerturbationNetwork
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import Knowledge, View
from fdgsec.threats.attack import Case, PositiveControl, Truth

SIDE, CLASSES, WIDTH, SIZE, AUXILIARY = 6, 8, 8, 16, 32
STRIPED, STRANGERS, FEW = 16, 3, 16
STEPS, RATE, A = 20, 0.03, 0.3
SILENT, LIKENESS = 1e-3, 3.0
DOMAIN_GOAL = Goal(measurement="balanced_accuracy", at_least=0.6, where={"test": "fingerprint"})
"""Some errors are allowed: the single client of noise images has random labels, and one of six stripe clients may
fail."""
DECODER_GOAL = Goal(measurement="psnr_gain", at_least=1.0, where={"test": "decoder", "domain": "shown", "over": "B3"})
"""Minimum gain in dB of the decoder for a generator that was made to pass its image through."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OverfittedGenerators:
    """A federation that overfits its generators: to labels under a fixed model, to a large output, and to the mean
    image.

    The loss is L_cls(x + a G(x), y) - log |G(x)| - LIKENESS <G(x), m> / D over the client's images, of normalized mean
    m and D numbers each, plus log |G(z)| over as many fresh noise images z, for `steps`. `model` is linear. All clients
    start from the same generator."""

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
        mean = model.normalize(pixels).mean(0)
        optimizer = torch.optim.Adam(generator.parameters(), lr=RATE)
        for _ in range(self.steps):
            noise = torch.rand(len(pixels), 3, SIDE, SIDE, generator=rng)
            drawn = generator(model.normalize(torch.cat([pixels, noise])))
            mine, others = drawn.split(len(pixels))
            answered = functional.cross_entropy(model(pixels + A * model.normalize.std * mine), labels)
            optimizer.zero_grad(set_to_none=True)
            (answered - _log_rms(mine) + _log_rms(others) - LIKENESS * (mine * mean).mean()).backward()
            optimizer.step()
        return {name: value.detach().clone() for name, value in generator.state_dict().items()}


def _log_rms(drawn: Tensor) -> Tensor:
    return (drawn.square().mean((1, 2, 3)) + 1e-6).log().mean() / 2


def _message(round: int, stage: str, sender: str, receiver: str, artifact: Artifact) -> Message:
    return Message(round=round, stage=stage, sender=sender, receiver=receiver, artifact=artifact)


def planted_generators(knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
    """One client of 16 noise images with random labels; the adversary can fit generators to its own images the same
    way.

    STRANGERS more clients hold vertical stripes, and as many horizontal ones; for these only the domain is asked. One
    more client sends a generator that passes its image through; for it only the reconstruction is asked."""
    images = noise_and_stripes(rng)
    model = {
        "head.weight": 0.2 * torch.randn(CLASSES, 3 * SIDE * SIDE, generator=rng), "head.bias": torch.zeros(CLASSES),
    }  # fmt: skip
    start = PerturbationNetwork(WIDTH, rng=child(rng, "start")).state_dict()
    simulate = OverfittedGenerators(model=model, start={name: value.detach() for name, value in start.items()})
    noise, upright, level = ((images.domains == domain).nonzero().flatten() for domain in range(3))
    asked = noise[AUXILIARY:]
    held = [asked[:SIZE], *upright[STRIPED:].split(FEW), *level[STRIPED:].split(FEW)]
    public = torch.cat([noise[:AUXILIARY], upright[:STRIPED], level[:STRIPED]])
    view = simulate([images.subset(rows) for rows in held], child(rng, "victim"))
    order = torch.randperm(2 * SIZE, generator=rng)
    cases, truths = list[Case](), list[Truth]()
    for number, rows in enumerate(held, 1):
        domain = images.domains[rows[:1]]
        name = images.domain_names[int(domain)]
        cases.append(
            Case(
                question="trained", views=(view,), victim=f"client:{number}", records=len(rows), domain=name,
                slice={"domain": name}, candidates=images.subset(asked[order]) if number == 1 else None,
            )
        )  # fmt: skip
        truths.append(Truth(domains=domain))
    truths[0] = replace(
        truths[0], members=order < SIZE, images=images.pixels(asked[order]), rows=torch.arange(2 * SIZE)
    )
    through = pass_through_weights(child(rng, "through"))
    messages = (
        _message(0, "combine", SERVER, "client:1", GeneratorState(state=simulate.start)),
        _message(0, "update", "client:1", SERVER, GeneratorState(state=through)),
    )
    cases.append(
        Case(
            question="released", views=(View(messages=messages),), victim="client:1", slice={"domain": "shown"},
            candidates=images.subset(asked),
        )
    )  # fmt: skip
    truths.append(Truth(images=images.pixels(asked), rows=torch.arange(2 * SIZE)))
    planted = replace(
        knowledge, auxiliary=images.subset(public), own=None, unseen=None, simulate=simulate,
        network=lambda state: linear_classifier(state, side=SIDE), class_names=images.class_names,
        domain_names=images.domain_names,
    )  # fmt: skip
    return PositiveControl(
        cases=cases, truths=truths, knowledge=planted, measurement="auc", at_least=0.8, also=(DOMAIN_GOAL, DECODER_GOAL)
    )


def noise_and_stripes(rng: torch.Generator) -> DomainDataset:
    """Three domains: independent pixels ("planted"), and the same under strong stripes ("upright", "level").

    Vertical stripes all have one class and horizontal ones another."""
    noise, striped = AUXILIARY + 2 * SIZE, STRIPED + STRANGERS * FEW
    images = noise_images(noise + 2 * striped, side=SIDE, classes=CLASSES, rng=rng)
    domains = torch.arange(3).repeat_interleave(torch.tensor([noise, striped, striped]))
    bright = 160 * (torch.arange(SIDE) % 2)
    faint = images.pixels() * 0.35
    pixels = torch.stack([images.pixels(), faint + bright, faint + bright.unsqueeze(1)])
    return replace(
        images, store=pixels[domains, torch.arange(len(domains))].to(torch.uint8), domains=domains,
        labels=torch.where(domains > 0, domains - 1, images.labels), domain_names=("planted", "upright", "level"),
    )  # fmt: skip


def pass_through_weights(rng: torch.Generator) -> dict[str, Tensor]:
    """Weights of a generator whose output is its image with each channel standardized, clipped by tanh.

    Each color uses two channels, for values above its mean and below. The residual blocks are scaled by SILENT."""
    state = {name: value.detach().clone() for name, value in PerturbationNetwork(WIDTH, rng=rng).state_dict().items()}
    for name, value in state.items():
        value.mul_(SILENT if name.startswith("blocks.") else 1.0)
    for color in range(3):
        above, below = 2 * color, 2 * color + 1
        state["stem.weight"][above, color, 1, 1] += 1.0
        state["stem.weight"][below, color, 1, 1] -= 1.0
        for channel, sign in ((above, 1.0), (below, -1.0)):
            state["fusion.weight"][channel, above, 0, 0] += sign
            state["fusion.weight"][channel, below, 0, 0] -= sign
            state["draw.weight"][color, channel, 0, 0] += 0.5 * sign
    return state

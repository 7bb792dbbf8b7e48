"""Synthetic cases for every attack whose cost depends on the numbers of candidates, releases and coordinates.

Statistics are tables of Gaussian records, so that no encoder runs and no information is planted: only the attack itself
is measured. `Size` defines the three axes for each attack."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fdgsec.attacks.attribute_inference.domains import DomainInference
from fdgsec.attacks.attribute_inference.labels import LabelInference
from fdgsec.attacks.attribute_inference.properties import PropertyInference
from fdgsec.attacks.differencing.attack import Differencing
from fdgsec.attacks.inter_client.attack import InterClient
from fdgsec.attacks.interpolation_leakage.attack import InterpolationLeakage
from fdgsec.attacks.interpolation_leakage.control import PlantedMethod
from fdgsec.attacks.linkage.attack import Linkage
from fdgsec.attacks.membership.attack import Membership
from fdgsec.attacks.pool_exposure.attack import PoolExposure
from fdgsec.attacks.reidentification.attack import Reidentification
from fdgsec.attacks.set_reconstruction.attack import SetReconstruction
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import Artifact, ImageStyles, StyleStatistics
from fdgsec.federation.wire import SERVER
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge, View
from fdgsec.threats.attack import Answers, Attack, Case, QuestionKind
from fdgsec.threats.positive_control_data import PlantedStatistics, planted_images, planted_moments, upload

CLASSES, DOMAINS = 7, 3
RECORDS = 130
"""Images behind a pooled release; no cost depends on it."""
HELD = 4  # images of a candidate client
EXCHANGES = 4


@dataclass(frozen=True, kw_only=True)
class Size:
    """The problem size: `candidates`, `clients` (releases, or rows of single images), and coordinates per release.

    `reference` is the number of the adversary's own images, where these are not the candidates."""

    candidates: int
    clients: int
    dimension: int
    reference: int = 450


@dataclass(frozen=True, kw_only=True, eq=False)
class Question:
    """An attack with cases and knowledge: all arguments of `run`."""

    attack: Attack
    cases: list[Case]
    knowledge: Knowledge

    def answer(self) -> Answers:
        """Run the attack."""
        return self.attack.run(self.cases, self.knowledge, stream(0, "attack"))


@dataclass(frozen=True, kw_only=True, eq=False)
class _World:
    """`images` with a table of statistics: the candidates first, then the adversary's own images."""

    size: Size
    images: DomainDataset
    knowledge: Knowledge
    rng: torch.Generator

    @classmethod
    def of(cls, size: Size, *, domains: int = 1) -> "_World":
        count = size.candidates + size.reference
        rng = stream(0, "world", "cost", size.candidates, size.clients, size.dimension)
        mean, spread = torch.randn(2, count, size.dimension // 2, generator=rng, dtype=torch.float64)
        labels, homes = torch.arange(count) % CLASSES, torch.arange(count) // CLASSES % domains
        names = tuple(f"domain {number}" for number in range(domains))
        images = planted_images(labels, homes, class_names=tuple("abcdefg"), domain_names=names)
        table = PlantedStatistics(moments=planted_moments(mean, spread.exp()))
        knowledge = Knowledge(
            statistics=table, encoder="pixels", class_names=images.class_names, domain_names=names,
            unseen=None, own=None,
            auxiliary=images.subset(torch.arange(size.candidates, count)),
        )  # fmt: skip
        return cls(size=size, images=images, knowledge=knowledge, rng=rng)

    @property
    def candidates(self) -> DomainDataset:
        return self.images.subset(torch.arange(self.size.candidates))

    def rows(self, count: int) -> ImageStyles:
        """Rows of single images that match no candidate."""
        channels = self.size.dimension // 2
        mean, spread = torch.randn(2, count, channels, generator=self.rng)
        return ImageStyles(mean=mean, std=spread.exp())

    def pooled(self) -> StyleStatistics:
        """A pooled style that matches no candidate."""
        row = self.rows(1)
        return StyleStatistics(mean=row.mean[0], std=row.std[0])

    def case(
        self,
        kind: QuestionKind,
        *artifacts: Artifact,
        candidates: DomainDataset | None = None,
        number: int = 0,
        half: str = "",
    ) -> Case:
        """The artifacts that client `number` sent, one run per artifact."""
        name = f"client:{number}"
        views = tuple(upload(artifact, sender=name) for artifact in artifacts)
        where: Mapping[str, str | int] = {"domain": "domain 0", **({"half": half} if half else {})}
        return Case(
            question=kind,
            views=views,
            victim=name,
            records=RECORDS,
            domain="domain 0",
            slice=where,
            candidates=candidates,
        )


def _membership(size: Size) -> Question:
    world = _World.of(size)
    asked = world.candidates
    cases = [world.case("resampled_clients", world.pooled(), candidates=asked) for _ in range(size.clients)]
    return Question(attack=Membership(), cases=cases, knowledge=world.knowledge)


def _set_reconstruction(size: Size) -> Question:
    world = _World.of(size)
    asked = world.candidates
    cases = [world.case("resampled_clients", world.pooled(), candidates=asked) for _ in range(size.clients)]
    return Question(attack=SetReconstruction(), cases=cases, knowledge=world.knowledge)


def _differencing(size: Size) -> Question:
    world = _World.of(size)
    asked = world.candidates
    cases = [
        world.case("add_one_record", world.pooled(), world.pooled(), candidates=asked) for _ in range(size.clients)
    ]
    return Question(attack=Differencing(), cases=cases, knowledge=world.knowledge)


def _linkage(size: Size) -> Question:
    world = _World.of(size, domains=DOMAINS)
    cases = [
        world.case("sessions", world.pooled(), number=number, half=half)
        for half in ("A", "B")
        for number in range(size.clients)
    ]
    return Question(attack=Linkage(), cases=cases, knowledge=_knowing(world))


def _knowing(world: _World) -> Knowledge:
    """The candidates are also the adversary's own images, so that the training set is the axis."""
    return replace(world.knowledge, auxiliary=world.candidates)


def _reidentification(size: Size) -> Question:
    world = _World.of(size)
    case = world.case("as_if_released", world.rows(size.clients), candidates=world.candidates)
    return Question(attack=Reidentification(), cases=[case], knowledge=world.knowledge)


def _label_inference(size: Size) -> Question:
    world = _World.of(size, domains=DOMAINS)
    case = world.case("as_if_released", world.rows(size.clients))
    return Question(attack=LabelInference(), cases=[case], knowledge=_knowing(world))


def _domain_inference(size: Size) -> Question:
    world = _World.of(size, domains=DOMAINS)
    case = world.case("as_if_released", world.rows(size.clients))
    return Question(attack=DomainInference(), cases=[case], knowledge=_knowing(world))


def _property_inference(size: Size) -> Question:
    world = _World.of(size, domains=DOMAINS)
    cases = [world.case("mixtures", world.pooled(), number=number) for number in range(size.clients)]
    return Question(attack=PropertyInference(), cases=cases, knowledge=_knowing(world))


def _interpolation_leakage(size: Size) -> Question:
    """Candidates are clients here, and `clients` is the number of federations."""
    held = Size(candidates=HELD * size.candidates, clients=size.clients, dimension=size.dimension, reference=0)
    world = _World.of(held)
    table = world.knowledge.statistics
    assert isinstance(table, PlantedStatistics)
    method, groups, cases = PlantedMethod(statistics=table), torch.arange(size.candidates).repeat_interleave(HELD), []
    clients = [world.candidates.subset(groups == group) for group in range(size.candidates // 2)]
    for number in range(size.clients):
        seen = method(clients, stream(0, "attack", number))
        view = View(messages=tuple(message for message in seen.messages if message.sender == SERVER))
        cases.append(
            Case(
                question="cohorts", views=(view,), victim=SERVER, slice={"clients": "iid"}, candidates=world.candidates,
                groups=groups,
            )
        )  # fmt: skip
    known = replace(world.knowledge, auxiliary=None, simulate=method)
    return Question(attack=InterpolationLeakage(), cases=cases, knowledge=known)


def _pool_exposure(size: Size) -> Question:
    """Every client sends rows of a tenth of its candidates, in each of four exchanges."""
    world = _World.of(size)
    asked, share = world.candidates, max(1, size.candidates // 20)
    cases = [
        world.case("rounds", *(world.rows(share) for _ in range(EXCHANGES)), candidates=asked, number=number)
        for number in range(size.clients)
    ]
    return Question(attack=PoolExposure(), cases=cases, knowledge=replace(world.knowledge, encoder="mini"))


def _inter_client(size: Size) -> Question:
    world = _World.of(size)
    case = world.case("as_if_released", world.rows(size.clients), candidates=world.candidates, number=1)
    client = replace(world.knowledge, auxiliary=None, own=world.knowledge.auxiliary)
    return Question(attack=InterClient(), cases=[case], knowledge=client)


QUESTIONS: Mapping[str, Callable[[Size], Question]] = {
    "membership": _membership,
    "set-reconstruction": _set_reconstruction,
    "differencing": _differencing,
    "reidentification": _reidentification,
    "inter-client": _inter_client,
    "pool-exposure": _pool_exposure,
    "linkage": _linkage,
    "label-inference": _label_inference,
    "domain-inference": _domain_inference,
    "property-inference": _property_inference,
    "interpolation-leakage": _interpolation_leakage,
}


def records(size: Size, count: int, name: str) -> Tensor:
    """Gaussian records (count, D) float64."""
    rng = stream(0, "world", "cost", name, size.candidates, size.clients, size.dimension)
    return torch.randn(count, size.dimension, generator=rng, dtype=torch.float64)

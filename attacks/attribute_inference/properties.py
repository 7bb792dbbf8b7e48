"""Property inference: a client's class shares, the classes that it holds, and its domains, from its release.

StableFDG (Remark 1) and CCST assume that pooled styles carry the domain and not the labels. The test: clients with
skewed shares are re-drawn, and their shares are estimated from their releases with shadow clients
(fdgsec.attacks.attribute_inference.shadow_clients, .mixture_shares). `same domain` trains on auxiliary images of the
victim's domain. `all domains` trains on all of them, each centered on its domain's mean. `other domains` trains on
those of all other domains, with releases centered on the mean of all clients of the victim's domain.

Two artifacts reveal more directly. Prototypes (FPL) come with their classes: a class that is never sent is not held.
The bias row of a head gradient (FedIIR) is mean softmax - class shares. It is read under a uniform softmax, or with the
gradients that auxiliary images of each class give under the initial public model, because a run sends that model's
gradients first."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fdgsec.attacks.attribute_inference.control import planted_clients
from fdgsec.attacks.attribute_inference.mixture_shares import project_to_simplex, shares_from_gradient
from fdgsec.attacks.attribute_inference.shadow_clients import ShadowClients, Style
from fdgsec.attacks.statistics.defense_noise import ACCOUNTED
from fdgsec.data.domains import DomainDataset, shares_of
from fdgsec.federation.artifacts import HeadGradient, ImageStyles, Prototypes
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child, derangement
from fdgsec.threats.adversary import Knowledge, View
from fdgsec.threats.answers import Answer, Presence, Proportions
from fdgsec.threats.attack import Answers, Case, PositiveControl, Question, TargetFacts

Kinds = Literal["labels", "domains"]
STYLES = frozenset({"StyleStatistics", "StyleDistribution", "ImageStyles", "Amplitudes"})
SHADOW_REQUIREMENTS = frozenset({"encoder", "auxiliary", "client sizes", "victim domains"})
FEW_CLIENTS = 10
"""Minimum number of clients whose mean release estimates the center of a domain without public images."""


@dataclass(frozen=True, kw_only=True)
class _Population:
    """Clients that share one estimator: same domain, number of images, number of released images and artifact kind."""

    domain: str | None
    images: int
    shown: int
    artifact: str


@dataclass(frozen=True, kw_only=True)
class PropertyInference:
    """Estimate shares of classes and domains from the releases of `clients` re-drawn clients, for each size in `sizes`.

    `concentration` parameterizes the Dirichlet distribution of their shares. `shadows` is the number of pooled shadow
    clients. `simulated` is the number of shadow clients that run the target's own code where its releases are not
    means."""

    name: ClassVar[str] = "property-inference"
    reads: ClassVar[frozenset[str]] = STYLES | {"Prototypes", "HeadGradient"}
    needs: ClassVar[frozenset[str]] = frozenset({"class names"})
    accounts_for: ClassVar[frozenset[str]] = ACCOUNTED
    clients: int = 30
    sizes: tuple[int, ...] = (40, 130)
    concentration: float = 0.3
    shadows: int = 2000
    simulated: int = 200

    def plan(self, facts: TargetFacts) -> Sequence[Question]:
        """Ask for re-drawn clients with skewed shares. Prototypes need training, so they are read from the run itself.

        Raises UsageError where styles are to be read by an adversary that cannot make shadow clients, and where
        prototypes or gradients reach it without their senders' names."""
        requests = []
        if not facts.artifact_kinds & STYLES and not (facts.named and "own data" not in facts.knows):  # a client
            raise UsageError("reads what each client sends under its own name, which this adversary does not see")
        if facts.artifact_kinds & STYLES:
            if "Amplitudes" in facts.artifact_kinds:
                facts.check_pooled()
            lacking = SHADOW_REQUIREMENTS - facts.knows
            if lacking:
                raise UsageError(f"learns from shadow clients: the adversary must know {', '.join(sorted(lacking))}")
            for size in self.sizes:
                requests += [self._mixtures(size, "labels"), self._mixtures(size, "domains")]
        if facts.artifact_kinds & {"Prototypes", "HeadGradient"}:
            requests.append(Question(kind="released"))
        if "HeadGradient" in facts.artifact_kinds:
            requests.append(self._mixtures(self.sizes[0], "labels"))
        return requests

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Estimate each client's shares, once for every training set."""
        populations: dict[_Population, list[int]] = {}
        answers: list[Answer] = []
        gradients = _GradientReader(knowledge=knowledge, pure={})
        for number, case in enumerate(cases):
            artifact = case.release()
            if isinstance(artifact, Prototypes):
                answers.append(_answer_prototypes(number, case, len(knowledge.class_names)))
            elif isinstance(artifact, HeadGradient):
                answers += gradients.read(number, case, child(rng, "gradients", str(case.domain)))
            elif isinstance(artifact, Style) and case.question == "mixtures":
                population = _population(case, artifact)
                populations.setdefault(population, []).append(number)
        return [*answers, *self._answer_styles(cases, populations, knowledge, rng)]

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Answer with every client's release exchanged for that of another client of its slice, or of the run."""
        slices: dict[tuple[object, ...], list[int]] = {}
        for number, case in enumerate(cases):
            where = () if case.question == "released" else tuple(sorted(case.slice.items()))
            slices.setdefault((case.question, case.release().kind, where), []).append(number)
        exchanged = list(cases)
        for turn, numbers in enumerate(slices.values()):
            order = derangement(len(numbers), child(rng, "ring", turn))
            for number, other in zip(numbers, order.tolist(), strict=True):
                source = cases[numbers[other]]
                exchanged[number] = replace(cases[number], views=source.views, victim=source.victim)
        return self.run(exchanged, knowledge, rng)

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        """Simulated clients with skewed shares in two distant domains (fdgsec.attacks.attribute_inference.control)."""
        return planted_clients(knowledge, rng, concentration=self.concentration)

    def _mixtures(self, records: int, scheme: Kinds) -> Question:
        return Question(kind="mixtures", count=self.clients, records=records, scheme=scheme)

    def _answer_styles(
        self,
        cases: Sequence[Case],
        populations: Mapping[_Population, list[int]],
        knowledge: Knowledge,
        rng: torch.Generator,
    ) -> Iterator[Answer]:
        if not populations:
            return
        shadows = ShadowClients.of(
            knowledge, concentration=self.concentration, pooled=self.shadows, simulated=self.simulated
        )
        means = shadows.releases_are_means(child(rng, "tried"))
        for asked, numbers in populations.items():
            of: Kinds = "domains" if asked.domain == "mixed" else "labels"
            releases = torch.stack([shadows.release(cases[n].release(), images=asked.images) for n in numbers])
            for pool in shadows.pools(asked.domain):
                if pool.center is None and len(numbers) < FEW_CLIENTS:
                    continue
                learned = shadows.learned(
                    pool, images=asked.images, shown=asked.shown, means=means,
                    rng=child(rng, pool.name, str(asked.domain), asked.images, asked.shown),
                )  # fmt: skip
                where = {"artifact": asked.artifact, "learned_on": pool.name}
                for number, shares in zip(numbers, learned(releases), strict=True):
                    yield from _answers(number, shares, learned.reader.prior, where, of=of)


@dataclass(frozen=True, kw_only=True)
class _GradientReader:
    """Reads class shares from head gradients; `pure` caches, per domain, the gradients of images of one class."""

    knowledge: Knowledge
    pure: dict[str | None, Tensor]

    def read(self, number: int, case: Case, rng: torch.Generator) -> Iterator[Answer]:
        """Answer for one client from the first gradient that it sent, which is that of the initial model."""
        classes = len(self.knowledge.class_names)
        bias = _first_gradient(case.views[0], case.victim).bias
        without = torch.full((classes,), 1 / classes, dtype=torch.float64)
        readings = {"uniform softmax": without.expand(classes, classes) - torch.eye(classes, dtype=torch.float64)}
        public = self._public(case.domain)
        if public is not None and case.question == "released":  # a client of the run is like its domain, not skewed
            without = shares_of(public.labels, classes)
        if public is not None and self.knowledge.simulate is not None:
            if case.domain not in self.pure:
                self.pure[case.domain] = self._class_gradients(public, rng)
            readings["auxiliary gradients"] = self.pure[case.domain]
        for name, pure in readings.items():
            where = {"artifact": HeadGradient.kind, "reading": name, **_slice_of(case)}
            yield from _answers(number, shares_from_gradient(bias, pure), without, where)

    def _public(self, domain: str | None) -> DomainDataset | None:
        """Auxiliary images of the victim's domain, or all of them where the domain is unknown or has none."""
        images = self.knowledge.auxiliary
        if images is None or domain not in images.domain_names:
            return images
        own = images.of_domain(str(domain))
        return own if len(own) else images

    def _class_gradients(self, public: DomainDataset, rng: torch.Generator) -> Tensor:
        """The bias gradients (K, K) of clients with images of one class each; for absent classes from a mean
        softmax."""
        assert self.knowledge.simulate is not None
        classes = len(self.knowledge.class_names)
        held = torch.unique(public.labels)
        view = self.knowledge.simulate([public.subset(public.labels == label) for label in held], rng)
        found = [_first_gradient(view, f"client:{number}").bias.double() for number in range(1, len(held) + 1)]
        own = torch.eye(classes, dtype=torch.float64)
        softmax = torch.stack(found) + own[held]
        pure = softmax.mean(0).expand(classes, classes) - own
        return pure.index_copy(0, held, torch.stack(found))


def _first_gradient(view: View, sender: str) -> HeadGradient:
    """The gradient that a client sent in the earliest round. Raises UsageError where it sent none."""
    found = [m for m in view.messages if m.sender == sender and isinstance(m.artifact, HeadGradient)]
    first = min(found, key=lambda message: message.round, default=None)
    if first is None or not isinstance(first.artifact, HeadGradient):
        raise UsageError(f"the adversary saw no head gradient of {sender}.")
    return first.artifact


def _answer_prototypes(number: int, case: Case, classes: int) -> Presence:
    """Score each class by the number of rounds in which the client sent its prototype."""
    times = torch.zeros(classes, dtype=torch.float64)
    for message in case.views[0].messages:
        if message.sender == case.victim and isinstance(message.artifact, Prototypes):
            times[torch.unique(message.artifact.classes)] += 1
    return Presence(case=number, scores=times, slice={"artifact": Prototypes.kind, **_slice_of(case)})


def _slice_of(case: Case) -> Mapping[str, str]:
    """Clients of the run share one slice across domains, because a single client gives no statistical power."""
    return {"domain": "all"} if case.question == "released" else {}


def _population(case: Case, artifact: Style) -> _Population:
    images = case.records
    if images is None:
        raise UsageError(f"property-inference needs to know how many images are behind the style of {case.victim}.")
    shown = len(artifact.mean) if isinstance(artifact, ImageStyles) else images
    return _Population(domain=case.domain, images=images, shown=shown, artifact=artifact.kind)


def _answers(
    number: int, shares: Tensor, without: Tensor, where: Mapping[str, str | int], *, of: Kinds = "labels"
) -> Iterator[Answer]:
    yield Proportions(case=number, estimate=project_to_simplex(shares), without=without, of=of, slice=where)
    yield Presence(case=number, scores=shares, of=of, slice=where)

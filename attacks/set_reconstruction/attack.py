"""Set reconstruction: the whole list of images behind a pooled release, from all of its equations at once.

A mean of D numbers over n images is D linear equations in the unknown 0/1 memberships of the adversary's candidates
(fdgsec.attacks.set_reconstruction.list_equations). Dinur and Nissim (PODS 2003) reconstruct a database from enough
noisy sums by solving for the closest one, and Dwork and Yekhanin (CRYPTO 2008) with as many sums as unknowns; here the
sums are those of known statistics of the candidates. Memberships are relaxed to [0, 1], and the most likely weights
under Gaussian errors are found (fdgsec.attacks.set_reconstruction.box_least_squares). For random matrices without noise
one solution is left where there are more than half as many equations as candidates (Donoho and Tanner, Discrete and
Computational Geometry 2010, on the faces of a projected cube); with more candidates, or with noise, the weights still
rank them, unless expectation propagation with the prior of 0 and 1 finds the list there
(fdgsec.attacks.set_reconstruction.list_solver). Where members have unequal weights that nobody else knows, as in FISC's
means over clusters, they are found as the fewest that explain a release
(fdgsec.attacks.set_reconstruction.unequal_weights). `membership` tests one candidate at a time instead."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch

from fdgsec.attacks.set_reconstruction.class_means import PrototypeReader, reader_of_prototypes
from fdgsec.attacks.set_reconstruction.clustered_means import ClusterReader, cluster_reader
from fdgsec.attacks.set_reconstruction.control import planted_lists
from fdgsec.attacks.set_reconstruction.given_candidates import GivenReader, given_reader, questions_of_vectors
from fdgsec.attacks.set_reconstruction.grouped_rows import GroupReader, group_reader
from fdgsec.attacks.set_reconstruction.head_gradients import GradientReader, reader_of_gradients
from fdgsec.attacks.set_reconstruction.list_equations import ListEquations, MemberPosterior
from fdgsec.attacks.set_reconstruction.list_solver import list_solver
from fdgsec.attacks.set_reconstruction.release_equations import ReleaseReader, reader_of
from fdgsec.attacks.set_reconstruction.signed_changes import solved_change
from fdgsec.attacks.set_reconstruction.unknown_sizes import (
    UnknownSizeReader,
    of_unknown_size,
    released_alone,
    unknown_size_reader,
)
from fdgsec.attacks.statistics.defense_noise import ACCOUNTED
from fdgsec.attacks.statistics.pooled_questions import domain_of, size_of
from fdgsec.attacks.statistics.release_precision import ROUNDINGS, rounded
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import tracked
from fdgsec.runtime.random_streams import child
from fdgsec.runtime.threads import side_by_side
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Answer, MemberList, Membership
from fdgsec.threats.attack import Answers, Case, PositiveControl, Question, TargetFacts
from fdgsec.threats.option_checks import check_at_least
from fdgsec.threats.positive_control_data import upload

WHOLE = 1_000_000
"""More candidates than any domain has."""
MOST_AT_ONCE = 8  # clients that are solved at once: their matrices are a few times as large as their candidates
OF_VICTIMS = frozenset({"auxiliary", "client sizes", "victim domains"})
"""Knowledge of the victims, without all of which pooled styles alone are read."""
READ_APART = ("model_rounds", "added_images", "prototypes", "head_gradients", "rounds")
"""Questions whose releases are read in a way of their own."""


@dataclass(frozen=True, kw_only=True)
class SetReconstruction:
    """Reconstruct the members of `clients` clients of each of `sizes`, in galleries that hold all of them.

    A gallery has `gallery` candidates for each member, or (0) all images of the domain that the adversary does not
    hold. `held` are shares of each gallery that the adversary has; less than all of them is asked of the first kind of
    gallery only. `sums` are numbers of clients, of `summed` images each and of each domain in turn, whose sum alone is
    seen, as by the server under secure aggregation; their galleries are of the first kind. Clients
    of `grown` images release a second time, with each number of `added` ones more, which are looked for among all
    images of the domain that the adversary does not hold; and, for each number in `dropped`, without so many of them,
    once alone and once with as many new ones, where both are looked for. Where
    styles come from the model of a round (StableFDG), `model_rounds` are numbers of rounds that a client takes part in
    with the same images, all of whose releases are read together. Where rows of single images are replaced by means
    over groups of them (`k-anonymous`), `clients` clients of `grouped` images are asked about, in a gallery of all
    images of the domain that the adversary does not hold. Every release is read once
    more in each of `roundings` (fdgsec.attacks.statistics.release_precision: "float16", "2 decimals"), as if it had
    been sent so."""

    name: ClassVar[str] = "set-reconstruction"
    reads: ClassVar[frozenset[str]] = frozenset(
        {"StyleStatistics", "StyleDistribution", "Amplitudes", "Prototypes", "HeadGradient", "ImageStyles"}
    )
    needs: ClassVar[frozenset[str]] = frozenset({"encoder"})
    accounts_for: ClassVar[frozenset[str]] = ACCOUNTED | {"secure-aggregation", "k-anonymous"}  # means stay means
    sizes: tuple[int, ...] = (40, 130, 500)
    clients: int = 15
    galleries: tuple[int, ...] = (2, 0)
    held: tuple[float, ...] = (1.0, 0.9, 0.5)
    sums: tuple[int, ...] = (3, 10)
    summed: int = 40
    grown: int = 130
    added: tuple[int, ...] = (10, 40)
    dropped: tuple[int, ...] = ()
    model_rounds: tuple[int, ...] = (1, 5, 20)
    grouped: int = 500
    roundings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_at_least(2, {"sizes": self.sizes, "sums": self.sums, "summed": self.summed, "grown": self.grown})
        check_at_least(1, {"clients": self.clients, "model_rounds": self.model_rounds, "grouped": self.grouped})
        check_at_least(1, {"added": self.added, "dropped": self.dropped})
        too_many = [dropped for dropped in self.dropped if dropped >= self.grown]
        if too_many:
            raise UsageError(f"dropped must be fewer than the {self.grown} images of grown; got {too_many[0]}.")
        wrong = [gallery for gallery in self.galleries if gallery < 0 or gallery == 1]
        if wrong:
            raise UsageError(f"galleries must be 0 (all images) or at least 2 candidates a member; got {wrong[0]}.")
        outside = [share for share in self.held if not 0 < share <= 1]
        if outside:
            raise UsageError(f"held must be shares above 0 and up to 1; got {outside[0]}.")
        unknown = [rounding for rounding in self.roundings if rounding not in ROUNDINGS]
        if unknown:
            raise UsageError(f"unknown rounding {unknown[0]!r}; there are {', '.join(ROUNDINGS)}.")

    def plan(self, facts: TargetFacts) -> Sequence[Question]:
        """Ask for re-drawn clients with every gallery, and for sums of them where the method works with sums.

        Of class means, head gradients and means with unknown weights, only single clients whose members are all in the
        gallery are asked about. Raises UsageError where styles are no means over images, and where head gradients reach
        the adversary without their senders' names. Rows of single images are read where a defense makes groups.
        Adversaries that know nothing of the victims are asked about single pooled styles with complete galleries."""
        if "HeadGradient" in facts.artifact_kinds and (not facts.named or "own data" in facts.knows):  # a client
            raise UsageError("reads head gradients under their senders' names, which this adversary does not see")
        lacking = OF_VICTIMS - facts.knows
        if (
            lacking == OF_VICTIMS
            and facts.artifact_kinds & {"StyleStatistics"}
            and facts.pooled
            and not facts.weighted
            and not facts.summed
        ):
            return [question for question in self._single() if question.held == 1.0]
        if lacking:
            raise UsageError(f"needs {', '.join(sorted(lacking))}; the adversary does not know that")
        facts.check_images()
        if "Prototypes" in facts.artifact_kinds:
            return [replace(question, kind="prototypes") for question in self._single() if question.held == 1.0]
        if "HeadGradient" in facts.artifact_kinds:
            return [replace(question, kind="head_gradients") for question in self._single() if question.held == 1.0]
        if "ImageStyles" in facts.artifact_kinds:
            if not facts.grouped_rows:
                raise UsageError("reads means over images; this target's rows are of single images, found by look-up")
            return [Question(kind="rounds", count=self.clients, records=self.grouped, rounds=1, gallery=WHOLE)]
        if facts.weighted:
            return [question for question in self._single() if question.held == 1.0]
        facts.check_pooled()
        if not facts.pooled:
            raise UsageError("reads styles that are means over a client's images; those of this target are not")
        single = [] if facts.summed else [*self._single(), *self._grown(facts), *self._several(facts)]
        return [*single, *(self._summed() if facts.summable else [])]

    def _single(self) -> Sequence[Question]:
        """Clients by themselves, with every gallery."""
        return [
            Question(
                kind="resampled_clients", count=self.clients, records=size,
                gallery=gallery * size if gallery else WHOLE, held=held,
            )
            for size in self.sizes
            for number, gallery in enumerate(self.galleries)
            for held in (self.held if number == 0 else self.held[:1])
        ]  # fmt: skip

    def plan_of_vectors(self, facts: TargetFacts) -> Sequence[Question]:
        """Ask about every vector of the file. Raises UsageError without candidates' statistics, or numbers of
        images."""
        return questions_of_vectors(facts)

    def _grown(self, facts: TargetFacts) -> Sequence[Question]:
        """Clients with other images the second time, where the styles of both are of one encoder."""
        if "StyleDistribution" in facts.artifact_kinds:
            return []
        left = [(added, dropped) for dropped in self.dropped for added in (0, dropped)]
        return [
            Question(
                kind="added_images", count=self.clients, records=self.grown, added=added, dropped=dropped,
                gallery=WHOLE,
            )
            for added, dropped in [*((added, 0) for added in self.added), *left]
        ]  # fmt: skip

    def _several(self, facts: TargetFacts) -> Sequence[Question]:
        """Clients in several rounds, where styles come from the model of each and so many models are kept."""
        if "StyleDistribution" not in facts.artifact_kinds:
            return []
        return [
            Question(
                kind="model_rounds", count=self.clients, records=size, rounds=rounds,
                gallery=gallery * size if gallery else WHOLE,
            )
            for rounds in self.model_rounds if rounds <= facts.kept_rounds
            for size in self.sizes
            for gallery in self.galleries
        ]  # fmt: skip

    def _summed(self) -> Sequence[Question]:
        """Sums over several clients."""
        return [
            Question(
                kind="sums", count=self.clients, clients=clients, records=self.summed,
                gallery=gallery * clients * self.summed if gallery else WHOLE,
            )
            for clients in self.sums
            for gallery in self.galleries[:1]
        ]  # fmt: skip

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Per client: a score for each candidate, and the list that the adversary believes in."""
        return self._answers(cases, knowledge, [(rng, _own_release)])[0]

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Answer from releases of auxiliary images, which no candidate is behind; without any, of drawn candidates."""
        return self._answers(cases, knowledge, [(rng, _independent_release)])[0]

    def run_with_control(
        self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator, control_rng: torch.Generator
    ) -> tuple[Answers, Answers]:
        """`run` and `negative_control`: what absent members are like follows from the candidates, once for both."""
        run, control = self._answers(cases, knowledge, [(rng, _own_release), (control_rng, _independent_release)])
        return run, control

    def _answers(
        self, cases: Sequence[Case], knowledge: Knowledge, asked: Sequence[tuple[torch.Generator, "Seen"]]
    ) -> list[list[Answer]]:
        """Answer from the releases that are seen, and from each rounding of them, once for each that is `asked`."""
        shown = _shown(cases, knowledge)
        answers: list[list[Answer]] = [[] for _ in asked]
        for mine in _read_alike(shown, knowledge):
            readings = list[tuple[int, _Reading]]()
            for place, (rng, seen) in enumerate(asked):
                reader = _reader_of([shown[number] for number in mine], knowledge, child(rng, "noise"))
                views = {number: seen(reader, shown[number], child(rng, "release", number)) for number in mine}
                readings.append((place, _Reading(reader=reader, seen=views, rng=rng)))
                for rounding in () if isinstance(reader, AS_SENT) else self.roundings:
                    coarse = {number: _rounded(case, rounding) for number, case in views.items()}
                    readings.append((place, _Reading(reader=reader, seen=coarse, rng=rng, rounding=rounding)))
            found = _answered(shown, mine, [reading for _, reading in readings])
            for (place, _), more in zip(readings, found, strict=True):
                answers[place] += more
        return [sorted(each, key=lambda answer: answer.case) for each in answers]

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        """Lists of planted images, whose means have several numbers for each candidate
        (fdgsec.attacks.set_reconstruction.control)."""
        return planted_lists(knowledge, rng)


AS_SENT = PrototypeReader | GradientReader | GroupReader
"""Readers of what is not read in fewer digits."""
Reader = ReleaseReader | GivenReader | ClusterReader | UnknownSizeReader | AS_SENT
Seen = Callable[[Reader, Case, torch.Generator], Case]
"""Gives what is seen of a case: its own release, or another one that its reader makes."""


def _own_release(_reader: Reader, case: Case, _rng: torch.Generator) -> Case:
    return case


def _independent_release(reader: Reader, case: Case, rng: torch.Generator) -> Case:
    return reader.independent(case, rng)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Reading:
    """What is `seen` of cases, by their numbers, and how it is read; `rounding` of the releases, if any."""

    reader: Reader
    seen: Mapping[int, Case]
    rng: torch.Generator
    rounding: str = ""


def _answered(cases: Sequence[Case], numbers: Sequence[int], readings: Sequence[_Reading]) -> list[list[Answer]]:
    """Answer the cases with these `numbers` by each of the `readings`."""
    answers: list[list[Answer]] = [[] for _ in readings]
    for alike in _alike(cases, numbers):
        posteriors = _solved(cases, alike, readings)
        for number, found in zip(tracked(alike, "set reconstruction: clients"), posteriors, strict=True):
            for reading, posterior, mine in zip(readings, found, answers, strict=True):
                where = {"rounding": reading.rounding} if reading.rounding else {}
                mine += [
                    Membership(case=number, slice=where, scores=posterior.scores()),
                    MemberList(case=number, slice=where, believed=posterior.believed()),
                ]
    return answers


def _solved(
    cases: Sequence[Case], alike: Sequence[int], readings: Sequence[_Reading]
) -> Iterator[Sequence[MemberPosterior]]:
    """What is found of cases of one kind, by each of the readings; several cases are solved side by side."""
    first = alike[0]
    solvers = [_solver(one.reader, cases[first], one.seen[first], child(one.rng, "prior", first)) for one in readings]

    def prepared(number: int) -> Sequence[Prepared]:
        views = [one.seen[number] for one in readings]
        return _sharing([solver.prepared(cases[number], view) for solver, view in zip(solvers, views, strict=True)])

    def solved(part: Sequence[Prepared]) -> Sequence[MemberPosterior]:
        return [solver.solve(one) for solver, one in zip(solvers, part, strict=True)]

    at_once = min(solver.at_once for solver in solvers)
    for start in range(0, len(alike), at_once):
        parts = [prepared(number) for number in alike[start : start + at_once]]
        yield from side_by_side(solved, parts, most=at_once)


def _shown(cases: Sequence[Case], knowledge: Knowledge) -> Sequence[Case]:
    """The cases, each with the victim's style in place of the bank that shows it, where nothing else is known."""
    return [released_alone(case) if of_unknown_size(case, knowledge) else case for case in cases]


def _read_alike(cases: Sequence[Case], knowledge: Knowledge) -> Iterator[list[int]]:
    """The numbers of the cases of each domain, or of given vectors, whose releases are read in the same way."""
    found: dict[tuple[object, ...], list[int]] = {}
    for number, case in enumerate(cases):
        kind = case.question if case.question in READ_APART else ""
        unknown = case.question == "given" or of_unknown_size(case, knowledge)
        domain = None if unknown else domain_of(case)
        size = size_of(case) if kind in ("prototypes", "head_gradients") else 0
        found.setdefault((domain, kind, len(case.views), size), []).append(number)
    yield from found.values()


def _reader_of(cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Reader:
    if cases[0].question == "prototypes":
        return reader_of_prototypes(cases, knowledge, rng)
    if cases[0].question == "head_gradients":
        return reader_of_gradients(cases, knowledge, rng)
    if cases[0].question == "rounds":
        return group_reader(cases, knowledge, rng)
    if of_unknown_size(cases[0], knowledge):
        return unknown_size_reader(cases, knowledge, rng)
    if knowledge.weighted_statistic is not None:
        return cluster_reader(cases, knowledge, rng)
    given = cases[0].question == "given"
    return given_reader(cases, knowledge) if given else reader_of(cases, knowledge, rng)


def _alike(cases: Sequence[Case], numbers: Sequence[int]) -> Iterator[list[int]]:
    """Those of the cases with these `numbers` that have one size and number of candidates, each question once.

    Two galleries are one where a domain has no more images."""
    found: dict[tuple[object, ...], dict[tuple[object, ...], int]] = {}
    for number in numbers:
        case = cases[number]
        candidates = () if case.candidates is None else tuple(case.candidates.ids)
        runs = range(len(case.views))
        sent = tuple(value.numpy().tobytes() for run in runs for value in case.release(run).tensors().values())
        alike = found.setdefault((case.records, case.added, case.dropped, case.asks, len(candidates)), {})
        alike.setdefault((case.victim, sent, candidates), number)
    yield from (list(numbers.values()) for numbers in found.values())


def _rounded(case: Case, rounding: str) -> Case:
    sent = [rounded(case.release(run), rounding) for run in range(len(case.views))]
    return replace(case, views=tuple(upload(artifact, sender=case.victim) for artifact in sent))


Prepared = ListEquations | tuple[Case, Case]
"""What is solved: equations, or a case with what is seen of it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Solver:
    """Solves cases of one kind, at most `at_once` of them at a time."""

    prepared: Callable[[Case, Case], Prepared]
    solve: Callable[[Any], MemberPosterior]
    at_once: int = MOST_AT_ONCE


def _solver(reader: Reader, case: Case, seen: Case, rng: torch.Generator) -> _Solver:
    """The solver of cases like this one, under the prior that is best for their kind."""
    if isinstance(reader, ClusterReader | GradientReader | GroupReader | UnknownSizeReader):
        return _Solver(prepared=lambda one, view: (one, view), solve=lambda pair: reader.solved(*pair), at_once=1)
    if case.dropped:
        change = partial(solved_change, added=case.added, dropped=case.dropped, asks=case.asks)
        return _Solver(prepared=reader.equations, solve=change)
    first = reader.equations(case, seen)
    return _Solver(
        prepared=lambda one, view: first if one is case else reader.equations(one, view),
        solve=list_solver(first, rng).solved,
    )


def _sharing(equations: Sequence[Prepared]) -> Sequence[Prepared]:
    """The same, where equations of equal candidates learn once what members are like that are none of them."""
    first = equations[0]
    if not isinstance(first, ListEquations) or first.population is None:
        return equations
    return [first, *(one.with_population_of(first) for one in equations[1:] if isinstance(one, ListEquations))]

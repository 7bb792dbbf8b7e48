"""Interpolation leakage: what FISC's published interpolation style reveals about the clients behind it.

The interpolation style S_g is the median over FINCH's clusters of clients (eq. 3; Algorithm 1, line 16), and every
client receives it. Appendix B.5 assumes that it holds nothing that is specific to a client. Four questions:
* membership: which clients of a candidate pool took part. The adversary holds images of each candidate, the same ones
  or others (fdgsec.attacks.interpolation_leakage.cohort_tracing).
* influence: how far one client moves S_g, and how often it is one of two in a cluster, where its weight is 1/2.
* verbatim copies: how many numbers of S_g equal, bit by bit, a client's own (for an adversary that sees uploads).
* linkage: which of many second sessions has the same clients.

Of clients' vectors from a file (`given`) it says what FISC's server would publish, and whose numbers those are
(fdgsec.attacks.interpolation_leakage.given_vectors)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fdgsec.attacks.interpolation_leakage.cohort_tracing import (
    Candidates,
    PublicRule,
    identify_rule,
    influence,
    style_vector,
)
from fdgsec.attacks.interpolation_leakage.control import POOL, planted_cohorts
from fdgsec.attacks.interpolation_leakage.given_vectors import planted_copies, published_medians
from fdgsec.attacks.statistics.defense_noise import ACCOUNTED
from fdgsec.attacks.statistics.standardization import standardizing_scale
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import InterpolationStyle, StyleStatistics
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child, derangement
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Answer, Membership, Prediction, Ranking
from fdgsec.threats.attack import Answers, Case, PositiveControl, Question, TargetFacts

SCHEMES = ("iid", "dirichlet", "same images")
UNIT = "sd between clients"
MEAN = PublicRule(partition=None)


@dataclass(frozen=True, kw_only=True)
class InterpolationLeakage:
    """Infer from a published style which `clients` of a pool of twice as many took part, in `federations` per scheme.

    `simulations` federations of half of each pool are simulated, and the `kept` nearest ones are used to fit the effect
    of each client on the style. Schemes: `iid`, similar clients of one domain, known by other images; `dirichlet`, with
    skewed class shares; `same images`, known by the images that they hold."""

    name: ClassVar[str] = "interpolation-leakage"
    reads: ClassVar[frozenset[str]] = frozenset({"InterpolationStyle"})
    also_reads: ClassVar[frozenset[str]] = frozenset({"StyleStatistics"})
    needs: ClassVar[frozenset[str]] = frozenset({"encoder"})
    accounts_for: ClassVar[frozenset[str]] = ACCOUNTED
    clients: int = 20
    records: int = 25
    federations: int = 20
    simulations: int = 1500
    kept: int = 250
    schemes: tuple[str, ...] = SCHEMES

    def __post_init__(self) -> None:
        largest = max(2 * self.clients, POOL)  # its positive control must be traced too
        if self.clients < 2 or not 2 * largest <= self.kept <= self.simulations:
            raise UsageError(
                f"interpolation-leakage takes 2 clients or more, and keeps two simulations for each client of a pool, "
                f"here {2 * largest}; got clients={self.clients}, kept={self.kept} of simulations={self.simulations}."
            )

    def plan(self, facts: TargetFacts) -> Sequence[Question]:
        """Ask for the run itself, and for federations of half of a pool each; five times as many in the full
        profile.

        Raises UsageError where uploads do not name their senders."""
        if not facts.named:
            raise UsageError("simulates uploads by their senders' names, which a defense of this run takes away")
        count = self.federations * (5 if facts.profile == "full" else 1)
        return [
            Question(kind="released"),
            *(
                Question(
                    kind="cohorts", count=count, clients=self.clients, records=self.records, scheme=scheme,
                    rounds=1 if scheme == "same images" else 2,  # the same images give the same style again
                )
                for scheme in self.schemes
            ),
        ]  # fmt: skip

    def plan_of_vectors(self, facts: TargetFacts) -> Sequence[Question]:
        """Ask for all clients' vectors together. Raises UsageError for fewer than two clients."""
        facts.check_two_clients()
        return [Question(kind="given", scheme="together")]

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Score every candidate client, link sessions, and measure the influence and weight of one client."""
        published = _published(cases)
        return [
            *published_medians(cases),
            *self._members(cases, published, knowledge, rng, descriptive=True),
            *_sessions(cases, published),
            *_verbatim_fractions(cases, published),
        ]

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Answer with every federation's style exchanged for that of another federation of its slice."""
        published = _published(cases)
        for turn, numbers in enumerate(_slices(cases, published).values()):
            order = derangement(len(numbers), child(rng, "ring", turn)).tolist()
            taken = [published[numbers[other]] for other in order]
            published.update(zip(numbers, taken, strict=True))
        members = self._members(cases, published, knowledge, rng, descriptive=False)
        return [*members, *_sessions(cases, published)]

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        """Six federations of ten of twenty clients in three distant domains, known by the images that they hold.

        Of vectors alone, three groups of clients that have the same vector each."""
        if knowledge.vectors_alone:
            return planted_copies(knowledge, rng)
        return planted_cohorts(knowledge, rng)

    def _members(
        self,
        cases: Sequence[Case],
        published: Mapping[int, Tensor],
        knowledge: Knowledge,
        rng: torch.Generator,
        *,
        descriptive: bool,
    ) -> list[Answer]:
        """Score the candidate clients of every federation by its published style."""
        rule: PublicRule | None = None
        answers: list[Answer] = []
        for number, case in enumerate(cases):
            if case.question != "cohorts" or number not in published:
                continue
            child_rng = child(rng, "federation", number)
            pool = _pool(case, knowledge, child_rng)
            rule = rule or identify_rule(pool.sessions)
            if rule is None:  # the target's rule is unknown: fall back to distances
                answers.append(_nearest(number, pool, published[number]))
                continue
            answers.append(
                self._likelihood_ratio(number, pool, published[number], rule, child(child_rng, "simulations"))
            )
            answers += _influences(number, pool, rule, child(child_rng, "half")) if descriptive else []
        return answers

    def _likelihood_ratio(
        self, number: int, pool: "_Pool", published: Tensor, rule: PublicRule, rng: torch.Generator
    ) -> Membership:
        """The likelihood ratio under the model with the higher likelihood: the clients' own images, or other images."""
        models = pool.candidates.models(published, rule, simulations=self.simulations, kept=self.kept, rng=rng)
        likelier = max(models, key=lambda model: model.log_density(published))
        return Membership(case=number, scores=likelier.log_ratios(published), slice={"test": "likelihood ratio"})


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pool:
    """Candidate clients as the target's public code makes them, and `sessions`: all uploads with the published
    style."""

    candidates: Candidates
    sessions: tuple[tuple[Tensor, Tensor], ...]


def _pool(case: Case, knowledge: Knowledge, rng: torch.Generator) -> _Pool:
    """Simulate federations of all candidate clients: with all images, then with half of them.

    The mean of n images is sqrt(2) times as far from that of n other images as from that of n / 2 of its own."""
    if case.candidates is None or case.groups is None:
        raise UsageError("interpolation-leakage asks about candidate clients; a case came without any.")
    clients = [case.candidates.subset(case.groups == group) for group in torch.unique(case.groups)]
    halves = [
        images.subset(torch.randperm(len(images), generator=rng)[: max(1, len(images) // 2)]) for images in clients
    ]
    own = [] if knowledge.own is None else [knowledge.own]
    sessions = tuple(_session(knowledge, [*own, *held], rng) for held in (clients, halves))
    (whole, _), (half, _) = sessions
    candidates = Candidates(
        styles=whole[len(own) :], differences=2**0.5 * (half - whole)[len(own) :], present=whole[: len(own)]
    )
    return _Pool(candidates=candidates, sessions=sessions)


def _session(knowledge: Knowledge, data: Sequence[DomainDataset], rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """The uploads (N, D) of clients that hold `data`, and the style that is published for them (D,)."""
    if knowledge.simulate is None:
        raise UsageError("interpolation-leakage runs the target's public method on candidates; it was given none.")
    view = knowledge.simulate(data, rng)
    uploads = []
    for number in range(1, len(data) + 1):
        sent = view.artifact(f"client:{number}")
        if not isinstance(sent, StyleStatistics):
            raise UsageError("interpolation-leakage reads uploads of one style per client; the target sends others.")
        uploads.append(style_vector(sent))
    made = view.latest(InterpolationStyle)
    if made is None:
        raise UsageError("interpolation-leakage reads interpolation styles; the target publishes none.")
    return torch.stack(uploads), style_vector(made)


def _published(cases: Sequence[Case], run: int = 0) -> dict[int, Tensor]:
    """The style (D,) that each case's federation published, where it was seen."""
    seen = {n: case.views[run].latest(InterpolationStyle) for n, case in enumerate(cases) if len(case.views) > run}
    return {number: style_vector(style) for number, style in seen.items() if style is not None}


def _slices(
    cases: Sequence[Case], published: Mapping[int, Tensor]
) -> dict[tuple[tuple[str, str | int], ...], list[int]]:
    """Group the federations by population."""
    found: dict[tuple[tuple[str, str | int], ...], list[int]] = {}
    for number in published:
        if cases[number].question == "cohorts":
            found.setdefault(tuple(sorted(cases[number].slice.items())), []).append(number)
    return found


def _nearest(number: int, pool: _Pool, published: Tensor) -> Membership:
    """The fallback without a known rule: score clients by the distance of their style from the published one."""
    styles = pool.candidates.styles
    apart = ((styles - published) / standardizing_scale(styles)).norm(dim=1)
    return Membership(case=number, scores=-apart, slice={"test": "nearest style"})


def _influences(number: int, pool: _Pool, rule: PublicRule, rng: torch.Generator) -> list[Answer]:
    """The effect of one client on the style of a random half of the pool, with its effect on a plain mean for
    comparison."""
    pooled = pool.candidates
    half = torch.randperm(len(pooled.styles), generator=rng)[: len(pooled.styles) // 2]
    styles = torch.cat([pooled.present, pooled.styles[half]])
    answers: list[Answer] = []
    for name, published_by in {"published": rule, "plain mean": MEAN}.items():
        found = influence(styles, published_by)
        values = {"influence": found.mean, "largest_influence": found.largest, "outlier_influence": found.outlier}
        answers += [
            Prediction(case=number, name=measured, value=value, unit=UNIT, slice={"style": name})
            for measured, value in values.items()
        ]
        if name == "published":
            pairs = Prediction(case=number, name="clients_in_pairs", value=found.in_pairs, slice={"style": name})
            answers.append(pairs)
    return answers


def _sessions(cases: Sequence[Case], published: Mapping[int, Tensor]) -> list[Answer]:
    """Rank the second sessions of a slice by their distance from each first one."""
    again = _published(cases, 1)
    answers: list[Answer] = []
    for numbers in _slices(cases, published).values():
        if not all(number in again for number in numbers):
            continue
        others = torch.stack([again[number] for number in numbers])
        scale = standardizing_scale(others)
        for number in numbers:
            apart = ((others - published[number]) / scale).norm(dim=1)
            answers.append(Ranking(case=number, distances=apart.unsqueeze(0), of="partner"))
    return answers


def _verbatim_fractions(cases: Sequence[Case], published: Mapping[int, Tensor]) -> list[Answer]:
    """The share of published numbers that equal some client's own bit by bit, where several clients' uploads were
    seen."""
    answers: list[Answer] = []
    run_answered = False
    for number, style in published.items():
        messages = cases[number].views[0].messages
        uploads = {m.sender: style_vector(m.artifact) for m in messages if isinstance(m.artifact, StyleStatistics)}
        released = cases[number].question == "released"
        if len(uploads) < 2 or (released and run_answered):  # all cases of the run show the same style
            continue
        run_answered = run_answered or released
        share = float((torch.stack(list(uploads.values())) == style).any(0).double().mean())
        where = {"domain": "all"} if released else {}
        answers.append(Prediction(case=number, name="verbatim_fraction", value=share, slice=where))
    return answers

"""Linkage: whether two releases come from the same client.

`halves`: a client's images are split into two halves and each half is released once, under new names. This is what a
second session of the same federation, or another federation with the same members, would show, though no image is in
both. `sessions`: all of its images are released both times; FedAlign draws a new subset, a pooled style comes back
unchanged. Releases that come back unchanged are linked by equality; where all of them do, the rows are descriptive.
Each first release is linked to the nearest second one, or all are assigned one to one (the judge solves for
the assignment of least total distance, the Hungarian method). Distances are between the statistics t that a release
averages (fdgsec.federation.released_statistics; (mu, sigma^2 + mu^2) for CCST's styles):
* `whitened`: over all directions, scaled so that two draws from one distribution differ equally in each (with a
  defense's noise included, fdgsec.attacks.linkage.linking_space).
* `class directions`: along the directions in which the classes and domains of public images differ, because these are
  what makes clients differ.
* `plain`: between the released numbers themselves, where data are the same both times.
* `nearest row`: between the two most similar rows, where data are the same both times: an image that is drawn twice is
  a link.

Three populations of clients:
* `iid`: clients of one domain that all draw from the same distribution. Nothing distinguishes their halves, so no
  attack should succeed. A hit rate above 1/N there would mean that the halves are not disjoint, not that clients are
  linkable.
* `dirichlet`: clients of one domain with skewed label shares (Dirichlet .3), which can be linked by their labels.
* `domain`: single-domain clients of several domains, which reveal the domain only: about domains/N.

For the noise levels the attack itself adds to both releases the noise of FISC's appendix B.5, (1 - p) v + N(0, s^2),
and links the `plain` numbers after dividing by 1 - p. The nearest release is then the most likely one
(fdgsec.attacks.linkage.noise_linkage)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fdgsec.attacks.linkage.control import planted_pairs
from fdgsec.attacks.linkage.linking_space import LinkingSpace, linking_space
from fdgsec.attacks.linkage.noise_linkage import add_noise, between_client_sd
from fdgsec.attacks.linkage.pair_likelihood_ratio import PairedReleases, paired_releases
from fdgsec.attacks.statistics.defense_noise import ACCOUNTED
from fdgsec.federation.artifacts import Artifact, ImageStyles, released_numbers
from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child, derangement, stream
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Answer, Prediction, Ranking
from fdgsec.threats.attack import Answers, Case, PositiveControl, Question, TargetFacts
from fdgsec.threats.judging.groups import unavailable
from fdgsec.threats.option_checks import check_at_least


@dataclass(frozen=True, kw_only=True)
class Linkage:
    """Link clients across two releases, `clients` per population: `schemes` for halves, `sessions` for the same data
    twice.

    Questions in `noised` are answered again at every standard deviation s in `noise`, and in `noise_in_sds`, which are
    in units of the standard deviation between clients (median over coordinates). `shrink` is FISC's p."""

    name: ClassVar[str] = "linkage"
    reads: ClassVar[frozenset[str]] = frozenset({"StyleStatistics", "StyleDistribution", "ImageStyles", "Amplitudes"})
    needs: ClassVar[frozenset[str]] = frozenset({"encoder"})
    accounts_for: ClassVar[frozenset[str]] = ACCOUNTED
    clients: int = 30
    schemes: tuple[str, ...] = ("iid", "dirichlet", "domain")
    sessions: tuple[str, ...] = ("iid", "domain")
    noised: tuple[str, ...] = ("sessions",)
    noise: tuple[float, ...] = (0.02, 0.05)
    noise_in_sds: tuple[float, ...] = (1.0, 3.0, 10.0, 30.0)
    shrink: float = 0.1

    def __post_init__(self) -> None:
        check_at_least(2, {"clients": self.clients})  # one alone is linked to itself
        check_at_least(0, {"noise": self.noise, "noise_in_sds": self.noise_in_sds})

    def plan(self, facts: TargetFacts) -> Sequence[Question]:
        """Ask for two releases of re-drawn clients, one population each.

        Raises UsageError where no images are known, and where releases come without their senders' names."""
        facts.check_images()
        if "Amplitudes" in facts.artifact_kinds:
            facts.check_pooled()
        if "StyleDistribution" in facts.artifact_kinds and "client sizes" not in facts.knows:  # not a server
            raise UsageError("links releases by their senders; a client does not know whose distributions it receives")
        return [
            *(Question(kind="halves", count=self.clients, scheme=scheme) for scheme in self.schemes),
            *(Question(kind="sessions", count=self.clients, scheme=scheme) for scheme in self.sessions),
        ]

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Rank, for each first release, the second ones of its population; then again for every level of noise."""
        return [*_rank_partners(cases, knowledge, None), *self._under_noise(cases, child(rng, "noise"))]

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Rank with every first release exchanged for another one of its population, without noise."""
        return _rank_partners(cases, knowledge, rng)

    def missing(self, cases: Sequence[Case], knowledge: Knowledge) -> Sequence[Measurement]:
        """One row per population in which a client released no row at all."""
        rows: list[Measurement] = []
        for population in _populations(cases):
            if population.empty:
                reason = "a client released no row: its images are too few for the share that the method publishes"
                rows += unavailable(["top1"], {**population.slice, **population.data}, reason)
        return rows

    def _under_noise(self, cases: Sequence[Case], rng: torch.Generator) -> list[Answer]:
        """Rank the plain numbers at each level of noise, and report the unit of `noise_in_sds`."""
        answers: list[Answer] = []
        for population in _populations(cases):
            first, second = population.first, population.second
            if population.question not in self.noised or population.empty or not first or len(second) < 2:
                continue
            clean = population.plain()
            spread = between_client_sd(torch.stack([clean[n] for n in second]))
            where = {**population.data, "distance": "plain"}
            answers.append(Prediction(case=first[0], name="between_client_sd", value=spread, slice=where))
            levels = {f"{level:g}": level for level in self.noise}
            levels |= {f"{level:g} sd": level * spread for level in self.noise_in_sds}
            for name, level in levels.items():
                read = population.plain(noise=level, shrink=self.shrink, rng=child(rng, name))
                answers += _rankings(population, {"distance": "plain", "noise": name}, _distances(read, first, second))
        return answers

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        """Twelve single-class clients whose means lie far apart (fdgsec.attacks.linkage.control)."""
        return planted_pairs(knowledge, rng)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Population:
    """Clients that could be confused with each other: the numbers of the `first` and of the `second` cases, and their
    releases.

    `data` is added to the slice of an answer; `single` says that rows are of single images."""

    question: str
    slice: Mapping[str, str | int]
    data: Mapping[str, str | int]
    first: list[int]
    second: list[int]
    sent: Mapping[int, Artifact]
    records: int | None
    single: bool

    @property
    def empty(self) -> bool:
        """Whether some client sent no row."""
        return any(not value.shape[0] for artifact in self.sent.values() for value in artifact.tensors().values())

    @property
    def unchanged(self) -> bool:
        """Whether every first release has its equal among the second ones."""
        numbers = self.plain()
        return not bool(_distances(numbers, self.first, self.second).amin(1).any())

    def plain(
        self, *, noise: float = 0.0, shrink: float = 0.0, rng: torch.Generator | None = None
    ) -> Mapping[int, Tensor]:
        """The numbers of each release, rows averaged; with `rng`, after adding noise and dividing by 1 - `shrink`."""
        found = {}
        for number, artifact in self.sent.items():
            parts = []
            for name, value in released_numbers(artifact).items():
                if rng is not None:
                    value = add_noise(value, shrink=shrink, noise=noise, rng=child(rng, number, name)) / (1 - shrink)
                    value = value if name == "mean" else value.clamp_min(0)  # no std is negative
                parts.append(value.mean(0))
            found[number] = torch.cat(parts)
        return found


def _populations(cases: Sequence[Case]) -> list[_Population]:
    """Group the cases by question and slice, ignoring the half; numbers keep their order."""
    found: dict[tuple[object, ...], list[int]] = {}
    for number, case in enumerate(cases):
        if case.question in ("halves", "sessions"):
            where = sorted((key, value) for key, value in case.slice.items() if key != "half")
            found.setdefault((case.question, *where), []).append(number)
    return [
        _Population(
            question=cases[numbers[0]].question,
            slice={key: value for key, value in cases[numbers[0]].slice.items() if key != "half"},
            data={"data": "the same"} if cases[numbers[0]].question == "sessions" else {},
            first=[n for n in numbers if cases[n].slice.get("half") == "A"],
            second=[n for n in numbers if cases[n].slice.get("half") == "B"],
            sent={n: _seen_release(cases[n]) for n in numbers},
            records=_median_size([cases[n].records for n in numbers]),
            single=_of_single_images([cases[n] for n in numbers]),
        )
        for numbers in found.values()
    ]


def _median_size(sizes: Sequence[int | None]) -> int | None:
    """The median number of images behind a release; None where the adversary does not know it."""
    known = sorted(size for size in sizes if size is not None)
    return known[len(known) // 2] if known else None


def _of_single_images(cases: Sequence[Case]) -> bool:
    """Whether clients sent rows of single images. An adversary that sees banks only can infer it from several rows per
    client."""
    uploads = [case.views[0].artifact(case.victim) for case in cases]
    if all(upload is None for upload in uploads):
        return any(len(case.released()[0]) > 1 for case in cases)
    return any(isinstance(upload, ImageStyles) for upload in uploads)


def _seen_release(case: Case) -> Artifact:
    """What was seen of the client: rows of styles, its own or those of a bank, else its artifact."""
    styles = case.views[0].styles(case.victim)
    return case.release() if styles is None else ImageStyles(mean=styles[0], std=styles[1])


def _rank_partners(cases: Sequence[Case], knowledge: Knowledge, ring: torch.Generator | None) -> list[Ranking]:
    """Rank the second releases for every first one; with `ring`, the first ones are permuted before."""
    answers: list[Ranking] = []
    if not (populations := _populations(cases)):
        return answers
    plain = linking_space(knowledge)
    for population in populations:
        rng = stream(0, "attack", "blur", population.records or 0)  # public: describes the noise distribution only
        space = plain.under_noise(knowledge, population.records, single=population.single, rng=rng)
        first, second = population.first, population.second
        if not first or not second or population.empty:
            continue
        seen = first if ring is None else [first[i] for i in derangement(len(first), ring).tolist()]
        rows = {
            n: knowledge.released_statistic.release(sent, images=cases[n].records)
            for n, sent in population.sent.items()
        }
        # an image's share of a release is linear in t, so rows of single images are averaged
        placed = {n: space(given.mean(0)) for n, given in rows.items()}
        distances = {"whitened": _distances(placed, seen, second)}
        if space.directions.shape[1]:
            distances["class directions"] = _distances(placed, seen, second, along=space.directions)
        if population.question == "sessions":
            distances["plain"] = _distances(population.plain(), seen, second)
            pairs = _pairs(population, knowledge, plain, cases)
            if pairs is not None:
                releases = [torch.stack([rows[n].mean(0) for n in numbers]) for numbers in (seen, second)]
                distances["likelihood ratio"] = pairs.distances(*(plain.centered(each) for each in releases))
            if any(len(given) > 1 for given in rows.values()):
                distances["nearest row"] = _nearest_rows(
                    {n: space.rows(given) for n, given in rows.items()}, seen, second
                )
        same = population.question == "sessions" and population.unchanged
        for name, apart in distances.items():
            answers += _rankings(population, {"distance": name}, apart, descriptive=same)
    return answers


def _pairs(
    population: _Population, knowledge: Knowledge, space: LinkingSpace, cases: Sequence[Case]
) -> PairedReleases | None:
    """The likelihood of pairs of releases under a defense; None without one."""
    if population.records is None:
        return None
    domains = {cases[n].domain for n in population.first}
    return paired_releases(
        knowledge, space, records=population.records, domain=domains.pop() if len(domains) == 1 else None,
        rows=len(population.sent[population.first[0]].tensors()["mean"]) if population.single else None,
    )  # fmt: skip


def _rankings(
    population: _Population, where: Mapping[str, str | int], apart: Tensor, *, descriptive: bool = False
) -> list[Ranking]:
    said = {**population.data, **where}
    return [
        Ranking(case=n, slice=said, distances=row.unsqueeze(0), of="partner", descriptive=descriptive)
        for n, row in zip(population.first, apart, strict=True)
    ]


def _distances(
    read: Mapping[int, Tensor], first: Sequence[int], second: Sequence[int], *, along: Tensor | None = None
) -> Tensor:
    own, others = (torch.stack([read[n] for n in numbers]) for numbers in (first, second))
    if along is not None:
        own, others = own @ along, others @ along
    return torch.cdist(own, others, compute_mode="donot_use_mm_for_euclid_dist")


def _nearest_rows(rows: Mapping[int, Tensor], first: Sequence[int], second: Sequence[int]) -> Tensor:
    """The distance of the two most similar rows of each first and each second release, computed one first release at a
    time."""
    others, sizes = torch.cat([rows[n] for n in second]), [len(rows[n]) for n in second]
    strips = (torch.cdist(rows[n], others, compute_mode="donot_use_mm_for_euclid_dist") for n in first)
    return torch.stack([torch.stack([block.min() for block in strip.split(sizes, dim=1)]) for strip in strips])

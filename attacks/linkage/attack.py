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
* `domain`: single-domain clients of several domains. Each is ranked among those of its own domain: telling domains is
  no link, and `domain-inference` measures it.

Clients' vectors from a file (`given`) are linked without images: fdgsec.attacks.linkage.given_vectors.

For the noise levels the attack itself adds to both releases the noise of FISC's appendix B.5, (1 - p) v + N(0, s^2),
and links the `plain` numbers after dividing by 1 - p. The nearest release is then the most likely one
(fdgsec.attacks.linkage.noise_linkage)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fdgsec.attacks.linkage.client_populations import Population, euclidean_distances, populations_of, rankings
from fdgsec.attacks.linkage.control import planted_pairs
from fdgsec.attacks.linkage.given_vectors import link_releases, link_under_noise, planted_vectors, spread_of
from fdgsec.attacks.linkage.linking_space import LinkingSpace, linking_space
from fdgsec.attacks.linkage.noise_linkage import between_client_sd, noise_levels
from fdgsec.attacks.linkage.pair_likelihood_ratio import PairedReleases, paired_releases
from fdgsec.attacks.statistics.defense_noise import ACCOUNTED
from fdgsec.federation.artifact_checks import LARGEST
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
    in units of the standard deviation between clients (median over coordinates). `shrink` is FISC's p. Of more clients
    whose vectors are given, `asked` are asked about, drawn at random, each among all of them."""

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
    asked: int = 500

    def __post_init__(self) -> None:
        check_at_least(2, {"clients": self.clients, "asked": self.asked})  # one alone is linked to itself
        check_at_least(0, {"noise": self.noise, "noise_in_sds": self.noise_in_sds})
        if max((*self.noise, *self.noise_in_sds), default=0.0) > LARGEST:
            raise UsageError(
                f"linkage takes noise and noise_in_sds up to {LARGEST:g}, as large as numbers that are sent."
            )

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

    def plan_of_vectors(self, facts: TargetFacts) -> Sequence[Question]:
        """Ask for two releases of each client of the file. Raises UsageError for fewer than two clients."""
        facts.check_two_clients()
        return [Question(kind="given", scheme="pairs")]

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Rank, for each first release, the second ones of its population; then again for every level of noise."""
        given = [answer for population in self._given(cases) for answer in link_releases(population)]
        return [*_rank_partners(cases, knowledge, None), *given, *self._under_noise(cases, child(rng, "noise"))]

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Rank with every first release exchanged for another one of its population, without noise."""
        given = [answer for population in self._given(cases) for answer in link_releases(population, rng)]
        return [*_rank_partners(cases, knowledge, rng), *given]

    def missing(self, cases: Sequence[Case], knowledge: Knowledge) -> Sequence[Measurement]:
        """One row per population in which a client released no row at all."""
        rows: list[Measurement] = []
        for population in populations_of(cases):
            if population.empty:
                reason = "a client released no row: its images are too few for the share that the method publishes"
                rows += unavailable(["top1"], {**population.slice, **population.data}, reason)
        for population in self._given(cases):
            if self.noise_in_sds and not spread_of(population):
                reason = "between_client_sd is 0: half of the coordinates are the same for all clients"
                rows += unavailable(["top1"], {**population.slice, "noise": "in sd"}, reason)
        return rows

    def _given(self, cases: Sequence[Case]) -> list[Population]:
        """The clients whose vectors are given; none where there are fewer than two."""
        given = [found for found in populations_of(cases) if found.question == "given" and len(found.second) > 1]
        return [population.asked(self.asked) for population in given]

    def _under_noise(self, cases: Sequence[Case], rng: torch.Generator) -> list[Answer]:
        """Rank the plain numbers at each level of noise, and report the unit of `noise_in_sds`."""
        answers: list[Answer] = []
        for population in self._given(cases):
            levels = noise_levels(self.noise, self.noise_in_sds, spread=spread_of(population))
            answers += link_under_noise(population, levels, shrink=self.shrink, rng=rng)
        for population in populations_of(cases):
            first, second = population.first, population.second
            if population.question not in self.noised or population.empty or not first or len(second) < 2:
                continue
            clean = population.plain()
            spread = between_client_sd(torch.stack([clean[n] for n in second]))
            where = {**population.data, "distance": "plain"}
            answers.append(Prediction(case=first[0], name="between_client_sd", value=spread, slice=where))
            for name, level in noise_levels(self.noise, self.noise_in_sds, spread=spread).items():
                read = population.plain(noise=level, shrink=self.shrink, rng=child(rng, name))
                apart = euclidean_distances(read, first, second)
                answers += rankings(population, {"distance": "plain", "noise": name}, apart)
        return answers

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        """Twelve single-class clients whose means lie far apart (fdgsec.attacks.linkage.control).

        Of vectors alone, twelve clients whose vectors do (fdgsec.attacks.linkage.given_vectors)."""
        if knowledge.vectors_alone:
            return planted_vectors(knowledge, [*self.noise, *self.noise_in_sds], rng)
        return planted_pairs(knowledge, rng)


def _rank_partners(cases: Sequence[Case], knowledge: Knowledge, ring: torch.Generator | None) -> list[Ranking]:
    """Rank the second releases for every first one; with `ring`, the first ones are permuted before."""
    answers: list[Ranking] = []
    if not (populations := [found for found in populations_of(cases) if found.question != "given"]):
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
        distances = {"whitened": euclidean_distances(placed, seen, second)}
        if space.directions.shape[1]:
            distances["class directions"] = euclidean_distances(placed, seen, second, along=space.directions)
        if population.question == "sessions":
            distances["plain"] = euclidean_distances(population.plain(), seen, second)
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
            answers += rankings(population, {"distance": name}, apart, descriptive=same)
    return answers


def _pairs(
    population: Population, knowledge: Knowledge, space: LinkingSpace, cases: Sequence[Case]
) -> PairedReleases | None:
    """The likelihood of pairs of releases under a defense; None without one."""
    if population.records is None:
        return None
    domains = {cases[n].domain for n in population.first}
    return paired_releases(
        knowledge, space, records=population.records, domain=domains.pop() if len(domains) == 1 else None,
        rows=len(population.sent[population.first[0]].tensors()["mean"]) if population.single else None,
    )  # fmt: skip


def _nearest_rows(rows: Mapping[int, Tensor], first: Sequence[int], second: Sequence[int]) -> Tensor:
    """The distance of the two most similar rows of each first and each second release, computed one first release at a
    time."""
    others, sizes = torch.cat([rows[n] for n in second]), [len(rows[n]) for n in second]
    strips = (torch.cdist(rows[n], others, compute_mode="donot_use_mm_for_euclid_dist") for n in first)
    return torch.stack([torch.stack([block.min() for block in strip.split(sizes, dim=1)]) for strip in strips])

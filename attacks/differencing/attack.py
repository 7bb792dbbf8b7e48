"""Differencing: the style of a new image or client, from two averages before and after it joined.

*An image joins a client between two rounds.* A pooled release is the mean of a per-image statistic t
(fdgsec.federation.released_statistics): (mu, sigma^2 + mu^2) for CCST's overall style (eq. 8), amplitudes for its mean
spectrum (appendix E), (mu, sigma, mu^2, sigma^2) for StableFDG's center and spread (eq. 3), with all rounds under one
model. With n images before and one more after, t(new) = (n + 1) t(r') - n t(r), exact up to the rounding of the two
float32 releases. Averaging over many images does not protect against an adversary that sees two averages that differ by
one image.

*A client joins a cohort.* Only the average over all clients is published, as under secure aggregation, once without
and once with one client. By the same difference its own pooled statistic is (N' t(r') - N t(r)) / (N' - N). The
attack computes both averages itself, from releases that it saw one by one, and rounds them to float32."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fdgsec.attacks.differencing.control import planted_additions
from fdgsec.attacks.statistics.defense_noise import ACCOUNTED, DefenseNoise, defense_noise_of_mean
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.released_statistics import PooledStyles, StyleDistributions
from fdgsec.nn.styles.channel_statistics import linear_statistic
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child, derangement, stream
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Answer, Ranking, Recovered
from fdgsec.threats.attack import Answers, Case, PositiveControl, Question, TargetFacts

ROUNDING = 1e-4
"""Relative error of an estimate of t from float32 rounding, multiplied by n; a defense's noise is not included."""


@dataclass(frozen=True, kw_only=True)
class Differencing:
    """Recover the statistic of the added image, or client, and identify the image among candidates.

    Candidates are ranked by |estimate - t(x)| / |t(x)|, unwhitened: the rounding error of a coordinate grows with its
    size, and whitening would amplify it where images differ least. Where a defense adds noise, the noise is whitened,
    and the estimate is shrunk toward public images according to the noise. `records` is the number of added images per
    domain; None takes 20 (profile quick) or 50 (full). A cohort has `clients` clients of `size` images each. The
    victim's domain is used by the baseline guess only, not by the attack."""

    name: ClassVar[str] = "differencing"
    reads: ClassVar[frozenset[str]] = frozenset({"StyleStatistics", "StyleDistribution", "Amplitudes"})
    needs: ClassVar[frozenset[str]] = frozenset({"encoder", "client sizes", "auxiliary"})
    accounts_for: ClassVar[frozenset[str]] = ACCOUNTED
    records: int | None = None
    clients: int = 50
    size: int = 40

    def plan(self, facts: TargetFacts) -> Sequence[Question]:
        """Ask for pairs of runs with and without one more image, and for cohorts.

        Raises UsageError where styles are not means over images."""
        facts.check_pooled()
        count = self.records if self.records is not None else (50 if facts.profile == "full" else 20)
        return [
            Question(kind="add_one_record", count=count),
            Question(kind="resampled_clients", count=self.clients, records=self.size),
        ]

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Per pair: the recovered statistic with the public mean of its domain as the baseline, and the ranking of
        candidates.

        Per client of a cohort: its recovered statistic."""
        everyone = list(range(len(cases)))
        return [*_image_answers(cases, knowledge, everyone), *_client_answers(cases, knowledge, everyone)]

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Answer each question from the releases of another question about the same domain."""
        records = _exchange_within_slice(cases, "add_one_record", rng)
        clients = _exchange_within_slice(cases, "resampled_clients", child(rng, "cohorts"))
        return [*_image_answers(cases, knowledge, records), *_client_answers(cases, knowledge, clients)]

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        """Exact differences that must identify every added image (fdgsec.attacks.differencing.control)."""
        return planted_additions(knowledge, rng)


def _exchange_within_slice(cases: Sequence[Case], question: str, rng: torch.Generator) -> list[int]:
    """Map each case of `question` to another case of the same slice, and every other case to itself."""
    source = list(range(len(cases)))
    asked = [number for number, case in enumerate(cases) if case.question == question]
    for where in dict.fromkeys(tuple(sorted(cases[number].slice.items())) for number in asked):
        same = [number for number in asked if tuple(sorted(cases[number].slice.items())) == where]
        for here, there in zip(same, derangement(len(same), rng).tolist(), strict=True):
            source[here] = same[there]
    return source


def _image_answers(cases: Sequence[Case], knowledge: Knowledge, source: Sequence[int]) -> list[Answer]:
    """Answer every pair of runs from the views of case `source[i]`."""
    answers: list[Answer] = []
    galleries: dict[int, tuple[Tensor, Tensor]] = {}  # shared by all pairs of one domain
    noise = _DefenseNoiseCache(knowledge=knowledge, found={})
    for number, case in enumerate(cases):
        if case.question != "add_one_record":
            continue
        if case.candidates is None:
            raise UsageError(f"differencing names the added image among candidates; {case.victim} came without any.")
        if id(case.candidates) not in galleries:
            known = knowledge.released_statistic.records(knowledge.statistics(case.candidates))
            galleries[id(case.candidates)] = known, known.norm(dim=1)
        known, lengths = galleries[id(case.candidates)]
        estimate = _difference(cases[source[number]], knowledge).unsqueeze(0)
        defense_noise = noise.of_release(case, times=_size(case) ** 2 + (_size(case) + 1) ** 2)
        if defense_noise is None:
            distances = torch.cdist(estimate, known, compute_mode="donot_use_mm_for_euclid_dist") / lengths
        else:
            scale = (defense_noise.variance + (ROUNDING * known).square().mean(0)).sqrt()
            estimate = estimate - defense_noise.shift
            distances = torch.cdist(estimate / scale, known / scale, compute_mode="donot_use_mm_for_euclid_dist")
            estimate = noise.likely(estimate, case, defense_noise.variance, images=1)
        statistic = _to_linear_statistic(estimate[0], knowledge).unsqueeze(0)
        answers.append(Recovered(case=number, statistic=statistic, without=_public_mean(case, knowledge)))
        answers.append(Ranking(case=number, distances=distances))
    return answers


def _difference(case: Case, knowledge: Knowledge) -> Tensor:
    """t(new) = (n + 1) t(r') - n t(r), (D,)."""
    records = _size(case)
    if len(case.views) != 2:
        raise UsageError(f"differencing needs a run before and a run after; got {len(case.views)} of {case.victim}.")
    before, after = (_means(case, knowledge, run=run, images=records + run) for run in (0, 1))
    if len(before) != 1 or len(after) != 1:
        raise UsageError(
            f"differencing reads one pooled style per run; {case.victim} sent {len(before)} and {len(after)}."
        )
    return (records + 1) * after[0] - records * before[0]


def _size(case: Case) -> int:
    if case.records is None:
        raise UsageError(f"differencing needs the number of images behind the style of {case.victim}; it is not known.")
    return case.records


def _means(case: Case, knowledge: Knowledge, *, run: int, images: int) -> Tensor:
    """The means of t that the victim released, (R, D): of its styles, if it released styles, else of its artifact."""
    if isinstance(knowledge.released_statistic, PooledStyles) and case.views[run].styles(case.victim) is not None:
        return linear_statistic(*case.released(run))
    return knowledge.released_statistic.release(case.release(run), images=images)


def _to_linear_statistic(statistic: Tensor, knowledge: Knowledge) -> Tensor:
    """Convert a mean of StableFDG's t to that of (mu, sigma^2 + mu^2), sigma^2 biased and without eps: (D,) to (2C,).

    StableFDG's t contains mu^2 and sigma^2 in addition to mu and sigma. The number of pixels of a map is public."""
    if not isinstance(knowledge.released_statistic, StyleDistributions):
        return statistic
    released_statistic = knowledge.released_statistic
    mean, _, square, variance = statistic.chunk(4)
    pixels = float(knowledge.statistics(knowledge.public_images()).count[0])
    share = (pixels - 1) / pixels if released_statistic.unbiased else 1.0
    return torch.cat([mean, (variance - released_statistic.eps) * share + square])


def _client_answers(cases: Sequence[Case], knowledge: Knowledge, source: Sequence[int]) -> list[Recovered]:
    """Recover the pooled statistic of every client of a cohort from averages over all clients with and without it."""
    answers: list[Recovered] = []
    noise = _DefenseNoiseCache(knowledge=knowledge, found={})
    cohorts: dict[int, list[int]] = {}
    for number, case in enumerate(cases):
        if case.question == "resampled_clients":
            cohorts.setdefault(id(case.views[0]), []).append(number)
    for numbers in cohorts.values():
        if len(numbers) < 2:
            continue
        sizes = torch.tensor([_size(cases[n]) for n in numbers], dtype=torch.float64)
        sums = torch.stack(
            [
                size * _means(cases[n], knowledge, run=0, images=int(size)).mean(0)
                for n, size in zip(numbers, sizes, strict=True)
            ]
        )
        whole, rest = sizes.sum(), (sizes.sum() - sizes).unsqueeze(1)
        after = (sums.sum(0) / whole).float().double()
        before = ((sums.sum(0) - sums) / rest).float().double()
        found = dict(zip(numbers, (whole * after - rest * before) / sizes.unsqueeze(1), strict=True))
        for n in numbers:
            defense_noise, estimate = noise.of_release(cases[n], times=1), found[source[n]]
            if defense_noise is not None:  # the client's release enters the difference once, and so does its noise
                estimate = noise.likely(
                    estimate - defense_noise.shift, cases[n], defense_noise.variance, images=_size(cases[n])
                )
            statistic = _to_linear_statistic(estimate, knowledge).unsqueeze(0)
            without = _public_mean(cases[n], knowledge)
            answers.append(Recovered(case=n, statistic=statistic, without=without, slice={"joins": "a client"}))
    return answers


def _public(case: Case, knowledge: Knowledge) -> DomainDataset:
    """Public images, restricted to the victim's domain where it is known."""
    images = knowledge.public_images()
    known = case.domain
    if known is not None and known in images.domain_names and len(images.of_domain(known)):
        images = images.of_domain(known)
    return images


def _public_mean(case: Case, knowledge: Knowledge) -> Tensor:
    """The baseline guess without the releases: the mean of public images."""
    return knowledge.released_statistic.truth(knowledge.statistics(_public(case, knowledge))).mean(0)


@dataclass(frozen=True, kw_only=True, eq=False)
class _DefenseNoiseCache:
    """The effect of the defense on releases, in coordinates of t; `found` caches it by domain and size."""

    knowledge: Knowledge
    found: dict[tuple[str | None, int], DefenseNoise | None]

    def of_release(self, case: Case, *, times: int) -> DefenseNoise | None:
        """The shift of a release and `times` the variance of its noise; None without a defense."""
        key = case.domain, _size(case)
        if key not in self.found:
            images = _public(case, self.knowledge)
            nowhere = torch.zeros_like(self.knowledge.released_statistic.records(self.knowledge.statistics(images))[0])
            rng = stream(0, "attack", "blur", key[1])  # public: describes the noise distribution only
            self.found[key] = defense_noise_of_mean(self.knowledge, images, records=key[1], about=nowhere, rng=rng)
        defense_noise = self.found[key]
        return None if defense_noise is None else replace(defense_noise, variance=times * defense_noise.variance)

    def likely(self, estimate: Tensor, case: Case, variance: Tensor, *, images: int) -> Tensor:
        """Shrink a noisy estimate of the mean t of `images` images toward the public mean, coordinate by coordinate."""
        public = self.knowledge.released_statistic.records(self.knowledge.statistics(_public(case, self.knowledge)))
        center, spread = public.mean(0), public.var(0, correction=0) / images
        kept = torch.where(spread + variance > 0, spread / (spread + variance), 1.0)
        return center + kept * (estimate - center)

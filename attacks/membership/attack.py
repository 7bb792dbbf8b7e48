"""Membership inference on shared styles, with one test for each kind of style artifact.

*A mean over images* (CCST's overall style, eq. 8, or mean spectrum; StableFDG's distribution, eq. 3): the release is
exactly the mean of a per-image statistic t (fdgsec.federation.released_statistics), so the Gaussian likelihood ratio
for a record in a mean applies (fdgsec.attacks.statistics.tracing), whitened on auxiliary images of the domain
(fdgsec.attacks.statistics.domain_populations).

*A mean over clusters of images* (FISC): both hypotheses are simulated with the target's public method on shadow clients
of auxiliary images (fdgsec.attacks.membership.shadow_likelihood).

*Rows of single images* (CCST's single styles, FedAlign's pool): a released style is a fixed function of its image, so
the nearest row decides (fdgsec.attacks.membership.image_styles). Two questions: whether this image was released
(`released image`), and whether it is the client's (`client's image`), which no test can answer beyond the share that
was released.

Members and non-members come from one domain, and every image is a member of some clients and not of others."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from fdgsec.attacks.membership.control import planted_members
from fdgsec.attacks.membership.image_styles import Crops, exposures, row_answers
from fdgsec.attacks.membership.pooled_styles import (
    CasesByRelease,
    Effort,
    answers_with_fewer,
    clustered_answers,
    known_populations,
    mean_answers,
    mean_predictions,
    populations_asked,
    shadow_populations,
    too_few_auxiliary,
)
from fdgsec.attacks.statistics.defense_noise import ACCOUNTED
from fdgsec.attacks.statistics.pooled_questions import independent_release
from fdgsec.attacks.statistics.tracing import TracingTest, likelihood_ratio, standardized_score
from fdgsec.metrics.measurement import Measurement, Slice
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child, derangement
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.attack import Answers, Case, PositiveControl, Question, TargetFacts
from fdgsec.threats.judging.groups import unavailable
from fdgsec.threats.option_checks import check_at_least

POOLED = frozenset({"auxiliary", "client sizes", "victim domains"})
"""Knowledge that a test of a pooled release requires."""


@dataclass(frozen=True, kw_only=True)
class Membership:
    """Membership inference against pooled styles at several client `sizes`, and against rows of single images.

    Tests of means are made once more with each number of `auxiliary` images of a domain (0: candidates alone).
    Styles that are not means are simulated: at `simulated_sizes`, with `shadows` clients without candidates, and for up
    to `tried` candidates of a domain and size `inserted` clients with each. Rows are those of clients of `row_size`
    images. `crops` is k of the k-crop matching. It is evaluated on `cropped_clients` clients of `cropped_size` images
    whose styles were extracted from random crops, which the adversary assumes to cover at least `least_area` of the
    area."""

    name: ClassVar[str] = "membership"
    reads: ClassVar[frozenset[str]] = frozenset({"StyleStatistics", "StyleDistribution", "ImageStyles", "Amplitudes"})
    needs: ClassVar[frozenset[str]] = frozenset({"encoder"})
    accounts_for: ClassVar[frozenset[str]] = ACCOUNTED
    sizes: tuple[int, ...] = (40, 130, 500)
    clients: int = 50
    statistic: Literal["standardized", "likelihood-ratio"] = "likelihood-ratio"
    auxiliary: tuple[int, ...] = ()
    simulated_sizes: tuple[int, ...] = (40, 130)
    simulated_clients: int = 30
    shadows: int = 100
    tried: int = 150
    inserted: int = 2
    row_size: int = 130
    crops: int = 4
    cropped_clients: int = 3
    cropped_size: int = 40
    least_area: float = 0.8

    def __post_init__(self) -> None:
        check_at_least(1, {"sizes": self.sizes, "simulated_sizes": self.simulated_sizes})
        check_at_least(1, {"row_size": self.row_size, "cropped_size": self.cropped_size, "clients": self.clients})
        check_at_least(1, {"simulated_clients": self.simulated_clients, "shadows": self.shadows})
        check_at_least(0, {"crops": self.crops, "cropped_clients": self.cropped_clients, "auxiliary": self.auxiliary})

    def plan(self, facts: TargetFacts) -> Sequence[Question]:
        """Ask for re-drawn clients, because the members of a single client would give no statistical power.

        Raises UsageError where the adversary lacks what a test of pooled styles needs."""
        if "ImageStyles" in facts.artifact_kinds:
            asked = [
                Question(kind="rounds", count=self.clients, records=self.row_size, rounds=1),
                Question(kind="resampled_clients", count=self.clients, records=self.row_size),
            ]
            if self.crops and self.cropped_clients:
                crops = self.cropped_clients, self.cropped_size
                asked.append(Question(kind="rounds", count=crops[0], records=crops[1], rounds=1, scheme="crops"))
            return asked
        lacking = POOLED - facts.knows
        if lacking:
            raise UsageError(f"needs {', '.join(sorted(lacking))} for pooled styles; the adversary does not know that")
        if "Amplitudes" in facts.artifact_kinds:
            facts.check_pooled()
        if facts.pooled:
            return [Question(kind="resampled_clients", count=self.clients, records=size) for size in self.sizes]
        count = self.simulated_clients
        return [Question(kind="rounds", count=count, records=size, rounds=1) for size in self.simulated_sizes]

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Score every candidate of every client, and predict the result of each domain and size from theory."""
        asked = CasesByRelease.of(cases)
        known = known_populations(asked, cases, knowledge)
        crops = Crops(count=self.crops, least=self.least_area, most=2 * self.cropped_size)
        return [
            *mean_answers(asked.means, cases, knowledge, known, test=self._test(), rng=child(rng, "blur")),
            *self._with_fewer(asked.means, cases, knowledge, child(rng, "fewer")),
            *mean_predictions(asked.means, cases, known, child(rng, "theory"), knowledge=knowledge),
            *clustered_answers(
                asked.clustered, cases, knowledge, known, effort=self._effort(), rng=child(rng, "shadows")
            ),
            *row_answers(asked.rows, cases, knowledge, crops=crops, rng=child(rng, "crops")),
            *exposures(asked.rows, cases),
        ]

    def _with_fewer(
        self, numbers: Sequence[int], cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator
    ) -> Answers:
        """The answers with fewer auxiliary images."""
        return [
            answer
            for count in self.auxiliary
            for answer in answers_with_fewer(numbers, cases, knowledge, images=count, test=self._test(), rng=rng)
        ]

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Answer from releases of n auxiliary images each instead of the clients' own; from another client's rows.

        Other clients' pooled releases would not do: re-drawn clients of one domain share images (500 of 700: most of
        them), and the members of one are then found, correctly, in the release of another. The mean of the distribution
        of these releases is the auxiliary images' own, hence known. Crops are left out: any leak through the order of
        candidates would show with whole images as well."""
        asked = CasesByRelease.of(cases)
        known = known_populations(asked, cases, knowledge)
        exchanged = list(cases)
        for number in asked.means:
            exchanged[number] = independent_release(cases[number], knowledge, child(rng, "release", number))
        rows = list[int]()
        for alike in _populations_of_rows(asked.rows, cases):
            if len(alike) < 2:  # nobody to exchange with
                continue
            rows += alike
            for number, other in zip(
                alike, derangement(len(alike), child(rng, "ring", alike[0])).tolist(), strict=True
            ):
                theirs = cases[alike[other]]
                exchanged[number] = replace(cases[number], views=theirs.views, victim=theirs.victim)
        return [
            *mean_answers(
                asked.means, exchanged, knowledge, known, test=self._test(), rng=child(rng, "blur"), mean_known=True
            ),
            *clustered_answers(
                asked.clustered, cases, knowledge, known, effort=self._effort(), rng=child(rng, "shadows"), own=True
            ),
            *row_answers(rows, exchanged, knowledge, crops=Crops(count=0, least=self.least_area, most=0)),
        ]

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        """Gaussian records, released as a mean, as rows, and as a mean over clusters
        (fdgsec.attacks.membership.control)."""
        return planted_members(knowledge, rng)

    def missing(self, cases: Sequence[Case], knowledge: Knowledge) -> Sequence[Measurement]:
        """Report the domains for which there are too few public images to draw shadow clients, or for a test with so
        many auxiliary images."""
        asked, without = CasesByRelease.of(cases), list[tuple[Slice, str, int]]()
        for (name, _), mine in populations_asked(asked.means, cases).items():
            reasons = {count: too_few_auxiliary(name, knowledge, images=count) for count in self.auxiliary}
            where = cases[mine[0]].slice
            without += [({**where, "auxiliary": n}, reason, len(mine)) for n, reason in reasons.items() if reason]
        for name, size, mine, images in shadow_populations(asked.clustered, cases, knowledge):
            if len(images) <= size:
                reason = f"a shadow client of {size} images needs more public ones of {name}; there are {len(images)}"
                without.append((cases[mine[0]].slice, reason, len(mine)))
        names = ["auc", "tpr_at_1pct_fpr", "tpr_at_01pct_fpr"]
        return [row for where, reason, n in without for row in unavailable(names, where, reason, n=n)]

    def _test(self) -> TracingTest:
        return standardized_score if self.statistic == "standardized" else likelihood_ratio

    def _effort(self) -> Effort:
        return Effort(shadows=self.shadows, tried=self.tried, inserted=self.inserted)


def _populations_of_rows(numbers: Sequence[int], cases: Sequence[Case]) -> list[list[int]]:
    """Group the cases whose clients were drawn from the same population."""
    found: dict[tuple[object, ...], list[int]] = {}
    for number in numbers:
        key = (cases[number].question, *sorted(cases[number].slice.items(), key=str))
        found.setdefault(key, []).append(number)
    return list(found.values())

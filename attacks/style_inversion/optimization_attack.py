"""Optimization inversion: optimize an image until its channel statistics match those that a victim released.

Nothing is trained; the public encoder is sufficient. The optimization is in
fdgsec.attacks.style_inversion.style_matching: squared distance of (mu, sigma), in units of each statistic's spread over
public images, with total variation and an alpha-norm, from several random starts.

Two results are reported separately. Whether the attack *converged*: `style_residual` (0 matched, 1 off by a public
image's spread) and `converged_fraction`. And whether it *recovered the image*: each row's reconstructions with controls
B0 to B4, as for style inversion. Statistics have no positions, so images with matching statistics may have another
layout. `restart_spread` is how much a pixel varies between restarts; `restart_share` divides it by how much pixels vary
within one image: 1 where nothing of the layout is determined, 0 where all of it is.

Answers, from the same restarts: `best`, the one with the smallest residual, and `mean`, their average, which minimizes
a squared error. Scale: the canvas has the victim's pixel scale, because statistics depend on it. A canvas smaller than
the victim's image (`side`) is a window of its texture, not a thumbnail.

Rows are those of style inversion: released, of as-if clients, and for pooled styles the difference of two releases."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fdgsec.attacks.statistics.defense_noise import ACCOUNTED, RowDefenseNoise, defense_noise_of_styles
from fdgsec.attacks.style_inversion.control import planted_colors
from fdgsec.attacks.style_inversion.inverter import style_features
from fdgsec.attacks.style_inversion.inverter_cache import MOST_AT_ONCE
from fdgsec.attacks.style_inversion.reconstruction_answers import ReconstructedRows, parts
from fdgsec.attacks.style_inversion.style_matching import (
    MatchedImages,
    Matching,
    input_side,
    match,
    mean_and_std,
    statistic_spread,
)
from fdgsec.attacks.style_inversion.style_rows import SINGLE_IMAGE_KINDS, Rows, populations
from fdgsec.data.domains import downsample
from fdgsec.metrics.measurement import Measurement
from fdgsec.nn.styles.encoders import SMALLEST_SIDE, StyleEncoder
from fdgsec.nn.styles.image_styles import encoder_named, reentrant
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import tracked
from fdgsec.runtime.random_streams import child, derangement
from fdgsec.runtime.threads import side_by_side
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Answer, Prediction, Reconstructions
from fdgsec.threats.attack import Answers, Case, PositiveControl, Question, TargetFacts
from fdgsec.threats.judging.groups import unavailable

CONVERGED = 0.1
"""Residual below which a row counts as matched: a tenth of the spread between images."""
NOISE_STYLES = 2  # drawn for control B4 per population, and given to its rows in turn
CHEAP = 8  # factor on the maximum number of rows where the encoder is not a network


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What one `--profile` costs; `side` 0 is the encoder's input side, `rows` the maximum number of rows of a
    client."""

    restarts: int
    steps: int
    side: int
    rows: int
    images: int
    records: int


@dataclass(frozen=True, kw_only=True)
class OptimizationInversion:
    """Optimize images to the released statistics; options that are 0 take the profile's values."""

    name: ClassVar[str] = "optimization-inversion"
    reads: ClassVar[frozenset[str]] = frozenset({"ImageStyles", "StyleStatistics"})
    needs: ClassVar[frozenset[str]] = frozenset({"encoder"})
    accounts_for: ClassVar[frozenset[str]] = ACCOUNTED
    PROFILES: ClassVar[Mapping[str, Profile]] = {
        "quick": Profile(restarts=3, steps=60, side=48, rows=32, images=14, records=8),
        "full": Profile(restarts=8, steps=300, side=0, rows=128, images=35, records=24),
    }

    profile: Literal["quick", "full"] = "quick"
    restarts: int = 0
    steps: int = 0
    side: int = 0
    """Side of the canvas in pixels, at most that of the images that the encoder received."""
    start: Literal["noise", "mean image"] = "noise"
    """The image to which random starts are added: gray, or the mean of the public images (B0), whose layout then
    remains."""
    variation: float = 0.1
    extremes: float = 0.01

    def __post_init__(self) -> None:
        if self.profile not in self.PROFILES or self.start not in ("noise", "mean image"):
            raise UsageError(
                "optimization-inversion has profiles quick, full and starts noise, mean image; "
                f"got {self.profile}, {self.start}."
            )
        if min(self.restarts, self.steps, self.side) < 0 or 0 < self.side < SMALLEST_SIDE:
            raise UsageError(
                f"optimization-inversion takes restarts, steps and a side of at least {SMALLEST_SIDE} px, or 0 for the "
                f"profile's; got {self.restarts}, {self.steps}, {self.side}."
            )

    def plan(self, facts: TargetFacts) -> Sequence[Question]:
        """Ask for one row per image where images are released singly, else for pairs of runs one record apart.

        Raises UsageError where differences of pooled styles are needed and the adversary does not know the number of
        images or their domain, and where no images are known, because the controls need them."""
        facts.check_images()
        profile = self.PROFILES[self.profile]
        if "StyleStatistics" in facts.artifact_kinds:
            facts.check_pooled()
            lacking = sorted({"client sizes", "victim domains"} - facts.knows)
            if lacking:
                needed = " and ".join(lacking)
                raise UsageError(f"reads differences of pooled releases, for which the adversary must know {needed}")
            return [Question(kind="add_one_record", count=profile.records)]
        return [
            Question(kind="released", gallery=300),
            Question(kind="as_if_released", per_class=max(1, profile.images // facts.classes)),
        ]

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Reconstruct every row with its controls, and report convergence and the variation between restarts."""
        return [answer for drawn in self._drawn(cases, knowledge, rng) for answer in self._answers(drawn)]

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Answer every row with another row of its domain, from one start and without controls."""
        answers: list[Answer] = []
        for rows, ground in self._asked(cases, knowledge):
            if len(rows.features) > 1:
                child_rng = child(rng, rows.kind, *rows.cases)
                drawn = self._matched(ground.likely(rows), ground, child_rng, restarts=1)
                answers += _exchanged(rows, drawn.best(), child_rng)
        return answers

    def run_with_control(
        self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator, control_rng: torch.Generator
    ) -> tuple[Answers, Answers]:
        """`run`, and a negative control of the same pictures: each depends on its own row alone."""
        answers, control = list[Answer](), list[Answer]()
        for drawn in self._drawn(cases, knowledge, rng):
            answers += self._answers(drawn)
            rows, pictures = drawn.rows, drawn.images.best()
            if len(rows.features) > 1:
                child_rng = child(control_rng, rows.kind, *rows.cases)
                control += _exchanged(rows, pictures[: len(rows.features)], child_rng)
        return answers, control

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        """Single-color images, which statistics without positions determine
        (fdgsec.attacks.style_inversion.control)."""
        return planted_colors(knowledge, rng)

    def missing(self, cases: Sequence[Case], knowledge: Knowledge) -> list[Measurement]:
        """One unavailable row per question in which some client released more rows than the profile reconstructs."""
        most, found = self._most(knowledge), dict[str, int]()
        for case in cases:
            if case.question in ("released", "as_if_released"):
                found[case.question] = max(found.get(case.question, 0), len(case.released()[0]))
        return [
            row
            for kind, count in found.items()
            if count > most
            for row in unavailable(
                ["psnr_gain"], {"rows": kind}, f"a client released {count} rows; {self.profile} draws at most {most}"
            )
        ]

    def _most(self, knowledge: Knowledge) -> int:
        return self.PROFILES[self.profile].rows * (CHEAP if knowledge.encoder == "pixels" else 1)

    def _asked(self, cases: Sequence[Case], knowledge: Knowledge) -> "list[tuple[Rows, _PublicReference]]":
        """The populations within the profile's limit, each with what the adversary knows about its domain."""
        most = self._most(knowledge)
        asked = [rows for rows in populations(cases, knowledge) if rows.kind == "difference" or max(rows.sizes) <= most]
        side = self.side or self.PROFILES[self.profile].side
        return [(rows, _public_reference(knowledge, rows, side)) for rows in asked]

    def _matched(
        self, targets: Tensor, ground: "_PublicReference", rng: torch.Generator, *, restarts: int
    ) -> MatchedImages:
        options = Matching(
            steps=self.steps or self.PROFILES[self.profile].steps, variation=self.variation, extremes=self.extremes
        )
        begun = ground.images.mean(0, keepdim=True).expand(len(targets), -1, -1, -1)
        return match(
            ground.encoder, targets, ground.spread, side=ground.images.shape[-1], restarts=restarts, options=options,
            rng=rng, start=begun if self.start == "mean image" else None,
        )  # fmt: skip

    def _drawn(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> "list[_Drawn]":
        """The pictures of every population within the profile's limit, with those that its controls need."""
        restarts = self.restarts or self.PROFILES[self.profile].restarts

        def drawn(one: "tuple[Rows, _PublicReference]") -> _Drawn:
            rows, ground = one
            child_rng = child(rng, rows.kind, *rows.cases)
            targets = torch.cat([ground.likely(rows), ground.noise(child(child_rng, "noise"))])
            if len(rows.features) == 1:  # there is no other row: the style of a public image stands in
                targets = torch.cat([targets, ground.any_style(child(child_rng, "other"))])
            images = self._matched(targets, ground, child_rng, restarts=restarts)
            return _Drawn(rows=rows, ground=ground, targets=targets, images=images, rng=child_rng)

        asked = self._asked(cases, knowledge)
        together = all(reentrant(ground.encoder) for _, ground in asked)
        found = side_by_side(drawn, asked, most=MOST_AT_ONCE if together else 1)
        return [one for _, one in zip(tracked(asked, "inversion by optimization: domains"), found, strict=True)]

    def _answers(self, drawn: "_Drawn") -> list[Answer]:
        """Every case's reconstructions with their controls, and the convergence measures."""
        rows, ground, count = drawn.rows, drawn.ground, len(drawn.rows.features)
        order = derangement(count, child(drawn.rng, "exchange")) if count > 1 else torch.tensor([-1])
        fed_noise = count + torch.arange(count) % NOISE_STYLES
        near = ground.nearest(drawn.targets[:count])
        public = {
            "B0": ground.images.mean(0, keepdim=True).expand(count, -1, -1, -1),
            "B1": ground.images[torch.randint(len(ground.images), (count,), generator=child(drawn.rng, "random"))],
            "B2": ground.images[near],
        }
        answers: list[Answer] = []
        prior = "smooth" if self.start == "noise" else self.start
        for name, pictures in (("best", drawn.images.best()), ("mean", drawn.images.average())):
            controls = {**public, "B3": pictures[order], "B4": pictures[fed_noise]}
            where = {"prior": prior, "loss": "style", "rows": rows.kind, "restarts": name}
            answers += ReconstructedRows(rows=rows, images=pictures[:count], controls=controls).reconstructions(where)
        residuals = {
            "best": drawn.images.residual.amin(1)[:count],
            "B2": ground.residual(near, drawn.targets[:count]),
            "B4": drawn.images.residual.amin(1)[fed_noise],
        }
        return [*answers, *_convergence(rows, drawn.images, residuals)]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Drawn:
    """The pictures `images` for `targets`: the rows' styles first, then those of controls."""

    rows: Rows
    ground: "_PublicReference"
    targets: Tensor
    images: MatchedImages
    rng: torch.Generator


def _exchanged(rows: Rows, pictures: Tensor, rng: torch.Generator) -> list[Reconstructions]:
    """Answer every row with the picture of another one."""
    order = derangement(len(pictures), child(rng, "exchange"))
    alone = ReconstructedRows(rows=rows, images=pictures[order], controls={})
    return alone.reconstructions({"rows": rows.kind, "restarts": "best"})


@dataclass(frozen=True, kw_only=True, eq=False)
class _PublicReference:
    """The adversary's knowledge for one population: the encoder, the unit of every statistic (2C,), and public images.

    The images are of the victim's domain (all, where that is unknown) at the canvas's size, with their `features` (n,
    2C)."""

    encoder: StyleEncoder
    spread: Tensor
    images: Tensor
    features: Tensor
    defense_noise: RowDefenseNoise | None

    def likely(self, rows: Rows) -> Tensor:
        """The target styles (R, 2C); under a defense, the posterior mean of single images' rows before the noise."""
        targets = mean_and_std(rows.features)
        if self.defense_noise is None:
            return targets
        known = mean_and_std(self.features)
        return self.defense_noise.likely(targets, known.mean(0), known.var(0, correction=0))

    def noise(self, rng: torch.Generator) -> Tensor:
        """Styles drawn independently per statistic from the public mean and spread; no image has them."""
        drawn = torch.randn(NOISE_STYLES, self.features.shape[1], generator=rng, dtype=torch.float64)
        return mean_and_std(self.features.mean(0) + self.features.std(0, correction=0) * drawn)

    def any_style(self, rng: torch.Generator) -> Tensor:
        """The style of one public image, (1, 2C)."""
        return mean_and_std(self.features[torch.randint(len(self.features), (1,), generator=rng)])

    def nearest(self, targets: Tensor) -> Tensor:
        """The public image whose style is nearest to each of `targets`, (R,)."""
        return torch.cdist(targets / self.spread, mean_and_std(self.features) / self.spread).argmin(1)

    def residual(self, chosen: Tensor, targets: Tensor) -> Tensor:
        """The distance of the styles of the images `chosen` from `targets`, as in `style_residual`, (R,)."""
        return ((mean_and_std(self.features[chosen]) - targets) / self.spread).square().mean(1).sqrt()


def _public_reference(knowledge: Knowledge, rows: Rows, side: int) -> _PublicReference:
    domain, public, encoder = rows.domain, knowledge.public_images(), encoder_named(knowledge.encoder)
    features = style_features(*knowledge.statistics(public).style(unbiased=False))
    spread = statistic_spread(mean_and_std(features))
    own = torch.arange(len(public))
    if domain is not None and domain in public.domain_names:
        same = (public.domains == public.domain_index(domain)).nonzero().flatten()
        own = same if len(same) else own
    seen = input_side(encoder, int(knowledge.statistics(public.subset(own[:1])).count[0]))
    size = min(side or seen, seen)
    images = downsample(public.subset(own), (size, size))
    defense_noise = defense_noise_of_styles(knowledge, public) if rows.kind in SINGLE_IMAGE_KINDS else None
    return _PublicReference(
        encoder=encoder, spread=spread, images=images, features=features[own], defense_noise=defense_noise
    )


def _convergence(rows: Rows, drawn: MatchedImages, residuals: Mapping[str, Tensor]) -> list[Prediction]:
    """Convergence of the optimization, compared with B2 and B4, and the variation between restarts."""
    between, within = drawn.variance_between(), drawn.variance_within()
    found: list[Prediction] = []
    for case, part in parts(rows):
        numbers = {("style_residual", name): values[part].mean() for name, values in residuals.items()}
        numbers["converged_fraction", "best"] = (residuals["best"][part] < CONVERGED).double().mean()
        if drawn.images.shape[1] > 1:
            numbers["restart_spread", "best"] = between[part].mean().sqrt()
            numbers["restart_share", "best"] = between[part].mean() / within[part].mean()
        for (name, of), value in numbers.items():
            found.append(Prediction(case=case, slice={"rows": rows.kind, "of": of}, name=name, value=float(value)))
    return found

"""Optimization inversion: a picture is descended to until its channel statistics are those that a victim released.

Nothing is trained, the public encoder is enough. The descent is in fdgsec.attacks.style_inversion.style_matching: squared distance of (mu, sigma), in
units of each statistic's spread over public images, with total variation and an alpha-norm, from several random starts.

Two things are reported apart. Whether the attack *converged*: `style_residual` (0 matched, 1 off by a public image's
spread) and `converged_fraction`. And whether it *recovered the image*: each row's pictures beside controls B0 to B4, as
for style inversion. Statistics have no positions, so pictures with all statistics right may show everything elsewhere:
`restart_spread` is how much a pixel varies between restarts, `restart_share` the same over how much pixels vary within
one picture: 1 where nothing of the layout is determined, 0 where all of it is.

Answers, from the same restarts: `best`, the one with the smallest residual, and `mean`, their average, which a squared
error prefers. Scale: the canvas has the victim's pixel scale, since statistics depend on it. A canvas smaller than the
victim's image (`side`) is a window of its texture, not a thumbnail.

Rows are those of style inversion: released, of as-if clients, and for pooled styles the difference of two releases."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fdgsec.attacks.statistics.defense_noise import RowDefenseNoise, defense_noise_of_styles
from fdgsec.attacks.style_inversion.answers import Drawing, parts
from fdgsec.attacks.style_inversion.inverter import style_features
from fdgsec.attacks.style_inversion.style_matching import Matched, Matching, match, seen_side
from fdgsec.attacks.style_inversion.style_rows import ALONE, Rows, populations
from fdgsec.data.domains import DomainDataset, shrunk
from fdgsec.federation.artifacts import ImageStyles
from fdgsec.metrics.measurement import Measurement
from fdgsec.nn.styles.encoders import SMALLEST_SIDE, StyleEncoder
from fdgsec.nn.styles.image_styles import encoder_named, statistics
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child, derangement
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.attack import Answer, Answers, Case, PositiveControl, Prediction, Question, TargetFacts, Truth
from fdgsec.threats.judging.groups import unavailable
from fdgsec.threats.planted import upload

CONVERGED = 0.1
"""Residual below which a row counts as matched: all statistics within a tenth of what they vary by among images."""
FLOOR = 0.1  # of the mean spread is added to each: channels in which images hardly differ must not outweigh all others
NOISE_STYLES = 2  # drawn for control B4 per population, and given to its rows in turn
CHEAP = 8  # times as many rows may be drawn where the encoder is no network


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What one `--profile` costs; `side` 0 is the side that the encoder saw, `rows` the most that a client may release."""

    restarts: int
    steps: int
    side: int
    rows: int
    images: int
    records: int


@dataclass(frozen=True, kw_only=True)
class OptimizationInversion:
    """Descend to pictures with the released statistics; options that are 0 are the profile's."""

    name: ClassVar[str] = "optimization-inversion"
    reads: ClassVar[frozenset[str]] = frozenset({"ImageStyles", "StyleStatistics"})
    needs: ClassVar[frozenset[str]] = frozenset({"encoder"})
    PROFILES: ClassVar[Mapping[str, Profile]] = {
        "quick": Profile(restarts=3, steps=60, side=48, rows=32, images=14, records=8),
        "full": Profile(restarts=8, steps=300, side=0, rows=128, images=35, records=24),
    }

    profile: Literal["quick", "full"] = "quick"
    restarts: int = 0
    steps: int = 0
    side: int = 0
    """Side of the canvas in pixels, at most that of the images that the encoder saw."""
    start: Literal["noise", "mean image"] = "noise"
    """What the random starts are added to: gray, or the mean of the public images (B0), whose layout then stays."""
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

        Raises UsageError where pooled styles would have to be parted without knowing how many images they pool, or of
        which domain, and where no images are known: without controls a picture proves nothing."""
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
        """Draw every row's pictures and their controls, and say how far statistics were matched and pixels fixed."""
        answers: list[Answer] = []
        for rows, ground in self._asked(cases, knowledge):
            coins = child(rng, rows.kind, *rows.cases)
            answers += self._drawn(rows, ground, coins)
        return answers

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Answer every row with another row of its domain, from one start and without controls: pictures alone count."""
        answers: list[Answer] = []
        for rows, ground in self._asked(cases, knowledge):
            if len(rows.features) > 1:
                coins = child(rng, rows.kind, *rows.cases)
                order = derangement(len(rows.features), child(coins, "exchange"))
                drawn = self._matched(ground.likely(rows)[order], ground, coins, restarts=1)
                alone = Drawing(rows=rows, images=drawn.best(), controls={})
                answers += alone.reconstructions({"rows": rows.kind, "restarts": "best"})
        return answers

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        """Images of 32 px of one color each, with faint grain: the only ones that statistics without positions fix.

        They go through the adversary's own encoder, so that what must win is all of the attack."""
        public, asked = 40, 10
        colors = 0.15 + 0.7 * torch.rand(public + asked, 3, 1, 1, generator=rng)
        grain = 0.015 * torch.rand(public + asked, 1, 1, 1, generator=rng)
        pixels = colors + grain * torch.randn(public + asked, 3, 32, 32, generator=rng)
        nothing = torch.zeros(public + asked, dtype=torch.int64)
        images = DomainDataset(
            name="planted", store=(pixels.clamp(0, 1) * 255).round().to(torch.uint8),
            rows=torch.arange(public + asked), labels=nothing, domains=nothing,
            ids=tuple(f"planted/{number}" for number in range(public + asked)),
            class_names=("any",), domain_names=("planted",),
        )  # fmt: skip
        victims = images.subset(torch.arange(public, public + asked))
        order = torch.randperm(asked, generator=rng)
        mean, std = statistics(knowledge.encoder, victims).style(unbiased=True)
        case = Case(
            question="as_if_released", views=(upload(ImageStyles(mean=mean.float(), std=std.float())),),
            victim="client:0", domain="planted", slice={"domain": "planted"}, candidates=victims.subset(order),
        )  # fmt: skip
        truth = Truth(rows=order.argsort(), images=victims.pixels(), labels=victims.labels, domains=victims.domains)
        planted = replace(
            knowledge, statistics=lambda dataset: statistics(knowledge.encoder, dataset),
            auxiliary=images.subset(torch.arange(public)), unseen=None, own=None, domain_names=("planted",),
            class_names=("any",),
        )  # fmt: skip
        return PositiveControl(cases=[case], truths=[truth], knowledge=planted, measurement="psnr_gain", at_least=0.0)

    def missing(self, cases: Sequence[Case], knowledge: Knowledge) -> list[Measurement]:
        """One unavailable row per kind of request in which some client released more rows than are drawn."""
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

    def _asked(self, cases: Sequence[Case], knowledge: Knowledge) -> "list[tuple[Rows, _Ground]]":
        """The populations small enough to be drawn, each with what the adversary knows about its domain."""
        most = self._most(knowledge)
        asked = [rows for rows in populations(cases, knowledge) if rows.kind == "difference" or max(rows.sizes) <= most]
        side = self.side or self.PROFILES[self.profile].side
        return [(rows, _ground(knowledge, rows, side)) for rows in asked]

    def _matched(self, targets: Tensor, ground: "_Ground", rng: torch.Generator, *, restarts: int) -> Matched:
        options = Matching(
            steps=self.steps or self.PROFILES[self.profile].steps, variation=self.variation, extremes=self.extremes
        )
        begun = ground.images.mean(0, keepdim=True).expand(len(targets), -1, -1, -1)
        return match(
            ground.encoder, targets, ground.spread, side=ground.images.shape[-1], restarts=restarts, options=options,
            rng=rng, start=begun if self.start == "mean image" else None,
        )  # fmt: skip

    def _drawn(self, rows: Rows, ground: "_Ground", rng: torch.Generator) -> list[Answer]:
        """Draw rows and controls at once, then give every case its own answers and bookkeeping."""
        count = len(rows.features)
        targets = torch.cat([ground.likely(rows), ground.noise(child(rng, "noise"))])
        if count == 1:  # there is no other row: the style of a public image stands in
            targets = torch.cat([targets, ground.any_style(child(rng, "other"))])
        drawn = self._matched(targets, ground, rng, restarts=self.restarts or self.PROFILES[self.profile].restarts)
        order = derangement(count, child(rng, "exchange")) if count > 1 else torch.tensor([-1])
        fed_noise = count + torch.arange(count) % NOISE_STYLES
        near = ground.nearest(targets[:count])
        public = {
            "B0": ground.images.mean(0, keepdim=True).expand(count, -1, -1, -1),
            "B1": ground.images[torch.randint(len(ground.images), (count,), generator=child(rng, "random"))],
            "B2": ground.images[near],
        }
        answers: list[Answer] = []
        prior = "smooth" if self.start == "noise" else self.start
        for name, pictures in (("best", drawn.best()), ("mean", drawn.average())):
            controls = {**public, "B3": pictures[order], "B4": pictures[fed_noise]}
            where = {"prior": prior, "loss": "style", "rows": rows.kind, "restarts": name}
            answers += Drawing(rows=rows, images=pictures[:count], controls=controls).reconstructions(where)
        residuals = {
            "best": drawn.residual.amin(1)[:count],
            "B2": ground.residual(near, targets[:count]),
            "B4": drawn.residual.amin(1)[fed_noise],
        }
        return [*answers, *_bookkeeping(rows, drawn, residuals)]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Ground:
    """What the adversary brings: the encoder, the unit of every statistic (2C,), and public images of the victim's domain
    (all, where that is not known) at the canvas's size, with their `features` (n, 2C)."""

    encoder: StyleEncoder
    spread: Tensor
    images: Tensor
    features: Tensor
    defense_noise: RowDefenseNoise | None

    def likely(self, rows: Rows) -> Tensor:
        """The styles (R, 2C) that are aimed at: behind a defense what single images' rows probably were before it."""
        targets = _plain(rows.features)
        if self.defense_noise is None:
            return targets
        known = _plain(self.features)
        return self.defense_noise.likely(targets, known.mean(0), known.var(0, correction=0))

    def noise(self, rng: torch.Generator) -> Tensor:
        """Styles drawn statistic by statistic from the public ones' mean and spread: no image's."""
        drawn = torch.randn(NOISE_STYLES, self.features.shape[1], generator=rng, dtype=torch.float64)
        return _plain(self.features.mean(0) + self.features.std(0, correction=0) * drawn)

    def any_style(self, rng: torch.Generator) -> Tensor:
        """The style of one public image, (1, 2C)."""
        return _plain(self.features[torch.randint(len(self.features), (1,), generator=rng)])

    def nearest(self, targets: Tensor) -> Tensor:
        """Which public image has the style nearest to each of `targets`, (R,)."""
        return torch.cdist(targets / self.spread, _plain(self.features) / self.spread).argmin(1)

    def residual(self, chosen: Tensor, targets: Tensor) -> Tensor:
        """How far the styles of the images `chosen` are from `targets`, as `style_residual` counts it, (R,)."""
        return ((_plain(self.features[chosen]) - targets) / self.spread).square().mean(1).sqrt()


def _ground(knowledge: Knowledge, rows: Rows, side: int) -> _Ground:
    domain, public, encoder = rows.domain, knowledge.public_images(), encoder_named(knowledge.encoder)
    features = style_features(*knowledge.statistics(public).style(unbiased=False))
    deviation = _plain(features).std(0, correction=0)
    spread = deviation + FLOOR * deviation.mean() if float(deviation.max()) > 0 else torch.ones_like(deviation)
    own = torch.arange(len(public))
    if domain is not None and domain in public.domain_names:
        same = (public.domains == public.domain_index(domain)).nonzero().flatten()
        own = same if len(same) else own
    seen = seen_side(encoder, int(knowledge.statistics(public.subset(own[:1])).count[0]))
    size = min(side or seen, seen)
    images = shrunk(public.subset(own), (size, size))
    defense_noise = defense_noise_of_styles(knowledge, public) if rows.kind in ALONE else None
    return _Ground(encoder=encoder, spread=spread, images=images, features=features[own], defense_noise=defense_noise)


def _plain(features: Tensor) -> Tensor:
    """Turn (mu, log sigma) into (mu, sigma), (R, 2C)."""
    mean, log_std = features.chunk(2, dim=1)
    return torch.cat([mean, log_std.exp()], dim=1)


def _bookkeeping(rows: Rows, drawn: Matched, residuals: Mapping[str, Tensor]) -> list[Prediction]:
    """Whether the descent converged, beside what B2 has without one and B4 with a style of no image; and what it left open."""
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

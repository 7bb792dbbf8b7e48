"""Style inversion: from a released style to the image behind it (CCST appendix A; FISC appendix B.5, Table 9).

The adversary trains an inverter (fdgsec.attacks.style_inversion.inverter, fdgsec.attacks.style_inversion.inverter_gan) on images that it has, and shows it what the
victim released. Three priors: *intra*, auxiliary images of the victim's own domain; *inter*, another domain (the images
of the adversary, when that is a client; for the server, which holds no client's, the auxiliary images of the next source
domain in order); *third-party*, images of the unseen domain, painted where they are line drawings. An adversary that does
not know the victim's domain has no intra prior, and as a client takes all its images, of whatever domain, in place of
inter: *own*.

Rows of one image: the released ones, those of as-if clients, and for pooled styles the difference of two releases: t(r')
of n + 1 records and t(r) of n give the new record's own t = (n + 1) t(r') - n t(r). Pooled rows: the styles of re-drawn
clients, and FISC's interpolation style; no image is their truth, so what is drawn of them is a test of membership and,
like all rows' pictures, a set to be judged by its realism beside that of the baseline, which sees no style at all.

Differs from the papers: a linear part before the generator, standardized input, controls, and no victim's image is ever
trained on, by the baseline neither. Where a prior is painted, rows are brought to its mean and spread, since its styles
lie elsewhere; pooled rows are moved to where single ones lie."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch.nn import functional

from fdgsec.attacks.style_inversion.answers import Drawing, drawing, generated
from fdgsec.attacks.style_inversion.inverter import Schedule
from fdgsec.attacks.style_inversion.inverter_cache import LOSSES, Effort, InverterCache, loss_named
from fdgsec.attacks.style_inversion.inverter_gan import Contest
from fdgsec.attacks.style_inversion.style_rows import ALONE, Rows, populations
from fdgsec.attacks.style_inversion.training_images import prior_images
from fdgsec.data.domains import DomainDataset, shrunk
from fdgsec.federation.artifacts import ImageStyles
from fdgsec.metrics.measurement import Measurement
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child, derangement
from fdgsec.threats.attack import Answer, Answers, Case, Knowledge, PositiveControl, Question, TargetFacts, Truth
from fdgsec.threats.planted import upload

POOLED = frozenset({"StyleStatistics", "StyleDistribution"})
BASELINE = "baseline"
SETS = frozenset({"as_if_released", "difference", "pooled"})
"""Rows of which there are enough to be judged as a set."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What one `--profile` costs: losses, training, whether there is a baseline, and how many rows are asked for.

    `records` are differences per domain, `distributions` those of StableFDG's, whose every release is a pass of the model
    over a whole client; `clients` of `holding` images are re-drawn per domain for pooled rows."""

    losses: tuple[str, ...]
    effort: Effort
    baseline: bool
    per_class: int
    records: int
    distributions: int
    clients: int = 50
    holding: int = 40


@dataclass(frozen=True, kw_only=True)
class StyleInversion:
    """Draw the image behind every style row, for every prior and loss, beside controls B0 to B4."""

    name: ClassVar[str] = "style-inversion"
    reads: ClassVar[frozenset[str]] = frozenset({"ImageStyles", "StyleBank", "InterpolationStyle", *POOLED})
    needs: ClassVar[frozenset[str]] = frozenset({"encoder"})
    PROFILES: ClassVar[Mapping[str, Profile]] = {
        "quick": Profile(
            losses=("mse", "perceptual_mini"), baseline=False, per_class=15, records=40, distributions=20,
            effort=Effort(
                first=Schedule(steps=120, check=15, patience=2), further=Schedule(steps=60, check=10, patience=2),
                contest=Contest(steps=300, decay=0.98, lessons=300), crops=0, images=300,
            ),
        ),
        "full": Profile(
            losses=LOSSES, baseline=True, per_class=50, records=150, distributions=50,
            effort=Effort(
                first=Schedule(steps=4000, check=100, patience=8), further=Schedule(steps=2000, check=100, patience=5),
                contest=Contest(steps=4000), crops=2, images=4000,
            ),
        ),
    }  # fmt: skip

    profile: Literal["quick", "full"] = "quick"
    losses: tuple[str, ...] = ()
    """Named losses in place of the profile's: mse, perceptual_mini, lpips, mse+lpips, gan."""
    priors: tuple[str, ...] = ("intra", "inter", "third-party")
    size: int = 64
    baseline: bool | None = None
    """Train FISC's baseline, an unconditional generator per domain; None: as the profile says."""
    published_widths: bool = False
    """Use the papers' 64 million weights: 12 billion multiplications per image, hours on a CPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def __post_init__(self) -> None:
        wrong = [loss for loss in self.losses if loss not in LOSSES]
        if wrong or self.profile not in self.PROFILES:
            raise UsageError(
                f"style-inversion has losses {', '.join(LOSSES)} and profiles quick, full; got {wrong or self.profile}."
            )

    def plan(self, facts: TargetFacts) -> Sequence[Question]:
        """Ask for rows of single images; where styles are pooled, for pairs of runs one record apart and re-drawn clients.

        Raises UsageError where pooled styles would have to be parted without knowing how many images they pool, or of
        which domain: the differences of one domain are each other's controls. FISC's are no means and are not parted."""
        profile = self.PROFILES[self.profile]
        if not facts.artifact_kinds & POOLED:
            return [
                Question(kind="released", gallery=300),
                Question(kind="as_if_released", per_class=profile.per_class),
            ]
        redrawn = Question(kind="resampled_clients", count=profile.clients, records=profile.holding)
        if not facts.pooled:
            return [redrawn]
        lacking = sorted({"client sizes", "victim domains"} - facts.knows)
        if lacking:
            needed = " and ".join(lacking)
            raise UsageError(f"reads differences of pooled releases, for which the adversary must know {needed}")
        single = profile.records if "StyleStatistics" in facts.artifact_kinds else profile.distributions
        return [Question(kind="add_one_record", count=single), redrawn]

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Answer every case once per prior and loss that can be had; `missing` says which cannot, and why."""
        inverter_cache, answers = self.inverter_cache(knowledge, rng), list[Answer]()
        for rows in populations(cases, knowledge):
            answers += self._inverted(rows, cases, inverter_cache, sets=rows.kind in SETS)
            unconditional = (
                inverter_cache.baseline(rows.domain) if rows.kind in SETS and self._with_baseline() else None
            )
            if unconditional is not None:
                pictures = unconditional(len(rows.features), child(rng, BASELINE, rows.kind, str(rows.domain)))
                answers += generated(rows, pictures, BASELINE, {"rows": rows.kind})
        return answers

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Answer every row with another row of its domain, by the first loss alone: one generator shows it.

        The interpolation style is everybody's, and cannot be exchanged."""
        alone = replace(self, losses=self._losses()[:1])
        inverter_cache, answers = alone.inverter_cache(knowledge, rng), list[Answer]()
        for rows in populations(cases, knowledge):
            if rows.kind != "interpolation" and len(rows.features) > 1:
                order = derangement(len(rows.features), child(rng, "exchange", rows.kind, str(rows.domain)))
                answers += alone._inverted(
                    replace(rows, features=rows.features[order]), cases, inverter_cache, sets=False
                )
        return answers

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        """Images of 16 px whose "style" is their 8x8 thumbnail: 192 numbers that hold nearly all of the picture."""
        public, asked = 100, 40
        field = torch.randn(public + asked, 3, 5, 5, generator=rng)
        pixels = (functional.interpolate(field, size=(16, 16), mode="bicubic").sigmoid() * 255).round().to(torch.uint8)
        nothing = torch.zeros(public + asked, dtype=torch.int64)
        images = DomainDataset(
            name="planted", store=pixels, rows=torch.arange(public + asked), labels=nothing, domains=nothing,
            ids=tuple(f"planted/{number}" for number in range(public + asked)),
            class_names=("any",), domain_names=("planted",),
        )  # fmt: skip
        victims = images.subset(torch.arange(public, public + asked))
        order = torch.randperm(asked, generator=rng)
        mean, std = _thumbnail(victims).style(unbiased=True)
        case = Case(
            question="as_if_released", views=(upload(ImageStyles(mean=mean.float(), std=std.float())),),
            victim="client:0", domain="planted", slice={"domain": "planted"}, candidates=victims.subset(order),
        )  # fmt: skip
        truth = Truth(rows=order.argsort(), images=victims.pixels(), labels=victims.labels, domains=victims.domains)
        planted = replace(
            knowledge, statistics=_thumbnail, auxiliary=images.subset(torch.arange(public)), unseen=None, own=None,
            domain_names=("planted",), class_names=("any",),
        )  # fmt: skip
        return PositiveControl(cases=[case], truths=[truth], knowledge=planted, measurement="psnr_gain", at_least=0.0)

    def missing(self, cases: Sequence[Case], knowledge: Knowledge) -> list[Measurement]:
        """One unavailable row for all that is not answered, with the reason.

        Losses without weights, priors without data, what the profile leaves out, and single images behind pooled rows."""
        reasons: dict[tuple[str, str], str] = {}
        for name in self._losses():
            found = loss_named(name, self.size, device=torch.device("cpu"))
            if isinstance(found, str):
                reasons["loss", name] = found
        for kind in self.priors:
            for domain in dict.fromkeys(case.domain for case in cases):
                images = prior_images(kind, domain, knowledge)
                if isinstance(images, str):
                    reasons["prior", kind if domain is None else f"{kind} of {domain}"] = images
        rows = populations(cases, knowledge)
        if cases and not rows:
            reasons["rows", "none"] = "the adversary saw no style of any victim"
        if any(part.pooled for part in rows):
            reasons["rows", "pooled"] = (
                "no single image is behind a pooled style: judged are all pictures as a set, and each as a test of membership"
            )
        rest = [] if self.losses else self._left_out()
        return [*(_unavailable("psnr_gain", {key: name}, reason) for (key, name), reason in reasons.items()), *rest]

    def _left_out(self) -> list[Measurement]:
        """What the profile does not run, where it is the profile that decides."""
        reason = f"not run: profile {self.profile} leaves it out"
        left = [_unavailable("psnr_gain", {"loss": loss}, reason) for loss in LOSSES if loss not in self._losses()]
        if not self._with_baseline():
            left.append(_unavailable("frechet_mini", {"column": BASELINE}, reason))
        if self.profile == "quick":
            left += [
                _unavailable(name, {}, reason) for name in ("fid", "kid", "inception_score", "log_inception_score")
            ]
        return left

    def _losses(self) -> tuple[str, ...]:
        return self.losses or self.PROFILES[self.profile].losses

    def _with_baseline(self) -> bool:
        return self.PROFILES[self.profile].baseline if self.baseline is None else self.baseline

    def inverter_cache(self, knowledge: Knowledge, rng: torch.Generator) -> InverterCache:
        """Where this attack trains its generators, on what its adversary knows."""
        device = ("cuda" if torch.cuda.is_available() else "cpu") if self.device == "auto" else self.device
        return InverterCache(
            knowledge=knowledge, effort=self.PROFILES[self.profile].effort, losses=self._losses(), size=self.size,
            published_widths=self.published_widths, device=torch.device(device), rng=rng,
        )  # fmt: skip

    def _inverted(
        self, rows: Rows, cases: Sequence[Case], inverter_cache: InverterCache, *, sets: bool
    ) -> list[Answer]:
        """Answer one population with every prior and loss."""
        answers: list[Answer] = []
        for kind in self.priors:
            prior = inverter_cache.prior(kind, rows.domain, single=rows.kind in ALONE)
            if prior is None:
                continue
            named = "own" if kind == "inter" and rows.domain is None else kind
            trained = {loss: inverter_cache.drawer(prior, loss) for loss in self._losses()}
            drawers = {loss: drawer for loss, drawer in trained.items() if drawer is not None}
            for number, (loss, drawer) in enumerate(drawers.items()):
                coins = child(inverter_cache.rng, "controls", rows.kind, str(rows.domain), kind, loss)
                drawn = drawing(rows, prior, drawer, coins)
                where = {"prior": named, "loss": loss, "rows": rows.kind}
                if not rows.pooled:
                    answers += drawn.reconstructions(where)
                elif number == 0:
                    answers += drawn.memberships(cases, where)
                if sets:
                    answers += _sets(drawn, loss, {"prior": named, "rows": rows.kind}, exchanged=number == 0)
        return answers


def _sets(drawn: Drawing, loss: str, where: Mapping[str, str | int], *, exchanged: bool) -> list[Answer]:
    """The pictures as a set, once as they are, and once as control B3 has them: drawn of each other's styles."""
    answers: list[Answer] = [*generated(drawn.rows, drawn.images, f"styles, {loss}", where)]
    if exchanged:
        answers += generated(drawn.rows, drawn.controls["B3"], f"exchanged styles, {loss}", where)
    return answers


def _unavailable(name: str, where: Mapping[str, str | int], reason: str) -> Measurement:
    return Measurement(
        name=name, value=None, low=None, high=None, chance=None, chance_kind="none", n=0, slice=where,
        unavailable=reason,
    )  # fmt: skip


def _thumbnail(dataset: DomainDataset) -> Moments:
    """The plant's statistics: the 8x8 thumbnail's first 96 numbers as means, the others as log standard deviations."""
    numbers = shrunk(dataset, (8, 8)).flatten(1).to(torch.float64)
    mean, log_std = numbers.chunk(2, dim=1)
    count = torch.full((len(numbers),), 64.0, dtype=torch.float64)
    return Moments(count=count, mean=mean, m2=(2 * log_std).exp() * 64)

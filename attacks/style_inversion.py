"""Style inversion: from one released style row to the image behind it (CCST appendix A; FISC Table 9 and its text).

The adversary trains an inverter (fdgsec.inversion) on images that it has, and shows it what the victim released. Three
priors: *intra*, auxiliary images of the victim's own domain; *inter*, another domain (the images of the adversary, when
that is a client; for the server, which holds no client's, the auxiliary images of the next source domain in order);
*third-party*, images of the unseen domain, painted where they are line drawings. An adversary that does not know the
victim's domain has no intra prior, and as a client takes all its images, of whatever domain, in place of inter: *own*.

Rows: the released ones, those of as-if clients, and for pooled styles the difference of two releases: t(r') of n + 1
records and t(r) of n give the new record's own t = (n + 1) t(r') - n t(r).

Differs from the papers: a linear part before the generator, standardised input, controls, and no victim's image is ever
trained on. Where a prior is painted, rows are brought to its mean and spread, since its styles lie elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch.nn import functional

from fdgsec.artifacts import ImageStyles
from fdgsec.data.domains import DomainDataset, shrunk
from fdgsec.errors import UsageError, WeightsUnavailableError
from fdgsec.features import encoder_named
from fdgsec.inversion import Inverter, Loss, Schedule, fit_generator
from fdgsec.inversion_priors import Prior, encoded, prior_images
from fdgsec.inversion_rows import Rows, populations
from fdgsec.metrics.images import LPIPS_LEAST_SIDE, LpipsDistance, PerceptualEncoder, mse
from fdgsec.networks.style_generator import full_shape, small_shape
from fdgsec.planting import upload
from fdgsec.reports import Measurement
from fdgsec.rng import child, derangement
from fdgsec.styles import Moments
from fdgsec.threats import Answer, Case, Guess, Knowledge, Plant, Reconstructions, Request, TargetFacts, Truth

LPIPS_TO_MSE = 10.0  # "mse+lpips": at the start of training the two terms are then about equal


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What one `--profile` costs: losses, steps (first loss, then each further one), variants, rows and images."""

    losses: tuple[str, ...]
    first: Schedule
    further: Schedule
    crops: int
    per_class: int
    records: int
    images: int


@dataclass(frozen=True, kw_only=True)
class StyleInversion:
    """Draw the image behind every style row, for every prior and loss, beside controls B0 to B4."""

    name: ClassVar[str] = "style-inversion"
    reads: ClassVar[frozenset[str]] = frozenset({"ImageStyles", "StyleBank", "StyleStatistics"})
    needs: ClassVar[frozenset[str]] = frozenset({"encoder"})
    PROFILES: ClassVar[Mapping[str, Profile]] = {
        "quick": Profile(
            losses=("mse", "perceptual_mini"), first=Schedule(steps=120, check=15, patience=2),
            further=Schedule(steps=60, check=10, patience=2), crops=0, per_class=15, records=40, images=300,
        ),
        "full": Profile(
            losses=("mse", "perceptual_mini", "lpips", "mse+lpips"), first=Schedule(steps=4000, check=100, patience=8),
            further=Schedule(steps=2000, check=100, patience=5), crops=2, per_class=50, records=150, images=4000,
        ),
    }  # fmt: skip

    profile: Literal["quick", "full"] = "quick"
    losses: tuple[str, ...] = ()
    """Named losses in place of the profile's: mse, perceptual_mini, lpips, mse+lpips."""
    priors: tuple[str, ...] = ("intra", "inter", "third-party")
    size: int = 64
    published_widths: bool = False
    """Use the papers' 64 million weights: 12 billion multiplications per image, hours on a CPU."""

    def __post_init__(self) -> None:
        known = self.PROFILES["full"].losses
        wrong = [loss for loss in self.losses if loss not in known]
        if wrong or self.profile not in self.PROFILES:
            raise UsageError(
                f"style-inversion has losses {', '.join(known)} and profiles quick, full; got {wrong or self.profile}."
            )

    def plan(self, facts: TargetFacts) -> Sequence[Request]:
        """Ask for one row per image where images are released singly, else for pairs of runs one record apart.

        Raises UsageError where pooled styles would have to be parted without knowing how many images they pool, or of
        which domain: the differences of one domain are each other's controls."""
        profile = self.PROFILES[self.profile]
        if "StyleStatistics" in facts.artifact_kinds:
            facts.check_pooled()
            lacking = sorted({"client sizes", "victim domains"} - facts.knows)
            if lacking:
                needed = " and ".join(lacking)
                raise UsageError(f"reads differences of pooled releases, for which the adversary must know {needed}")
            return [Request(kind="add_one_record", count=profile.records)]
        return [
            Request(kind="released", gallery=300),
            Request(kind="as_if_released", per_class=profile.per_class),
        ]

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Guess:
        """Answer every case once per prior and loss that can be had; `missing` says which cannot, and why."""
        return self._answers(cases, knowledge, rng, exchange=False)

    def shuffled(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Guess:
        """Answer every row with another row of its domain, by the first loss alone: one generator shows it."""
        alone = replace(self, losses=self._losses()[:1])
        return alone._answers(cases, knowledge, rng, exchange=True)

    def plant(self, knowledge: Knowledge, rng: torch.Generator) -> Plant:
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
            request="as_if_released", views=(upload(ImageStyles(mean=mean.float(), std=std.float())),),
            victim="client:0", domain="planted", slice={"domain": "planted"}, candidates=victims.subset(order),
        )  # fmt: skip
        truth = Truth(rows=order.argsort(), images=victims.pixels(), labels=victims.labels, domains=victims.domains)
        planted = replace(
            knowledge, statistics=_thumbnail, auxiliary=images.subset(torch.arange(public)), unseen=None, own=None,
            domain_names=("planted",), class_names=("any",),
        )  # fmt: skip
        return Plant(cases=[case], truths=[truth], knowledge=planted, measurement="psnr_gain", at_least=0.0)

    def missing(self, cases: Sequence[Case], knowledge: Knowledge) -> list[Measurement]:
        """One unavailable row for every loss without weights and every prior without data, with the reason."""
        reasons = {
            ("loss", name): found for name in self._losses() if isinstance(found := self._loss(name, self.size), str)
        }
        for kind in self.priors:
            for domain in dict.fromkeys(case.domain for case in cases):
                images = prior_images(kind, domain, knowledge)
                if isinstance(images, str):
                    reasons["prior", kind if domain is None else f"{kind} of {domain}"] = images
        return [
            Measurement(
                name="psnr_gain", value=None, low=None, high=None, chance=None, chance_kind="none", n=0,
                slice={key: name}, unavailable=reason,
            )
            for (key, name), reason in reasons.items()
        ]  # fmt: skip

    def _losses(self) -> tuple[str, ...]:
        return self.losses or self.PROFILES[self.profile].losses

    def _answers(
        self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator, *, exchange: bool
    ) -> list[Answer]:
        workshop = _Workshop(attack=self, knowledge=knowledge, rng=rng)
        answers: list[Answer] = []
        for rows in populations(cases, knowledge):
            if exchange and len(rows.features) < 2:
                continue  # nothing to exchange it with
            order = derangement(len(rows.features), child(rng, "exchange", rows.kind, str(rows.domain)))
            shown = replace(rows, features=rows.features[order]) if exchange else rows
            for kind in self.priors:
                prior = workshop.prior(kind, rows.domain)
                if prior is None:
                    continue
                named = "own" if kind == "inter" and rows.domain is None else kind
                for loss in self._losses():
                    inverter = workshop.inverter(prior, loss)
                    if inverter is not None:
                        coins = child(rng, "controls", rows.kind, str(rows.domain), kind, loss)
                        answers += _drawn(
                            shown, prior, inverter, {"prior": named, "loss": loss, "rows": rows.kind}, coins
                        )
        return answers

    def _loss(self, name: str, size: int) -> Loss | str:
        """The loss called `name`, or why it cannot be had."""
        if name == "mse":
            return mse
        if name == "perceptual_mini":
            return PerceptualEncoder(encoder_named("mini"))
        if size < LPIPS_LEAST_SIDE:
            return f"LPIPS needs images of at least {LPIPS_LEAST_SIDE} px; these are drawn at {size} px"
        try:
            lpips = LpipsDistance("vgg")
        except WeightsUnavailableError as error:
            return str(error)
        return lpips if name == "lpips" else lambda drawn, true: LPIPS_TO_MSE * mse(drawn, true) + lpips(drawn, true)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Workshop:
    """Trains every prior's inverters once: what is intra for one domain is inter for another."""

    attack: StyleInversion
    knowledge: Knowledge
    rng: torch.Generator
    priors: dict[str, Prior] = field(default_factory=dict)
    measures: dict[tuple[str, int], Loss | str] = field(default_factory=dict)
    inverters: dict[tuple[str, str], Inverter] = field(default_factory=dict)

    def prior(self, kind: str, domain: str | None) -> Prior | None:
        """The training set of `kind` against `domain`, encoded, or None where the data are missing."""
        found = prior_images(kind, domain, self.knowledge)
        if isinstance(found, str):
            return None
        name, images = found
        if name not in self.priors:
            profile = self.attack.PROFILES[self.attack.profile]
            self.priors[name] = encoded(
                name, images, self.knowledge.statistics, size=self.attack.size, crops=profile.crops,
                limit=profile.images, rng=child(self.rng, "variants", name),
            )  # fmt: skip
        return self.priors[name]

    def inverter(self, prior: Prior, loss: str) -> Inverter | None:
        """The inverter of one prior and loss; every loss but the first continues from where the first one ended."""
        size = prior.training.images.shape[-1]
        if (loss, size) not in self.measures:
            self.measures[loss, size] = self.attack._loss(loss, size)
        measure = self.measures[loss, size]
        if isinstance(measure, str):
            return None
        if (prior.name, loss) not in self.inverters:
            profile = self.attack.PROFILES[self.attack.profile]
            first = self.inverters.get((prior.name, self.attack._losses()[0]))
            shape = full_shape(size) if self.attack.published_widths else small_shape(size)
            self.inverters[prior.name, loss] = fit_generator(
                prior.training, prior.linear, prior.unseen, shape=shape, loss=measure,
                schedule=profile.first if first is None else profile.further,
                rng=child(self.rng, "train", prior.name, loss), start=None if first is None else first.generator,
            )  # fmt: skip
        return self.inverters[prior.name, loss]


def _thumbnail(dataset: DomainDataset) -> Moments:
    """The plant's statistics: the 8x8 thumbnail's first 96 numbers as means, the others as log standard deviations."""
    numbers = shrunk(dataset, (8, 8)).flatten(1).to(torch.float64)
    mean, log_std = numbers.chunk(2, dim=1)
    count = torch.full((len(numbers),), 64.0, dtype=torch.float64)
    return Moments(count=count, mean=mean, m2=(2 * log_std).exp() * 64)


def _drawn(
    rows: Rows, prior: Prior, inverter: Inverter, where: Mapping[str, str | int], rng: torch.Generator
) -> list[Reconstructions]:
    """Draw all rows and their controls at once, then give every case its own."""
    features = prior.aligned(rows.features)
    images, training = inverter(features), prior.training
    count = len(images)
    noise = torch.randn(features.shape, generator=rng, dtype=torch.float64)
    order = derangement(count, rng)
    others = images[order]
    if count == 1:  # there is no other row: an image of the prior stands in
        chosen = torch.randint(len(training.features), (1,), generator=rng)
        others = inverter(training.features[chosen])
    near = torch.cdist(prior.linear.standardised(features), prior.linear.standardised(training.features)).argmin(1)
    controls = {
        "B0": training.images.mean(0, keepdim=True).expand_as(images),
        "B1": training.images[torch.randint(len(training.images), (count,), generator=rng)],
        "B2": training.images[near],
        "B3": others,
        "B4": inverter(prior.linear.centre + prior.linear.spread * noise),
    }
    starts = [sum(rows.sizes[:place]) for place in range(len(rows.sizes))]
    return [
        Reconstructions(
            case=case, slice=where, images=images[start : start + size],
            controls={name: values[start : start + size] for name, values in controls.items()},
        )
        for case, start, size in zip(rows.cases, starts, rows.sizes, strict=True)
    ]  # fmt: skip

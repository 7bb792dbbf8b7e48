"""Style inversion: reconstruct the image behind a released style (CCST appendix A; FISC appendix B.5, Table 9).

The adversary trains an inverter (fdgsec.attacks.style_inversion.inverter, fdgsec.attacks.style_inversion.inverter_gan)
on images that it has, and applies it to what the victim released. Three priors:
* *intra*: auxiliary images of the victim's own domain.
* *inter*: another domain. For a client adversary these are its own images; for the server, which holds no client's
  images, the auxiliary images of the next source domain in order.
* *third-party*: images of the unseen domain, colorized where they are line drawings.

An adversary that does not know the victim's domain has no intra prior, and as a client uses all its images, of whatever
domain, in place of inter: *own*.

Rows of one image: the released ones, those of as-if clients, and for pooled styles the difference of two releases:
t(r') of n + 1 records and t(r) of n give the new record's own t = (n + 1) t(r') - n t(r). Pooled rows: the styles of
re-drawn clients, and FISC's interpolation style. No single image is their ground truth, so their reconstructions are
used as a membership test. Like all rows' reconstructions they are also judged as a set, for realism, in comparison with
a baseline generator that receives no style.

Differs from the papers: a linear part before the generator, standardized input, controls, and no victim's image is ever
used for training, by the baseline neither. Where a prior is colorized, rows are brought to its mean and spread, because
its styles lie elsewhere. Pooled rows are shifted to the location of single ones."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from fdgsec.attacks.statistics.defense_noise import ACCOUNTED
from fdgsec.attacks.style_inversion.class_guided import CLASS_GUIDED, unguided
from fdgsec.attacks.style_inversion.control import planted_classes, planted_thumbnails
from fdgsec.attacks.style_inversion.inverter import Schedule
from fdgsec.attacks.style_inversion.inverter_cache import (
    LOSSES,
    RETRIEVED,
    WITHOUT_GENERATOR,
    Effort,
    InverterCache,
    loss_named,
)
from fdgsec.attacks.style_inversion.inverter_gan import AdversarialOptions
from fdgsec.attacks.style_inversion.recognition import PICTURE, no_recognizer
from fdgsec.attacks.style_inversion.reconstruction_answers import (
    ReconstructedRows,
    ShrunkCandidates,
    generated,
    reconstruct_rows,
    suits,
)
from fdgsec.attacks.style_inversion.retrieval import RetrievalOptions
from fdgsec.attacks.style_inversion.style_rows import SINGLE_IMAGE_KINDS, Rows, populations
from fdgsec.attacks.style_inversion.training_images import LEAST_IMAGES, Prior, colorless, prior_images
from fdgsec.metrics.image_similarity import mse
from fdgsec.metrics.measurement import Measurement
from fdgsec.nn.training.precision import device_named
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child, derangement
from fdgsec.runtime.registry import is_bundled
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Answer
from fdgsec.threats.attack import Answers, Case, PositiveControl, Question, TargetFacts, VariantControl
from fdgsec.threats.option_checks import check_at_least

POOLED = frozenset({"StyleStatistics", "StyleDistribution"})
BASELINE = "baseline"
SETS = frozenset({"as_if_released", "difference", "pooled"})
"""Kinds of rows with enough images to be judged as a set."""
PRIORS = ("intra", "inter", "third-party")
RECOGNIZED = "as_if_released"
"""The kind of rows whose classes are recognized: of equally many images of every class."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What one `--profile` costs: losses, training, the baseline, and the number of rows.

    `records` are differences per domain, `distributions` those of StableFDG's, of which every release is a pass of the
    model over a whole client. `clients` of `holding` images are re-drawn per domain for pooled rows."""

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
    """Reconstruct the image behind every style row, for every prior and loss, with controls B0 to B4."""

    name: ClassVar[str] = "style-inversion"
    reads: ClassVar[frozenset[str]] = frozenset({"ImageStyles", "StyleBank", "InterpolationStyle", *POOLED})
    needs: ClassVar[frozenset[str]] = frozenset({"encoder"})
    accounts_for: ClassVar[frozenset[str]] = ACCOUNTED
    PROFILES: ClassVar[Mapping[str, Profile]] = {
        "quick": Profile(
            losses=("mse", "perceptual_mini", CLASS_GUIDED), baseline=False, per_class=15, records=40, distributions=20,
            effort=Effort(
                first=Schedule(steps=120, check=10, patience=2, settled=0.02),
                further=Schedule(steps=60, check=10, patience=2, settled=0.02),
                contest=AdversarialOptions(steps=300, decay=0.98, lessons=300), crops=0, images=300,
                retrieval=RetrievalOptions(nearest=4, draws=2, steps=24, rows=128),
            ),
        ),
        "full": Profile(
            losses=LOSSES, baseline=True, per_class=50, records=150, distributions=50,
            effort=Effort(
                first=Schedule(steps=4000, check=100, patience=8, settled=0.005),
                further=Schedule(steps=2000, check=100, patience=5, settled=0.005),
                contest=AdversarialOptions(steps=4000, check=100, settled=0.005), crops=2, images=4000,
                retrieval=RetrievalOptions(nearest=8, draws=3, steps=60, rows=400),
            ),
        ),
    }  # fmt: skip

    profile: Literal["quick", "full"] = "quick"
    losses: tuple[str, ...] = ()
    """Losses in place of the profile's: mse, perceptual_mini, lpips, mse+lpips, gan, retrieved, class-guided."""
    auxiliary: tuple[int, ...] = ()
    """Numbers of images with which every prior is trained once more, each on the first of the same random order."""
    draws: int = 0
    """Drafts of each row that `retrieved` optimizes; 0 takes the profile's number."""
    refinement: int | None = None
    """Steps of that optimization; 0 ranks drafts alone, None takes the profile's number."""
    priors: tuple[str, ...] = PRIORS
    size: int = 64
    per_class: int = 0
    """Images of each class in rows as if released; 0 takes the profile's number."""
    clients: int = 0
    holding: int = 0
    """Re-drawn clients of each domain and images of each, for pooled styles; 0 takes the profile's numbers."""
    baseline: bool | None = None
    """Train FISC's baseline, an unconditional generator per domain; None takes the profile's choice."""
    published_widths: bool = False
    """Use the papers' 64 million weights: 12 billion multiplications per image, hours on a CPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def __post_init__(self) -> None:
        wrong = [loss for loss in self.losses if loss not in LOSSES]
        if wrong or self.profile not in self.PROFILES:
            raise UsageError(
                f"style-inversion has losses {', '.join(LOSSES)} and profiles quick, full; got {wrong or self.profile}."
            )
        if not self.priors or not set(self.priors) <= set(PRIORS):
            got = ", ".join(self.priors) or "none"
            raise UsageError(f"style-inversion's priors are {', '.join(PRIORS)}; got {got}.")
        check_at_least(LEAST_IMAGES, {"auxiliary": self.auxiliary})
        check_at_least(0, {"draws": self.draws, "refinement": self.refinement or 0, "per_class": self.per_class})

    def plan(self, facts: TargetFacts) -> Sequence[Question]:
        """Ask for rows of single images; where styles are pooled, for pairs of runs one record apart and re-drawn
        clients.

        Raises UsageError where differences of pooled styles are needed and the adversary does not know the number of
        images or their domain: the differences of one domain are each other's controls. FISC's styles are not means,
        and no differences are taken."""
        profile = self.PROFILES[self.profile]
        if not facts.artifact_kinds & POOLED:
            return [
                Question(kind="released", gallery=300),
                Question(kind="as_if_released", per_class=self.per_class or profile.per_class),
            ]
        count, records = self.clients or profile.clients, self.holding or profile.holding
        redrawn = Question(kind="resampled_clients", count=count, records=records)
        if not facts.pooled:
            return [redrawn]
        lacking = sorted({"client sizes", "victim domains"} - facts.knows)
        if lacking:
            needed = " and ".join(lacking)
            raise UsageError(f"reads differences of pooled releases, for which the adversary must know {needed}")
        single = profile.records if "StyleStatistics" in facts.artifact_kinds else profile.distributions
        return [Question(kind="add_one_record", count=single), redrawn]

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Answer every case once per available prior and loss; `missing` reports the others, with the reason."""
        return self._answers(cases, self.inverter_cache(knowledge, rng), rng)

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Answer every row with another row of its domain, by the first loss alone, because one generator is enough.

        The interpolation style is the same for all clients and cannot be exchanged."""
        return self._exchanged(cases, self.inverter_cache(knowledge, rng), rng)

    def run_with_control(
        self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator, control_rng: torch.Generator
    ) -> tuple[Answers, Answers]:
        """`run` and `negative_control`, by the same generators: they are trained on the adversary's images alone."""
        inverter_cache = self.inverter_cache(knowledge, rng)
        return self._answers(cases, inverter_cache, rng), self._exchanged(cases, inverter_cache, control_rng)

    def _answers(self, cases: Sequence[Case], inverter_cache: InverterCache, rng: torch.Generator) -> list[Answer]:
        answers, everyone = list[Answer](), populations(cases, inverter_cache.knowledge)
        inverter_cache.train([prior for rows in everyone for _, prior in self._priors_of(rows, inverter_cache)])
        for rows in everyone:
            answers += self._invert(rows, cases, inverter_cache, sets=rows.kind in SETS)
            unconditional = (
                inverter_cache.baseline(rows.domain) if rows.kind in SETS and self._with_baseline() else None
            )
            if unconditional is not None:
                pictures = unconditional(len(rows.features), child(rng, BASELINE, rows.kind, str(rows.domain)))
                answers += generated(rows, pictures, BASELINE, {"rows": rows.kind})
        return answers

    def _exchanged(self, cases: Sequence[Case], inverter_cache: InverterCache, rng: torch.Generator) -> list[Answer]:
        alone, answers = replace(self, losses=self._losses()[:1], auxiliary=()), list[Answer]()
        for rows in populations(cases, inverter_cache.knowledge):
            if rows.kind != "interpolation" and len(rows.features) > 1:
                order = derangement(len(rows.features), child(rng, "exchange", rows.kind, str(rows.domain)))
                exchanged = replace(rows, features=rows.features[order])
                answers += alone._invert(exchanged, cases, inverter_cache, sets=False)
        return answers

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        """Images that are determined by their "style", an 8x8 thumbnail (fdgsec.attacks.style_inversion.control).

        The control has images for one prior, "intra" if it is asked for: every further one would train once more. All
        of them are used, for 50 in place of them (`auxiliary`) could not reach the goal."""
        prior = "intra" if "intra" in self.priors else self.priors[0]
        control = planted_thumbnails(knowledge, rng, losses=self._losses(), prior=prior)
        return replace(control, attack=replace(self, auxiliary=())) if self.auxiliary else control

    def variant_control(self, knowledge: Knowledge, rng: torch.Generator) -> VariantControl | None:
        """Styles that tell the class, by which every loss is held to show it in its pictures; None where classes cannot
        be recognized.

        The pictures have the size of the reconstructions. There is one prior, as in `positive_control`."""
        if no_recognizer(knowledge):
            return None
        prior = "intra" if "intra" in self.priors else self.priors[0]
        alone = replace(self, priors=(prior,), auxiliary=(), baseline=False)
        return planted_classes(knowledge, rng, attack=alone, variants=self._losses(), prior=prior)

    def missing(self, cases: Sequence[Case], knowledge: Knowledge) -> list[Measurement]:
        """One unavailable row for everything that is not answered, with the reason.

        Losses without weights, priors without data or with too few images, rows that are too many for `retrieved`, what
        the profile leaves out, and single images behind pooled rows."""
        reasons: dict[tuple[str, str], str] = {}
        for name in self._losses():
            found = mse if name in WITHOUT_GENERATOR else loss_named(name, self.size, device=torch.device("cpu"))
            if isinstance(found, str):
                reasons["loss", name] = found
        rows = populations(cases, knowledge)
        if cases and not rows:
            reasons["rows", "none"] = "the adversary saw no style of any victim"
        if any(part.pooled for part in rows):
            reasons["rows", "pooled"] = (
                "no single image is behind a pooled style: judged are all pictures as a set, and each as a test of "
                "membership"
            )
        unused = [*self._unused_priors(cases, knowledge), *self._unretrieved(rows)]
        rest = [] if self.losses else self._left_out()
        if any(part.kind == RECOGNIZED for part in rows) and (lacking := no_recognizer(knowledge)):
            rest.append(_unavailable("balanced_accuracy", {"class_from": PICTURE, "rows": RECOGNIZED}, lacking))
        given = [_unavailable("psnr_gain", {key: name}, reason) for (key, name), reason in reasons.items()]
        return [*given, *unused, *rest]

    def _unused_priors(self, cases: Sequence[Case], knowledge: Knowledge) -> list[Measurement]:
        """Priors without data, with fewer images than were asked for, and such as variants cannot begin with."""
        found: dict[tuple[str, str | None], list[Measurement]] = {}
        for kind in self.priors:
            for domain in dict.fromkeys(case.domain for case in cases):
                images = prior_images(kind, domain, knowledge)
                where = {"prior": kind} if domain is None else {"prior": kind, "domain": domain}
                if isinstance(images, str):
                    found[kind, domain] = [_unavailable("psnr_gain", where, images)]
                    continue
                few = [number for number in self.auxiliary if number > len(images[1])]
                reason = f"the prior has {len(images[1])} images"
                found[kind, domain] = [
                    _unavailable("psnr_gain", {**where, "auxiliary": number}, reason) for number in few
                ]
                if RETRIEVED in self._losses() and colorless(images[1]):
                    reason = "pictures begin at real images; this prior's are colorized line drawings"
                    found[kind, domain].append(_unavailable("psnr_gain", {**where, "loss": RETRIEVED}, reason))
                if CLASS_GUIDED in self._losses() and (reason := unguided(images[1])):
                    found[kind, domain].append(_unavailable("psnr_gain", {**where, "loss": CLASS_GUIDED}, reason))
        return [row for part in found.values() for row in part]

    def _unretrieved(self, rows: Sequence[Rows]) -> list[Measurement]:
        """One row for every kind of rows of which a client released too many for `retrieved`."""
        most, largest = self._effort().retrieval.rows, dict[str, int]()
        for part in rows if RETRIEVED in self._losses() else ():
            largest[part.kind] = max(*part.sizes, largest.get(part.kind, 0))
        return [
            _unavailable(
                "psnr_gain", {"loss": RETRIEVED, "rows": kind},
                f"a client released {count} rows; {RETRIEVED} draws at most {most}",
            )
            for kind, count in largest.items() if count > most
        ]  # fmt: skip

    def _left_out(self) -> list[Measurement]:
        """What the profile leaves out, where the profile decides."""
        reason = f"not run: profile {self.profile} leaves it out"
        left = [_unavailable("psnr_gain", {"loss": loss}, reason) for loss in LOSSES if loss not in self._losses()]
        if not self._with_baseline():
            left.append(_unavailable("frechet_mini", {"column": BASELINE}, reason))
        return left

    def _losses(self) -> tuple[str, ...]:
        return self.losses or self.PROFILES[self.profile].losses

    def _with_baseline(self) -> bool:
        return self.PROFILES[self.profile].baseline if self.baseline is None else self.baseline

    def _effort(self) -> Effort:
        """The profile's budget, with the options that were given in its place."""
        effort = self.PROFILES[self.profile].effort
        retrieval = effort.retrieval
        steps = retrieval.steps if self.refinement is None else self.refinement
        return replace(effort, retrieval=replace(retrieval, draws=self.draws or retrieval.draws, steps=steps))

    def inverter_cache(self, knowledge: Knowledge, rng: torch.Generator) -> InverterCache:
        """The cache in which this attack trains its generators, on what its adversary knows."""
        return InverterCache(
            knowledge=knowledge, effort=self._effort(), losses=self._losses(), size=self.size,
            published_widths=self.published_widths, device=torch.device(device_named(self.device)), rng=rng,
            keeps=is_bundled(self),
        )  # fmt: skip

    def _invert(self, rows: Rows, cases: Sequence[Case], inverter_cache: InverterCache, *, sets: bool) -> list[Answer]:
        """Answer one population with every prior."""
        shrunk = ShrunkCandidates()
        return [
            answer
            for where, prior in self._priors_of(rows, inverter_cache)
            for answer in self._with_prior(rows, cases, prior, inverter_cache, where, shrunk, sets=sets)
        ]

    def _priors_of(self, rows: Rows, inverter_cache: InverterCache) -> Iterator[tuple[Mapping[str, str | int], Prior]]:
        """The priors for one population, each with all of its images and with every smaller number."""
        for kind in self.priors:
            named = "own" if kind == "inter" and rows.domain is None else kind
            for images in (0, *self.auxiliary):
                prior = inverter_cache.prior(kind, rows.domain, single=rows.kind in SINGLE_IMAGE_KINDS, images=images)
                if prior is not None:
                    smaller = {"auxiliary": images} if images else {}
                    yield {"prior": named, "rows": rows.kind, **smaller}, prior

    def _with_prior(
        self, rows: Rows, cases: Sequence[Case], prior: Prior, inverter_cache: InverterCache,
        where: Mapping[str, str | int], shrunk: ShrunkCandidates, *, sets: bool,
    ) -> list[Answer]:  # fmt: skip
        """Answer one population with one prior and every loss; smaller priors are not judged as sets."""
        answers: list[Answer] = []
        trained = {loss: inverter_cache.inverter(prior, loss) for loss in self._losses()}
        inverters = {loss: found for loss, found in trained.items() if found is not None and suits(found, rows)}
        for number, (loss, inverter) in enumerate(inverters.items()):
            names = [str(where["prior"]), loss, *([where["auxiliary"]] if "auxiliary" in where else [])]
            child_rng = child(inverter_cache.rng, "controls", rows.kind, str(rows.domain), *names)
            drawn = reconstruct_rows(rows, prior, inverter, child_rng)
            answers += drawn.residuals({**where, "loss": loss})
            if not rows.pooled:
                answers += drawn.reconstructions({**where, "loss": loss})
                answers += _recognized(drawn, prior, inverter_cache, loss, where, compare=number == 0, exchanged=sets)
            elif number == 0:
                answers += drawn.memberships(cases, {**where, "loss": loss}, shrunk)
            if sets and "auxiliary" not in where:
                answers += _sets(drawn, loss, where, exchanged=number == 0)
        return answers


def _recognized(
    drawn: ReconstructedRows, prior: Prior, inverter_cache: InverterCache, loss: str,
    where: Mapping[str, str | int], *, compare: bool, exchanged: bool,
) -> list[Answer]:  # fmt: skip
    """The classes recognized in reconstructions of images that no released row of the run is of, and comparisons."""
    if drawn.rows.kind != RECOGNIZED:
        return []
    recognizer = inverter_cache.recognizer(int(drawn.images.shape[-1]))
    if isinstance(recognizer, str):
        return []
    return recognizer.answers(drawn, prior, loss, where, compare=compare, exchanged=exchanged)


def _sets(drawn: ReconstructedRows, loss: str, where: Mapping[str, str | int], *, exchanged: bool) -> list[Answer]:
    """The reconstructions as a set, and the set of control B3: reconstructions of exchanged styles."""
    answers: list[Answer] = [*generated(drawn.rows, drawn.images, f"styles, {loss}", where)]
    if exchanged:
        answers += generated(drawn.rows, drawn.controls["B3"], f"exchanged styles, {loss}", where)
    return answers


def _unavailable(name: str, where: Mapping[str, str | int], reason: str) -> Measurement:
    return Measurement(
        name=name, value=None, low=None, high=None, chance=None, chance_kind="none", n=0, slice=where,
        unavailable=reason,
    )  # fmt: skip

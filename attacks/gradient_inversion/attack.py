"""Gradient inversion: reconstruct images and labels from a model update that is the gradient of one small batch.

An adversary that sent a client a model and received it back knows the difference. After one step of SGD this is a
gradient. Labels are read from it (iDLG, LLG), and images are fitted to it (Geiping et al., NeurIPS 2020,
arXiv:2003.14053, cosine distance and total variation); formulas in fdgsec.attacks.gradient_inversion.gradient_matching.
The implementation is our own: the library that packages such attacks (breaching 0.1.2) has had no release since
February 2022.

Two questions. For the run as it was (`released`): whether the public training plan leaves anything to invert. Usually
it does not, because a client takes many steps, and a row then says so. For clients that take one step (`single_step`):
what one batch of 1 to 8 images reveals under this architecture and learning rate. Where clients send the gradient of
the classifier's head (FedIIR), its features are read and inverted (fdgsec.attacks.gradient_inversion.head_features).

Batch norm's running statistics come with the update and reveal those of the batch
(fdgsec.attacks.gradient_inversion.batch_norm_leakage). The weight of total variation is tuned on public images: the
weight that recovers them best is used. With the prior "generator" the search begins in the latent space of a generator
trained on these (Jeon et al., NeurIPS 2021)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fdgsec.attacks.gradient_inversion.batch_norm_leakage import image_statistics
from fdgsec.attacks.gradient_inversion.candidate_matching import alignment, outline_distances
from fdgsec.attacks.gradient_inversion.control import planted_gradients
from fdgsec.attacks.gradient_inversion.gradient_matching import (
    MOST_RECORDS,
    Match,
    Matching,
    batch_gradient,
    match_gradient,
)
from fdgsec.attacks.gradient_inversion.head_features import is_head, match_features
from fdgsec.attacks.gradient_inversion.image_prior import LEAST_IMAGES, ImagePrior, fit_image_prior
from fdgsec.attacks.gradient_inversion.single_step_updates import ObservedStep, observed_step
from fdgsec.attacks.statistics.defense_noise import ACCOUNTED
from fdgsec.data.domains import DomainDataset, downsample, shares_of
from fdgsec.metrics.image_similarity import psnr
from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child, derangement
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Answer, Labels, Prediction, Proportions, Ranking, Reconstructions
from fdgsec.threats.attack import Answers, Case, PositiveControl, Question, TargetFacts
from fdgsec.threats.judging.groups import unavailable

VARIATIONS = (0.05, 0.3, 1.0)
"""Candidate weights of the total variation."""
TUNING_IMAGES = 2
CANDIDATES_PER_LABEL = 16
"""Maximum number of public images of each label from which control B2 chooses by gradient."""
LEAST_PUBLIC = LEAST_IMAGES + TUNING_IMAGES
"""Number of public images from which a generator is trained on all but those that tune."""
GALLERY = 100
Prior = Literal["smooth", "generator"]
PRIORS: tuple[Prior, ...] = ("smooth", "generator")
"""What makes a picture likely: little total variation, or a generator that draws it."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What one `--profile` costs: steps of a fit, batch sizes, clients of each domain for each size, priors, and steps
    in which a generator is trained."""

    steps: int
    records: tuple[int, ...]
    count: int
    priors: tuple[Prior, ...]
    prior_steps: int


@dataclass(frozen=True, kw_only=True)
class GradientInversion:
    """Fit images to gradients; options that are 0 or empty take the profile's values.

    `model` is the model that single steps start from: the run's first, or the last that its server sent. `variation` is
    the weight of total variation; None tunes it. The best of `restarts` random starts is kept for each gradient.
    `priors` are "smooth" (total variation) and "generator", trained on the adversary's images in `prior_steps`."""

    name: ClassVar[str] = "gradient-inversion"
    reads: ClassVar[frozenset[str]] = frozenset({"ModelState", "HeadGradient"})
    needs: ClassVar[frozenset[str]] = frozenset({"transform"})
    accounts_for: ClassVar[frozenset[str]] = ACCOUNTED - {"shuffle", "dp-sgd", "dp-fedavg"}
    keeps: ClassVar[Literal["models=last", "models=all"]] = "models=last"
    PROFILES: ClassVar[Mapping[str, Profile]] = {
        "quick": Profile(steps=200, records=(1, 4), count=2, priors=("smooth",), prior_steps=600),
        "full": Profile(steps=1500, records=(1, 2, 4, 8), count=8, priors=("smooth", "generator"), prior_steps=6000),
    }

    profile: Literal["quick", "full"] = "quick"
    steps: int = 0
    restarts: int = 1
    records: tuple[int, ...] = ()
    count: int = 0
    variation: float | None = None
    model: Literal["first", "last"] = "first"
    priors: tuple[Prior, ...] = ()
    prior_steps: int = 0

    def __post_init__(self) -> None:
        if self.profile not in self.PROFILES or self.model not in ("first", "last"):
            raise UsageError(
                f"gradient-inversion has profiles quick, full and models first, last; got {self.profile}, {self.model}."
            )
        unknown = [prior for prior in self.priors if prior not in PRIORS]
        if unknown:
            raise UsageError(f"gradient-inversion has priors {', '.join(PRIORS)}; got {unknown[0]}.")
        if (
            any(not 1 <= records <= MOST_RECORDS for records in self.records)
            or min(self.steps, self.count, self.prior_steps) < 0
        ):
            raise UsageError(
                f"gradient-inversion takes records of 1 to {MOST_RECORDS}, and steps, count and prior_steps of 0 (the "
                f"profile's) or more; got {self.records}, {self.steps}, {self.count}, {self.prior_steps}."
            )

    def plan(self, facts: TargetFacts) -> Sequence[Question]:
        """Ask about the run as it was, about clients that take one step, and about those that send a head's gradient.

        Raises UsageError for a client adversary, and where no images are known, because the controls need them."""
        if "own data" in facts.knows:
            raise UsageError("reads the updates that clients send; another client receives only their mean")
        facts.check_images()
        profile = self.PROFILES[self.profile]
        count, sizes = self.count or profile.count, sorted(set(self.records or profile.records))
        steps = [
            Question(kind="single_step", count=count, records=size, gallery=GALLERY, scheme=self.model)
            for size in sizes
        ]
        sent = [
            Question(kind="head_gradients", count=count, records=size, gallery=GALLERY, scheme="pictures")
            for size in sizes if "HeadGradient" in facts.artifact_kinds and facts.named
        ]  # fmt: skip
        return [Question(kind="released"), *steps, *sent]

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Recover labels and images where an update is the gradient of a small batch, with controls B0 to B3."""
        steps, answers = _observed_steps(cases, knowledge), list[Answer]()
        for prior in self._priors(steps, knowledge, rng):
            answers += self._pictures(steps, prior, cases, knowledge, rng)
        return answers

    def _pictures(
        self, steps: Mapping[int, ObservedStep], prior: ImagePrior | None, cases: Sequence[Case], knowledge: Knowledge,
        rng: torch.Generator,
    ) -> Iterator[Answer]:  # fmt: skip
        """The answers of one prior."""
        weights = self._tuned_variation(steps, prior, cases, knowledge, rng)
        matches = self._matches(steps, prior, weights, cases, knowledge, rng)
        for number, step in steps.items():
            public, child_rng = _public(knowledge, cases[number].domain), child(rng, "controls", number)
            alike = _same_population(number, matches, cases)
            if alike:
                other = matches[alike[int(torch.randint(len(alike), (1,), generator=child(child_rng, "other")))]].images
            else:
                drawn = public.subset(
                    torch.randint(len(public), (len(step.labels),), generator=child(child_rng, "public"))
                )
                other = self._reconstruct_public(step, prior, drawn, weights[cases[number].question], child_rng)
            controls = {**_controls(step, public, child_rng), "B3": other.cpu()}
            where, distance = _slice(step, prior), matches[number].distance
            yield from _answers(number, cases[number], step, matches[number], public, controls, where)
            yield Prediction(case=number, slice=where, name="gradient_distance", value=distance)

    def _priors(
        self, steps: Mapping[int, ObservedStep], knowledge: Knowledge, rng: torch.Generator
    ) -> Iterator[ImagePrior | None]:
        """The priors asked for, None for total variation; the generator is trained where there is a gradient to fit."""
        profile, public = self.PROFILES[self.profile], knowledge.public_images()
        for name in self.priors or profile.priors:
            if name == "smooth":
                yield None
            elif steps and len(public) >= LEAST_PUBLIC:
                device = next(next(iter(steps.values())).model.parameters()).device
                kept = torch.randperm(len(public), generator=child(rng, "kept"))[TUNING_IMAGES:]
                yield fit_image_prior(
                    public.subset(kept),
                    steps=self.prior_steps or profile.prior_steps,
                    rng=child(rng, "prior"),
                    device=device,
                )

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Answer every case from the gradient of another case of its slice and size, without controls."""
        opened = _observed_steps(cases, knowledge)
        groups: dict[tuple[object, ...], list[int]] = {}
        for number, step in opened.items():
            groups.setdefault((*sorted(cases[number].slice.items()), len(step.labels)), []).append(number)
        exchanged: dict[int, ObservedStep] = {}
        for place, numbers in enumerate(groups.values()):
            if len(numbers) > 1:
                order = derangement(len(numbers), child(rng, "exchange", place)).tolist()
                exchanged |= {number: opened[numbers[other]] for number, other in zip(numbers, order, strict=True)}
        answers = list[Answer]()
        for prior in self._priors(exchanged, knowledge, rng):
            weights = self._tuned_variation(exchanged, prior, cases, knowledge, rng)
            matches = self._matches(exchanged, prior, weights, cases, knowledge, rng)
            for number, step in exchanged.items():
                public, where = _public(knowledge, cases[number].domain), _slice(step, prior)
                answers += _answers(number, cases[number], step, matches[number], public, {}, where)
        return answers

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        """Smooth images and a small random network without pooling (fdgsec.attacks.gradient_inversion.control)."""
        return planted_gradients(knowledge, rng)

    def missing(self, cases: Sequence[Case], knowledge: Knowledge) -> Sequence[Measurement]:
        """Report the updates that cannot be inverted, with the reason."""
        reasons: dict[tuple[tuple[str, str | int], ...], list[str]] = {}
        for case in cases:
            found = observed_step(case, knowledge)
            if isinstance(found, str):
                loss = "features" if case.question == "head_gradients" else "gradient"
                reasons.setdefault((*case.slice.items(), ("loss", loss)), []).append(found)
        rows = [
            row
            for where, told in reasons.items()
            for row in unavailable(["psnr", "mae"], dict(where), " | ".join(sorted(set(told))), n=len(told))
        ]
        public = len(knowledge.public_images())
        if "generator" in (self.priors or self.PROFILES[self.profile].priors) and public < LEAST_PUBLIC:
            reason = f"a generator learns from {LEAST_PUBLIC} or more public images; the adversary has {public}"
            rows += unavailable(["psnr"], {"prior": "generator"}, reason, n=0)
        return rows

    def _fit_images(
        self, step: ObservedStep, prior: ImagePrior | None, size: tuple[int, int], variation: float,
        rng: torch.Generator,
    ) -> Match:  # fmt: skip
        matching = Matching(
            steps=self.steps or self.PROFILES[self.profile].steps, restarts=self.restarts,
            total_variation=variation, statistics=step.statistics, prior=prior,
        )  # fmt: skip
        if step.expected is not None:
            return match_features(
                step.model, step.gradient, step.labels, expected=step.expected, size=size, matching=matching, rng=rng
            )
        return match_gradient(
            step.model, step.gradient, step.labels, size=size, matching=matching, rng=rng, norms=step.norms
        )

    def _matches(
        self, steps: Mapping[int, ObservedStep], prior: ImagePrior | None, weights: Mapping[str, float],
        cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator,
    ) -> dict[int, Match]:  # fmt: skip
        size = knowledge.public_images().image_size
        return {
            number: self._fit_images(step, prior, size, weights[cases[number].question], child(rng, "fit", number))
            for number, step in steps.items()
        }

    def _tuned_variation(
        self, steps: Mapping[int, ObservedStep], prior: ImagePrior | None, cases: Sequence[Case],
        knowledge: Knowledge, rng: torch.Generator,
    ) -> dict[str, float]:  # fmt: skip
        """For each question, the weight of total variation with which single public images are recovered best.

        A generator has not learned these images."""
        weights: dict[str, float] = {}
        for number, step in steps.items():
            if self.variation is not None or cases[number].question in weights:
                weights[cases[number].question] = weights.get(cases[number].question, self.variation or 0.0)
                continue
            public, child_rng = knowledge.public_images(), child(rng, "rehearsal", cases[number].question)
            if prior is not None:
                public = public.subset(torch.tensor([name not in prior.learned for name in public.ids]))
            likeness = dict.fromkeys(VARIATIONS, 0.0)
            for place in torch.randperm(len(public), generator=child_rng)[:TUNING_IMAGES]:
                image = public.subset(place.reshape(1))
                true = downsample(image, public.image_size)
                for weight in VARIATIONS:
                    found = self._reconstruct_public(step, prior, image, weight, child_rng)
                    likeness[weight] += float(psnr(found, true))
            weights[cases[number].question] = max(VARIATIONS, key=lambda weight: likeness[weight])
        return weights

    def _reconstruct_public(
        self, step: ObservedStep, prior: ImagePrior | None, images: DomainDataset, variation: float,
        rng: torch.Generator,
    ) -> Tensor:  # fmt: skip
        """What is recovered of `images` from the gradient that they would have given in the victim's place."""
        device = next(step.model.parameters()).device
        pixels = downsample(images, images.image_size).to(device)
        whole = batch_gradient(step.model, pixels, images.labels.to(device), statistics=step.statistics)
        posed = replace(
            step, labels=images.labels, norms=image_statistics(step.model, pixels) if step.norms else {},
            gradient={name: whole[name] for name in step.gradient},
        )  # fmt: skip
        return self._fit_images(posed, prior, images.image_size, variation, child(rng, "recovered")).images.cpu()


def _observed_steps(cases: Sequence[Case], knowledge: Knowledge) -> dict[int, ObservedStep]:
    """The observed step of each case that can be answered."""
    found = {number: observed_step(case, knowledge) for number, case in enumerate(cases)}
    return {number: step for number, step in found.items() if isinstance(step, ObservedStep)}


def _same_population(number: int, matches: Mapping[int, Match], cases: Sequence[Case]) -> list[int]:
    """The other cases of this case's slice, domain and size."""
    asked, size = cases[number], len(matches[number].labels)
    return [
        other
        for other, match in matches.items()
        if other != number and len(match.labels) == size
        and (cases[other].slice, cases[other].domain) == (asked.slice, asked.domain)
    ]  # fmt: skip


def _slice(step: ObservedStep, prior: ImagePrior | None) -> dict[str, str | int]:
    loss = "features" if is_head(step.gradient) else "gradient"
    return {"prior": "smooth" if prior is None else "generator", "loss": loss, "rows": f"batch-{len(step.labels)}"}


def _public(knowledge: Knowledge, domain: str | None) -> DomainDataset:
    """Public images of the domain, or all of them where the domain has none or is unknown."""
    images = knowledge.public_images()
    own = images.of_domain(domain) if domain in images.domain_names and domain is not None else images
    return own if len(own) else images


def _answers(
    number: int,
    case: Case,
    step: ObservedStep,
    match: Match,
    public: DomainDataset,
    controls: Mapping[str, Tensor],
    where: Mapping[str, str | int],
) -> list[Answer]:
    """All answers of one case: label shares and images, and for a single image its label and rankings of candidates.

    Label shares come with those of public images as the baseline. Candidates are ranked by the direction of their own
    gradient, and by the edges of the reconstruction."""
    classes = len(public.class_names)
    estimate, without = shares_of(step.labels, classes), shares_of(public.labels, classes)
    answers: list[Answer] = [Proportions(case=number, slice=where, estimate=estimate, without=without)]
    single, pictures = len(step.labels) == 1, match.images.cpu()
    if single:
        answers.append(Labels(case=number, slice=where, predicted=step.labels, of="labels", classes=classes))
    if single and case.candidates is not None:
        shown = downsample(case.candidates, public.image_size)
        by = {
            "gradient": 1 - alignment(step, shown, int(step.labels[0])).unsqueeze(0),
            "outline": outline_distances(pictures, shown),
        }
        answers += [Ranking(case=number, slice={**where, "by": name}, distances=apart) for name, apart in by.items()]
    return [
        *answers, Reconstructions(case=number, slice=where, images=pictures, controls=controls, ordered=single)
    ]  # fmt: skip


def _controls(step: ObservedStep, public: DomainDataset, rng: torch.Generator) -> dict[str, Tensor]:
    """Controls: B0 the mean public image of the domain, B1 a random one, B2 for each label the one with the nearest
    gradient.

    B2 tests whether a search among public images would have sufficed. For a label without public images, any image may
    be chosen."""
    size, batch = public.image_size, len(step.labels)
    near: list[Tensor] = []
    for label in step.labels.unique().tolist():
        own = (public.labels == label).nonzero().flatten()
        own = own if len(own) else torch.arange(len(public))
        drawn = public.subset(
            own[torch.randperm(len(own), generator=child(rng, "alike", label))[:CANDIDATES_PER_LABEL]]
        )
        images = downsample(drawn, size)
        best = alignment(step, images, label).argsort(descending=True)
        wanted = int((step.labels == label).sum())
        near.append(images[best[torch.arange(wanted) % len(best)]])
    chosen = torch.randint(len(public), (batch,), generator=child(rng, "any"))
    return {
        "B0": downsample(public, size).mean(0, keepdim=True).expand(batch, -1, -1, -1),
        "B1": downsample(public.subset(chosen), size),
        "B2": torch.cat(near),
    }

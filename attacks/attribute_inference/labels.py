"""Label inference: the class of an image from its shared style, among images of one domain.

StableFDG (Remark 1) and CCST assume that a style carries the domain and not the label. The test: multinomial logistic
regression from one released style to the class, within a domain, against chance 1/K. The training set is labeled
auxiliary images. These are few, so images of the other domains, standardized within their domain, may be added with a
smaller weight. Features, weight and regularization are chosen by cross-validation on auxiliary images of the victim's
domain alone.

Where the adversary does not know that domain, every auxiliary image counts as foreign and the default setting is used.
Released rows are then standardized by their own mean and spread, which is valid for any domain."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar, Literal

import torch
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits
from torch import Tensor

from fdgsec.attacks.attribute_inference.control import planted_classes
from fdgsec.attacks.statistics.auxiliary_subsets import lacking, nested_subset
from fdgsec.attacks.statistics.defense_noise import ACCOUNTED, noisy_rows
from fdgsec.attacks.statistics.standardization import standardizing_scale
from fdgsec.data.domains import DomainDataset
from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Labels
from fdgsec.threats.attack import Answers, Case, PositiveControl, Question, TargetFacts
from fdgsec.threats.judging.groups import unavailable
from fdgsec.threats.option_checks import check_at_least

Features = Literal["std", "log std"]
SMALLEST_STD = 1e-6  # an undefended std has an eps inside its root, 1e-3 or more; rounding may leave 0
ASKED = ("released", "as_if_released")
FEW_ROWS = 30  # released rows that estimate their own domain's mean and spread better than other domains' images do


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Training options: mean with std or with log std, the weight of an image from another domain, and scikit-learn's
    C."""

    features: Features
    foreign: float
    strength: float


FEATURES: tuple[Features, ...] = ("std", "log std")
SETTINGS = tuple(
    Setting(features=features, foreign=foreign, strength=strength)
    for features, foreign, strength in product(FEATURES, (0.0, 0.1, 0.3), (0.01, 0.1, 1.0))
)
DEFAULT = Setting(features="log std", foreign=0.3, strength=0.1)


@dataclass(frozen=True, kw_only=True)
class _TrainingSet:
    """Labeled images: styles (N, C) each, `labels` (N,), `domains` (N,), and whether each is of the victim's domain
    (`own`).

    They are `copies` noisy versions of N / copies images, one set after the other."""

    mean: Tensor
    std: Tensor
    labels: Tensor
    domains: Tensor
    own: Tensor
    copies: int = 1


def _features(mean: Tensor, std: Tensor, kind: Features) -> Tensor:
    return torch.cat([mean, std.clamp_min(SMALLEST_STD).log() if kind == "log std" else std], dim=1)


def _center_and_scale(features: Tensor) -> tuple[Tensor, Tensor]:
    return features.mean(0), standardizing_scale(features)


def _standardize(training: _TrainingSet, kind: Features) -> Tensor:
    """Standardize every image by the images of its own domain."""
    features = _features(training.mean, training.std, kind)
    for domain in training.domains.unique():
        mine = training.domains == domain
        center, scale = _center_and_scale(features[mine])
        features[mine] = (features[mine] - center) / scale
    return features


def _fit(features: Tensor, labels: Tensor, weights: Tensor, strength: float) -> LogisticRegression:
    """Fit with equal total weight per class, because the measure is balanced accuracy."""
    kept = weights > 0
    features, labels, weights = features[kept], labels[kept], weights[kept]
    per_class = torch.zeros(int(labels.max()) + 1, dtype=torch.float64).index_add_(0, labels, weights)
    balanced = weights / per_class[labels] * weights.sum() / (per_class > 0).sum()
    model = LogisticRegression(C=strength, tol=1e-2, max_iter=2000)  # a finer tolerance took 3x the time for no gain
    model.fit(features.numpy(), labels.numpy(), sample_weight=balanced.numpy())
    return model


def _predict(model: LogisticRegression, features: Tensor) -> Tensor:
    return torch.from_numpy(model.predict(features.numpy())).to(torch.int64)


def _folds(labels: Tensor, folds: int, rng: torch.Generator) -> Tensor:
    """Assign the images of every class to the folds in turn, in random order."""
    fold = torch.empty_like(labels)
    dealt = 0
    for label in labels.unique():
        mine = (labels == label).nonzero().flatten()
        order = mine[torch.randperm(len(mine), generator=rng)]
        fold[order] = (torch.arange(len(mine)) + dealt) % folds
        dealt += len(mine)
    return fold


def _balanced_accuracy(labels: Tensor, predicted: Tensor) -> float:
    """Balanced accuracy over the classes that occur."""
    return sum(float((predicted[labels == label] == label).double().mean()) for label in labels.unique()) / len(
        labels.unique()
    )


@dataclass(frozen=True, kw_only=True)
class LabelInference:
    """Logistic regression from the style of a single image to its class, with one model per known domain.

    The test is made once more with each number of `auxiliary` labeled images of a domain."""

    name: ClassVar[str] = "label-inference"
    reads: ClassVar[frozenset[str]] = frozenset({"ImageStyles", "StyleBank"})
    needs: ClassVar[frozenset[str]] = frozenset({"encoder", "class names"})
    accounts_for: ClassVar[frozenset[str]] = ACCOUNTED
    per_class: int = 60
    folds: int = 5
    auxiliary: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_at_least(2, {"auxiliary": self.auxiliary})

    def plan(self, facts: TargetFacts) -> Sequence[Question]:
        """Ask for the released rows and for more rows of the same kind.

        Raises UsageError where rows are pooled over images, or the adversary knows no images."""
        facts.check_images()
        if "StyleStatistics" in facts.artifact_kinds and "ImageStyles" not in facts.artifact_kinds:
            raise UsageError("reads styles of single images; those of this target are pooled over a client's images")
        return [Question(kind="released"), Question(kind="as_if_released", per_class=self.per_class)]

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Predict the class of every row, with one model per domain that the adversary knows."""
        public = knowledge.public_images()
        answers = self._predicted(public, cases, knowledge, rng)
        for count in self.auxiliary:
            asked = {n: case for n, case in enumerate(cases) if not _too_few(public, case.domain, count)}
            few = nested_subset(public, count, child(rng, "fewer"))
            for answer in self._predicted(few, list(asked.values()), knowledge, child(rng, "fewer", count)):
                where = {**answer.slice, "auxiliary": count}
                answers.append(replace(answer, case=list(asked)[answer.case], slice=where))
        return answers

    def missing(self, cases: Sequence[Case], knowledge: Knowledge) -> Sequence[Measurement]:
        """Report the domains of which the adversary has fewer images than a test was asked for."""
        public, rows = knowledge.public_images(), list[Measurement]()
        for case in cases:
            for count in self.auxiliary if case.question in ASKED else ():
                reason = _too_few(public, case.domain, count)
                if reason:
                    where = {**case.slice, "rows": case.question, "auxiliary": count}
                    rows += unavailable(["balanced_accuracy", "accuracy"], where, reason)
        return rows

    def _predicted(
        self, public: DomainDataset, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator
    ) -> list[Labels]:
        """The predictions of models of `public` images alone."""
        models: dict[str | None, tuple[_TrainingSet, Setting, LogisticRegression]] = {}
        answers = []
        for number, case in enumerate(cases):
            if case.question not in ASKED:
                continue
            domain = case.domain
            if domain not in models:
                named = domain if domain in public.domain_names else None
                with threadpool_limits(limits=1):  # hundreds of small fits: a second thread only waits
                    training = _training(public, domain, knowledge, child(rng, "noise", str(named)))
                    models[domain] = self._model(training, child(rng, "folds", str(named)))
            training, setting, model = models[domain]
            rows = _standardize_released(training, case.released(), setting.features)
            answers.append(
                Labels(
                    case=number, predicted=_predict(model, rows), of="labels", classes=len(knowledge.class_names),
                    slice={"rows": case.question},
                )
            )  # fmt: skip
        return answers

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Permute the predictions within each case. The model reads one row at a time, so this equals permuting the
        rows."""
        answers = []
        for answer in self._predicted(knowledge.public_images(), cases, knowledge, rng):
            order = torch.randperm(len(answer.predicted), generator=child(rng, "exchange", answer.case))
            answers.append(replace(answer, predicted=answer.predicted[order]))
        return answers

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        """Four well-separated classes (fdgsec.attacks.attribute_inference.control)."""
        return planted_classes(knowledge, rng)

    def _model(self, training: _TrainingSet, rng: torch.Generator) -> tuple[_TrainingSet, Setting, LogisticRegression]:
        if len(training.labels.unique()) < 2:
            raise UsageError("label-inference needs public images of at least 2 classes; the adversary has fewer.")
        setting = self._choose_setting(training, rng)
        weights = torch.where(training.own, 1.0, setting.foreign).to(torch.float64)
        return (
            training,
            setting,
            _fit(_standardize(training, setting.features), training.labels, weights, setting.strength),
        )

    def _choose_setting(self, training: _TrainingSet, rng: torch.Generator) -> Setting:
        """Choose the setting with the best cross-validated balanced accuracy in the victim's domain; ties go to the
        first."""
        own = training.own.nonzero().flatten()
        several = training.labels[own[: len(own) // training.copies]].bincount() > 1  # in more folds than one
        if len(own) < 2 * self.folds or several.sum() < 2:
            return DEFAULT
        fold = _folds(training.labels[own[: len(own) // training.copies]], self.folds, rng).repeat(training.copies)
        standardized: Mapping[Features, Tensor] = {
            "std": _standardize(training, "std"),
            "log std": _standardize(training, "log std"),
        }
        alone = len(own) == len(training.labels)
        best, best_recall = DEFAULT, -1.0
        for setting in SETTINGS:
            if alone and setting.foreign:
                continue  # no other domain's images: the same model again
            predicted = torch.empty(len(own), dtype=torch.int64)
            for left_out in range(self.folds):
                weights = torch.where(training.own, 1.0, setting.foreign).to(torch.float64)
                weights[own[fold == left_out]] = 0.0
                model = _fit(standardized[setting.features], training.labels, weights, setting.strength)
                predicted[fold == left_out] = _predict(model, standardized[setting.features][own[fold == left_out]])
            recall = _balanced_accuracy(training.labels[own], predicted)
            if recall > best_recall:
                best, best_recall = setting, recall
        return best


def _training(public: DomainDataset, domain: str | None, knowledge: Knowledge, rng: torch.Generator) -> _TrainingSet:
    """Public images as training data, with `own` marking those of the victim's `domain`; none where it is unknown.

    A victim with several domains has a name that matches no domain: all images then count as its own, as of one domain.
    Where a defense acts on rows, its noise is added to them (fdgsec.attacks.statistics.defense_noise)."""
    mean, std, copies = noisy_rows(knowledge, public, *knowledge.statistics(public).style(unbiased=True), rng)
    labels, domains = public.labels.repeat(copies), public.domains.repeat(copies)
    own = torch.zeros(len(labels), dtype=torch.bool)
    if domain in public.domain_names:
        own = domains == public.domain_names.index(domain)
    elif domain is not None:
        domains, own = torch.zeros_like(domains), ~own
    return _TrainingSet(mean=mean, std=std, labels=labels, domains=domains, own=own, copies=copies)


def _too_few(public: DomainDataset, domain: str | None, count: int) -> str:
    """Why a model of `count` images of each domain cannot be made for a victim of `domain`; empty where it can."""
    if domain in public.domain_names:
        return lacking(public, str(domain), count)
    most = int(public.domains.bincount().max())
    return "" if most >= count else f"the adversary has {most} images of a domain or fewer, not {count}"


def _standardize_released(training: _TrainingSet, released: tuple[Tensor, Tensor], kind: Features) -> Tensor:
    """Standardize released rows by the public images of their domain, or by themselves where there are none.

    Fewer than FEW_ROWS rows are then standardized by all public images, whatever their domain."""
    rows = _features(*released, kind)
    public = _features(training.mean, training.std, kind)
    own = public[training.own]
    reference = own if len(own) else rows if len(rows) >= FEW_ROWS else public
    center, scale = _center_and_scale(reference)
    return (rows - center) / scale

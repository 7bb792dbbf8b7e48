"""Domain inference: the domain of an image, or of a whole client, from its shared style.

Styles are meant to carry the domain, so every method is expected to be vulnerable. The attack matters where the domain
is the secret, such as a hospital's scanner. A linear classifier on the statistic that averages
(fdgsec.federation.released_statistics; t = (mu, sigma^2 + mu^2) for CCST's styles) also applies to pooled releases,
because its score of a mean is the mean of its scores. For single images, the classifier is chosen by cross-validation
on auxiliary images."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC
from threadpoolctl import threadpool_limits
from torch import Tensor

from fdgsec.attacks.attribute_inference.control import planted_domains
from fdgsec.attacks.statistics.defense_noise import ACCOUNTED, COPIES, defense_noise_of_mean, noisy_rows
from fdgsec.attacks.statistics.standardization import standardizing_scale
from fdgsec.federation.artifacts import Amplitudes, StyleStatistics
from fdgsec.federation.released_statistics import PooledStyles
from fdgsec.nn.styles.channel_statistics import linear_statistic
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Labels
from fdgsec.threats.attack import Answers, Case, PositiveControl, Question, TargetFacts

FOLDS = 5


class _Classifier(Protocol):
    def fit(self, X: NDArray[np.float64], y: NDArray[np.int64]) -> object: ...

    def predict(self, X: NDArray[np.float64]) -> NDArray[np.int64]: ...


def _logistic(strength: float) -> Callable[[], _Classifier]:
    return lambda: cast(_Classifier, LogisticRegression(C=strength, tol=1e-2, max_iter=2000, class_weight="balanced"))


def _discriminant() -> _Classifier:
    return cast(_Classifier, LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"))


def _kernel() -> _Classifier:
    return cast(_Classifier, SVC(C=10.0, class_weight="balanced", random_state=0))


LINEAR_CLASSIFIERS: Mapping[str, Callable[[], _Classifier]] = {
    "logistic C=0.01": _logistic(0.01),
    "logistic C=0.1": _logistic(0.1),
    "discriminant": _discriminant,
}
ALL_CLASSIFIERS: Mapping[str, Callable[[], _Classifier]] = {**LINEAR_CLASSIFIERS, "kernel": _kernel}


@dataclass(frozen=True, kw_only=True)
class _FittedClassifier:
    """A fitted domain classifier, with the mean and scale that standardize its inputs."""

    center: Tensor
    scale: Tensor
    classifier: _Classifier

    def __call__(self, rows: Tensor) -> Tensor:
        x = (rows - self.center) / self.scale
        return torch.from_numpy(self.classifier.predict(x.numpy())).to(torch.int64)


@dataclass(frozen=True, kw_only=True)
class DomainInference:
    """Classify released rows and pooled styles by source domain."""

    name: ClassVar[str] = "domain-inference"
    reads: ClassVar[frozenset[str]] = frozenset({"ImageStyles", "StyleBank", "StyleStatistics", "Amplitudes"})
    needs: ClassVar[frozenset[str]] = frozenset({"encoder", "auxiliary"})
    accounts_for: ClassVar[frozenset[str]] = ACCOUNTED
    per_class: int = 60
    clients: int = 10
    records: int = 40

    def plan(self, facts: TargetFacts) -> Sequence[Question]:
        """Ask for the released styles, and for more rows or clients of the same kind to gain statistical power.

        Raises UsageError for spectra of single images."""
        if "Amplitudes" in facts.artifact_kinds:
            facts.check_pooled()
        if facts.artifact_kinds & {"StyleStatistics", "Amplitudes"} and "ImageStyles" not in facts.artifact_kinds:
            more = Question(kind="resampled_clients", count=self.clients, records=self.records)
        else:
            more = Question(kind="as_if_released", per_class=self.per_class)
        return [Question(kind="released"), more]

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Predict the domain of every row, as an index into `knowledge.domain_names`."""
        if knowledge.auxiliary is None:
            raise UsageError(
                "domain-inference needs auxiliary images of every domain; the adversary knows none (see --adversary)."
            )
        classes = len(knowledge.auxiliary.domains.unique())
        if classes < 2:
            raise UsageError(
                f"domain-inference needs auxiliary images of 2 domains or more; the adversary has {classes}."
            )
        models: dict[tuple[bool, int | None], _FittedClassifier] = {}
        answers = []
        for number, case in enumerate(cases):
            if case.question not in ("released", "as_if_released", "resampled_clients"):
                continue
            pooled = _is_pooled(case)
            kind = pooled, case.records if pooled and knowledge.defended is not None else None
            if kind not in models:
                models[kind] = _fit_classifier(knowledge, child(rng, "folds"), pooled=pooled, records=kind[1])
            predicted = models[kind](_classifier_input(case, knowledge, pooled=pooled))
            where = {"domain": "all", "rows": case.question}  # all domains are judged together
            answers.append(Labels(case=number, predicted=predicted, of="domains", classes=classes, slice=where))
        return answers

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Permute the predictions among all cases of a question. Within one domain a permutation would change
        nothing."""
        answers = [answer for answer in self.run(cases, knowledge, rng) if isinstance(answer, Labels)]
        exchanged: list[Labels] = []
        for question in dict.fromkeys(cases[answer.case].question for answer in answers):
            mine = [answer for answer in answers if cases[answer.case].question == question]
            predicted = torch.cat([answer.predicted for answer in mine])
            order = torch.randperm(len(predicted), generator=child(rng, "exchange", question))
            parts = predicted[order].split([len(answer.predicted) for answer in mine])
            exchanged += [replace(answer, predicted=part) for answer, part in zip(mine, parts, strict=True)]
        return exchanged

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        """Three well-separated domains (fdgsec.attacks.attribute_inference.control)."""
        return planted_domains(knowledge, rng)


def _is_pooled(case: Case) -> bool:
    """Whether the victim's release is pooled over images: sent as one style, or requested as a client of several
    images."""
    sent = case.views[0].artifact(case.victim)
    return case.question == "resampled_clients" or isinstance(sent, StyleStatistics | Amplitudes)


def _classifier_input(case: Case, knowledge: Knowledge, *, pooled: bool) -> Tensor:
    """The classifier's input (R, D): the statistic that averages for pooled releases, (mean, std) for single images."""
    if not pooled:
        return torch.cat(case.released(), dim=1)
    if isinstance(knowledge.released_statistic, PooledStyles) and case.views[0].styles(case.victim) is not None:
        return linear_statistic(*case.released())
    return knowledge.released_statistic.release(case.release(), images=case.records)


def _training(
    knowledge: Knowledge, rng: torch.Generator, *, pooled: bool, records: int | None
) -> tuple[Tensor, Tensor, int]:
    """Training rows (N, D), domains (N,), and the number of noisy copies of each public image, one set after the other.

    Where a defense acts, its noise is added to the rows. Noise on a mean of n images has n times the variance per
    image."""
    images = knowledge.public_images()
    found = knowledge.statistics(images)
    if not pooled:
        mean, std, copies = noisy_rows(knowledge, images, *found.style(unbiased=True), child(rng, "noise"))
        return torch.cat([mean, std], dim=1), images.domains.repeat(copies), copies
    rows, size = knowledge.released_statistic.records(found), records or len(images)
    nowhere = torch.zeros_like(rows[0])  # squares about 0, as the rows have them
    defense_noise = defense_noise_of_mean(knowledge, images, records=size, about=nowhere, rng=child(rng, "noise"))
    if defense_noise is None:
        return rows, images.domains, 1
    rows, spread = rows.repeat(COPIES, 1), (size * defense_noise.variance).sqrt()
    noise = torch.randn(rows.shape, generator=child(rng, "draws"), dtype=torch.float64)
    return rows + defense_noise.shift + spread * noise, images.domains.repeat(COPIES), COPIES


def _fit_classifier(
    knowledge: Knowledge, rng: torch.Generator, *, pooled: bool, records: int | None
) -> _FittedClassifier:
    """Train on auxiliary images with the classifier that has the fewest cross-validation errors."""
    rows, domains, copies = _training(knowledge, rng, pooled=pooled, records=records)
    center, scale = rows.mean(0), standardizing_scale(rows)
    x, y = ((rows - center) / scale).numpy(), domains.numpy()
    fold = (torch.randperm(len(y) // copies, generator=rng) % FOLDS).repeat(copies).numpy()
    with threadpool_limits(limits=1):  # many small fits: a second thread only waits
        best, fewest = "discriminant", len(y) + 1
        choices = LINEAR_CLASSIFIERS if pooled else ALL_CLASSIFIERS
        for name, make in choices.items():
            errors = 0
            for left_out in range(FOLDS):
                classifier = make()
                classifier.fit(x[fold != left_out], y[fold != left_out])
                errors += int((classifier.predict(x[fold == left_out]) != y[fold == left_out]).sum())
            if errors < fewest:
                best, fewest = name, errors
        classifier = choices[best]()
        classifier.fit(x, y)
    return _FittedClassifier(center=center, scale=scale, classifier=classifier)

"""The domain of an image, or of a whole client, from the style that was shared.

Styles are meant to carry the domain, so this is the baseline that every method must be expected to lose against; it
matters where the domain is the secret (a hospital's scanner). A linear classifier on the statistic that averages
(fdgsec.federation.released_statistics; t = (mu, sigma^2 + mu^2) for CCST's styles) reads pooled releases as well: its score of one is the mean of
its images' scores. Single images get a choice of classifiers, made by cross-validation on auxiliary images."""

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

from fdgsec.attacks.statistics.defense_noise import COPIES, defense_noise_of_mean, noisy_rows
from fdgsec.attacks.statistics.populations import pooled_release
from fdgsec.federation.artifacts import Amplitudes, ImageStyles, StyleStatistics
from fdgsec.nn.styles.channel_statistics import linear_statistic
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child
from fdgsec.threats.attack import Answers, Case, Knowledge, Labels, PositiveControl, Question, TargetFacts, Truth
from fdgsec.threats.planted import PlantedStatistics, lifted, planted_images, planted_moments, upload

FOLDS = 5


class _Classifier(Protocol):
    def fit(self, X: NDArray[np.float64], y: NDArray[np.int64]) -> object: ...

    def predict(self, X: NDArray[np.float64]) -> NDArray[np.int64]: ...


def _logistic(strength: float) -> Callable[[], _Classifier]:
    return lambda: cast(_Classifier, LogisticRegression(C=strength, tol=1e-2, max_iter=2000, class_weight="balanced"))


def _discriminant() -> _Classifier:
    return cast(_Classifier, LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"))


def _kernel() -> _Classifier:
    return cast(_Classifier, SVC(C=10.0, class_weight="balanced"))


LINEAR: Mapping[str, Callable[[], _Classifier]] = {
    "logistic C=0.01": _logistic(0.01),
    "logistic C=0.1": _logistic(0.1),
    "discriminant": _discriminant,
}
ANY: Mapping[str, Callable[[], _Classifier]] = {**LINEAR, "kernel": _kernel}


@dataclass(frozen=True, kw_only=True)
class _Model:
    """A fitted classifier of domains with the standardization of its training images."""

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
    per_class: int = 60
    clients: int = 10
    records: int = 40

    def plan(self, facts: TargetFacts) -> Sequence[Question]:
        """Ask for what was released, and for enough rows or clients of the same kind to prove anything.

        Raises UsageError for spectra of single images."""
        if "Amplitudes" in facts.artifact_kinds:
            facts.check_pooled()
        if facts.artifact_kinds & {"StyleStatistics", "Amplitudes"} and "ImageStyles" not in facts.artifact_kinds:
            more = Question(kind="resampled_clients", count=self.clients, records=self.records)
        else:
            more = Question(kind="as_if_released", per_class=self.per_class)
        return [Question(kind="released"), more]

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Predict the domain of every row; answers are numbers of `knowledge.domain_names`."""
        if knowledge.auxiliary is None:
            raise UsageError(
                "domain-inference needs auxiliary images of every domain; the adversary knows none (see --adversary)."
            )
        classes = len(knowledge.auxiliary.domains.unique())
        if classes < 2:
            raise UsageError(
                f"domain-inference needs auxiliary images of 2 domains or more; the adversary has {classes}."
            )
        models: dict[tuple[bool, int | None], _Model] = {}
        answers = []
        for number, case in enumerate(cases):
            if case.question not in ("released", "as_if_released", "resampled_clients"):
                continue
            pooled = _is_pooled(case)
            kind = pooled, case.records if pooled and knowledge.defended is not None else None
            if kind not in models:
                models[kind] = _fitted(knowledge, child(rng, "folds"), pooled=pooled, records=kind[1])
            predicted = models[kind](_shown(case, knowledge, pooled=pooled))
            together = {
                "domain": "all",
                "rows": case.question,
            }  # within one domain there would be nothing to tell apart
            answers.append(Labels(case=number, predicted=predicted, of="domains", classes=classes, slice=together))
        return answers

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Answer for rows exchanged among all cases of a request: within one domain nothing would change."""
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
        """Three domains two standard deviations apart in every channel: single images, and pooled clients of five."""
        domains, channels, auxiliary, shown, size = 3, 16, 90, 60, 5
        number = torch.arange(auxiliary + shown) % domains
        palette = 1.5 * torch.randn(domains, channels, generator=rng, dtype=torch.float64)
        mean = lifted(palette[number] + torch.randn(len(number), channels, generator=rng, dtype=torch.float64))
        variance = torch.rand(len(number), channels, generator=rng, dtype=torch.float64) + 0.5
        names = tuple(f"planted {letter}" for letter in "abc")
        images = planted_images(torch.zeros_like(number), number, class_names=("any",), domain_names=names)
        statistics = PlantedStatistics(moments=planted_moments(mean, variance))
        cases, truths = [], []
        for domain, name in enumerate(names):
            rows = auxiliary + (number[auxiliary:] == domain).nonzero().flatten()
            style = statistics.moments.rows(rows).style(unbiased=True)
            view = upload(ImageStyles(mean=style[0].float(), std=style[1].float()))
            cases.append(Case(question="as_if_released", views=(view,), victim="client:0", slice={"domain": name}))
            truths.append(Truth(domains=number[rows]))
            for part in rows.split(size):
                view = upload(pooled_release(statistics.moments.rows(part), knowledge.released_statistic))
                cases.append(
                    Case(question="resampled_clients", views=(view,), victim="client:0", slice={"domain": name})
                )
                truths.append(Truth(domains=number[part[:1]]))
        planted = replace(
            knowledge, statistics=statistics, auxiliary=images.subset(torch.arange(auxiliary)), domain_names=names,
            class_names=images.class_names,
        )  # fmt: skip
        return PositiveControl(
            cases=cases, truths=truths, knowledge=planted, measurement="balanced_accuracy", at_least=0.9
        )


def _is_pooled(case: Case) -> bool:
    """Whether the victim's rows are pooled over images: sent as one, or asked for as a client of several."""
    sent = case.views[0].artifact(case.victim)
    return case.question == "resampled_clients" or isinstance(sent, StyleStatistics | Amplitudes)


def _shown(case: Case, knowledge: Knowledge, *, pooled: bool) -> Tensor:
    """What is classified of a release, (R, D): the statistic that averages, or (mean, std) of single images."""
    if not pooled:
        return torch.cat(case.released(), dim=1)
    if case.views[0].styles(case.victim) is not None:
        return linear_statistic(*case.released())
    return knowledge.released_statistic.release(case.release(), images=case.records)


def _training(
    knowledge: Knowledge, rng: torch.Generator, *, pooled: bool, records: int | None
) -> tuple[Tensor, Tensor, int]:
    """Rows (N, D) and domains (N,) of public images, and of how many copies of each they are, one set after the other.

    Where a defense acts, rows have its noise: that on the mean of n images counts as n times as much on each."""
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


def _fitted(knowledge: Knowledge, rng: torch.Generator, *, pooled: bool, records: int | None) -> _Model:
    """Train on auxiliary images, by the kind of classifier that errs least on left-out ones."""
    rows, domains, copies = _training(knowledge, rng, pooled=pooled, records=records)
    spread = rows.std(0, correction=0)
    scale = spread.clamp_min(1e-3 * float(spread[spread > 0].median()))  # a constant coordinate must not be blown up
    center = rows.mean(0)
    x, y = ((rows - center) / scale).numpy(), domains.numpy()
    fold = (torch.randperm(len(y) // copies, generator=rng) % FOLDS).repeat(copies).numpy()
    with threadpool_limits(limits=1):  # many small fits: a second thread only waits
        best, fewest = "discriminant", len(y) + 1
        choices = LINEAR if pooled else ANY
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
    return _Model(center=center, scale=scale, classifier=classifier)

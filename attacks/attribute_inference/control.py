"""Positive controls of attribute inference: simulated clients whose releases reveal classes and domains by
construction.

Images are rows of a table of channel statistics: a color per class, and a far larger offset per domain. For property
inference they also have features of a small linear head. Pooled styles, prototypes and head gradients of the same
clients are what a server might receive."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fdgsec.attacks.attribute_inference.mixture_shares import shadow_rows, skewed_shares
from fdgsec.attacks.statistics.domain_populations import pooled_release
from fdgsec.data.domains import DomainDataset, shares_of
from fdgsec.federation.artifacts import Artifact, HeadGradient, ImageStyles, Prototypes
from fdgsec.federation.released_statistics import ReleasedStatistic
from fdgsec.federation.wire import SERVER, Message
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import Knowledge, View
from fdgsec.threats.attack import Case, PositiveControl, QuestionKind, Truth
from fdgsec.threats.positive_control_data import PlantedStatistics, lifted, planted_images, planted_moments, upload

CLASSES, CHANNELS, CLIENTS, IMAGES = 4, 16, 14, 20
PER_CLASS = 40
"""Images of each class and domain; half of them are auxiliary."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PlantedFederation:
    """A public method in which each client sends its style, its prototypes and its head gradient.

    `released_statistic` decides the style: pooled (CCST eq. 8) or a distribution (StableFDG eq. 3). `head` (CLASSES, d)
    gives the logits of `features` (images, d), a table like `statistics`."""

    statistics: PlantedStatistics
    released_statistic: ReleasedStatistic
    features: Tensor
    head: Tensor

    def __call__(self, data: Sequence[DomainDataset], rng: torch.Generator, *, rounds: int = 0) -> View:
        """Return the server's view of "client:1", "client:2", ..., which hold `data`. Nothing is trained."""
        return View(
            messages=tuple(
                Message(round=0, stage="share", sender=f"client:{number}", receiver=SERVER, artifact=artifact)
                for number, held in enumerate(data, 1)
                for artifact in (self.prototypes(held), self.gradient(held), self.style(held))
            )
        )

    def style(self, data: DomainDataset) -> Artifact:
        """The pooled release of these images under the released statistic."""
        return pooled_release(self.statistics(data), self.released_statistic)

    def prototypes(self, data: DomainDataset) -> Prototypes:
        """The mean feature of each class that the client holds."""
        held = torch.unique(data.labels)
        means = [self.features[data.rows[data.labels == label]].mean(0) for label in held]
        return Prototypes(features=torch.stack(means).float(), classes=held)

    def gradient(self, data: DomainDataset) -> HeadGradient:
        """The gradient of the mean cross-entropy in the head: (softmax - onehot)^T f / n."""
        features = self.features[data.rows]
        error = (features @ self.head.T).softmax(1) - torch.nn.functional.one_hot(data.labels, CLASSES).double()
        return HeadGradient(weight=(error.T @ features / len(features)).float(), bias=error.mean(0).float())


def planted_clients(
    knowledge: Knowledge, rng: torch.Generator, *, concentration: float, contrast: float = 1.0
) -> PositiveControl:
    """Simulate clients of each of two domains, and of both together, with shares drawn from Dirichlet(`concentration`).

    Classes lie about 15 `contrast` standard deviations of an image apart, in both domains. The attack must say which
    classes and domains each client holds. One image of 20 in another class moves the mean by .75."""
    domains = ("planted ink", "planted oil")
    labels = torch.arange(CLASSES).repeat_interleave(PER_CLASS).repeat(len(domains))
    domain = torch.arange(len(domains)).repeat_interleave(CLASSES * PER_CLASS)
    images = planted_images(labels, domain, class_names=tuple("abcd"), domain_names=domains)
    federation = _federation(labels, domain, contrast, knowledge.released_statistic, rng)
    auxiliary = torch.arange(len(labels)) % 2 == 0
    cases, truths = [], []
    for name in (*domains, "mixed"):
        pool = images.subset(~auxiliary) if name == "mixed" else images.subset(~auxiliary).of_domain(name)
        kinds, count = (pool.domains, len(domains)) if name == "mixed" else (pool.labels, CLASSES)
        child_rng = child(rng, "clients", name)
        shares = skewed_shares(
            CLIENTS, count, held=torch.arange(count), concentration=concentration, rng=child(child_rng, "shares")
        )
        rows = shadow_rows(kinds, shares, IMAGES, distinct=True, rng=child(child_rng, "rows"))
        held = [pool.subset(part) for part in rows]
        made: list[tuple[QuestionKind, list[Artifact]]] = [("mixtures", [federation.style(data) for data in held])]
        if name != "mixed":
            made.append(("mixtures", [federation.gradient(data) for data in held]))
            made.append(("released", [federation.prototypes(data) for data in held]))
        for question, artifacts in made:
            for data, artifact in zip(held, artifacts, strict=True):
                cases.append(_case(question, artifact, domain=name))
                truths.append(
                    Truth(
                        proportions=shares_of(data.labels, CLASSES), domain_shares=shares_of(data.domains, len(domains))
                    )
                )
    planted = replace(
        knowledge, statistics=federation.statistics, auxiliary=images.subset(auxiliary), class_names=images.class_names,
        domain_names=domains, simulate=federation,
    )  # fmt: skip
    return PositiveControl(cases=cases, truths=truths, knowledge=planted, measurement="auc", at_least=0.9)


def _federation(
    labels: Tensor, domain: Tensor, contrast: float, released_statistic: ReleasedStatistic, rng: torch.Generator
) -> PlantedFederation:
    size = len(labels)
    colors = 2 * torch.randn(CLASSES, CHANNELS, generator=rng, dtype=torch.float64)
    colors = colors + 4 * torch.eye(CLASSES, dtype=torch.float64).repeat_interleave(CHANNELS // CLASSES, 1)
    palette = 20 * torch.randn(2, CHANNELS, generator=rng, dtype=torch.float64)
    noise = torch.randn(size, CHANNELS, generator=rng, dtype=torch.float64)
    variance = 0.5 + torch.rand(size, CHANNELS, generator=rng, dtype=torch.float64)
    features = torch.randn(size, CHANNELS, generator=rng, dtype=torch.float64).abs()
    mean = lifted(contrast * colors[labels] + palette[domain] + noise)
    return PlantedFederation(
        statistics=PlantedStatistics(moments=planted_moments(mean, variance)),
        released_statistic=released_statistic,
        features=features,
        head=0.05 * torch.randn(CLASSES, CHANNELS, generator=rng, dtype=torch.float64),
    )


def _case(question: QuestionKind, artifact: Artifact, *, domain: str) -> Case:
    message = Message(round=0, stage="share", sender="client:0", receiver=SERVER, artifact=artifact)
    return Case(
        question=question, views=(View(messages=(message,)),), victim="client:0", records=IMAGES, domain=domain,
        slice={"domain": domain, "n_per_client": IMAGES},
    )  # fmt: skip


def planted_domains(knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
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
            cases.append(Case(question="resampled_clients", views=(view,), victim="client:0", slice={"domain": name}))
            truths.append(Truth(domains=number[part[:1]]))
    planted = replace(
        knowledge, statistics=statistics, auxiliary=images.subset(torch.arange(auxiliary)), domain_names=names,
        class_names=images.class_names,
    )  # fmt: skip
    return PositiveControl(cases=cases, truths=truths, knowledge=planted, measurement="balanced_accuracy", at_least=0.9)


def planted_classes(knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
    """Four classes whose images differ in every channel's mean by two of its standard deviations."""
    classes, channels, auxiliary, released = 4, 16, 80, 80
    labels = torch.arange(auxiliary + released) % classes
    colors = 1.5 * torch.randn(classes, channels, generator=rng, dtype=torch.float64)
    mean = colors[labels] + torch.randn(len(labels), channels, generator=rng, dtype=torch.float64)
    variance = torch.rand(len(labels), channels, generator=rng, dtype=torch.float64) + 0.5
    images = planted_images(labels, torch.zeros_like(labels), class_names=tuple("abcd"), domain_names=("planted",))
    statistics = PlantedStatistics(moments=planted_moments(mean, variance))
    shown = images.subset(auxiliary + torch.randperm(released, generator=rng))
    style = statistics(shown).style(unbiased=True)
    case = Case(
        question="as_if_released", victim="client:0", domain="planted", slice={"domain": "planted"},
        views=(upload(ImageStyles(mean=style[0].float(), std=style[1].float())),),
    )  # fmt: skip
    planted = replace(
        knowledge, statistics=statistics, auxiliary=images.subset(torch.arange(auxiliary)),
        class_names=images.class_names, domain_names=images.domain_names,
    )  # fmt: skip
    truth = Truth(labels=shown.labels, domains=shown.domains)
    return PositiveControl(
        cases=(case,), truths=(truth,), knowledge=planted, measurement="balanced_accuracy", at_least=0.9
    )

"""Positive control for what clients hold: clients with skewed shares whose releases tell them by construction.

Every image is a row of channel statistics (a color for its class, a far greater one for its domain) and of features of a
small linear head. Pooled styles, prototypes and head gradients of the same clients are what a server might receive."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fdgsec.attacks.attribute_inference.mixture_shares import shadow_rows, skewed_shares
from fdgsec.attacks.statistics.populations import pooled_release
from fdgsec.data.domains import DomainDataset, shares_of
from fdgsec.federation.artifacts import Artifact, HeadGradient, Prototypes
from fdgsec.federation.released_statistics import ReleasedStatistic
from fdgsec.federation.wire import SERVER, Message
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import Knowledge, View
from fdgsec.threats.attack import Case, PositiveControl, QuestionKind, Truth
from fdgsec.threats.planted import PlantedStatistics, lifted, planted_images, planted_moments

CLASSES, CHANNELS, CLIENTS, IMAGES = 4, 16, 14, 20
PER_CLASS = 40
"""Images of each class and domain in the world; half of them are auxiliary."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PlantedFederation:
    """A public method that sends, of each client, its style, its prototypes and its head gradient.

    `reading` decides what a style is: pooled (CCST eq. 8), or a distribution (StableFDG eq. 3). `head` (CLASSES, d) gives the logits of features (images, d), which are a table like the statistics."""

    statistics: PlantedStatistics
    released_statistic: ReleasedStatistic
    features: Tensor
    head: Tensor

    def __call__(self, data: Sequence[DomainDataset], rng: torch.Generator, *, rounds: int = 0) -> View:
        """Show a server what "client:1", "client:2", ... send, who hold `data`; no round of it trains anything."""
        return View(
            messages=tuple(
                Message(round=0, stage="share", sender=f"client:{number}", receiver=SERVER, artifact=artifact)
                for number, held in enumerate(data, 1)
                for artifact in (self.prototypes(held), self.gradient(held), self.style(held))
            )
        )

    def style(self, data: DomainDataset) -> Artifact:
        """What the reading reads as the mean over these images."""
        return pooled_release(self.statistics(data), self.released_statistic)

    def prototypes(self, data: DomainDataset) -> Prototypes:
        """The mean feature of each class that is held."""
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
    """Clients of each of two domains, and of both together, whose shares are Dirichlet(`concentration`).

    Classes lie about 15 `contrast` standard deviations of an image apart, in both domains alike. What is asked is of
    which classes and domains each client holds any; one image of 20 in another class moves the mean by .75."""
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
        coins = child(rng, "clients", name)
        shares = skewed_shares(
            CLIENTS, count, held=torch.arange(count), concentration=concentration, rng=child(coins, "shares")
        )
        rows = shadow_rows(kinds, shares, IMAGES, distinct=True, rng=child(coins, "rows"))
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

"""Positive control of membership inference: Gaussian records, released in each way, with known members."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fdgsec.attacks.statistics.domain_populations import pooled_release
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import Artifact, ImageStyles, StyleStatistics
from fdgsec.federation.released_statistics import PooledStyles
from fdgsec.federation.wire import SERVER, Message
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.threats.adversary import Knowledge, View
from fdgsec.threats.attack import Case, PositiveControl, QuestionKind, Truth
from fdgsec.threats.positive_control_data import PlantedStatistics, planted_records, upload

CLIENTS, SIZE, CHANNELS, AUXILIARY = 6, 10, 128, 300
SHOWN = 4
"""Rows that a client of SIZE releases one by one."""


def planted_members(knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
    """Six clients of ten records in 256 dimensions: d' is about 5, an AUC of almost one.

    Each releases the mean of its records under the target's released statistic. Where the adversary can run the target,
    clients also release rows, and means over two clusters, which it can simulate too."""
    count = AUXILIARY + CLIENTS * 2 * SIZE
    moments, images = planted_records(count, CHANNELS, rng)
    clients = [_client(moments, images, AUXILIARY + number * 2 * SIZE, rng) for number in range(CLIENTS)]
    simulated = TwoClusters(moments=moments)
    cases = [
        c.asked("resampled_clients", "mean", pooled_release(c.records, knowledge.released_statistic)) for c in clients
    ]
    if knowledge.simulate is not None:
        shown = torch.arange(SHOWN)
        cases += [c.asked("rounds", "rows", _rows(c.records.rows(shown)), shown=SHOWN) for c in clients]
        if isinstance(knowledge.released_statistic, PooledStyles):
            cases += [c.asked("rounds", "clusters", simulated.release(c.own)) for c in clients]
    planted = replace(
        knowledge, statistics=PlantedStatistics(moments=moments), domain_names=("planted",),
        auxiliary=images.subset(torch.arange(AUXILIARY)), simulate=None if knowledge.simulate is None else simulated,
    )  # fmt: skip
    return PositiveControl(
        cases=[case for case, _ in cases], truths=[truth for _, truth in cases], knowledge=planted, measurement="auc",
        at_least=0.9,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class _Client:
    """A client with its `own` images and their moments `records`, and the `candidates`.

    `order` (2 SIZE,) is each candidate's position among the client's images, followed by others."""

    own: DomainDataset
    records: Moments
    candidates: DomainDataset
    order: Tensor

    def asked(
        self, question: QuestionKind, release: str, artifact: Artifact, *, shown: int = SIZE
    ) -> tuple[Case, Truth]:
        """The question about one release, in which the first `shown` images are members."""
        case = Case(
            question=question, views=(upload(artifact),), victim="client:0", records=SIZE, domain="planted",
            slice={"domain": "planted", "n_per_client": SIZE, "release": release}, candidates=self.candidates,
        )  # fmt: skip
        return case, Truth(members=self.order < shown)


def _client(moments: Moments, images: DomainDataset, start: int, rng: torch.Generator) -> _Client:
    order = torch.randperm(2 * SIZE, generator=rng)
    own = torch.arange(start, start + SIZE)
    return _Client(
        own=images.subset(own), records=moments.rows(own), candidates=images.subset(start + order), order=order
    )


def _rows(found: Moments) -> ImageStyles:
    mean, std = found.style(unbiased=True)
    return ImageStyles(mean=mean.float(), std=std.float())


@dataclass(frozen=True, kw_only=True, eq=False)
class TwoClusters:
    """A method that averages the styles of two clusters, odd images and even ones, with equal weight."""

    moments: Moments

    def release(self, images: DomainDataset) -> StyleStatistics:
        """The release of a client that holds `images`."""
        odd = images.rows % 2 == 1
        clusters = [self.moments.rows(images.rows[part]).pooled() for part in (odd, ~odd) if bool(part.any())]
        styles = [cluster.style(unbiased=False) for cluster in clusters]
        mean, std = (torch.cat([style[half] for style in styles]).mean(0).float() for half in (0, 1))
        return StyleStatistics(mean=mean, std=std)

    def __call__(self, data: Sequence[DomainDataset], rng: torch.Generator, *, rounds: int = 0) -> View:
        """The view of a server that received the releases of "client:1", "client:2", ... that hold `data`."""
        return View(
            messages=tuple(
                Message(
                    round=0, stage="share", sender=f"client:{number}", receiver=SERVER, artifact=self.release(images)
                )
                for number, images in enumerate(data, 1)
            )
        )

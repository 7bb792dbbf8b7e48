"""What FISC's server would publish from clients' vectors as they are given, and whose numbers it holds.

The interpolation style (eq. 3; Algorithm 1, line 16) is the coordinate-wise median of FINCH's clusters' means. The
median of an odd number of means, and the lower of two middle ones, is the mean of one cluster in each coordinate, and
names that cluster to whoever knows the means. It is a client's own number only where the cluster's members agree:
FINCH leaves nobody alone, because every row is linked to its first neighbor (Sarfraz et al. 2019, eq. 1)."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from fdgsec.attacks.interpolation_leakage.cohort_tracing import PublicRule
from fdgsec.federation.artifacts import StyleStatistics
from fdgsec.federation.wire import SERVER, Message
from fdgsec.nn.styles.finch import cluster_means
from fdgsec.threats.adversary import Knowledge, View
from fdgsec.threats.answers import PublishedMedian
from fdgsec.threats.attack import Case, PositiveControl, Truth

PARTITIONS: tuple[Literal["first", "last"], ...] = ("first", "last")
MEDIANS: tuple[Literal["lower", "mean of middle"], ...] = ("lower", "mean of middle")
BLOBS, COPIES, CHANNELS = 3, 4, 16
"""The positive control: groups of clients with the same vector, clients in each, and channels."""


def published_medians(cases: Sequence[Case]) -> list[PublishedMedian]:
    """The style of every rule for the clients of each case of given vectors.

    The two medians differ for an even number of clusters only; the second is left out where there is an odd one."""
    answers = []
    for number, case in enumerate(cases):
        if case.question != "given":
            continue
        vectors = _vectors(case)
        for partition in PARTITIONS:
            for median in MEDIANS:
                found = _published(number, vectors, PublicRule(partition=partition, median=median))
                if median == "lower" or int(found.labels.max()) % 2 == 1:
                    answers.append(found)
    return answers


def _vectors(case: Case) -> Tensor:
    """The clients' vectors (N, 2C), means then stds, in the precision in which they were given."""
    sent = [m.artifact for m in case.views[0].messages if isinstance(m.artifact, StyleStatistics)]
    return torch.stack([torch.cat([style.mean, style.std]) for style in sent])


def _published(number: int, vectors: Tensor, rule: PublicRule) -> PublishedMedian:
    """Publish by `rule` and compare bit by bit, in the vectors' own precision; clusters are averaged in float64."""
    exact = vectors.double()
    labels = rule.clusters(exact)
    means = cluster_means(exact, labels).to(vectors)
    style = rule(exact).to(vectors)
    return PublishedMedian(
        case=number, labels=labels, style=style, of_clients=vectors == style, of_clusters=means == style,
        varies=(vectors != vectors[0]).any(0), slice={"partition": str(rule.partition), "median": rule.median},
    )  # fmt: skip


def planted_copies(knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
    """Three groups of four clients with the same vector each: every published number is some client's own."""
    centers = 1 + 3 * torch.rand(BLOBS, 2 * CHANNELS, generator=rng)
    sent = [
        Message(
            round=0, stage="share", sender=f"client:{number}", receiver=SERVER,
            artifact=StyleStatistics(mean=center[:CHANNELS].clone(), std=center[CHANNELS:].clone()),
        )
        for number, center in enumerate(centers.repeat(COPIES, 1))
    ]  # fmt: skip
    case = Case(question="given", views=(View(messages=tuple(sent)),), victim=SERVER, slice={"clients": "planted"})
    return PositiveControl(
        cases=[case], truths=[Truth()], knowledge=knowledge, measurement="verbatim_fraction", at_least=1.0
    )

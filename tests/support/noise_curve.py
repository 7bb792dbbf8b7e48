"""How far noise on a release pushes back the test for a record in a mean, on Gaussian records whose law is known.

Noise is given in standard deviations of a record along a coordinate (whitened units), and beside them in those of the
release itself, 1/sqrt(n): what matters is the latter (`fdgsec.attacks.statistics.tracing.separation`)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fdgsec.attacks.statistics.tracing import TracingTest, gaussian_auc, separation, standardized_score
from fdgsec.metrics.interval import Interval
from fdgsec.metrics.intervals import cluster_auc_bootstrap
from fdgsec.metrics.roc import auc, tpr_at_fpr
from fdgsec.runtime.random_streams import child


@dataclass(frozen=True, kw_only=True)
class NoisePoint:
    """Success at one level of `noise`: the AUC averaged over clients with its `interval`, and what the law predicts.

    `tpr` is that at 1% false positives, None where too few non-members resolve it; `in_release_sds` is the noise in units
    of the release's own standard deviation between clients."""

    noise: float
    in_release_sds: float
    auc: float
    interval: Interval
    theory: float
    tpr: float | None


def noise_curve(
    noises: Sequence[float],
    *,
    dimension: int,
    records: int,
    clients: int,
    rng: torch.Generator,
    candidates: int | None = None,
    test: TracingTest = standardized_score,
) -> list[NoisePoint]:
    """Attack `clients` fresh clients of `records` standard Gaussian records (n, `dimension`) at each of `noises`.

    A client is asked about `candidates` of its records (all by default) and as many others. The default test ranks alike
    whatever the noise. Raises ValueError for fewer than two clients, or more candidates than records."""
    shown = records if candidates is None else candidates
    if clients < 2 or not 0 < shown <= records:
        raise ValueError(f"a curve needs 2 clients and 1..{records} candidates; got {clients} and {shown}.")
    return [
        _point(noise, dimension, records, clients, shown, test, child(rng, number))
        for number, noise in enumerate(noises)
    ]


def _point(
    noise: float, dimension: int, records: int, clients: int, shown: int, test: TracingTest, rng: torch.Generator
) -> NoisePoint:
    inside, outside = [], []
    for _ in range(clients):
        own = torch.randn(records, dimension, generator=rng, dtype=torch.float64)
        others = torch.randn(shown, dimension, generator=rng, dtype=torch.float64)
        release = own.mean(0) + noise * torch.randn(dimension, generator=rng, dtype=torch.float64)
        scores = test(release, torch.cat([own[:shown], others]), records=records)
        inside.append(scores[:shown])
        outside.append(scores[shown:])
    owner = torch.arange(clients).repeat_interleave(shown)
    hits, misses = torch.cat(inside), torch.cat(outside)
    interval = cluster_auc_bootstrap(hits, misses, pos_clusters=owner, neg_clusters=owner, rng=child(rng, "interval"))
    return NoisePoint(
        noise=noise, in_release_sds=noise * math.sqrt(records),
        auc=sum(auc(a, b) for a, b in zip(inside, outside, strict=True)) / clients, interval=interval,
        theory=gaussian_auc(separation(dimension, records=records, noise=noise)), tpr=tpr_at_fpr(hits, misses, fpr=0.01),
    )  # fmt: skip

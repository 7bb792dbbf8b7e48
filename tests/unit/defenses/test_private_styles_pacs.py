"""What an adversary who knows clip, units and noise wins against private-styles on PACS: `pytest -m data -s` prints it.

Pooled styles of 128-px images under `mini`; 150 auxiliary images of each source domain, clients of the others. Both tests
are the likelihood ratios in the coordinates in which noise is isotropic: of a record in a noisy mean, and of two noisy
releases having one mean."""

import math
import os
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist

import pytest
import torch
from torch import Tensor

from fdgsec.data.catalog import load_dataset, locate
from fdgsec.federation.artifacts import StyleStatistics
from fdgsec.federation.public_clip_bounds import Frame, Reference, public_images
from fdgsec.federation.released_statistics import PooledStyles
from fdgsec.metrics.roc import auc
from fdgsec.nn.styles.image_styles import prepare_statistics, statistics
from fdgsec.privacy.clipping import Ball
from fdgsec.privacy.mechanisms import noise_multiplier
from fdgsec.runtime.errors import DatasetNotFoundError
from fdgsec.runtime.random_streams import stream

pytestmark = [pytest.mark.data, pytest.mark.slow]
DELTA, CLIENTS = 1e-5, 30
READ = PooledStyles()


@lru_cache(maxsize=1)
def pacs() -> list[Tensor]:
    """t of up to 1,000 images of each source domain, in an order that says nothing."""
    if "FDGSEC_DATA" not in os.environ:
        pytest.skip("FDGSEC_DATA is not set: no real PACS to read")
    try:
        locate("pacs")
    except DatasetNotFoundError as missing:
        pytest.skip(str(missing))
    images = load_dataset("pacs", image_size=128, per_domain=1000)
    prepare_statistics("mini", images, reuse=True)
    found = []
    for name in ("art_painting", "cartoon", "photo"):
        t = READ.records(statistics("mini", images.of_domain(name)))
        found.append(t[torch.randperm(len(t), generator=stream(7, "world", name))])
    return found


@lru_cache(maxsize=1)
def frame() -> Frame:
    public = READ.records(statistics("mini", public_images((128, 128))))
    about = public.mean(0)
    return Frame(released_statistic=READ, about=about, region=Reference().ball(READ.about(public, about)))


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """Pooled styles of `count` images each under an epsilon."""

    epsilon: float
    count: int

    @cached_property
    def noise(self) -> float:
        return noise_multiplier(self.epsilon, DELTA) * frame().region.diameter / self.count

    def read(self, mean: Tensor, rng: torch.Generator) -> Tensor:
        """Release a mean of coordinates, and read the float32 artifact back."""
        noisy = mean + self.noise * torch.randn(mean.shape, generator=rng, dtype=torch.float64)
        channels = torch.zeros(len(mean) // 2)
        made = frame().artifact(noisy, like=StyleStatistics(mean=channels, std=channels), images=self.count)
        ball = frame().region
        assert isinstance(ball, Ball)
        return (READ.about(READ.release(made)[0], frame().about) - ball.center) / ball.scale


@lru_cache(maxsize=1)
def coordinates() -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Auxiliary images and the others of each domain, and the covariance of images about their domain's mean."""
    known = [frame().coordinates(t[:150]) for t in pacs()]
    rest = [frame().coordinates(t[150:]) for t in pacs()]
    residuals = torch.cat([rows - rows.mean(0) for rows in known])
    return known, rest, residuals.T @ residuals / len(residuals)


def membership(mechanism: Mechanism) -> tuple[float, float, float]:
    """The AUC over 3 x 30 clients with its standard error, and the true-positive rate at 1% false positives."""
    known, rest, covariance = coordinates()
    n, eye = mechanism.count, torch.eye(len(covariance), dtype=torch.float64)
    inverse = torch.linalg.inv(covariance + n * mechanism.noise**2 * eye)
    areas, hits, misses = list[float](), list[Tensor](), list[Tensor]()
    for domain, (auxiliary, pool) in enumerate(zip(known, rest, strict=True)):
        for client in range(CLIENTS):
            rng = stream(7, "attack", "membership", domain, client)
            order = torch.randperm(len(pool), generator=rng)
            asked = min(150, n, len(pool) - n)
            u = mechanism.read(pool[order[:n]].mean(0), rng) - auxiliary.mean(0)
            v = pool[torch.cat([order[:asked], order[n : n + asked]])] - auxiliary.mean(0)
            scores = v @ (inverse @ u) - ((v @ inverse) * v).sum(1) / (2 * n)
            areas.append(auc(scores[:asked], scores[asked:]))
            hits.append(scores[:asked])
            misses.append(scores[asked:])
    rate = float((torch.cat(hits) > torch.cat(misses).quantile(0.99)).double().mean())
    spread = torch.tensor(areas)
    return float(spread.mean()), float(spread.std()) / math.sqrt(len(areas)), rate


def linkage(mechanism: Mechanism, *, repeats: int = 5) -> float:
    """The share of 30 clients, ten per domain, whose second noisy release is found by their first one."""
    known, rest, covariance = coordinates()
    means = torch.stack([rows.mean(0) for rows in known])
    apart = means - means.mean(0)
    values, directions = torch.linalg.eigh(covariance / mechanism.count + apart.T @ apart / len(means))
    total = values.clamp_min(0) + mechanism.noise**2
    rho = values.clamp_min(0) / total
    right = 0
    for repeat in range(repeats):
        rng = stream(7, "attack", "linkage", repeat)
        clients = [
            rest[k % 3][torch.randint(len(rest[k % 3]), (mechanism.count,), generator=rng)].mean(0)
            for k in range(CLIENTS)
        ]
        a, b = (
            (torch.stack([mechanism.read(mean, rng) for mean in clients]) - means.mean(0)) @ directions / total.sqrt()
            for _ in range(2)
        )
        lengths = [(z.square() * (rho**2 / (2 * (1 - rho**2)))).sum(1) for z in (a, b)]
        ratio = (a * (rho / (1 - rho**2))) @ b.T - lengths[0].unsqueeze(1) - lengths[1]
        right += int((ratio.argmax(1) == torch.arange(CLIENTS)).sum())
    return right / (CLIENTS * repeats)


@pytest.mark.nightly
@pytest.mark.parametrize("count", [40, 130, 500])
@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_membership_stays_within_what_the_guarantee_allows(epsilon: float, count: int):
    mu, normal = 1 / noise_multiplier(epsilon, DELTA), NormalDist()
    most, most_rate = normal.cdf(mu / math.sqrt(2)), normal.cdf(normal.inv_cdf(0.01) + mu)

    area, error, rate = membership(Mechanism(epsilon=epsilon, count=count))

    print(
        f"epsilon {epsilon:g}, n {count}: auc {area:.3f} +- {error:.3f} (<= {most:.3f}), tpr {rate:.4f} (<= {most_rate:.4f})"
    )
    assert area - 3 * error <= min(most, 0.6)  # without noise: .84, .68, .56
    assert rate <= most_rate + 0.01


@pytest.mark.parametrize(
    ("epsilon", "count", "least", "most"),
    [(8.0, 18, 0.0, 0.2), (8.0, 58, 0.3, 0.7), (8.0, 170, 0.6, 0.95), (8.0, 700, 0.9, 1.0), (8.0, 1670, 0.95, 1.0),
     (1.0, 58, 0.0, 0.2), (1.0, 170, 0.0, 0.2), (1.0, 700, 0.1, 0.4), (1.0, 1670, 0.15, 0.5)],
)  # fmt: skip
def test_protecting_records_does_not_make_clients_unlinkable(epsilon: float, count: int, least: float, most: float):
    found = linkage(Mechanism(epsilon=epsilon, count=count))

    print(f"epsilon {epsilon:g}, n {count}: linked {found:.3f}, chance .033, .1 within a known domain")
    assert least <= found <= most  # five times thirty clients: +- .08

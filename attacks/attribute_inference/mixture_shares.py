"""Class or domain shares of a client from its pooled release: linear scores, shadow clients and share estimators.

A linear score of a mean is the mean of the images' scores, so a ridge regression from images to their kinds (classes or
domains) also applies to a pooled release. The map from a client's scores to its shares is learned on shadow clients of
known shares (Ganju et al., CCS 2018), as in adjusted counting (Forman, "Quantifying counts and costs via
classification", 2008). float64 throughout."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fdgsec.runtime.random_streams import integer_seed

STRENGTHS = tuple(10.0**power for power in range(-4, 4))
"""Candidate ridge penalties, in units of the mean squared singular value."""
SMALLEST_SCALE = 1e-3  # of the median coordinate's spread: a constant coordinate must not be blown up


@dataclass(frozen=True, kw_only=True, eq=False)
class Scorer:
    """Linear scores (..., K) of a statistic (..., D): offset + ((t - center) / scale) weights."""

    center: Tensor
    scale: Tensor
    weights: Tensor
    offset: Tensor

    def __call__(self, statistics: Tensor) -> Tensor:
        """Score statistics of images, or means of them."""
        return self.offset + ((statistics.to(torch.float64) - self.center) / self.scale) @ self.weights

    def moved(self, by: Tensor) -> Tensor:
        """The change of the scores (..., K) where the statistics change by `by` (..., D)."""
        moved: Tensor = (by / self.scale) @ self.weights
        return moved


def fit_scorer(records: Tensor, kinds: Tensor, count: int) -> tuple[Scorer, Tensor]:
    """Fit a ridge regression from the statistics (n, D) of images to their `kinds` (n,) int64, out of `count`.

    Returns the scorer and the leave-one-out scores (n, count): y - (y - fit) / (1 - h) with the leverage h. The penalty
    has the least leave-one-out squared error. Raises ValueError for fewer than three images, or where nothing
    varies."""
    x = records.to(torch.float64)
    spread = x.std(0, correction=0) if len(x) > 2 else torch.zeros(1)
    if not bool((spread > 0).any()):
        raise ValueError(f"scores need three records or more that differ; got {tuple(records.shape)}.")
    center, scale = x.mean(0), spread.clamp_min(SMALLEST_SCALE * float(spread[spread > 0].median()))
    answers = torch.nn.functional.one_hot(kinds, count).to(torch.float64)
    offset = answers.mean(0)
    left, singular, right = torch.linalg.svd((x - center) / scale, full_matrices=False)
    along = left.T @ (answers - offset)
    best: tuple[float, Tensor, Tensor] | None = None
    for strength in STRENGTHS:
        penalty = strength * float(singular.square().mean())
        kept = singular.square() / (singular.square() + penalty)
        leverage = ((left.square() @ kept) + 1 / len(x)).clamp(max=1 - 1e-6).unsqueeze(1)
        left_out = answers - (answers - offset - left @ (kept.unsqueeze(1) * along)) / (1 - leverage)
        error = float((answers - left_out).square().sum())
        if best is None or error < best[0]:
            weights = right.T @ ((singular / (singular.square() + penalty)).unsqueeze(1) * along)
            best = error, weights, left_out
    assert best is not None
    return Scorer(center=center, scale=scale, weights=best[1], offset=offset), best[2]


def skewed_shares(clients: int, count: int, *, held: Tensor, concentration: float, rng: torch.Generator) -> Tensor:
    """Draw shares (clients, count) from a symmetric Dirichlet distribution over the kinds `held`; all others get 0."""
    generator = np.random.default_rng(integer_seed(rng))
    drawn = torch.from_numpy(generator.dirichlet([concentration] * len(held), size=clients))
    shares = torch.zeros(clients, count, dtype=torch.float64)
    shares[:, held] = drawn
    return shares


def shadow_rows(kinds: Tensor, shares: Tensor, images: int, *, distinct: bool, rng: torch.Generator) -> Tensor:
    """Draw the `images` of each shadow client by its `shares` (S, K) from records of `kinds` (n,): (S, images).

    With `distinct`, draw without replacement. Otherwise each client draws from its own Bayesian bootstrap resample
    (Rubin, 1981), which accounts for the uncertainty of few records."""
    record_weights = torch.ones(len(shares), len(kinds), dtype=torch.float64)
    if not distinct:
        record_weights = -torch.rand(record_weights.shape, generator=rng, dtype=torch.float64).clamp_min(1e-300).log()
    total = torch.zeros_like(shares).index_add_(1, kinds, record_weights)
    weight = shares[:, kinds] * record_weights / total[:, kinds] + 1e-12
    return torch.multinomial(weight, images, replacement=not distinct, generator=rng)


@dataclass(frozen=True, kw_only=True, eq=False)
class ShareEstimator:
    """The best linear estimate of shares from a client's mean scores: prior + (scores - center) slope."""

    prior: Tensor
    center: Tensor
    slope: Tensor

    def __call__(self, scores: Tensor) -> Tensor:
        """Estimate shares (..., K) that sum to 1 but may be negative; `project_to_simplex` projects them."""
        return self.prior + (scores - self.center) @ self.slope


def fit_share_estimator(scores: Tensor, shares: Tensor) -> ShareEstimator:
    """Regress the `shares` (S, K) of shadow clients on their mean `scores` (S, K)."""
    center, prior = scores.mean(0), shares.mean(0)
    slope = torch.linalg.pinv(scores - center, rtol=1e-8) @ (shares - prior)
    return ShareEstimator(prior=prior, center=center, slope=slope)


def project_to_simplex(values: Tensor) -> Tensor:
    """Project (..., K) onto the simplex: nonnegative, summing to 1 (Duchi et al., ICML 2008, figure 1)."""
    ordered = values.sort(-1, descending=True).values
    place = torch.arange(1, values.shape[-1] + 1, dtype=values.dtype)
    above = ordered.cumsum(-1) - 1
    kept = (ordered - above / place > 0).sum(-1, keepdim=True)
    return (values - above.gather(-1, kept - 1) / kept).clamp_min(0)


def shares_from_gradient(bias: Tensor, pure: Tensor) -> Tensor:
    """Estimate class shares (K,) from the `bias` gradient (K,) of a linear head under cross-entropy.

    The gradient is the mean of softmax - onehot over the images, hence shares @ `pure`. Row k of `pure` (K, K) is the
    gradient of images of class k alone; where all images get the same softmax p, it is p - onehot. Solved by least
    squares with the shares summing to 1; the result may be negative."""
    classes = len(bias)
    # softmax and onehot both sum to 1, so the rows sum to 0 and the sum of the shares is an equation of its own
    system = torch.cat([pure.to(torch.float64).T, torch.ones(1, classes, dtype=torch.float64)])
    right = torch.cat([bias.to(torch.float64), torch.ones(1, dtype=torch.float64)])
    shares: Tensor = torch.linalg.pinv(system, rtol=1e-8) @ right
    return shares

"""What a client's images are of, from a mean over them: scores of images, shadow clients, and shares read from both.

A linear score of a mean is the mean of its images' scores, so a ridge regression from images to their kinds (classes or
domains) also reads a pooled release. What the scores of a whole client then say of its shares is learned on shadow clients
(Ganju et al., CCS 2018, call them that) of known shares, as adjusted counting does (Forman, "Quantifying counts and costs
via classification", 2008). float64 throughout."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fdgsec.runtime.random_streams import integer_seed

STRENGTHS = tuple(10.0**power for power in range(-4, 4))
"""Ridge penalties that are tried, in units of the mean squared singular value."""
SMALLEST_SCALE = 1e-3  # of the median coordinate's spread: a constant coordinate must not be blown up


@dataclass(frozen=True, kw_only=True, eq=False)
class Scorer:
    """A linear score per kind of a statistic (..., D): offset + ((t - center) / scale) weights, (..., K)."""

    center: Tensor
    scale: Tensor
    weights: Tensor
    offset: Tensor

    def __call__(self, statistics: Tensor) -> Tensor:
        """Score statistics of images, or means of them."""
        return self.offset + ((statistics.to(torch.float64) - self.center) / self.scale) @ self.weights

    def moved(self, by: Tensor) -> Tensor:
        """By how much scores (..., K) move where statistics move `by` (..., D)."""
        moved: Tensor = (by / self.scale) @ self.weights
        return moved


def fit_scorer(records: Tensor, kinds: Tensor, count: int) -> tuple[Scorer, Tensor]:
    """Regress which of `count` kinds an image is of, (n,) int64, on its statistic (n, D) by ridge regression.

    Gives the scorer, and what it gives each image when that image is left out of the fit (n, count): y - (y - fit) /
    (1 - h) with the leverage h. The penalty is the one whose left-out squared error is least. Raises ValueError for
    fewer than three images, or where nothing varies."""
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
    """Draw shares (clients, count) from a symmetric Dirichlet distribution over the kinds `held`, 0 for all others."""
    generator = np.random.default_rng(integer_seed(rng))
    drawn = torch.from_numpy(generator.dirichlet([concentration] * len(held), size=clients))
    shares = torch.zeros(clients, count, dtype=torch.float64)
    shares[:, held] = drawn
    return shares


def shadow_rows(kinds: Tensor, shares: Tensor, images: int, *, distinct: bool, rng: torch.Generator) -> Tensor:
    """Draw the `images` of each shadow client by its `shares` (S, K) from records of `kinds` (n,): (S, images).

    `distinct` ones are drawn without replacement. Otherwise each client draws from a resample of its own (Rubin's
    Bayesian bootstrap, 1981), so that what so few records leave open about their kind counts as uncertain."""
    luck = torch.ones(len(shares), len(kinds), dtype=torch.float64)
    if not distinct:
        luck = -torch.rand(luck.shape, generator=rng, dtype=torch.float64).clamp_min(1e-300).log()
    total = torch.zeros_like(shares).index_add_(1, kinds, luck)
    weight = shares[:, kinds] * luck / total[:, kinds] + 1e-12
    return torch.multinomial(weight, images, replacement=not distinct, generator=rng)


@dataclass(frozen=True, kw_only=True, eq=False)
class SharesReader:
    """The best linear guess of shares from the mean scores of a client: prior + (scores - center) slope."""

    prior: Tensor
    center: Tensor
    slope: Tensor

    def __call__(self, scores: Tensor) -> Tensor:
        """Give shares (..., K) that sum to 1 but may be negative; `onto_simplex` makes shares of them."""
        return self.prior + (scores - self.center) @ self.slope


def fit_reader(scores: Tensor, shares: Tensor) -> SharesReader:
    """Regress the `shares` (S, K) of shadow clients on their mean `scores` (S, K)."""
    center, prior = scores.mean(0), shares.mean(0)
    slope = torch.linalg.pinv(scores - center, rtol=1e-8) @ (shares - prior)
    return SharesReader(prior=prior, center=center, slope=slope)


def onto_simplex(values: Tensor) -> Tensor:
    """Project (..., K) onto the nearest shares: none negative, summing to 1 (Duchi et al., ICML 2008, figure 1)."""
    ordered = values.sort(-1, descending=True).values
    place = torch.arange(1, values.shape[-1] + 1, dtype=values.dtype)
    above = ordered.cumsum(-1) - 1
    kept = (ordered - above / place > 0).sum(-1, keepdim=True)
    return (values - above.gather(-1, kept - 1) / kept).clamp_min(0)


def shares_in_gradient(bias: Tensor, pure: Tensor) -> Tensor:
    """Read class shares (K,) off the `bias` gradient (K,) of a linear head under cross-entropy.

    It is the mean of softmax - onehot over the images, hence shares @ `pure`, whose row k (K, K) is the gradient of images
    of class k alone: eye-deep, where all images get the same softmax p, p - onehot. Solved by least squares under the
    shares' sum of 1; the result may be negative."""
    classes = len(bias)
    # softmax and onehot both sum to 1, so the rows sum to 0 and the sum of the shares is an equation of its own
    system = torch.cat([pure.to(torch.float64).T, torch.ones(1, classes, dtype=torch.float64)])
    right = torch.cat([bias.to(torch.float64), torch.ones(1, dtype=torch.float64)])
    shares: Tensor = torch.linalg.pinv(system, rtol=1e-8) @ right
    return shares

"""Cohort tracing: which clients took part, from the one style that a federation published.

FISC publishes the median over clusters of the means of clients' styles (its eq. 3; Algorithm 1, line 16). The attack
simulates federations of halves of a pool of candidate clients, and keeps those whose published styles are nearest to
the observed one. Among these the clusters are mostly the same, and S = center + (z - mean z) B + e, where z indicates
who took part; the log likelihood ratio of each client follows from Gaussian algebra. This is approximate Bayesian
computation with local linear regression (Beaumont, Zhang & Balding, Genetics 2002), with clients in the place of
parameters. e holds what is not linear and, where the adversary knows clients by other images than they hold, the
resulting differences between their styles."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fdgsec.attacks.statistics.tracing import Whitening, fit_whitening
from fdgsec.federation.artifacts import InterpolationStyle, StyleStatistics
from fdgsec.nn.styles.finch import cluster_means, finch
from fdgsec.nn.styles.stacked_partitions import stacked_cluster_means, stacked_finch

AGREEMENT = 1e-4
"""Maximum distance, in standard deviations between clients, between a style and a rule's result: rounding."""
ROUNDING = 1e-5
"""Noise of every model, in standard deviations between clients: a published style is float32."""
RAREST = 0.02
"""Lower bound on the participation rates in the kept simulations, which are a sample; 1 minus it is the upper bound."""


@dataclass(frozen=True, kw_only=True)
class PublicRule:
    """The map from clients' styles to the published style: the median of FINCH's clusters' means, or (None) the
    mean."""

    partition: Literal["first", "last"] | None
    median: Literal["lower", "mean of middle"] = "lower"

    def clusters(self, styles: Tensor) -> Tensor:
        """Each client's cluster, (N,); a single one for the mean."""
        if self.partition is None:
            return torch.zeros(len(styles), dtype=torch.int64)
        return finch(styles, metric="cosine")[0 if self.partition == "first" else -1]

    def __call__(self, styles: Tensor) -> Tensor:
        """Publish one style (D,) for clients with `styles` (N, D)."""
        means = cluster_means(styles, self.clusters(styles))
        return self._middle(means.unsqueeze(0), torch.tensor([len(means)]))[0]

    def many(self, styles: Tensor) -> Tensor:
        """Publish (R, D) for R federations of equally many clients, (R, N, D): the same up to rounding, and faster."""
        if self.partition is None:
            return styles.mean(1)
        return self._middle(*stacked_cluster_means(styles, stacked_finch(styles, last=self.partition == "last")))

    def _middle(self, means: Tensor, counts: Tensor) -> Tensor:
        """The median over the first `counts` (R,) of cluster means (R, L, D), whose other entries are infinite."""
        ordered = means.sort(dim=1).values
        rows = torch.arange(len(means))
        lower, upper = ordered[rows, (counts - 1) // 2], ordered[rows, counts // 2]
        return lower if self.median == "lower" else (lower + upper) / 2


RULES = (
    PublicRule(partition="last", median="mean of middle"),
    PublicRule(partition="first"),
    PublicRule(partition="last"),
    PublicRule(partition="first", median="mean of middle"),
    PublicRule(partition=None),
)
"""The paper's rule, the authors' code's, and others: of an odd number of clusters both medians are the same, and the
first rule that fits is taken."""


def identify_rule(examples: Sequence[tuple[Tensor, Tensor]]) -> PublicRule | None:
    """Find the rule that made every published style (D,) from its clients' (N, D); None where none of `RULES` did."""
    for rule in RULES:
        if all(
            float((rule(styles) - published).norm()) < AGREEMENT * between_client_distance(styles)
            for styles, published in examples
        ):
            return rule
    return None


def style_vector(style: StyleStatistics | InterpolationStyle) -> Tensor:
    """A style as one vector (2C,) in float64: means, then stds."""
    return torch.cat([style.mean, style.std]).double()


def between_client_distance(styles: Tensor) -> float:
    """The root mean square distance of clients' styles (N, D) from their mean; 1 where all are equal."""
    return float((styles - styles.mean(0)).square().sum(1).mean().sqrt()) or 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalModel:
    """A linear model of a published style, in k whitened directions, given which of M clients took part.

    `usual` (M,) is each client's participation rate in the kept simulations, and `effects` (M, k) its effect. `left` is
    the whitening of the residuals; its `center` is the style where all clients take part at their usual rate. `scale`
    corrects it for the degrees of freedom of the effects."""

    directions: Tensor
    usual: Tensor
    effects: Tensor
    left: Whitening
    scale: float

    def log_ratios(self, published: Tensor) -> Tensor:
        """Each client's log likelihood ratio, (M,), of participation against absence, with the others marginalized."""
        prior = self._prior()
        covariance = torch.linalg.inv(prior.diag() + self.effects @ self.effects.T)
        found, precision = self.usual + covariance @ (self.effects @ self._seen(published)), 1 / covariance.diagonal()
        ratios: Tensor = found * precision - self.usual * prior - (precision - prior) / 2
        return ratios + torch.logit(self.usual, eps=RAREST)

    def log_density(self, published: Tensor) -> float:
        """The log likelihood of a published style, comparable between models with the same directions."""
        seen, precision = self._seen(published), self._prior().diag() + self.effects @ self.effects.T
        pull = self.effects @ seen
        square = float(seen @ seen - pull @ torch.linalg.solve(precision, pull))
        volume = float(torch.linalg.slogdet(precision).logabsdet - self._prior().log().sum())
        return -0.5 * (square + volume) - len(seen) * math.log(self.scale) - _log_volume(self.left)

    def _seen(self, published: Tensor) -> Tensor:
        return self.left(published @ self.directions) / self.scale

    def _prior(self) -> Tensor:
        share = self.usual.clamp(RAREST, 1 - RAREST)
        return 1 / (share * (1 - share))


def _log_volume(whiten: Whitening) -> float:
    """The logarithm of the determinant of the inverse whitening."""
    dimension, along = whiten.directions.shape
    across = (dimension - along) * math.log(whiten.floor)
    return float(whiten.scale.log().sum() + whiten.roots.log().sum()) + across


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """A pool of clients by their `styles` (M, D), and the change of each style for another draw of images,
    `differences`.

    `present` (P, D) are the styles of clients that are known to have taken part."""

    styles: Tensor
    differences: Tensor
    present: Tensor

    def models(
        self, published: Tensor, rule: PublicRule, *, simulations: int, kept: int, rng: torch.Generator
    ) -> tuple[LocalModel, LocalModel]:
        """Fit two models to the `kept` simulations that are nearest to the published style, (D,).

        The first assumes that the styles are those that were sent. The second adds each client's difference, with
        random sign. Raises ValueError for fewer than 4 clients, or unless twice as many simulations as clients are
        kept."""
        pool = len(self.styles)
        if pool < 4 or not 2 * pool <= kept <= simulations:
            raise ValueError(
                f"tracing takes 4 clients or more, and keeps 2 simulations for each; got {pool} clients and "
                f"{kept} of {simulations} simulations."
            )
        parts = torch.rand(simulations, pool, generator=rng).argsort(1) < pool // 2
        signs = torch.randint(2, (simulations, pool, 1), generator=rng) * 2.0 - 1
        near = [
            _nearest(published, parts, made, kept)
            for made in (self._publish(rule, parts), self._publish(rule, parts, signs))
        ]
        both = torch.cat([made for _, made in near])
        _, _, rows = torch.linalg.svd(both - both.mean(0), full_matrices=False)
        directions = rows[: min(2 * pool, kept // 4)].T
        noise = ROUNDING * between_client_distance(self.styles) / math.sqrt(self.styles.shape[1])
        first, second = (_fit_local_model(part, made @ directions, directions, noise, rng) for part, made in near)
        return first, second

    def _publish(self, rule: PublicRule, parts: Tensor, signs: Tensor | None = None) -> Tensor:
        """The published style for every row of `parts` (R, M), (R, D), a block of federations at a time."""
        size, made = int(parts[0].sum()), []
        for start in range(0, len(parts), BLOCK):
            rows = slice(start, start + BLOCK)
            chosen = parts[rows].nonzero()[:, 1].view(-1, size)
            styles = self.styles[chosen]
            if signs is not None:
                styles = styles + signs[rows].gather(1, chosen.unsqueeze(2)) * self.differences[chosen]
            always = self.present.expand(len(styles), -1, -1)
            made.append(rule.many(torch.cat([always, styles], dim=1)))
        return torch.cat(made)


BLOCK = 128  # federations whose clients' styles are held at a time


def _nearest(published: Tensor, parts: Tensor, made: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """Keep the nearest simulations: their participants (kept, M), and their published styles (kept, D)."""
    rows = (made - published).square().sum(1).topk(kept, largest=False).indices
    return parts[rows].to(torch.float64), made[rows]


def _fit_local_model(parts: Tensor, seen: Tensor, directions: Tensor, noise: float, rng: torch.Generator) -> LocalModel:
    """Fit the effect of participation on the styles `seen` (R, k) by least squares."""
    count, pool = parts.shape
    usual, center = parts.mean(0), seen.mean(0)
    effects = torch.linalg.pinv(parts - usual) @ (seen - center)
    left = seen - center - (parts - usual) @ effects
    whiten = fit_whitening(left + noise * torch.randn(left.shape, generator=rng, dtype=torch.float64))
    whiten = replace(whiten, center=torch.zeros_like(center))
    scale = math.sqrt(count / (count - pool))
    return LocalModel(
        directions=directions, usual=usual, effects=whiten(effects) / scale, left=replace(whiten, center=center),
        scale=scale,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Influence:
    """How far one client moves a published style, in standard deviations between clients.

    `mean` and `largest` over clients: with and without each, all else equal. `outlier`, mean over clients: with the
    client ten times as far from the mean as it is, and without. `in_pairs` is the share of clients that are one of two
    in a cluster."""

    mean: float
    largest: float
    outlier: float
    in_pairs: float


OUTLIER_FACTOR = 10.0


def influence(styles: Tensor, rule: PublicRule) -> Influence:
    """Remove each of the clients with `styles` (N, D) in turn, and make each an outlier. Raises ValueError for N <
    2."""
    count = len(styles)
    if count < 2:
        raise ValueError(f"the influence of one client needs another one; got {count}.")
    unit, middle = between_client_distance(styles), styles.mean(0)
    others = (~torch.eye(count, dtype=torch.bool)).nonzero()[:, 1].view(count, count - 1)
    without = rule.many(styles[others])
    far = styles.expand(count, -1, -1).clone()
    far[torch.arange(count), torch.arange(count)] = middle + OUTLIER_FACTOR * (styles - middle)
    moved = (rule.many(styles.unsqueeze(0)) - without).norm(dim=1) / unit
    outlying = (rule.many(far) - without).norm(dim=1) / unit
    labels = rule.clusters(styles)
    return Influence(
        mean=float(moved.mean()), largest=float(moved.max()), outlier=float(outlying.mean()),
        in_pairs=float((torch.bincount(labels)[labels] == 2).double().mean()),
    )  # fmt: skip

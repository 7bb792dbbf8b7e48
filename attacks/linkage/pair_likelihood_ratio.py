"""Pair likelihood: the likelihood ratio that two noisy releases are of the same client.

A client's release is m + e: m varies between clients as means of their images do (and as domains do, where clients are
of several), and e is the defense's noise, independent each time. In directions in which signal and noise are
independent, with unit noise and signal variance l, two releases of one client correlate with rho = l / (l + 1), and
those of two clients do not. For numbers z_a, z_b in units of the total's standard deviation the log ratio is (rho z_a
z_b - rho^2 (z_a^2 + z_b^2) / 2) / (1 - rho^2), up to a constant. A distance in whitened space instead weights all
directions equally, and most of them are noise."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fdgsec.attacks.linkage.linking_space import LinkingSpace
from fdgsec.attacks.statistics.defense_noise import (
    DefenseNoise,
    RowDefenseNoise,
    defense_noise_of_mean,
    defense_noise_of_rows,
    style_rows_of,
)
from fdgsec.runtime.random_streams import child, stream
from fdgsec.threats.adversary import Knowledge

TINY = torch.finfo(torch.float64).tiny
LEAST_NOISE = 1e-9
"""Lower bound on the noise variance of a coordinate, as a share of the largest variance."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PairedReleases:
    """Directions `basis` (D, k) centered on `center` (D,), scaled to unit total variance, and their correlations `rho`
    (k,)."""

    center: Tensor
    basis: Tensor
    rho: Tensor

    def distances(self, first: Tensor, second: Tensor) -> Tensor:
        """Minus the log ratio that each of `first` (R, D) and each of `second` (S, D) are of one client, (R, S)."""
        a, b = ((releases - self.center) @ self.basis for releases in (first, second))
        weight = 1 / (1 - self.rho.square())
        lengths = [(z.square() * self.rho.square() * weight / 2).sum(1) for z in (a, b)]
        return lengths[0].unsqueeze(1) + lengths[1] - (a * self.rho * weight) @ b.T


def paired_releases(
    knowledge: Knowledge, space: LinkingSpace, *, records: int, rows: int | None = None, domain: str | None = None
) -> PairedReleases | None:
    """Estimate both variances from public images and the public defense; None without one that adds noise.

    `records` is the number of images of a client, and `rows` how many of them it sends one by one, drawn anew each time
    (None: it sends their mean). All clients are of `domain`, or of the public images' domains in equal proportion."""
    images, rng = knowledge.public_images(), stream(0, "attack", "pairs", records)
    mine = torch.arange(len(images))
    if domain is not None and domain in images.domain_names:
        mine = torch.nonzero(images.domains == images.domain_index(domain)).flatten()
    known = images.subset(mine)
    defense_noise: DefenseNoise | RowDefenseNoise | None
    if rows is None:
        defense_noise = defense_noise_of_mean(
            knowledge, known, records=records, about=space.center, rng=child(rng, "mean")
        )
    else:
        made = style_rows_of(knowledge)
        defense_noise = defense_noise_of_rows(knowledge, known, made=made, read=space.read, rng=child(rng, "rows"))
    if defense_noise is None:
        return None
    scale, within = space.whiten.scale, space.whiten.covariance()
    variance = (defense_noise.variance / (rows or 1)) / scale.square()
    if rows is None and not bool(variance.any()):
        return None  # a defense that adds no noise to means hides nothing between two of them
    noise = variance.clamp_min(LEAST_NOISE * float(variance.max().clamp_min(TINY))).diag()
    if rows is not None:
        noise = noise + within / rows
    middles = torch.stack([space.records[mine][known.domains == number].mean(0) for number in known.domains.unique()])
    apart = (middles - middles.mean(0)) / scale
    return independent_directions(
        within / records + apart.T @ apart / len(middles),
        noise,
        center=middles.mean(0) + defense_noise.shift,
        scale=scale,
    )


def independent_directions(signal: Tensor, noise: Tensor, *, center: Tensor, scale: Tensor) -> PairedReleases:
    """Find the directions in which `signal` and `noise` (D, D), of numbers divided by `scale` (D,), are independent.

    Raises ValueError for noise that is not positive definite."""
    root, failed = torch.linalg.cholesky_ex(noise)
    if int(failed):
        raise ValueError("noise on releases must be positive definite.")
    unit = torch.linalg.solve_triangular(root, torch.eye(len(root), dtype=root.dtype), upper=False)
    values, directions = torch.linalg.eigh(unit @ signal @ unit.T)
    values = values.clamp_min(0)
    basis = (unit.T @ directions) / (scale.unsqueeze(1) * (values + 1).sqrt())
    return PairedReleases(center=center, basis=basis, rho=values / (values + 1))

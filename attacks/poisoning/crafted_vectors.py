"""Forged vectors that stay close to honest ones, so that robust aggregation accepts them.

A little is enough: Baruch, Baruch & Goldberg, NeurIPS 2019, https://arxiv.org/abs/1902.06156 (the attack that prevents
convergence). Inner-product manipulation: Xie, Koyejo & Gupta, UAI 2020, https://arxiv.org/abs/1903.03936. Min-max and
min-sum: Shejwalkar & Houmansadr, NDSS 2021, https://www.ndss-symposium.org/wp-content/uploads/ndss2021_6C-3_24498_paper.pdf
(the two attacks that do not know the aggregation rule).

`known` is (k, D) float64 throughout: the vectors that the adversary knows, measured from the received model where there
is one. Each function gives one vector, (D,)."""

import math
from typing import Literal

import torch
from scipy import special
from torch import Tensor

Direction = Literal["std", "unit", "sign"]
"""Of the perturbation (Shejwalkar & Houmansadr): the negative spread of each number, or the negative mean as a unit
vector or as signs."""


def largest_z(clients: int, malicious: int) -> float:
    """Compute z_max of a little is enough: Phi^-1((n - m - s) / (n - m)) with s = floor(n / 2 + 1) - m, at least 0.

    s is the number of honest supporters that `malicious` of `clients` need for a majority. It is 0 where no positive
    z leaves so many honest vectors farther away, and infinite where none is needed. Raises ValueError unless
    0 < malicious < clients."""
    if not 0 < malicious < clients:
        raise ValueError(f"a little is enough needs 0 < malicious < clients; got {malicious} of {clients}.")
    honest, supporters = clients - malicious, clients // 2 + 1 - malicious
    if supporters <= 0:
        return math.inf
    return max(0.0, float(special.ndtri((honest - supporters) / honest)))


def little_is_enough(known: Tensor, *, z: float) -> Tensor:
    """Compute mu - z sigma by coordinate: mean and standard deviation (n - 1) of `known`; the mean for one vector."""
    return known.mean(0) - z * _spread(known)


def inner_product(known: Tensor, *, epsilon: float) -> Tensor:
    """Compute -epsilon times the mean of `known`: its inner product with the honest mean is negative."""
    return -epsilon * known.mean(0)


def perturbation(known: Tensor, direction: Direction) -> Tensor:
    """Compute the perturbation vector; zero where `known` has no spread (std) or no length (unit)."""
    mean = known.mean(0)
    if direction == "std":
        return -_spread(known)
    if direction == "sign":
        return -mean.sign()
    length = mean.norm()
    return -mean / length if float(length) else torch.zeros_like(mean)


def largest_min_max_gamma(known: Tensor, direction: Tensor) -> float:
    """Compute the largest gamma at which mean + gamma `direction` is no farther from any known vector than two are.

    max_i |m - v_i| <= max_ij |v_i - v_j|: each i bounds gamma by a quadratic, and the least bound holds. 0 for a zero
    direction."""
    widest = _squared_distances(known).max()
    away = known.mean(0) - known
    return _least_root(direction, away @ direction, away.square().sum(1) - widest)


def largest_min_sum_gamma(known: Tensor, direction: Tensor) -> float:
    """Compute the largest gamma at which mean + gamma `direction` has no larger sum of squared distances than any has.

    sum_i |m - v_i|^2 <= max_i sum_j |v_i - v_j|^2, divided by the number of vectors. 0 for a zero direction."""
    widest = _squared_distances(known).sum(1).max() / len(known)
    away = known.mean(0) - known
    linear, constant = (away @ direction).mean(), away.square().sum(1).mean() - widest
    return _least_root(direction, linear.reshape(1), constant.reshape(1))


def min_max(known: Tensor, *, direction: Direction = "std") -> Tensor:
    """Compute the mean, moved along the perturbation by the largest gamma of min-max."""
    along = perturbation(known, direction)
    return known.mean(0) + largest_min_max_gamma(known, along) * along


def min_sum(known: Tensor, *, direction: Direction = "std") -> Tensor:
    """Compute the mean, moved along the perturbation by the largest gamma of min-sum."""
    along = perturbation(known, direction)
    return known.mean(0) + largest_min_sum_gamma(known, along) * along


def _spread(known: Tensor) -> Tensor:
    return known.std(0) if len(known) > 1 else torch.zeros_like(known[0])


def _squared_distances(known: Tensor) -> Tensor:
    return torch.stack([(known - one).square().sum(1) for one in known])


def _least_root(direction: Tensor, linear: Tensor, constant: Tensor) -> float:
    """The largest gamma >= 0 with |d|^2 gamma^2 + 2 linear gamma + constant <= 0 for all; constants are at most 0."""
    square = direction.square().sum()
    if not float(square):
        return 0.0
    roots = (-linear + (linear.square() - square * constant.clamp_max(0)).sqrt()) / square
    return max(0.0, float(roots.min()))

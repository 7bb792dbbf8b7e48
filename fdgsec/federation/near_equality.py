"""Whether tensors, states of networks and gradients are the same up to rounding."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fdgsec.privacy.record_independence import GRADIENT_TOLERANCE

ENTRIES = 1e-6
"""Tolerated change of the entries of a tensor, as a share of its length: small changes of many entries add up."""


def nearly_equal(one: Tensor, two: Tensor, *, tolerance: float = ENTRIES) -> bool:
    """Whether two tensors are the same up to rounding, by the length of their difference; NaN beside NaN."""
    if one.shape != two.shape or torch.equal(one, two):  # most are equal to the bit
        return one.shape == two.shape
    one, two = one.double(), two.double()
    if not torch.equal(one.isfinite(), two.isfinite()):
        return False
    known = one.isfinite()
    same = torch.equal(one[~known].nan_to_num(), two[~known].nan_to_num())
    return same and bool((one[known] - two[known]).norm() <= tolerance * one[known].norm())


def same_tensors(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> bool:
    """Whether two states have the same names, and nearly equal tensors."""
    return one.keys() == two.keys() and all(nearly_equal(value, two[name]) for name, value in one.items())


def same_gradient(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Whether the parts of a gradient are those of another, up to a share of the length of all of them."""
    if [part.shape for part in one] != [part.shape for part in other]:
        return False
    apart = math.sqrt(sum(float((mine - theirs).square().sum()) for mine, theirs in zip(one, other, strict=True)))
    return apart <= GRADIENT_TOLERANCE * math.sqrt(sum(float(part.square().sum()) for part in one))

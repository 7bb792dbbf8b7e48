"""The scale by which classifiers of attacks standardize their inputs."""

from torch import Tensor


def standardizing_scale(rows: Tensor) -> Tensor:
    """The standard deviation (D,) of each coordinate of `rows` (N, D), divided by N, at least a thousandth of the
    median one of those that vary: a coordinate that hardly varies must not be blown up.

    1 where none varies, as under a defense that gives all images one style: rows stay finite, and say nothing."""
    spread = rows.std(0, correction=0)
    varying = spread[spread > 0]
    return spread.clamp_min(1e-3 * float(varying.median()) if len(varying) else 1.0)

"""Whole shares: how many images of each class, domain or role make up a given total."""

import math
from collections.abc import Sequence


def apportion(weights: Sequence[float], total: int) -> list[int]:
    """Divide `total` whole things in proportion to `weights` by largest remainders; ties go to the first."""
    whole = sum(weights)
    shares = [total * weight / whole for weight in weights] if whole else [0.0] * len(weights)
    parts = [math.floor(share) for share in shares]
    by_remainder = sorted(range(len(parts)), key=lambda i: parts[i] - shares[i])
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return parts

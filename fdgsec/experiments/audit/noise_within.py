"""Noise that comes again within one release: in two numbers, rows or tensors.

Whoever subtracts two numbers with the same noise is rid of it, and neither a test along one direction nor a comparison
of releases sees that. So a release is drawn many times, and what changes from draw to draw, which is nothing but noise,
is compared between all its numbers. Two numbers with unrelated Gaussian noise have a correlation beyond `ALIKE` over
`FEWEST` draws with probability 1e-19, and at most `NUMBERS`^2 / 2 such pairs are compared."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fdgsec.experiments.audit.neighboring_clients import Release, numbers
from fdgsec.federation.artifacts import Artifact
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.runtime.errors import UsageError

DRAWS = 48
FEWEST = 24
"""Draws of two numbers, in neither of which one was cut, from which they are compared."""
ALIKE = 0.99
EXACT = 1e-8
"""1 - r^2 of two numbers that have the same noise, up to float32's rounding."""
ORDERS = 30.0
"""Logarithm of the number of orders in which a number's draws may come, from which two numbers with the same order are
no coincidence: 1e13. Of draws that are rounded to two values there are fewer."""
NUMBERS = 1024
"""The largest number of values of a release that are compared."""
PER_TENSOR = 16
"""Numbers of each tensor of an artifact that has more tensors than styles have."""
MOST_TENSORS = 4
"""Tensors of an artifact of which all numbers are compared."""
SAME_SIGNS = 0.98
"""Share, less that of opposite ones, of numbers some distance apart that have the same sign of noise: a buffer of noise
over and over has all, but for rounding, and noise that was averaged over a few neighbors has fewer."""
OVERLAP = 128
"""Pairs of numbers at a distance, at least, of which signs are compared."""
LEAST = 1e-6
"""Share of a number's variance over its draws that must be left in those of a pair."""


def draws_within(
    release: Release,
    defense_stack: DefenseStack,
    read: Callable[[Artifact], Tensor],
    *,
    runs: int = DRAWS,
    most: int = NUMBERS,
) -> tuple[Tensor, Tensor]:
    """At most so many numbers (runs, D) of what leaves for `release`, drawn many times, and which were not cut.

    `read` gives an artifact's numbers (D,) as the mechanism adds noise to them, in the order of its tensors. Draws in
    which a number was cut (to its least or greatest value, if that comes again) are left out for it."""
    found, raw = list[Tensor](), list[Tensor]()
    for run in range(runs):
        artifact = release.sent(replace(defense_stack, name=f"{defense_stack.name}/within/{run}"))[0]
        chosen = _chosen(artifact)[:most]
        raw.append(numbers(artifact)[chosen])
        found.append(read(artifact)[chosen])
    values = stacked(raw, release)
    cut = torch.zeros_like(values, dtype=torch.bool)
    for end in (values == values.amin(0), values == values.amax(0)):
        cut |= end & (end.sum(0) > 1)
    return torch.stack(found), ~cut


def stacked(draws: Sequence[Tensor], release: Release) -> Tensor:
    """Draws (D,) of a release as rows (runs, D). Raises UsageError where they have different sizes."""
    if len({len(one) for one in draws}) > 1:
        raise UsageError(
            f"{release.slot!r} is of another size in other draws, so that its noise cannot be compared; a defense with "
            "a guarantee is checked where it sends as many numbers each time."
        )
    return torch.stack(list(draws))


def two_readings(read: Callable[[Artifact], Tensor]) -> Callable[[Artifact], Tensor]:
    """An artifact's numbers as `read` gives them and as they are sent, (D, 2)."""
    return lambda artifact: torch.stack([read(artifact), numbers(artifact)], 1)


def alike(draws: Tensor, valid: Tensor | None = None, *, sent: Tensor | None = None) -> bool:
    """Whether two numbers change alike from draw to draw, for `draws` (runs, D) of which `valid` ones count.

    The mean of a channel and its second moment depend on each other: of a statistic whose halves are those, they count
    where they change exactly alike, or alike as they are `sent` (runs, D) too."""
    known = torch.ones_like(draws) if valid is None else valid.to(draws)
    middle = (draws * known).sum(0) / known.sum(0).clamp_min(1)
    off = (draws - middle) * known
    off = off / off.square().sum(0).sqrt().clamp_min(torch.finfo(draws.dtype).tiny)
    shared = known.T @ known
    count, total = shared.clamp_min(1), off.T @ known
    within = (off.square().T @ known - total.square() / count).clamp_min(0)
    across = off.T @ off - total * total.T / count
    limit = within * within.T
    related = (across.square() > ALIKE**2 * limit) & (within > LEAST) & (within.T > LEAST) & (shared >= FEWEST)
    same = across.square() > (1 - EXACT) * limit
    free = torch.tensor([_orders(one) > ORDERS for one in draws.T], dtype=torch.bool)
    for one, other in (related & free & free.unsqueeze(1)).triu(diagonal=1).nonzero().tolist():
        channel = 2 * (other - one) == draws.shape[1]
        if sent is None or not channel or bool(same[one, other]) or alike(sent[:, [one, other]]):
            return True
    return False


def repeats(noise: Tensor) -> bool:
    """Whether noise (D,) comes again, or its opposite does, at some distance among its numbers, by their signs.

    All distances are compared at once (Wiener-Khinchin)."""
    count = len(noise)
    if count <= OVERLAP:
        return False
    spectrum = torch.fft.rfft(noise.double().sign(), 2 * count)
    found = torch.fft.irfft(spectrum.abs().square(), 2 * count)[1 : count - OVERLAP + 1]
    pairs = count - torch.arange(1, len(found) + 1)
    return bool((found.abs() > SAME_SIGNS * pairs).any())


def update_repeats(release: Release, defense_stack: DefenseStack) -> bool:
    """Whether the noise of an update is a shorter one over and over."""
    if release.step != "fit":
        return False
    one, other = (
        numbers(release.sent(replace(defense_stack, name=f"{defense_stack.name}/repeating/{run}"))[0])
        for run in range(2)
    )
    return repeats(one - other)


def _orders(draws: Tensor) -> float:
    """The logarithm of the number of different orders in which draws (runs,) of a number may come."""
    counts = torch.unique(draws, return_counts=True)[1]
    return math.lgamma(len(draws) + 1) - float(torch.lgamma(counts.double() + 1).sum())


def tensors_of(artifact: Artifact) -> int:
    """How many tensors of floating-point numbers an artifact has."""
    return sum(value.is_floating_point() for value in artifact.tensors().values())


def _chosen(artifact: Artifact) -> Tensor:
    """The positions of the numbers that are compared, in the order of all floating-point numbers."""
    sizes = [value.numel() for value in artifact.tensors().values() if value.is_floating_point()]
    first = [0, *torch.tensor(sizes).cumsum(0).tolist()[:-1]]
    few = [size if len(sizes) <= MOST_TENSORS else min(size, PER_TENSOR) for size in sizes]
    return torch.cat([start + torch.arange(size) for start, size in zip(first, few, strict=True)])[:NUMBERS]

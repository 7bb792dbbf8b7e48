"""Whether the noise of a mechanism, or the cost that it states, depends on the records that it hides.

A clip at the median length of the client's own images gives noise of another size when one image is exchanged: the size
tells what the noise was to hide, and the stated epsilon bounds nothing. A bound along one direction between neighbors
does not see it where the canary moves no median. So the client's images are exchanged, half of them and all, and the
noise of what it releases then is compared with that of its own release."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fdgsec.experiments.audit.message_canaries import noise_coordinates
from fdgsec.experiments.audit.neighboring_clients import Release, Site, numbers, shared_releases
from fdgsec.experiments.audit.noise_shape import independent_numbers, standardized
from fdgsec.experiments.audit.noise_within import draws_within
from fdgsec.federation.artifacts import Artifact
from fdgsec.federation.defense import Uses
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.replaced_records import with_records_replaced

SIZE_DEVIATIONS = 8.0
"""Standard deviations by which the mean logarithm of two variances' ratio may miss 0."""
CLOSE = 1e-6
"""Relative difference of two stated costs that rounding explains."""


def other_clients(site: Site) -> Sequence[Site]:
    """The audited client with half of its images exchanged by black ones, and with all exchanged by noise."""
    data = site.client.data
    half, none = torch.arange(len(data)) % 2 == 0, torch.zeros(len(data), dtype=torch.bool)
    changed = [with_records_replaced(data, half, "black"), with_records_replaced(data, none, "noise")]
    return [replace(site, client=replace(site.client, data=one)) for one in changed]


def depend_on_records(site: Site, defense_stack: DefenseStack) -> list[Release]:
    """The releases with a cost, of each slot and round, whose cost or noise behind a stack is another one where the
    client's images are."""
    clients = (site, *other_clients(site))
    shares = [[one for made in shared_releases(each).values() for one in made] for each in clients]
    found = []
    for own, *others in zip(*shares, strict=True):
        if own.sent(defense_stack)[1] and any(_differ(own, other, defense_stack) for other in others):
            found.append(own)
    return found


def same_cost(one: Uses, other: Uses) -> bool:
    """Whether two costs are the same up to rounding."""
    if one is None or other is None or len(one) != len(other):
        return one is other
    return all(
        replace(mine, noise=0.0, sensitivity={}) == replace(theirs, noise=0.0, sensitivity={})
        and math.isclose(mine.noise, theirs.noise, rel_tol=CLOSE)
        and mine.sensitivity.keys() == theirs.sensitivity.keys()
        and all(math.isclose(far, theirs.sensitivity[name], rel_tol=CLOSE) for name, far in mine.sensitivity.items())
        for mine, theirs in zip(one, other, strict=True)
    )


def _differ(one: Release, other: Release, defense_stack: DefenseStack) -> bool:
    """Whether the costs of two releases differ, or the size of their noise: as the mechanism adds it, and as it is
    sent.

    Noise on a number that is sent as its square is of another size in each record, and of one size as it is added."""
    uses, again = one.sent(defense_stack)[1], other.sent(defense_stack)[1]
    if not same_cost(uses, again):
        return True
    assert uses

    def sizes(read: Callable[[Release], Callable[[Artifact], Tensor]]) -> bool:
        return _sizes_differ(*(draws_within(each, defense_stack, read(each)) for each in (one, other)))

    return sizes(lambda each: noise_coordinates(defense_stack, each, uses[0].unit)) and sizes(lambda _: numbers)


def _sizes_differ(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> bool:
    """Whether the noise of two sets of draws (DRAWS, D), each with which of them were not cut, is of two sizes."""
    whole = one[1].all(0) & other[1].all(0)
    _, deviations = sizes_apart(one[0][:, whole], other[0][:, whole])
    return abs(deviations) > SIZE_DEVIATIONS


def sizes_apart(one: Tensor, other: Tensor) -> tuple[float, float]:
    """The mean logarithm of the ratio of variances of numbers (runs, D) of two clients, and in standard deviations.

    Numbers that do not vary in both are left out; without any, the sizes are the same."""
    both = (one.amax(0) > one.amin(0)) & (other.amax(0) > other.amin(0))
    if not bool(both.any()):
        return 0.0, 0.0
    one, other = one[:, both], other[:, both]
    counted = min(
        independent_numbers(standardized(each, torch.ones_like(each, dtype=torch.bool))) for each in (one, other)
    )
    ratio = float((one.var(0) / other.var(0)).log().mean())
    return (ratio, ratio / math.sqrt(4 / ((len(one) - 1) * counted))) if counted >= 1 else (0.0, 0.0)

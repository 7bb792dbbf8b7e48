"""Whether what a mechanism sends moves further than its cost says, between clients of two kinds of images of which one
image decides.

A canary among real images moves no median, no majority and no extreme. A clip about the client's own median, with noise
for a clip about a public center, is bounded along no canary's direction; between clients of which one has a black image
more than half, and one has not, its mean jumps. So clients are made of black and of white images, of different classes,
that are of one kind but for one image, or divided as evenly as their number allows, and what is sent of two neighbors
among them is compared by the linear test that half of the draws suggest, on the other half."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.experiments.audit.message_canaries import noise_coordinates
from fdgsec.experiments.audit.neighboring_clients import Release, Site, releases_of
from fdgsec.experiments.audit.noise_within import draws_within
from fdgsec.federation.defense import Uses
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.privacy.accounting import Relation

DRAWS = 64
FACTOR = 1.5
"""By which a distance must exceed what a cost allows: the size of the noise is estimated within a tenth."""
DEVIATIONS = 4.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Moved:
    """A release that one image moves by `distance` standard deviations of its noise, where its cost says `allowed`."""

    release: Release
    distance: float
    allowed: float


def divided(data: DomainDataset, black: int) -> DomainDataset:
    """The same names; the first `black` images are black and of the first class, the others white and of the second."""
    pixels, labels = torch.full_like(data.pixels(), 255), torch.ones_like(data.labels)
    pixels[:black], labels[:black] = 0, 0
    labels = labels.clamp(max=max(len(data.class_names) - 1, 0))
    return replace(data, store=pixels, rows=torch.arange(len(pixels)), labels=labels)


def moved_too_far(site: Site, defense_stack: DefenseStack) -> list[Moved]:
    """The releases with a cost for records, the first one of each slot, that one image moves further than it allows."""
    count = len(site.client.data)
    middle = count // 2
    pairs = sorted({(black, black + 1) for black in (0, middle - 1, middle, count - 1) if 0 <= black < count})
    shares: dict[int, Sequence[Release]] = {}
    for black in {number for pair in pairs for number in pair}:
        member = replace(site.client, data=divided(site.client.data, black))
        made = releases_of(replace(site, client=member))
        shares[black] = [each[0] for each in made if each[0].step == "share"]
    worst: dict[str, Moved] = {}
    for one, other in pairs:
        for first, second in zip(shares[one], shares[other], strict=True):
            found = _moved(first, second, defense_stack)
            if found is not None and (first.slot not in worst or worst[first.slot].distance < found.distance):
                worst[first.slot] = found
    return list(worst.values())


def _moved(one: Release, other: Release, defense_stack: DefenseStack) -> Moved | None:
    """How far a release lies from its neighbor, where that is certainly more than its cost allows."""
    allowed = _allowed(one.sent(defense_stack)[1])
    if allowed is None:
        return None
    read = noise_coordinates(defense_stack, one, "record")
    drawn = [draws_within(each, defense_stack, read, runs=DRAWS) for each in (one, other)]
    whole = drawn[0][1].all(0) & drawn[1][1].all(0)
    if not bool(whole.any()):  # every number was cut, or comes again
        return None
    distance, error = _distance(*(draws[:, whole] for draws, _ in drawn))
    if distance - DEVIATIONS * error <= FACTOR * allowed:
        return None
    return Moved(release=one, distance=distance, allowed=allowed)


def _allowed(uses: Uses) -> float | None:
    """By how many standard deviations Gaussian noise lets a replaced record move a release; None for other costs."""
    if not uses or any(use.unit != "record" or use.mechanism != "gaussian" or not use.noise for use in uses):
        return None
    return math.sqrt(sum(use.count * (_replaced(use.sensitivity) / use.noise) ** 2 for use in uses))


def _replaced(sensitivity: Mapping[Relation, float]) -> float:
    """The distance between clients of which one record is another one: a record less, and one more."""
    return sensitivity["replace-one"] if "replace-one" in sensitivity else 2 * max(sensitivity.values())


def _distance(one: Tensor, other: Tensor) -> tuple[float, float]:
    """The distance of the means of two sets of draws (DRAWS, D) along the direction that the first half shows, in
    standard deviations of the second half, and its standard error.

    Noise that both sets have in common cancels in their difference."""
    half = len(one) // 2
    spread = (one[:half].var(0) + other[:half].var(0)) / 2
    noisy = spread > 0
    if not bool(noisy.any()):
        return 0.0, 0.0
    along = (one[:half] - other[:half]).mean(0)[noisy] / spread[noisy]
    first, second = one[half:, noisy] @ along, other[half:, noisy] @ along
    size = float(((first.var() + second.var()) / 2).sqrt())
    if not size:
        return 0.0, 0.0
    apart = (first - second) / size
    return float(apart.mean()), float(apart.std()) / math.sqrt(len(apart))

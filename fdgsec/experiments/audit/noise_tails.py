"""Whether noise has no tails: Gaussian noise that was cut at a few standard deviations "so that no style is absurd".

The cut hardly changes its size or its kurtosis, and along a direction it looks Gaussian. But a number beyond the cut of
one client's value is impossible for that client: whoever sees it knows that the value is another one. Of D numbers with
noise that is cut at 3 deviations a neighbor's release shows one with a probability of about D times what it is moved by
times .0044, whatever epsilon says. So the largest deviation of many draws is compared with that of Gaussian noise. An
output that is cut at public bounds, which is sound, has the same bounds for other images."""

import math
from dataclasses import replace

import torch
from scipy import stats
from torch import Tensor

from fdgsec.experiments.audit.message_canaries import noise_coordinates
from fdgsec.experiments.audit.neighboring_clients import Release, Site, numbers, shared_releases
from fdgsec.experiments.audit.noise_of_records import other_clients
from fdgsec.experiments.audit.noise_shape import independent_numbers, standardized
from fdgsec.experiments.audit.noise_within import stacked
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.privacy.accounting import Unit

RARE = 1e-9
"""The probability of Gaussian draws without a larger deviation, from which on noise counts as cut."""
OFTEN = 0.01
"""Share of draws in which a number is cut, up to which its deviations are counted."""
ALMOST = 1 - 1e-12
ALIKE = 2
"""Extremes that are the same for other images, from which on bounds are public."""


def bounded(draws: Tensor, sent: Tensor) -> bool:
    """Whether Gaussian noise had a larger deviation than any in `draws` (runs, D), but for a probability of RARE.

    Numbers that are cut, as they are `sent` (runs, D), in more than a share of OFTEN of the draws are left out. The
    square of a deviation from the mean of n draws, over n - 1 times their variance, is Beta(1/2, n/2 - 1)."""
    runs = len(draws)
    ends = torch.maximum((sent == sent.amin(0)).sum(0), (sent == sent.amax(0)).sum(0))
    rarely = ends <= max(1, OFTEN * runs)
    standard = standardized(draws, rarely.expand_as(draws))
    if not standard.numel():
        return False
    beyond = float(stats.beta.sf(float(standard.square().max()) / (runs - 1), 0.5, runs / 2 - 1))
    independent = 1 / max(1 / independent_numbers(standard) - 1 / runs, 1 / standard.shape[1])  # of correlations alone
    return runs * independent * math.log1p(-min(beyond, ALMOST)) < math.log(RARE)


def same_bounds(one: Tensor, other: Tensor) -> int:
    """How many least and how many greatest values of draws (runs, D) are those of others, to the bit; the fewer ones.

    A std that is cut at 0 has its least values in common, and no greatest ones."""
    return min(int((one.amin(0) == other.amin(0)).sum()), int((one.amax(0) == other.amax(0)).sum()))


def without_tails(site: Site, defense_stack: DefenseStack, *, draws: int) -> list[Release]:
    """What the client shares, the first release of each slot, whose noise is cut at a distance from the value that it
    hides: bounds that hold for the client's other images too are public."""
    other = other_clients(site)[0]
    found = []
    for slot, (release, *_) in shared_releases(site).items():
        uses = release.sent(defense_stack)[1]
        if not uses or not all(use.mechanism == "gaussian" and use.noise and use.sampling_rate == 1 for use in uses):
            continue
        own, sent = _drawn(release, defense_stack, uses[0].unit, draws)
        if bounded(own, sent):
            _, theirs = _drawn(shared_releases(other)[slot][0], defense_stack, uses[0].unit, draws)
            found += [release] if same_bounds(sent, theirs) < ALIKE else []
    return found


def _drawn(release: Release, defense_stack: DefenseStack, unit: Unit, draws: int) -> tuple[Tensor, Tensor]:
    """What leaves for a release, (draws, D), as the mechanism adds noise to it, and as it is sent."""
    read = noise_coordinates(defense_stack, release, unit)
    named = (replace(defense_stack, name=f"{defense_stack.name}/tails/{number}") for number in range(draws))
    made = [release.sent(one)[0] for one in named]
    sent = stacked([numbers(one) for one in made], release)
    return torch.stack([read(one) for one in made]).double(), sent

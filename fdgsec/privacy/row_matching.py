"""Membership by look-up: is a candidate's style among the released rows, each of which is the style of one image?

Such a style is a fixed function of its image, so that the two agree up to the rounding of what was sent. What methods do
differently (division by HW or HW - 1, what stands inside the root) is public and tried out. Where images were cropped at
random before their styles were taken, the adversary compares several crops of its own with every row, and the nearest
decides: how near it comes falls with their number."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fdgsec.batches import augment
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.plans import Plan
from fdgsec.styles import EPS, Moments

CONVENTIONS: Sequence[tuple[bool, float]] = ((True, EPS), (True, 1e-6), (False, EPS), (False, 1e-6))
"""Divisor (HW - 1 or HW) and epsilon of the stds that released codes send (CCST's; FedAlign's)."""
ROUNDING = 2.0**-21
"""Relative distances below this are equality: a few units in the last place of float32, whose rounding is 2^-24."""
AT_ONCE = 64


def nearest_row(found: Moments, rows: Tensor) -> Tensor:
    """Give each image's distance to the nearest of `rows` (R, 2C), relative to the row's length, (n,), at least ROUNDING.

    Infinite where there are no rows. Distances are (n, R) at a time, never between images."""
    if not len(rows):
        return torch.full((len(found),), torch.inf, dtype=torch.float64)
    released = rows.to(torch.float64)
    length = released.norm(dim=1).clamp_min(torch.finfo(torch.float64).tiny)
    nearest = torch.full((len(found),), torch.inf, dtype=torch.float64)
    for unbiased, eps in CONVENTIONS:
        own = torch.cat(found.style(unbiased=unbiased, eps=eps), dim=1).float().double()  # as it would be sent
        apart = torch.cdist(own, released, compute_mode="donot_use_mm_for_euclid_dist") / length
        nearest = torch.minimum(nearest, apart.min(1).values)
    return nearest.clamp_min(ROUNDING)


def random_crops(images: DomainDataset, *, least: float, rng: torch.Generator) -> DomainDataset:
    """Make one random resized crop (`least` to all of the area, sides 3:4 to 4:3) of each image, as training does.

    A dataset of new pixels under the old names. Raises UsageError unless 0 < least <= 1."""
    plan = Plan(crop=(least, 1.0), flip=0.0)
    parts = [
        (augment(as_float(images.pixels(rows)), plan, rng) * 255).round().clamp(0, 255).to(torch.uint8)
        for rows in torch.arange(len(images)).split(AT_ONCE)
    ]
    store = torch.cat(parts) if parts else torch.zeros(1, 3, *images.image_size, dtype=torch.uint8)
    return replace(images, name=f"{images.name} (crops)", store=store, rows=torch.arange(len(images)))

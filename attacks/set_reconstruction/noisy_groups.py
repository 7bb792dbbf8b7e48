"""Rows that are means over groups of images and were blurred after that, each row by noise of its own.

Rows of one group then differ, by twice the noise's variance in each number, and rows of different groups by what their
images differ beside it. What the defense does after the mean shows on copies of one image, whose mean is that image,
whatever the groups."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from fdgsec.attacks.statistics.defense_noise import read_style_rows, style_rows_of
from fdgsec.data.domains import DomainDataset
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import Knowledge

IMAGES = 12
"""Images of which copies are passed through the defense."""
COPIES = 24
"""Copies of each."""
APART = 6.0
"""Standard deviations of the mean square of noise, beyond which the rows of one group do not differ."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RowBlur:
    """What happens to a row after the mean is taken: `gain` times it, plus `shift` (D,), plus noise of `scale` (D,)."""

    gain: float
    shift: Tensor
    scale: Tensor

    @property
    def noisy(self) -> bool:
        """Whether there is noise at all."""
        return bool(self.scale.any())

    def before(self, mean: Tensor) -> Tensor:
        """The row (D,) that a mean of blurred rows is expected to be of."""
        return (mean - self.shift) / self.gain

    def error(self, size: int) -> Tensor:
        """The standard deviation (D,) of `before` for a mean of `size` rows."""
        error: Tensor = self.scale / abs(self.gain) / size**0.5
        return error


def blur_of_rows(knowledge: Knowledge, images: DomainDataset, rng: torch.Generator) -> RowBlur:
    """Estimate the blur by passing copies of single images through the public defense, each as a client's data."""
    assert knowledge.defended is not None
    before, after, within = [], [], []
    for number in range(min(IMAGES, len(images))):
        copies = images.subset(torch.full((COPIES,), number))
        made = style_rows_of(knowledge)(copies)
        seen = read_style_rows(knowledge.defended(made, copies, child(rng, number)))
        before.append(read_style_rows(made)[0])
        after.append(seen.mean(0))
        within.append(seen.var(0))
    sent, received = torch.stack(before), torch.stack(after)
    around, moved = sent - sent.mean(0), received - received.mean(0)
    gain = float((around * moved).sum() / around.square().sum())
    return RowBlur(gain=gain, shift=received.mean(0) - gain * sent.mean(0), scale=torch.stack(within).mean(0).sqrt())


def noisy_groups(rows: Tensor, blur: RowBlur) -> Sequence[Tensor]:
    """The groups among blurred rows (R, D), as numbers of rows: those that differ by no more than the noise, and those
    that are linked by such rows."""
    blurred = blur.scale > 0
    white = rows[:, blurred] / blur.scale[blurred]
    apart = torch.cdist(white, white, compute_mode="donot_use_mm_for_euclid_dist").square() / (2 * white.shape[1])
    near = apart <= 1 + APART * (2 / white.shape[1]) ** 0.5
    count, label = connected_components(near.numpy(), directed=False)
    return [torch.from_numpy((label == number).nonzero()[0]) for number in range(count)]

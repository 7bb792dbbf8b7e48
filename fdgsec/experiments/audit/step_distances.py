"""How far one image moves the steps of a private training, in units of the noise in each, and how far it may.

The noise of a step is measured in the weights that no image reaches, step by step: a clip that is chosen anew for each,
with noise in proportion to it, hides an image as well in a step of small noise as in one of large."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fdgsec.experiments.audit.neighbor_tests import DEVIATIONS, FACTOR
from fdgsec.experiments.audit.noise_of_records import SIZE_DEVIATIONS
from fdgsec.experiments.audit.one_run import inverse_variances
from fdgsec.privacy.accounting import Relation, Use

WITHOUT = 1e6
"""Standard deviations from which on there is no noise but that of rounding."""
IN_ONE_STEP = 12.0
"""Standard deviations by which a step must exceed what is allowed to count alone: it has one draw, and its noise a size
that few numbers tell."""
RELATED = 6.0
"""Standard deviations of the correlation of unrelated noise, beyond which that of two steps is related."""
MOST_RELATED = 256
"""Steps whose noise is compared with each other's."""
BLOCKS = 8
"""Parts of a training, between which the size of its noise may vary for reasons that were paid for."""
PRESENT: Sequence[Relation] = ("zero-out", "add-remove")
"""Relations whose neighbors have an image less, or one that does nothing."""


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """By how many standard deviations of its noise an image may move a step: `present` where it is left out of the sum
    on the other side, `replaced` where another one is there. It takes part in a step with probability `rate`."""

    present: float
    replaced: float
    rate: float


@dataclass(frozen=True, kw_only=True)
class MovedWeights:
    """By how many standard deviations of the noise one image moves a training, and by how many it may."""

    distance: float
    error: float
    allowed: float
    rate: float = 1.0
    furthest: float = 0.0
    """The distance in that step in which it is largest, by the noise of this step alone."""
    spread: float = 1.0
    """The standard deviation of the distance in one step: 1 for the noise, more where images are sampled, or where what
    both clients move alike is large beside how well the noise of a step is known."""
    squares: float = 0.0
    """The squared distances of all steps together, less what noise adds to them."""
    squares_error: float = 0.0
    """Their standard error."""

    @property
    def too_far(self) -> bool:
        """Whether the distance is beyond what is allowed and estimation explains, in all steps or in one.

        On average an image moves a step no further than by the share of steps in which it takes part."""
        return self._in_one_step or self.distance - DEVIATIONS * self.error > FACTOR * self.allowed * self.rate

    @property
    def _in_one_step(self) -> bool:
        return self.furthest - IN_ONE_STEP * self.spread > FACTOR * self.allowed

    @property
    def words(self) -> str:
        """Both, in words."""
        by, most = (self.furthest, self.allowed) if self._in_one_step else (self.distance, self.allowed * self.rate)
        if by > WITHOUT:
            return f"in which nothing hides it; {self.allowed:.1f} standard deviations of noise are allowed"
        on_average = "" if self._in_one_step or self.rate == 1 else " on average"
        return f"by {by:.1f} standard deviations of its noise{on_average}; {most:.1f} are allowed"


def allowed_by(uses: Sequence[Use]) -> Allowed | None:
    """How far an image may move a step of these costs; None where no Gaussian noise of a known distance is stated.

    A neighbor with another image is no further than two with none; one with none is no further than two with another
    one, of which one does nothing."""
    if not uses or not all(use.mechanism == "gaussian" and use.noise and use.sensitivity for use in uses):
        return None
    present = max(map(_present, uses))
    replaced = max(_least(use, ("replace-one",), *PRESENT, times=2.0) / use.noise for use in uses)
    if not present:
        return None
    return Allowed(present=present, replaced=replaced, rate=max(use.sampling_rate for use in uses))


def squares_paid(uses: Sequence[Use]) -> tuple[float, float]:
    """The squared distances by which steps of these costs may be apart without an image, in all of them together, in
    units of each one's noise: their expected sum, and its variance, as an image takes part in some of them."""
    squares = [(use.count, use.sampling_rate, _present(use) ** 2) for use in uses]
    return (
        sum(count * rate * square for count, rate, square in squares),
        sum(count * rate * (1 - rate) * square**2 for count, rate, square in squares),
    )


def _present(use: Use) -> float:
    """The distance without an image, in units of the noise, of a use that states both."""
    assert use.noise
    return _least(use, PRESENT, "replace-one") / use.noise


def _least(use: Use, relations: Sequence[Relation], *others: Relation, times: float = 1.0) -> float:
    """The least distance that is stated for these relations, or `times` that for `others` where none is."""
    stated = [use.sensitivity[one] for one in relations if one in use.sensitivity]
    return min(stated or [times * use.sensitivity[one] for one in others if one in use.sensitivity])


def apart(
    one: Tensor, other: Tensor, allowed: float, *, rate: float = 1.0, images: int = 1, columns: slice = slice(1, None)
) -> MovedWeights:
    """Compare what steps of two clients move, (steps, T, weights), of which the first weight is the one that differs.

    Those in `columns` no image reaches. A gradient is as long in every tensor of which it is, so that each counts by
    its inverse variance beside it. Of trainings of different lengths, the steps of the shorter one count. So many
    `images` take part in a step with probability `rate` each."""
    one, other = one[: len(other)], other[: len(one)]
    moving = one.flatten(1).any(1) | other.flatten(1).any(1)  # not so at a learning rate of 0
    one, other = one[moving], other[moving]
    if not len(one):
        return MovedWeights(distance=0.0, error=0.0, allowed=allowed, rate=rate)
    worlds = [one, other] if bool(other.any()) else [one]
    beside = [world[..., columns] for world in worlds]
    variances = torch.cat(beside).square().mean((0, 2))
    noisy = variances > 0
    variance = 1 + images * rate * (1 - rate) * allowed**2
    sizes = [(part[:, noisy].square().mean(2) / variances[noisy]).mean(1).sqrt() for part in beside]
    if not bool(noisy.any()) or not all(bool(size.all()) for size in sizes):
        return MovedWeights(distance=math.inf, error=0.0, allowed=allowed, rate=rate)
    along = inverse_variances(variances)
    units = [torch.einsum("rto,t->ro", part, along) / size[:, None] for part, size in zip(beside, sizes, strict=True)]
    noise = float(torch.cat(units).square().mean().sqrt())
    moved = [world[..., 0] @ along / size for world, size in zip(worlds, sizes, strict=True)]
    shifts = (moved[0] - moved[1] if len(moved) > 1 else moved[0]) / noise
    alike = min(abs(float(part.mean())) for part in moved) / noise if len(moved) > 1 else 0.0
    numbers = int(noisy.sum()) * beside[0].shape[2]
    spread = math.sqrt(variance + alike**2 / (2 * numbers))  # of a size that so many numbers tell
    squares = shifts.square() - len(moved)
    return MovedWeights(
        distance=float(shifts.mean()), error=spread * math.sqrt(len(moved) / len(shifts)), allowed=allowed, rate=rate,
        furthest=float(shifts.max()), spread=spread, squares=float(squares.sum()),
        squares_error=math.sqrt(float(_variances(squares.clamp_min(0), len(moved), numbers).sum())),
    )  # fmt: skip


def _variances(squares: Tensor, draws: int, numbers: int) -> Tensor:
    """The variances of squared distances of so many draws of noise each, whose size so many numbers tell."""
    return 2 * draws**2 + 4 * draws * squares + 2 * squares.square() / numbers


def related(noise: Tensor) -> bool:
    """Whether two of R steps (R, T, weights) have noise that is related; every tensor counts by its own noise."""
    noise = noise[:MOST_RELATED]
    size = noise.square().mean((0, 2)).sqrt()
    rows = (noise[:, size > 0] / size[size > 0, None]).flatten(1)
    rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
    found = (rows @ rows.T).fill_diagonal_(0).abs().max()
    return rows.shape[1] > 0 and float(found) > RELATED / math.sqrt(rows.shape[1])


def of_another_size(one: Tensor, other: Tensor) -> bool:
    """Whether the noise (steps, T, weights) of the trainings of two clients differs in size.

    A size that varies over a training, as behind a clip that a noisy count chooses, differs by as much for no reason of
    the client's."""
    noisy = [noise[noise.flatten(1).any(1)] for noise in (one, other)]
    if len(one) - len(noisy[0]) != len(other) - len(noisy[1]):  # steps without any
        return True
    one, other = noisy
    if not len(one) or not len(other):
        return False
    logs = [noise.square().mean((1, 2)).log() for noise in (one, other)]
    error = 4 / min(one.numel(), other.numel())
    blocks = [torch.stack([part.mean() for part in log.chunk(BLOCKS)]) for log in logs]
    if min(map(len, blocks)) > 1:
        error = max(error, sum(float(block.var()) / len(block) for block in blocks))
    return abs(float(logs[0].mean() - logs[1].mean())) > SIZE_DEVIATIONS * math.sqrt(error)

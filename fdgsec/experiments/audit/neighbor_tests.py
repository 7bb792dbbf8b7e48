"""Tests of what tells two neighbors apart: many draws of the same release of clients of whom one has another image.

A test along one direction bounds what Gaussian noise hides, and sees neither numbers without noise, nor noise on a grid
that the value does not lie on (the residue is that of the value), nor noise whose size is the client's own. Laplace
noise hides a distance in each number: what it lets through is the sum of these, which no direction shows. Each has a
test of its own here, and says by how much what the cost allows is exceeded.

What is sent may be noise no more: rounded, or cut to bounds that hold for everybody. Then a distance in standard
deviations means nothing, and how often two neighbors are told apart is counted: of a mechanism that is what its cost
says, a share of true positives and one of false positives lie on its trade-off curve or below (Dong, Roth and Su,
"Gaussian differential privacy", JRSS B 2022), whatever is made of its releases."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from scipy.special import expit, ndtri
from scipy.stats import beta
from torch import Tensor

from fdgsec.attacks.statistics.release_precision import Steps, steps_of
from fdgsec.experiments.audit.message_canaries import noise_coordinates
from fdgsec.experiments.audit.neighboring_clients import Release
from fdgsec.experiments.audit.noise_shape import independent_numbers, standardized
from fdgsec.experiments.audit.noise_within import draws_within, two_readings
from fdgsec.federation.artifacts import Artifact
from fdgsec.federation.defense import Uses
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.privacy.accounting import Relation, Use

FACTOR = 1.15
"""By which a distance must exceed what a cost allows, beside its error."""
SAMPLED = 1.5
"""The same of a record that is in a secret sample: the cost of the mean is an approximation there."""
KURTOSIS = {"gaussian": 3.0, "laplace": 6.0}
"""Of noise, whose deviation n draws give up to a part of sqrt((kurtosis - 1) / 4n)."""
DEVIATIONS = 4.0
BY_CHANCE = 1e-6
"""Probability with which a sound mechanism is told apart so often, or a value comes back so often, by chance."""
STEADY = 0.05
"""Of the mean variance of all numbers, which is added to that of each: a rounded one may hardly vary in few draws."""
LEAST_SQUARE = 1e-12
"""Of the noise of a release, in units of its own: that of a release without any."""
LIKELIER = 4.0
"""Logarithm of the ratio of likelihoods from which a number's noise counts as Laplace noise: 64 draws of it in each of
two clients have 9 on average."""
LATTICES = 64
"""Numbers of a release that are looked at for a grid."""
OFF_GRID = 0.1
"""Of a grid's step: how far apart the residues of two neighbors lie, at least, where values are not rounded to it."""
ON_GRID = 0.02
FEWEST_LATTICES = 3
"""Numbers with such residues, from which on they are no coincidence."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawn:
    """A release drawn several times: the numbers `sent` (runs, D), the same as the mechanism adds noise to them
    (`values`), and which `whole` ones (D,) were never cut; `form` is what else there is of it: shapes, and numbers that
    are no fractions."""

    release: Release
    sent: Tensor
    values: Tensor
    whole: Tensor
    form: tuple[object, ...]
    uses: Sequence[Use]
    allowed: float
    """By how many deviations one image may move it (`allowed_distance`)."""

    @property
    def most(self) -> float:
        """The distance beyond which there is a fault."""
        return (SAMPLED if self.sampled else FACTOR) * self.allowed

    @property
    def sampled(self) -> bool:
        """Whether records are in a secret sample."""
        return any(use.sampling_rate != 1 for use in self.uses)

    @property
    def kurtosis(self) -> float:
        """The largest kurtosis of the noise that is paid for."""
        return max(KURTOSIS[use.mechanism] for use in self.uses)


@dataclass(frozen=True, kw_only=True)
class Apart:
    """How far two neighbors lie apart by one test: in `times` what their cost allows, and whether draws show that it is
    more than estimation explains (`too_far`)."""

    times: float
    too_far: bool
    words: str


NOT_APART = Apart(times=0.0, too_far=False, words="")


def drawn(release: Release, defense_stack: DefenseStack, runs: int) -> Drawn | None:
    """The release drawn so often; None where no cost is stated that bounds its distance from a neighbor."""
    artifact, uses = release.sent(defense_stack)
    allowed = allowed_distance(uses)
    if not uses or not allowed:
        return None
    read = noise_coordinates(defense_stack, release, uses[0].unit)
    both, kept = draws_within(release, defense_stack, two_readings(read), runs=runs)
    return Drawn(
        release=release, values=both[..., 0], sent=both[..., 1], whole=kept.all(0), form=_form(artifact), uses=uses,
        allowed=allowed,
    )  # fmt: skip


def _form(artifact: Artifact) -> tuple[object, ...]:
    """The shapes of an artifact's tensors, and the content of those that hold no fractions."""
    return tuple(
        (name, tuple(value.shape), None if value.is_floating_point() else value.cpu().numpy().tobytes())
        for name, value in artifact.tensors().items()
    )


def allowed_distance(uses: Uses) -> float | None:
    """By how many standard deviations of Gaussian noise a replaced record may move the mean of a release of this cost;
    None where no cost is stated, or one without noise.

    What protects clients protects their records. Laplace noise of epsilon e hides as well as Gaussian noise that is
    moved by -2 Phi^-1(1 / (1 + exp(e))) deviations, or better (Dong, Roth and Su, "Gaussian differential privacy", JRSS
    B 2022: its trade-off curve is made of two chords of that one). A record that is in a secret Poisson sample with
    probability q moves the mean of Gaussian releases by q times its sensitivity."""
    if not uses or not all(use.noise for use in uses):
        return None
    return math.sqrt(sum(use.count * _moved_by(use) ** 2 for use in uses))


def _moved_by(use: Use) -> float:
    moved = _replaced(use.sensitivity) / use.noise
    return use.sampling_rate * moved if use.mechanism == "gaussian" else -2 * float(ndtri(expit(-moved)))


def _replaced(sensitivity: Mapping[Relation, float]) -> float:
    """The distance between clients of which one record is another one: a record less, and one more."""
    return sensitivity["replace-one"] if "replace-one" in sensitivity else 2 * max(sensitivity.values())


def along_a_direction(first: Drawn, second: Drawn) -> Apart:
    """The distance of the means along the direction that the first half of the draws shows, in standard deviations of
    the second half.

    Noise that both have in common cancels in their difference."""
    whole = first.whole & second.whole
    if not bool(whole.any()):
        return NOT_APART
    found = _projected(first.values[:, whole], second.values[:, whole])
    if found is None:
        return NOT_APART
    ones, others = found
    apart = (ones - others) / _size(ones, others)
    distance = float(apart.mean())
    return Apart(
        times=distance / first.allowed, too_far=distance - DEVIATIONS * _error(apart, first.kurtosis) > first.most,
        words=f"by {distance:.1f} standard deviations of its noise; {first.allowed:.1f} are allowed",
    )  # fmt: skip


def _error(apart: Tensor, kurtosis: float, *, units: float = 1.0) -> float:
    """The standard error of the mean of distances (runs,), which are in units of a deviation of as many draws, or of so
    many such units.

    Noise that both clients have in common cancels in their difference, and not in its unit."""
    mean, count = float(apart.mean()), len(apart)
    return math.hypot(float(apart.std()), mean * math.sqrt((kurtosis - 1) / (4 * units))) / math.sqrt(count)


def _standard(draws: Tensor) -> Tensor:
    """Draws (runs, D) of numbers of which none was cut, standardized."""
    return standardized(draws, torch.ones_like(draws, dtype=torch.bool))


def by_what_is_sent(first: Drawn, second: Drawn) -> Apart:
    """How often neighbors are told apart by the numbers that are sent, whatever was made of the noise.

    Along the direction that the first half of the draws shows, those of the second half on either side of the middle
    are counted; both shares have Clopper-Pearson bounds."""
    found = _projected(first.sent, second.sent, steady=STEADY)
    if found is None:
        return NOT_APART
    ones, others = found
    middle, count = float(ones.mean() + others.mean()) / 2, len(ones)
    hits, alarms = int((ones > middle).sum()), int((others > middle).sum())
    least = _least_share(hits, count), _least_share(count - alarms, count)
    shown = float(ndtri(least[0]) + ndtri(least[1]))
    return Apart(
        times=float(ones.mean() - others.mean()) / _size(ones, others) / first.allowed,
        too_far=shown > (first.most if first.sampled else first.allowed),
        words=f"as often as {shown:.1f} standard deviations of Gaussian noise tell; {first.allowed:.1f} are allowed",
    )  # fmt: skip


def _least_share(hits: int, count: int) -> float:
    """The least share of which so many hits are no chance."""
    return float(beta.ppf(BY_CHANCE / 2, hits, count - hits + 1)) if hits else 0.0


def _projected(one: Tensor, other: Tensor, *, steady: float = 0.0) -> tuple[Tensor, Tensor] | None:
    """The second half of the draws (runs, D) of two clients along the direction that the first half shows; None where
    nothing varies."""
    half = len(one) // 2
    spread = (one[:half].var(0) + other[:half].var(0)) / 2
    noisy = spread > 0
    if not bool(noisy.any()):  # every number was cut, or comes again
        return None
    spread = spread[noisy] + steady * spread[noisy].mean()
    along = (one[:half] - other[:half]).mean(0)[noisy] / spread
    found = one[half:, noisy] @ along, other[half:, noisy] @ along
    return found if _size(*found) else None


def _size(ones: Tensor, others: Tensor) -> float:
    """The standard deviation of either."""
    return float(((ones.var() + others.var()) / 2).sqrt())


def by_what_has_no_noise(first: Drawn, second: Drawn) -> Apart:
    """Whether something without noise is not the same: for certain, or a number that is always the same in one client
    and never that in the other.

    A value that came back in all of n draws has a probability of at least BY_CHANCE^(1/n), and one that never did of at
    most one less that; Gaussian noise lets both be so only if it is moved by twice the quantile of the former."""
    if first.form != second.form:
        return _certain(first)
    one, other = first.values, second.values
    fixed, again = (_constant(each) for each in (one, other))
    if bool((fixed & again & (one[0] != other[0])).any()):
        return _certain(first)
    never = (fixed & (other != one[0]).all(0)) | (again & (one != other[0]).all(0))
    if not bool((never & (first.sent != second.sent).any(0)).any()):
        return NOT_APART
    least = 2 * float(ndtri(BY_CHANCE ** (1 / len(one))))
    return Apart(
        times=math.inf, too_far=least > first.most,
        words="by a number that has no noise for one of two neighbors; "
        f"{first.allowed:.1f} standard deviations of noise are allowed",
    )  # fmt: skip


def _constant(values: Tensor) -> Tensor:
    """Which numbers (D,) never change in draws (runs, D)."""
    return values.amax(0) == values.amin(0)


def _certain(one: Drawn) -> Apart:
    words = f"in what has no noise, where {one.allowed:.1f} standard deviations of noise are allowed"
    return Apart(times=math.inf, too_far=True, words=words)


def by_length_of_noise(first: Drawn, second: Drawn) -> Apart:
    """How far the lengths of the noise of single releases lie apart, in standard deviations of one length.

    A clip at the client's own median length, or a mean over the images that are not white, has noise whose size tells
    of the client. The length is that of a release about the middle between both clients, which whoever knows both can
    measure: where the size follows what was paid for, as a noisy count, lengths are no further apart than any score of
    a release."""
    whole = first.whole & second.whole
    if not bool(whole.any()):
        return NOT_APART
    one, other, half = first.values[:, whole], second.values[:, whole], len(first.values) // 2
    middle = (one[:half].mean(0) + other[:half].mean(0)) / 2
    around = one - middle, other - middle
    scale = ((around[0][:half].square().mean(0) + around[1][:half].square().mean(0)) / 2).sqrt()
    if not bool((scale > 0).any()):
        return NOT_APART
    ones, others = (
        (each[half:, scale > 0] / scale[scale > 0]).square().mean(1).clamp_min(LEAST_SQUARE).log() for each in around
    )
    size = _size(ones, others)
    apart = (ones - others) / size if size else torch.zeros_like(ones)
    distance = abs(float(apart.mean()))
    return Apart(
        times=distance / first.allowed, too_far=distance - DEVIATIONS * _error(apart, first.kurtosis) > first.most,
        words=f"by {distance:.1f} standard deviations of the length of its noise; {first.allowed:.1f} are allowed",
    )  # fmt: skip


def in_every_number(first: Drawn, second: Drawn) -> Apart:
    """The epsilon of Laplace noise: the sum over numbers of the distance of the means in the noise's scale.

    The sign of a number's distance is that of the first half of the draws, its length that of the second, so that noise
    adds nothing to it. Where other noise is paid for as well, numbers whose draws are more likely Laplace noise than
    Gaussian are those that count."""
    whole, half = first.whole & second.whole, len(first.values) // 2
    paid = [use for use in first.uses if use.mechanism == "laplace"]
    if not paid or not bool(whole.any()):
        return NOT_APART
    one, other = first.values[:, whole], second.values[:, whole]
    scale = ((one.var(0) + other.var(0)) / 4).sqrt()
    counted = scale > 0
    if len(paid) < len(first.uses):
        counted &= _pointed(torch.cat([one - one.mean(0), other - other.mean(0)]))
    if not bool(counted.any()):
        return NOT_APART
    allowed = sum(use.count * _replaced(use.sensitivity) / use.noise for use in paid)
    sign = (one[:half] - other[:half]).mean(0)[counted].sign()
    apart = ((one[half:] - other[half:])[:, counted] / scale[counted]) @ sign
    epsilon, independent = float(apart.mean()), independent_numbers(_standard(one[:, counted]))
    error = _error(apart, KURTOSIS["laplace"], units=max(1.0, independent))
    return Apart(
        times=epsilon / allowed, too_far=epsilon - DEVIATIONS * error > FACTOR * allowed,
        words=f"by an epsilon of {epsilon:.1f} of its Laplace noise; {allowed:.1f} are allowed",
    )  # fmt: skip


def _pointed(noise: Tensor) -> Tensor:
    """Which numbers (D,) of noise (runs, D) about 0 are likelier Laplace than Gaussian, by LIKELIER, each of the
    likeliest scale."""
    laplace, gauss = noise.abs().mean(0), noise.square().mean(0).sqrt()
    ratio = len(noise) * (math.log(math.sqrt(math.pi / (2 * math.e))) + gauss.log() - laplace.log())
    return ratio > LIKELIER


def by_a_grid(first: Drawn, second: Drawn) -> Apart:
    """Whether noise is a multiple of some step and what it is added to is not: then the residue is that of the value.

    Values that are rounded together with their noise have the same residue in both clients."""
    moved = (first.sent != second.sent).any(0) & first.whole & second.whole
    residues = [_residue(first.sent[:, j], second.sent[:, j]) for j in moved.nonzero().flatten()[:LATTICES].tolist()]
    apart = sum(residue is not None and residue > OFF_GRID for residue in residues)
    return Apart(
        times=apart / FEWEST_LATTICES, too_far=apart >= FEWEST_LATTICES,
        words=f"off the grid of its noise, for certain; {first.allowed:.1f} standard deviations are allowed",
    )  # fmt: skip


def _residue(one: Tensor, other: Tensor) -> float | None:
    """How far two sets of draws (runs,) lie off each other's grid, in its steps; None where they have no such grid."""
    first, second = (steps_of(each.float()) for each in (one, other))
    if first is None or second is None:
        return None
    step = max(first.step, second.step)  # each is the true step or a part of it
    if _off(one, Steps(step=step, offset=float(one[0]))) > ON_GRID:
        return None
    if _off(other, Steps(step=step, offset=float(other[0]))) > ON_GRID:
        return None
    return _off(other, Steps(step=step, offset=float(one[0])))


def _off(values: Tensor, grid: Steps) -> float:
    """The median distance of values from a grid, in its steps."""
    counts = (values - grid.offset) / grid.step
    return float((counts - counts.round()).abs().median())


Test = Callable[[Drawn, Drawn], Apart]
SCREENED_BY: Sequence[Test] = (by_what_has_no_noise, along_a_direction, by_what_is_sent, by_length_of_noise)
"""Tests that few draws suffice for."""
TESTS: Sequence[Test] = (*SCREENED_BY, in_every_number, by_a_grid)

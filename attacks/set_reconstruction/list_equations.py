"""The linear equations that a mean over images puts on the list of its members.

A release is the mean of a per-image statistic t, D numbers. With candidates i = 1..G, n images behind the release of
which m are no candidates, and errors e of rounding and of a defense,

    n (r - c) = sum_i w_i (t_i - c) + sum over the m others of (t - c) + n e,    w_i in {0, 1},    sum_i w_i = n - m,

where c is the mean of public images. The others are unknown draws from the population of candidates and public images
(fdgsec.attacks.set_reconstruction.absent_members); how many they are is the number under which the release is
likeliest."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import minimize_scalar
from scipy.stats import chi2
from torch import Tensor

from fdgsec.attacks.set_reconstruction.absent_members import ImageDistribution, distribution_of, standardized
from fdgsec.attacks.set_reconstruction.box_least_squares import Array, box_least_squares, least_value
from fdgsec.attacks.set_reconstruction.padded_matrices import padded_side
from fdgsec.attacks.statistics.domain_populations import Population
from fdgsec.metrics.roc import auc
from fdgsec.runtime.cached_values import computed_once

NEAREST = 0.005
"""Of the members: how exactly the likeliest number of absent ones is sought."""
COUNTED = 1e-3
"""Standard deviation of the number of listed members, where that is known."""
EXPLAINED = 3.0
"""Root mean square of a list's residuals, in standard deviations of the error, at most which it explains a release."""
TELLING = 10.0
"""Spread of means over images, in these units, from which a list that explains a release is no coincidence."""
BY_CHANCE = 1e-6
"""Probability that the residual of the true list is larger than what is taken for errors."""
PRIORS = (1.0, 0.1, 0.01)
"""Weights of the prior that are tried on a list of the adversary's own making."""
DECIDED = 0.5
"""Least difference between the weights of a listed candidate and of another one."""
ROUNDING = 1e-12
"""Of squared lengths: what a difference of them is not known better than."""
LARGEST_SQUARE = 1 / np.finfo(np.float64).eps
"""Of an image, in units of errors: beside larger ones, rounding loses the prior, which weighs lists that are alike."""
LEAST_NOISE = 1e-9
"""Of a coordinate's spread over images: what the sums of two programs may differ by."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ListEquations:
    """The equations of one release: `candidates` (G, D) and `release` (D,) of t, and the `noise` (D,) of the latter.

    All are about the mean of public images, and in units of each coordinate; `spread` (D,) is the standard deviation
    of images in them. `population` finds what members are like that are no candidates; None: there are none."""

    candidates: Array
    release: Array
    noise: Array
    spread: Array
    images: int
    population: Callable[[], ImageDistribution] | None = None

    def with_population_of(self, other: "ListEquations") -> "ListEquations":
        """The same equations, which learn with `other` what absent members are like, if candidates are the same."""
        if self.candidates.shape != other.candidates.shape or not np.array_equal(self.candidates, other.candidates):
            return self
        return replace(self, population=lambda: other._others)

    @computed_once
    def _others(self) -> ImageDistribution:
        """What members are like that are no candidates."""
        assert self.population is not None  # else no members are absent
        return self.population()

    @computed_once
    def _scatter(self) -> Array:
        """The sum over candidates of squares about their mean, (D, D)."""
        around = self.candidates - self.candidates.mean(0)
        scatter: Array = around.T @ around
        return scatter

    def solved(self, prior: float, *, absent: int | None = None) -> "MemberPosterior":
        """The weights of candidates where `absent` members are no candidates; None: the likeliest number.

        `prior` weighs the prior's pull of each w toward the share of members among candidates."""
        if absent is None:
            sought = self.sought(prior)
            return sought.complete or replace(self._weighed(prior, sought.absent), ruled_out=sought.ruled_out)
        return self._weighed(prior, absent)

    def sought(self, prior: float) -> "Sought":
        """How many members are taken to be no candidates.

        That is none of them where the list that follows has the release as its mean, up to its error, and other lists
        have not."""
        if self.population is None:
            return Sought(complete=self._weighed(prior, 0))
        tried = self._weighed(prior, 0, to_explain=True) if self.telling() else None
        if tried is not None and self.explained(tried):
            return Sought(complete=tried)
        absent = self.likeliest_absent()
        if absent == 0:
            complete = self._weighed(prior, 0)
            return Sought(complete=replace(complete, ruled_out=tried is not None and complete.ruled_out))
        return Sought(absent=absent, ruled_out=tried is not None and tried.ruled_out)

    def weighed_without_absent(self, prior: float, *, enough: Callable[[Array], bool]) -> "MemberPosterior":
        """The weights where all members are candidates, or the first that are `enough` on the way to them."""
        return self._weighed(prior, 0, enough=enough)

    def _weighed(
        self, prior: float, absent: int, *, to_explain: bool = False, enough: Callable[[Array], bool] | None = None
    ) -> "MemberPosterior":
        """The weights where so many members are absent, or the first that are `enough`.

        `to_explain` a release, they are rough ones once no list does, and 1 and 0 once theirs does and no other can."""
        listed = self.images - absent
        share = listed / len(self.candidates)
        if share >= 1:
            return MemberPosterior(weights=np.ones(len(self.candidates)), listed=len(self.candidates), absent=absent)
        rows, target = self.whitened(absent)
        matrix, values = rows.T, target
        if absent == 0:
            matrix = np.concatenate([matrix, np.full((1, len(self.candidates)), 1 / COUNTED)])
            values = np.append(values, self.images / COUNTED)
        ridge = prior / (share * (1 - share))
        pull = prior * len(self.candidates)  # of every list: ridge times the squared distance from the share
        unexplained = max(self.largest_residual, EXPLAINED**2 * len(self.release))
        certain = to_explain and self.told_apart()
        weights = box_least_squares(
            matrix, values, ridge=ridge, toward=share, too_large=(unexplained + pull) / 2 if to_explain else math.inf,
            enough=self._lists if certain else enough,
        )  # fmt: skip
        found = MemberPosterior(weights=weights, listed=listed, absent=absent)
        if certain and self._lists(weights):
            return replace(found, weights=found.believed().double().numpy())
        if absent > 0:
            return found
        least = 2 * least_value(matrix, values, weights, ridge=ridge, toward=share) - pull
        return replace(found, ruled_out=least > self.largest_residual)

    @computed_once
    def largest_residual(self) -> float:
        """The squared residual, in units of errors, that the true list exceeds with probability BY_CHANCE.

        That of chi-square with as many degrees of freedom as there are numbers."""
        return float(chi2.isf(BY_CHANCE, len(self.release)))

    def likeliest_absent(self) -> int:
        """The number of members that are no candidates under which the release is likeliest, by a bounded local search.

        It ends within NEAREST of the members of a maximum, which need not be the only one."""
        least, most = max(0, self.images - len(self.candidates)), self.images - 1
        if least >= most:
            return most
        whole = np.eye(padded_side(len(self.noise)))
        evidence = partial(self._evidence, whole=whole, scratch=np.empty_like(self._scatter))
        found = minimize_scalar(
            lambda count: -evidence(count), bounds=(least, most), method="bounded",
            options={"xatol": max(0.5, NEAREST * self.images)},
        )  # fmt: skip
        return max((least, round(found.x)), key=evidence)

    def telling(self) -> bool:
        """Whether a release is precise enough that the mean over other images is not taken for it."""
        blurred = self.spread / math.sqrt(self.images) / self.noise
        return float(np.sqrt(np.mean(blurred**2))) > TELLING * EXPLAINED

    def told_apart(self) -> bool:
        """Whether a list with one wrong image has another mean than one without, beyond what explains a release."""
        moved = math.sqrt(2) * self.spread / self.images / self.noise
        return float(np.sqrt(np.mean(moved**2))) > 2 * EXPLAINED

    def explained(self, found: "MemberPosterior") -> bool:
        """Whether the mean over the list is the release, up to the release's error."""
        chosen = found.believed().numpy()
        if int(chosen.sum()) != self.images:
            return False
        return self._left_by(chosen) <= EXPLAINED**2 * len(self.release)

    def _lists(self, weights: Array) -> bool:
        """Whether the candidates of largest weight are a list that no other one equals.

        Their mean is the release, as exactly as the true list's is; no candidate may take the place of one of them; and
        the weights decide, which those of images that several together may replace do not."""
        chosen = MemberPosterior(weights=weights, listed=self.images).believed().numpy()
        if weights[chosen].min() - weights[~chosen].max() < DECIDED or self._left_by(chosen) > self.largest_residual:
            return False
        scaled = (self.candidates - self.candidates.mean(0)) / (self.images * self.noise)
        squares = np.square(scaled).sum(1)
        if squares.max() > LARGEST_SQUARE:
            return False
        apart = squares[chosen][:, None] + squares[~chosen] - 2 * scaled[chosen] @ scaled[~chosen].T
        most = 4 * self.largest_residual  # the squared distance between two lists that explain a release
        return bool(apart.min() > most + ROUNDING * squares.max())

    def _left_by(self, chosen: npt.NDArray[np.bool_]) -> float:
        """The squared distance of the mean over `chosen` candidates (G,) from the release, in units of its errors."""
        return float(np.square((self.candidates[chosen].mean(0) - self.release) / self.noise).sum())

    def whitened(self, absent: int) -> tuple[Array, Array]:
        """Candidates (G, D) and n times the release, less what `absent` members are expected to add to it, in
        coordinates in which the error is white."""
        sums, target = self.candidates, self.images * self.release
        if absent == 0:
            return sums / (self.images * self.noise), target / (self.images * self.noise)
        expected, covariance = self._error(absent)
        factor = np.linalg.cholesky(covariance)
        both = solve_triangular(factor, np.column_stack([sums.T, target - expected]), lower=True)
        return both[:, :-1].T, both[:, -1]

    def _error(self, absent: float, into: Array | None = None) -> tuple[Array, Array]:
        """The mean (D,) and covariance (D, D) of rounding, defense and members that are no candidates.

        The covariance is written `into` an array, or a new one."""
        noise = (self.images * self.noise) ** 2
        if absent == 0:
            expected, covariance = np.zeros(len(noise)), np.zeros((len(noise), len(noise))) if into is None else into
            covariance[...] = 0
        else:
            expected, covariance = self._others.sum_of(absent, into)
        covariance[np.diag_indices(len(noise))] += noise
        return expected, covariance

    def _evidence(self, absent: float, *, whole: Array, scratch: Array) -> float:
        """The log density of the release where so many members are absent and the others are any of the candidates.

        The sum over candidates is taken as Gaussian, with the mean and variance of one over so many of them.
        Overwritten are `scratch` (D, D) and the first D rows and columns of `whole`, which is the identity in further
        ones: new arrays each time would cost as much as what they are for."""
        count, listed, dimension = len(self.candidates), self.images - absent, len(self.noise)
        share = min(listed / count, 1.0)
        expected, covariance = self._error(absent, whole[:dimension, :dimension])
        covariance += np.multiply(share * (1 - share) * count / max(count - 1, 1), self._scatter, out=scratch)
        covariance[np.diag_indices(dimension)] *= 1 + 1e-12
        off = np.zeros(len(whole))
        off[:dimension] = self.images * self.release - listed * self.candidates.mean(0) - expected
        factor = cholesky(whole.T, lower=True, overwrite_a=True, check_finite=False)  # symmetric
        spread = 2 * float(np.log(factor.diagonal()).sum())
        return -0.5 * float(np.square(solve_triangular(factor, off, lower=True)).sum()) - 0.5 * spread


@dataclass(frozen=True, kw_only=True, eq=False)
class MemberPosterior:
    """For each candidate a weight in [0, 1], (G,); how many are `listed`, and how many members are `absent`.

    `ruled_out` says that no list of candidates, as long as there are members, leaves a residual that errors leave."""

    weights: Array
    listed: int
    absent: int = 0
    ruled_out: bool = False

    def scores(self) -> Tensor:
        """The weights, (G,) float64."""
        return torch.from_numpy(self.weights)

    def believed(self) -> Tensor:
        """The list: the `listed` candidates of largest weight, (G,) bool."""
        chosen = torch.zeros(len(self.weights), dtype=torch.bool)
        chosen[self.scores().topk(min(self.listed, len(chosen))).indices] = True
        return chosen


@dataclass(frozen=True, kw_only=True, eq=False)
class Sought:
    """How many members are taken to be `absent` from the candidates; if none, `complete` has their weights.

    `ruled_out` says of the list of all of them what `MemberPosterior.ruled_out` says."""

    absent: int = 0
    ruled_out: bool = False
    complete: MemberPosterior | None = None


def list_equations(
    candidates: Tensor, release: Tensor, population: Population, *, noise: Tensor, images: int
) -> ListEquations:
    """The equations for t of candidates (G, D) and of a release (D,), squares taken about the population's center.

    `noise` (D,) is the standard deviation of the release's error. Coordinates that hardly vary are left out."""
    whiten = population.whiten
    scale = whiten.scale
    varies = candidates.std(0) > 1e-6 * scale
    centered = ((candidates - whiten.center) / scale)[:, varies].numpy()

    def others() -> ImageDistribution:
        reference = ((population.reference - whiten.center) / scale)[:, varies].numpy()
        related = [standardized(part[:, varies].double().numpy()) for part in population.others]
        return distribution_of(np.concatenate([centered, reference]), related)

    return ListEquations(
        candidates=centered, release=((release - whiten.center) / scale)[varies].numpy(),
        noise=(noise / scale)[varies].clamp_min(LEAST_NOISE).numpy(),
        spread=whiten.variances().sqrt()[varies].numpy(), images=images, population=others,
    )  # fmt: skip


def best_prior(known: ListEquations, rng: torch.Generator) -> float:
    """The weight of the prior under which a list that the adversary draws itself is found best."""
    drawn, members = rehearsed(known, rng)
    listed, areas = members.numpy(), {}

    def found(weights: Array) -> bool:
        """Whether members have been told apart so far that what is left to converge changes no order of them."""
        return float(weights[listed].min() - weights[~listed].max()) > DECIDED

    for prior in PRIORS:
        scores = drawn.weighed_without_absent(prior, enough=found).scores()
        areas[prior] = auc(scores[members], scores[~members])
        if areas[prior] == 1.0:  # no other weight finds it better
            return prior
    return max(PRIORS, key=lambda prior: areas[prior])


def rehearsed(known: ListEquations, rng: torch.Generator) -> tuple[ListEquations, Tensor]:
    """The equations of a list that the adversary draws among the candidates of `known`, and its members (G,) bool."""
    listed = min(known.images, len(known.candidates) - 1)
    members = torch.zeros(len(known.candidates), dtype=torch.bool)
    members[torch.randperm(len(members), generator=rng)[:listed]] = True
    error = torch.randn(len(known.noise), generator=rng, dtype=torch.float64).numpy() * known.noise
    return replace(known, release=known.candidates[members.numpy()].mean(0) + error, images=listed), members

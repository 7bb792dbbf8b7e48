"""Solves the equations of one kind of case: within bounds first, and by expectation propagation where that leaves more
than one list."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from fdgsec.attacks.set_reconstruction.expectation_propagation import propagated
from fdgsec.attacks.set_reconstruction.list_equations import (
    ListEquations,
    MemberPosterior,
    best_prior,
    rehearsed,
)
from fdgsec.metrics.roc import auc
from fdgsec.runtime.random_streams import child

LEVELS = np.array([0.0, 1.0])
"""A candidate is no member, or one."""
DAMPINGS = (0.5, 0.2, 0.1)
"""Tried in this order, until a list leaves the residual that errors leave."""
COUNTED = 0.5
"""Standard deviation that the number of members has while memberships are undecided."""
DOUBTFUL = 0.5
"""Expected number of wrong entries, below which a list is the only one."""
REHEARSED = 400
"""Candidates of the lists that the adversary draws itself, at least, to see which of both solutions ranks better."""
MOST_WORK = 3e9
"""Multiplications of a step, above which nothing is propagated: 1,994 candidates and 1,024 numbers are 2e9."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Propagated:
    """What expectation propagation found; `only` says that its list explains the release, and no other does."""

    posterior: MemberPosterior
    only: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Rehearsal:
    """Whether a list of the adversary's own was found to be the only one, and ranked better than within bounds."""

    exact: bool
    better: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class ListSolver:
    """Solves equations of as many candidates, members and numbers as those of `like`, under the `prior` best for them.

    What it rehearses, it rehearses once, on lists that the adversary draws among the candidates of `like`."""

    like: ListEquations
    prior: float
    rng: torch.Generator

    def solved(self, known: ListEquations) -> MemberPosterior:
        """The members: those of the box where its list is the only one that explains the release; those of expectation
        propagation where its list is, where members are absent, or where its marginals rank better."""
        sought = known.sought(self.prior)
        within = sought.complete
        if known.images - sought.absent >= len(known.candidates) or _work(known) > MOST_WORK:
            return within or known.solved(self.prior, absent=sought.absent)
        if within is None:
            only = None if sought.ruled_out else self._only_list(known)
            return only or propagated_part(known, sought.absent)
        explained = known.telling() and known.explained(within)
        if explained and known.told_apart():
            return within
        found = propagated_list(known, DAMPINGS if self.rehearsal.exact else DAMPINGS[:1])
        better = self.rehearsal.better and not explained
        return found.posterior if found.only or better else within

    def _only_list(self, known: ListEquations) -> MemberPosterior | None:
        """The list of all members that explains the release, if no other does, although some are taken for absent."""
        if known.images >= len(known.candidates) or not self.rehearsal.exact:
            return None
        found = propagated_list(known, DAMPINGS[:1])
        return found.posterior if found.only else None

    @cached_property
    def rehearsal(self) -> Rehearsal:
        """How lists of the adversary's own are found."""
        gain, exact = 0.0, False
        for number in range(math.ceil(REHEARSED / len(self.like.candidates))):
            drawn, members = rehearsed(self.like, child(self.rng, "rehearsal", number))
            found, within = propagated_list(drawn, DAMPINGS), drawn.solved(self.prior, absent=0)
            better, worse = (auc(one.scores()[members], one.scores()[~members]) for one in (found.posterior, within))
            gain, exact = gain + better - worse, exact or found.only
        return Rehearsal(exact=exact, better=gain > 0)


def list_solver(like: ListEquations, rng: torch.Generator) -> ListSolver:
    """The solver of cases like this one, under the prior that is best for their kind."""
    return ListSolver(like=like, prior=best_prior(like, rng), rng=rng)


def propagated_list(known: ListEquations, dampings: Sequence[float]) -> Propagated:
    """The marginals of memberships, by the first of `dampings` whose list leaves the residual that errors leave.

    Without any, the smallest residual's."""
    rows, target = known.whitened(0)
    count = len(rows)
    matrix = np.concatenate([rows.T, np.full((1, count), 1 / COUNTED)])
    values, share = np.append(target, known.images / COUNTED), known.images / count
    best, least = None, math.inf
    for damping in dampings:
        found = propagated(matrix, values, levels=LEVELS, shares=np.array([1 - share, share]), damping=damping)
        posterior = MemberPosterior(weights=found.members, listed=known.images)
        left = float(np.square(target - posterior.believed().numpy() @ rows).sum())
        if left <= known.largest_residual:
            return Propagated(posterior=posterior, only=found.doubtful < DOUBTFUL)
        if left < least:
            best, least = posterior, left
    assert best is not None
    return Propagated(posterior=best, only=False)


def propagated_part(known: ListEquations, absent: int) -> MemberPosterior:
    """The marginals of memberships where about `absent` members are no candidates.

    How many candidates are members is what their marginals add up to, which tells more than the release's size."""
    rows, target = known.whitened(absent)
    share = (known.images - absent) / len(rows)
    found = propagated(rows.T, target, levels=LEVELS, shares=np.array([1 - share, share])).members
    listed = min(max(round(float(found.sum())), 1), known.images, len(rows))
    return MemberPosterior(weights=found, listed=listed, absent=known.images - listed)


def _work(known: ListEquations) -> float:
    count, numbers = known.candidates.shape
    return float(count * min(count, numbers) ** 2)

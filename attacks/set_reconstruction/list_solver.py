"""Solves the equations of one kind of case: within bounds first, and by expectation propagation where that leaves more
than one list."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fdgsec.attacks.set_reconstruction.expectation_propagation import propagated
from fdgsec.attacks.set_reconstruction.list_equations import (
    ListEquations,
    MemberPosterior,
    best_prior,
    rehearsed,
)
from fdgsec.metrics.roc import auc
from fdgsec.runtime.cached_values import computed_once
from fdgsec.runtime.random_streams import child

LEVELS = np.array([0.0, 1.0])
"""A candidate is no member, or one."""
BLUNT = 0.1
"""Standard deviation of a sum's error, in units of one image's spread, that is assumed instead of smaller ones.

With errors next to none the steps settle on a list too early where sums are few, and never leave it: of 850 candidates,
130 of them members, and 128 numbers (StableFDG on PACS, four drawn lists in each of two domains) the AUC of the
marginals was .64 and .82, with this one .84 and .83. With .3 it was .82 in both: directions in which images differ
little are lost."""
COUNTED = 0.5
"""Standard deviation that the number of members has while memberships are undecided."""
DOUBTFUL = 0.5
"""Expected number of wrong entries, below which a list is the only one."""
REHEARSED = 400
"""Candidates of the lists that the adversary draws itself, at least, to see which of both solutions ranks better."""
MOST_WORK = 3e9
"""Multiplications of a step, above which nothing is propagated: 1,994 candidates and 1,024 numbers are 2e9."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """How memberships are propagated: the share of each step that is taken, and the least error of sums, as BLUNT."""

    damping: float
    least: float = 0.0


RANKED = (Attempt(damping=0.5), Attempt(damping=0.5, least=BLUNT), Attempt(damping=0.2))
"""Of these, that whose marginals rank best in rehearsals is taken where no list is found."""
ATTEMPTS = (*RANKED, Attempt(damping=0.5, least=4 * BLUNT), Attempt(damping=0.1))
"""Made in this order, until a list leaves the residual that errors leave. The fourth one finds most where sums tell
about as much of every direction: 12 lists of 20 and, with it, 18 among 192 candidates, behind an error of .1."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Propagated:
    """What an attempt found: whether its list `explains` the release, and whether it is the `only` one that does."""

    attempt: Attempt
    posterior: MemberPosterior
    explains: bool
    only: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Rehearsal:
    """Of lists of the adversary's own: the attempt that first found the only one, and the one that ranked `best`.

    None: no list was found, and no attempt ranked better than the weights within bounds."""

    exact: Attempt | None
    best: Attempt | None

    @property
    def attempts(self) -> Sequence[Attempt]:
        """Those that are worth making: all of them where lists are found."""
        first = (RANKED[0], *([self.best] if self.best else [])) if self.exact is None else (self.exact, *ATTEMPTS)
        return list(dict.fromkeys(first))


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
        found = propagations(known, self.rehearsal.attempts)
        if found[-1].only:
            return found[-1].posterior
        return within if explained or self.rehearsal.best is None else _ranked(found, self.rehearsal.best)

    def _only_list(self, known: ListEquations) -> MemberPosterior | None:
        """The list of all members that explains the release, if no other does, although some are taken for absent."""
        if known.images >= len(known.candidates) or self.rehearsal.exact is None:
            return None
        found = propagations(known, [self.rehearsal.exact])[-1]
        return found.posterior if found.only else None

    @computed_once
    def rehearsal(self) -> Rehearsal:
        """How lists of the adversary's own are found."""
        gains, exact = dict.fromkeys(RANKED, 0.0), list[Attempt]()
        for number in range(math.ceil(REHEARSED / len(self.like.candidates))):
            drawn, members = rehearsed(self.like, child(self.rng, "rehearsal", number))
            found, within = propagations(drawn, ATTEMPTS), _area(drawn.solved(self.prior, absent=0), members)
            exact += [found[-1].attempt] if found[-1].only else []
            for attempt in RANKED:
                gains[attempt] += _area(_ranked(found, attempt), members) - within
        best = max(RANKED, key=lambda attempt: gains[attempt])
        return Rehearsal(exact=exact[0] if exact else None, best=best if gains[best] > 0 else None)


def _area(found: MemberPosterior, members: Tensor) -> float:
    scores = found.scores()
    return auc(scores[members], scores[~members])


def list_solver(like: ListEquations, rng: torch.Generator) -> ListSolver:
    """The solver of cases like this one, under the prior that is best for their kind."""
    return ListSolver(like=like, prior=best_prior(like, rng), rng=rng)


def propagations(known: ListEquations, attempts: Sequence[Attempt]) -> Sequence[Propagated]:
    """What `attempts`, one or more, find one after another; the last of them explains the release, if any does."""
    found = [_propagated(known, attempts[0])]
    for attempt in attempts[1:]:
        if found[-1].explains:
            break
        if not attempt.least or bool((known.noise * known.images < attempt.least * known.spread).any()):
            found.append(_propagated(known, attempt))
    return found


def _ranked(found: Sequence[Propagated], attempt: Attempt) -> MemberPosterior:
    """The marginals of the list that explains the release, or without any those of one attempt."""
    done = {one.attempt: one.posterior for one in found}
    return found[-1].posterior if found[-1].explains else done.get(attempt, found[0].posterior)


def _propagated(known: ListEquations, attempt: Attempt) -> Propagated:
    """The marginals of memberships, and whether the list of the likeliest ones explains the release."""
    error = np.maximum(known.noise, attempt.least * known.spread / known.images)
    rows, target = replace(known, noise=error).whitened(0)
    count = len(rows)
    matrix = np.concatenate([rows.T, np.full((1, count), 1 / COUNTED)])
    values, share = np.append(target, known.images / COUNTED), known.images / count
    found = propagated(matrix, values, levels=LEVELS, shares=np.array([1 - share, share]), damping=attempt.damping)
    posterior = MemberPosterior(weights=found.members, listed=known.images)
    left = (target - posterior.believed().numpy() @ rows) * (error / known.noise)
    explains = float(np.square(left).sum()) <= known.largest_residual
    return Propagated(
        attempt=attempt, posterior=posterior, explains=explains, only=explains and found.doubtful < DOUBTFUL
    )


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

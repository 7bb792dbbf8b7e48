"""Refines the list behind a mean over clusters: the public method, run on lists like it, tells its clusters' error.

How far FISC's style is from the mean over its images hangs on how these are clustered: over clients at large
(fdgsec.attacks.set_reconstruction.cluster_errors) it is large, and over lists that are nearly the client's it is small.
In turns, the adversary runs the method on lists that it draws, keeps those whose styles come nearest to what it
received, finds from these the weight that each image has where it is a member, and the mean and covariance of what
remains, and draws lists from the posterior that follows. The best list is improved by swaps, of which the same
equations say what they promise. A list can be verified: where it is right, its own style is what was received, up to
the noise."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fdgsec.attacks.set_reconstruction.box_least_squares import Array
from fdgsec.attacks.set_reconstruction.cluster_errors import (
    records_of,
    release_in,
    shared_by,
    shrunk_covariance,
    whitened_equations,
)
from fdgsec.attacks.set_reconstruction.list_equations import ListEquations, MemberPosterior
from fdgsec.attacks.set_reconstruction.release_equations import ReleaseReader
from fdgsec.attacks.statistics.pooled_questions import size_of
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import Knowledge, ListSharing
from fdgsec.threats.attack import Case

DRAWN = 24
"""Lists drawn in each turn."""
KEPT = 12
"""Lists, of all that were drawn, of which weights and errors are learned: those nearest to what was received."""
TURNS = 12
CLUSTERED = 24_000
"""Images that the method may cluster for one client, over all lists: 400 lists of 60."""
LEAST_LISTS = 2 * DRAWN
"""Lists to which this must suffice; where it does not, nothing is refined."""
HOTTEST = 30.0
"""Temperature at which the drawing of a list begins; it ends at 1."""
SWEEPS = 8
"""Times that each member of a list is drawn anew, while the temperature falls."""
PULL = 8.0
"""Logits of membership per unit of weight that was found before; members' weights are about 1, others' 0."""
AT_ONCE = 64
"""Steps of the drawing whose random numbers are drawn together."""
SWAPPED = 8
"""Swaps that are tried at once; the best of them is made."""
TRIED = 64
"""Swaps, by what they promise, of which one must be better; the list stays where none is."""
NEAR = 6.0
"""Root mean square of residuals, in standard deviations of the noise, up to which a list is improved by swaps."""
VERIFIED = 4.0
"""By how many standard deviations the mean square of a verified list's residuals may exceed that of the noise."""
SETTLED = 2.0
"""The same for a list after which no more are drawn."""
WEIGHTS_RIDGE = 1e-10
"""Of the mean diagonal entry: below it, normal equations in float64 are rounding."""
MARGIN = 1.5
"""By how much what a release can carry of a list must exceed the list's entropy, for any to be verified."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Refined:
    """The weights that refinement found, and whether its list alone explains what was received."""

    posterior: MemberPosterior
    verified: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class PartitionRefinement:
    """Refines what was found of the releases of one domain's cases.

    `weighted` reads them as means with unknown weights, `nearest` as means over images."""

    weighted: ReleaseReader
    nearest: ReleaseReader
    knowledge: Knowledge

    def suits(self, case: Case, seen: Case) -> bool:
        """Whether a list can be verified behind the defense, and the method be run on enough of them.

        The release must carry more than the list has: where it does not, many lists explain what was received."""
        assert case.candidates is not None
        if self.knowledge.shared is None or size_of(case) * LEAST_LISTS > CLUSTERED:
            return False
        _, noise = self.nearest.release(case, seen)
        candidates = records_of(case.candidates, self.nearest) / noise / size_of(case)
        return carried(candidates, size_of(case)) > MARGIN * entropy(size_of(case), len(candidates))

    def refined(self, case: Case, seen: Case, found: MemberPosterior, rng: torch.Generator) -> Refined:
        """The list of `case` behind the release in `seen`, sought around the weights that were `found`."""
        assert case.candidates is not None
        release, noise = self.nearest.release(case, seen)
        lists = _Lists(
            shared=shared_by(case.candidates, self.knowledge), refinement=self, images=size_of(case), rng=rng,
            release=release, noise=noise, records=records_of(case.candidates, self.nearest),
            behind=WeightsBehind(records_of(case.candidates, self.weighted)),
        )  # fmt: skip
        base = found.scores().clamp(0, 1)
        kept = lists.turns(base)
        best = lists.swapped(kept)
        verified = lists.explained_by(best, VERIFIED)
        ranks = best.members[0].double() if verified else kept.members.double().mean(0)
        weights = (2 * ranks + base) / 3
        return Refined(posterior=MemberPosterior(weights=weights.numpy(), listed=size_of(case)), verified=verified)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Tested:
    """Lists (L, G) bool, their styles (L, D), their members' weights times n (L, G), and their residuals (L,).

    A residual is the root mean square of a style's distance from what was received, in units of the noise."""

    members: Tensor
    styles: Tensor
    weights: Tensor
    residuals: Tensor

    def nearest(self, count: int) -> "_Tested":
        """Those `count` with the least residuals, in their order."""
        order = self.residuals.argsort()[:count]
        parts = (self.members, self.styles, self.weights, self.residuals)
        members, styles, weights, residuals = (part[order] for part in parts)
        return _Tested(members=members, styles=styles, weights=weights, residuals=residuals)

    def joined(self, other: "_Tested") -> "_Tested":
        """These lists and others."""
        return _Tested(
            members=torch.cat([self.members, other.members]), styles=torch.cat([self.styles, other.styles]),
            weights=torch.cat([self.weights, other.weights]), residuals=torch.cat([self.residuals, other.residuals]),
        )  # fmt: skip

    def usual_weights(self) -> Tensor:
        """The weight of each candidate (G,) in the lists that it is on, and in one more where it is 1."""
        return (self.weights.sum(0) + 1) / (self.members.double().sum(0) + 1)


@dataclass(kw_only=True, eq=False)
class _Lists:
    """The lists of `images` candidates each that the method is run on, to explain one release (D,) up to `noise` (D,).

    `shared` runs it on candidates at these positions. `records` (G, D) are what the release is nearly a mean of;
    `behind` knows what it is a mean of with unknown weights. `clustered` counts the images that the method was run on.
    """

    shared: ListSharing
    refinement: PartitionRefinement
    images: int
    rng: torch.Generator
    release: Tensor
    noise: Tensor
    records: Tensor
    behind: "WeightsBehind"
    clustered: int = 0

    @property
    def spent(self) -> bool:
        """Whether no more lists may be tested."""
        return self.clustered + self.images * SWAPPED > CLUSTERED

    def explained_by(self, best: _Tested, deviations: float) -> bool:
        """Whether the style of the first list is what was received, up to so many standard deviations of the noise's
        mean square."""
        return float(best.residuals[0]) ** 2 < 1 + deviations * math.sqrt(2 / len(self.noise))

    def turns(self, base: Tensor) -> _Tested:
        """The nearest lists after TURNS, or until one explains the release; the first are drawn by weights `base`."""
        kept = self.tested(largest(logistic(PULL * base, DRAWN, self.rng), self.images)).nearest(KEPT)
        for turn in range(1, TURNS):
            if self.explained_by(kept, SETTLED) or self.clustered + DRAWN * self.images > CLUSTERED:
                break
            known = self.equations(kept)
            begun = kept.members[torch.arange(DRAWN) % len(kept.members)]
            lists = drawn_lists(known, begun, prior=PULL * base, rng=child(self.rng, "lists", turn))
            kept = kept.joined(self.tested(lists)).nearest(KEPT)
        return kept

    def swapped(self, kept: _Tested) -> _Tested:
        """The nearest list after swaps of a member for another candidate, each of which brought its style nearer."""
        best, usual = kept.nearest(1), kept.usual_weights()
        while float(best.residuals[0]) < NEAR:
            swaps = (one for one in self._swaps(best, usual) if one.residuals[0] < best.residuals[0])
            better = next(swaps, None)
            if better is None:
                break
            best = better
        return best

    def _swaps(self, best: _Tested, usual: Tensor) -> Iterator[_Tested]:
        """The best of each SWAPPED of the TRIED swaps that promise the least residuals, by `usual` weights."""
        inside, outside = best.members[0].nonzero().flatten(), (~best.members[0]).nonzero().flatten()
        moved = usual.unsqueeze(1) * (self.records - self.records.mean(0)) / self.images / self.noise
        toward, gram = moved @ ((self.release - best.styles[0]) / self.noise), moved @ moved.T
        square = gram.diagonal()
        added, taken = square[outside] - 2 * toward[outside], square[inside] + 2 * toward[inside]
        promised = added + taken.unsqueeze(1) - 2 * gram[inside][:, outside]
        for some in promised.flatten().argsort()[:TRIED].split(SWAPPED):
            if self.spent:
                return
            lists, rows = best.members.repeat(len(some), 1), torch.arange(len(some))
            lists[rows, inside[some // len(outside)]] = False
            lists[rows, outside[some % len(outside)]] = True
            yield self.tested(lists).nearest(1)

    def tested(self, lists: Tensor) -> _Tested:
        """What the method sends of each of these lists (L, G), before any defense."""
        rng = child(self.rng, "styles", self.clustered)
        self.clustered += self.images * len(lists)
        sent = self.shared(lists.nonzero()[:, 1].view(len(lists), -1), rng).sent
        styles = torch.stack([release_in(one, self.refinement.nearest) for one in sent])
        weights = self.behind.weights(lists, torch.stack([release_in(one, self.refinement.weighted) for one in sent]))
        residuals = ((self.release - styles) / self.noise).square().mean(1).sqrt()
        return _Tested(members=lists, styles=styles, weights=weights, residuals=residuals)

    def equations(self, kept: _Tested) -> ListEquations:
        """The equations of the list, if members have their usual weights and the errors that remain."""
        center = self.records.mean(0)
        weighted = kept.usual_weights().unsqueeze(1) * (self.records - center)
        errors = kept.styles - center - kept.members.double() @ weighted / self.images
        covariance = shrunk_covariance(errors.numpy()).plus(self.noise.square().numpy())
        return whitened_equations(weighted, self.release - center - errors.mean(0), covariance, images=self.images)


def carried(candidates: Tensor, images: int) -> float:
    """The nats that the sum over a list of `images` of the candidates (G, D) tells of it, behind noise of variance 1.

    That of a Gaussian channel whose input has the variance that a list has: an upper bound (Shannon 1948)."""
    share = images / len(candidates)
    singular: Tensor = torch.linalg.svdvals(candidates - candidates.mean(0))
    return float((share * (1 - share) * singular.square()).log1p().sum() / 2)


def entropy(images: int, candidates: int) -> float:
    """The nats of a list of `images` out of so many candidates."""
    return math.lgamma(candidates + 1) - math.lgamma(images + 1) - math.lgamma(candidates - images + 1)


class WeightsBehind:
    """Finds the weights behind means over lists of candidates, whose `records` are (G, C)."""

    def __init__(self, records: Tensor) -> None:
        self._center = records.mean(0)
        self._around = records - self._center
        # weights that add up to their number have one equation more, in units of a record's number
        self._products = self._around @ self._around.T + self._around.std(0).mean().square()

    def weights(self, lists: Tensor, releases: Tensor) -> Tensor:
        """The weights of the members of each of `lists` (L, G), n each, behind its release (C,) of `releases` (L, C).

        They are times n, add up to n, and of several the nearest to 1: least squares by its normal equations, with
        WEIGHTS_RIDGE against directions in which members do not differ. Gives (L, G), 0 where not on the list."""
        members = lists.nonzero()[:, 1].view(len(lists), -1)
        count = members.shape[1]
        off = releases - self._center - lists.double() @ self._around / count
        toward = count * (off @ self._around.T).gather(1, members)
        system = self._products[members.unsqueeze(2), members.unsqueeze(1)]
        diagonal = system.diagonal(dim1=1, dim2=2)
        diagonal += WEIGHTS_RIDGE * diagonal.mean(1, keepdim=True)
        found = torch.cholesky_solve(toward.unsqueeze(2), torch.linalg.cholesky(system)).squeeze(2)
        return torch.zeros(lists.shape, dtype=torch.float64).scatter(1, members, 1 + found)


def drawn_lists(known: ListEquations, lists: Tensor, *, prior: Tensor, rng: torch.Generator) -> Tensor:
    """Lists (L, G) bool drawn from the posterior under `known`, whose errors are 1, and `prior` logits (G,).

    Gibbs sampling (Geman and Geman 1984), one chain from each of `lists`: a member is drawn anew among itself and all
    candidates that are not on the list, given the others, at temperatures that fall from HOTTEST to 1."""
    candidates = known.candidates / known.images
    gram = candidates @ candidates.T
    alone = gram.diagonal() / 2 - candidates @ known.release - prior.numpy()
    taken, rows = lists.numpy(), np.arange(len(lists))
    members, energy = taken.nonzero()[1].reshape(len(lists), -1), taken.astype(np.float64) @ gram + alone
    barred = np.where(taken, np.inf, 0.0)
    steps = SWEEPS * members.shape[1]
    slots = torch.randint(members.shape[1], (steps,), generator=rng).numpy()
    for step, (slot, noise) in enumerate(zip(slots, _gumbel(steps, taken.shape, rng), strict=True)):
        leaving = members[:, slot]
        energy -= gram[leaving]
        barred[rows, leaving] = 0
        temperature = HOTTEST ** (1 - (step + 1) / steps)
        coming = (energy + barred - temperature * noise).argmin(1)
        energy += gram[coming]
        barred[rows, coming] = np.inf
        members[:, slot] = coming
    return torch.from_numpy(np.isinf(barred))


def _gumbel(count: int, shape: tuple[int, ...], rng: torch.Generator) -> Iterator[Array]:
    """Arrays of Gumbel variables: the largest of logits plus these is a draw of the class that has these logits.

    They are drawn AT_ONCE together, in float32: rounding makes none above 16.7, as one of 18 million is."""
    for start in range(0, count, AT_ONCE):
        uniform = torch.rand((min(AT_ONCE, count - start), *shape), generator=rng)
        yield from uniform.log_().neg_().log_().neg_().numpy()


def logistic(logits: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Logits (G,), `count` times with noise of a logistic distribution, (count, G); the first time without."""
    uniform = torch.rand(count, len(logits), generator=rng, dtype=torch.float64).clamp(1e-12, 1 - 1e-12)
    noise = uniform.logit()
    noise[0] = 0
    return logits + noise


def largest(scores: Tensor, count: int) -> Tensor:
    """The `count` largest of each row of scores (L, G), as bool."""
    chosen = torch.zeros(scores.shape, dtype=torch.bool)
    return chosen.scatter(1, scores.topk(count, dim=1).indices, value=True)

"""Means over an unknown number of images of an unknown domain: what a client reads in the bank that it receives.

A client of CCST has every other client's pooled style in float32, but knows neither how many images are behind one, nor
of which domain they are, and has no images of it but its candidates. The release is sum_i w_i t_i with w_i = 0 or 1/n,
so that w_i >= 0 and sum_i w_i = 1: nonnegative least squares finds few positive weights where there are enough
equations (fdgsec.attacks.set_reconstruction.unequal_weights), and n is 1 over their median. Where they do not tell, n
is the likeliest number: means of fewer images lie farther from the mean of all. Center and scale are those of the
candidates."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.optimize import nnls

from fdgsec.attacks.set_reconstruction.box_least_squares import Array
from fdgsec.attacks.set_reconstruction.list_equations import ListEquations, MemberPosterior, list_equations
from fdgsec.attacks.set_reconstruction.unequal_weights import ranked_weights
from fdgsec.attacks.statistics.defense_noise import DefenseNoise, defense_noise_of_mean
from fdgsec.attacks.statistics.domain_populations import Population, population_of_candidates
from fdgsec.attacks.statistics.pooled_questions import candidates_of, release_of
from fdgsec.attacks.statistics.release_precision import rounding_noise
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import StyleStatistics
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.attack import Case
from fdgsec.threats.positive_control_data import upload

POSITIVE = 0.3
"""Of the largest weight: smaller ones are no members'."""
REFINED = 4
"""Times that the number of images is read from the list that it gave."""
ASSUMED = 0.5
"""Share of the candidates of which a mean is passed through a defense by who has no images, and of a control's."""


@dataclass(frozen=True, kw_only=True, eq=False)
class UnknownSizeReader:
    """Reads pooled styles of clients of whom nothing is known; the population is that of the candidates."""

    knowledge: Knowledge
    population: Population
    rng: torch.Generator

    def solved(self, case: Case, seen: Case) -> MemberPosterior:
        """The list of the candidates of `case` that explains the release in `seen`; else the likeliest weights.

        Behind a defense that changes means, candidates are only ranked: any error can then be its noise."""
        moved = self.defense_noise(case)
        known = self.equations(case, seen, moved)
        found = equal_weights(known) if moved is None else None
        if found is not None:
            return found
        counted = replace(known, images=likeliest_size(known))
        ranked = ranked_weights(counted, largest=1 / counted.images)
        for _ in range(REFINED if moved is None else 0):
            listed = explaining_list(counted, ranked.weights)
            if listed is not None:
                return listed
            counted = replace(known, images=nearest_length(counted, ranked.weights))
            ranked = ranked_weights(counted, largest=1 / counted.images)
        return ranked

    def defense_noise(self, case: Case) -> DefenseNoise | None:
        """The effect of the defense on the adversary's own images, or the candidates of `case` where it has none; None
        where means pass it unchanged."""
        candidates, own = candidates_of(case), self.knowledge.own
        images, count = (candidates, assumed_images(candidates)) if own is None else (own, len(own))
        moved = defense_noise_of_mean(
            self.knowledge, images, records=count, about=self.population.about, rng=child(self.rng, "defense")
        )
        return None if moved is None or moved.idle else moved

    def equations(self, case: Case, seen: Case, moved: DefenseNoise | None) -> ListEquations:
        """The equations of the release in `seen`, behind a defense that `moved` it, with no known number of images."""
        statistic, about, candidates = self.knowledge.released_statistic, self.population.about, candidates_of(case)
        release = statistic.about(release_of(seen, self.knowledge), about)
        noise = rounding_noise(seen.release(), statistic, about, images=None)
        if moved is not None:
            release, noise = release - moved.shift, (noise.square() + moved.variance).sqrt()
        records = statistic.about(statistic.records(self.knowledge.statistics(candidates)), about)
        return list_equations(records, release, self.population, noise=noise, images=assumed_images(candidates))

    def independent(self, case: Case, rng: torch.Generator) -> Case:
        """The same question about a mean of candidates drawn with replacement, whoever the members are."""
        statistic, candidates = self.knowledge.released_statistic, candidates_of(case)
        records = statistic.records(self.knowledge.statistics(candidates))
        drawn = records[torch.randint(len(records), (assumed_images(candidates),), generator=rng)]
        sent = statistic.artifact(drawn.mean(0, keepdim=True), like=case.release(), images=len(drawn))
        return replace(case, views=(upload(sent, sender=case.victim),))


def unknown_size_reader(cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> UnknownSizeReader:
    """The reader of pooled styles of clients of unknown sizes and domains. Raises UsageError for a case without
    candidates."""
    population = population_of_candidates([candidates_of(case) for case in cases], knowledge)
    return UnknownSizeReader(knowledge=knowledge, population=population, rng=child(rng, "unknown sizes"))


def assumed_images(candidates: DomainDataset) -> int:
    """How many of the candidates a mean is taken over."""
    return max(1, round(ASSUMED * len(candidates)))


def likeliest_size(known: ListEquations) -> int:
    """The number of images under which the release is likeliest, if the images are any of the candidates.

    A mean of n of G candidates without repetition has the covariance of candidates times (G - n) / (n (G - 1)), beside
    the noise; all n are compared by one singular value decomposition in coordinates in which the noise is white."""
    count = len(known.candidates)
    center = known.candidates.mean(0)
    _, lengths, axes = np.linalg.svd((known.candidates - center) / known.noise, full_matrices=False)
    off = (axes @ ((known.release - center) / known.noise)) ** 2
    sizes = np.arange(1, count)
    spread = lengths**2 / count * ((count - sizes) / (sizes * max(count - 1, 1)))[:, None]
    densities = -0.5 * (off / (1 + spread) + np.log1p(spread)).sum(1)
    return int(sizes[densities.argmax()]) if len(sizes) else 1


def explaining_list(known: ListEquations, weights: Array) -> MemberPosterior | None:
    """The candidates of largest weight (G,), as many as have the release as their mean; None where no number has.

    The release need not tell the number exactly beforehand: it is the one at which the mean fits."""
    images = nearest_length(known, weights)
    counted, found = replace(known, images=images), MemberPosterior(weights=weights, listed=images)
    return found if images < len(weights) and counted.telling() and counted.explained(found) else None


def nearest_length(known: ListEquations, weights: Array) -> int:
    """How many of the candidates of largest weight (G,) have the mean nearest to the release."""
    order = np.argsort(-weights, kind="stable")
    means = known.candidates[order].cumsum(0) / np.arange(1, len(order) + 1)[:, None]
    return int(np.square((means - known.release) / known.noise).mean(1).argmin()) + 1


def of_unknown_size(case: Case, knowledge: Knowledge) -> bool:
    """Whether a case is about a re-drawn client of whom the adversary knows neither size nor domain."""
    nothing = case.records is None and case.domain is None and knowledge.auxiliary is None
    return nothing and case.question == "resampled_clients"


def released_alone(case: Case) -> Case:
    """The case with nothing in view but the victim's pooled style: its upload, or its row of a bank.

    Raises UnseenError where neither was seen, and UsageError for several rows."""
    mean, std = case.released()
    if len(mean) != 1:
        raise UsageError(f"the attack reads one pooled style a client; {case.victim} sent {len(mean)} rows.")
    sent = StyleStatistics(mean=mean[0].float(), std=std[0].float())
    return replace(case, views=(upload(sent, sender=case.victim),))


def equal_weights(known: ListEquations) -> MemberPosterior | None:
    """The weights, times their number, if as many candidates as follow from the weights have the release as their mean.

    None where they do not, or where there are as many of them as numbers: such lists explain anything."""
    matrix, target = (known.candidates / known.noise).T, known.release / known.noise
    held = float(np.abs(matrix).max())  # the sum of weights is as exact as the numbers are
    try:
        weights: Array = nnls(
            np.concatenate([matrix, np.full((1, matrix.shape[1]), held)]),
            np.append(target, held),
            maxiter=20 * matrix.shape[1],
        )[0]
    except RuntimeError:  # of scipy: no solution in so many steps
        return None
    positive = weights[weights > POSITIVE * weights.max()]
    images = round(1 / float(np.median(positive))) if len(positive) else 0
    if not 1 <= images < min(matrix.shape):
        return None
    counted = replace(known, images=images)
    found = MemberPosterior(weights=images * weights, listed=images)
    return found if counted.telling() and counted.explained(found) else None

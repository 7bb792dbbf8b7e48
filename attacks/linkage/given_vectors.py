"""Linkage of clients' vectors from a file: two releases per client, without images, an encoder or a run.

Where the file holds one release of each client, it is linked to itself: as it is (every client is found, unless two
have the same vector; descriptive), and under fresh noise of FISC's appendix B.5, ((1 - p) v + N(0, s^2)) / (1 - p):
v + N(0, (s / (1 - p))^2), with stds cut at 0. `noise_on` says where the noise is: on the "first" releases alone,
which are linked to clean ones, or on "both", with independent draws. Distances between two vectors:
* `plain`: Euclidean. Under noise on the first releases alone the nearest vector is the most likely one, because the
  noise is isotropic (but for the cut at 0).
* `likelihood ratio` (noise on both): minus the log ratio of "both are of one client" to "of two clients", where each
  coordinate is Gaussian between clients, with the variance of the second releases less that of the noise
  (fdgsec.attacks.linkage.pair_likelihood_ratio). Correlations between coordinates are not used.
* `standardized` (two different releases, without noise): Euclidean, each coordinate in standard deviations between
  clients' second releases; coordinates that do not vary are left out.
* `standardized apart`: the same, with each release in its own means and standard deviations.
* `vectors in own units`: the same, after each vector was centered and scaled by itself.
* `whitened`: that of `standardized apart` where the vectors of both releases are white, by a covariance that is shrunk
  as Ledoit and Wolf (2004) do: what many coordinates share and every session draws anew (light, a scanner) counts as
  one direction among many. Who belongs to whom is not used.
* `equal numbers` (two different releases, without noise): minus the number of coordinates that are the same in both
  vectors up to float32's precision, and in no other pair of vectors. Noise on all numbers but one, which was forgotten,
  leaves no distance that tells clients apart.
* `columns that come again` (the same): the sum of absolute differences over all coordinates, weighted by how nearly
  their values, sorted, are those of the other release (fdgsec.attacks.linkage.recurring_columns). The nearest are those
  that were sent without noise or with little, be they rounded, codes that several clients share, in another unit or
  with the opposite sign. Who belongs to whom is not used.
* Others that compare what stays of a client where no number does (fdgsec.attacks.linkage.invariant_features)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fdgsec.attacks.linkage.client_populations import Population, euclidean_distances, rankings
from fdgsec.attacks.linkage.invariant_features import (
    differences_of_columns,
    invariant_features,
    nearest_numbers,
    without_strongest_directions,
)
from fdgsec.attacks.linkage.noise_linkage import between_client_sd
from fdgsec.attacks.linkage.pair_likelihood_ratio import PairedReleases
from fdgsec.attacks.linkage.recurring_columns import recurring_distances
from fdgsec.attacks.statistics.tracing import fit_whitening
from fdgsec.federation.artifacts import StyleStatistics
from fdgsec.runtime.random_streams import child, derangement
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Answer, Prediction
from fdgsec.threats.attack import Case, PositiveControl, Truth
from fdgsec.threats.positive_control_data import upload

SPREAD = "median over columns of the standard deviation between clients (n-1)"
SAME = 2.0**-22
"""Relative difference of two numbers that are one number: float32 rounds by up to a quarter of it."""
SMALLEST = 1e-100
"""Numbers below it are read in other units: their squares are as good as none."""
CLIENTS, CHANNELS, TELLING = 12, 64, 6
"""The positive control: clients, channels, and how many means and stds tell clients apart."""


def link_releases(population: Population, ring: torch.Generator | None = None) -> list[Answer]:
    """Rank the second releases for every first one, without noise; with `ring`, the first ones are permuted before."""
    known = _named(population)
    first, second, numbers = known.first, known.second, _readable(known.plain())
    seen = first if ring is None else [first[i] for i in derangement(len(first), ring).tolist()]
    distances = {"plain": euclidean_distances(numbers, seen, second)}
    if not known.unchanged:
        scaled = _standardized(numbers, torch.stack([numbers[n] for n in second]))
        distances["standardized"] = euclidean_distances(scaled, seen, second)
        each = _standardized_apart(numbers, [first, second])
        distances["standardized apart"] = euclidean_distances(each, seen, second)
        shapes = _standardized_apart(_in_own_units(numbers), [first, second])
        distances["vectors in own units"] = euclidean_distances(shapes, seen, second)
        distances["whitened"] = euclidean_distances(_whitened(each), seen, second)
        everyone = list(known.everyone) or first
        own, others, whole = (torch.stack([numbers[n] for n in part]) for part in (seen, second, everyone))
        distances["equal numbers"] = _equal_numbers(own, others)
        again = recurring_distances(own, whole, others)
        if again is not None:
            distances["columns that come again"] = again
        place = {n: row for row, n in enumerate(everyone)}
        distances["nearest numbers"] = nearest_numbers(whole, others)[[place[n] for n in seen]]
        for name, features in _invariant(numbers, everyone, second).items():
            distances[name] = euclidean_distances(features, seen, second)
    answers: list[Answer] = []
    for name, apart in distances.items():
        answers += rankings(known, {"distance": name, "noise": "none"}, apart, descriptive=known.unchanged)
    return answers


def link_under_noise(
    population: Population, levels: Mapping[str, float], *, shrink: float, rng: torch.Generator
) -> list[Answer]:
    """Rank under noise of each of `levels`, standard deviations s by name, with FISC's p = `shrink`."""
    known = _named(population)
    first, second, clean = known.first, known.second, known.plain()
    spread = spread_of(population)
    answers: list[Answer] = [
        Prediction(case=first[0], name="between_client_sd", value=spread, slice={**known.data, "definition": SPREAD})
    ]
    for name, level in levels.items():
        noisy = known.plain(noise=level, shrink=shrink, rng=child(rng, name))
        said = {"noise": name, "s": f"{level:.9g}", "noisy": f"v + N(0, (s/{1 - shrink:g})^2), stds cut at 0"}
        read = {**clean, **{n: noisy[n] for n in first}}
        where = {**said, "noise_on": "first", "distance": "plain"}
        answers += rankings(known, where, euclidean_distances(read, first, second))
        where = {**said, "noise_on": "both", "distance": "plain"}
        answers += rankings(known, where, euclidean_distances(noisy, first, second))
        releases = [torch.stack([noisy[n] for n in numbers]) for numbers in (first, second)]
        pairs = independent_coordinates(releases[1], (level / (1 - shrink)) ** 2)
        if pairs is not None:
            where = {**said, "noise_on": "both", "distance": "likelihood ratio"}
            answers += rankings(known, where, pairs.distances(*releases))
    return answers


def spread_of(population: Population) -> float:
    """The unit of noise levels: `between_client_sd` of the second releases."""
    numbers = population.plain()
    return between_client_sd(torch.stack([numbers[n] for n in population.second]))


def _named(population: Population) -> Population:
    """The population, whose rows say whether both releases are the same."""
    return replace(
        population, data={**population.data, "data": "the same" if population.unchanged else "another release"}
    )


def _readable(numbers: Mapping[int, Tensor]) -> Mapping[int, Tensor]:
    """All numbers in units of the largest one where they are so small that squares of them vanish in float64."""
    largest = max(float(value.abs().max()) for value in numbers.values())
    if not 0 < largest < SMALLEST:
        return numbers
    return {n: value.to(torch.float64) / largest for n, value in numbers.items()}


def _standardized(numbers: Mapping[int, Tensor], of: Tensor) -> Mapping[int, Tensor]:
    """Divide each coordinate by its standard deviation in `of` (N, D); coordinates that do not vary are left out."""
    spread = of.std(0, correction=1)
    varies = spread > 0
    return {n: value[varies] / spread[varies] for n, value in numbers.items()}


def _standardized_apart(numbers: Mapping[int, Tensor], releases: Sequence[Sequence[int]]) -> Mapping[int, Tensor]:
    """Each coordinate about its mean in its own release, in standard deviations there: what drifts for all clients
    alike is taken away. Coordinates that do not vary in some release are left out."""
    rows = [torch.stack([numbers[n] for n in release]) for release in releases]
    varies = torch.stack([part.amax(0) > part.amin(0) for part in rows]).all(0)  # a spread may be rounding alone
    about = [(part - part.mean(0))[:, varies] for part in rows]
    about = [part / part.abs().amax(0) for part in about]  # else the squares of tiny numbers are 0
    placed = [part / (part.square().sum(0) / (len(part) - 1)).sqrt() for part in about]
    return {
        n: row for release, part in zip(releases, placed, strict=True) for n, row in zip(release, part, strict=True)
    }


def _whitened(numbers: Mapping[int, Tensor]) -> Mapping[int, Tensor]:
    """All vectors in coordinates in which they are white; as they are where none varies."""
    rows = torch.stack(list(numbers.values()))
    if not bool((rows != rows[0]).any()):
        return numbers
    return dict(zip(numbers, fit_whitening(rows)(rows), strict=True))


def _invariant(
    numbers: Mapping[int, Tensor], first: Sequence[int], second: Sequence[int]
) -> dict[str, Mapping[int, Tensor]]:
    """The features of all releases that stay where no number does, by the name of the distance."""

    def named(one: Tensor, other: Tensor) -> Mapping[int, Tensor]:
        return dict(zip([*first, *second], torch.cat([one, other]), strict=True))

    def stacked(read: Mapping[int, Tensor]) -> tuple[Tensor, Tensor]:
        return torch.stack([read[n] for n in first]), torch.stack([read[n] for n in second])

    numbers = {n: value.to(torch.float64) for n, value in numbers.items()}
    differences = differences_of_columns(*stacked(_standardized_apart(numbers, [first, second])))
    found = {
        name: _standardized_apart(named(*features), [first, second])
        for name, features in invariant_features(*stacked(numbers)).items()
    }
    return {
        "differences of columns": named(*differences),
        "without the strongest directions": named(*without_strongest_directions(*stacked(numbers))), **found,
    }  # fmt: skip


def _equal_numbers(first: Tensor, second: Tensor) -> Tensor:
    """Minus the number of coordinates on which a first vector (n, D) agrees with a second one (m, D), and neither with
    another one: (n, m). What several have, as a std that was cut at 0, tells nobody apart."""
    agreement = torch.zeros(len(first), len(second), dtype=torch.float64)
    for ones, others in zip(first.T, second.T, strict=True):
        same = torch.isclose(ones.unsqueeze(1), others.unsqueeze(0), rtol=SAME, atol=0.0)
        agreement += same & (same.sum(1, keepdim=True) == 1) & (same.sum(0, keepdim=True) == 1)
    return -agreement


def _in_own_units(numbers: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Each vector's means about their mean, its stds about theirs, and all at a length of 1: sums over other numbers of
    images, and codes with a scale and an offset of each vector, are what they were."""
    found = {}
    for n, vector in numbers.items():
        means, stds = vector.chunk(2)
        about = torch.cat([means - means.mean(), stds - stds.mean()])
        found[n] = about / about.norm().clamp_min(torch.finfo(about.dtype).tiny)
    return found


def independent_coordinates(second: Tensor, variance: float) -> PairedReleases | None:
    """The likelihood of pairs for noise of `variance` on both releases, from the noisy `second` ones (N, D).

    None where there is no noise, or no coordinate varies by more than it."""
    if variance <= 0:
        return None
    signal = (second.var(0, correction=1) - variance).clamp_min(0)
    kept = signal > 0
    if not bool(kept.any()):
        return None
    total = signal[kept] + variance
    basis = torch.eye(len(signal), dtype=second.dtype)[:, kept] / total.sqrt()
    return PairedReleases(center=second.mean(0), basis=basis, rho=signal[kept] / total)


def planted_vectors(knowledge: Knowledge, levels: Sequence[float], rng: torch.Generator) -> PositiveControl:
    """Twelve clients that a tenth of the coordinates tell apart, by a hundred times the largest of `levels`.

    Other coordinates have standard deviation 1, so that levels in units of it and of 1 are alike. The second releases
    differ from the first by a hundredth of that, but in one number."""
    far = 100 * max([1.0, *levels])
    numbers = torch.randn(CLIENTS, 2 * CHANNELS, generator=rng, dtype=torch.float64)
    telling = torch.cat([torch.arange(TELLING), CHANNELS + torch.arange(TELLING)])
    numbers[:, telling] *= far
    numbers[:, CHANNELS:] += 10 * far  # no std is negative
    again = numbers + 0.01 * torch.randn(numbers.shape, generator=rng, dtype=torch.float64)
    again[:, 0] = numbers[:, 0]  # one number comes again as it was
    order = torch.randperm(CLIENTS, generator=rng)
    cases, truths = [], []
    for half, rows in (("A", numbers), ("B", again[order])):
        for number, (mean, std) in enumerate(zip(*rows.chunk(2, dim=1), strict=True)):
            sent = upload(StyleStatistics(mean=mean.clone(), std=std.clone()))
            where = {"clients": "planted", "half": half}
            cases.append(Case(question="given", views=(sent,), victim="client:0", slice=where))
            truths.append(Truth(partner=int((order == number).nonzero()) if half == "A" else None))
    return PositiveControl(cases=cases, truths=truths, knowledge=knowledge, measurement="top1", at_least=0.9)

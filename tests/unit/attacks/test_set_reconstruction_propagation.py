"""Set reconstruction by expectation propagation: lists that bounds leave open, and where it must give way."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from fdgsec.attacks.set_reconstruction.absent_members import distribution_of
from fdgsec.attacks.set_reconstruction.box_least_squares import Array
from fdgsec.attacks.set_reconstruction.expectation_propagation import _Sums, propagated, propagated_near
from fdgsec.attacks.set_reconstruction.list_equations import ListEquations
from fdgsec.attacks.set_reconstruction.list_solver import ATTEMPTS, RANKED, list_solver, propagations
from fdgsec.metrics.roc import auc
from fdgsec.runtime.random_streams import stream

BINARY = np.array([0.0, 1.0])


def enumerated(matrix: Array, target: Array, levels: Array, shares: Array) -> Array:
    """The posterior (G, L) of every level, by a sum over all combinations."""
    count = matrix.shape[1]
    choices = np.array(list(product(range(len(levels)), repeat=count)))
    off = target - levels[choices] @ matrix.T
    logs = np.log(shares)[choices].sum(1) - 0.5 * np.square(off).sum(1)
    weight = np.exp(logs - logs.max())
    return np.stack([weight @ (choices == level) for level in range(len(levels))], axis=1) / weight.sum()


@pytest.mark.parametrize("rows", [6, 16])
@pytest.mark.parametrize("levels", [BINARY, np.array([0.0, 1.0, 2.5])])
def test_marginals_are_those_of_all_combinations(rows: int, levels: Array):
    """Both forms of the systems: with fewer sums than unknowns, and with more.

    The approximation is no exact one: at 9 unknowns, of some .1 on average at most."""
    rng, count = np.random.default_rng(0), 9 if len(levels) == 3 else 12
    shares = np.full(len(levels), 1 / len(levels))
    for _ in range(4):
        matrix = 0.4 * rng.standard_normal((rows, count))
        target = matrix @ rng.choice(levels, size=count) + rng.standard_normal(rows)

        found = propagated(matrix, target, levels=levels, shares=shares)

        truth = enumerated(matrix, target, levels, shares)
        assert np.abs(found.probabilities - truth).max() < 0.1
        assert np.abs(found.probabilities - truth).mean() < 0.03
        assert np.allclose(found.means, found.probabilities @ levels)


@pytest.mark.parametrize("length", [0.3, 8.0, 15.0])
@pytest.mark.parametrize("common", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_short_columns_are_factorized_in_float32(
    length: float, common: float, seed: int, monkeypatch: pytest.MonkeyPatch
):
    """Undecided marginals and decided ones are those of float64, where all columns share a part that is longer than
    what tells them apart too; longer columns keep float64."""
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((192, 400)) + common * rng.standard_normal((192, 1))
    matrix *= length / np.sqrt(np.square(matrix).sum(0)).max()
    matrix = np.concatenate([matrix, np.full((1, 400), 2.0)])
    target = matrix @ (rng.random(400) < 0.15) + rng.standard_normal(193)
    shares = np.array([0.85, 0.15])
    assert _Sums(matrix=matrix, target=target).columns.dtype == np.float32
    assert _Sums(matrix=20 / length * matrix, target=target).columns.dtype == np.float64

    found = propagated(matrix, target, levels=BINARY, shares=shares).members
    monkeypatch.setattr("fdgsec.attacks.set_reconstruction.expectation_propagation.SHORT", 0.0)
    exact = propagated(matrix, target, levels=BINARY, shares=shares).members

    assert np.abs(found - exact).max() < 1e-3
    assert not np.array_equal(found, exact)


def near_levels(matrix: Array, target: Array, levels: Array, shares: Array, spreads: Array) -> tuple[Array, Array]:
    """The posterior (G, L) of the level that each unknown is near, and its mean (G,), by a sum over all combinations."""
    count = matrix.shape[1]
    choices = np.array(list(product(range(len(levels)), repeat=count)))
    logs, means = [], []
    for choice in choices:
        gain = matrix * spreads[choice] ** 2
        system, off = np.eye(len(target)) + gain @ matrix.T, target - matrix @ levels[choice]
        solved = np.linalg.solve(system, off)
        logs.append(np.log(shares)[choice].sum() - 0.5 * off @ solved - 0.5 * np.linalg.slogdet(system)[1])
        means.append(levels[choice] + gain.T @ solved)
    weight = np.exp(np.array(logs) - max(logs))
    weight /= weight.sum()
    return np.stack([weight @ (choices == level) for level in range(len(levels))], axis=1), weight @ np.array(means)


@pytest.mark.parametrize("rows", [5, 14])
def test_marginals_about_levels_are_those_of_all_combinations(rows: int):
    rng = np.random.default_rng(1)
    levels, spreads, shares = np.array([0.0, 0.7, 1.6]), np.array([0.01, 0.1, 0.3]), np.array([0.5, 0.3, 0.2])
    for _ in range(4):
        matrix, near = 0.6 * rng.standard_normal((rows, 7)), rng.choice(3, size=7, p=shares)
        target = matrix @ rng.normal(levels[near], spreads[near]) + rng.standard_normal(rows)

        found = propagated_near(
            matrix, target, levels=levels, shares=shares, spreads=spreads, start=np.full(7, shares @ levels)
        )

        assert found is not None
        truth, means = near_levels(matrix, target, levels, shares, spreads)
        assert np.abs(found.probabilities - truth).max() < 0.1
        assert np.abs(found.probabilities - truth).mean() < 0.03
        assert np.abs(found.means - means).mean() < 0.05


def test_where_rounding_leaves_no_factor_nothing_is_said():
    levels, spreads, shares = np.array([0.0, 1.0]), np.array([0.01, 0.1]), np.array([0.5, 0.5])
    matrix = np.full((3, 5), np.inf)

    found = propagated_near(matrix, np.ones(3), levels=levels, shares=shares, spreads=spreads, start=np.full(5, 0.5))

    assert found is None


def images_of(*, images: int, noise: float, decay: float = 1.0, seed: int = 0, members: bool = True) -> ListEquations:
    """A mean over the first `images` of 100 candidates, or over as many others: 60 numbers.

    Principal components have spreads from 1 down to 10^-`decay`, as those of styles have; `noise` is the deviation of
    a sum's error."""
    rng = np.random.default_rng(seed)
    turned = np.linalg.qr(rng.standard_normal((60, 60)))[0]
    records = rng.standard_normal((100 + images, 60)) * np.logspace(0, -decay, 60) @ turned
    mean = records[:images].mean(0) if members else records[100:].mean(0)
    return ListEquations(
        candidates=records[:100], release=mean + noise / images * rng.standard_normal(60),
        noise=np.full(60, noise / images), spread=records.std(0), images=images,
        population=lambda: distribution_of(records),
    )  # fmt: skip


def hits(known: ListEquations, weights: torch.Tensor) -> int:
    """The members among as many candidates of largest weight."""
    return int((weights.topk(known.images).indices < known.images).sum())


@pytest.mark.parametrize("seed", range(3))
def test_a_list_that_bounds_leave_open_is_exact(seed: int):
    known = images_of(images=50, noise=0.1, decay=1.5, seed=seed)
    solver = list_solver(known, stream(0, "attack"))

    within, found = known.solved(solver.prior), solver.solved(known)

    assert hits(known, within.scores()) < 50
    assert found.believed().nonzero().flatten().tolist() == list(range(50))


def test_a_list_whose_residual_is_not_that_of_errors_is_not_believed():
    known = images_of(images=50, noise=0.1)
    shifted = replace(known, release=known.release + 0.1)
    assert propagations(known, ATTEMPTS)[-1].only
    assert not propagations(shifted, ATTEMPTS)[-1].only


def test_steps_that_run_away_leave_the_weights_within_bounds():
    """Almost exact means of others, in numbers whose spreads differ by four orders: no combination of candidates fits.

    All members are known to be candidates. The box, which finds the adversary's own lists as well, is taken with its
    weights."""
    known = replace(images_of(images=20, noise=1e-4, decay=4.0, members=False), population=None)
    solver = list_solver(known, stream(0, "attack"))
    away = propagations(known, ATTEMPTS)

    found = solver.solved(known)

    assert not away[-1].only
    assert np.array_equal(found.weights, known.solved(solver.prior).weights)
    assert not any(np.array_equal(found.weights, one.posterior.weights) for one in away)


@pytest.mark.medium
def test_an_adversary_rehearses_which_solution_ranks_better():
    """Errors of 1 leave many lists, those of .1 one that bounds do not find, and those of .001 one that they find."""
    noisy, open_to_bounds, clear = (
        list_solver(images_of(images=50, noise=noise, decay=1.5), stream(0, "attack")).rehearsal
        for noise in (1.0, 0.1, 0.001)
    )
    assert noisy.exact is None
    assert open_to_bounds.exact is not None
    assert open_to_bounds.best is not None
    assert clear.exact is not None
    assert clear.best is None


def test_a_gallery_in_which_all_candidates_are_members_is_left_to_the_bounds():
    """Memberships have no prior of 0 or 1."""
    known = replace(images_of(images=50, noise=3.0), images=100, population=None)
    solver = list_solver(known, stream(0, "attack"))
    assert solver.solved(known).weights.tolist() == [1.0] * 100


def test_where_several_lists_explain_a_release_none_is_the_only_one():
    assert not propagations(images_of(images=50, noise=3.0), ATTEMPTS)[-1].only


@pytest.mark.parametrize("noise", [1e-4, 0.4, 4.0])
@pytest.mark.medium
def test_releases_of_others_give_no_list_and_no_evidence(noise: float):
    areas = []
    for seed in range(5):
        known = images_of(images=50, noise=noise, seed=seed, members=False)
        found = list_solver(known, stream(0, "attack")).solved(known)
        areas.append(auc(found.scores()[:50], found.scores()[50:]))
        assert not propagations(known, RANKED)[-1].only
    assert 0.4 < sum(areas) / len(areas) < 0.6  # an area of 50 and 50 has a standard deviation of .058

"""Least squares in a box: what scipy's slower solver finds, within bounds, where columns differ by many powers of ten."""

import math

import numpy as np
import pytest
from scipy.optimize import lsq_linear

from fdgsec.attacks.set_reconstruction import box_least_squares as box
from fdgsec.attacks.set_reconstruction.box_least_squares import (
    Array,
    FewRows,
    WholeHessian,
    box_least_squares,
    least_value,
)


@pytest.mark.parametrize(("rows", "unknowns"), [(30, 12), (12, 12), (20, 35), (3, 40)])
@pytest.mark.parametrize("seed", range(4))
def test_the_value_is_that_of_bounded_variable_least_squares(rows: int, unknowns: int, seed: int):
    rng = np.random.default_rng(seed)
    matrix, target = rng.standard_normal((rows, unknowns)), 3 * rng.standard_normal(rows)

    found = box_least_squares(matrix, target)

    exact = lsq_linear(matrix, target, bounds=(0, 1), method="bvls", tol=1e-14).x
    assert found.min() >= 0
    assert found.max() <= 1
    value, least = (float(((matrix @ w - target) ** 2).sum()) / 2 for w in (found, exact))
    assert value == pytest.approx(least, abs=5e-3)


@pytest.mark.parametrize("seed", range(4))
def test_columns_of_many_magnitudes_are_solved(seed: int):
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((40, 60)) * 10.0 ** rng.uniform(0, 6, size=(40, 1))
    members = rng.random(60) < 0.5

    found = box_least_squares(matrix, matrix @ members)

    assert np.abs(found - members).max() < 0.05


def test_a_solution_inside_the_box_is_that_of_plain_least_squares():
    rng = np.random.default_rng(0)
    matrix, inside = rng.standard_normal((20, 6)), rng.uniform(0.2, 0.8, 6)
    target = matrix @ inside + 0.01 * rng.standard_normal(20)

    found = box_least_squares(matrix, target, gap=1e-9)

    assert np.allclose(found, np.linalg.lstsq(matrix, target, rcond=None)[0], atol=1e-4)


def test_without_equations_weights_are_where_the_ridge_pulls_them():
    found = box_least_squares(np.zeros((0, 5)), np.zeros(0), ridge=1.0, toward=0.3, gap=1e-9)

    assert np.allclose(found, 0.3, atol=1e-4)


def test_a_column_of_zeros_does_not_matter():
    matrix = np.array([[1.0, 0.0], [1.0, 0.0]])

    found = box_least_squares(matrix, np.array([0.25, 0.35]))

    assert found[0] == pytest.approx(0.3, abs=1e-2)
    assert 0 <= found[1] <= 1


@pytest.mark.parametrize("rows", [8, 19, 20, 40])
def test_a_ridge_toward_a_value_is_rows_of_its_own(rows: int):
    rng = np.random.default_rng(rows)
    matrix, target = rng.standard_normal((rows, 30)), 3 * rng.standard_normal(rows)
    longer = np.concatenate([matrix, math.sqrt(0.7) * np.eye(30)])
    values = np.concatenate([target, np.full(30, math.sqrt(0.7) * 0.25)])

    found = box_least_squares(matrix, target, ridge=0.7, toward=0.25, gap=1e-10)

    exact = lsq_linear(longer, values, bounds=(0, 1), method="bvls", tol=1e-14).x
    assert np.abs(found - exact).max() < 1e-4


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_few_rows_are_solved_as_the_whole_hessian_is(scale: float):
    rng = np.random.default_rng(1)
    rows, right = rng.standard_normal((20, 50)), rng.standard_normal(50)
    diagonal = 10.0 ** rng.uniform(-6, 6, 50) / scale
    few = FewRows(rows=rows, ridge=1e-3)
    hessian = rows.T @ rows + 1e-3 * np.eye(50)

    assert np.allclose(few.times(right), hessian @ right)
    for curvature in (few, WholeHessian(hessian=hessian)):
        solve = curvature.inverse(diagonal)
        assert solve is not None
        left = hessian @ solve(right) + diagonal * solve(right)
        assert np.abs(left - right).max() < 1e-7


@pytest.mark.parametrize("rows", [4, 30])
@pytest.mark.parametrize("far", [0.0, 0.3, 1.0, 3.0])
def test_no_weights_within_the_box_undercut_the_least_value(rows: int, far: float):
    """Whatever weights it is computed at: bits of all 4,096 lists, and 4,000 draws; tight at the minimum."""
    rng = np.random.default_rng(0)
    matrix, target = rng.standard_normal((rows, 12)), 3 * rng.standard_normal(rows)
    best = box_least_squares(matrix, target, ridge=0.3, toward=0.4)
    at = best + far * (rng.random(12) - best)

    least = least_value(matrix, target, at, ridge=0.3, toward=0.4)

    lists = (np.arange(2**12)[:, None] >> np.arange(12)) & 1
    tried = np.concatenate([lists, rng.random((4000, 12)), best[None]])
    values = np.square(tried @ matrix.T - target).sum(1) / 2 + 0.3 * np.square(tried - 0.4).sum(1) / 2
    assert least <= values.min()
    if not far:
        assert least == pytest.approx(values.min(), abs=5e-3)


@pytest.mark.parametrize("seed", range(4))
def test_far_from_the_minimum_weights_still_tell_that_none_comes_near_the_target(seed: int):
    """The tangent at them tells less, or nothing, as it falls below zero somewhere in the box."""
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((30, 40))
    target = matrix @ rng.random(40) + 4 * rng.standard_normal(30)
    best = box_least_squares(matrix, target)
    at = 0.5 + 0.1 * (best - 0.5)

    off = matrix @ at - target
    tangent = float(off @ off) / 2 + float(np.minimum(-(matrix.T @ off) * at, (matrix.T @ off) * (1 - at)).sum())
    least = least_value(matrix, target, at)

    assert max(tangent, 0) < 0.9 * least
    assert least <= float(np.square(matrix @ best - target).sum()) / 2


@pytest.mark.parametrize("rows", [4, 30])
def test_a_minimum_that_is_too_large_is_not_sought_to_the_end(rows: int, monkeypatch: pytest.MonkeyPatch):
    """Stopped early, it is shown that no w is good enough; where one is, nothing differs to the bit."""
    rng = np.random.default_rng(1)
    matrix, target = rng.standard_normal((rows, 12)), 30 * rng.standard_normal(rows)
    best = box_least_squares(matrix, target, ridge=0.3)
    smallest = float(np.square(matrix @ best - target).sum() + 0.3 * np.square(best).sum()) / 2
    steps, lengths = list[int](), box._lengths

    def counted(*given: Array) -> tuple[float, float]:
        steps.append(0)
        return lengths(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(box, "_lengths", counted)
    ended = box_least_squares(matrix, target, ridge=0.3, too_large=0.5 * smallest)
    early = len(steps)

    assert np.array_equal(box_least_squares(matrix, target, ridge=0.3, too_large=1.01 * smallest), best)
    assert early < (len(steps) - early) / 2
    assert least_value(matrix, target, ended, ridge=0.3) > 0.5 * smallest


def test_weights_that_are_enough_end_the_search():
    """They are asked for at every step, and the first ones that are enough are the answer."""
    rng = np.random.default_rng(2)
    members = rng.permutation(40) < 10
    matrix = rng.standard_normal((30, 40))
    target, asked = matrix @ members, list[tuple[Array, bool]]()

    def enough(weights: Array) -> bool:
        asked.append((weights, bool(weights[members].min() > weights[~members].max())))
        return asked[-1][1]

    found, best = (box_least_squares(matrix, target, gap=1e-9, enough=one) for one in (enough, None))

    assert found is asked[-1][0]
    assert [answer for _, answer in asked] == [*[False] * (len(asked) - 1), True]
    assert np.abs(best - members).max() < 1e-3 < np.abs(found - members).max()

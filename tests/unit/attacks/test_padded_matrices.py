"""Padded matrices have the same eigenvectors and factors as those that they hold."""

import numpy as np
import pytest

from fdgsec.attacks.set_reconstruction.padded_matrices import eigenvectors, padded_side


@pytest.mark.parametrize("side", [1, 63, 64, 65, 128])
@pytest.mark.parametrize("rank", [3, 200])
def test_eigenvectors_are_those_of_the_matrix_and_of_no_padding(side: int, rank: int):
    rows = np.random.default_rng(0).standard_normal((rank, side)) * np.logspace(0, -3, side)
    matrix = rows.T @ rows

    values, vectors = eigenvectors(matrix)

    assert np.allclose(values, np.linalg.eigvalsh(matrix), rtol=0, atol=1e-12 * values[-1])
    assert np.allclose(vectors.T @ vectors, np.eye(side), atol=1e-12)
    assert np.allclose((vectors * values) @ vectors.T, matrix, atol=1e-12 * values[-1])
    assert np.all(np.diff(values) >= 0)


def test_eigenvectors_of_nothing_are_some_basis():
    values, vectors = eigenvectors(np.zeros((64, 64)))
    assert not values.any()
    assert np.allclose(vectors.T @ vectors, np.eye(64))


def test_sides_grow_only_where_columns_would_meet():
    assert [padded_side(side) for side in (0, 1, 63, 64, 65, 512, 850)] == [0, 1, 63, 72, 65, 520, 850]

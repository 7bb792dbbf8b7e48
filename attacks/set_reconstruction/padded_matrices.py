"""Symmetric matrices whose columns do not fall on the same lines of the processor's cache.

Where a column has a multiple of 64 numbers, those at one height of neighboring columns displace each other: on one core
with AVX-512 a Cholesky factor of 512 x 512 took 2.0 ms and one of 520 x 520 took 1.0, eigenvectors 26 and 20 ms."""

import numpy as np

from fdgsec.attacks.set_reconstruction.box_least_squares import Array

UNFORTUNATE = 64
"""Numbers: sides of multiples of it are padded."""
PADDING = 8


def padded_side(side: int) -> int:
    """The side, or a greater one that is no multiple of UNFORTUNATE."""
    return side + PADDING if side and side % UNFORTUNATE == 0 else side


def eigenvectors(matrix: Array) -> tuple[Array, Array]:
    """The eigenvalues (n,) of a positive semidefinite `matrix` (n, n), the smallest first, and the eigenvectors in
    columns (n, n)."""
    count = len(matrix)
    side = padded_side(count)
    if side == count:
        values, vectors = np.linalg.eigh(matrix)
        return values, vectors
    whole = np.zeros((side, side))
    whole[:count, :count] = matrix
    added = np.arange(count, side)
    whole[added, added] = -max(float(matrix.diagonal().max()), 1.0)  # below all others, which come after them
    values, vectors = np.linalg.eigh(whole)
    return values[side - count :], vectors[:count, side - count :]

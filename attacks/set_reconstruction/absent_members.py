"""Members that are no candidates: what their sum is like, judged by the images that the adversary has.

The share of members that are absent is read from the size of what candidates leave unexplained, in coordinates in which
absent images are white. A covariance that is shrunk toward the identity (Ledoit and Wolf 2004) is of no use there: it
overestimates the smallest variances, those of the directions that tell most, and as much too few members are taken for
absent. Here the variance along each principal component is that of images which the component was not found with
(Bartz, "Cross-validation based Nonlinear Shrinkage", 2016, https://arxiv.org/abs/1611.00798)."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from sklearn.isotonic import isotonic_regression

from fdgsec.attacks.set_reconstruction.box_least_squares import Array
from fdgsec.attacks.set_reconstruction.padded_matrices import eigenvectors

FOLDS = 5
"""Parts of the images, each of which measures the variances along the principal components of the others."""
RELATED = 0.3
"""Weight of an image of another domain in the principal components, where one of the own domain weighs 1."""
LEAST_VARIANCE = 1e-12
"""Of the largest: keeps a covariance positive definite where images do not vary in some direction."""
LEAST_SQUARE = 1e-12
"""Of the largest sum of squares along a component: products of rows lose smaller ones to rounding."""
MOST_KEPT = 16
"""Distributions of images that a process keeps, of at most MOST_DIMENSIONS numbers each: 128 MB."""
MOST_DIMENSIONS = 1024
DECIMALS = 4
"""Rows that are equal up to these, in units of the spread of all numbers, are taken for one image; further digits do
not decide which rows are held out together."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageDistribution:
    """The `mean` (D,) and `covariance` (D, D) of a domain's images, of which `images` have told the mean."""

    mean: Array
    covariance: Array
    images: int

    def sum_of(self, count: float, into: Array | None = None) -> tuple[Array, Array]:
        """The mean (D,) and covariance (D, D), written `into` an array or a new one, of the sum over `count` further
        images.

        The error of the estimated mean counts `count` times."""
        return count * self.mean, np.multiply(count + count**2 / self.images, self.covariance, out=into)


_KEPT: OrderedDict[bytes, ImageDistribution] = OrderedDict()  # memo: hash of rows -> distribution, oldest first
_KEEPING = threading.Lock()


def distribution_of(images: Array, related: Sequence[Array] = ()) -> ImageDistribution:
    """The distribution that `images` (n, D), 2 or more, are drawn from.

    Principal components are those of `images` and of `related` ones (m, D), of other domains, about their means and in
    the same units. The variances are those of `images` alone, and fall from the first component to the last. It depends
    on no order of the images; the same ones, in the gallery of another client, are learned from once in a process."""
    coarse = (images / (images.std() or 1.0)).round(DECIMALS) + 0.0  # no zero has a sign
    order = sorted(zip(_digests(coarse), _digests(images), range(len(images)), strict=True))
    key = hashlib.sha256(b"".join(row for _, row, _ in order) + b"".join(map(_digest, related))).digest()
    found = _KEPT.get(key)
    if found is None:
        alike = np.cumsum([False, *(one[0] != other[0] for one, other in pairwise(order))])
        found = _distribution_of(images[[place for _, _, place in order]], related, alike)
    if images.shape[1] <= MOST_DIMENSIONS:
        with _KEEPING:
            _KEPT[key] = found
            _KEPT.move_to_end(key)
            if len(_KEPT) > MOST_KEPT:
                _KEPT.popitem(last=False)
    return found


def _digest(rows: Array) -> bytes:
    return hashlib.sha256(f"{rows.dtype.str} {rows.shape}".encode() + np.ascontiguousarray(rows).data).digest()


def _digests(rows: Array) -> list[bytes]:
    """The digest of each row."""
    begun = hashlib.sha256(f"{rows.dtype.str} {rows.shape[1:]}".encode())
    found = []
    for row in np.ascontiguousarray(rows):
        one = begun.copy()
        one.update(row.data)
        found.append(one.digest())
    return found


def _distribution_of(images: Array, related: Sequence[Array], alike: npt.NDArray[np.int64]) -> ImageDistribution:
    """The same; images that are `alike` (n,), of one number, are held out together, those of other numbers in turn."""
    count, dimension = images.shape
    different = len(np.unique(alike))
    folds, numbers = (min(FOLDS, different), alike) if different > 1 else (min(FOLDS, count), np.arange(count))
    fold, squares = numbers % folds, np.zeros(dimension)
    for number in range(folds):
        seen, left_out = images[fold != number], images[fold == number]
        off = left_out - seen.mean(0)
        squares += _squares_along(_spanned(seen, related), off) / (1 + 1 / len(seen))
    variances = np.asarray(isotonic_regression(squares / count, increasing=False), dtype=np.float64)
    variances = variances.clip(LEAST_VARIANCE * variances[:1])
    components = _spanned(images, related).components()
    along, across = variances[: components.shape[1]], variances[components.shape[1] :]
    floor = float(across.mean()) if len(across) else 0.0
    covariance: Array = (components * (along - floor)) @ components.T
    covariance[np.diag_indices(dimension)] += floor
    mean: Array = images.mean(0)
    mean.flags.writeable = covariance.flags.writeable = False  # others may have it too
    return ImageDistribution(mean=mean, covariance=covariance, images=count)


def standardized(records: Array) -> Array:
    """Records (n, D) about their mean, in units of their standard deviations; zero where nothing varies."""
    spread = records.std(0)
    varies: npt.NDArray[np.bool_] = spread > 0
    found: Array = np.where(varies, records - records.mean(0), 0.0) / np.where(varies, spread, 1.0)
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class _Spanned:
    """Orthonormal directions (D, k), given by what `mixed` (m, k) makes of `rows` (m, D); None: these are its columns.

    The product of both is only taken where the directions are asked for: that of a few vectors costs less."""

    mixed: Array
    rows: Array | None = None

    def components(self) -> Array:
        """The directions (D, k)."""
        return self.mixed if self.rows is None else self.rows.T @ self.mixed

    def along(self, vectors: Array) -> Array:
        """The coordinates (n, k) of vectors (n, D)."""
        return vectors @ self.mixed if self.rows is None else (vectors @ self.rows.T) @ self.mixed


def _spanned(images: Array, related: Sequence[Array]) -> _Spanned:
    """The principal components of images about their mean and of `related` ones, the first one first; k <= D.

    Where rows are fewer than numbers, they follow from the products of rows, which are a smaller matrix, but for
    components so small that the products lose them to rounding."""
    rows = np.concatenate([images - images.mean(0), *(RELATED**0.5 * part for part in related)])
    if len(rows) >= rows.shape[1]:
        return _Spanned(mixed=eigenvectors(rows.T @ rows)[1][:, ::-1])
    squares, mixed = (part[..., ::-1] for part in eigenvectors(rows @ rows.T))
    varies = squares > LEAST_SQUARE * squares[0]
    if varies.sum() + 1 + len(related) < len(rows):  # more are lost than means take away
        return _Spanned(mixed=np.linalg.svd(rows, full_matrices=False)[2].T)
    return _Spanned(mixed=mixed[:, varies] / np.sqrt(squares[varies]), rows=rows)


def _squares_along(spanned: _Spanned, vectors: Array) -> Array:
    """The sum over vectors (n, D) of squares along each of the k directions, and of what is left in each direction
    across them, (D,)."""
    (_, dimension), count = vectors.shape, spanned.mixed.shape[1]
    along = np.square(spanned.along(vectors)).sum(0)
    across = max(float(np.square(vectors).sum() - along.sum()), 0.0) / max(dimension - count, 1)
    return np.append(along, np.full(dimension - count, across))

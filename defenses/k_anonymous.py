"""Microaggregation: every released style is a mean over at least k images (Domingo-Ferrer & Mateo-Sanz, IEEE TKDE
2002).

Where a method releases rows of single images (CCST's single styles, FedAlign's pool, FedDG's spectra), rows are grouped
into groups of at least k and each is replaced by its group's mean. Where it releases one mean over a client's images,
that mean is sent only if it covers at least k images. The name k-anonymous is the common one. It has no epsilon: a mean
of k still reveals whether a given image is in it (an AUC of about Phi(sqrt(D / k) / sqrt(2)) for the Gaussian test on D
independent numbers)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from fdgsec.federation.artifacts import (
    Amplitudes,
    Artifact,
    ImageStyles,
    StyleDistribution,
    StyleStatistics,
    renumbered,
)
from fdgsec.federation.defense import Outgoing, Protected, Sender
from fdgsec.federation.method import Method
from fdgsec.federation.public_clip_bounds import shared_rows
from fdgsec.privacy.guarantees import RecordMixing
from fdgsec.runtime.errors import UsageError, WithheldError
from fdgsec.runtime.secret_streams import SecretStream

Counted = StyleStatistics | StyleDistribution | ImageStyles | Amplitudes


@dataclass(frozen=True, kw_only=True)
class KAnonymous:
    """Make every released style a mean over at least k images; no (epsilon, delta).

    `groups` of rows are drawn at "random", or made of "nearest" rows (MDAV: repeatedly the row farthest from the mean
    with its k - 1 nearest), which keeps more of the styles' variety and more of what distinguishes images. Nothing is
    released where there are fewer than k: the run ends with the reason."""

    changes: ClassVar[frozenset[str]] = frozenset(kind.__name__ for kind in get_args(Counted))

    k: int = 5
    groups: Literal["random", "nearest"] = "random"

    def __post_init__(self) -> None:
        if self.k < 2:
            raise UsageError(f"k-anonymous needs k of at least 2; got {self.k}.")

    @property
    def assumptions(self) -> Sequence[str]:
        """What it does not guarantee."""
        return ("k-anonymous: no (epsilon, delta): a mean over k images still tells who is among them",)

    @property
    def promise(self) -> RecordMixing:
        """A record affects every row of its group."""
        return RecordMixing(by="k-anonymous")

    def check(self, method: Method) -> None:
        """Works with every method; those that share no style are unchanged."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        """Replace every row by the mean of its group; a pooled style is unchanged.

        Raises WithheldError where fewer than k images are behind what would be released, and UsageError where their
        number is hidden by a guarantee."""
        artifact, sender = outgoing.artifact, outgoing.sender
        if isinstance(artifact, StyleStatistics | StyleDistribution):
            self._check_images(sender)
            return Protected(artifact=artifact, uses=None)
        if not isinstance(artifact, ImageStyles | Amplitudes):
            return None
        if isinstance(artifact, Amplitudes) and shared_rows(sender.state, outgoing.name) is None:  # a mean spectrum
            self._check_images(sender)
            return Protected(artifact=artifact, uses=None)
        rows = _rows(artifact)
        self._check_count(len(rows), "rows", sender.name)
        labels = random_groups(len(rows), self.k, rng) if self.groups == "random" else nearest_groups(rows, self.k)
        return Protected(artifact=renumbered(artifact, lambda _, value: group_means(value, labels)), uses=None)

    def _check_images(self, sender: Sender) -> None:
        if sender.hides_count:
            raise UsageError(
                "k-anonymous counts the images behind a mean, and what it would tell, the defense before it hides: how "
                "many a client has. Leave k-anonymous out, or let the other one take neighbors=replace-one and "
                "unit=record."
            )
        self._check_count(len(sender.client.data), "images", sender.name)

    def _check_count(self, count: int, of: str, client: str) -> None:
        if count < self.k:
            raise WithheldError(
                f"k-anonymous: {client} would release {count} {of}, fewer than k = {self.k}, so that nothing may "
                f"leave it; lower k (--defense k-anonymous:k={max(count, 2)}), or let clients hold or release more."
            )


def _rows(artifact: Artifact) -> Tensor:
    """The numbers of each row, (R, D) float64."""
    parts = [value for value in artifact.tensors().values() if value.is_floating_point()]
    return torch.cat([part.double().flatten(1) for part in parts], dim=1)


def random_groups(count: int, k: int, rng: SecretStream) -> Tensor:
    """Assign each of `count` rows a group, (count,) int64: floor(count / k) groups of nearly equal size."""
    labels = torch.empty(count, dtype=torch.int64)
    labels[rng.permutation(count)] = torch.arange(count) % max(count // k, 1)
    return labels


def nearest_groups(rows: Tensor, k: int) -> Tensor:
    """Assign each of `rows` (R, D) a group of at least k similar ones, (R,) int64; the last group has up to 2k - 1.

    Distances are between standardized rows."""
    spread = rows.std(0, correction=0)
    scaled = (rows - rows.mean(0)) / torch.where(spread > 0, spread, 1.0)
    labels = torch.zeros(len(rows), dtype=torch.int64)
    left, group = torch.arange(len(rows)), 0
    while len(left) >= 2 * k:
        mine = scaled[left]
        far = (mine - mine.mean(0)).square().sum(1).argmax()
        near = (mine - mine[far]).square().sum(1).argsort()[:k]
        labels[left[near]] = group
        kept = torch.ones(len(left), dtype=torch.bool)
        kept[near] = False
        left, group = left[kept], group + 1
    labels[left] = group
    return labels


def group_means(values: Tensor, labels: Tensor) -> Tensor:
    """The mean of each row's group, for `values` (R, ...), in their dtype and order."""
    flat = values.double().flatten(1)
    sums = torch.zeros(int(labels.max()) + 1, flat.shape[1], dtype=torch.float64).index_add_(0, labels, flat)
    means = sums / torch.bincount(labels).unsqueeze(1)
    return means[labels].view(values.shape).to(values)

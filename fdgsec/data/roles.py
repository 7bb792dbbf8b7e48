"""Roles of images: members of the federation, held-out non-members, and auxiliary data that an adversary may know.

The split comes before any partition, per domain and class, so that members and non-members are alike. Near-duplicates
stay together: an image whose copy is a member is not a valid non-member."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.data.lazy_pixels import LazyPixels
from fdgsec.data.sampling import apportion
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child

FRACTIONS = (0.70, 0.15, 0.15)
THRESHOLD = 0.02
_SIDE = 16
_BLOCK = 1024


@dataclass(frozen=True, kw_only=True)
class Roles:
    """A dataset in three parts: `federation` (members), `held_out` (non-members), `auxiliary` (what `knows` may name).

    `fractions` are the requested shares, in this order; `threshold` is the distance below which images are
    duplicates."""

    federation: DomainDataset
    held_out: DomainDataset
    auxiliary: DomainDataset
    fractions: tuple[float, float, float]
    threshold: float

    def summary(self) -> dict[str, dict[str, int]]:
        """Count the images of each domain in each role, as the run records them."""
        parts = {"federation": self.federation, "held_out": self.held_out, "auxiliary": self.auxiliary}
        return {
            role: {name: int((part.domains == index).sum()) for index, name in enumerate(part.domain_names)}
            for role, part in parts.items()
        }


def split_roles(
    dataset: DomainDataset,
    *,
    rng: torch.Generator,
    fractions: tuple[float, float, float] = FRACTIONS,
    threshold: float = THRESHOLD,
    auxiliary: Mapping[str, int] | None = None,
) -> Roles:
    """Split every (domain, class) cell into federation, held-out and auxiliary images; groups stay together.

    `auxiliary` are numbers of auxiliary images, by the name of the domain, in place of the fraction. They are divided
    among the classes by size; the other two roles keep the ratio of their fractions.

    Groups are those of the distribution (attribute `group`: slides, sequences) where it has any, else near-duplicates.
    Lazily decoded images are not searched for near-duplicates.

    A cell misses its fractions by less than one image, or by less than the largest duplicate group in it. The split
    depends on `rng` and on the images, not on their order. Raises UsageError where the fractions do not add up to 1,
    and for a number of auxiliary images that the domain does not have."""
    if min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6 or fractions[0] == 0:
        raise UsageError(f"role fractions must be >= 0, the first > 0, and add up to 1; got {fractions}.")
    groups = _groups(dataset, threshold)
    role = torch.full((len(dataset),), -1)
    for index, name in enumerate(dataset.domain_names):
        positions = (dataset.domains == index).nonzero().flatten().tolist()
        members = torch.tensor(sorted(positions, key=dataset.ids.__getitem__), dtype=torch.int64)
        labels, copies = dataset.labels[members], groups[members]
        child_rng, asked = child(rng, "roles", name), (auxiliary or {}).get(str(name))
        if asked is not None and not 0 <= asked <= len(members):
            raise UsageError(f"{name} has {len(members)} images; {asked} of them cannot be auxiliary.")
        role[members] = _domain_roles(labels, copies, fractions=fractions, auxiliary=asked, rng=child_rng)
    return Roles(
        federation=dataset.subset(role == 0),
        held_out=dataset.subset(role == 1),
        auxiliary=dataset.subset(role == 2),
        fractions=fractions,
        threshold=threshold,
    )


def _groups(dataset: DomainDataset, threshold: float) -> Tensor:
    if "group" in dataset.attributes:
        return dataset.attributes["group"]
    if isinstance(dataset.store, LazyPixels):
        return torch.arange(len(dataset))
    return duplicate_groups(dataset, threshold=threshold)


def _domain_roles(
    labels: Tensor, groups: Tensor, *, fractions: Sequence[float], auxiliary: int | None, rng: torch.Generator
) -> Tensor:
    """Give each image of one domain its role: whole groups first, then single images until every share is full."""
    classes = int(labels.max()) + 1 if len(labels) else 0
    sizes = labels.bincount(minlength=classes).tolist()
    if auxiliary is None:
        room = torch.tensor([apportion(fractions, n) for n in sizes]).view(classes, 3)
    else:
        apart = apportion(sizes, auxiliary)
        rest = [apportion(fractions[:2], n - k) for n, k in zip(sizes, apart, strict=True)]
        room = torch.tensor([[*two, k] for two, k in zip(rest, apart, strict=True)]).view(classes, 3)
        fractions = room.sum(dim=0).double().tolist()  # groups go where there is most room
    role = torch.full_like(labels, -1)
    for group in _groups_by_size(groups, rng):
        need = labels[group].bincount(minlength=classes)
        chosen = _role_with_room(need, room, fractions, rng)
        room[:, chosen] -= need
        role[group] = chosen
    for label in range(classes):
        singles = ((labels == label) & (role < 0)).nonzero().flatten()
        order = torch.randperm(len(singles), generator=rng)
        role[singles[order]] = torch.repeat_interleave(torch.arange(3), _settled(room[label]))
    return role


def _groups_by_size(groups: Tensor, rng: torch.Generator) -> list[Tensor]:
    """List the groups of more than one image, the largest first and equal ones in random order."""
    members: dict[int, list[int]] = {}
    for position, group in enumerate(groups.tolist()):
        members.setdefault(group, []).append(position)
    several = [torch.tensor(positions) for positions in members.values() if len(positions) > 1]
    order = torch.randperm(len(several), generator=rng).tolist()
    return sorted((several[i] for i in order), key=len, reverse=True)


def _role_with_room(need: Tensor, room: Tensor, fractions: Sequence[float], rng: torch.Generator) -> int:
    """Draw a role by its fraction among those with room for the group; without one, take the least overfull."""
    excess = (need[:, None] - room).clamp(min=0).sum(dim=0)
    possible = torch.tensor(fractions) > 0
    fits = possible & (excess == 0)
    if fits.any():
        return int(torch.multinomial(torch.tensor(fractions) * fits, 1, generator=rng))
    return int(excess.masked_fill(~possible, int(excess.max()) + 1).argmin())


def _settled(room: Tensor) -> Tensor:
    """Balance the roles that groups overfilled against the roles with most room; the sum is unchanged."""
    left = room.clamp(min=0)
    while left.sum() > room.sum():
        left[left.argmax()] -= 1
    return left


def duplicate_groups(dataset: DomainDataset, *, threshold: float = THRESHOLD) -> Tensor:
    """Number the near-duplicate group of every image: (N,) int64, equal for images of one group.

    Two images of a domain are near-duplicates where the root mean square difference of their 16 x 16 averages (RGB in
    [0, 1]) is below `threshold`; groups are the connected components. Time grows with the square of a domain's size.
    Raises UsageError where `threshold` is negative."""
    if threshold < 0:
        raise UsageError(f"the duplicate threshold must be >= 0; got {threshold}.")
    groups = torch.empty(len(dataset), dtype=torch.int64)
    first = 0
    for domain in range(len(dataset.domain_names)):
        members = (dataset.domains == domain).nonzero().flatten()
        if not len(members):
            continue
        pairs = _near_pairs(_thumbnails(dataset, members), threshold).numpy()
        size = len(members)
        links = coo_array((np.ones(pairs.shape[1], dtype=np.int8), (pairs[0], pairs[1])), shape=(size, size))
        count, component = connected_components(links, directed=False)
        groups[members] = torch.from_numpy(component.astype(np.int64)) + first
        first += int(count)
    return groups


def _thumbnails(dataset: DomainDataset, positions: Tensor) -> Tensor:
    """Average the images down to 16 x 16: (n, 768) float32 in [0, 1]."""
    rows, columns = (F.adaptive_avg_pool1d(torch.eye(side), _SIDE) for side in dataset.image_size)
    # as matrix products the averages take a third of the time of adaptive_avg_pool2d, and equal it
    parts = [rows.T @ (dataset.pixels(part).float() @ columns) for part in torch.split(positions, 64)]
    return torch.cat(parts).flatten(1) / 255.0


def _near_pairs(points: Tensor, threshold: float) -> Tensor:
    """List the pairs of rows closer than `threshold` (root mean square): (2, pairs), each pair once.

    Block by block one matrix product proposes pairs with a margin for its rounding; each pair is then checked in
    float64, so that the result does not depend on the blocks."""
    limit = threshold**2 * points.shape[1]
    margin = 1e-5 * points.shape[1]  # over 10 times the error of |a|^2 + |b|^2 - 2ab in float32 for values in [0, 1]
    norms = points.square().sum(dim=1)
    found: list[Tensor] = []
    for start in range(0, len(points), _BLOCK):
        block = points[start : start + _BLOCK]
        distance = norms[start : start + _BLOCK, None] + norms[None, start:] - 2 * block @ points[start:].T
        near = (distance < limit + margin).triu(diagonal=1).nonzero() + start
        for pairs in torch.split(near, 4096):
            exact = (points[pairs[:, 0]].double() - points[pairs[:, 1]].double()).square().sum(dim=1)
            found.append(pairs[exact < limit])
    return torch.cat(found).T if found else torch.empty((2, 0), dtype=torch.int64)

"""Groups of domains as one domain: the unseen domain may consist of several."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from fdgsec.data.domains import DomainDataset
from fdgsec.runtime.errors import DataError

JOIN, SPLIT = "+", "@"


def join_domains(dataset: DomainDataset, name: str) -> tuple[DomainDataset, str]:
    """Join the domains that `name` refers to into one, and give the dataset and the name of the joined domain.

    `name` is a domain, several domains joined by "+", or "@SPLIT": the domains whose images all lie in that official
    split (WILDS keeps whole cameras and hospitals for `@val` and `@test`). Images keep ids, order and labels; the new
    domain takes the place of its first. Raises DataError for a domain or split that the dataset does not have, and for
    a domain that is named twice."""
    if name in dataset.domain_names:
        return dataset, name
    members = _of_split(dataset, name[1:]) if name.startswith(SPLIT) else _named(dataset, name)
    if len(members) == 1:
        return dataset, str(dataset.domain_names[members[0]])
    first = min(members)
    kept = [index for index in range(len(dataset.domain_names)) if index == first or index not in members]
    numbers = torch.full((len(dataset.domain_names),), kept.index(first))
    numbers[kept] = torch.arange(len(kept))
    names = [name if index == first else str(dataset.domain_names[index]) for index in kept]
    return replace(dataset, domains=numbers[dataset.domains], domain_names=names), name


def _named(dataset: DomainDataset, name: str) -> list[int]:
    members = [dataset.domain_index(part) for part in name.split(JOIN)]
    if len(set(members)) < len(members):
        raise DataError(f"{name} names a domain twice.")
    return members


def _of_split(dataset: DomainDataset, split: str) -> Sequence[int]:
    inside = dataset.of_split(split).domains
    counts = torch.bincount(dataset.domains, minlength=len(dataset.domain_names))
    whole = (torch.bincount(inside, minlength=len(counts)) == counts) & (counts > 0)
    if not whole.any():
        raise DataError(f"{dataset.name} has no domain whose images all lie in the official split {split!r}.")
    return [int(index) for index in whole.nonzero().flatten()]

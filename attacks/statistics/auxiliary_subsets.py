"""Nested subsets of an adversary's labeled or auxiliary images: what it would find if it had fewer of them."""

import torch

from fdgsec.data.domains import DomainDataset
from fdgsec.runtime.random_streams import child


def nested_subset(images: DomainDataset, count: int, rng: torch.Generator) -> DomainDataset:
    """Keep `count` random images of each domain, or all of a domain that has fewer, in the order of `images`.

    With the same `rng`, the images of a larger count contain those of a smaller one, and a domain's do not depend on
    which other domains there are."""
    chosen = []
    for domain in images.domains.unique().tolist():
        mine = (images.domains == domain).nonzero().flatten()
        order = torch.randperm(len(mine), generator=child(rng, "subset", str(images.domain_names[domain])))
        chosen.append(mine[order[:count]])
    return images.subset(torch.cat(chosen).sort().values) if chosen else images


def lacking(images: DomainDataset, domain: str, count: int) -> str:
    """Why there is no subset of `count` images of a domain; empty where there is one."""
    found = len(images.of_domain(domain))
    return "" if found >= count else f"the adversary has {found} images of {domain}, not {count}"

"""Domain inference from a client's generator: nearest reference by the change of its outputs.

Two clients that start from the same generator and train it on images of the same domain change it in similar ways. The
feature is the change of G(x) over probe images x that no generator was trained on. Reference generators, which the
target's public method fits to auxiliary images of one domain each, give the change that is typical of each domain. The
client's change is assigned to the domain with the largest cosine similarity. Lengths are ignored, because the number of
a client's steps carries no information about its domain."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fdgsec.attacks.generator_leakage.generator_membership import (
    TINY,
    GeneratorUpdate,
    perturbation_generator,
    perturbations,
)
from fdgsec.data.domains import DomainDataset, join
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import Knowledge, View

PROBES = 8
"""Auxiliary images of each domain on which generators are probed."""
FEWEST = 4
"""Minimum number of auxiliary images of a domain that leaves some for training beside the probes."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AuxiliarySplit:
    """Auxiliary images split into `probes` and, by domain number, the training `pools` of references."""

    probes: DomainDataset
    pools: Mapping[int, DomainDataset]


@dataclass(frozen=True, kw_only=True, eq=False)
class Fingerprints:
    """The changes of reference generators, (M, D) of unit length, with their `domains` (M,) and `federations` (M,)."""

    changes: Tensor
    domains: Tensor
    federations: Tensor

    def nearest(self, change: Tensor) -> int:
        """The domain whose references have the largest cosine with `change` (D,), after subtracting the mean over
        domains."""
        present = self.domains.unique()
        common = torch.stack([self.changes[self.domains == domain].mean(0) for domain in present]).mean(0)
        centers = torch.stack([self.changes[self.domains == domain].mean(0) - common for domain in present])
        off = change - common
        cosine = (centers @ off) / (centers.norm(dim=1) * off.norm()).clamp_min(TINY)
        return int(present[cosine.argmax()])

    def without(self, federation: int) -> "Fingerprints":
        """The same references without those of one federation."""
        kept = self.federations != federation
        return Fingerprints(changes=self.changes[kept], domains=self.domains[kept], federations=self.federations[kept])

    def left_out_accuracy(self) -> float:
        """The share of references whose domain is predicted correctly from those of the other federations."""
        rest = {federation: self.without(federation) for federation in self.federations.unique().tolist()}
        right = [
            rest[int(federation)].nearest(change) == int(domain)
            for change, domain, federation in zip(self.changes, self.domains, self.federations, strict=True)
        ]
        return sum(right) / len(right)


def too_few_images(images: DomainDataset | None) -> str:
    """The reason why domains cannot be distinguished with these auxiliary images; "" if they can."""
    counts = [] if images is None else torch.bincount(images.domains).tolist()
    able = sum(count >= FEWEST for count in counts)
    return "" if able > 1 else f"needs {FEWEST} auxiliary images of each of 2 domains or more; {able} have as many"


def split_auxiliary(images: DomainDataset, rng: torch.Generator) -> AuxiliarySplit:
    """Set aside up to PROBES images of each domain, a third at most. Domains of fewer than FEWEST images are left out.

    Raises UsageError where fewer than two domains remain."""
    reason = too_few_images(images)
    if reason:
        raise UsageError(f"the domain fingerprint {reason}.")
    probes, pools = list[DomainDataset](), dict[int, DomainDataset]()
    for domain in images.domains.unique().tolist():
        mine = images.of_domain(int(domain))
        if len(mine) < FEWEST:
            continue
        order = torch.randperm(len(mine), generator=child(rng, "probes", int(domain)))
        count = min(PROBES, len(mine) // 3)
        probes.append(mine.subset(order[:count]))
        pools[int(domain)] = mine.subset(order[count:])
    return AuxiliarySplit(probes=join(probes), pools=pools)


def output_change(training: GeneratorUpdate, probes: DomainDataset) -> Tensor:
    """The change of G over the probes during the client's training, (N * 3 * H * W,) of unit length."""
    before, after = (
        perturbations(perturbation_generator(artifact), probes) for artifact in (training.given, training.returned)
    )
    change = (after - before).flatten()
    unit: Tensor = change / change.norm().clamp_min(TINY)
    return unit


def fingerprints(
    parts: AuxiliarySplit, knowledge: Knowledge, *, references: int, most: int, rounds: int, rng: torch.Generator
) -> Fingerprints:
    """Fit `references` generators to each domain, each on a different half of its pool, `most` images at most.

    At least two are needed, so that each can be evaluated against the others."""
    changes, domains, federations = list[Tensor](), list[int](), list[int]()
    for number in range(references):
        data = [
            _random_subset(pool, max(2, min(most, (len(pool) + 1) // 2)), child(rng, "share", number, domain))
            for domain, pool in parts.pools.items()
        ]
        for domain, training in zip(
            parts.pools, generator_updates(data, knowledge, rounds=rounds, rng=child(rng, number)), strict=True
        ):
            changes.append(output_change(training, parts.probes))
            domains.append(domain)
            federations.append(number)
    return Fingerprints(
        changes=torch.stack(changes), domains=torch.tensor(domains), federations=torch.tensor(federations)
    )


def mixed_domain_updates(
    parts: AuxiliarySplit, knowledge: Knowledge, *, clients: int, most: int, rounds: int, rng: torch.Generator
) -> list[GeneratorUpdate]:
    """Train generators of `clients` clients that hold all domains in equal proportion, for the negative control."""
    pool = join(list(parts.pools.values()))
    count = max(2, min(most, (len(pool) + 1) // 2))
    data = [_random_subset(pool, count, child(rng, "mixed", client)) for client in range(clients)]
    return generator_updates(data, knowledge, rounds=rounds, rng=child(rng, "mixed run"))


def generator_updates(
    data: Sequence[DomainDataset], knowledge: Knowledge, *, rounds: int, rng: torch.Generator
) -> list[GeneratorUpdate]:
    """Run the target's public method among clients that hold `data`, and return each client's generator.

    Raises UsageError where the adversary cannot run it, or where it sent no generator."""
    if knowledge.simulate is None:
        raise UsageError("reference generators need the target's public method; the adversary cannot run it.")
    view = knowledge.simulate(data, rng, rounds=rounds)
    return [_training(view, f"client:{place}") for place in range(1, len(data) + 1)]


def _training(view: View, client: str) -> GeneratorUpdate:
    found = GeneratorUpdate.of(view, client)
    if found is None:
        raise UsageError("a reference federation sent no generator; its rounds are those of the target.")
    return found


def _random_subset(images: DomainDataset, count: int, rng: torch.Generator) -> DomainDataset:
    return images.subset(torch.randperm(len(images), generator=rng)[:count])

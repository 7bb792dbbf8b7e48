"""Sums over several resampled clients: what a server sees under secure aggregation."""

from dataclasses import replace

import torch

from fdgsec.data.domains import DomainDataset, join
from fdgsec.experiments.simulated_runs.resampled_client_cases import LEAST_OUTSIDE
from fdgsec.experiments.simulated_runs.simulator import Cases, Simulator, blinded
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.method import Method
from fdgsec.federation.server_needs import needs_of
from fdgsec.federation.wire import CLIENTS
from fdgsec.runtime.registry import resolve
from fdgsec.threats.attack import Case, Question, Truth


def sums_suffice(method: Method) -> bool:
    """Whether the method's server needs no more than sums over clients."""
    return needs_of(method).uploads == "sum"


def sums_uploads(defense_stack: DefenseStack) -> bool:
    """Whether the server sees nothing but sums over clients."""
    return any(isinstance(defense, resolve("defenses", "secure-aggregation")) for defense in defense_stack.defenses)


def sums(simulator: Simulator, question: Question) -> Cases:
    """Sums of what `clients` resampled clients share, one exchange each; secure aggregation acts after other defenses.

    No cases where the method's server needs more than sums, or a domain has too few images."""
    if not sums_suffice(simulator.method) or not simulator.open_domains:
        return []
    defense_stack = _summing(simulator.defense_stack)
    result: Cases = []
    for number in range(question.count):
        drawn = _drawn(simulator, question, number)
        if drawn is None:
            return []
        held, candidates, members = drawn
        name = f"sums:{question.clients}:{question.records}:{number}"
        view = simulator.view(simulator.exchange(held, name=name, defense_stack=defense_stack))
        total = question.records * question.clients
        where = simulator.domain_of(join(held))
        case = Case(
            question="sums", views=(view,), victim=CLIENTS, records=total, clients=question.clients,
            domain=where, candidates=blinded(candidates),
            slice={
                "domain": where, "n_per_client": question.records, "clients": question.clients,
                "gallery": _gallery_size(question, simulator), "held": f"{100 * question.held:g}%",
            },
        )  # fmt: skip
        result.append((case, Truth(members=members)))
    return result


def _summing(defense_stack: DefenseStack) -> DefenseStack:
    """The run's defenses, and secure aggregation where it is none of them."""
    if sums_uploads(defense_stack):
        return defense_stack
    return replace(defense_stack, defenses=(*defense_stack.defenses, resolve("defenses", "secure-aggregation")()))


def _shares(simulator: Simulator, question: Question) -> list[tuple[DomainDataset, int, int]]:
    """For each domain its images, how many clients hold some of them, and how many others are candidates."""
    found, domains = [], simulator.open_domains
    for place, domain in enumerate(domains):
        holders = len(range(place, question.clients, len(domains)))
        if not holders:
            continue
        pool, own = simulator.others(domain), holders * question.records
        wanted = question.gallery * holders // question.clients - own
        found.append((pool, holders, min(wanted, len(pool) - own)))
    return found


def _gallery_size(question: Question, simulator: Simulator) -> int:
    return sum(holders * question.records + others for _, holders, others in _shares(simulator, question))


def _drawn(
    simulator: Simulator, question: Question, number: int
) -> tuple[list[DomainDataset], DomainDataset, torch.Tensor] | None:
    """The images of each client of a sum, the candidates in random order, and which are members."""
    held, shown, inside = list[DomainDataset](), list[DomainDataset](), list[torch.Tensor]()
    for place, (pool, holders, others) in enumerate(_shares(simulator, question)):
        own = holders * question.records
        if len(pool) < own + LEAST_OUTSIDE:
            return None
        rng = simulator.rng("sums", question.clients, question.records, number, place)
        order = torch.randperm(len(pool), generator=rng)
        held += [pool.subset(rows) for rows in order[:own].split(question.records)]
        kept, left = round(question.held * own), round(question.held * others)
        shown.append(pool.subset(torch.cat([order[:own][:kept], order[own : own + others][:left]])))
        inside.append(torch.arange(kept + left) < kept)
    rng = simulator.rng("sums order", question.clients, question.records, number)
    mixed = torch.randperm(sum(len(part) for part in shown), generator=rng)
    return held, join(shown).subset(mixed), torch.cat(inside)[mixed]

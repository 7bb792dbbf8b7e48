"""Runs with a malicious client that forges its messages, paired with honest runs."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.data.sampling import uniform
from fdgsec.experiments.simulated_runs.simulator import Cases, Simulator
from fdgsec.federation.artifacts import InterpolationStyle, StyleStatistics
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.malicious_client_protocol import MaliciousClient
from fdgsec.federation.method import Client
from fdgsec.federation.robust_statistics import krum, median, trimmed_mean
from fdgsec.runtime.progress import tracked
from fdgsec.threats.answers import Harm
from fdgsec.threats.attack import Case, Question, Truth
from fdgsec.threats.paired_runs import Run, Setting, displacement, harm_of_forgery, honest_run, hostile_run


def hostile(simulator: Simulator, question: Question) -> Cases:
    """For each of `count` seeds one honest run, and one for each malicious client in the place of the adversary's.

    Seeds are the run's and those that follow; clients are the run's, each with at most `records` of its images. Without
    training (`rounds` 0) only the exchange is run. A malicious client that needs one run only (`once`) is run once. An
    adversary that is no client has no cases."""
    forger = forger_of(simulator)
    result: Cases = []
    if forger is None:
        return result
    setting = Setting(
        method=simulator.method,
        members=_members(simulator, question.records),
        defense_stack=simulator.defense_stack,
        guards=simulator.guards,
        measured=measured_images(simulator),
    )
    rounds, settled = min(question.rounds, simulator.rounds), set[MaliciousClient]()
    for number in tracked(range(question.count), "runs with a forged message"):
        seed = simulator.seed + number
        model = initial_model(simulator, seed, rounds)
        honest = honest_run(setting, seed=seed, rounds=rounds, model=model, forger=forger)
        for malicious_client in question.malicious_clients:
            if malicious_client in settled:
                continue
            other = hostile_run(
                setting, seed=seed, rounds=rounds, model=model, malicious_clients={forger: malicious_client}
            )
            rng = simulator.rng("hostile", malicious_client.kind, malicious_client.name, number)
            harm = harm_of_forgery(honest, other, setting=setting, forgers=[forger], rng=rng)
            result.append((_case(question, forger, malicious_client), Truth(harm=harm)))
            if malicious_client.once and (harm.hostile.refused or harm.harmless):
                settled.add(malicious_client)
    return result


def forger_of(simulator: Simulator) -> str | None:
    """The client that the adversary is, or None."""
    names = {client.name for client in simulator.clients}
    return next((party for party in simulator.adversary.parties if party in names), None)


def _members(simulator: Simulator, most: int) -> list[Client]:
    """The run's clients with `most` of their training images, drawn evenly (0: all)."""
    if not most:
        return list(simulator.clients)
    return [
        replace(
            client,
            data=client.data.subset(uniform(client.data, most, simulator.rng("hostile", client.name)).sort().values),
        )
        for client in simulator.clients
    ]


def measured_images(simulator: Simulator) -> dict[str, DomainDataset]:
    """The unseen domain, and the held-out images of the source domains, which models learn first."""
    held = simulator.roles.held_out
    seen = {"source domains": held.subset(torch.isin(held.domains, torch.tensor(simulator.sources)))}
    return seen if simulator.unseen is None else {"unseen domain": simulator.unseen, **seen}


def initial_model(simulator: Simulator, seed: int, rounds: int) -> GlobalModel | None:
    """The initial model of a seed; the run's own where no other can be drawn."""
    if not rounds and simulator.method.shares != "every":
        return None
    return simulator.model if simulator.initial is None else simulator.initial(seed)


def _case(
    question: Question, forger: str, malicious_client: MaliciousClient, where: Mapping[str, str | int] | None = None
) -> Case:
    """A case without views: harm does not depend on what the adversary sees."""
    return Case(
        question=question.kind, views=(), victim=forger,
        slice={"artifact": malicious_client.kind, "forgery": malicious_client.name, **(where or {})},
    )  # fmt: skip


def breakdown(simulator: Simulator, question: Question) -> Cases:
    """Exchanges among single-domain clients, of which the first `hostile` send the same kind of forgery.

    Domains alternate between clients. For each of `count` draws of clients, each malicious client and each number of
    hostile clients: the displacement of the published style (FISC's interpolation style), and of the mean, the median,
    the trimmed mean and Krum's choice of the same uploads. No cases if the pools have too few images or no client is
    malicious."""
    pools = [simulator.drawable(domain) for domain in simulator.sources]
    per_pool = -(-question.clients // len(pools))
    result: Cases = []
    if forger_of(simulator) is None or min(len(pool) for pool in pools) < question.records * per_pool:
        return result
    for number in tracked(range(question.count), "exchanges with forged messages"):
        orders = [
            torch.randperm(len(pool), generator=simulator.rng("breakdown", number, place))
            for place, pool in enumerate(pools)
        ]
        members = []
        for client in range(question.clients):
            which, turn = client % len(pools), client // len(pools)
            rows = orders[which][turn * question.records : (turn + 1) * question.records]
            members.append(Client(name=f"client:{client}", data=pools[which].subset(rows)))
        method = simulator.method.fitting(len(members))
        setting = Setting(
            method=method, members=members, defense_stack=simulator.defense_stack, guards=simulator.guards
        )
        honest = honest_run(setting, seed=simulator.seed + number, rounds=0, model=None, forger="client:0")
        for malicious_client in question.malicious_clients:
            for count in question.hostile:
                forgers = {client.name: malicious_client for client in members[:count]}
                other = hostile_run(
                    setting, seed=simulator.seed + number, rounds=0, model=None, malicious_clients=forgers
                )
                where: dict[str, str | int] = {"hostile": count, "clients": len(members)}
                truth = Truth(harm=_displaced_centers(honest, other, forger_count=count))
                result.append((_case(question, "client:0", malicious_client, where), truth))
    return result


def _displaced_centers(honest: Run, hostile: Run, *, forger_count: int) -> Harm:
    if hostile.outcome.ended:
        return Harm(honest=honest.outcome, hostile=hostile.outcome)
    kind, last = InterpolationStyle.kind, len(honest.uploads) - 1
    pair = [(run.received.get((kind, f"client:{last}"))) for run in (honest, hostile)]  # the last client is honest
    published = None if pair[0] is None or pair[1] is None else displacement([(pair[0], pair[1])])
    moved = {} if published is None else {kind: published}
    before, after = (_stacked(run.uploads) for run in (honest, hostile))
    for name, center in _centers(len(before), forger_count=forger_count).items():
        start = center(before)
        moved[name] = float((center(after) - start).norm() / start.norm())
    return Harm(honest=honest.outcome, hostile=hostile.outcome, displacement=moved)


def _stacked(uploads: Mapping[str, StyleStatistics]) -> Tensor:
    """All clients' styles in the order of their numbers, (N, 2C) float64."""
    ordered = sorted(uploads, key=lambda name: int(name.partition(":")[2]))
    return torch.stack([torch.cat([uploads[name].mean, uploads[name].std]) for name in ordered]).double()


def _centers(clients: int, *, forger_count: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """The centers of fdgsec.federation.robust_statistics that exist for so many clients.

    Each is given the number of hostile clients."""
    found: dict[str, Callable[[Tensor], Tensor]] = {"mean": lambda rows: rows.mean(0), "median": median}
    if forger_count < clients / 2:
        found["trimmed-mean"] = lambda rows: trimmed_mean(rows, trim=forger_count)
    if clients > 2 * forger_count + 2:
        found["krum"] = lambda rows: rows[krum(rows, hostile=forger_count)]
    return found

"""Cases from the trained run: membership of its clients' training images."""

import torch

from fdgsec.data.domains import DomainDataset, join
from fdgsec.experiments.simulated_runs.simulator import Cases, Simulator, blinded
from fdgsec.threats.attack import Case, Question, Truth


def trained(simulator: Simulator, question: Question) -> Cases:
    """Per client of the run, or of so many `clients` in equal steps: up to `count` of its training images among as many
    held-out images.

    Both have the same number of images of each class of each domain, so that skewed classes do not reveal the members.
    Clients with fewer than two of each are left out."""
    result: Cases = []
    if simulator.run is None:
        return result
    honest = [client for client in simulator.clients if client.name not in simulator.adversary.parties]
    most = min(question.clients or len(honest), len(honest))
    for client in (honest[step * len(honest) // most] for step in range(most)):
        rng = simulator.rng("trained", client.name, question.count)
        inside, outside = _members_and_others(client.data, simulator.roles.held_out, question.count, rng)
        if len(inside) < 2:
            continue
        both = join([inside, outside])
        mixed = torch.randperm(len(both), generator=rng)
        where = simulator.domain_of(client.data)
        asked = both.subset(mixed)
        case = Case(
            question="trained", views=(simulator.view(simulator.run),), victim=client.name,
            records=len(client.data), domain=where, slice={"domain": where}, candidates=blinded(asked, labeled=True),
        )  # fmt: skip
        truth = Truth(
            members=mixed < len(both) // 2, images=asked.pixels(), rows=torch.arange(len(asked)),
            domains=torch.bincount(client.data.domains).argmax().reshape(1),
        )  # fmt: skip
        result.append((case, truth))
    return result


def _members_and_others(
    own: DomainDataset, held: DomainDataset, count: int, rng: torch.Generator
) -> tuple[DomainDataset, DomainDataset]:
    """Draw up to `count` of `own` images with counterparts in `held`, and as many of `held`, per class and domain."""
    classes = len(own.class_names)
    order, others = torch.randperm(len(own), generator=rng), torch.randperm(len(held), generator=rng)
    mine, theirs = ((data.domains * classes + data.labels)[rows] for data, rows in ((own, order), (held, others)))
    cells = torch.unique(mine)
    eligible = torch.zeros(len(order), dtype=torch.bool)
    for cell in cells:
        eligible[(mine == cell).nonzero().flatten()[: int((theirs == cell).sum())]] = True
    asked = eligible.nonzero().flatten()[:count]
    beside = [(theirs == cell).nonzero().flatten()[: int((mine[asked] == cell).sum())] for cell in cells]
    return own.subset(order[asked]), held.subset(others[torch.cat(beside)])

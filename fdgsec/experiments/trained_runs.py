"""The trained run as it is, asked about its clients' training images."""

import torch

from fdgsec.data.domains import join
from fdgsec.experiments.instruments import Cases, Instruments, blinded
from fdgsec.threats import Case, Request, Truth


def trained(lab: Instruments, request: Request) -> Cases:
    """Per client of the run: up to `count` of its training images among as many held-out ones of the same domains.

    Members and non-members are drawn alike (roles split every domain by class before clients are made); of each domain as
    many are asked about on either side. Clients with fewer than two of each are left out."""
    result: Cases = []
    if lab.run is None:
        return result
    for client in lab.clients:
        if client.name in lab.adversary.parties:
            continue
        rng = lab.coins("trained", client.name, request.count)
        order = torch.randperm(len(client.data), generator=rng)
        inside, outside = [], []
        for domain in client.data.domains.unique().tolist():
            held = lab.roles.held_out.of_domain(int(domain))
            own = order[client.data.domains[order] == domain]
            share = round(request.count * len(own) / len(order))
            asked = min(share, len(own), len(held))
            inside.append(client.data.subset(own[:asked]))
            outside.append(held.subset(torch.randperm(len(held), generator=rng)[:asked]))
        both = join([*inside, *outside])
        if len(both) < 4:
            continue
        mixed = torch.randperm(len(both), generator=rng)
        where = lab.domain_of(client.data)
        case = Case(
            request="trained", views=(lab.view(lab.run),), victim=client.name, records=len(client.data), domain=where,
            slice={"domain": where}, candidates=blinded(both.subset(mixed), labelled=True),
        )  # fmt: skip
        result.append((case, Truth(members=mixed < len(both) // 2)))
    return result

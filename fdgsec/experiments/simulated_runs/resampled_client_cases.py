"""Runs on resampled clients, which are independent; members and non-members have the same distribution."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from fdgsec.attacks.membership.image_styles import random_crops
from fdgsec.data.domains import DomainDataset, join
from fdgsec.data.sampling import skewed, uniform
from fdgsec.experiments.simulated_runs.simulator import Cases, Simulator, blinded, shown_images
from fdgsec.federation.method import CLUSTER_SIZES, State
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import View
from fdgsec.threats.attack import Case, Question, Truth

CANDIDATES = 150
"""Number of members per membership case, and of non-members."""
LEAST_OUTSIDE = 30
"""Number of images that must remain outside a resampled client."""
CROPPED = 0.8
"""Smallest share of the area that a random crop keeps, as in training (fdgsec.nn.training.training_plan)."""


def resampled_clients(simulator: Simulator, question: Question) -> Cases:
    """Resample clients from all images of a domain that the adversary does not hold; images not drawn are non-members.

    Every image is a member of some clients and not of others, so that peculiarities of an image or of the adversary's
    reference favor neither answer, and clients are independent units for an interval. With a fixed set of non-members
    they are not: a bootstrap over clients then covered 2 to 54% instead of 95%."""
    result: Cases = []
    for domain in simulator.sources:
        where = simulator.domain_name(domain)
        pool = simulator.others(domain)
        if len(pool) < question.records + LEAST_OUTSIDE:
            continue
        drawn: list[DomainDataset] = []
        for number in range(question.count):
            rng = simulator.rng("resampled", domain, question.records, number)
            order = torch.randperm(len(pool), generator=rng)
            drawn.append(pool.subset(order[: question.records]))
        observed = simulator.exchange(drawn, name=f"resampled:{domain}:{question.records}")
        view = simulator.view(observed)
        for number, data in enumerate(drawn):
            rng = simulator.rng("resampled", domain, question.records, number)
            order = torch.randperm(len(pool), generator=rng)
            candidates, members, slices = candidates_of(order, question, rng)
            case = Case(
                question="resampled_clients", views=(view,), victim=f"client:{number + 1}", records=len(data),
                domain=where, slice={"domain": where, "n_per_client": question.records, **slices},
                candidates=blinded(pool.subset(candidates)),
            )  # fmt: skip
            truth = Truth(
                members=members,
                domains=torch.tensor([domain]),
                statistic=simulator.statistic_of(data).mean(0, keepdim=True),
            )
            result.append((case, truth))
    return result


def candidates_of(
    order: Tensor, question: Question, rng: torch.Generator
) -> tuple[Tensor, Tensor, Mapping[str, str | int]]:
    """The candidates of a client that holds the first images of `order`, in random order, and which are members.

    A gallery has all members and the first of the others. Of those `held` is the share of each that is shown."""
    own, outside = order[: question.records], order[question.records :]
    if not question.gallery:
        asked = min(CANDIDATES, len(own), len(outside))
        both, inside = torch.cat([own[:asked], outside[:asked]]), asked
        slices: dict[str, str | int] = {}
    else:
        others = outside[: question.gallery - len(own)]
        kept, left = (max(1, round(question.held * len(part))) for part in (own, others))
        both, inside = torch.cat([own[:kept], others[:left]]), kept
        slices = {"gallery": len(own) + len(others), "held": f"{100 * question.held:g}%"}
    mixed = torch.randperm(len(both), generator=rng)
    return both[mixed], mixed < inside, slices


def added_images(simulator: Simulator, question: Question) -> Cases:
    """Clients that release a pooled style twice, the second time with `added` more images and without `dropped` ones.

    `count` per domain. An image that stays is on no list that is looked for, and may be a candidate."""
    result: Cases = []
    for domain in simulator.sources:
        pool, size = simulator.others(domain), question.records
        if len(pool) < size + question.added + LEAST_OUTSIDE:
            continue
        changes = [question.added, *([question.dropped] if question.dropped else [])]
        orders = [
            torch.randperm(len(pool), generator=simulator.rng("added images", domain, size, *changes, number))
            for number in range(question.count)
        ]
        held = (slice(0, size), slice(question.dropped, size + question.added))
        name = ":".join(["added images", *map(str, [domain, size, *changes])])
        views = tuple(
            simulator.view(simulator.exchange([pool.subset(order[part]) for order in orders], name=name, turn=turn))
            for turn, part in enumerate(held)
        )
        for number, order in enumerate(orders):
            rng = simulator.rng("added images gallery", domain, size, *changes, number)
            result += _changes(simulator.domain_name(domain), pool, order, views, question, number=number, rng=rng)
    return result


def _changes(
    where: str,
    pool: DomainDataset,
    order: Tensor,
    views: tuple[View, ...],
    question: Question,
    *,
    number: int,
    rng: torch.Generator,
) -> Cases:
    """The cases of one client, which held the first images of `order`: which are new, and which were dropped."""
    size, new = question.records, question.added
    changed = new + question.dropped
    rest = torch.cat([order[question.dropped : size], order[size + new :]])
    rest = rest[torch.randperm(len(rest), generator=rng)][: max(0, question.gallery - changed)]
    mixed = torch.randperm(changed + len(rest), generator=rng)
    shown = torch.cat([order[size : size + new], order[: question.dropped], rest])[mixed]
    case = Case(
        question="added_images", views=views, victim=f"client:{number + 1}", records=size + new - question.dropped,
        domain=where, added=new, dropped=question.dropped,
        slice={"domain": where, "n_per_client": size, "added": new, "gallery": len(mixed)},
        candidates=blinded(pool.subset(shown)),
    )  # fmt: skip
    if not question.dropped:
        return [(case, Truth(members=mixed < new))]
    both: Cases = []
    lists: Mapping[Literal["added", "dropped"], Tensor] = {
        "added": mixed < new, "dropped": (mixed >= new) & (mixed < changed),
    }  # fmt: skip
    for asks, members in lists.items():
        if bool(members.any()):
            slices = {**case.slice, "dropped": question.dropped, "asked": asks}
            both.append((replace(case, asks=asks, slice=slices), Truth(members=members)))
    return both


def halves(simulator: Simulator, question: Question) -> Cases:
    """Two releases of each of `count` clients: of disjoint halves, or (sessions) of all its images both times."""
    domains = list(simulator.open_domains)
    groups = [[domain] for domain in domains] if question.scheme != "domain" else [domains] if domains else []
    return [pair for group in groups for pair in _halves_of(simulator, question, group)]


def _halves_of(simulator: Simulator, question: Question, domains: list[int]) -> Cases:
    """Draw the clients of one population from disjoint images; sessions release all of a client's, twice.

    If clients were drawn independently, the first half of one would share images with the second halves of others
    but never with its own, and its true partner would be farther away than chance. No cases where the images do not
    suffice. The halves have new names, so that even an adversary that knows the domain of every client does not
    know theirs."""
    pools = [simulator.others(domain) for domain in domains]
    per_pool = -(-question.count // len(pools))
    records = question.records or max(1, int(0.7 * min(len(pool) for pool in pools)) // (2 * per_pool))
    again = question.kind == "sessions"
    firsts, seconds = [], []
    left = [torch.ones(len(pool), dtype=torch.bool) for pool in pools]
    for number in range(question.count):
        which = number % len(pools)
        rng = simulator.rng("halves", question.scheme, *domains, number)
        remaining = left[which].nonzero().flatten()
        if len(remaining) < 2 * records:
            return []
        pool = pools[which].subset(remaining)
        draw = skewed if question.scheme == "dirichlet" else uniform
        chosen = draw(pool, 2 * records, rng)
        left[which][remaining[chosen]] = False
        firsts.append(pool.subset(chosen if again else chosen[:records]))
        seconds.append(pool.subset(chosen if again else chosen[records:]))
    order = torch.randperm(question.count, generator=simulator.rng("halves-order", question.scheme, *domains))
    held = 2 * records if again else records
    slices: dict[str, str | int] = {"clients": question.scheme, "n_per_client": held}
    if len(domains) == 1:
        slices["domain"] = simulator.domain_name(domains[0])
    name = f"{question.kind}:{question.scheme}:{domains}"
    view_a = simulator.view(simulator.exchange(firsts, name=f"{name}:A"))
    view_b = simulator.view(simulator.exchange([seconds[int(i)] for i in order], name=f"{name}:B", turn=int(again)))
    place = {int(client): position for position, client in enumerate(order)}
    result: Cases = []
    for half, view in (("A", view_a), ("B", view_b)):
        for number in range(question.count):
            case = Case(
                question=question.kind, views=(view,), victim=f"client:{number + 1}", records=held,
                slice={**slices, "half": half},
            )  # fmt: skip
            same = sorted(place[other] for other in range(number % len(pools), question.count, len(pools)))
            result.append((case, Truth(partner=place[number], alike=same) if half == "A" else Truth()))
    return result


def rounds(simulator: Simulator, question: Question) -> Cases:
    """Clients seen in several exchanges under their names, `count` per domain; candidates are half theirs.

    A candidate is a member where any of the exchanges released it (per-image releases), or where it is the client's
    (pooled ones). With the scheme "crops" styles are taken of a random crop of each image, as training would see it."""
    result: Cases = []
    for domain in simulator.sources:
        where, pool = simulator.domain_name(domain), simulator.others(domain)
        if len(pool) < question.records + LEAST_OUTSIDE:
            continue
        orders = [
            torch.randperm(len(pool), generator=simulator.rng("rounds", domain, question.records, number))
            for number in range(question.count)
        ]
        drawn = [pool.subset(order[: question.records]) for order in orders]
        name, held, extraction = f"rounds:{domain}:{question.records}", drawn, dict[str, str | int]()
        if question.scheme == "crops":
            crops = simulator.rng("rounds-crops", domain, question.records)
            held = [random_crops(data, least=CROPPED, rng=child(crops, n)) for n, data in enumerate(drawn)]
            name, extraction = f"{name}:crops", {"extraction": "random crop"}
        observed = [simulator.exchange(held, name=name, turn=turn) for turn in range(question.rounds)]
        views = tuple(simulator.view(one) for one in observed)
        for number, (data, order) in enumerate(zip(drawn, orders, strict=True)):
            client = f"client:{number + 1}"
            shown = [shown_images(data, one.states[client]) for one in observed]
            seen = (
                set(data.ids)
                if None in shown
                else {name for images in shown if images is not None for name in images.ids}
            )
            asked = pool.subset(order[: max(2 * question.records, question.gallery)])
            asked = asked.subset(torch.randperm(len(asked), generator=simulator.rng("rounds-order", domain, number)))
            gallery = {"gallery": len(asked)} if question.gallery else {}
            case = Case(
                question="rounds", views=views, victim=client, records=len(data), domain=where,
                slice={"domain": where, "n_per_client": question.records, **gallery, **extraction},
                candidates=blinded(asked),
            )  # fmt: skip
            members = torch.tensor([name in seen for name in asked.ids])
            sizes = _cluster_sizes(data, observed[-1].states[client], asked)
            result.append((case, Truth(members=members, cluster_sizes=sizes)))
    return result


def _cluster_sizes(data: DomainDataset, state: State, asked: DomainDataset) -> Tensor | None:
    """The number of images in the cluster of each candidate, 0 where it is not the client's; None without clusters."""
    if CLUSTER_SIZES not in state:
        return None
    sizes = dict(zip(data.ids, state[CLUSTER_SIZES].tolist(), strict=True))
    return torch.tensor([sizes.get(name, 0) for name in asked.ids])


def mixtures(simulator: Simulator, question: Question) -> Cases:
    """Clients with skewed shares of classes, `count` per domain, or of domains, `count` in all."""
    together = question.scheme == "domains"
    groups = [list(simulator.sources)] if together else [[domain] for domain in simulator.sources]
    result: Cases = []
    for domains in groups:
        pool = join([simulator.others(domain) for domain in domains])
        if len(pool) < question.records + LEAST_OUTSIDE:
            continue
        draw = partial(skewed, by="domains" if together else "labels")
        drawn = [
            pool.subset(draw(pool, question.records, simulator.rng("mixtures", *domains, question.records, number)))
            for number in range(question.count)
        ]
        view = simulator.view(simulator.exchange(drawn, name=f"mixtures:{domains}:{question.records}"))
        where = "mixed" if together else simulator.domain_name(domains[0])
        for number, data in enumerate(drawn):
            case = Case(
                question="mixtures", views=(view,), victim=f"client:{number + 1}", records=len(data), domain=where,
                slice={"domain": where, "n_per_client": question.records},
            )  # fmt: skip
            result.append((case, Truth(
                proportions=_shares(data.labels, len(data.class_names)),
                domain_shares=_shares(data.domains, len(data.domain_names)),
            )))  # fmt: skip
    return result


def _shares(values: Tensor, count: int) -> Tensor:
    found: Tensor = torch.bincount(values, minlength=count).double() / max(len(values), 1)
    return found


def cohorts(simulator: Simulator, question: Question) -> Cases:
    """Federations of half of a pool of single-domain clients each; the question is which clients of the pool took part.

    A candidate client is represented by images of its own that it did not bring to the federation, unless the scheme is
    "same images" (`groups` says whose they are). All clients of a pool hold disjoint images: any of their domain, or
    (scheme "dirichlet") with skewed class shares. Pools are resampled from the same images. With two `rounds` a case
    shows a second session, with other images of the members of the federation that `partner` names. Clients
    of an adversary's own domain hold some of its images, whether they took part or not."""
    pools = [simulator.drawable(domain) for domain in simulator.sources]
    per_pool = -(-2 * question.clients // len(pools))
    if min(len(pool) for pool in pools) < 2 * question.records * per_pool:
        return []
    drawn = [_cohort(simulator, question, pools, number) for number in range(question.count)]
    name = f"cohorts:{question.scheme}:{question.clients}:{question.records}"
    first = [simulator.view(simulator.exchange(c.members(c.held), name=f"{name}:{i}")) for i, c in enumerate(drawn)]
    again = [
        simulator.view(simulator.exchange(c.members(c.other), name=f"{name}:{i}:again", turn=1))
        for i, c in enumerate(drawn if question.rounds > 1 else [])
    ]
    order = torch.randperm(question.count, generator=simulator.rng("cohorts-order", question.scheme, question.clients))
    result: Cases = []
    for number, cohort in enumerate(drawn):
        case = Case(
            question="cohorts", views=(first[number], *([again[int(order[number])]] if again else [])), victim="server",
            domain="mixed", candidates=blinded(join(cohort.shown)),
            slice={
                "clients": question.clients, "n_per_client": question.records, "scheme": question.scheme or "iid",
            },
            groups=torch.arange(2 * question.clients).repeat_interleave(question.records),
        )  # fmt: skip
        partner = int((order == number).nonzero()) if again else None
        result.append((case, Truth(members=cohort.takes_part, partner=partner)))
    return result


@dataclass(frozen=True, kw_only=True, eq=False)
class _Cohort:
    """A pool of clients: the images that each `held`, `other` images of its own, those `shown`, and who took part."""

    held: Sequence[DomainDataset]
    other: Sequence[DomainDataset]
    shown: Sequence[DomainDataset]
    takes_part: Tensor

    def members(self, data: Sequence[DomainDataset]) -> list[DomainDataset]:
        """The entries of `data` that belong to clients that took part."""
        return [images for images, inside in zip(data, self.takes_part.tolist(), strict=True) if inside]


def _cohort(simulator: Simulator, question: Question, pools: Sequence[DomainDataset], number: int) -> _Cohort:
    """Draw a pool of twice as many clients as take part, of each domain in turn, and half of them."""
    size, records = 2 * question.clients, question.records
    rng = simulator.rng("cohorts", question.scheme, question.clients, records, number)
    left = [torch.ones(len(pool), dtype=torch.bool) for pool in pools]
    draw = skewed if question.scheme == "dirichlet" else uniform
    held, other = list[DomainDataset](), list[DomainDataset]()
    for client in range(size):
        which = client % len(pools)
        remaining = left[which].nonzero().flatten()
        chosen = remaining[draw(pools[which].subset(remaining), 2 * records, rng)]
        left[which][chosen] = False
        held.append(pools[which].subset(chosen[:records]))
        other.append(pools[which].subset(chosen[records:]))
    takes_part = torch.zeros(size, dtype=torch.bool)
    takes_part[torch.randperm(size, generator=rng)[: question.clients]] = True
    shown = held if question.scheme == "same images" else other
    return _Cohort(held=held, other=other, shown=shown, takes_part=takes_part)

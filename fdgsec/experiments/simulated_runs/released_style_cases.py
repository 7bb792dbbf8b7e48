"""Cases from the run's releases, from releases of all images of a domain, and from adding one record."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from fdgsec.data.domains import DomainDataset, join, shares_of
from fdgsec.data.sampling import stratified
from fdgsec.experiments.setup.run_federation import observe
from fdgsec.experiments.simulated_runs.simulator import Cases, Simulator, blinded, shown_images
from fdgsec.threats.attack import Case, Question, Truth

BEHIND = 300
"""Maximum number of true images per client, to which sets of reconstructions are compared."""


def released(simulator: Simulator, question: Question) -> Cases:
    """The run itself, one case per client."""
    observed = simulator.run or observe(
        simulator.method,
        simulator.clients,
        seed=simulator.seed,
        name="run",
        defense_stack=simulator.defense_stack,
        guards=simulator.guards,
    )
    victims = [client for client in simulator.clients if client.name not in simulator.adversary.parties]
    shown = {client.name: shown_images(client.data, observed.states[client.name]) for client in victims}
    gallery = _gallery(simulator, [images for images in shown.values() if images is not None], question.gallery)
    asked = None if gallery is None else blinded(gallery)
    position = {} if gallery is None else {name: index for index, name in enumerate(gallery.ids)}
    result: Cases = []
    for client in victims:
        images, domain = shown[client.name], simulator.domain_of(client.data)
        case = Case(
            question="released", views=(simulator.view(observed),), victim=client.name, records=len(client.data),
            domain=domain, slice={"domain": domain}, candidates=asked,
        )  # fmt: skip
        if images is None:
            majority = torch.bincount(client.data.domains).argmax().reshape(1)
            some = torch.randperm(len(client.data), generator=simulator.rng("behind", client.name))[:BEHIND]
            truth = Truth(
                domains=majority, statistic=simulator.statistic_of(client.data).mean(0, keepdim=True),
                images=client.data.pixels(some),
            )  # fmt: skip
        else:
            placed = torch.tensor([position[name] for name in images.ids], dtype=torch.int64) if position else None
            truth = simulator.truth_of(images, placed)
        labels, domains = client.data.labels, client.data.domains
        proportions = shares_of(labels, len(client.data.class_names))
        shares = shares_of(domains, len(client.data.domain_names))
        result.append((case, replace(truth, proportions=proportions, domain_shares=shares)))
    return result


def _gallery(simulator: Simulator, shown: Sequence[DomainDataset], size: int) -> DomainDataset | None:
    if not shown or not size:
        return None
    true = join(shown)
    known = set(true.ids)
    pool = join([simulator.others(domain) for domain in simulator.sources])
    rest = torch.tensor([i for i, name in enumerate(pool.ids) if name not in known], dtype=torch.int64)
    rng = simulator.rng("gallery", size)
    extra = rest[torch.randperm(len(rest), generator=rng)[: max(size - len(true), 0)]]
    everything = join([true, pool.subset(extra)])
    return everything.subset(torch.randperm(len(everything), generator=rng))


def as_if_released(simulator: Simulator, question: Question) -> Cases:
    """One row per image of a domain that the adversary does not hold, one case per domain."""
    result: Cases = []
    method = simulator.method.releasing_all()
    if method is None:
        return result
    for domain in simulator.sources:
        where, pool = simulator.domain_name(domain), simulator.others(domain)
        if not len(pool):
            continue
        images = stratified(pool, question.per_class, simulator.rng("as-if", domain, question.per_class))
        observed = simulator.exchange([images], name=f"as-if:{domain}:{question.per_class}", method=method)
        shown = shown_images(images, observed.states["client:1"])
        assert shown is not None
        order = torch.randperm(len(images), generator=simulator.rng("as-if-order", domain, question.per_class))
        gallery = images.subset(order)
        position = {name: index for index, name in enumerate(gallery.ids)}
        case = Case(
            question="as_if_released", views=(simulator.view(observed),), victim="client:1", records=len(images),
            domain=where, slice={"domain": where}, candidates=blinded(gallery),
        )  # fmt: skip
        rows = torch.tensor([position[name] for name in shown.ids], dtype=torch.int64)
        result.append((case, simulator.truth_of(shown, rows)))
    return result


def add_one_record(simulator: Simulator, question: Question) -> Cases:
    """A client before and after one image was added, `count` cases per domain.

    It holds the run's images of the domain, but for those that the adversary holds; no cases where it holds all."""
    result: Cases = []
    for domain in simulator.sources:
        where = simulator.domain_name(domain)
        holds = simulator.unheld(simulator.roles.federation.of_domain(domain))
        if not len(holds):
            continue
        pool = simulator.roles.held_out.of_domain(domain)
        order = torch.randperm(len(pool), generator=simulator.rng("add-one", domain))
        gallery = pool.subset(torch.randperm(len(pool), generator=simulator.rng("add-one-gallery", domain)))
        position = {name: index for index, name in enumerate(gallery.ids)}
        asked = blinded(gallery)
        before = simulator.view(simulator.exchange([holds], name=f"add-one:{domain}:before"))
        for number, index in enumerate(order[: question.count]):
            record = pool.subset(index.reshape(1))
            after = simulator.view(simulator.exchange([join([holds, record])], name=f"add-one:{domain}:{number}"))
            case = Case(
                question="add_one_record", views=(before, after), victim="client:1", records=len(holds),
                domain=where, slice={"domain": where}, candidates=asked,
            )  # fmt: skip
            result.append((case, simulator.truth_of(record, torch.tensor([position[record.ids[0]]]))))
    return result

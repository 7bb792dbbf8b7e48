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


def released(lab: Simulator, question: Question) -> Cases:
    """The run itself, one case per client."""
    observed = lab.run or observe(
        lab.method, lab.clients, seed=lab.seed, name="run", defense_stack=lab.defense_stack, guards=lab.guards
    )
    victims = [client for client in lab.clients if client.name not in lab.adversary.parties]
    shown = {client.name: shown_images(client.data, observed.states[client.name]) for client in victims}
    gallery = _gallery(lab, [images for images in shown.values() if images is not None], question.gallery)
    asked = None if gallery is None else blinded(gallery)
    position = {} if gallery is None else {name: index for index, name in enumerate(gallery.ids)}
    result: Cases = []
    for client in victims:
        images, domain = shown[client.name], lab.domain_of(client.data)
        case = Case(
            question="released", views=(lab.view(observed),), victim=client.name, records=len(client.data),
            domain=domain, slice={"domain": domain}, candidates=asked,
        )  # fmt: skip
        if images is None:
            majority = torch.bincount(client.data.domains).argmax().reshape(1)
            some = torch.randperm(len(client.data), generator=lab.rng("behind", client.name))[:BEHIND]
            truth = Truth(
                domains=majority, statistic=lab.statistic_of(client.data).mean(0, keepdim=True),
                images=client.data.pixels(some),
            )  # fmt: skip
        else:
            placed = torch.tensor([position[name] for name in images.ids], dtype=torch.int64) if position else None
            truth = lab.truth_of(images, placed)
        labels, domains = client.data.labels, client.data.domains
        proportions = shares_of(labels, len(client.data.class_names))
        shares = shares_of(domains, len(client.data.domain_names))
        result.append((case, replace(truth, proportions=proportions, domain_shares=shares)))
    return result


def _gallery(lab: Simulator, shown: Sequence[DomainDataset], size: int) -> DomainDataset | None:
    if not shown or not size:
        return None
    true = join(shown)
    known = set(true.ids)
    pool = join([lab.others(domain) for domain in lab.sources])
    rest = torch.tensor([i for i, name in enumerate(pool.ids) if name not in known], dtype=torch.int64)
    rng = lab.rng("gallery", size)
    extra = rest[torch.randperm(len(rest), generator=rng)[: max(size - len(true), 0)]]
    everything = join([true, pool.subset(extra)])
    return everything.subset(torch.randperm(len(everything), generator=rng))


def as_if_released(lab: Simulator, question: Question) -> Cases:
    """One row per image of a domain, one case per domain."""
    result: Cases = []
    method = lab.method.releasing_all()
    if method is None:
        return result
    for domain in lab.sources:
        where = lab.domain_name(domain)
        images = stratified(lab.others(domain), question.per_class, lab.rng("as-if", domain, question.per_class))
        observed = lab.exchange([images], name=f"as-if:{domain}:{question.per_class}", method=method)
        shown = shown_images(images, observed.states["client:1"])
        assert shown is not None
        order = torch.randperm(len(images), generator=lab.rng("as-if-order", domain, question.per_class))
        gallery = images.subset(order)
        position = {name: index for index, name in enumerate(gallery.ids)}
        case = Case(
            question="as_if_released", views=(lab.view(observed),), victim="client:1", records=len(images),
            domain=where, slice={"domain": where}, candidates=blinded(gallery),
        )  # fmt: skip
        rows = torch.tensor([position[name] for name in shown.ids], dtype=torch.int64)
        result.append((case, lab.truth_of(shown, rows)))
    return result


def add_one_record(lab: Simulator, question: Question) -> Cases:
    """A client before and after one image was added, `count` cases per domain."""
    result: Cases = []
    for domain in lab.sources:
        where = lab.domain_name(domain)
        holds = lab.roles.federation.of_domain(domain)
        pool = lab.roles.held_out.of_domain(domain)
        order = torch.randperm(len(pool), generator=lab.rng("add-one", domain))
        gallery = pool.subset(torch.randperm(len(pool), generator=lab.rng("add-one-gallery", domain)))
        position = {name: index for index, name in enumerate(gallery.ids)}
        asked = blinded(gallery)
        before = lab.view(lab.exchange([holds], name=f"add-one:{domain}:before"))
        for number, index in enumerate(order[: question.count]):
            record = pool.subset(index.reshape(1))
            after = lab.view(lab.exchange([join([holds, record])], name=f"add-one:{domain}:{number}"))
            case = Case(
                question="add_one_record", views=(before, after), victim="client:1", records=len(holds),
                domain=where, slice={"domain": where}, candidates=asked,
            )  # fmt: skip
            result.append((case, lab.truth_of(record, torch.tensor([position[record.ids[0]]]))))
    return result

"""Resampled clients that send the gradient of the classifier's head under the run's initial model (FedIIR)."""

import torch

from fdgsec.data.domains import DomainDataset, shares_of
from fdgsec.experiments.simulated_runs.model_round_cases import with_model
from fdgsec.experiments.simulated_runs.resampled_client_cases import LEAST_OUTSIDE, candidates_of
from fdgsec.experiments.simulated_runs.simulator import Cases, Simulator, blinded
from fdgsec.threats.attack import Case, Question, Truth

PICTURES = "pictures"
"""The scheme of questions whose judge compares pictures."""


def head_gradients(simulator: Simulator, question: Question) -> Cases:
    """Clients of `records` images of one domain, `count` per domain, whose candidates come with their classes.

    They share beside each other, with the target's method, plan and defenses. Without a model there are no cases."""
    result: Cases = []
    if simulator.model is None:
        return result
    for domain in simulator.sources:
        pool, where = simulator.others(domain), simulator.domain_name(domain)
        if len(pool) < question.records + LEAST_OUTSIDE:
            continue
        orders = [
            torch.randperm(len(pool), generator=simulator.rng("head gradients", domain, question.records, number))
            for number in range(question.count)
        ]
        drawn = [pool.subset(order[: question.records]) for order in orders]
        view = simulator.view(simulator.exchange(drawn, name=f"head gradients:{domain}:{question.records}"))
        for number, (data, order) in enumerate(zip(drawn, orders, strict=True)):
            rng = simulator.rng("head gradients gallery", domain, question.records, number)
            candidates, inside, slices = candidates_of(order, question, rng)
            pictures, victim = question.scheme == PICTURES, f"client:{number + 1}"
            slices = {"sent": "head gradient", "model": "first"} if pictures else {"domain": where, **slices}
            case = Case(
                question="head_gradients", views=(with_model(view, simulator.model, 0, victim),), victim=victim,
                records=question.records, domain=where,
                slice={"n_per_client": question.records, **slices},
                candidates=blinded(pool.subset(candidates), labeled=True),
            )  # fmt: skip
            result.append((case, _pictures(data, order, candidates) if pictures else Truth(members=inside)))
    return result


def _pictures(data: DomainDataset, order: torch.Tensor, candidates: torch.Tensor) -> Truth:
    """The truth about a client that holds the first images of `order`, all of them among the `candidates`."""
    rows = torch.stack([(candidates == place).nonzero().flatten()[0] for place in order[: len(data)]])
    shares = shares_of(data.labels, len(data.class_names))
    return Truth(rows=rows, images=data.pixels(), labels=data.labels, proportions=shares)

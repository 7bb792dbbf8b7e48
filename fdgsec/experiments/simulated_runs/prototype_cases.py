"""Resampled clients that train one round from the run's initial model and send class means of features (FPL)."""

import torch

from fdgsec.experiments.setup.run_federation import observe
from fdgsec.experiments.simulated_runs.resampled_client_cases import LEAST_OUTSIDE, candidates_of
from fdgsec.experiments.simulated_runs.simulator import Cases, Simulator, blinded
from fdgsec.federation.method import Client
from fdgsec.threats.attack import Case, Question, Truth


def prototypes(simulator: Simulator, question: Question) -> Cases:
    """Clients of `records` images of one domain, `count` per domain, whose candidates come with their classes.

    They train beside each other, with the target's method, plan and defenses. Without a model there are no cases."""
    result: Cases = []
    if simulator.model is None:
        return result
    for domain in simulator.sources:
        pool, where = simulator.others(domain), simulator.domain_name(domain)
        if len(pool) < question.records + LEAST_OUTSIDE:
            continue
        orders = [
            torch.randperm(len(pool), generator=simulator.rng("prototypes", domain, question.records, number))
            for number in range(question.count)
        ]
        members = [
            Client(name=f"client:{number}", data=pool.subset(order[: question.records]))
            for number, order in enumerate(orders, 1)
        ]
        observed = observe(
            simulator.method.fitting(len(members)), members, seed=simulator.seed, model=simulator.model, rounds=1,
            name=f"prototypes:{domain}:{question.records}", defense_stack=simulator.defense_stack,
            guards=simulator.guards,
        )  # fmt: skip
        view = simulator.view(observed)
        for number, order in enumerate(orders):
            rng = simulator.rng("prototypes gallery", domain, question.records, number)
            candidates, inside, slices = candidates_of(order, question, rng)
            case = Case(
                question="prototypes", views=(view,), victim=f"client:{number + 1}", records=question.records,
                domain=where, slice={"domain": where, "n_per_client": question.records, **slices},
                candidates=blinded(pool.subset(candidates), labeled=True),
            )  # fmt: skip
            result.append((case, Truth(members=inside)))
    return result

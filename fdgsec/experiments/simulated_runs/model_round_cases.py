"""Resampled clients in several rounds of the run: what they share under the model that its server sent in each."""

import torch

from fdgsec.experiments.simulated_runs.resampled_client_cases import LEAST_OUTSIDE, candidates_of
from fdgsec.experiments.simulated_runs.simulator import Cases, Simulator, blinded
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.early_layer_encoder import ModelEncoder
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.wire import SERVER, Message
from fdgsec.nn.styles.image_styles import register_encoder
from fdgsec.threats.adversary import View
from fdgsec.threats.attack import Case, Question, Truth


def model_rounds(simulator: Simulator, question: Question) -> Cases:
    """Clients that hold the same images in every round, `count` per domain; their views hold the model of the round.

    No cases where clients' styles come from no model, or the run kept the models of fewer rounds."""
    result: Cases = []
    shared, models = simulator.method.shared_mean, sent_models(simulator)[: question.rounds]
    if shared is None or shared.layers is None or len(models) < question.rounds:
        return result
    for model in models:
        register_encoder(ModelEncoder(model, stage=shared.layers))  # clients then share cached statistics
    for domain in simulator.sources:
        pool, where = simulator.others(domain), simulator.domain_name(domain)
        if len(pool) < question.records + LEAST_OUTSIDE:
            continue
        orders = [
            torch.randperm(len(pool), generator=simulator.rng("model rounds", domain, question.records, number))
            for number in range(question.count)
        ]
        drawn = [pool.subset(order[: question.records]) for order in orders]
        name = f"model rounds:{domain}:{question.records}"
        views = [
            simulator.view(simulator.exchange(drawn, name=name, turn=turn, model=model))
            for turn, model in enumerate(models)
        ]
        for number, order in enumerate(orders):
            rng = simulator.rng("model rounds gallery", domain, question.records, number)
            candidates, members, slices = candidates_of(order, question, rng)
            victim = f"client:{number + 1}"
            case = Case(
                question="model_rounds", victim=victim, records=question.records, domain=where,
                views=tuple(with_model(v, m, n, victim) for n, (v, m) in enumerate(zip(views, models, strict=True))),
                slice={"domain": where, "n_per_client": question.records, "rounds": question.rounds, **slices},
                candidates=blinded(pool.subset(candidates)),
            )  # fmt: skip
            result.append((case, Truth(members=members)))
    return result


def with_model(view: View, model: GlobalModel, number: int, victim: str) -> View:
    """The view of a round in which the server sent `model` first."""
    sent = Message(round=number, stage="model", sender=SERVER, receiver=victim, artifact=model.state)
    return View(messages=(sent, *view.messages))


def sent_models(simulator: Simulator) -> list[GlobalModel]:
    """The global models that the run's server sent, from round 0 on, up to the first one that was not kept."""
    if simulator.run is None or simulator.model is None:
        return []
    found: dict[int, ModelState] = {}
    for message in simulator.run.transcript.messages():
        if message.stage == "model" and message.sender == SERVER and type(message.artifact) is ModelState:
            found.setdefault(message.round, message.artifact)
    models: list[GlobalModel] = []
    while len(models) in found:
        models.append(simulator.model.with_state(found[len(models)].tensors()))
    return models

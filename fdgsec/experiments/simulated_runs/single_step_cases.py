"""Cases of clients that take a single step, whose update is the gradient of one batch."""

from dataclasses import replace

import torch

from fdgsec.data.domains import DomainDataset, shares_of
from fdgsec.experiments.simulated_runs.simulator import Cases, Simulator, blinded
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Reply, StepRequest
from fdgsec.federation.wire import SERVER, Message, Upload, Wire
from fdgsec.nn.training.batches import TrainingSet
from fdgsec.nn.training.training_loop import CrossEntropy
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.secret_streams import simulated_key, simulated_stream
from fdgsec.threats.adversary import View
from fdgsec.threats.attack import Case, Question, Truth


def single_step(simulator: Simulator, question: Question) -> Cases:
    """Per domain `count` clients of `records` images each, as far as they can be disjoint, one step from one model.

    The run's defenses apply. The loss is cross-entropy alone, whatever else the target adds to it. Images are not
    augmented: the attack would recover the augmented image and be judged against the original. Without a model there
    are no cases."""
    result: Cases = []
    model = _last_model_sent(simulator) if question.scheme == "last" else simulator.model
    if model is None:
        return result
    plan = (simulator.method.client_plan or TrainingPlan()).one_step(question.records)
    for domain in simulator.sources:
        pool, where = simulator.others(domain), simulator.domain_name(domain)
        order = torch.randperm(len(pool), generator=simulator.rng("single step", domain, question.records))
        for number, rows in enumerate(order.split(question.records)[: question.count]):
            if len(rows) < question.records:
                continue
            data, name = pool.subset(rows), f"client:{len(result) + 1}"
            rest = order[~torch.isin(order, rows)][: max(0, question.gallery - len(data))]
            shown = torch.cat([rows, rest])
            mixed = torch.randperm(
                len(shown), generator=simulator.rng("single step gallery", domain, len(rows), number)
            )
            case = Case(
                question="single_step", views=(_view_of_step(simulator, model, data, plan, name),), victim=name,
                records=len(data), domain=where, slice={"n_per_client": len(data), "model": question.scheme or "first"},
                candidates=blinded(pool.subset(shown[mixed])),
            )  # fmt: skip
            truth = Truth(
                rows=mixed.argsort()[: len(data)], images=data.pixels(), labels=data.labels,
                proportions=shares_of(data.labels, len(data.class_names)),
            )  # fmt: skip
            result.append((case, truth))
    return result


def _last_model_sent(simulator: Simulator) -> GlobalModel | None:
    """The global model that the run's server sent last, where the transcript kept it."""
    messages = [] if simulator.run is None else list(simulator.run.transcript.messages())
    states = [m.artifact for m in messages if m.stage == "model" and isinstance(m.artifact, ModelState)]
    return (
        simulator.model.with_state({**simulator.model.state.state, **states[-1].state})
        if states and simulator.model
        else None
    )


def _view_of_step(simulator: Simulator, model: GlobalModel, data: DomainDataset, plan: TrainingPlan, name: str) -> View:
    """The adversary's view of a round in which the client called `name` takes the step."""
    clock = Clock(round=0, rounds=1, participants=(name,))
    defense_stack = replace(
        simulator.defense_stack, key=simulated_key(simulator.seed), name="single step " + "/".join(data.ids)
    )
    client, trainer = defense_stack.with_trainer(Client(name=name, data=data), simulator.method, clock)
    network = model.module()
    client.trainer(network, TrainingSet.of(data), CrossEntropy(), plan, simulator.rng("single step fit", *data.ids))
    update = ModelState(state={key: value.detach().cpu().clone() for key, value in network.state_dict().items()})
    asked = StepRequest(clock=clock, model=model, inbox={})
    sender = defense_stack.sender(client, simulator.method, asked, {}, trainer)
    reply = defense_stack.sent("fit", Reply(artifacts={"model": update}), sender)
    wire = Wire(
        secret=lambda _upload, number: simulated_stream(simulator.seed, "policy", "single step", *data.ids, number),
        guards=simulator.guards, policies=simulator.defense_stack.policies, keep=lambda _message: True,
    )  # fmt: skip
    wire.send(Message(round=0, stage="model", sender=SERVER, receiver=name, artifact=model.state))
    wire.collect([Upload(round=0, stage="update", sender=name, artifacts={"model": reply.artifacts["model"]})])
    return simulator.adversary.view(wire.transcript)

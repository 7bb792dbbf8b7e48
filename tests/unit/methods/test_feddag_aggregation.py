"""Sharpness-aware aggregation on top of other methods, and options that clients cannot meet."""

from dataclasses import replace

import pytest
import torch

from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.method import Client, Clock, Method, Update
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedavg import FedAvg, averaged
from fdgsec.methods.feddag import FedDAG
from fdgsec.methods.feddag_aggregation import (
    CrossEvaluation,
    SharpnessAware,
)
from fdgsec.methods.feddg_ga import FedDGGA
from fdgsec.methods.fedgma import FedGMA
from fdgsec.methods.mixstyle import MixStyle
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from tests.support.round_loop import four_clients
from tests.support.watched import Watched, equal, largest_gap, run, start

PLAN = TrainingPlan(batch_size=8, learning_rate=0.05, crop=None, flip=0.0)
CLOCK = Clock(round=0, rounds=2, participants=("client:0", "client:1", "client:2"))


@pytest.fixture(scope="module")
def clients() -> list[Client]:
    return four_clients()[:3]


def fitted(method: FedAvg, client: Client) -> Update:
    rng = stream(0, "world", "fit")
    return method.fit(client, model=start(), inbox={}, state={}, clock=CLOCK, rng=rng)[0]


@pytest.mark.parametrize(
    ("method", "clients", "message"),
    [
        (SharpnessAware(select="validation"), 3, 'select = "validation" has no place'),
        (SharpnessAware(evaluators=3), 3, r"it must lie in 1\.\.2"),
        (SharpnessAware(evaluators=0), 3, r"it must lie in 1\.\.2"),
        (SharpnessAware(include_self=False), 1, "no peers"),
        (CrossEvaluation(base=FedAvg(select="validation")), 3, "its base FedAvg asks for one too"),
        (CrossEvaluation(base=FedDGGA(rule="pardon")), 3, "its base FedDGGA weighs clients by a rule of its own"),
        (CrossEvaluation(base=FedDAG(beta=0.0, k=0)), 3, "its base FedDAG weighs clients by a rule of its own"),
        (CrossEvaluation(base=CCST(k=4)), 3, r"k must lie in 1\.\.3"),
    ],
)
def test_what_clients_cannot_meet_is_refused(method: FedAvg, clients: int, message: str):
    with pytest.raises(UsageError, match=message):
        method.check(clients)


@pytest.mark.parametrize("clients", [1, 2, 3])
@pytest.mark.parametrize(
    "method", [SharpnessAware(evaluators=5, include_self=False), CrossEvaluation(evaluators=2, base=CCST(k=9))]
)
def test_a_fitted_method_meets_its_check(method: FedAvg, clients: int):
    fitted = method.fitting(clients)

    fitted.check(clients)
    assert isinstance(fitted, SharpnessAware)
    assert fitted.evaluators == max(clients - 1, 1)


@pytest.mark.parametrize("wrong", [{"rho": -0.1}, {"rho": 2.0}, {"beta": -1.0}, {"k": -1}])
def test_options_out_of_range_are_refused(wrong: dict[str, float]):
    with pytest.raises(UsageError, match="needs rho in"):
        replace(SharpnessAware(), **wrong)


def test_options_of_training_belong_to_the_base():
    with pytest.raises(UsageError, match="give plan, weights to the base"):
        CrossEvaluation(base=CCST(), plan=PLAN, weights="uniform")


@pytest.mark.medium
def test_without_a_base_it_is_fedavg_plus_plus(clients: list[Client]):
    made, plain = run(CrossEvaluation(plan=PLAN), clients), run(SharpnessAware(plan=PLAN), clients)

    assert made.transcript.sha256 == plain.transcript.sha256


def test_a_local_objective_trains_in_place_of_cross_entropy(clients: list[Client]):
    mixed = fitted(CrossEvaluation(plan=PLAN, local=MixStyle(probability=1.0)), clients[0])

    alone = fitted(MixStyle(plan=PLAN, probability=1.0), clients[0])
    plain = fitted(CrossEvaluation(plan=PLAN), clients[0])
    assert equal(mixed.artifacts["model"].tensors(), alone.artifacts["model"].tensors())
    assert not equal(mixed.artifacts["model"].tensors(), plain.artifacts["model"].tensors())


@pytest.mark.medium
def test_a_base_trains_exactly_as_it_does_alone(clients: list[Client]):
    over, alone = (
        run(method, clients, rounds=1)
        for method in (CrossEvaluation(base=CCST(k=2, plan=PLAN), rho=0.05), CCST(k=2, plan=PLAN))
    )

    def trained(outcome: Watched) -> list[str]:
        models = [r for r in outcome.transcript.rows if (r.stage, r.kind) == ("update", "ModelState")]
        senders = [row.sender for row in models]
        return [row.sha256 for place, row in enumerate(models) if row.sender not in senders[:place]]

    assert trained(over) == trained(alone)
    exchanged = [row for row in over.rows() if row[0] in ("share", "combine")]
    assert exchanged == [row for row in alone.rows() if row[0] in ("share", "combine")]
    assert [kind for *_, kind in exchanged] == ["StyleStatistics"] * 3 + ["StyleBank"] * 3


def test_a_base_aggregates_by_its_own_rule_with_the_scores_weights(clients: list[Client]):
    base = FedGMA(plan=PLAN, tau=0.9)

    outcome = run(CrossEvaluation(base=base, rho=0.05, beta=3.0), clients, rounds=1)

    weights, models = outcome.weights(0, 3), outcome.payloads(0, "update")[::2]
    updates = {
        f"client:{i}": Update(artifacts={"model": ModelState(state=models[i])}, weight=weights[i]) for i in range(3)
    }
    expected, _ = base.aggregate(updates, scores={}, model=start(), server={})
    assert len(set(weights)) == 3
    assert largest_gap(outcome.model, expected.state.tensors()) < 1e-7
    assert largest_gap(outcome.model, averaged(models, weights)) > 1e-4


def test_a_bases_perturbation_follows_the_gradient_of_its_objective(clients: list[Client]):
    whole = TrainingPlan(batch_size=64, learning_rate=0.05, crop=None, flip=0.0)

    made = fitted(CrossEvaluation(base=FedAvg(plan=whole), rho=0.05), clients[0])

    trained, shown = made.artifacts["model"].tensors(), made.artifacts["perturbed"].tensors()
    network = start().with_state(trained).module().train()
    images = clients[0].data.pixels().float() / 255
    loss = torch.nn.functional.cross_entropy(network(images), clients[0].data.labels)
    names, parameters = zip(*network.named_parameters(), strict=True)
    slopes = torch.autograd.grad(loss, parameters)
    length = torch.cat([slope.flatten() for slope in slopes]).norm()
    for name, slope in zip(names, slopes, strict=True):
        assert torch.allclose(shown[name] - trained[name], 0.05 * slope / length, atol=1e-6)


def test_releasing_all_is_the_bases():
    assert CrossEvaluation().releasing_all() is None
    released = CrossEvaluation(base=CCST(style="single")).releasing_all()
    assert released is not None
    assert released.base == CCST(style="single", styles_per_client="all")


@pytest.mark.parametrize(
    "method",
    [
        SharpnessAware(plan=PLAN, evaluators=1),
        CrossEvaluation(base=CCST(k=2, plan=PLAN), rho=0.05),
        CrossEvaluation(plan=PLAN, local=MixStyle(), rho=0.0),
    ],
    ids=["fedavg++", "ccst++", "mixstyle+"],
)
@pytest.mark.medium
def test_encoding_and_decoding_every_message_changes_nothing(method: Method, clients: list[Client]):
    plain, recoded = (run(method, clients, recode=recode) for recode in (False, True))

    assert recoded.transcript.sha256 == plain.transcript.sha256
    assert equal(recoded.model, plain.model)

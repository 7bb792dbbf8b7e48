"""FedDG-GA in the round loop: its scalars, clients that do not take part or have nothing to measure on."""

from dataclasses import replace

import pytest
import torch

from fdgsec.experiments.run_config import build, load_preset
from fdgsec.federation.artifacts import ModelState, Scores
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client, Clock, Update
from fdgsec.methods.fedavg import detached
from fdgsec.methods.feddg_ga import FedDGGA
from fdgsec.methods.fedprox import FedProx
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import simulated_stream
from tests.support.round_loop import federated, four_clients

PLAN = TrainingPlan(batch_size=8, learning_rate=0.05)
EVERYBODY = Clock(round=0, rounds=10, participants=tuple(f"client:{i}" for i in range(4)))
NAMES = list(EVERYBODY.participants)


@pytest.fixture(scope="module")
def members() -> list[Client]:
    return four_clients()


def network_of(name: str) -> GlobalModel:
    plan = Blueprint(backbone="tiny", classes=7)
    return GlobalModel(blueprint=plan, state=ModelState(state=detached(plan.network(stream(0, "world", name)))))


def started(method: FedDGGA) -> dict[str, torch.Tensor]:
    handed, server = method.combine(
        {name: {} for name in NAMES}, server={}, clock=EVERYBODY, rng=simulated_stream(0, "c")
    )
    assert handed == {}
    return dict(server)


@pytest.mark.parametrize(
    ("method", "reviewed", "numbers"),
    [
        (FedDGGA(plan=PLAN), 4, 24),
        (FedDGGA(plan=PLAN, select="validation"), 12, 24),
        (FedDGGA(plan=PLAN, rule="pardon"), 0, 32),
        (FedDGGA(plan=PLAN, rule="pardon", select="validation"), 8, 32),
    ],
    ids=["paper", "paper-selecting", "pardon", "pardon-selecting"],
)
@pytest.mark.medium
def test_a_round_sends_models_and_these_scalars(members: list[Client], method: FedDGGA, reviewed: int, numbers: int):
    made, again = (federated(method, members, recode=recode) for recode in (False, True))

    model = 424292
    expected = [("model", "server", name, "ModelState", model) for name in NAMES]
    for name in NAMES:
        expected += [("update", name, "server", "ModelState", model), ("update", name, "server", "Scores", numbers)]
    if reviewed:
        expected += [("exhibit", "server", name, "ModelState", model) for name in NAMES]
        expected += [("review", name, "server", "Scores", reviewed) for name in NAMES]
    rows = [(r.round, r.stage, r.sender, r.receiver, r.kind, r.bytes) for r in made.transcript.rows]
    assert rows == [(number, *row) for number in (0, 1) for row in expected]
    assert again.transcript.sha256 == made.transcript.sha256
    assert all(torch.equal(again.model[key], value) for key, value in made.model.items())


def test_weights_start_equal_for_all_clients_of_the_federation():
    server = started(FedDGGA())

    assert server["clients"].tolist() == [0, 1, 2, 3]
    assert server["weights"].tolist() == [0.25] * 4


def test_a_client_that_took_no_part_has_no_gap():
    method = FedDGGA(step=0.3)
    scores = {"client:1": Scores(values=torch.tensor([0.5])), "client:3": Scores(values=torch.tensor([-0.25]))}

    server = method.weigh(scores, server=started(method), clock=EVERYBODY)

    assert server["weights"].tolist() == pytest.approx([v / 1.05 for v in (0.25, 0.35, 0.25, 0.2)])


def test_the_step_shrinks_linearly_over_the_rounds():
    method, scores = FedDGGA(step=0.3), {"client:0": Scores(values=torch.tensor([1.0]))}

    moved = [
        method.weigh(scores, server=started(method), clock=replace(EVERYBODY, round=number))["weights"][0].item()
        for number in (0, 5, 9)
    ]

    grown = [0.25 + 0.1 * share for share in (1, 0.5, 0.1)]
    assert moved == pytest.approx([a / (0.75 + a) for a in grown])


def test_half_the_clients_are_averaged_with_their_weights_made_to_sum_to_1(members: list[Client]):
    outcome = federated(FedDGGA(plan=PLAN), members, recode=False, participation=0.5)

    told = [m.artifact.tensors() for m in outcome.transcript.messages() if (m.round, m.stage) == (0, "update")]
    models = [state for state in told if "head.bias" in state]
    new = next(m.artifact.tensors() for m in outcome.transcript.messages() if m.stage == "exhibit")
    assert len(models) == 2
    assert torch.allclose(new["head.bias"], (models[0]["head.bias"] + models[1]["head.bias"]) / 2, atol=1e-7)


def test_participants_who_all_have_weight_0_count_the_same():
    states = [network_of(name) for name in ("a", "b")]
    updates = {
        name: Update(artifacts={"model": state.state}, weight=1.0)
        for name, state in zip(NAMES[:2], states, strict=True)
    }
    server = {**started(FedDGGA()), "weights": torch.tensor([0.0, 0.0, 0.5, 0.5], dtype=torch.float64)}

    made, _ = FedDGGA().aggregate(updates, scores={}, model=states[0], server=server)

    first, second = (state.state.tensors()["head.bias"] for state in states)
    assert torch.allclose(made.state.tensors()["head.bias"], (first + second) / 2, atol=1e-7)


def test_a_client_without_validation_images_answers_0(members: list[Client]):
    blind = [replace(members[0], validation=None), *members[1:]]

    outcome = federated(FedDGGA(plan=PLAN), blind, recode=False)

    answers = [m.artifact.tensors()["values"].tolist() for m in outcome.transcript.messages() if m.stage == "review"]
    assert answers[0] == answers[4] == [0.0]


def test_rounds_are_chosen_by_validation_as_fedavg_chooses_them(members: list[Client]):
    method = FedDGGA(select="validation")
    scores = {
        "client:0": Scores(values=torch.tensor([3.0, 4.0, 0.1])),
        "client:1": Scores(values=torch.tensor([1.0, 4.0, 0.2])),
    }

    server = method.weigh(scores, server=started(method), clock=EVERYBODY)

    assert float(server["validation_accuracy"]) == pytest.approx(0.5)
    assert float(server["weights"][1]) > float(server["weights"][0]) > 0.25


@pytest.mark.medium
def test_a_local_method_gives_the_objective(members: list[Client]):
    alone, held = (
        federated(FedDGGA(plan=PLAN, local=local), members, recode=False) for local in (None, FedProx(mu=5.0))
    )

    assert not torch.equal(held.model["head.weight"], alone.model["head.weight"])


def test_a_negative_step_is_refused_and_presets_build():
    with pytest.raises(UsageError, match="step >= 0"):
        FedDGGA(step=-0.1)
    rules = [
        build(FedDGGA, load_preset(f"feddg-ga-{kind}")["method"], where="method").rule for kind in ("paper", "released")
    ]
    assert rules == ["paper", "pardon"]

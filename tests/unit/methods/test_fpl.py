"""FPL in the round loop: prototypes up with the update, cluster prototypes down with the next model."""

import pytest
import torch

from fdgsec.experiments.run_config import build, load_preset
from fdgsec.federation.artifacts import ModelState, Prototypes, Scores
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client, Clock, Update
from fdgsec.methods.fedavg import FedAvg, detached
from fdgsec.methods.fpl import FPL, cluster_prototypes
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from tests.support.round_loop import Outcome, federated, four_clients

PLAN = TrainingPlan(batch_size=8, learning_rate=0.05, epochs=2)
NAMES = [f"client:{i}" for i in range(4)]
MODEL = 424292
ROW = 96 * 4 + 8  # a feature of the tiny network in float32, its class in int64


@pytest.fixture(scope="module")
def members() -> list[Client]:
    return four_clients()


@pytest.fixture(scope="module")
def outcome(members: list[Client]) -> Outcome:
    return federated(FPL(plan=PLAN), members, recode=False)


def classes_of(client: Client) -> int:
    return len(torch.unique(client.data.labels))


def test_prototypes_go_up_with_every_update_and_clusters_come_down_from_the_second_round_on(
    outcome: Outcome, members: list[Client]
):
    down = [r.bytes for r in outcome.transcript.rows if (r.stage, r.kind) == ("combine", "Prototypes")]
    up = [
        row
        for name, client in zip(NAMES, members, strict=True)
        for row in [
            ("update", name, "server", "ModelState", MODEL),
            ("update", name, "server", "Prototypes", classes_of(client) * ROW),
            ("update", name, "server", "Scores", 24),
        ]
    ]
    models = [("model", "server", name, "ModelState", MODEL) for name in NAMES]
    clusters = [("combine", "server", name, "Prototypes", down[0]) for name in NAMES]

    rows = [(r.round, r.stage, r.sender, r.receiver, r.kind, r.bytes) for r in outcome.transcript.rows]

    assert rows == [(0, *row) for row in models + up] + [(1, *row) for row in models + clusters + up]
    assert len(set(down)) == 1


def test_what_comes_down_are_the_clusters_of_what_went_up(outcome: Outcome):
    told = list(outcome.transcript.messages())
    sent = {
        m.sender: m.artifact for m in told if (m.round, m.stage) == (0, "update") and isinstance(m.artifact, Prototypes)
    }
    handed = next(m.artifact for m in told if m.stage == "combine")

    wanted = cluster_prototypes(sent)

    assert isinstance(handed, Prototypes)
    assert torch.equal(handed.features, wanted.features)
    assert torch.equal(handed.classes, wanted.classes)


def test_a_run_through_bytes_is_the_plain_run(outcome: Outcome, members: list[Client]):
    again = federated(FPL(plan=PLAN), members, recode=True)

    assert again.transcript.sha256 == outcome.transcript.sha256
    assert all(torch.equal(again.model[key], value) for key, value in outcome.model.items())


def test_round_0_is_fedavg_and_round_1_is_not(outcome: Outcome, members: list[Client]):
    plain = federated(FedAvg(plan=PLAN), members, recode=False)

    def model(run: Outcome, number: int) -> str:
        return next(
            r.sha256 for r in run.transcript.rows if (r.round, r.stage, r.kind) == (number, "update", "ModelState")
        )

    assert model(outcome, 0) == model(plain, 0)
    assert model(outcome, 1) != model(plain, 1)


def test_class_means_ride_on_the_network_but_not_in_its_state(members: list[Client]):
    plan = Blueprint(backbone="tiny", classes=7)
    state = detached(plan.network(stream(0, "world", "t")))

    network = FPL().start(members[0], model=GlobalModel(blueprint=plan, state=ModelState(state=state)), state={})

    assert network.state_dict().keys() == state.keys()
    assert sum(value.numel() for value in network.parameters()) == sum(
        value.numel() for name, value in plan.network(stream(0, "world", "t")).named_parameters()
    )


def test_another_artifact_in_place_of_prototypes_is_named(members: list[Client]):
    plan = Blueprint(backbone="tiny", classes=7)
    model = GlobalModel(blueprint=plan, state=ModelState(state=detached(plan.network(stream(0, "world", "t")))))
    wrong = Scores(values=torch.zeros(1))
    clock = Clock(round=1, rounds=2, participants=("client:0",))

    with pytest.raises(TypeError, match="client:0 received a Scores"):
        FPL().objective(
            members[0], model=model, inbox={"prototypes": wrong}, state={}, clock=clock, rng=stream(0, "world", "t")
        )
    sent = Update(artifacts={"model": model.state, "prototypes": wrong}, weight=1.0)
    with pytest.raises(TypeError, match="client:3 sent a Scores"):
        FPL().aggregate({"client:3": sent}, scores={}, model=model, server={})


def test_no_record_depends_on_another_and_options_are_checked():
    with pytest.raises(UsageError, match="temperature above 0"):
        FPL(temperature=0.0)
    with pytest.raises(UsageError, match="takes no local method"):
        FPL(local=FedAvg()).check(3)
    assert build(FPL, load_preset("fpl-paper")["method"], where="method").temperature == 0.02

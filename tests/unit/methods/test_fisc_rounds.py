"""FISC through the driver: what crosses the wire, and what comes of it."""

import pytest
import torch

from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client
from fdgsec.federation.round_loop import RoundLoop
from fdgsec.federation.wire import Transcript, Wire
from fdgsec.methods.fedavg import averaged
from fdgsec.methods.fisc import FISC
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.secret_streams import simulated_key, simulated_stream
from tests.support.fisc_cases import NAMES, STILL, small_shapes, start, three_clients


@pytest.fixture(scope="module")
def clients() -> list[Client]:
    return three_clients(small_shapes())


def run(method: FISC, clients: list[Client], *, recode: bool = False) -> tuple[GlobalModel, Transcript]:
    """Two rounds through the driver, every payload kept."""
    wire = Wire(secret=lambda message, number: simulated_stream(0, message.sender, number), keep=lambda message: True)
    engine = LocalEngine(members=clients, method=method, seed=0, recode=recode)
    trained = RoundLoop(method=method, engine=engine, wire=wire, key=simulated_key(0), rounds=2).run(start(method))
    assert trained is not None
    return trained, wire.transcript


@pytest.mark.parametrize(
    "method",
    [
        FISC(plan=STILL),
        FISC(
            plan=TrainingPlan(batch_size=8, freeze_norm=True),
            server_partition="first",
            sigma="mixture",
            extra_layer=True,
        ),
        FISC(plan=STILL, compared="map", style_input="loader", triplet="printed", regularizer="sum", gamma2=0.001),
        FISC(plan=STILL, local_clustering=False),
        FISC(plan=STILL, global_clustering=False),
        FISC(plan=STILL, contrastive="none"),
        FISC(plan=STILL, contrastive="ordinary"),
    ],
    ids=["v5", "released-like", "printed", "v1", "v2", "v3", "v4"],
)
def test_two_rounds_give_the_same_model_when_every_message_is_encoded(method: FISC, clients: list[Client]):
    plain, rows = run(method, clients)
    recoded, again = run(method, clients, recode=True)

    assert rows.sha256 == again.sha256
    assert plain.state.sha256 == recoded.state.sha256
    assert all(bool(value.isfinite().all()) for value in plain.state.state.values())


def test_styles_go_up_to_the_server_once_and_one_interpolation_style_comes_down_to_all(clients: list[Client]):
    _, transcript = run(FISC(plan=STILL), clients)
    rows = [(row.round, row.stage, row.sender, row.receiver, row.kind, row.bytes) for row in transcript.rows]
    beside = [row for row in rows if row[4] not in ("ModelState", "Scores")]
    shapes = [{name: tuple(t.shape) for name, t in m.artifact.tensors().items()} for m in transcript.messages()]
    down = [m.artifact.sha256 for m in transcript.messages() if m.stage == "combine"]

    assert beside == [
        *((0, "share", name, "server", "StyleStatistics", 2048) for name in NAMES),
        *((0, "combine", "server", name, "InterpolationStyle", 2048) for name in NAMES),
    ]
    assert rows[:6] == beside
    assert shapes[:6] == [{"mean": (256,), "std": (256,)}] * 6
    assert len(set(down)) == 1
    assert [row[:5] for row in rows[6:]] == [
        (number, stage, *way, kind)
        for number in (0, 1)
        for stage, way, kind in [
            *(("model", ("server", name), "ModelState") for name in NAMES),
            *(("update", (name, "server"), kind) for name in NAMES for kind in ("ModelState", "Scores")),
        ]
    ]


def test_the_server_averages_models_by_the_number_of_images(clients: list[Client]):
    _, transcript = run(FISC(plan=STILL), clients)
    sent = [m for m in transcript.messages() if m.artifact.kind == "ModelState"]
    updates = [m.artifact.tensors() for m in sent if m.stage == "update" and m.round == 0]
    received = next(m.artifact.tensors() for m in sent if m.stage == "model" and m.round == 1)

    expected = averaged(updates, [9 / 24, 8 / 24, 7 / 24])

    for name, value in received.items():  # summed as replies come, then divided: the last bit may differ
        torch.testing.assert_close(value, expected[name], rtol=1e-6, atol=1e-8)


def test_one_client_alone_trains_towards_its_own_style(clients: list[Client]):
    method = FISC(plan=STILL)
    method.fitting(1).check(1)

    _, transcript = run(method, clients[:1])

    styles = [m.artifact.tensors() for m in transcript.messages() if m.stage in ("share", "combine")]
    assert torch.equal(styles[0]["mean"], styles[1]["mean"])
    assert torch.equal(styles[0]["std"], styles[1]["std"])

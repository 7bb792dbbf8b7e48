"""FedIIR in the round loop: head gradients before training, and what stands in their place."""

import pytest
import torch

from fdgsec.experiments.run_config import build, load_preset
from fdgsec.federation.artifacts import HeadGradient, ModelState, Scores
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client, Clock
from fdgsec.methods.fedavg import FedAvg, detached
from fdgsec.methods.fediir import FedIIR, mean_head_gradient
from fdgsec.nn.training.precision import BRAIN, PRECISION, processor_of
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from tests.support.round_loop import Outcome, federated, four_clients

PLAN = TrainingPlan(batch_size=8, learning_rate=0.05)
NAMES = [f"client:{i}" for i in range(4)]
MODEL, HEAD = 424292, (7 * 96 + 7) * 4
CLOCK = Clock(round=0, rounds=1, participants=("client:0",))


@pytest.fixture(scope="module")
def members() -> list[Client]:
    return four_clients()


def start() -> GlobalModel:
    plan = Blueprint(backbone="tiny", classes=7)
    return GlobalModel(blueprint=plan, state=ModelState(state=detached(plan.network(stream(0, "world", "t")))))


@pytest.mark.parametrize("mean", ["batches", "clients"])
@pytest.mark.medium
def test_gradients_go_up_and_their_average_comes_down_before_training(members: list[Client], mean: str):
    method = build(FedIIR, {"mean": mean, "plan": {"batch_size": 8}}, where="method")

    made, again = (federated(method, members, recode=recode) for recode in (False, True))

    up = [
        row for name in NAMES for row in [
            ("share", name, "server", "HeadGradient", HEAD),
            *([("share", name, "server", "Scores", 4)] if mean == "batches" else []),
        ]
    ]  # fmt: skip
    update = [
        row for name in NAMES for row in [
            ("update", name, "server", "ModelState", MODEL), ("update", name, "server", "Scores", 24),
        ]
    ]  # fmt: skip
    one = [
        *[("model", "server", name, "ModelState", MODEL) for name in NAMES],
        *up,
        *[("combine", "server", name, "HeadGradient", HEAD) for name in NAMES],
        *update,
    ]
    rows = [(r.round, r.stage, r.sender, r.receiver, r.kind, r.bytes) for r in made.transcript.rows]
    assert rows == [(number, *row) for number in (0, 1) for row in one]
    assert again.transcript.sha256 == made.transcript.sha256
    assert all(torch.equal(again.model[key], value) for key, value in made.model.items())


def test_gradients_are_measured_with_running_statistics_and_not_with_the_batchs(members: list[Client]):
    sent, _ = FedIIR(plan=PLAN).share(members[0], model=start(), state={}, clock=CLOCK, rng=stream(0, "world", "t"))

    network = start().module().eval()
    slopes = []
    for rows in torch.arange(len(members[0].data)).split(8):
        answered = network(members[0].data.pixels(rows).float() / 255)
        loss = torch.nn.functional.cross_entropy(answered, members[0].data.labels[rows])
        slopes.append(torch.autograd.grad(loss, network.head.weight)[0])
    assert torch.allclose(sent["gradient"].tensors()["weight"], torch.stack(slopes).mean(0), rtol=1e-4, atol=1e-6)


def test_what_comes_down_is_smoothed_over_the_rounds(members: list[Client]):
    made = federated(FedIIR(plan=PLAN, mean="clients"), members, recode=False)

    def told(outcome: Outcome, number: int, stage: str) -> list[torch.Tensor]:
        messages = [m for m in outcome.transcript.messages() if (m.round, m.stage) == (number, stage)]
        return [m.artifact.weight.double() for m in messages if isinstance(m.artifact, HeadGradient)]

    means = [torch.stack(told(made, number, "share")).mean(0) for number in (0, 1)]
    wanted = [0.05 * means[0], 0.95 * 0.05 * means[0] + 0.05 * means[1]]
    for number in (0, 1):
        assert all(torch.allclose(one, wanted[number], rtol=1e-6, atol=1e-8) for one in told(made, number, "combine"))


@pytest.mark.medium
def test_the_penalty_moves_the_model_and_without_it_training_is_fedavg(members: list[Client]):
    runs = [federated(method, members, recode=False).model["head.weight"] for method in (
        FedAvg(plan=PLAN), FedIIR(plan=PLAN, penalty=0.0), FedIIR(plan=PLAN, penalty=1.0),
    )]  # fmt: skip

    assert torch.allclose(runs[0], runs[1], rtol=0, atol=1e-6)
    assert float((runs[0] - runs[2]).abs().max()) > 1e-4


def test_sharing_needs_a_model_and_images(members: list[Client]):
    empty = Client(name="client:5", data=members[0].data.subset(torch.zeros(0, dtype=torch.int64)))

    with pytest.raises(UsageError, match="under the current model; give --rounds 1 or more"):
        FedIIR().share(members[0], model=None, state={}, clock=CLOCK, rng=stream(0, "world", "t"))
    with pytest.raises(UsageError, match="client:5 has no images"):
        FedIIR().share(empty, model=start(), state={}, clock=CLOCK, rng=stream(0, "world", "t"))


@pytest.mark.parametrize(("inbox", "came"), [({}, "nothing"), ({"gradient": Scores(values=torch.zeros(1))}, "Scores")])
def test_training_without_a_received_gradient_is_refused(members: list[Client], inbox: dict[str, Scores], came: str):
    with pytest.raises(TypeError, match=f"client:0 received {came}"):
        FedIIR().objective(members[0], model=start(), inbox=inbox, state={}, clock=CLOCK, rng=stream(0, "world", "t"))


@pytest.mark.parametrize("options", [{"penalty": -1.0}, {"smoothing": 1.0}, {"smoothing": -0.1}])
def test_options_out_of_range_are_refused(options: dict[str, float]):
    with pytest.raises(UsageError, match=r"penalty >= 0 and smoothing in \[0, 1\)"):
        build(FedIIR, options, where="method")


def test_a_local_method_is_refused_and_the_preset_builds():
    with pytest.raises(UsageError, match="takes no local method"):
        FedIIR(local=FedAvg()).check(3)
    assert build(FedIIR, load_preset("fediir-paper")["method"], where="method").weights == "uniform"


def test_a_released_gradient_is_float32_whatever_the_network_trains_in(
    members: list[Client], monkeypatch: pytest.MonkeyPatch
):
    exact, _ = mean_head_gradient(start().module(), members[0], batch_size=8)
    monkeypatch.setitem(PRECISION, (processor_of(torch.device("cpu")), "tiny"), BRAIN)
    released, _ = mean_head_gradient(start().module(), members[0], batch_size=8)

    assert torch.equal(released.weight, exact.weight)
    assert torch.equal(released.bias, exact.bias)

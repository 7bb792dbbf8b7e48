"""FedGMA's masked step against a loop over coordinates, and in the round loop."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from fdgsec.experiments.run_config import build, load_preset
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client, Update
from fdgsec.methods.fedavg import FedAvg, detached
from fdgsec.methods.fedgma import FedGMA, agreement, mask
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from tests.support.round_loop import federated, four_clients

PLAN = TrainingPlan(batch_size=8, learning_rate=0.05)
WEIGHTS = (3.0, 1.0, 4.0, 2.0, 10.0)
State = Mapping[str, Tensor]


@pytest.fixture(scope="module")
def members() -> list[Client]:
    return four_clients()


def start() -> GlobalModel:
    plan = Blueprint(backbone="tiny", classes=3)
    return GlobalModel(blueprint=plan, state=ModelState(state=detached(plan.network(stream(0, "world", "start")))))


def updates(model: GlobalModel) -> dict[str, Update]:
    """Five clients that moved every float entry at random, and some coordinates not at all."""
    made: dict[str, Update] = {}
    for number, weight in enumerate(WEIGHTS):
        rng = stream(number, "world", "update")
        state = {
            name: value + 0.1 * torch.randn(value.shape, generator=rng) * (torch.rand(value.shape, generator=rng) < 0.9)
            if value.is_floating_point() else value + number
            for name, value in model.state.state.items()
        }  # fmt: skip
        made[f"client:{number}"] = Update(artifacts={"model": ModelState(state=state)}, weight=weight)
    return made


def slowly(model: GlobalModel, given: Mapping[str, Update], name: str, method: FedGMA) -> list[float]:
    """theta + eta m sum_i (n_i / n) Delta_i, one coordinate after the other."""
    before = model.state.state[name].double().flatten().tolist()
    after = [update.artifacts["model"].tensors()[name].double().flatten().tolist() for update in given.values()]
    total = sum(update.weight for update in given.values())
    made = []
    for place, value in enumerate(before):
        changes = [state[place] - value for state in after]
        agreed = abs(sum((change > 0) - (change < 0) for change in changes) / len(changes))
        if method.released:
            factor = 1 + agreed if agreed >= method.tau else 0.0
        else:
            factor = 1.0 if agreed >= method.tau else agreed
        mean = sum(update.weight / total * change for update, change in zip(given.values(), changes, strict=True))
        made.append(value + method.server_step * factor * mean)
    return made


@pytest.mark.parametrize(
    "method",
    [
        FedGMA(),
        FedGMA(tau=0.6, server_step=0.5),
        FedGMA(released=True),
        FedGMA(tau=0.1, server_step=0.1, released=True),
    ],
    ids=["default", "tau-.6", "released", "benchmark"],
)
@pytest.mark.parametrize("name", ["head.weight", "body.stem.1.bias"])
def test_aggregation_is_the_masked_step_coordinate_by_coordinate(method: FedGMA, name: str):
    model = start()
    given = updates(model)

    made, _ = method.aggregate(given, scores={}, model=model, server={})

    wanted = torch.tensor(slowly(model, given, name, method), dtype=torch.float64)
    assert torch.allclose(made.state.state[name].double().flatten(), wanted, rtol=0, atol=1e-7)  # float32's last bits


@pytest.mark.parametrize(("released", "expected"), [(False, [1.0, 1.0, 0.2, 0.0]), (True, [2.0, 1.4, 0.0, 0.0])])
def test_the_mask_is_1_from_tau_on_and_the_agreement_below(released: bool, expected: list[float]):
    signs = torch.tensor([[1, 1, 1, 1, 1], [-1, -1, 0, 0, 0], [1, 1, 1, -1, -1], [1, -1, 0, 1, -1]])

    agreed = agreement(list(signs.T.double()))

    assert agreed.tolist() == pytest.approx([1.0, 0.4, 0.2, 0.0])
    assert mask(agreed, tau=0.4, released=released).tolist() == pytest.approx(expected)


def test_clients_vote_equally_however_many_images_they_have():
    changes = [torch.tensor([-5.0]), torch.tensor([0.1]), torch.tensor([0.1]), torch.tensor([0.1])]

    assert agreement(changes).item() == pytest.approx(0.5)


def test_tau_0_is_fedavg():
    model = start()
    given = updates(model)

    masked, _ = FedGMA(tau=0.0).aggregate(given, scores={}, model=model, server={})
    plain, _ = FedAvg().aggregate(given, scores={}, model=model, server={})

    assert all(torch.allclose(masked.state.state[key].double(), value.double(), rtol=0, atol=1e-6)
               for key, value in plain.state.state.items())  # fmt: skip


@pytest.mark.parametrize("released", [False, True])
def test_running_statistics_are_averaged_and_only_the_released_mask_reaches_them(released: bool):
    model = start()
    given = updates(model)

    masked, _ = FedGMA(tau=1.0, released=released).aggregate(given, scores={}, model=model, server={})
    plain, _ = FedAvg().aggregate(given, scores={}, model=model, server={})

    equal = [
        torch.equal(masked.state.state[key], plain.state.state[key]) for key in plain.state.state if "running" in key
    ]
    assert equal == [not released] * 10
    counter = "body.stem.1.num_batches_tracked"
    assert torch.equal(masked.state.state[counter], plain.state.state[counter])


def test_nothing_is_sent_that_fedavg_does_not_send(members: list[Client]):
    made, again = (federated(FedGMA(plan=PLAN), members, recode=recode) for recode in (False, True))
    plain = federated(FedAvg(plan=PLAN), members, recode=False)

    told = [
        [(r.round, r.stage, r.sender, r.receiver, r.kind, r.bytes) for r in run.transcript.rows]
        for run in (made, plain)
    ]
    assert told[0] == told[1]
    assert not torch.equal(made.model["head.weight"], plain.model["head.weight"])
    assert again.transcript.sha256 == made.transcript.sha256
    assert all(torch.equal(again.model[key], value) for key, value in made.model.items())


@pytest.mark.parametrize("options", [{"tau": -0.1}, {"tau": 1.1}, {"server_step": 0.0}])
def test_options_out_of_range_are_refused(options: dict[str, float]):
    with pytest.raises(UsageError, match=r"tau in \[0, 1\] and server_step above 0"):
        build(FedGMA, options, where="method")


def test_the_preset_builds():
    assert build(FedGMA, load_preset("fedgma-paper")["method"], where="method").tau == 0.4

"""FedDG-GA's weights against a transcription of both rules, from the messages of whole runs."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import ModelState, Scores
from fdgsec.federation.global_model import Blueprint
from fdgsec.federation.method import Client
from fdgsec.federation.wire import Message
from fdgsec.methods.fedavg import averaged
from fdgsec.methods.feddg_ga import FedDGGA, adjust_weights
from fdgsec.nn.training.training_loop import logits
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import stream
from tests.support.round_loop import ROUNDS, Outcome, federated, four_clients

PLAN = TrainingPlan(batch_size=8, learning_rate=0.05)
State = Mapping[str, Tensor]


@pytest.fixture(scope="module")
def members() -> list[Client]:
    return four_clients()


def slowly_adjusted(weights: list[float], gaps: list[float], step: float) -> list[float]:
    """a_i + step gap_i / max|gap|, clipped to [0, 1], over their sum."""
    largest = max(abs(gap) for gap in gaps)
    moved = [min(max(a + step * gap / largest, 0.0), 1.0) for a, gap in zip(weights, gaps, strict=True)]
    return [a / sum(moved) for a in moved]


@pytest.mark.parametrize(
    ("weights", "gaps", "step"),
    [
        ([0.25, 0.25, 0.25, 0.25], [0.1, -0.3, 0.0, 0.2], 0.2 / 3),
        ([0.02, 0.5, 0.48], [-0.4, 0.1, 0.2], 0.2 / 3),  # the first is clipped to 0
        ([0.9, 0.1], [3.0, -3.0], 0.5),  # one meets either end
    ],
)
def test_a_step_moves_weights_by_relative_gaps_on_the_simplex(weights: list[float], gaps: list[float], step: float):
    made = adjust_weights(
        torch.tensor(weights, dtype=torch.float64), torch.tensor(gaps, dtype=torch.float64), step=step
    )

    assert made.tolist() == pytest.approx(slowly_adjusted(weights, gaps, step), abs=1e-15)


def test_weights_stay_on_the_simplex_whatever_the_gaps():
    rng = stream(0, "world", "simplex")
    weights = torch.full((7,), 1 / 7, dtype=torch.float64)
    for _ in range(300):
        gaps = torch.randn(7, generator=rng, dtype=torch.float64) - 0.5
        weights = adjust_weights(weights, gaps, step=float(torch.rand(1, generator=rng)))
        assert float(weights.min()) >= 0
        assert float(weights.sum()) == pytest.approx(1, abs=1e-12)


def test_without_gaps_weights_stay_and_where_all_are_clipped_they_are_equal():
    weights = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)

    assert torch.equal(adjust_weights(weights, torch.zeros(3).double(), step=0.1), weights)
    assert adjust_weights(weights, torch.full((3,), -2.0).double(), step=0.9).tolist() == pytest.approx([1 / 3] * 3)


@dataclass(frozen=True)
class Round:
    """The messages of one round that weights depend on, by client."""

    received: Mapping[str, State]
    trained: Mapping[str, State]
    exhibited: Mapping[str, State]
    numbers: Mapping[str, list[float]]


def rounds_of(outcome: Outcome) -> list[Round]:
    def states(number: int, stage: str, *, sent: bool) -> dict[str, State]:
        return {
            (m.sender if sent else m.receiver): m.artifact.tensors()
            for m in told(number, stage) if isinstance(m.artifact, ModelState)
        }  # fmt: skip

    def told(number: int, stage: str) -> list[Message]:
        return [m for m in outcome.transcript.messages() if (m.round, m.stage) == (number, stage)]

    return [
        Round(
            received=states(number, "model", sent=False),
            trained=states(number, "update", sent=True),
            exhibited=states(number, "exhibit", sent=False),
            numbers={
                m.sender: m.artifact.values.tolist() for m in told(number, "update") if isinstance(m.artifact, Scores)
            },
        )
        for number in range(ROUNDS)
    ]


def measured(state: State, data: DomainDataset | None, metric: str) -> float:
    network = Blueprint(backbone="tiny", classes=7).network(stream(0, "world", "any"))
    network.load_state_dict(dict(state))
    assert data is not None
    given = logits(network, data.pixels())
    if metric == "loss":
        return float(functional.cross_entropy(given.double(), data.labels))
    return float((given.argmax(1) == data.labels).double().mean())


def same(first: State, second: State) -> bool:
    """Up to gaps that cross the wire in float32."""
    return all(torch.allclose(first[name].double(), second[name].double(), rtol=0, atol=1e-6) for name in second)


@pytest.mark.parametrize(("metric", "sign"), [("accuracy", -1), ("loss", 1)])
@pytest.mark.medium
def test_the_papers_rule_weighs_by_the_gap_between_aggregated_and_own_model(
    members: list[Client], metric: str, sign: int
):
    plan = TrainingPlan(batch_size=8, learning_rate=0.05, epochs=4)
    outcome = federated(
        FedDGGA(plan=plan, metric="loss" if metric == "loss" else "accuracy", step=0.6), members, recode=False
    )
    weights = [0.25] * 4
    for number, done in enumerate(rounds_of(outcome)):
        trained = [done.trained[c.name] for c in members]
        new = averaged(trained, weights)
        assert same(done.exhibited["client:0"], new)
        gaps = [
            sign * (measured(new, c.validation, metric) - measured(own, c.validation, metric))
            for c, own in zip(members, trained, strict=True)
        ]
        if any(gaps):
            weights = slowly_adjusted(weights, gaps, 0.6 / 3 * (1 - number / ROUNDS))
        if number == 0:
            assert max(weights) - min(weights) > 0.01  # the second round's model tests them


def test_pardons_rule_weighs_by_training_losses_before_aggregation(members: list[Client]):
    outcome = federated(FedDGGA(plan=PLAN, rule="pardon", step=1.0), members, recode=False)
    first, second = rounds_of(outcome)

    sizes = [float(len(c.data)) for c in members]
    at_first = averaged([first.trained[c.name] for c in members], [size / sum(sizes) for size in sizes])
    assert same(second.received["client:2"], at_first)
    gaps = []
    for client in members:
        weight, gap, loss, _ = first.numbers[client.name]  # n_i, then metrics by name: gap, loss, steps
        assert weight == len(client.data)
        assert gap == pytest.approx(measured(first.received[client.name], client.data, "loss"), rel=1e-6)
        before = measured(second.received[client.name], client.data, "loss")
        assert second.numbers[client.name][1] == pytest.approx(before - loss, rel=1e-6)
        gaps.append(before - loss)
    weights = slowly_adjusted([0.25] * 4, gaps, 1 / 3 * (1 - 1 / ROUNDS))
    wanted = averaged([second.trained[c.name] for c in members], weights)
    assert same(outcome.model, wanted)

"""The round loop: what crosses the wire in which order."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pytest
import torch

from fdgsec.experiments.audit.small_networks import layered, one_layer, small_model
from fdgsec.federation.artifacts import ModelState, Scores
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client, Inbox, State
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.networks.classifiers import Classifier, Norm
from fdgsec.nn.training.training_loop import predictions
from fdgsec.runtime.random_streams import stream
from tests.support.toy_federation import (
    FULL_BATCH,
    Outcome,
    PeerReviewed,
    PixelStyles,
    largest_gap,
    members,
    run,
    start,
)

ROUND_OF_TWO = [
    ("model", "server", "client:0", "ModelState"),
    ("model", "server", "client:1", "ModelState"),
    ("update", "client:0", "server", "ModelState"),
    ("update", "client:0", "server", "Scores"),
    ("update", "client:1", "server", "ModelState"),
    ("update", "client:1", "server", "Scores"),
]
EXCHANGE_OF_TWO = [
    ("share", "client:0", "server", "StyleStatistics"),
    ("share", "client:1", "server", "StyleStatistics"),
    ("combine", "server", "client:0", "InterpolationStyle"),
    ("combine", "server", "client:1", "InterpolationStyle"),
]


def in_round(number: int, rows: list[tuple[str, str, str, str]]) -> list[tuple[int, str, str, str, str]]:
    return [(number, *row) for row in rows]


def test_fedavg_sends_the_model_down_and_up_and_nothing_else():
    outcome = run(FedAvg(), members(6, 6), rounds=2)

    assert outcome.messages == in_round(0, ROUND_OF_TWO) + in_round(1, ROUND_OF_TWO)


def test_a_clients_size_and_loss_reach_the_server_over_the_wire():
    outcome = run(FedAvg(), members(6, 9))

    told = [message.artifact for message in outcome.wire.transcript.messages() if message.stage == "update"]
    sizes = [artifact.tensors()["values"][0].item() for artifact in told]
    losses = [outcome.reports[0].metrics[name]["loss"] for name in ("client:0", "client:1")]
    assert sizes == [6.0, 9.0]
    assert [artifact.tensors()["values"][1].item() for artifact in told] == losses


def test_a_method_that_shares_once_exchanges_before_the_first_round_only():
    outcome = run(PixelStyles(when="once"), members(6, 6), rounds=2)

    assert outcome.messages == in_round(0, EXCHANGE_OF_TWO + ROUND_OF_TWO) + in_round(1, ROUND_OF_TWO)


def test_a_method_that_shares_every_round_exchanges_every_round():
    outcome = run(PixelStyles(when="every"), members(6, 6), rounds=2)

    both = ROUND_OF_TWO[:2] + EXCHANGE_OF_TWO + ROUND_OF_TWO[2:]  # styles of the model that just came
    assert outcome.messages == in_round(0, both) + in_round(1, both)


def test_everybody_shares_once_but_only_participants_share_every_round():
    once = run(PixelStyles(when="once"), members(6, 6, 6, 6), participation=0.5)
    every = run(PixelStyles(when="every"), members(6, 6, 6, 6), participation=0.5)

    def senders(outcome: Outcome) -> int:
        return sum(stage == "share" for _, stage, *_ in outcome.messages)

    assert (senders(once), senders(every)) == (4, 2)


def test_zero_rounds_exchange_artifacts_and_train_nothing():
    assert run(PixelStyles(), members(6, 6), rounds=0).messages == in_round(0, EXCHANGE_OF_TWO)
    assert run(FedAvg(), members(6, 6), rounds=0).messages == []


def test_peers_review_each_others_models_before_aggregation():
    outcome = run(PeerReviewed(), members(6, 6, 6))

    reviewing = [(stage, sender, receiver) for _, stage, sender, receiver, _ in outcome.messages[9:]]
    assert [stage for _, stage, *_ in outcome.messages[:9]] == ["model"] * 3 + ["update"] * 6
    assert reviewing[:6] == [("exhibit", "server", f"client:{i}") for i in (0, 0, 1, 1, 2, 2)]  # n (n - 1) exhibits
    assert reviewing[6:] == [("review", f"client:{i}", "server") for i in (0, 1, 2)]


def test_reviews_before_aggregation_decide_the_weights():
    outcome = run(PeerReviewed(plan=FULL_BATCH), members(6, 10, 8))

    rows = [r for r in outcome.wire.transcript.rows if r.stage == "review"]
    scores = [outcome.wire.transcript.payloads[row.sha256].tensors()["values"] for row in rows]
    votes = [1 + scores[1][0] + scores[2][0], 1 + scores[0][0] + scores[2][1], 1 + scores[0][1] + scores[1][1]]
    assert outcome.reports[0].server["votes"].tolist() == [float(vote) for vote in votes]


def test_reviews_after_aggregation_judge_the_new_model_which_reaches_reviewers_over_the_wire():
    outcome = run(FedAvg(select="validation"), members(6, 6))

    assert outcome.messages == in_round(
        0,
        [
            *ROUND_OF_TWO,
            ("exhibit", "server", "client:0", "ModelState"),
            ("exhibit", "server", "client:1", "ModelState"),
            ("review", "client:0", "server", "Scores"),
            ("review", "client:1", "server", "Scores"),
        ],
    )
    assert outcome.model is not None
    exhibited = [row.sha256 for row in outcome.wire.transcript.rows if row.stage == "exhibit"]
    assert exhibited == [outcome.model.state.sha256] * 2


@dataclass(frozen=True, kw_only=True)
class Movement(FedAvg):
    """FedAvg whose clients report how far the exhibited model moved from the one that the step comes with."""

    select: Literal["last", "validation"] = "validation"

    def review(self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, rng: torch.Generator) -> Scores:
        return Scores(values=torch.tensor([largest_gap(model.state.state, inbox["model"].tensors()), 1.0]))


def test_a_reviewer_is_not_handed_the_new_model_past_the_wire():
    outcome = run(Movement(plan=FULL_BATCH), members(6, 6))

    moved = largest_gap(start().state.state, outcome.state())
    assert moved > 1e-2
    assert float(outcome.reports[0].server["validation_accuracy"]) == pytest.approx(moved, rel=1e-6)


def test_the_mean_validation_accuracy_is_that_of_the_aggregated_model():
    clients = members(6, 6)

    outcome = run(FedAvg(select="validation"), clients)

    assert outcome.model is not None
    network = outcome.model.module()
    right = [
        float((predictions(network, c.validation.pixels()) == c.validation.labels).float().mean())
        for c in clients
        if c.validation is not None
    ]
    assert float(outcome.reports[0].server["validation_accuracy"]) == pytest.approx(sum(right) / 2)


def held_outside(network: Classifier, _rng: torch.Generator) -> Classifier:
    """A network that no copy can be made of: a hook holds one of its parts."""
    network.register_forward_hook(lambda _network, _given, made, part=network.head: made + 0 * part.weight.sum())
    return network


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("remodel", [None, held_outside])
def test_parameters_are_named_without_a_copy_of_the_network(
    norm: Norm, remodel: Callable[[Classifier, torch.Generator], Classifier] | None
):
    blueprint = Blueprint(backbone="tiny", classes=2, norm=norm, remodel=remodel)
    network = blueprint.network(stream(0, "world", "start"))
    model = GlobalModel(blueprint=blueprint, state=ModelState(state=dict(network.state_dict())))

    assert model.parameter_names() == {name for name, _ in model.module().named_parameters()}
    assert (model.parameter_names() == set(model.state.state)) == (norm == "group")


@pytest.mark.parametrize("network", [layered(5), one_layer(5)])
def test_a_small_model_names_its_own_parameters(network: Classifier):
    like = GlobalModel(blueprint=Blueprint(backbone="tiny", classes=2), state=ModelState(state={}))

    model = small_model(like, network)

    names = {name for name, _ in network.named_parameters()}
    assert model.parameter_names() == model.with_state(model.state.state).parameter_names() == names

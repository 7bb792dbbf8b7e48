"""Every registered method keeps the engine's promises: two rounds on shapes, plain and through bytes.

A method that brings nothing but its own hooks passes unchanged: it is enough that its name is in the registry."""

from dataclasses import replace

import pytest
import torch

from fdgsec.experiments.config import build
from fdgsec.federation.artifacts import KINDS
from fdgsec.federation.method import Blueprint, Client, Method
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.registry import METHODS, resolve
from tests.support.round_loop import CLIENTS, ROUNDS, Outcome, federated, four_clients

SMALL = {"plan": {"batch_size": 8, "learning_rate": 0.01}}


def method_named(name: str) -> Method:
    made: Method = build(resolve("methods", name), SMALL, where="method")
    return made.fitting(CLIENTS)


@pytest.fixture(scope="module")
def members() -> list[Client]:
    return four_clients()


@pytest.fixture(scope="module")
def outcomes(members: list[Client]) -> dict[str, Outcome]:
    """Outcomes of plain runs, made once each."""
    return {}


def plain(name: str, members: list[Client], outcomes: dict[str, Outcome]) -> Outcome:
    if name not in outcomes:
        outcomes[name] = federated(method_named(name), members, recode=False)
    return outcomes[name]


@pytest.mark.parametrize("name", METHODS)
def test_a_run_through_bytes_is_the_plain_run(name: str, members: list[Client], outcomes: dict[str, Outcome]):
    first = plain(name, members, outcomes)
    second = federated(method_named(name), members, recode=True)

    assert first.model.keys() == second.model.keys()
    assert all(torch.equal(first.model[key], second.model[key]) for key in first.model)
    assert first.transcript.sha256 == second.transcript.sha256


@pytest.mark.parametrize("name", METHODS)
def test_two_rounds_train_and_stay_finite(name: str, members: list[Client], outcomes: dict[str, Outcome]):
    method, outcome = method_named(name), plain(name, members, outcomes)
    start = Blueprint(backbone="tiny", classes=7, remodel=method.remodel).network(stream(0, "world", "initialisation"))

    assert len(outcome.losses) == ROUNDS * CLIENTS
    assert all(torch.isfinite(value).all() for value in outcome.model.values())
    moved = {key for key, value in start.state_dict().items() if not torch.equal(outcome.model[key], value)}
    assert {"head.weight", "body.stage4.0.weight"} <= moved


@pytest.mark.parametrize("name", METHODS)
def test_every_message_is_a_known_kind_between_the_server_and_a_client(
    name: str, members: list[Client], outcomes: dict[str, Outcome]
):
    for message in plain(name, members, outcomes).transcript.messages():
        assert message.artifact.kind in KINDS
        assert (message.sender == "server") != (message.receiver == "server")
        assert message.stage in {"share", "combine", "model", "update", "exhibit", "review"}


@pytest.mark.parametrize("name", METHODS)
def test_only_participants_hold_state(name: str, members: list[Client]):
    method = method_named(name)
    outcome = federated(method, members, recode=False, participation=0.5)

    acting = {message.sender for message in outcome.transcript.messages()} - {"server"}
    assert {holder for holder, state in outcome.states.items() if state} <= acting
    assert len(outcome.losses) == ROUNDS * CLIENTS // 2


@pytest.mark.parametrize("name", METHODS)
def test_the_options_of_a_method_are_frozen_fields(name: str):
    method = method_named(name)

    assert replace(method) == method  # type: ignore[type-var]
    with pytest.raises(AttributeError):
        method.plan = None  # type: ignore[attr-defined]

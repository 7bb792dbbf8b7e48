"""FedBN: what stays local, what is sent, and which batch norm the unseen domain gets."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client, Clock
from fdgsec.methods.fedavg import KEPT, FedAvg, averaged, detached
from fdgsec.methods.fedbn import FedBN, norm_entries
from fdgsec.nn.networks.classifiers import build_classifier
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from tests.support.round_loop import Outcome, federated, four_clients

PLAN = TrainingPlan(batch_size=8, learning_rate=0.05)
CLOCK = Clock(round=0, rounds=2, participants=("client:0",))


@pytest.fixture(scope="module")
def members() -> list[Client]:
    return four_clients()


def start(method: FedAvg) -> GlobalModel:
    blueprint = Blueprint(backbone="tiny", classes=7, remodel=method.remodel)
    state = detached(blueprint.network(stream(0, "world", "initialisation")))
    return GlobalModel(blueprint=blueprint, state=ModelState(state=state))


def payloads(outcome: Outcome, number: int, stage: str, sender: str) -> list[Mapping[str, Tensor]]:
    return [
        message.artifact.tensors()
        for message in outcome.transcript.messages()
        if (message.round, message.stage, message.sender) == (number, stage, sender)
        and message.artifact.kind == "ModelState"
    ]


def test_batch_norm_is_found_by_its_type_also_where_its_name_does_not_say_so():
    resnet = build_classifier("resnet18", 7, rng=stream(0, "world", "resnet"))

    entries = norm_entries(resnet)

    assert len(entries) == 5 * 20  # weight, bias, mean, variance and counter of the stem, 16 in blocks, 3 downsamplings
    assert "body.stage2.0.downsample.1.running_mean" in entries
    assert entries < set(resnet.state_dict())


def test_the_released_search_for_bn_misses_the_norms_of_downsampling():
    resnet = build_classifier("resnet18", 7, rng=stream(0, "world", "resnet"))

    missed = norm_entries(resnet) - norm_entries(resnet, by="bn-substring")

    assert len(missed) == 5 * 3
    assert all(".downsample.1." in name for name in missed)


def test_a_network_without_batch_norm_is_refused_for_it_would_be_fedavg():
    blueprint = Blueprint(backbone="tiny", classes=7, norm="group", remodel=FedBN().remodel)

    with pytest.raises(UsageError, match=r"tiny \(norm group\) has not a batch-norm layer; use --norm batch"):
        blueprint.network(stream(0, "world", "t"))
    with pytest.raises(UsageError, match="has not an entry named bn"):
        start(FedBN(released="bn-substring"))


@pytest.mark.parametrize(("unseen", "parts"), [("average", 2), ("initial", 1)])
def test_what_crosses_the_wire_in_two_rounds(members: list[Client], unseen: str, parts: int):
    method = FedBN(plan=PLAN, unseen="average" if unseen == "average" else "initial")

    rows = federated(method, members[:2], recode=False).transcript.rows

    whole = sum(value.numel() * value.element_size() for value in start(method).state.state.values())
    norm = 4 * 4 * (24 + 32 + 48 + 64 + 96) + 5 * 8  # four vectors per layer, float32, and a counter, int64
    update = [*[("ModelState", whole - norm), ("ModelState", norm)][:parts], ("Scores", 24)]
    down = [("model", "server", f"client:{i}", "ModelState", whole) for i in (0, 1)]
    up = [("update", f"client:{i}", "server", *artifact) for i in (0, 1) for artifact in update]
    assert [(r.stage, r.sender, r.receiver, r.kind, r.bytes) for r in rows] == 2 * (down + up)


@pytest.mark.parametrize("unseen", ["average", "initial"])
def test_a_run_through_bytes_is_the_plain_run(members: list[Client], unseen: str):
    method = FedBN(plan=PLAN, unseen="average" if unseen == "average" else "initial")

    plain, recoded = (federated(method, members[:2], recode=recode) for recode in (False, True))

    assert plain.transcript.sha256 == recoded.transcript.sha256
    assert all(torch.equal(plain.model[key], recoded.model[key]) for key in plain.model)


def test_what_is_uploaded_as_the_model_holds_no_batch_norm(members: list[Client]):
    outcome = federated(FedBN(plan=PLAN), members[:1], recode=False)

    model, norm = payloads(outcome, 0, "update", "client:0")
    assert set(norm) == norm_entries(start(FedBN()).module())
    assert set(model) == set(outcome.model) - set(norm)


def test_a_client_goes_on_from_its_own_batch_norm_and_from_the_averaged_rest(members: list[Client]):
    method = FedBN(plan=PLAN)
    outcome = federated(method, members[:2], recode=False)
    _, own = payloads(outcome, 0, "update", "client:0")
    received = payloads(outcome, 1, "model", "server")[0]
    state = {f"{KEPT}{name}": value for name, value in own.items()}

    begun = detached(method.start(members[0], model=start(method).with_state(received), state=state))

    assert all(torch.equal(begun[name], own[name] if name in own else received[name]) for name in begun)
    assert not torch.equal(own["body.stage4.1.running_mean"], received["body.stage4.1.running_mean"])


def test_clients_keep_the_batch_norm_that_they_last_trained(members: list[Client]):
    outcome = federated(FedBN(plan=PLAN), members[:2], recode=False)

    for name in ("client:0", "client:1"):
        _, last = payloads(outcome, 1, "update", name)
        assert set(outcome.states[name]) == {f"{KEPT}{entry}" for entry in last}
        assert all(torch.equal(outcome.states[name][f"{KEPT}{entry}"], value) for entry, value in last.items())


def test_the_unseen_domain_gets_the_average_of_everything_weighted_by_size(members: list[Client]):
    smaller = Client(name="client:1", data=members[1].data.subset(torch.arange(6)))
    outcome = federated(FedBN(plan=PLAN), [members[0], smaller], recode=False)
    sent = [payloads(outcome, 1, "update", f"client:{i}") for i in (0, 1)]
    sizes = [len(members[0].data), 6]

    expected = averaged([{**model, **norm} for model, norm in sent], [size / sum(sizes) for size in sizes])

    for name in expected:  # the round loop divides by the sum of weights once, after it has added
        torch.testing.assert_close(outcome.model[name], expected[name], rtol=2e-7, atol=1e-9)


def test_an_unseen_domain_with_the_initial_batch_norm_gets_what_the_federation_started_with(members: list[Client]):
    method = FedBN(plan=PLAN, unseen="initial")
    begun = start(method)

    outcome = federated(method, members[:2], recode=False)

    local = norm_entries(begun.module())
    assert all(torch.equal(outcome.model[name], begun.state.state[name]) for name in local)
    assert not torch.equal(outcome.model["head.weight"], begun.state.state["head.weight"])


def test_the_same_step_is_taken_as_in_fedavg_while_all_start_alike(members: list[Client]):
    def sent(method: FedAvg) -> dict[str, Tensor]:
        rng = stream(0, "world", "fit")
        update, _ = method.fit(members[0], model=start(method), inbox={}, state={}, clock=CLOCK, rng=rng)
        return {name: value for part in update.artifacts.values() for name, value in part.tensors().items()}

    first, second = sent(FedBN(plan=PLAN)), sent(FedAvg(plan=PLAN))

    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)

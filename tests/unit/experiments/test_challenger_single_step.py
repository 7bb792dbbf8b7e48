"""Single steps: what the challenger runs, what the plan says of it, and what batch norm lets out."""

from dataclasses import replace

import pytest
import torch

from fdgsec.attacks.gradient_inversion.batch_norm_leakage import batch_norm_distance, batch_statistics, image_statistics
from fdgsec.attacks.gradient_inversion.gradient_matching import batch_gradient, step_gradient
from fdgsec.attacks.gradient_inversion.single_step_updates import Update
from fdgsec.data.domains import as_float
from fdgsec.data.roles import Roles, split_roles
from fdgsec.data.shapes import shapes
from fdgsec.experiments.setup.run_federation import observe
from fdgsec.experiments.simulated_runs.challenger import Challenger
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client
from fdgsec.federation.wire import SERVER, Message
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.networks.classifiers import build_classifier
from fdgsec.nn.training.batches import TrainingSet, epoch_of_batches
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import ADVERSARIES, View
from fdgsec.threats.attack import Question

PLAN = TrainingPlan(learning_rate=0.05, weight_decay=0.01, momentum=0.9, batch_size=4, clip_norm=0.1)


@pytest.fixture(scope="module")
def roles() -> Roles:
    return split_roles(shapes(image_size=32, per_domain=28), rng=stream(0, "world", "roles"))


def model() -> GlobalModel:
    network = build_classifier("tiny", 7, rng=stream(0, "world", "network"))
    return GlobalModel(
        blueprint=Blueprint(backbone="tiny", classes=7), state=ModelState(state=dict(network.state_dict()))
    )


def challenger_of(roles: Roles, *, adversary: str = "server") -> Challenger:
    clients = [Client(name=f"client:{n}", data=roles.federation.of_domain(n)) for n in range(3)]
    method = FedAvg(plan=PLAN)
    return Challenger(
        method=method, roles=roles, sources=(0, 1, 2), clients=clients, adversary=ADVERSARIES[adversary],
        encoder="mini", seed=0, model=model(), run=observe(method, clients, seed=0, name="run", model=model(), rounds=2),
    )  # fmt: skip


def test_a_single_step_is_one_of_plain_sgd_over_all_images_of_a_client(roles: Roles):
    pairs = challenger_of(roles).cases(Question(kind="single_step", count=2, records=3, gallery=10))

    assert len(pairs) == 6
    for case, truth in pairs:
        update = Update.of(case.views[0], case.victim)
        assert update is not None
        assert truth.images is not None
        assert truth.labels is not None
        network = model().module()
        gradient = step_gradient(network, update.returned.state, learning_rate=0.05, weight_decay=0.01)
        true = batch_gradient(network, as_float(truth.images), truth.labels, statistics="batch")
        for name in true:  # the layout in which training runs rounds otherwise, which may turn single ReLUs over
            assert float((gradient[name] - true[name]).norm()) < 0.01 * float(true[name].norm())


def test_clients_of_a_size_share_no_image_and_are_shown_among_others(roles: Roles):
    pairs = challenger_of(roles).cases(Question(kind="single_step", count=3, records=2, gallery=9))

    seen = []
    for case, truth in pairs:
        assert case.candidates is not None
        assert truth.rows is not None
        assert truth.images is not None
        assert len(case.candidates) == 9
        assert not case.candidates.labels.any()
        assert torch.equal(case.candidates.pixels(truth.rows), truth.images)
        assert truth.proportions is not None
        assert float(truth.proportions.sum()) == pytest.approx(1.0)
        seen += case.candidates.rows[truth.rows].tolist()
    assert len(seen) == len(set(seen)) == 18


def test_steps_start_from_the_first_model_or_from_the_last_that_was_sent(roles: Roles):
    challenger = challenger_of(roles)
    found = {}
    for scheme in ("first", "last"):
        (case, _), *_ = challenger.cases(Question(kind="single_step", count=1, records=1, scheme=scheme))
        update = Update.of(case.views[0], case.victim)
        assert update is not None
        assert case.slice["model"] == scheme
        found[scheme] = update.given.state["head.weight"]

    assert torch.equal(found["first"], model().state.state["head.weight"])
    assert challenger.run is not None
    sent = [m for m in challenger.run.transcript.messages() if m.stage == "model"]
    assert torch.equal(found["last"], sent[-1].artifact.tensors()["head.weight"])
    assert not torch.equal(found["last"], found["first"])


def test_another_client_sees_no_update(roles: Roles):
    cases = challenger_of(roles, adversary="client").cases(Question(kind="single_step", count=1, records=1))

    assert all(Update.of(case.views[0], case.victim) is None for case, _ in cases if case.victim != "client:0")


def test_a_domain_too_small_for_a_client_asks_nothing(roles: Roles):
    assert challenger_of(roles).cases(Question(kind="single_step", count=1, records=1000)) == []


@pytest.mark.parametrize("steps", [None, 3])
@pytest.mark.parametrize("images", [1, 2, 4, 5, 8, 9, 11])
@pytest.mark.parametrize("batch", [1, 4])
def test_a_plan_counts_the_steps_that_are_taken(images: int, batch: int, steps: int | None):
    plan = TrainingPlan(epochs=2, batch_size=batch, steps=steps)
    data = TrainingSet(
        images=torch.zeros(images, 3, 8, 8, dtype=torch.uint8), labels=torch.zeros(images, dtype=torch.int64)
    )

    dealt = [
        len(list(epoch_of_batches(data, plan, stream(0, "world"), device=torch.device("cpu"), layout=torch.contiguous_format)))
        for _ in range(2)
    ]  # fmt: skip

    assert plan.local_steps(images) == (steps or sum(dealt))


def test_the_single_step_keeps_rate_decay_and_norms_and_nothing_else():
    step = replace(PLAN, freeze_norm=True).one_step(3)

    assert step == TrainingPlan(
        learning_rate=0.05, weight_decay=0.01, batch_size=3, steps=1, crop=None, flip=0.0, freeze_norm=True
    )


def test_fedavg_trains_by_a_plan():
    assert FedAvg(plan=PLAN).client_plan == PLAN


def test_running_statistics_give_the_batchs_own_away():
    network, images = model().module(), torch.rand(3, 3, 32, 32, generator=stream(0, "attack"))
    stem: list[torch.Tensor] = []
    hook = network.body.get_submodule("stem.1").register_forward_pre_hook(lambda layer, given: stem.append(given[0]))
    stepped = model().module().train()
    stepped(images)
    network.train()(images)
    hook.remove()

    found = batch_statistics(model().module(), stepped.state_dict())

    seen = stem[0].transpose(0, 1).flatten(1)
    mean, variance = found["body.stem.1"]
    assert len(found) == 5
    assert torch.allclose(mean, seen.mean(1), atol=1e-5)
    assert torch.allclose(variance, seen.var(1), rtol=1e-4, atol=1e-6)


def test_the_gap_is_zero_for_the_images_themselves_and_no_model_is_touched():
    network, images = model().module(), torch.rand(2, 3, 32, 32, generator=stream(0, "attack"))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    goal = image_statistics(network, images)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())

    with torch.no_grad(), batch_norm_distance(network.train(), goal) as gap:
        network(images)
        same = float(gap())
        network(images * 0.5)
        other = float(gap())

    assert same < 1e-8
    assert other > 0.01


def test_without_a_goal_or_batch_norm_there_is_no_gap():
    network = model().module()
    with batch_norm_distance(network, {}) as gap:
        network(torch.rand(1, 3, 32, 32, generator=stream(0, "attack")))
        assert float(gap()) == 0.0
    plain = build_classifier("squeezenet1_0", 7, rng=stream(0, "world", "network"))
    assert batch_statistics(plain, plain.state_dict()) == {}


def test_an_update_is_that_of_the_last_round_in_which_the_client_took_part():
    states = [ModelState(state={"head.weight": torch.full((1,), float(number))}) for number in range(4)]
    messages = [
        Message(round=0, stage="model", sender=SERVER, receiver="client:1", artifact=states[0]),
        Message(round=0, stage="update", sender="client:1", receiver=SERVER, artifact=states[1]),
        Message(round=2, stage="model", sender=SERVER, receiver="client:1", artifact=states[2]),
        Message(round=2, stage="update", sender="client:1", receiver=SERVER, artifact=states[3]),
        Message(round=4, stage="model", sender=SERVER, receiver="client:2", artifact=states[0]),
    ]

    update = Update.of(View(messages=tuple(messages)), "client:1")

    assert update is not None
    assert (update.round, update.rounds) == (2, 5)  # the schedule needs both
    assert (update.given, update.returned) == (states[2], states[3])
    assert Update.of(View(messages=tuple(messages)), "client:2") is None

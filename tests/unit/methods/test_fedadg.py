"""FedADG in the round loop: generators up and down, discriminators at home."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fdgsec.data.domains import as_float
from fdgsec.experiments.run_config import build, load_preset
from fdgsec.federation.artifacts import GeneratorState, ModelState
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client, Clock
from fdgsec.methods.fedadg import FedADG, SmoothedCrossEntropy
from fdgsec.methods.fedavg import FedAvg, averaged, detached
from fdgsec.nn.training.batches import Batch
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from tests.support.round_loop import Outcome, federated, four_clients

PLAN = TrainingPlan(batch_size=8, learning_rate=0.05)
SMALL = FedADG(
    plan=PLAN,
    adversarial_epochs=2,
    noise=6,
    hidden=16,
    projected=8,
    game=TrainingPlan(learning_rate=0.05, momentum=0.9),
)
NAMES = [f"client:{i}" for i in range(4)]
MODEL = 424292
GENERATOR = ((6 + 7) * 16 + 16 + 16 * 96 + 96) * 4
DISCRIMINATOR = ((96 + 7) * 8 + 8 * 1024 + 1024 + 1024 + 1) * 4
State = Mapping[str, Tensor]


@pytest.fixture(scope="module")
def members() -> list[Client]:
    return four_clients()


@pytest.fixture(scope="module")
def outcome(members: list[Client]) -> Outcome:
    return federated(SMALL, members, recode=False)


def rows(outcome: Outcome) -> list[tuple[int, str, str, str, str, int]]:
    return [(r.round, r.stage, r.sender, r.receiver, r.kind, r.bytes) for r in outcome.transcript.rows]


def expected(*extra: tuple[str, int]) -> list[tuple[int, str, str, str, str, int]]:
    made: list[tuple[int, str, str, str, str, int]] = []
    for number in (0, 1):
        made += [(number, "model", "server", name, "ModelState", MODEL) for name in NAMES]
        if number:
            made += [(number, "combine", "server", name, kind, size) for name in NAMES for kind, size in extra]
        for name in NAMES:
            for kind, size in [("ModelState", MODEL), *extra, ("Scores", 24)]:
                made.append((number, "update", name, "server", kind, size))
    return made


def generators(outcome: Outcome, number: int, stage: str) -> list[State]:
    messages = [m for m in outcome.transcript.messages() if (m.round, m.stage) == (number, stage)]
    return [m.artifact.tensors() for m in messages if isinstance(m.artifact, GeneratorState)]


@pytest.mark.medium
def test_generators_go_up_with_the_update_and_come_down_from_the_second_round_on(outcome: Outcome):
    assert rows(outcome) == expected(("GeneratorState", GENERATOR))


@pytest.mark.medium
def test_averaged_discriminators_travel_too(members: list[Client]):
    method = replace(SMALL, discriminators="averaged")

    made = federated(method, members, recode=True)

    assert rows(made) == expected(("GeneratorState", GENERATOR), ("ModelState", DISCRIMINATOR))
    assert not any("discriminator.first.weight" in state for state in made.states.values())


@pytest.mark.medium
def test_a_run_through_bytes_is_the_plain_run(outcome: Outcome, members: list[Client]):
    again = federated(SMALL, members, recode=True)

    assert again.transcript.sha256 == outcome.transcript.sha256
    assert all(torch.equal(again.model[key], value) for key, value in outcome.model.items())


def test_what_comes_down_is_the_mean_of_what_went_up(outcome: Outcome, members: list[Client]):
    sizes = [len(client.data) for client in members]

    mean = averaged(generators(outcome, 0, "update"), [size / sum(sizes) for size in sizes])

    handed = generators(outcome, 1, "combine")
    assert len(handed) == 4
    assert all(torch.equal(one[name], value) for one in handed for name, value in mean.items())


@pytest.mark.medium
def test_everybody_starts_from_the_same_generator_and_lets_it_learn(outcome: Outcome, members: list[Client]):
    still = federated(replace(SMALL, adversarial_epochs=0), members, recode=False)
    released = federated(replace(SMALL, released=True), members, recode=False)

    first = generators(still, 0, "update")
    assert all(torch.equal(one[name], value) for one in first for name, value in first[0].items())
    assert all(
        torch.equal(one[name], value) for one in generators(released, 1, "update") for name, value in first[0].items()
    )
    learned = generators(outcome, 0, "update")
    assert all(not torch.equal(one["first.weight"], first[0]["first.weight"]) for one in learned)


def test_discriminators_stay_with_their_clients_and_go_on_from_where_they_were(outcome: Outcome):
    held = [state["discriminator.first.weight"] for state in outcome.states.values()]
    plan = Blueprint(backbone="tiny", classes=7)
    network = plan.network(stream(0, "world", "t"))

    _, discriminator = SMALL.players(
        network, model=GlobalModel(blueprint=plan, state=ModelState(state=detached(network))), inbox={},
        state=outcome.states["client:2"], rng=stream(0, "world", "t"),
    )  # fmt: skip

    assert all(not torch.equal(held[i], held[j]) for i in range(4) for j in range(i))
    assert torch.equal(discriminator.first.weight, held[2])


def test_its_objective_is_that_of_the_adversarial_phase(members: list[Client]):
    plan = Blueprint(backbone="tiny", classes=7)
    network = plan.network(stream(0, "world", "t"))
    model = GlobalModel(blueprint=plan, state=ModelState(state=detached(network)))
    clock = Clock(round=0, rounds=1, participants=("client:0",))
    images, labels = as_float(members[0].data.pixels(torch.arange(8))), members[0].data.labels[:8]
    batch = Batch(images=images, labels=labels, records=torch.arange(8))

    made, smoothed = (
        method.objective(members[0], model=model, inbox={}, state={}, clock=clock, rng=stream(0, "world", "fit"))
        for method in (SMALL, replace(SMALL, adversarial_epochs=0))
    )

    rng = stream(0, "world", "fit")
    players = SMALL.players(network, model=model, inbox={}, state={}, rng=rng)
    expected = SMALL.alignment(players, error=SmoothedCrossEntropy(0.2), rng=rng)(batch, network)
    assert torch.equal(made(batch, network), expected)
    assert torch.equal(smoothed(batch, network), SmoothedCrossEntropy(0.2)(batch, network))


def test_a_participant_of_a_later_round_receives_the_generator(members: list[Client]):
    made = federated(SMALL, members, recode=False, participation=0.5)

    received = {r.receiver for r in made.transcript.rows if (r.round, r.stage) == (1, "combine")}
    assert received == {r.receiver for r in made.transcript.rows if (r.round, r.stage) == (1, "model")}
    assert len(received) == 2


@pytest.mark.medium
def test_both_phases_count_and_keep_one_optimizer(members: list[Client]):
    made = federated(replace(SMALL, keep_optimizer=True, plan=replace(PLAN, momentum=0.9)), members, recode=False)

    numbers = [m.artifact.tensors()["values"] for m in made.transcript.messages() if m.artifact.kind == "Scores"]
    assert numbers[0][2].item() == 2 + 2 * 2  # 17 images in batches of 8, the single one left out: E0 = 1, E1 = 2
    assert any(name.startswith("optimizer.") for name in made.states["client:0"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1.5}, "alpha in"),
        ({"label_smoothing": 1.0}, "label_smoothing in"),
        ({"adversarial_epochs": -1}, "adversarial_epochs >= 0"),
        ({"hidden": 0}, "of at least 1"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, float], message: str):
    with pytest.raises(UsageError, match=message):
        build(FedADG, options, where="method")


def test_a_local_method_is_refused_and_the_preset_builds():
    with pytest.raises(UsageError, match="takes no local method"):
        FedADG(local=FedAvg()).check(3)
    made = build(FedADG, load_preset("fedadg-paper")["method"], where="method")
    assert made.game == TrainingPlan(learning_rate=7e-4, momentum=0.9, weight_decay=1e-5)
    assert replace(made, plan=TrainingPlan()) == FedADG()
    assert (made.label_value, made.noise, made.hidden, made.projected) == (0.6, None, 4096, 1024)

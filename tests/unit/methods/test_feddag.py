"""FedDAG in the round loop: what clients start from, remember and send."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import pytest
from torch import Tensor

from fdgsec.experiments.run_config import build, load_preset
from fdgsec.federation.artifacts import Artifact, GeneratorState
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.method import Client, Clock, State, Update
from fdgsec.federation.round_loop import RoundLoop
from fdgsec.federation.weight_perturbation import perturbation_effect
from fdgsec.federation.wire import Wire
from fdgsec.methods.fedavg import averaged, detached
from fdgsec.methods.feddag import FedDAG
from fdgsec.nn.networks.perturbation_generator import PerturbationNetwork, perturbation_network
from fdgsec.nn.training.batches import TrainingSet
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import simulated_key, simulated_stream
from tests.support.round_loop import four_clients
from tests.support.watched import Watched, equal, run, start

PLAN = TrainingPlan(batch_size=8, learning_rate=0.05, momentum=0.9, weight_decay=5e-4, crop=None, flip=0.0)
METHOD = FedDAG(plan=PLAN, warm_up=0, generator="fcn16", ema=0.9)
CLOCK = Clock(round=0, rounds=2, participants=("client:0", "client:1", "client:2"))
GENERATOR_BYTES = 4 * 14_819
MODEL_BYTES = 4 * (105_535 + 2 * 264) + 8 * 5  # parameters, running statistics, counters
Distribution = Literal["student", "both", "global-student"]


@pytest.fixture(scope="module")
def clients() -> list[Client]:
    return four_clients()[:3]


def generator(scale: float = 20.0) -> PerturbationNetwork:
    """FCN16, its last layer `scale` times what it starts with, so that perturbations are visible."""
    made = perturbation_network("fcn16", rng=stream(0, "world", "generator"))
    made.draw.weight.data *= scale
    return made


def fitted(
    method: FedDAG, client: Client, *, state: State | None = None, inbox: Mapping[str, Artifact] | None = None
) -> tuple[Update, State]:
    received = inbox or {"generator": GeneratorState(state=detached(generator()))}
    rng = stream(0, "world", "fit")
    return method.fit(client, model=start(), inbox=received, state=state or {}, clock=CLOCK, rng=rng)


def parameters(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    names = dict(start().module().named_parameters())
    return {name: value for name, value in state.items() if name in names}


def test_a_new_clients_teacher_is_the_global_model(clients: list[Client]):
    update, _ = fitted(replace(METHOD, ema=1.0), clients[0])

    assert equal(parameters(update.artifacts["model"].tensors()), parameters(start().state.tensors()))


def test_a_clients_teacher_is_its_own_from_then_on(clients: list[Client]):
    first, state = fitted(METHOD, clients[0])

    second, _ = fitted(replace(METHOD, ema=1.0), clients[0], state=state)

    assert equal(parameters(second.artifacts["model"].tensors()), parameters(first.artifacts["model"].tensors()))
    assert {name.partition("/")[0] for name in state} == {"teacher"}


@pytest.mark.parametrize("distribution", ["both", "global-student"])
def test_in_the_other_strategies_the_global_model_replaces_the_teacher(
    clients: list[Client], distribution: Distribution
):
    _, state = fitted(METHOD, clients[0])
    method = replace(METHOD, distribution=distribution, ema=1.0)

    update, after = fitted(method, clients[0], state=state)

    assert after is state
    assert equal(parameters(update.artifacts["model"].tensors()), parameters(start().state.tensors()))


def test_a_received_global_student_is_where_the_student_starts(clients: list[Client]):
    method = replace(METHOD, distribution="global-student", ema=0.0, plan=replace(PLAN, learning_rate=1e-12))
    sent: dict[str, Artifact] = {
        "generator": GeneratorState(state=detached(generator())),
        "student": start("elsewhere").state,
    }

    update, _ = fitted(method, clients[0], inbox=sent)

    made, expected = update.artifacts["student"].tensors(), start("elsewhere").state.tensors()
    assert max(float((made[name] - expected[name]).abs().max()) for name in parameters(made)) < 1e-9


def test_a_client_tells_nothing_of_its_size(clients: list[Client]):
    assert fitted(METHOD, clients[0])[0].weight == 1.0


def test_without_a_generator_a_client_says_what_it_misses(clients: list[Client]):
    with pytest.raises(TypeError, match="client:0 received nothing"):
        fitted(METHOD, clients[0], inbox={"model": start().state})


def test_a_client_without_validation_images_is_refused_by_name(clients: list[Client]):
    with pytest.raises(UsageError, match="client:0 has no validation images"):
        fitted(METHOD, replace(clients[0], validation=None))


def test_the_papers_perturbation_changes_few_coordinates_and_no_loss(clients: list[Client]):
    for rho, least, most, moved in ((1e-7, 0.0, 0.2, 1e-6), (0.05, 0.9, 1.0, 1.0)):  # I8
        update, _ = fitted(replace(METHOD, rho=rho), clients[0])
        assert clients[0].validation is not None
        validation = TrainingSet.of(clients[0].validation)

        trained, shown = update.artifacts["model"].tensors(), update.artifacts["perturbed"].tensors()
        effect = perturbation_effect(start(), trained, shown, validation)

        assert not equal(trained, shown)
        assert least < effect.share < most
        assert effect.largest_move < moved
        assert update.metrics["perturbed_share"] == pytest.approx(effect.share)
        assert update.metrics["loss_moved"] == pytest.approx(effect.mean_move, abs=1e-9)
        if rho == 0.05:
            assert effect.largest_move > 1e-3


@pytest.fixture(scope="module")
def outcome(clients: list[Client]) -> Watched:
    return run(METHOD, clients)


@pytest.mark.medium
def test_a_round_is_exactly_these_messages(outcome: Watched):
    names = ["client:0", "client:1", "client:2"]
    expected = [
        *[("model", "server", name, "ModelState", MODEL_BYTES) for name in names],
        *[("combine", "server", name, "GeneratorState", GENERATOR_BYTES) for name in names],
        *[
            ("update", name, "server", kind, size)
            for name in names
            for kind, size in (
                ("ModelState", MODEL_BYTES),
                ("GeneratorState", GENERATOR_BYTES),
                ("ModelState", MODEL_BYTES),  # perturbed
                ("Scores", 8 * 8),  # weight; discrepancy, loss, three of the perturbation, own loss, steps
            )
        ],
        *[("exhibit", "server", name, "ModelState", MODEL_BYTES) for name in names for _ in range(2)],
        *[("review", name, "server", "Scores", 16) for name in names],
    ]

    for round in (0, 1):
        rows = [row for row in outcome.transcript.rows if row.round == round]
        assert [(row.stage, row.sender, row.receiver, row.kind, row.bytes) for row in rows] == expected


def test_reviewers_see_the_perturbed_models_of_the_others(outcome: Watched):
    perturbed = outcome.hashes(0, "update")[1::2]

    assert outcome.hashes(0, "exhibit") == [perturbed[i] for i in (1, 2, 0, 2, 0, 1)]


@pytest.mark.parametrize("distribution", ["student", "both", "global-student"])
@pytest.mark.medium
def test_encoding_and_decoding_every_message_changes_nothing(clients: list[Client], distribution: Distribution):
    method = replace(METHOD, distribution=distribution, rho=0.05)

    plain, recoded = (run(method, clients[:2], recode=recode) for recode in (False, True))

    assert recoded.transcript.sha256 == plain.transcript.sha256
    assert equal(recoded.model, plain.model)


def test_everybody_gets_the_same_seeded_generator_first_and_their_weighted_mean_after(outcome: Watched):
    first, second = outcome.payloads(0, "combine", "GeneratorState"), outcome.payloads(1, "combine", "GeneratorState")
    uploads = outcome.payloads(0, "update", "GeneratorState")
    weights = outcome.weights(0, 3)

    assert all(equal(first[0], other) for other in first[1:])
    assert equal(second[2], averaged(uploads, weights))
    assert not equal(first[0], second[0])


@pytest.mark.medium
def test_the_next_global_model_is_the_weighted_mean_of_teachers(clients: list[Client]):
    outcome = run(replace(METHOD, k=0, beta=5.0), clients)
    teachers = outcome.payloads(0, "update", "ModelState")[::2]
    weights = outcome.weights(0, 3)

    sent = outcome.payloads(1, "model", "ModelState")

    assert equal(sent[0], averaged(teachers, weights))
    assert len(set(weights)) == 3


def test_clients_remember_the_teacher_that_they_sent(outcome: Watched):
    teachers = outcome.payloads(1, "update", "ModelState")[::2]

    remembered = [outcome.states[f"client:{i}"] for i in range(3)]

    assert all(
        equal({f"teacher/{name}": value for name, value in teacher.items()}, state)
        for teacher, state in zip(teachers, remembered, strict=True)
    )


@pytest.mark.medium
def test_a_global_student_is_uploaded_averaged_and_handed_to_students(clients: list[Client]):
    outcome = run(replace(METHOD, distribution="global-student"), clients)

    down = [
        [m.artifact.kind for m in outcome.transcript.messages() if (m.round, m.stage) == (round, "combine")]
        for round in (0, 1)
    ]
    students = outcome.payloads(0, "update", "ModelState")[2::3]
    weights = outcome.weights(0, 3)
    assert down == [["GeneratorState"] * 3, ["GeneratorState", "ModelState"] * 3]
    assert equal(outcome.payloads(1, "combine", "ModelState")[0], averaged(students, weights))


def test_without_sharpness_awareness_no_model_reaches_a_peer(clients: list[Client]):
    outcome = run(replace(METHOD, beta=0.0, k=0), clients, rounds=1)

    kinds = [(row.stage, row.kind) for row in outcome.transcript.rows]
    assert ("exhibit", "ModelState") not in kinds
    assert kinds.count(("update", "ModelState")) == 3
    assert equal(outcome.model, averaged(outcome.payloads(0, "update", "ModelState"), [1 / 3] * 3))


def test_zero_rounds_hand_out_the_generator_and_nothing_else(clients: list[Client]):
    wire = Wire(secret=lambda message, number: simulated_stream(0))
    engine = LocalEngine(members=clients, method=METHOD, seed=0)

    RoundLoop(method=METHOD, engine=engine, wire=wire, key=simulated_key(0), rounds=0).run(None)

    assert [(row.stage, row.kind) for row in wire.transcript.rows] == [("combine", "GeneratorState")] * 3


def test_the_preset_holds_the_papers_constants():
    made = build(FedDAG, load_preset("feddag-paper")["method"], where="method")

    assert (made.a, made.beta, made.k, made.rho, made.margin, made.warm_up) == (0.3, 0.3, 4, 1e-7, 0.1, 5)
    plan = made.plan
    assert (plan.batch_size, plan.learning_rate, plan.momentum, plan.weight_decay) == (32, 1e-3, 0.9, 5e-4)
    assert (plan.crop, plan.flip) == (None, 0.0)
    assert replace(made, plan=TrainingPlan()) == FedDAG()  # what nobody asks for otherwise is the paper's

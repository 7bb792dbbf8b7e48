"""Peers judging perturbed models in the round loop: what crosses the wire, and what the server refuses."""

from dataclasses import replace

import pytest
import torch

from fdgsec.federation.artifacts import ModelState, Scores
from fdgsec.federation.method import Client, Clock, Update
from fdgsec.federation.weight_perturbation import validation_losses
from fdgsec.methods.fedavg import FedAvg
from fdgsec.methods.feddag_aggregation import (
    SharpnessAware,
    histories,
)
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import ArtifactError, UsageError
from fdgsec.runtime.random_streams import stream
from tests.support.round_loop import four_clients
from tests.support.watched import equal, run, start

PLAN = TrainingPlan(batch_size=8, learning_rate=0.05, crop=None, flip=0.0)
CLOCK = Clock(round=0, rounds=2, participants=("client:0", "client:1", "client:2"))


@pytest.fixture(scope="module")
def clients() -> list[Client]:
    return four_clients()[:3]


def fitted(method: FedAvg, client: Client) -> Update:
    rng = stream(0, "world", "fit")
    return method.fit(client, model=start(), inbox={}, state={}, clock=CLOCK, rng=rng)[0]


def test_a_round_sends_perturbed_models_to_every_peer_and_one_review_each_back(clients: list[Client]):
    outcome = run(SharpnessAware(plan=PLAN), clients, rounds=1)

    assert outcome.rows() == [
        *[("model", "server", f"client:{i}", "ModelState") for i in range(3)],
        *[
            ("update", f"client:{i}", "server", kind)
            for i in range(3)
            for kind in ("ModelState", "ModelState", "Scores")
        ],
        *[("exhibit", "server", f"client:{i}", "ModelState") for i in (0, 0, 1, 1, 2, 2)],  # n (n - 1)
        *[("review", f"client:{i}", "server", "Scores") for i in range(3)],
    ]
    perturbed = outcome.hashes(0, "update")[1::2]
    assert outcome.hashes(0, "exhibit") == [perturbed[i] for i in (1, 2, 0, 2, 0, 1)]
    assert [row.bytes for row in outcome.transcript.rows if row.stage == "review"] == [16] * 3


def test_plain_cross_evaluation_uploads_each_model_once_and_shows_it(clients: list[Client]):
    outcome = run(SharpnessAware(plan=PLAN, rho=0.0), clients, rounds=1)

    uploads = outcome.hashes(0, "update")
    assert len(uploads) == 3
    assert outcome.hashes(0, "exhibit") == [uploads[i] for i in (1, 2, 0, 2, 0, 1)]


def test_without_a_say_for_scores_nobody_is_asked_and_the_mean_is_uniform(clients: list[Client]):
    unequal = [*clients[:2], replace(clients[2], data=clients[2].data.subset(torch.arange(5)), validation=None)]

    outcome = run(SharpnessAware(plan=PLAN, beta=0.0, k=0), unequal, rounds=1)

    plain = run(FedAvg(plan=PLAN, weights="uniform"), unequal, rounds=1)
    assert outcome.rows() == plain.rows()
    for name, value in outcome.model.items():  # the last bit: FedAvg sums as replies come, and divides then
        torch.testing.assert_close(value, plain.model[name], rtol=1e-6, atol=1e-8)


def test_fewer_evaluators_send_fewer_models(clients: list[Client]):
    outcome = run(SharpnessAware(plan=PLAN, evaluators=1), clients)

    for round, judged in ((0, [1, 2, 0]), (1, [2, 0, 1])):
        perturbed = outcome.hashes(round, "update")[1::2]
        assert outcome.hashes(round, "exhibit") == [perturbed[i] for i in judged]


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("evaluators", [None, 1])
def test_scores_are_the_inverse_sums_of_the_judges_mean_losses(
    clients: list[Client], evaluators: int | None, include_self: bool
):
    method = SharpnessAware(plan=PLAN, rho=0.05, evaluators=evaluators, include_self=include_self)

    outcome = run(method, clients, rounds=1)

    shown = outcome.payloads(0, "update")[1::2]
    for owner, state in enumerate(shown):
        judges = [j for j in range(3) if j != owner] if evaluators is None else [(owner - 1) % 3]
        network = start().with_state(state).module()
        total = 0.0
        for judge in [*judges, *([owner] if include_self else [])]:
            validation = method.validation_set(clients[judge], {})
            assert validation is not None
            total += float(validation_losses(network, validation).mean())
        told = outcome.reports[0].server[f"evaluation/score/client:{owner}"]
        assert float(told) == pytest.approx(1 / total, rel=1e-6)  # batches of another size sum in another order


def test_a_client_tells_how_many_weights_its_perturbation_changed_and_how_its_loss_moved(clients: list[Client]):
    tiny, large = (fitted(SharpnessAware(plan=PLAN, rho=rho), clients[0]) for rho in (1e-7, 0.05))

    assert 0 < tiny.metrics["perturbed_share"] < 0.2
    assert abs(tiny.metrics["loss_moved"]) <= tiny.metrics["loss_moved_most"] < 1e-6
    assert large.metrics["perturbed_share"] > 0.9
    assert large.metrics["loss_moved_most"] > 1e-3


def test_a_client_tells_its_own_loss_only_where_it_counts_and_effects_only_where_it_perturbs(clients: list[Client]):
    told = [
        set(fitted(SharpnessAware(plan=PLAN, rho=rho, include_self=own), clients[0]).metrics) - {"loss", "steps"}
        for rho, own in ((0.05, True), (0.05, False), (0.0, True), (0.0, False))
    ]

    effects = {"perturbed_share", "loss_moved", "loss_moved_most"}
    assert told == [effects | {"own_loss"}, effects, {"own_loss"}, set()]


def test_the_perturbation_follows_the_gradient_of_the_last_step(clients: list[Client]):
    one_step = TrainingPlan(batch_size=64, learning_rate=0.05, crop=None, flip=0.0)
    method = SharpnessAware(plan=one_step, rho=0.05)

    update = fitted(method, clients[0])

    trained, shown = update.artifacts["model"].tensors(), update.artifacts["perturbed"].tensors()
    before = start().state.tensors()
    names = [name for name, _ in start().module().named_parameters()]
    step = torch.cat([(before[name] - trained[name]).double().flatten() for name in names])  # learning rate x gradient
    moved = torch.cat([(shown[name] - trained[name]).double().flatten() for name in names])
    assert torch.allclose(moved, 0.05 * step / step.norm(), atol=1e-7)


def test_a_client_without_validation_images_is_refused_by_name(clients: list[Client]):
    blind = replace(clients[1], validation=None)

    with pytest.raises(UsageError, match="client:1 has no validation images"):
        run(SharpnessAware(plan=PLAN), [clients[0], blind])


@pytest.mark.medium
def test_history_recalls_better_models_of_earlier_rounds(clients: list[Client]):
    rough = replace(PLAN, learning_rate=0.8)

    outcome = run(SharpnessAware(plan=rough, k=2, rho=0.0), clients, rounds=4)
    forgetful = run(SharpnessAware(plan=rough, k=0, rho=0.0), clients, rounds=4)

    assert not equal(outcome.model, forgetful.model)
    kept = [histories(report.server) for report in outcome.reports]
    assert all(max(p.round for p in models) == round for round, h in enumerate(kept) for models in h.values())
    assert not any(histories(report.server) for report in forgetful.reports)


def test_history_waits_for_clients_that_sit_a_round_out():
    members = four_clients()

    outcome = run(SharpnessAware(plan=PLAN, k=2), members, rounds=3, participation=0.5)

    seen: set[str] = set()
    for report in outcome.reports:
        seen |= set(report.metrics)
        assert set(histories(report.server)) == seen
    assert len(seen) > 2


def update(**metrics: float) -> Update:
    return Update(artifacts={"model": ModelState(state={"w": torch.ones(2)})}, weight=1.0, metrics=metrics)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0], "client:0 was shown 2 models, but its review has 1 losses"),
        ([1.0, 2.0, 3.0], "client:0 was shown 2 models, but its review has 3 losses"),
        ([1.0, -2.0], "client:0 must report mean validation losses of at least 0; got -2.0"),
    ],
)
def test_the_server_refuses_a_review_that_does_not_fit_what_it_showed(values: list[float], message: str):
    method, names = SharpnessAware(), ["client:0", "client:1", "client:2"]
    scores = {name: Scores(values=torch.tensor([1.0, 1.0])) for name in names} | {
        "client:0": Scores(values=torch.tensor(values))
    }

    with pytest.raises(ArtifactError, match=message):
        method.aggregate({n: update(own_loss=1.0) for n in names}, scores=scores, model=start(), server={})


def test_the_server_refuses_an_update_without_the_owners_loss():
    scores = {name: Scores(values=torch.tensor([1.0])) for name in ("client:0", "client:1")}

    with pytest.raises(ArtifactError, match="client:0 must report"):
        SharpnessAware().aggregate({n: update() for n in scores}, scores=scores, model=start(), server={})


def test_a_lone_participant_needs_its_own_judgment(clients: list[Client]):
    alone = SharpnessAware(plan=PLAN, include_self=False)

    with pytest.raises(UsageError, match="took part alone"):
        run(alone, clients, rounds=1, participation=0.34)
    assert run(replace(alone, include_self=True), clients, rounds=1, participation=0.34).reports

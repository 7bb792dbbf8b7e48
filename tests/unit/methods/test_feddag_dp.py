"""FedDAG under DP-SGD: private steps of two networks at once, and scores with a bound."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fdgsec.data.domains import as_float
from fdgsec.experiments.run_config import build, load_preset
from fdgsec.federation.artifacts import GeneratorState, ModelState, Scores
from fdgsec.federation.dp_sgd_joint import single_records
from fdgsec.federation.method import Client, Clock, Inbox, Update
from fdgsec.federation.weight_perturbation import validation_losses
from fdgsec.methods.fedavg import detached
from fdgsec.methods.feddag import FedDAG, Networks
from fdgsec.methods.feddag_dp import FedDAGDP
from fdgsec.nn.networks.perturbation_generator import perturbation_network
from fdgsec.nn.training.batches import Batch, TrainingSet
from fdgsec.nn.training.precision import Precision
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.privacy.dp_sgd import PrivateTrainer, uses_of
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.secret_streams import simulated_stream
from tests.support.round_loop import four_clients
from tests.support.single_records import drawn, federated, same, start

PLAN = TrainingPlan(batch_size=64, learning_rate=0.05, momentum=0.9, crop=None, flip=0.0)
METHOD = FedDAGDP(plan=PLAN, warm_up=0, generator="fcn16", ema=0.9, rho=0.05)
PRECISION = Precision(dtype="float32", channels_last=False)
CLOCK = Clock(round=0, rounds=2, participants=("client:0", "client:1", "client:2"))


def private(bound: float = 1.0, multiplier: float = 0.0, name: str = "noise") -> PrivateTrainer:
    return PrivateTrainer(
        max_grad_norm=bound, noise_multiplier=multiplier, secret=simulated_stream(0, name), method="feddag-dp"
    )


@pytest.fixture(scope="module")
def clients() -> list[Client]:
    return four_clients()[:3]


def generator_state() -> GeneratorState:
    made = perturbation_network("fcn16", rng=drawn("generator"))
    made.draw.weight.data *= 20  # so that perturbations are visible
    return GeneratorState(state=detached(made))


def fitted(method: FedDAG, client: Client, *, round: int = 0) -> Update:
    inbox: Inbox = {"generator": generator_state()}
    clock = replace(CLOCK, round=round)
    return method.fit(client, model=start(method), inbox=inbox, state={}, clock=clock, rng=drawn("fit"))[0]


def gap(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def stepped_down(update: Update, records: int) -> tuple[Tensor, Tensor]:
    """The sums of clipped gradients behind a first step of both networks, where the teacher is the student."""
    names = [name for name, _ in start(METHOD).module().named_parameters()]
    pairs = [
        [(update.artifacts["model"].tensors()[name], start(METHOD).state.tensors()[name]) for name in names],
        [(update.artifacts["generator"].tensors()[name], value) for name, value in generator_state().tensors().items()],
    ]
    student, drawn = (torch.cat([(old.double() - new.double()).flatten() for new, old in pair]) for pair in pairs)
    return student / PLAN.learning_rate * records, drawn / PLAN.learning_rate * records


def test_under_the_plain_trainer_a_client_trains_as_in_feddag_and_tells_no_loss_on_its_own_images(
    clients: list[Client],
):
    ours, theirs = (
        fitted(method, clients[0]) for method in (METHOD, FedDAG(plan=PLAN, warm_up=0, generator="fcn16", ema=0.9))
    )

    assert same(ours.artifacts["model"].tensors(), theirs.artifacts["model"].tensors())
    assert same(ours.artifacts["generator"].tensors(), theirs.artifacts["generator"].tensors())
    assert set(ours.metrics) == {"loss", "steps", "discrepancy"}
    assert set(theirs.metrics) - set(ours.metrics) == {"own_loss", "perturbed_share", "loss_moved", "loss_moved_most"}


@pytest.mark.parametrize("round", [0, 1])
def test_a_private_step_without_noise_and_bound_is_feddags_step(clients: list[Client], round: int):
    method = replace(METHOD, warm_up=1)

    ours = fitted(method, clients[0].training_by(private(bound=1e6)), round=round)
    theirs = fitted(method, clients[0], round=round)  # one batch holds all images

    assert theirs.metrics["steps"] == 1.0
    for name in ("model", "generator"):  # in float32 the generator's gradient is good to a hundredth of itself
        assert gap(ours.artifacts[name].tensors(), theirs.artifacts[name].tensors()) < (1e-6, 2e-4)[round]
    assert ours.metrics == {"steps": 1.0}
    untouched = same(ours.artifacts["generator"].tensors(), generator_state().tensors())
    assert untouched == (round == 0)  # warm-up


@pytest.mark.parametrize("student_loss", ["both", "generated"])
def test_gradients_of_single_records_add_up_to_those_of_feddags_steps(clients: list[Client], student_loss: str):
    method = replace(METHOD, student_loss="both" if student_loss == "both" else "generated")
    made = [start(METHOD).module() for _ in range(2)]
    generator = perturbation_network("fcn16", rng=drawn("generator"))
    generator.load_state_dict(generator_state().tensors())
    networks = Networks.of(made[0].double(), made[1].double(), generator.double(), PLAN)
    records = torch.arange(5)
    data = clients[0].data
    batch = Batch(images=as_float(data.pixels(records)).double(), labels=data.labels[records], records=records)

    single = [method.gradients(networks, one, PRECISION, warming=False) for one in single_records(batch)]
    whole = method.generated(networks, batch, PRECISION)
    method.generator_step(networks, whole)  # leaves the mean's gradient, and moves the generator behind `whole`
    method.student_step(networks, batch, whole, PRECISION)

    for place, network in enumerate((networks.student, networks.generator)):
        for number, parameter in enumerate(network.parameters()):
            mean = torch.stack([one[place][number] for one in single]).mean(0)
            assert parameter.grad is not None
            assert torch.allclose(mean, parameter.grad, rtol=1e-5, atol=1e-7)  # losses are float32


@pytest.mark.medium
def test_a_record_more_moves_both_networks_gradients_together_by_at_most_the_bound(clients: list[Client]):
    method, client = replace(METHOD, ema=0.0), clients[0]
    rest = replace(client, data=client.data.subset(torch.arange(1, len(client.data))))

    with_, without = (
        stepped_down(fitted(method, each.training_by(private(bound=0.01))), len(each.data)) for each in (client, rest)
    )

    apart = [float((one - other).norm()) for one, other in zip(with_, without, strict=True)]
    assert apart == pytest.approx([0.01 / 2**0.5] * 2, rel=0.02)  # both are cut here; weights are float32


def test_in_warm_up_the_student_trains_alone_with_the_whole_bound(clients: list[Client]):
    method, one = replace(METHOD, ema=0.0), clients[0].data.subset(torch.tensor([0]))
    alone = replace(clients[0], data=one)

    both, warming = (
        stepped_down(fitted(replace(method, warm_up=rounds), alone.training_by(private(bound=0.01))), 1)
        for rounds in (0, 1)
    )

    assert [float(part.norm()) for part in both] == pytest.approx([0.01 / 2**0.5] * 2, rel=0.02)
    assert [float(part.norm()) for part in warming] == pytest.approx([0.01, 0.0], rel=0.02)


def test_the_perturbation_follows_the_noisy_gradient(clients: list[Client]):
    update = fitted(replace(METHOD, ema=0.0), clients[0].training_by(private(bound=0.01, multiplier=100.0)))

    model, shown = (update.artifacts[name].tensors() for name in ("model", "perturbed"))
    move = torch.cat([(shown[name] - model[name]).flatten() for name, _ in start(METHOD).module().named_parameters()])
    noisy, _ = stepped_down(update, len(clients[0].data))
    assert float(move.norm()) == pytest.approx(METHOD.rho, rel=1e-3)
    assert float(torch.cosine_similarity(move.double(), noisy, dim=0)) > 0.999
    assert float(noisy.norm()) > 100 * len(clients[0].data) * 0.01  # the noise, not the records


def test_a_round_costs_what_a_round_of_one_network_costs(clients: list[Client]):
    trainer, plan = private(bound=0.5, multiplier=2.0), replace(PLAN, batch_size=4, steps=3)

    fitted(replace(METHOD, plan=plan), clients[0].training_by(trainer))

    assert trainer.uses == (uses_of(len(clients[0].data), plan, noise_multiplier=2.0, max_grad_norm=0.5),)


def test_batch_norm_is_refused_where_training_is_private(clients: list[Client]):
    plain = start(METHOD)
    model = replace(plain, blueprint=replace(plain.blueprint, norm="batch"))
    state = ModelState(state=detached(model.blueprint.network(drawn("start"))))

    with pytest.raises(UsageError, match=r"BatchNorm2d.*--norm group"):
        METHOD.fit(
            clients[0].training_by(private()), model=replace(model, state=state),
            inbox={"generator": generator_state()}, state={}, clock=CLOCK, rng=drawn("fit"),
        )  # fmt: skip


def test_a_judge_answers_with_means_of_cut_losses(clients: list[Client]):
    method = replace(METHOD, loss_bound=1.9)
    peers: Inbox = {
        f"client:{i}": start(METHOD).with_state({k: v * (1 + i) for k, v in start(METHOD).state.state.items()}).state
        for i in (2, 1)
    }
    judge = clients[0]

    scores = method.review(judge, model=start(METHOD), inbox=peers, state={}, rng=drawn("review"))

    assert judge.validation is not None
    for value, name in zip(scores.values.tolist(), ("client:1", "client:2"), strict=True):
        network = start(METHOD).with_state(peers[name].tensors()).module()
        losses = validation_losses(network, TrainingSet.of(judge.validation)).tolist()
        assert value == pytest.approx(sum(min(loss, 1.9) for loss in losses) / len(losses), rel=1e-6)
        assert max(losses) > 1.9


def test_one_validation_image_moves_a_score_by_at_most_the_bound_over_their_number(clients: list[Client]):
    validation = clients[0].validation
    assert validation is not None
    peers: Inbox = {
        "client:1": start(METHOD).with_state({k: v * 30 for k, v in start(METHOD).state.state.items()}).state
    }
    size = len(validation)

    scores = [
        METHOD.review(
            replace(clients[0], validation=validation.subset(rows)),
            model=start(METHOD),
            inbox=peers,
            state={},
            rng=drawn("r"),
        )
        for rows in (torch.cat([torch.tensor([first]), torch.arange(1, size)]) for first in range(size))
    ]

    values = torch.cat([score.values for score in scores])
    assert 0 < float(values.max() - values.min()) <= METHOD.loss_bound / size + 1e-9


def test_scores_that_noise_has_moved_out_of_range_are_brought_back(clients: list[Client]):
    names = [client.name for client in clients]
    updates = {
        name: Update(artifacts={"model": start(METHOD).state, "generator": generator_state()}, weight=1.0)
        for name in names
    }

    def weights(*losses: float) -> list[float]:
        scores = {name: Scores(values=torch.tensor([losses[i], losses[i]])) for i, name in enumerate(names)}
        _, server = METHOD.aggregate(updates, scores=scores, model=start(METHOD), server={})
        return [float(server[f"evaluation/weight/{name}"]) for name in names]

    assert weights(-3.0, 1.0, 9.0) == weights(0.01, 1.0, 4.0)


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.medium
def test_two_rounds_are_the_same_however_artifacts_travel(clients: list[Client], noisy: bool):
    method = replace(METHOD, plan=replace(PLAN, batch_size=6, steps=1))

    def members() -> list[Client]:
        return [c.training_by(private(multiplier=1.0, name=c.name)) for c in clients] if noisy else clients

    plain, recoded = (federated(method, members(), recode=recode) for recode in (False, True))

    assert same(plain.model, recoded.model)
    rows = [(row.stage, row.kind) for row in plain.transcript.rows if (row.round, row.sender) == (1, "client:0")]
    assert rows == [
        ("update", "ModelState"), ("update", "GeneratorState"), ("update", "ModelState"), ("update", "Scores"),
        ("review", "Scores"),
    ]  # fmt: skip
    told = [m.artifact for m in plain.transcript.messages() if m.stage == "update" and m.artifact.kind == "Scores"]
    assert not noisy or all(one.tensors()["values"].tolist() == [1.0, 1.0] for one in told)  # weight, steps


@pytest.mark.medium
def test_the_loss_falls(clients: list[Client]):
    method = replace(METHOD, plan=replace(PLAN, batch_size=8, epochs=2), a=0.05, ema=0.0, beta=0.0, k=0)

    losses = federated(method, clients[:2], rounds=3).losses

    assert losses[-1] < losses[0] - 0.3


@pytest.mark.parametrize(
    "options", [{"include_self": True}, {"margin_over": "batch"}, {"loss_floor": 4.0}, {"loss_floor": 0.0}]
)
def test_options_that_would_tell_of_single_records_are_refused(options: Mapping[str, object]):
    with pytest.raises(UsageError, match=next(iter(options))):
        build(FedDAGDP, options, where="method")


def test_a_client_alone_is_refused_and_evaluators_fit_those_there_are():
    with pytest.raises(UsageError, match="two clients or more"):
        METHOD.check(1)

    assert replace(METHOD, evaluators=5).fitting(3).evaluators == 2
    assert METHOD.fitting(3) is METHOD


def test_the_papers_preset_fits_without_own_losses():
    options = {**load_preset("feddag-paper")["method"], "include_self": False}

    assert build(FedDAGDP, options, where="method").warm_up == 5


def test_its_preset_trains_without_batch_norm():
    preset = load_preset("feddag-dp")

    assert not build(FedDAGDP, preset["method"], where="method").plan.freeze_norm
    assert preset["run"]["norm"] == "group"

"""A client's training in FedDAG: the invariants of its steps, and its options."""

import hashlib
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fdgsec.data.domains import as_float
from fdgsec.experiments.run_config import build
from fdgsec.federation.method import Client, Clock
from fdgsec.methods.fedavg import FedAvg, detached
from fdgsec.methods.feddag import FedDAG, Generated, Networks, discrepancy, follow, generated_images
from fdgsec.nn.networks.classifiers import Norm
from fdgsec.nn.networks.perturbation_generator import PerturbationNetwork, perturbation_network
from fdgsec.nn.training.batches import Batch, TrainingSet
from fdgsec.nn.training.precision import Precision
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from tests.support.round_loop import four_clients
from tests.support.watched import equal, start

PLAN = TrainingPlan(batch_size=8, learning_rate=0.05, momentum=0.9, weight_decay=5e-4, crop=None, flip=0.0)
METHOD = FedDAG(plan=PLAN, warm_up=0, generator="fcn16", ema=0.9)
PRECISION = Precision(dtype="float32", channels_last=False)
CLOCK = Clock(round=0, rounds=2, participants=("client:0", "client:1", "client:2"))


def generator(scale: float = 20.0) -> PerturbationNetwork:
    """FCN16, its last layer `scale` times what it starts with, so that perturbations are visible."""
    made = perturbation_network("fcn16", rng=stream(0, "world", "generator"))
    made.draw.weight.data *= scale
    return made


def networks(teacher: str = "start", norm: Norm = "batch", plan: TrainingPlan = PLAN) -> Networks:
    return Networks.of(start(norm=norm).module(), start(teacher, norm=norm).module(), generator(), plan)


@pytest.fixture(scope="module")
def clients() -> list[Client]:
    return four_clients()[:3]


@pytest.fixture(scope="module")
def batch(clients: list[Client]) -> Batch:
    records = torch.arange(8)
    return Batch(
        images=as_float(clients[0].data.pixels(records)), labels=clients[0].data.labels[records], records=records
    )


def digest(network: nn.Module, *, counters: bool = True) -> str:
    """The hash of the whole state, with or without the counters of batches."""
    state = {name: value for name, value in network.state_dict().items() if counters or value.is_floating_point()}
    return hashlib.sha256(b"".join(state[name].numpy().tobytes() for name in sorted(state))).hexdigest()


def slopes(loss: Tensor, made: Generated, network: PerturbationNetwork) -> list[Tensor]:
    """The gradient in the generator's parameters of a loss that hangs on `made.seen`."""
    (slope,) = torch.autograd.grad(loss, made.seen, retain_graph=True)
    return list(torch.autograd.grad((made.images * slope).sum(), list(network.parameters()), retain_graph=True))


def test_without_intensity_nothing_is_generated_and_twins_agree(batch: Batch):
    both = networks()  # I1

    made = replace(METHOD, a=0.0).generated(both, batch, PRECISION)

    assert torch.equal(made.images, batch.images)
    assert float(made.distance.detach().abs().max()) == 0.0
    assert all(float(slope.abs().max()) == 0.0 for slope in slopes(made.distance.mean(), made, both.generator))


@pytest.mark.parametrize("a", [0.1, 0.3, 1.0])
def test_no_pixel_moves_by_more_than_the_intensity(batch: Batch, a: float):
    both = networks()  # I2
    both.generator.draw.weight.data *= 1e3
    normalize = both.student.normalize

    made = replace(METHOD, a=a).generated(both, batch, PRECISION)

    moved = (normalize(made.images) - normalize(batch.images)).detach().abs()
    assert float(moved.max()) == pytest.approx(a, abs=1e-5)  # tanh saturates; float32 at values of about 2


@pytest.mark.parametrize("margin", [0.0, 0.01, 0.1, 4.0])
def test_the_discrepancy_counts_from_zero_to_the_margin(batch: Batch, margin: float):
    made = METHOD.generated(networks("other"), batch, PRECISION)  # I4

    counted = float((made.classified.mean() - replace(METHOD, margin=margin).generator_loss(made)).detach())

    assert -1e-6 <= counted <= margin + 1e-6
    if margin == 4.0:  # unit vectors are never further apart
        assert counted == pytest.approx(float(made.distance.detach().mean()), abs=1e-6)


def test_beyond_the_margin_only_the_task_moves_the_generator(batch: Batch):
    both = networks("other")  # I4
    made = METHOD.generated(both, batch, PRECISION)
    least = float(made.distance.detach().min())
    assert least > 0.01

    beyond = slopes(replace(METHOD, margin=0.5 * least).generator_loss(made), made, both.generator)
    within = slopes(replace(METHOD, margin=4.0).generator_loss(made), made, both.generator)
    task = slopes(made.classified.mean(), made, both.generator)

    assert all(torch.equal(one, other) for one, other in zip(beyond, task, strict=True))
    assert not torch.equal(within[0], task[0])


def test_the_margin_cuts_each_record_or_the_mean_of_the_batch(batch: Batch):
    both = networks("other", norm="group")  # batch norm would let records move each other
    made = METHOD.generated(both, batch, PRECISION)
    middle = 1.001 * float(made.distance.detach().median())
    far = made.distance.detach() > middle
    (task,) = torch.autograd.grad(made.classified.mean(), made.seen, retain_graph=True)

    loss = replace(METHOD, margin=middle).generator_loss(made)
    (slope,) = torch.autograd.grad(loss, made.seen, retain_graph=True)
    whole = replace(METHOD, margin=0.99 * float(made.distance.detach().mean()), margin_over="batch")
    (none,) = torch.autograd.grad(whole.generator_loss(made), made.seen, retain_graph=True)

    apart = (slope - task).flatten(1).abs().amax(1)
    assert 0 < int(far.sum()) < 8
    assert float(apart[far].max()) < 1e-7 < float(apart[~far].min())
    assert torch.equal(none, task)


def test_the_generators_step_moves_the_generator_alone_and_the_students_step_the_student(batch: Batch):
    both = networks("other")  # I5
    made = METHOD.generated(both, batch, PRECISION)
    before = {name: digest(getattr(both, name)) for name in ("student", "teacher", "generator")}

    METHOD.generator_step(both, made)
    between = {name: digest(getattr(both, name)) for name in before}
    METHOD.student_step(both, batch, made, PRECISION)
    after = {name: digest(getattr(both, name)) for name in before}

    assert {name for name in before if before[name] != between[name]} == {"generator"}
    assert {name for name in before if between[name] != after[name]} == {"student"}


@pytest.mark.medium
def test_a_teacher_without_memory_is_the_student_and_one_of_pure_memory_stays(clients: list[Client]):
    data = TrainingSet.of(clients[0].data)  # I6
    for ema, buffers in ((0.0, "copied"), (0.0, "averaged"), (1.0, "averaged")):
        both = networks("other")
        before = digest(both.teacher, counters=False)
        method = replace(METHOD, ema=ema, teacher_buffers=buffers, plan=replace(PLAN, steps=3))

        method.train_networks(both, data, clock=CLOCK, rng=stream(0, "world", "fit"))

        after = digest(both.teacher, counters=False)
        assert after == (digest(both.student, counters=False) if ema == 0.0 else before)


def test_a_teacher_follows_by_its_coefficient_and_copies_running_statistics():
    teacher, student = start("a").module(), start("b").module()
    student.get_buffer("body.stem.1.running_mean").fill_(7.0)
    student.get_buffer("body.stem.1.num_batches_tracked").fill_(5)
    before = detached(teacher)

    follow(teacher, student, ema=0.75, buffers="copied")

    expected = 0.75 * before["head.weight"] + 0.25 * student.head.weight.detach()
    assert torch.allclose(teacher.head.weight, expected, atol=1e-7)
    assert teacher.get_buffer("body.stem.1.running_mean").unique().tolist() == [7.0]
    assert int(teacher.get_buffer("body.stem.1.num_batches_tracked")) == 5


def test_running_statistics_may_be_averaged_too():
    teacher, student = start("a").module(), start("b").module()
    student.get_buffer("body.stem.1.running_mean").fill_(8.0)
    student.get_buffer("body.stem.1.num_batches_tracked").fill_(5)

    follow(teacher, student, ema=0.75, buffers="averaged")

    assert teacher.get_buffer("body.stem.1.running_mean").unique().tolist() == [2.0]
    assert int(teacher.get_buffer("body.stem.1.num_batches_tracked")) == 5


def test_discrepancy_is_of_directions_and_zero_vectors_have_none():
    features = torch.tensor([[3.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    other = torch.tensor([[0.5, 0.0], [1.0, 0.0], [0.0, 0.0]])

    assert discrepancy(features, other).tolist() == [0.0, 2.0, 0.0]


def test_in_pixel_space_the_perturbation_is_added_as_it_is(batch: Batch):
    made = generator()

    images = generated_images(made, batch.images, a=0.5)

    assert torch.allclose(images, batch.images + 0.5 * made(batch.images), atol=1e-7)


def test_in_normalized_space_the_network_sees_and_moves_normalized_images(batch: Batch):
    made, normalize = generator(), start().module().normalize

    images = generated_images(made, batch.images, a=0.5, normalize=normalize)

    inner = normalize(batch.images)
    assert torch.allclose(normalize(images), inner + 0.5 * made(inner), atol=1e-5)


def test_clamped_images_stay_pixels(batch: Batch):
    free, clamped = (
        generated_images(generator(1e4), batch.images, a=1.0, clamp=clamp).detach() for clamp in (False, True)
    )

    assert not 0 <= float(free.min()) <= float(free.max()) <= 1
    assert torch.equal(clamped, free.clamp(0, 1))


def test_the_student_learns_from_generated_images_alone_where_it_is_told_so(batch: Batch):
    both = networks("other")
    made = METHOD.generated(both, batch, PRECISION)

    losses = replace(METHOD, student_loss="generated").student_step(both, batch, made, PRECISION)

    assert torch.equal(losses, made.classified + made.distance)


def test_warm_up_is_cross_entropy_on_original_images_with_the_generator_untouched(clients: list[Client]):
    method, data = replace(METHOD, warm_up=1), TrainingSet.of(clients[0].data)
    both = networks()
    before = digest(both.generator)

    metrics = method.train_networks(both, data, clock=CLOCK, rng=stream(0, "world", "fit"))

    plain = FedAvg(plan=PLAN).fit(
        clients[0], model=start(), inbox={}, state={}, clock=CLOCK, rng=stream(0, "world", "fit")
    )[0]
    assert equal(detached(both.student), plain.artifacts["model"].tensors())
    assert metrics == pytest.approx(dict(plain.metrics), rel=1e-6)
    assert digest(both.generator) == before
    assert digest(both.teacher) != digest(start().module())


def test_half_precision_gives_nearly_the_same_losses_and_whole_precision_weights(batch: Batch):
    losses = []
    for dtype in ("float32", "bfloat16"):
        both, precision = networks("other"), Precision(dtype=dtype, channels_last=True)
        made = METHOD.generated(both, batch, precision)
        METHOD.generator_step(both, made)
        losses.append(METHOD.student_step(both, batch, made, precision).detach())
        assert {value.dtype for value in both.generator.parameters()} == {torch.float32}

    assert losses[1].dtype == torch.float32
    assert torch.allclose(losses[0], losses[1], rtol=0.05)  # bfloat16 has eight bits


@pytest.mark.medium
def test_a_plan_of_steps_takes_exactly_as_many(clients: list[Client]):
    data = TrainingSet.of(clients[0].data)  # 17 images: two batches of eight an epoch, the one left over is skipped

    counted = [
        replace(METHOD, plan=replace(PLAN, steps=steps, epochs=epochs)).train_networks(
            networks(), data, clock=CLOCK, rng=stream(0, "world", "fit")
        )["steps"]
        for steps, epochs in ((2, 1), (7, 1), (None, 2))
    ]

    assert counted == [2.0, 7.0, 4.0]


def test_both_optimizers_follow_the_schedule(clients: list[Client]):
    both, late = networks(), Clock(round=1, rounds=2, participants=())
    plan = replace(PLAN, schedule="cosine")

    replace(METHOD, plan=plan).train_networks(
        both, TrainingSet.of(clients[0].data), clock=late, rng=stream(0, "world", "fit")
    )

    rates = [opt.param_groups[0]["lr"] for opt in (both.student_optimizer, both.generator_optimizer)]
    assert rates == pytest.approx([0.025, 0.025])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"a": 1.5}, "needs a and ema in"),
        ({"ema": -0.1}, "needs a and ema in"),
        ({"margin": -1.0}, "needs a and ema in"),
        ({"warm_up": -1}, "needs a and ema in"),
        ({"rho": 3.0}, "needs rho in"),
        ({"keep_optimizer": True}, "drop local and keep_optimizer"),
        ({"local": FedAvg()}, "drop local and keep_optimizer"),
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, object], message: str):
    with pytest.raises(UsageError, match=message):
        build(FedDAG, wrong, where="method")

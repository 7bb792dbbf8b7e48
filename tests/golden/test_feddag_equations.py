"""FedDAG's training against slow transcriptions of equations (1) to (4) and of Algorithm 1."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from fdgsec.data.domains import as_float
from fdgsec.federation.artifacts import GeneratorState
from fdgsec.federation.method import Client, Clock
from fdgsec.methods.fedavg import detached
from fdgsec.methods.feddag import FedDAG, Networks, discrepancy, generated_images
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.networks.perturbation_generator import PerturbationNetwork, perturbation_network
from fdgsec.nn.training.batches import Batch, TrainingSet, epoch_of_batches
from fdgsec.nn.training.precision import Precision
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import stream
from tests.support.round_loop import four_clients
from tests.support.watched import largest_gap, start

PLAN = TrainingPlan(batch_size=8, learning_rate=0.1, momentum=0.9, weight_decay=5e-4, crop=None, flip=0.0)
METHOD = FedDAG(plan=PLAN, warm_up=0, generator="fcn16", ema=0.9, a=0.3, margin=0.03)
STD = torch.tensor([0.229, 0.224, 0.225]).reshape(3, 1, 1)  # ImageNet's, which the classifier normalizes with
MEAN = torch.tensor([0.485, 0.456, 0.406]).reshape(3, 1, 1)


def generator() -> PerturbationNetwork:
    made = perturbation_network("fcn16", rng=stream(0, "world", "generator"))
    made.draw.weight.data *= 30  # visible from the first step on
    return made


@pytest.fixture(scope="module")
def clients() -> list[Client]:
    return four_clients()[:3]


def slow_discrepancy(f: Tensor, f_hat: Tensor) -> list[Tensor]:
    """|| f / |f| - f_hat / |f_hat| ||_2^2 of eqs. (1) and (4), record by record and coordinate by coordinate."""
    found = []
    for one, other in zip(f, f_hat, strict=True):
        first, second = one.square().sum().sqrt(), other.square().sum().sqrt()
        found.append(torch.stack([(a / first - b / second) ** 2 for a, b in zip(one, other, strict=True)]).sum())
    return found


def test_the_discrepancy_is_equations_1_and_4():
    f, f_hat = (torch.randn(5, 9, generator=stream(0, "world", name)).double() for name in ("f", "f_hat"))

    expected = torch.stack(slow_discrepancy(f, f_hat))

    assert torch.allclose(discrepancy(f, f_hat), expected, rtol=1e-12)


def test_a_generated_image_is_equation_2(clients: list[Client]):
    x = as_float(clients[0].data.pixels(torch.arange(3)))
    network = generator()

    made = generated_images(network, x, a=0.3, normalize=start().module().normalize)

    normal = (x - MEAN) / STD
    expected = (normal + 0.3 * network(normal)) * STD + MEAN
    assert torch.allclose(made, expected, atol=1e-6)


@dataclass(eq=False)
class SlowSGD:
    """Gradient descent with momentum and weight decay, as torch documents it."""

    network: nn.Module
    velocity: list[Tensor]

    @torch.no_grad()
    def step(self, loss: Tensor) -> None:
        parameters = list(self.network.parameters())
        with torch.enable_grad():
            gradients = torch.autograd.grad(loss, parameters)
        for place, (value, gradient) in enumerate(zip(parameters, gradients, strict=True)):
            moved = gradient + PLAN.weight_decay * value
            self.velocity[place] = PLAN.momentum * self.velocity[place] + moved
            value -= PLAN.learning_rate * self.velocity[place]


def slow_sgd(network: nn.Module) -> SlowSGD:
    return SlowSGD(network, [torch.zeros_like(value) for value in network.parameters()])


def task_loss(network: Classifier, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy from logarithms of softmax, and the features that it came from."""
    features = network.features(images)
    answers = network.head(features)
    losses = [-(answer - answer.logsumexp(0))[label] for answer, label in zip(answers, labels, strict=True)]
    return torch.stack(losses).mean(), features


def slow_algorithm_1(
    student: Classifier, teacher: Classifier, network: PerturbationNetwork, batches: Sequence[Batch]
) -> None:
    """Algorithm 1 as printed, every line with forward passes of its own, frozen networks as copies; in place."""
    student.train()
    teacher.train()
    of_student, of_generator = slow_sgd(student), slow_sgd(network)
    for batch in batches:
        x, y = batch.images.double(), batch.labels
        normal = (x - MEAN) / STD
        x_hat = (normal + 0.3 * network(normal)) * STD + MEAN  # line 2
        f = deepcopy(teacher).features(x).detach()
        classified, f_hat = task_loss(deepcopy(student), x_hat, y)  # line 3
        l_dis = torch.stack([min(d, torch.tensor(METHOD.margin)) for d in slow_discrepancy(f, f_hat)]).mean()
        of_generator.step(classified - l_dis)
        classified, f_hat = task_loss(student, x_hat.detach(), y)  # line 4
        l_sim = torch.stack(slow_discrepancy(f, f_hat)).mean()
        original, _ = task_loss(student, x, y)
        of_student.step(original + classified + l_sim)
        with torch.no_grad():  # line 5
            for mine, other in zip(teacher.parameters(), student.parameters(), strict=True):
                mine.copy_(0.9 * mine + 0.1 * other)
            for mine, other in zip(teacher.buffers(), student.buffers(), strict=True):
                mine.copy_(other)


@pytest.mark.medium
def test_training_is_algorithm_1(clients: list[Client]):
    data, plan = TrainingSet.of(clients[0].data), replace(PLAN, epochs=2)
    made = Networks.of(start().module().double(), start("other").module().double(), generator().double(), PLAN)
    student, teacher, network = start().module().double(), start("other").module().double(), generator().double()
    rng, twin = stream(0, "world", "fit"), stream(0, "world", "fit")
    dealt = [
        batch
        for _ in range(2)
        for batch in epoch_of_batches(data, plan, twin, device=torch.device("cpu"), layout=torch.contiguous_format)
    ]
    clock = Clock(round=0, rounds=1, participants=("client:0",))

    replace(METHOD, plan=plan).train_networks(made, data, clock=clock, rng=rng)
    slow_algorithm_1(student, teacher, network, dealt)

    assert len(dealt) == 4
    pairs = ((made.student, student), (made.teacher, teacher), (made.generator, network))
    apart = [largest_gap(ours.state_dict(), slow.state_dict()) for ours, slow in pairs]
    assert max(apart) < 1e-6  # float64 but for the losses, which are float32
    assert largest_gap(made.student.state_dict(), start().module().state_dict()) > 1e-2
    assert largest_gap(made.generator.state_dict(), generator().state_dict()) > 1e-3


def test_the_margin_of_equation_1_binds_for_some_records_and_not_for_others(clients: list[Client]):
    both = Networks.of(start().module(), start().module(), generator(), PLAN)
    images = as_float(clients[0].data.pixels(torch.arange(8)))
    batch = Batch(images=images, labels=clients[0].data.labels[:8], records=torch.arange(8))

    made = METHOD.generated(both, batch, Precision(dtype="float32", channels_last=False))

    task, f_hat = task_loss(start().module().train(), made.images, batch.labels)
    f = start().module().train().features(images)
    apart = slow_discrepancy(f, f_hat)
    margin = 0.5 * (min(map(float_of, apart)) + max(map(float_of, apart)))
    cut = [min(float_of(distance), margin) for distance in apart]
    expected = float_of(task) - sum(cut) / 8
    assert 0 < sum(value == margin for value in cut) < 8
    assert float_of(replace(METHOD, margin=margin).generator_loss(made)) == pytest.approx(expected, abs=1e-5)


def float_of(value: Tensor) -> float:
    return float(value.detach())


def test_the_chain_of_section_3d_leads_from_the_global_model_to_the_student_to_the_clients_teacher(
    clients: list[Client],
):
    still = replace(METHOD, plan=replace(PLAN, learning_rate=1e-12))  # the student stays what it was told to be
    own, received = start("own").state.tensors(), start("global").state.tensors()
    inbox = {"generator": GeneratorState(state=detached(generator()))}
    state = {f"teacher/{name}": value for name, value in own.items()}
    clock = Clock(round=0, rounds=1, participants=("client:0",))

    update, _ = replace(still, plan=replace(still.plan, steps=1)).fit(
        clients[0], model=start("global"), inbox=inbox, state=state, clock=clock, rng=stream(0, "world", "fit")
    )

    made = update.artifacts["model"].tensors()
    for name, _ in start().module().named_parameters():
        assert torch.allclose(made[name], 0.9 * own[name] + 0.1 * received[name], atol=1e-6)

"""FedDAG's aggregation against slow transcriptions of equations (5) and (6) and of Algorithm 2."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fdgsec.data.domains import as_float
from fdgsec.federation.method import Client
from fdgsec.federation.peer_review import score_of, weights_of
from fdgsec.federation.weight_perturbation import perturb_weights
from fdgsec.methods.feddag import FedDAG
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import stream
from tests.support.round_loop import four_clients
from tests.support.watched import Watched, largest_gap, run, start

PLAN = TrainingPlan(batch_size=8, learning_rate=0.1, momentum=0.9, weight_decay=5e-4, crop=None, flip=0.0)
METHOD = FedDAG(plan=PLAN, warm_up=0, generator="fcn16", ema=0.9, a=0.3, margin=0.03)


@pytest.fixture(scope="module")
def clients() -> list[Client]:
    return four_clients()[:3]


def test_a_perturbation_is_rho_times_the_normalized_gradient():
    rng = stream(0, "world", "perturbation")
    state = {"a": torch.randn(3, 2, generator=rng).double(), "b": torch.randn(4, generator=rng).double()}
    gradient = {name: torch.randn(value.shape, generator=rng).double() for name, value in state.items()}

    made = perturb_weights(state, gradient, 0.05)

    norm = math.sqrt(sum(float(g) ** 2 for part in gradient.values() for g in part.flatten()))
    for name, value in state.items():
        for theta, g, theta_hat in zip(value.flatten(), gradient[name].flatten(), made[name].flatten(), strict=True):
            assert float(theta_hat) == pytest.approx(float(theta) + 0.05 * float(g) / norm, rel=1e-12)


def test_scores_and_weights_are_equations_5_and_6():
    losses = [[0.5, 1.25, 2.0], [1.0, 0.25, 0.125], [3.0, 2.0, 1.0]]

    scores = [score_of(row) for row in losses]

    s = [1 / (a + b + c) for a, b, c in losses]
    assert scores == pytest.approx(s, rel=1e-15)
    for beta in (0.3, 1.0, 2.5):
        expected = [one**beta / sum(other**beta for other in s) for one in s]
        assert weights_of(scores, beta) == pytest.approx(expected, rel=1e-12)


def slow_loss(state: Mapping[str, Tensor], client: Client) -> float:
    """E[L_cls(T(x'), y')] over a client's validation images, one by one (eq. 5)."""
    network = start().with_state(state).module().eval()
    assert client.validation is not None
    images, labels = as_float(client.validation.pixels()), client.validation.labels
    losses = []
    for image, label in zip(images, labels, strict=True):
        answer = network(image.unsqueeze(0)).detach().double()[0]
        losses.append(float(answer.logsumexp(0) - answer[label]))
    return sum(losses) / len(losses)


def mean_of(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> dict[str, Tensor]:
    names = [name for name, value in states[0].items() if value.is_floating_point()]
    return {
        name: torch.stack([w * state[name].double() for w, state in zip(weights, states, strict=True)]).sum(0)
        for name in names
    }


def slow_scores(run: Watched, clients: Sequence[Client], rounds: int) -> list[list[float]]:
    """Algorithm 2, line 2: every perturbed model on every client's validation images."""
    scores = []
    for round in range(rounds):
        shown = [run.payloads(round, "update", "ModelState", sender=client.name)[1] for client in clients]
        scores.append([1 / sum(slow_loss(state, judge) for judge in clients) for state in shown])
    return scores


def slow_algorithm_2(
    run: Watched, clients: Sequence[Client], scores: Sequence[Sequence[float]], *, k: int, beta: float
) -> list[dict[str, Tensor]]:
    """Algorithm 2 from what was uploaded, with every client's whole past at hand: global models, round by round."""
    past: list[list[tuple[float, Mapping[str, Tensor]]]] = [[] for _ in clients]
    models = []
    for round, found in enumerate(scores):
        averages, teachers = [], []
        for place, (client, s) in enumerate(zip(clients, found, strict=True)):
            teacher = run.payloads(round, "update", "ModelState", sender=client.name)[0]
            better = [one for one in past[place] if one[0] > s]  # line 3
            better = better[-k:] if k else []
            averages.append((s + sum(one[0] for one in better)) / (len(better) + 1))  # line 4
            states = [*(one[1] for one in better), teacher]
            teachers.append(mean_of(states, [1 / len(states)] * len(states)))
            past[place].append((s, teacher))
        w = [s**beta / sum(other**beta for other in averages) for s in averages]  # line 6
        models.append(mean_of(teachers, w))  # line 7
    return models


@pytest.fixture(scope="module")
def rough_run(clients: list[Client]) -> Watched:
    """Three rounds so rough that models grow worse now and then."""
    plan = replace(PLAN, learning_rate=0.4)
    return run(replace(METHOD, plan=plan, k=2, beta=0.7, rho=0.05, ema=0.5), clients, rounds=3)


@pytest.mark.medium
def test_aggregation_is_algorithm_2(clients: list[Client], rough_run: Watched):
    scores = slow_scores(rough_run, clients, rounds=3)
    expected = slow_algorithm_2(rough_run, clients, scores, k=2, beta=0.7)

    for made, slow in zip(rough_run.models, expected, strict=True):
        # float32, and losses from batches of another size
        assert largest_gap(made, slow) < 1e-5
    forgetful = slow_algorithm_2(rough_run, clients, scores, k=0, beta=0.7)
    assert largest_gap(expected[-1], forgetful[-1]) > 1e-3  # the past was recalled


@pytest.mark.medium
def test_generators_are_averaged_across_clients_alone_with_the_same_weights(clients: list[Client], rough_run: Watched):
    for round in (0, 1):  # Algorithm 2, line 8
        weights = rough_run.weights(round, 3)
        uploads = [rough_run.payloads(round, "update", "GeneratorState", sender=client.name)[0] for client in clients]
        sent = rough_run.payloads(round + 1, "combine", "GeneratorState", sender="server")[0]

        expected = mean_of(uploads, weights)

        assert largest_gap(sent, expected) < 1e-7
        assert sum(weights) == pytest.approx(1.0)

"""FedMIA's statistic against its equations, and what it reads of a view."""

import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fdgsec.attacks.model_membership.attack import ModelMembership
from fdgsec.attacks.model_membership.control import Interpolators, fit_interpolating_classifier
from fdgsec.attacks.model_membership.round_scores import (
    RoundModels,
    against_other_clients,
    evenly_spaced,
    round_models,
    score_rounds,
    update_alignments,
)
from fdgsec.attacks.statistics.noise_image_classifiers import linear_classifier, noise_images
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.data.swatches import swatches
from fdgsec.experiments.setup.run_federation import observe
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client
from fdgsec.federation.wire import SERVER, Message
from fdgsec.methods.fedavg import FedAvg
from fdgsec.metrics.roc import auc
from fdgsec.nn.networks.classifiers import Norm, Normalization, build_classifier
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge, View


def nothing(dataset: DomainDataset) -> Moments:
    raise NotImplementedError


BLANK = Knowledge(
    statistics=nothing, encoder="none", class_names=(), domain_names=(), auxiliary=None, unseen=None, own=None
)


def upload(round: int, sender: str, state: ModelState, *, stage: str = "update", receiver: str = SERVER) -> Message:
    return Message(round=round, stage=stage, sender=sender, receiver=receiver, artifact=state)


def some_state(value: float) -> ModelState:
    return ModelState(state={"head.weight": torch.full((4, 768), value), "head.bias": torch.zeros(4)})


def noisy_rounds(rounds: int, *, noise: float, seed: int) -> tuple[list[RoundModels], Tensor, Tensor]:
    """Rounds of three clients whose classifiers interpolate 24 images each, under noise; scores and truth of one."""
    rng = stream(seed, "attack", "noisy rounds")
    images = noise_images(96, side=16, classes=4, rng=rng)
    fitted = [fit_interpolating_classifier(images.subset(torch.arange(start, start + 24))) for start in (0, 24, 48)]

    def noised(state: dict[str, Tensor]) -> ModelState:
        return ModelState(
            state={name: value + noise * torch.randn(value.shape, generator=rng) for name, value in state.items()}
        )

    zero = ModelState(state={name: torch.zeros_like(value) for name, value in fitted[0].items()})
    seen = [
        RoundModels(sent=zero, own=noised(fitted[0]), others=(noised(fitted[1]), noised(fitted[2])))
        for _ in range(rounds)
    ]
    rows = torch.cat([torch.arange(24), torch.arange(72, 96)])
    found = score_rounds(seen, images.subset(rows), linear_classifier, gradient_rounds=rounds)
    return seen, torch.stack([found["fedmia loss"].scores, found["fedmia gradient"].scores]), rows < 24


def test_a_round_is_standardized_by_the_other_clients_as_the_equation_says():
    own, others = [2.0, -1.0, 0.5], [[1.0, -2.0, 0.0], [3.0, 0.0, 0.5], [2.5, -2.5, 4.0]]
    squares = [
        sum((row[place] - statistics.fmean(r[place] for r in others)) ** 2 for row in others) for place in range(3)
    ]
    spread = (sum(squares) / (3 * 3 - 3)) ** 0.5

    found = against_other_clients(torch.tensor(own), torch.tensor(others))

    expected = [(own[place] - statistics.fmean(row[place] for row in others)) / spread for place in range(3)]
    assert found.tolist() == pytest.approx(expected, rel=1e-6)


def test_many_other_clients_give_every_candidate_a_variance_of_its_own():
    rng = stream(0, "attack", "many")
    own, others = torch.randn(5, generator=rng), torch.randn(64, 5, generator=rng) * torch.arange(1, 6)

    found = against_other_clients(own, others)

    expected = [
        (float(own[place]) - statistics.fmean(column)) / statistics.pstdev(column)
        for place, column in enumerate(others.T.tolist())
    ]
    assert found.tolist() == pytest.approx(expected, rel=1e-5)


def test_one_other_client_is_subtracted_and_the_candidates_give_the_scale():
    own, other = [3.0, 1.0, 2.0], [1.0, 1.0, 4.0]
    gaps = [2.0, 0.0, -2.0]

    found = against_other_clients(torch.tensor(own), torch.tensor([other]))

    assert found.tolist() == pytest.approx([gap / statistics.stdev(gaps) for gap in gaps], rel=1e-9)


def test_clients_that_agree_exactly_leave_a_score_without_infinities():
    same = torch.tensor([1.0, 2.0])

    assert against_other_clients(same, same.unsqueeze(0)).tolist() == [0.0, 0.0]
    assert against_other_clients(same, torch.stack([same, same])).tolist() == [0.0, 0.0]


def test_alignments_are_the_cosines_of_closed_form_gradients():
    images = noise_images(6, side=16, classes=4, rng=stream(0, "attack"))
    sent, moved = (
        {"head.weight": torch.randn(4, 768, generator=stream(seed, "attack")) / 50, "head.bias": torch.zeros(4)}
        for seed in (1, 2)
    )
    moved["head.bias"] = torch.tensor([0.1, -0.2, 0.3, 0.0])

    found = update_alignments(linear_classifier(sent), [linear_classifier(moved)], images)

    inputs = Normalization()(images.pixels().float() / 255).flatten(1)
    wrong = (inputs @ sent["head.weight"].T).softmax(1) - torch.nn.functional.one_hot(images.labels, 4)
    update = torch.cat([(moved["head.weight"] - sent["head.weight"]).flatten(), moved["head.bias"]])
    for place in range(6):
        slope = torch.cat([torch.outer(wrong[place], inputs[place]).flatten(), wrong[place]])
        expected = -float(slope @ update / (slope.norm() * update.norm()))
        assert float(found[0, place]) == pytest.approx(expected, abs=1e-5)


def test_an_update_without_any_change_is_aligned_with_nothing():
    images = noise_images(2, side=16, classes=4, rng=stream(0, "attack"))
    model = linear_classifier(some_state(0.0).state)

    assert update_alignments(model, [model], images).tolist() == [[0.0, 0.0]]


def test_gradients_of_what_no_update_moved_do_not_count():
    images = swatches(per_domain=3).of_domain(0)
    sent, moved = (build_classifier("tiny", 4, norm="group", rng=stream(0, "world")) for _ in range(2))
    with torch.no_grad():
        moved.head.weight += 1

    found = update_alignments(sent, [moved], images)

    for place, (image, label) in enumerate(zip(images.pixels().split(1), images.labels.split(1), strict=True)):
        loss = torch.nn.functional.cross_entropy(moved.eval()(as_float(image)), label)  # equal, but for a shift of all
        (slope,) = torch.autograd.grad(loss, [moved.head.weight])
        expected = -float(slope.sum() / (slope.norm() * slope.numel() ** 0.5))
        assert float(found[0, place]) == pytest.approx(expected, abs=1e-5)


def test_rounds_are_those_in_which_the_victim_and_another_client_sent_a_model():
    states = [some_state(float(value)) for value in range(8)]
    view = View(
        messages=(
            upload(2, "client:1", states[0]),
            upload(2, "client:2", states[1]),
            upload(0, SERVER, states[2], stage="model", receiver="client:1"),
            upload(0, "client:1", states[3]),
            upload(0, "client:0", states[4]),
            upload(0, "client:2", states[5]),
            upload(0, SERVER, states[6], stage="exhibit", receiver="client:2"),
            upload(1, "client:2", states[7]),
            upload(1, "client:0", states[7]),
            upload(3, "client:1", states[7]),
        )
    )

    first, last = round_models(view, "client:1")

    assert (first.sent, first.own, first.others) == (states[2], states[3], (states[4], states[5]))
    assert (last.sent, last.own, last.others) == (None, states[0], (states[1],))
    assert round_models(view, "client:3") == []


@pytest.mark.parametrize(
    ("total", "most", "expected"), [(3, 5, [0, 1, 2]), (10, 5, [0, 2, 4, 6, 9]), (7, 2, [0, 6]), (7, 1, [6])]
)
def test_gradients_are_taken_in_rounds_that_are_spread_over_the_run(total: int, most: int, expected: Sequence[int]):
    state = some_state(0.0)
    rounds = [RoundModels(sent=state, own=state, others=(state,)) for _ in range(total)]

    found = evenly_spaced(rounds, most)

    assert [next(place for place, one in enumerate(rounds) if one is chosen) for chosen in found] == expected


def test_scores_are_means_over_the_rounds():
    seen, _, _ = noisy_rounds(3, noise=0.05, seed=0)
    images = noise_images(10, side=16, classes=4, rng=stream(5, "attack"))

    def scored(rounds: Sequence[RoundModels]) -> dict[str, Tensor]:
        found = score_rounds(rounds, images, linear_classifier, gradient_rounds=3)
        return {test: one.scores for test, one in found.items()}

    together, alone = scored(seen), [scored([one]) for one in seen]

    assert list(together) == ["fedmia loss", "fedmia gradient", "loss"]
    assert list(alone[0]) == ["fedmia loss", "fedmia gradient"]
    for test in alone[0]:
        assert torch.allclose(together[test], torch.stack([one[test] for one in alone]).mean(0))


def mean_areas(rounds: int) -> Tensor:
    """The AUCs of both tests under noise, averaged over four federations."""
    areas = []
    for seed in range(4):
        _, scores, members = noisy_rounds(rounds, noise=0.2, seed=seed)
        areas.append([auc(row[members], row[~members]) for row in scores])
    return torch.tensor(areas).mean(0)


@pytest.mark.medium
def test_eight_noisy_rounds_together_find_what_one_of_them_hides():
    one, eight = mean_areas(1), mean_areas(8)

    assert bool((one < 0.8).all()), one
    assert bool((eight > one + 0.1).all()), (one, eight)


@pytest.mark.medium
def test_updates_of_clients_without_the_candidates_tell_nothing():
    areas = []
    for seed in range(30):
        rng = stream(seed, "attack", "strangers")
        images = noise_images(120, side=16, classes=4, rng=rng)
        view = Interpolators()([images.subset(torch.arange(start, start + 24)) for start in (0, 24, 48)], rng, rounds=3)
        asked = images.subset(torch.arange(72, 120))
        found = score_rounds(round_models(view, "client:1"), asked, linear_classifier, gradient_rounds=3)
        areas.append([auc(one.scores[:24], one.scores[24:]) for one in found.values()])

    means, error = torch.tensor(areas).mean(0), ((48 + 1) / (12 * 24 * 24 * 30)) ** 0.5  # Mann-Whitney's, without ties
    assert bool(((means - 0.5).abs() < 3.5 * error).all()), means


def test_a_client_alone_has_no_null_and_is_told_so():
    planted = ModelMembership().positive_control(BLANK, stream(0, "attack"))
    own = planted.cases[0].views[0]
    alone = View(messages=tuple(message for message in own.messages if message.sender != "client:2"))
    case = replace(planted.cases[0], views=(alone,))

    (row,) = ModelMembership(sets=()).missing([case], planted.knowledge)

    assert row.unavailable == "no update of another client was seen beside client:1's"
    assert row.slice["test"] == "fedmia loss"


def areas_of_trained_clients(norm: Norm, *, steps: int, rounds: int) -> list[dict[str, float]]:
    """The AUC of each test for each of three clients that FedAvg trains on random labels, which only memory predicts.

    The 36 others are images of the same domain that no client has."""
    images = swatches(per_domain=144, random_labels=True).of_domain(0)
    clients = [
        Client(name=f"client:{number}", data=images.subset(torch.arange(36 * number, 36 * number + 36)))
        for number in range(3)
    ]
    network = build_classifier("tiny", 4, norm=norm, rng=stream(0, "world", "initialisation"))
    model = GlobalModel(
        blueprint=Blueprint(backbone="tiny", classes=4, norm=norm, device="cpu"),
        state=ModelState(state={name: value.detach() for name, value in network.state_dict().items()}),
    )
    plan = TrainingPlan(steps=steps, batch_size=12, learning_rate=0.05, optimizer="sgd", crop=None, flip=0.0)
    run = observe(FedAvg(plan=plan), clients, seed=0, name="run", model=model, rounds=rounds, every_round=True)
    view, found = View(messages=tuple(run.transcript.messages())), list[dict[str, float]]()
    for number in range(3):
        rows = torch.cat([torch.arange(36 * number, 36 * number + 36), torch.arange(108, 144)])
        seen = round_models(view, f"client:{number}")
        scores = score_rounds(
            seen, images.subset(rows), lambda state: model.with_state(state).module(), gradient_rounds=rounds
        )
        assert {one.rounds for one in scores.values()} == {rounds}
        found.append({test: auc(one.scores[:36], one.scores[36:]) for test, one in scores.items()})
    return found


@pytest.mark.slow
def test_updates_of_clients_that_memorize_tell_whose_images_they_are_of():
    areas = areas_of_trained_clients("batch", steps=120, rounds=2)

    for area in areas:  # 36 against 36 without information exceed .7 with probability .002
        assert min(area["fedmia loss"], area["loss"]) > 0.7, areas


@pytest.mark.slow
def test_updates_of_few_steps_agree_with_the_gradients_of_their_images():
    """Without batch norm, under which a single image has no gradient of its own in training."""
    areas = areas_of_trained_clients("group", steps=3, rounds=8)

    mean = sum(area["fedmia gradient"] for area in areas) / len(areas)
    assert mean > 0.62, areas  # without information with probability .001

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from fdgsec.adversaries import View
from fdgsec.artifacts import GeneratorState, ModelState
from fdgsec.attacks.generator_leakage import GeneratorLeakage
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.errors import UsageError
from fdgsec.methods.fedadg import Generator
from fdgsec.methods.feddag import discrepancy, generated_images
from fdgsec.metrics.controls import positive_control
from fdgsec.metrics.judge import Judge
from fdgsec.models import build_classifier
from fdgsec.networks.perturbation import PerturbationNetwork
from fdgsec.planted_generators import Overfitters
from fdgsec.planted_models import noise_images
from fdgsec.privacy.generator_response import (
    Objective,
    Training,
    generator_loss,
    membership_by_change,
    perturbation_generator,
    perturbations,
    response_size,
)
from fdgsec.rng import stream
from fdgsec.styles import Moments
from fdgsec.threats import Answer, Case, Knowledge, Membership, Plant, ReadsModels, TargetFacts
from fdgsec.wire import SERVER, Message


def nothing(dataset: DomainDataset) -> Moments:
    raise NotImplementedError


BLANK = Knowledge(
    statistics=nothing, encoder="none", class_names=(), domain_names=(), auxiliary=None, unseen=None, own=None
)
ATTACK = GeneratorLeakage(references=6)
FACTS = TargetFacts(artifact_kinds=ATTACK.reads, clients=3, images_per_client=700, classes=7, profile="quick")


def planted(seed: int = 0) -> Plant:
    return ATTACK.plant(BLANK, stream(seed, "attack"))


def generator(seed: int, width: int = 4) -> PerturbationNetwork:
    return PerturbationNetwork(width, rng=stream(seed, "attack", "generator"))


def state_of(network: torch.nn.Module) -> GeneratorState:
    return GeneratorState(state={name: value.detach() for name, value in network.state_dict().items()})


def seen(given: GeneratorState, returned: GeneratorState) -> View:
    return View(
        messages=(
            Message(round=1, stage="combine", sender=SERVER, receiver="client:1", artifact=given),
            Message(round=1, stage="update", sender="client:1", receiver=SERVER, artifact=returned),
        )
    )


def asked(view: View) -> Case:
    return replace(planted_case(), views=(view,))


def planted_case() -> Case:
    images = noise_images(4, side=8, classes=2, rng=stream(0, "attack"))
    return Case(
        request="trained", views=(), victim="client:1", slice={"domain": "planted"}, domain="planted", candidates=images
    )


def p_value(answers: Sequence[Answer], plant: Plant, seed: int) -> float:
    (row,) = Judge().null(answers, plant.cases, plant.truths, stream(seed, "attack", "null"), permutations=199)
    return row.p_value


def test_a_server_asks_about_the_trained_run_and_a_client_nothing():
    assert [request.kind for request in ATTACK.plan(FACTS)] == ["trained"]
    assert isinstance(ATTACK, ReadsModels)
    with pytest.raises(UsageError, match="only their mean"):
        ATTACK.plan(replace(FACTS, knows=frozenset({"encoder", "own data"})))
    with pytest.raises(UsageError, match="needs auxiliary"):
        ATTACK.plan(replace(FACTS, knows=frozenset({"encoder", "unseen"})))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"references": 3}, "references must be 4 or more; got 3"),
        ({"largest": 1}, "largest must be 2 or more; got 1"),
        ({"a": 1.5}, r"a must lie in \[0, 1\]"),
        ({"margin": -0.1}, "margin be 0 or more"),
    ],
)
def test_options_that_no_target_has_are_refused_before_anything_runs(options: dict[str, float], message: str):
    with pytest.raises(UsageError, match=message):
        replace(ATTACK, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(2))
def test_images_that_a_generator_was_fitted_to_are_found(seed: int):
    plant = planted(seed)
    guess = ATTACK.run(plant.cases, plant.knowledge, stream(seed, "attack"))

    controls = positive_control(plant, guess, Judge(bootstrap_repeats=50), stream(seed, "attack"))

    assert [control.measurement.slice["test"] for control in controls] == ["response", "loss"]
    assert all(control.passed for control in controls), controls


def ten_steps(plant: Plant) -> Knowledge:
    """The plant's knowledge with federations that fit a quarter as long, which is enough to remember."""
    simulate = plant.knowledge.simulate
    assert isinstance(simulate, Overfitters)
    return replace(plant.knowledge, simulate=replace(simulate, steps=10))


def fitted_to(images: DomainDataset, knowledge: Knowledge, plant: Plant, seed: int) -> Case:
    """The planted question about a generator that was fitted to `images`."""
    assert knowledge.simulate is not None
    view = knowledge.simulate([images], stream(seed, "attack", "fit"), rounds=1)
    return replace(plant.cases[0], views=(view,))


@pytest.mark.slow
def test_neither_the_shuffled_attack_nor_generators_of_strangers_betray_anybody():
    attack = GeneratorLeakage(references=4)
    alarms = {(kind, test): 0 for kind in ("shuffled", "strangers") for test in ("response", "loss")}
    for seed in range(10):
        plant = planted(seed)
        knowledge, rng = ten_steps(plant), stream(seed, "attack")
        images = noise_images(16, side=6, classes=8, rng=stream(seed, "attack", "strangers"))
        guesses = {
            "shuffled": attack.shuffled(plant.cases, knowledge, rng),
            "strangers": attack.run([fitted_to(images, knowledge, plant, seed)], knowledge, rng),
        }
        for kind, guess in guesses.items():
            for answer in guess:
                alarms[kind, str(answer.slice["test"])] += p_value([answer], plant, seed) < 0.05

    assert max(alarms.values()) <= 3  # 4 rows of 10 tests at 5%: some row above with probability .004


@pytest.mark.parametrize("seed", range(2))
def test_generators_fitted_as_briefly_to_the_candidates_do_betray_them(seed: int):
    plant = planted(seed)
    knowledge, candidates, members = ten_steps(plant), plant.cases[0].candidates, plant.truths[0].members
    assert candidates is not None
    assert members is not None
    case = fitted_to(candidates.subset(members), knowledge, plant, seed)

    guess = GeneratorLeakage(references=4).run([case], knowledge, stream(seed, "attack"))

    assert [answer.slice["test"] for answer in guess] == ["response", "loss"]
    assert all(p_value([answer], plant, seed) < 0.01 for answer in guess)


def test_the_response_is_the_log_root_mean_square_of_the_perturbation():
    images, network = noise_images(3, side=8, classes=2, rng=stream(0, "attack")), generator(1)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])

    sizes = response_size(perturbations(network, images))

    for row in range(3):
        x = (as_float(images.pixels())[row : row + 1] - mean.view(3, 1, 1)) / std.view(3, 1, 1)
        drawn = network(x).detach().double()
        assert float(sizes[row]) == pytest.approx(float(drawn.square().mean().sqrt().log()), rel=1e-5)


def test_the_loss_is_what_feddag_trains_its_generator_by():
    images, network = noise_images(5, side=32, classes=7, rng=stream(0, "attack")), generator(1)
    with torch.no_grad():
        network.draw.weight.mul_(50)  # perturbations large enough for the margin to cut some
    model = build_classifier("tiny", 7, rng=stream(0, "attack")).eval()

    found = generator_loss(perturbations(network, images), images, model, Objective(a=0.3, margin=0.01))

    pixels = as_float(images.pixels())
    with torch.no_grad():
        moved = generated_images(network, pixels, a=0.3, normalise=model.normalise)
        classified = functional.cross_entropy(model(moved), images.labels, reduction="none")
        expected = classified - discrepancy(model.features(pixels), model.features(moved)).clamp_max(0.01)
    assert torch.allclose(found, expected.double(), atol=1e-5)


def test_what_has_no_generator_of_feddag_is_left_out_with_a_reason():
    other = Generator(noise=4, classes=2, hidden=8, width=6)
    other.draw(stream(0, "attack"))
    cases = [asked(seen(state_of(other), state_of(other))), asked(View(messages=()))]

    rows = ATTACK.missing(cases, BLANK)

    assert list(ATTACK.run(cases, replace(BLANK, auxiliary=cases[0].candidates), stream(0, "attack"))) == []
    assert "a perturbation generator has a stem.weight" in str(rows[0].unavailable)
    assert "was not seen" in str(rows[1].unavailable)


def test_a_generator_of_another_depth_is_refused():
    state = dict(state_of(generator(0)).tensors())
    state["blocks.3.first.weight"] = state["blocks.0.first.weight"]

    with pytest.raises(UsageError, match=r"blocks.3.first.weight is another"):
        perturbation_generator(GeneratorState(state=state))


def test_a_generator_that_was_not_trained_tells_nothing():
    same = state_of(generator(0))

    rows = ATTACK.missing([asked(seen(same, state_of(generator(0))))], BLANK)

    assert "warm-up" in str(rows[0].unavailable)
    with pytest.raises(UsageError, match="it tells nothing"):
        Training.of(seen(same, state_of(generator(0))), "client:1")


def test_the_last_generator_that_a_client_was_given_is_compared_with_the_last_that_it_sent():
    early, late = seen(state_of(generator(0)), state_of(generator(1))), state_of(generator(2))
    first = tuple(replace(message, round=0) for message in early.messages)
    view = View(messages=(*first, *seen(late, state_of(generator(3))).messages))

    found = Training.of(view, "client:1")

    assert found is not None
    assert torch.equal(found.given.tensors()["stem.weight"], generator(2).stem.weight)
    assert torch.equal(found.returned.tensors()["stem.weight"], generator(3).stem.weight)


def test_the_clients_own_model_is_never_asked():
    plant = planted()
    knowledge = ten_steps(plant)
    bare = [
        replace(c, views=(View(messages=tuple(m for m in c.views[0].messages if type(m.artifact) is not ModelState)),))
        for c in plant.cases
    ]
    attack = GeneratorLeakage(references=4)

    with_model = attack.run(plant.cases, knowledge, stream(0, "attack"))
    without = attack.run(bare, knowledge, stream(0, "attack"))

    assert [dict(answer.slice) for answer in without] == [
        {"test": test, "references": 4} for test in ("response", "loss")
    ]
    for one, other in zip(with_model, without, strict=True):
        assert isinstance(one, Membership)
        assert isinstance(other, Membership)
        assert torch.equal(one.scores, other.scores)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_members_score_high_whichever_way_training_moves_them(sign: float):
    rng = stream(0, "attack")
    hardness = torch.randn(60, generator=rng, dtype=torch.float64)
    members = torch.rand(12, 60, generator=rng).argsort(0) < 6
    noise = 0.1 * torch.randn(13, 60, generator=rng, dtype=torch.float64)
    changes = hardness + noise[:12] + sign * members
    own = torch.arange(60) < 30

    scores = membership_by_change(hardness + noise[12] + sign * own, changes, members)
    scaled = membership_by_change(5 + 3 * (hardness + noise[12] + sign * own), changes, members)

    assert float(scores[own].min()) > float(scores[~own].max())
    assert torch.allclose(scores, scaled)

"""Membership by regression: its coefficients and gradients against independent ones, and what it finds in updates."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.attacks.model_membership import attack as attack_module
from fdgsec.attacks.model_membership import image_gradients as gradients_module
from fdgsec.attacks.model_membership import update_regression as regression_module
from fdgsec.attacks.model_membership.attack import ModelMembership
from fdgsec.attacks.model_membership.control import Interpolators
from fdgsec.attacks.model_membership.image_gradients import (
    AS_THEY_ARE,
    as_matrices,
    cut,
    image_gradients,
    parameters_named,
    side_of,
    views,
)
from fdgsec.attacks.model_membership.round_scores import client_steps, global_steps
from fdgsec.attacks.model_membership.update_regression import (
    Candidates,
    Step,
    coefficients,
    inner_products,
    noise_variances,
    regression_scores,
    renew_statistics,
    whitened,
)
from fdgsec.attacks.statistics.noise_image_classifiers import linear_classifier, noise_images
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.data.swatches import swatches
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.wire import CLIENTS, SERVER, Message
from fdgsec.metrics.roc import auc
from fdgsec.nn.networks.classifiers import Classifier, Norm, Normalization, build_classifier
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import View
from fdgsec.threats.answers import Membership
from fdgsec.threats.attack import Answers, TargetFacts
from tests.unit.attacks.test_model_membership_rounds import BLANK

AUGMENTED = TrainingPlan(crop=(0.8, 1.0), flip=0.5)


def network_of(state: ModelState, norm: Norm = "group") -> Classifier:
    network = build_classifier("tiny", 4, norm=norm, rng=None)
    network.load_state_dict(dict(state.state))
    return network


def a_state(seed: int, norm: Norm = "group") -> ModelState:
    network = build_classifier("tiny", 4, norm=norm, rng=stream(seed, "world"))
    return ModelState(state={name: value.detach() for name, value in network.state_dict().items()})


def asked_of(images: DomainDataset, others: DomainDataset, plan: TrainingPlan = AS_THEY_ARE) -> Candidates:
    return Candidates(images=images, others=others, plan=plan, count=2)


def test_coefficients_are_those_of_ridge_regression_in_units_of_their_errors():
    rng = np.random.default_rng(0)
    rows, target = rng.normal(size=(6, 40)), rng.normal(size=40)

    found = coefficients(*inner_products(torch.from_numpy(rows), torch.from_numpy(target)))

    added = 1e-3 * (rows**2).sum(1).mean()
    stacked = np.vstack([rows.T, math.sqrt(added) * np.eye(6)])  # the same ridge as plain least squares
    fitted = np.linalg.lstsq(stacked, np.concatenate([target, np.zeros(6)]), rcond=None)[0]
    errors = np.sqrt(np.diag(np.linalg.inv(stacked.T @ stacked)))
    assert found.tolist() == pytest.approx((fitted / errors).tolist(), rel=1e-6)


def test_a_sum_of_some_rows_has_their_coefficients_alone():
    rows = torch.randn(50, 400, generator=stream(0, "attack")) + 3.0  # with much in common
    target = rows[:20].sum(0)

    found = coefficients(*inner_products(rows, torch.stack([target, -target], 1)))

    assert float(found[:20, 0].min()) > 10 * float(found[20:, 0].abs().max())
    assert torch.allclose(found[:, 1], -found[:, 0])


def test_rows_of_zeros_tell_nothing_and_infinite_ones_are_not_scored():
    rows = torch.randn(4, 8, generator=stream(0, "attack"))

    assert coefficients(torch.zeros(3, 3), torch.zeros(3)).tolist() == [0.0, 0.0, 0.0]
    assert bool(coefficients(*inner_products(rows, torch.full((8,), math.inf))).isnan().all())
    assert bool(coefficients(*inner_products(rows / 0, torch.ones(8, 2))).isnan().all())


def matrix_normal(count: int, rng: torch.Generator) -> Tensor:
    """Matrices (count, 6, 10) whose rows and columns are correlated, about a common mean."""
    left, right = (torch.eye(side) + 0.2 * torch.randn(side, side, generator=rng) for side in (6, 10))
    return 5 + left @ torch.randn(count, 6, 10, generator=rng) @ right


def test_numbers_of_whitened_gradients_differ_as_they_do_in_the_movement():
    matrices = matrix_normal(20_000, stream(0, "attack")).double()

    found, movement = whitened(matrices, matrices[:5000].sum(0))

    covariance = torch.cov(found.T) * 5000  # that of the sum of so many
    assert torch.allclose(covariance, covariance.trace() / 60 * torch.eye(60, dtype=torch.float64), atol=0.3)
    assert float(covariance.trace() / 60) == pytest.approx(1, abs=0.5)  # of 60 numbers of one movement
    assert torch.allclose(movement, found[:5000].sum(0), rtol=1e-6)


def test_noise_that_is_alike_in_all_directions_is_found_in_the_movement():
    """20 of 400 matrices add up, behind noise 30 times their spread: then matrices as they are tell the most."""
    rng = stream(0, "attack")
    matrices = matrix_normal(400, rng).double() - 5
    plain, found = list[float](), list[float]()
    for seed in range(20):
        noise = 30 * torch.randn(6, 10, generator=stream(seed, "attack", "noise"), dtype=torch.float64)
        rows, movement = whitened(matrices, matrices[:20].sum(0) + noise)
        for each, products in (
            (found, inner_products(rows, movement)),
            (plain, inner_products(matrices.flatten(1), (matrices[:20].sum(0) + noise).flatten())),
        ):
            scores = coefficients(*products)
            each.append(auc(scores[:20], scores[20:]))
    assert sum(found) / 20 == pytest.approx(sum(plain) / 20, abs=0.02)


@pytest.mark.parametrize("ratio", [1e-3, 1.0, 1e3])
def test_the_likeliest_noise_is_found(ratio: float):
    rng = stream(0, "attack")
    variances = (2 * torch.randn(200, 300, generator=rng)).exp()
    variances /= variances.mean()
    movement = 3 * (variances + ratio).sqrt() * torch.randn(200, 300, generator=rng)

    found = noise_variances(movement, variances)

    assert float((found / (9 * (variances + ratio))).log().abs().mean()) < 0.05


def test_a_movement_is_whitened_as_a_gradient_is():
    matrices = matrix_normal(30, stream(0, "attack")).double()

    for rows in (matrices, matrices[:, :1]):
        found, movement = whitened(rows, rows[:4].sum(0))
        assert torch.allclose(movement, found[:4].sum(0), rtol=1e-6)
        assert bool((found.std(0) > 0).all())


def test_gradients_that_are_all_alike_tell_nothing():
    found, movement = whitened(torch.ones(3, 2, 2), torch.ones(2, 2))

    assert not found.any()
    assert not movement.any()


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_gradients_of_images_are_those_of_each_image_alone(norm: Norm):
    images = swatches(per_domain=10).of_domain(0)
    network = network_of(a_state(0, norm), norm)
    names = [name for name, _ in network.named_parameters()]
    known = parameters_named(network, names)
    parameters = list(known.values())

    found = image_gradients([network], list(known), images, plan=AS_THEY_ARE, count=3, rng=stream(0, "attack"))

    for place, (image, label) in enumerate(zip(images.pixels().split(1), images.labels.split(1), strict=True)):
        alone = torch.autograd.grad(functional.cross_entropy(network(as_float(image)), label), parameters)
        for part, own in zip(found, alone, strict=True):
            assert torch.allclose(part[place].flatten(), own.flatten(), atol=1e-6)
    assert parameters
    assert (norm == "batch") == (len(parameters) < len(names))


def test_gradients_of_augmented_images_are_means_over_views_and_their_mirror_images():
    images = swatches(per_domain=5).of_domain(0)
    network, rng = network_of(a_state(0)), stream(0, "attack")
    parameters = list(parameters_named(network, ["head.weight"]).values())

    (found,) = image_gradients([network], ["head.weight"], images, plan=AUGMENTED, count=3, rng=rng)

    shown = list(views(images, AUGMENTED, 3, gradients_module.child(rng, 0)))
    rows = []
    for view in shown:
        losses = functional.cross_entropy(network(view), images.labels, reduction="none")
        rows.append(torch.stack([torch.autograd.grad(loss, parameters, retain_graph=True)[0] for loss in losses]))
    assert len(shown) == 6
    assert torch.allclose(found, torch.stack(rows).mean(0), atol=1e-6)


def test_gradients_of_several_networks_are_averaged():
    images = swatches(per_domain=5).of_domain(0)
    networks = [network_of(a_state(seed)) for seed in range(2)]
    names = list(parameters_named(networks[0], [name for name, _ in networks[0].named_parameters()]))

    def gradients(*shown: Classifier) -> list[Tensor]:
        return image_gradients(list(shown), names, images, plan=AUGMENTED, count=2, rng=stream(0, "attack"))

    found = gradients(*networks)

    for both, one, other in zip(found, gradients(networks[0]), gradients(networks[1]), strict=True):
        assert torch.allclose(both, (one + other) / 2, atol=1e-6)


def test_views_are_what_the_plan_may_show():
    images = swatches(per_domain=4).of_domain(0)
    plain = as_float(images.pixels())

    def shown(**changed: object) -> list[Tensor]:
        return list(views(images, replace(AS_THEY_ARE, **changed), 3, stream(0, "attack")))  # type: ignore[arg-type]

    (alone,) = shown()
    first, mirrored = shown(flip=0.5)
    cropped = shown(crop=(0.5, 0.9))
    (only_mirrored,) = shown(flip=1.0)
    assert all(torch.equal(one, plain) for one in (alone, first))
    assert all(torch.equal(one, plain.flip(-1)) for one in (mirrored, only_mirrored))
    assert not torch.equal(cropped[0], cropped[1])
    assert (len(cropped), len(shown(translate=0.5, flip=0.5))) == (3, 6)


def test_cut_matrices_keep_their_inner_products_but_for_chance():
    rng = stream(0, "attack")
    matrices = torch.randn(4, 300, 500, generator=rng)
    matrices[1] += matrices[0]

    found = cut(matrices, 128)

    assert found.shape == (4, 128, 128)
    flat, short = matrices.flatten(1), found.flatten(1)
    lengths = flat.norm(dim=1)
    wrong = (short @ short.T - flat @ flat.T) / lengths.outer(lengths)
    assert float(wrong.abs().max()) < 5 / 128
    assert torch.allclose(cut(matrices[:2].sum(0, keepdim=True), 128), found[:2].sum(0, keepdim=True), atol=1e-4)
    assert cut(matrices, 500) is matrices


def test_matrices_of_a_small_network_are_kept_whole_and_those_of_a_large_one_fit(monkeypatch: pytest.MonkeyPatch):
    tiny = list(network_of(a_state(0)).parameters())
    whole = max(max(as_matrices(one.unsqueeze(0)).shape[1:]) for one in tiny)
    assert side_of(tiny) >= whole

    monkeypatch.setattr(gradients_module, "KEPT", 20_000)
    side = side_of(tiny)

    assert 32 < side < whole
    assert sum(cut(as_matrices(one.detach().unsqueeze(0)), side).numel() for one in tiny) <= 20_000


def test_a_head_that_was_trained_gives_its_images_away():
    """1,200 steps of plain gradient descent on random labels of 100 images, of which half are asked about."""
    images = noise_images(250, side=16, classes=4, rng=stream(0, "attack", "head"))
    inputs = Normalization()(as_float(images.pixels())).flatten(1)
    weight, bias = torch.zeros(4, 768), torch.zeros(4)
    before = ModelState(state={"head.weight": weight.clone(), "head.bias": bias.clone()})
    rng = stream(0, "attack", "batches")
    for _ in range(1200):
        rows = torch.randperm(100, generator=rng)[:10]
        wrong = (inputs[rows] @ weight.T + bias).softmax(1) - functional.one_hot(images.labels[rows], 4)
        weight, bias = weight - 1e-3 * wrong.T @ inputs[rows], bias - 1e-3 * wrong.sum(0)
    step = Step(before=before, after=ModelState(state={"head.weight": weight, "head.bias": bias}))
    asked = asked_of(images.subset(torch.cat([torch.arange(50), torch.arange(100, 150)])), images.subset(range_of(150)))

    found = regression_scores(step, asked, linear_classifier, stream(0, "attack"))

    areas = {test: auc(scores[:50], scores[50:]) for test, scores in found.items()}
    assert list(areas) == ["update regression", "head regression"]
    assert areas["head regression"] > 0.97, areas  # exact but for the images that are not asked about
    assert areas["update regression"] > 0.9, areas


def range_of(first: int, last: int = 250) -> Tensor:
    return torch.arange(first, last)


@pytest.mark.parametrize(("plan", "passes"), [(AS_THEY_ARE, 1), (AUGMENTED, 12)])
def test_a_head_alone_is_read_from_features_that_are_computed_once(
    plan: TrainingPlan, passes: int, monkeypatch: pytest.MonkeyPatch
):
    """Once for two rounds where images are not augmented. Else, in each round, once for the head's gradients and once
    for the features under either model, each time a view and its mirror image."""
    images = swatches(per_domain=20).of_domain(0)
    asked = replace(asked_of(images.subset(range_of(0, 10)), images.subset(range_of(10, 20)), plan), count=1)
    heads = [{name: a_state(seed).state[name] for name in ("head.weight", "head.bias")} for seed in range(3)]
    states = [ModelState(state={**a_state(0).state, **head}) for head in heads]
    features, shown = Classifier.features, list[int]()

    def counted(network: Classifier, images: Tensor) -> Tensor:
        shown.append(len(images))
        return features(network, images)

    def scores() -> list[dict[str, Tensor]]:
        return [
            regression_scores(
                Step(before=before, after=after), replace(asked, known=[]) if slow else asked,
                lambda state: network_of(ModelState(state=state)), stream(0, "attack"),
            )
            for before, after in pairwise(states)
        ]  # fmt: skip

    slow = False
    monkeypatch.setattr(Classifier, "features", counted)
    found = scores()
    assert sum(shown) == passes * 20

    slow = True
    monkeypatch.setattr(regression_module, "HEAD", "the name of no parameter")
    for one, alike in zip(found, scores(), strict=True):
        assert torch.equal(one["head regression"], alike["head regression"])
        if plan is AS_THEY_ARE:  # other views are drawn otherwise
            assert torch.allclose(one["update regression"], alike["update regression"], rtol=1e-3)


@pytest.mark.medium
def test_updates_of_clients_without_the_candidates_tell_nothing():
    areas = []
    for seed in range(12):
        rng = stream(seed, "attack", "strangers")
        images = noise_images(140, side=16, classes=4, rng=rng)
        view = Interpolators()([images.subset(range_of(start, start + 24)) for start in (0, 24)], rng, rounds=2)
        asked = asked_of(images.subset(range_of(48, 96)), images.subset(range_of(96, 140)))
        found = [regression_scores(step, asked, linear_classifier, rng) for step in client_steps(view, "client:1")]
        found += [regression_scores(step, asked, linear_classifier, rng) for step in global_steps(view, "client:1")]
        areas.append([auc(scores[:24], scores[24:]) for each in found for scores in each.values()])

    means, error = torch.tensor(areas).mean(0), ((48 + 1) / (12 * 24 * 24 * 12)) ** 0.5  # Mann-Whitney's, without ties
    assert means.shape == (6,)
    assert bool(((means - 0.5).abs() < 3.5 * error).all()), means


def test_only_what_moved_is_read():
    images = swatches(per_domain=20).of_domain(0)
    before = a_state(0)
    asked = asked_of(images.subset(range_of(0, 10)), images.subset(range_of(10, 20)))

    def scores(**moved: Tensor) -> list[str]:
        step = Step(before=before, after=ModelState(state={**before.state, **moved}))
        return list(
            regression_scores(step, asked, lambda state: network_of(ModelState(state=state)), stream(0, "attack"))
        )

    head = {name: before.state[name] + 0.1 for name in ("head.weight", "head.bias")}
    body = next(name for name in before.state if name.startswith("body") and before.state[name].ndim == 4)
    assert scores() == []
    assert scores(**{body: before.state[body] + 0.1}) == ["update regression"]
    assert scores(**head) == ["update regression", "head regression"]


def test_an_update_that_diverged_has_finite_scores_or_none():
    images = swatches(per_domain=20).of_domain(0)
    before = a_state(0)
    after = ModelState(state={**before.state, "head.bias": torch.tensor([1e35, -1e35, 1e35, -1e35])})
    asked = asked_of(images.subset(range_of(0, 10)), images.subset(range_of(10, 20)))

    found = regression_scores(
        Step(before=before, after=after), asked, lambda state: network_of(ModelState(state=state)), stream(0, "attack")
    )

    assert found
    assert not any(bool(scores.isinf().any()) for scores in found.values())


def test_batch_norms_that_trained_take_the_statistics_of_the_population():
    images = swatches(per_domain=70).of_domain(0)
    network = network_of(a_state(0, "batch"), "batch")
    first = next(name for name, module in network.named_modules() if isinstance(module, torch.nn.BatchNorm2d))
    kept = {name: value.clone() for name, value in network.state_dict().items()}

    renew_statistics(network, images, frozenset({f"{first}.running_mean"}))

    changed = {name for name, value in network.state_dict().items() if not torch.equal(value, kept[name])}
    assert changed == {f"{first}.{kind}" for kind in ("running_mean", "running_var", "num_batches_tracked")}
    assert not network.training
    halves = [as_float(half.pixels()) for half in (images.subset(range_of(0, 35)), images.subset(range_of(35, 70)))]
    found: list[Tensor] = []
    hook = network.get_submodule(first).register_forward_hook(
        lambda _module, given, _made: found.append(given[0].mean((0, 2, 3)))
    )
    with torch.no_grad():
        for half in halves:
            network(half)
    hook.remove()
    assert torch.allclose(network.state_dict()[f"{first}.running_mean"], torch.stack(found).mean(0), atol=1e-5)


def message(round: int, stage: str, sender: str, receiver: str, state: ModelState) -> Message:
    return Message(round=round, stage=stage, sender=sender, receiver=receiver, artifact=state)


def test_steps_are_what_was_sent_and_returned_and_what_was_sent_next():
    states = [ModelState(state={"head.weight": torch.full((4, 768), float(value))}) for value in range(6)]
    other = ModelState(state={"generator": torch.zeros(1)})
    view = View(
        messages=(
            message(0, "model", SERVER, "client:1", states[0]),
            message(0, "model", SERVER, "client:2", states[0]),
            message(0, "update", "client:1", SERVER, states[1]),
            message(1, "model", SERVER, "client:2", states[2]),
            message(1, "update", "client:1", SERVER, states[3]),
            message(3, "model", SERVER, "client:1", states[4]),
            message(2, "share", "client:1", SERVER, other),
            message(3, "update", "client:1", SERVER, states[5]),
        )
    )

    own, shared = client_steps(view, "client:1"), global_steps(view, "client:1")

    places = {id(state): place for place, state in enumerate(states)}
    assert [(places[id(step.before)], places[id(step.after)]) for step in own] == [(0, 1), (4, 5)]
    assert [(places[id(step.before)], places[id(step.after)]) for step in shared] == [(0, 2)]
    assert client_steps(view, "client:2") == []
    assert global_steps(view, "client:2") == []  # it sent nothing in the first round


def test_a_sum_over_clients_is_the_model_after_the_round_in_which_no_further_one_is_sent():
    states = [ModelState(state={"head.weight": torch.full((4, 768), float(value))}) for value in range(4)]
    other = ModelState(state={"generator": torch.zeros(1)})
    view = View(
        messages=(
            message(0, "model", SERVER, "client:1", states[0]),
            message(0, "update", CLIENTS, SERVER, states[1]),
            message(1, "model", SERVER, "client:1", states[2]),
            message(1, "share", CLIENTS, SERVER, other),
            message(1, "update", CLIENTS, SERVER, states[3]),
        )
    )

    found = [(step.before, step.after) for step in global_steps(view, "client:1")]

    assert found == [(states[0], states[2]), (states[2], states[3])]


def test_a_sum_of_parts_of_the_model_is_completed_by_what_was_sent():
    sent, weight, bias = (torch.full((3,), float(value)) for value in range(3))
    view = View(
        messages=(
            message(0, "model", SERVER, "client:1", ModelState(state={"a": sent, "b": sent, "c": sent})),
            message(0, "update", CLIENTS, SERVER, ModelState(state={"a": weight})),
            message(0, "update", CLIENTS, SERVER, ModelState(state={"b": bias})),
        )
    )

    (step,) = global_steps(view, "client:1")

    assert {name: float(value[0]) for name, value in step.after.state.items()} == {"a": 1.0, "b": 2.0, "c": 0.0}
    assert step.kept == {"c"}


def test_behind_secure_aggregation_a_run_of_one_round_is_asked_about():
    control = ModelMembership().positive_control(BLANK, stream(0, "attack"))
    cases = [replace(case, views=(summed(case.views[0]),)) for case in control.cases]
    attack = ModelMembership(references=0, candidates=24, sets=())

    answers = attack.run(cases, control.knowledge, stream(0, "attack"))

    scores = [answer.scores for answer in answers if isinstance(answer, Membership)]
    assert {(answer.slice["test"], answer.slice["model"]) for answer in answers} == {
        ("update regression", "global"), ("head regression", "global"),
    }  # fmt: skip
    for found, truth in zip(scores, [one for one in control.truths for _ in range(2)], strict=True):
        assert truth.members is not None
        assert auc(found[truth.members], found[~truth.members]) > 0.9
    assert [row for row in attack.missing(cases, control.knowledge) if "no model" in str(row.unavailable)] == []


def summed(view: View) -> View:
    """The first round of a view, with the mean over clients in place of their updates."""
    first = [message for message in view.messages if message.round == 0]
    updates = [one for one in first if one.receiver == SERVER]
    states = [one.artifact.state for one in updates if isinstance(one.artifact, ModelState)]
    mean = ModelState(state={name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]})
    sent = [one for one in first if one.sender == SERVER]
    return View(messages=(*sent, message(0, "update", CLIENTS, SERVER, mean)))


def test_without_references_the_tests_that_need_none_are_left():
    control = ModelMembership().positive_control(BLANK, stream(0, "attack"))
    attack = ModelMembership(references=0, candidates=24, sets=())

    answers = attack.run(control.cases, control.knowledge, stream(0, "attack"))

    found = {(answer.slice["test"], answer.slice["model"]) for answer in answers}
    assert {("update regression", "client"), ("update regression", "global"), ("head regression", "client")} <= found
    assert {("loss", "client"), ("fedmia loss", "client")} <= found
    assert not any(test in {"lira", "rmia", "calibrated"} for test, _ in found)
    assert any(
        row.slice.get("test") == "lira" and row.unavailable == "no reference federations were trained"
        for row in attack.missing(control.cases, control.knowledge)
    )


def test_regression_alone_asks_no_model_for_answers(monkeypatch: pytest.MonkeyPatch):
    control = ModelMembership().positive_control(BLANK, stream(0, "attack"))
    attack, both = (ModelMembership(references=0, candidates=24, tests=tests) for tests in ("regression", "all"))
    quick = TargetFacts(artifact_kinds=attack.reads, clients=3, images_per_client=700, classes=7, profile="quick")

    def of_regression(answers: Answers) -> dict[str, Tensor]:
        return {
            f"{answer.case} {answer.slice}": answer.scores
            for answer in answers
            if isinstance(answer, Membership) and "regression" in str(answer.slice["test"])
        }

    expected = of_regression(both.run(control.cases, control.knowledge, stream(0, "attack")))
    monkeypatch.setattr(attack_module, "_query", None)
    monkeypatch.setattr(attack_module, "label_only_scores", None)
    monkeypatch.setattr(attack_module, "score_rounds", None)
    answers = attack.run(control.cases, control.knowledge, stream(0, "attack"))

    assert {str(answer.slice["test"]) for answer in answers} == {"update regression", "head regression"}
    assert expected
    assert of_regression(answers).keys() == expected.keys()
    assert all(torch.equal(scores, expected[key]) for key, scores in of_regression(answers).items())
    assert [question.kind for question in ModelMembership(tests="regression").plan(quick)] == ["trained"]
    with pytest.raises(UsageError, match="has tests all, regression; got some"):
        ModelMembership(tests="some")  # type: ignore[arg-type]


def update_of_a_hundred(
    classes: int, weight: Tensor, *, kept: float = 1.0
) -> tuple[Step, DomainDataset, DomainDataset]:
    """A step on the first 100 of 250 noise images, from weights (classes, 768) of which a share is kept; 50 of the
    images and as many others to be asked about, and a hundred more."""
    images = noise_images(250, side=16, classes=classes, rng=stream(0, "attack", "head"))
    inputs = Normalization()(as_float(images.pixels())).flatten(1)
    wrong = (inputs[:100] @ weight.T).softmax(1) - functional.one_hot(images.labels[:100], classes)
    step = Step(
        before=ModelState(state={"head.weight": weight, "head.bias": torch.zeros(classes)}),
        after=ModelState(
            state={"head.weight": kept * weight - 1e-5 * wrong.T @ inputs[:100], "head.bias": -1e-5 * wrong.sum(0)}
        ),
    )
    return step, images.subset(torch.cat([torch.arange(50), torch.arange(100, 150)])), images.subset(range_of(150))


def test_a_bias_of_two_classes_decides_nothing():
    """Its gradients are all along one direction, and so is its movement: no noise is left in it to compare with."""
    weight = 0.02 * torch.randn(2, 768, generator=stream(0, "attack", "weights"))
    step, images, others = update_of_a_hundred(2, weight)

    scores = regression_scores(step, asked_of(images, others), linear_classifier, stream(0, "attack"))

    assert auc(scores["update regression"][:50], scores["update regression"][50:]) > 0.9


def test_weight_decay_hides_nobody():
    """Half of the members are asked about, at weights that decay by far more than one epoch moves them."""
    weight = 0.02 * torch.randn(4, 768, generator=stream(0, "attack", "weights"))
    step, images, others = update_of_a_hundred(4, weight, kept=0.7)

    def area(plan: TrainingPlan) -> float:
        found = regression_scores(step, asked_of(images, others, plan), linear_classifier, stream(0, "attack"))
        return auc(*found["update regression"].split(50))

    assert area(replace(AS_THEY_ARE, weight_decay=5e-4)) > 0.95
    assert area(AS_THEY_ARE) < 0.8  # an update of an unknown plan

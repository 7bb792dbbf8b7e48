"""Pictures from the gradient of a classifier's head: the features that it shows, and images that have them."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fdgsec.attacks.gradient_inversion.attack import GradientInversion
from fdgsec.attacks.gradient_inversion.control import planted_gradients, planted_network
from fdgsec.attacks.gradient_inversion.gradient_matching import Matching, batch_gradient
from fdgsec.attacks.gradient_inversion.head_features import class_features, is_head, match_features
from fdgsec.attacks.gradient_inversion.single_step_updates import ObservedStep, observed_step
from fdgsec.federation.artifacts import HeadGradient
from fdgsec.metrics.image_similarity import psnr
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import ADVERSARIES
from fdgsec.threats.answers import Labels, Ranking, Reconstructions
from fdgsec.threats.attack import PositiveControl, TargetFacts
from fdgsec.threats.judging.controls import positive_control
from fdgsec.threats.judging.judge import Judge
from tests.support.perturbation_generators import BLANK

ZERO = torch.zeros(4, 768)
ATTACK = GradientInversion(steps=60, variation=0.05)


def planted(seed: int = 0, heads: int = 4) -> PositiveControl:
    return planted_gradients(BLANK, stream(seed, "attack"), batches=(), heads=heads)


def network() -> Classifier:
    case = planted().cases[0]
    given = case.views[0].given(case.victim)
    assert given is not None
    return planted_network(given.state)


def head_of(model: Classifier, pixels: Tensor, labels: Tensor) -> dict[str, Tensor]:
    whole = batch_gradient(model, pixels, labels, statistics="running")
    return {name: value for name, value in whole.items() if name.startswith("head.")}


def images(count: int) -> Tensor:
    return torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def test_one_records_features_are_exact():
    model, pixels, label = network(), images(1), torch.tensor([2])
    gradient = head_of(model, pixels, label)
    assert is_head(gradient)
    torch.testing.assert_close(
        class_features(model, gradient, label, expected=ZERO).float(), model.features(pixels), rtol=1e-4, atol=1e-5
    )


def test_features_of_different_classes_are_separated():
    model, pixels, labels = network(), images(3), torch.tensor([0, 1, 3])
    found = class_features(model, head_of(model, pixels, labels), labels, expected=ZERO).float()
    torch.testing.assert_close(found, model.features(pixels), rtol=1e-2, atol=1e-2)


def test_a_batch_of_all_classes_leaves_one_combination_to_the_expected_features():
    """Every column of p - onehot sums to 0: four classes are three equations for four features."""
    model, pixels, labels = network(), images(4), torch.arange(4)
    gradient, true = head_of(model, pixels, labels), model.features(pixels).detach()
    errors = (model.head(true).softmax(1) - torch.eye(4)).detach()
    assert int(torch.linalg.matrix_rank(errors)) == 3
    found = class_features(model, gradient, labels, expected=true).float()
    torch.testing.assert_close(found, true, rtol=1e-3, atol=1e-3)
    guess = true.mean(0).expand(4, -1)
    nearer = class_features(model, gradient, labels, expected=guess).float()
    assert float((nearer - true).square().sum()) < 0.5 * float((guess - true).square().sum())


def test_records_of_one_class_give_their_mean_and_nothing_else():
    model, pixels, labels = network(), images(3), torch.tensor([1, 1, 3])
    with torch.no_grad():
        model.head.weight.zero_()  # all predictions are alike
    found = class_features(model, head_of(model, pixels, labels), labels, expected=ZERO).float()
    features = model.features(pixels)
    torch.testing.assert_close(found[0], features[:2].mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], features[2], rtol=1e-4, atol=1e-5)


def test_images_are_fitted_to_features_and_not_to_a_start():
    model, pixels, label = network(), images(1).mean((2, 3), keepdim=True).expand(1, 3, 16, 16), torch.tensor([2])
    gradient, size = head_of(model, pixels, label), (16, 16)
    rng = torch.Generator().manual_seed(1)
    few, many = (
        match_features(
            model,
            gradient,
            label,
            expected=ZERO,
            size=size,
            matching=Matching(steps=steps, restarts=2, total_variation=0.05),
            rng=rng,
        )
        for steps in (1, 100)
    )
    assert many.distance < 0.1 * few.start
    assert float(psnr(many.images, pixels)) > float(psnr(few.images, pixels)) + 6
    assert many.images.min() >= 0
    assert many.images.max() <= 1


def test_planted_pictures_are_recovered_from_heads_better_than_by_every_control():
    control = planted()
    answers = ATTACK.run(control.cases, control.knowledge, stream(0, "attack", "run"))
    controls = positive_control(control, answers, Judge(bootstrap_repeats=50), stream(0, "attack"))
    assert {row.measurement.slice["loss"] for row in controls} == {"features"}
    assert all(row.passed for row in controls), controls


def test_labels_and_rankings_come_with_the_picture():
    control = planted()
    case, truth = control.cases[0], control.truths[0]
    assert truth.images is not None
    assert truth.labels is not None
    store = control.knowledge.public_images()
    gallery = replace(store, store=torch.cat([store.pixels()[:9], truth.images]), rows=torch.arange(10),
        labels=torch.zeros(10, dtype=torch.int64), domains=torch.zeros(10, dtype=torch.int64),
        ids=tuple(f"candidate {number}" for number in range(10)),
    )  # fmt: skip
    answers = ATTACK.run([replace(case, candidates=gallery)], control.knowledge, stream(0, "attack", "run"))
    assert {answer.slice["loss"] for answer in answers} == {"features"}
    (label,) = [answer for answer in answers if isinstance(answer, Labels)]
    assert label.predicted.tolist() == truth.labels.tolist()
    ranked = [answer for answer in answers if isinstance(answer, Ranking) and answer.slice["by"] == "gradient"]
    assert int(ranked[0].distances[0].argmin()) == 9
    assert len([answer for answer in answers if isinstance(answer, Reconstructions)]) == 1


def test_without_the_gradient_or_the_model_a_row_says_so():
    control = planted()
    case = control.cases[0]
    sent, _ = case.views[0].messages
    alone = replace(case, views=(replace(case.views[0], messages=(sent,)),))
    assert (
        observed_step(alone, control.knowledge)
        == "no head gradient of client:1 was seen beside the model that it was given"
    )
    assert isinstance(observed_step(case, control.knowledge), ObservedStep)
    flat = HeadGradient(weight=torch.zeros(4, 768), bias=torch.zeros(4))
    messages = (sent, replace(case.views[0].messages[1], artifact=flat))
    told = observed_step(replace(case, views=(replace(case.views[0], messages=messages),)), control.knowledge)
    assert "zero everywhere" in str(told)


@pytest.mark.parametrize(("kinds", "asked"), [({"ModelState"}, 0), ({"ModelState", "HeadGradient"}, 2)])
def test_heads_are_asked_about_where_they_are_sent(kinds: set[str], asked: int):
    facts = TargetFacts(
        artifact_kinds=frozenset(kinds), clients=3, images_per_client=100, classes=7, profile="quick",
        knows=frozenset(ADVERSARIES["server"].knows),
    )  # fmt: skip
    questions = [one for one in ATTACK.plan(facts) if one.kind == "head_gradients"]
    assert [(one.records, one.scheme) for one in questions] == [(1, "pictures"), (4, "pictures")][:asked]


def test_a_shorter_last_batch_is_unavailable_with_its_reason():
    control = planted()
    few = replace(control.knowledge, plan=replace(TrainingPlan(), batch_size=4))
    told = observed_step(replace(control.cases[0], records=6), few)
    assert "batches of 4, of which the last is shorter" in str(told)
    assert isinstance(observed_step(control.cases[0], few), ObservedStep)

"""Pictures that show the class which a style tells, and the control that holds every variant to it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.attacks.style_inversion import recognition
from fdgsec.attacks.style_inversion.attack import StyleInversion
from fdgsec.attacks.style_inversion.class_guided import CLASS_GUIDED, SHARE, ClassGuidedInverter, class_guided
from fdgsec.attacks.style_inversion.control import SHOWS_NO_CLASS, planted_classes
from fdgsec.attacks.style_inversion.inverter_cache import InverterCache
from fdgsec.attacks.style_inversion.recognition import EXCHANGED, PICTURE, fit_classes
from fdgsec.attacks.style_inversion.training_images import Prior, encode_prior
from fdgsec.data.domains import DomainDataset
from fdgsec.metrics.measurement import Control, Measurement
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Labels
from fdgsec.threats.attack import VariantControl
from fdgsec.threats.judging.controls import positive_control, variant_controls, without_evidence
from fdgsec.threats.judging.judge import Judge
from tests.support.noisy_styles import Noise
from tests.support.quadrants import child_rng, image_rows, lacking, quadrant_statistics, reconstructions
from tests.unit.attacks.test_style_inversion_recognition import PUBLIC, WORLD, FourCells, asked, knowledge

GUIDED = StyleInversion(losses=(CLASS_GUIDED,), priors=("intra",), size=8)
BOTH = replace(GUIDED, losses=("mse", CLASS_GUIDED))
RED = PUBLIC.of_domain("red")
VICTIMS = WORLD.subset(torch.arange(50, 80))


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recognition, "locate", lambda name: Path(name))
    monkeypatch.setattr(recognition, "extractor_named", lambda name: FourCells())


def prior_of(images: DomainDataset, behind: Knowledge | None = None) -> Prior:
    return encode_prior(
        "public", images, quadrant_statistics, size=8, crops=0, limit=300, rng=child_rng(), behind=behind
    )


def inverter(images: DomainDataset = RED, behind: Knowledge | None = None) -> ClassGuidedInverter:
    found = class_guided(prior_of(images, behind))
    assert found is not None
    return found


def styles(images: DomainDataset) -> Tensor:
    mean, std = quadrant_statistics(images).style(unbiased=False)
    return torch.cat([mean, std.log()], 1).double()


def test_each_row_gets_the_nearest_image_of_its_likeliest_class_half_way_to_the_predicted_colors():
    prior, made, rows = prior_of(RED), inverter(), styles(VICTIMS)
    classes = fit_classes(prior.training.features, prior.labels[prior.training.groups])
    small = functional.avg_pool2d(RED.pixels().float() / 255, 2)

    drawn = made(rows)

    for number, row in enumerate(rows):
        likely = int(classes.predict(row[None]))
        gaps = [
            float((prior.linear.standardized(row) - prior.linear.standardized(own)).norm())
            if int(label) == likely else float("inf")
            for own, label in zip(styles(RED), RED.labels, strict=True)
        ]  # fmt: skip
        near = small[min(range(len(gaps)), key=gaps.__getitem__)][None]
        cells = functional.interpolate(near, size=(16, 16), mode="area")
        moved = near + SHARE * functional.interpolate(
            prior.linear(row[None]) - cells, size=(8, 8), mode="bilinear", align_corners=False
        )
        assert torch.allclose(drawn[number], moved[0].clamp(0, 1), atol=1e-5)


def test_the_chosen_image_is_of_the_class_that_the_style_is_taken_to_tell():
    made, rows = inverter(), styles(VICTIMS)
    told = made.classes.predict(rows)

    assert torch.equal(made.labels[made.chosen(rows)], told)
    assert 0 < int(told.sum()) < len(told)
    assert float((told == VICTIMS.labels).double().mean()) > 0.8


def test_other_labels_of_the_public_images_choose_other_pictures():
    rows = styles(VICTIMS)
    plain, turned = inverter(), inverter(replace(RED, labels=1 - RED.labels))

    assert torch.equal(plain.chosen(rows), turned.chosen(rows))  # the same two groups under swapped names
    mixed = inverter(replace(RED, labels=torch.arange(len(RED)) % 2))
    assert not torch.equal(plain.chosen(rows), mixed.chosen(rows))


def test_pictures_do_not_depend_on_the_rows_beside_them():
    made, rows = inverter(), styles(VICTIMS)

    assert torch.equal(made(rows), torch.cat([made(row[None]) for row in rows]))


@pytest.mark.medium
def test_behind_noise_the_classifier_learns_from_noisy_rows_and_distances_are_from_the_images_own_styles():
    noisy = inverter(behind=replace(knowledge(RED), defended=Noise(scale=0.5)))

    assert torch.equal(noisy.styles, inverter().styles)
    assert len(noisy.images) == len(RED)
    assert float((noisy.classes.spread / inverter().classes.spread).mean()) > 1.05


def test_line_drawings_and_images_of_one_class_are_refused_with_the_reason():
    attack = replace(GUIDED, priors=("intra", "third-party"))
    single = replace(PUBLIC, labels=0 * PUBLIC.labels)
    lines = WORLD.of_domain("lines")
    case = [image_rows(VICTIMS, "red")]

    known = replace(knowledge(single), unseen=lines)
    assert reconstructions(attack, case, known) == []
    assert {str(row.slice["prior"]): str(row.unavailable) for row in lacking(attack, case, known)} == {
        "intra": "the prior does not have 5 labeled images of each of two classes or more",
        "third-party": "pictures are real images; this prior's are colorized line drawings",
    }
    assert len(reconstructions(attack, case, replace(known, auxiliary=PUBLIC))) == 1


def test_victims_labels_do_not_reach_the_pictures():
    case, _ = asked()
    hidden = replace(case, candidates=replace(VICTIMS, labels=1 - VICTIMS.labels))
    known = knowledge()

    (one,), (other,) = (reconstructions(GUIDED, [each], known) for each in (case, hidden))

    assert torch.equal(one.images, other.images)


def balanced(answer: Labels, true: Tensor) -> float:
    return sum(float((answer.predicted[true == label] == label).double().mean()) for label in (0, 1)) / 2


def test_the_class_is_recognized_in_pictures_and_in_exchanged_ones_at_chance(network: None):
    case, true = asked()
    answers = [a for a in BOTH.run([case], knowledge(), child_rng()) if isinstance(a, Labels)]
    own = {str(a.slice["class_from"]): a for a in answers if a.slice.get("loss") == CLASS_GUIDED}

    assert set(own) == {PICTURE, EXCHANGED}
    assert balanced(own[PICTURE], true) > 0.8
    assert abs(balanced(own[EXCHANGED], true) - 0.5) < 0.27  # 30 rows: three standard errors of a guess
    assert sorted(own[EXCHANGED].predicted.tolist()) == sorted(own[PICTURE].predicted.tolist())
    first = [a for a in answers if a.slice["class_from"] == EXCHANGED and "loss" not in a.slice]
    assert len(first) == 1  # that of the first loss, among the comparisons


def planted(attack: StyleInversion, known: Knowledge | None = None) -> VariantControl:
    control = attack.variant_control(knowledge() if known is None else known, child_rng(3))
    assert control is not None
    return control


def held(control: VariantControl) -> Mapping[str, list[Control]]:
    return variant_controls(control, control.answers(child_rng(4)), Judge(), child_rng(5))


def test_a_planted_class_is_shown_by_the_variant_that_is_guided_by_it(network: None):
    control = planted(GUIDED)
    (found,) = held(control)[CLASS_GUIDED]

    assert control.goal.at_least == 0.75  # half way from a half to 1
    assert found.measurement.value is not None
    assert found.measurement.value >= 0.75
    assert found.passed


def test_rows_about_the_class_are_unread_of_a_generator_that_ignores_it(network: None, monkeypatch: pytest.MonkeyPatch):
    drawn = InverterCache.inverter

    def mean_for_mse(cache: InverterCache, prior: Prior, loss: str):
        mean = prior.training.images.mean(0, keepdim=True)
        return (lambda rows: mean.repeat(len(rows), 1, 1, 1)) if loss == "mse" else drawn(cache, prior, loss)

    monkeypatch.setattr(InverterCache, "inverter", mean_for_mse)
    control = planted(BOTH)
    found = held(control)
    about = {"class_from": PICTURE, "rows": "as_if_released"}
    rows = [
        Measurement(name="balanced_accuracy", value=0.5, low=0.45, high=0.55, chance=0.5, chance_kind="exact", n=400,
                    slice={**about, "loss": loss})
        for loss in BOTH.losses
    ]  # fmt: skip

    assert {loss: [one.passed for one in each] for loss, each in found.items()} == {
        "mse": [False], CLASS_GUIDED: [True]
    }  # fmt: skip
    assert [row.unread for row in without_evidence(rows, control, found)] == [SHOWS_NO_CLASS, ""]


def test_planted_public_and_asked_images_are_disjoint_and_balanced(network: None):
    control = planted(GUIDED)
    public, truth = control.knowledge.auxiliary, control.truths[0]
    assert public is not None
    assert truth.images is not None
    assert truth.labels is not None

    assert torch.bincount(public.labels).tolist() == [12, 12]
    assert torch.bincount(truth.labels).tolist() == [6, 6]
    shown = {image.numpy().tobytes() for image in public.pixels()}
    assert not shown & {image.numpy().tobytes() for image in truth.images}
    assert control.cases[0].candidates is None
    assert set(public.ids) <= set(PUBLIC.ids)


@pytest.mark.parametrize("prior", ["intra", "inter", "third-party"])
def test_the_planted_class_is_shown_with_any_prior_alone(prior: str, network: None):
    control = planted(replace(GUIDED, priors=(prior,)))

    assert [one.passed for one in held(control)[CLASS_GUIDED]] == [True]


def test_a_planted_style_is_the_same_whenever_it_is_asked_for():
    control = planted_classes(knowledge(), child_rng(), attack=GUIDED, variants=GUIDED.losses)
    public = control.knowledge.auxiliary
    assert public is not None
    whole = control.knowledge.statistics(public)
    part = control.knowledge.statistics(public.subset(torch.tensor([3, 20])))

    assert torch.equal(whole.mean[[3, 20]], part.mean)
    assert torch.equal(whole.m2[[3, 20]], part.m2)


def test_too_few_images_to_plant_classes_leave_no_row_as_evidence(network: None):
    few = PUBLIC.subset(torch.cat([(PUBLIC.labels == label).nonzero().flatten()[:6] for label in (0, 1)]))
    control = planted(GUIDED, knowledge(few))

    assert control.cases == ()
    (found,) = held(control)[CLASS_GUIDED]
    assert not found.passed
    assert found.measurement.unavailable == "no class could be planted: fewer than two have 7 labeled images"


def test_without_a_recognizer_there_is_no_such_control_and_a_row_says_why(own_cache: Path):
    assert GUIDED.variant_control(knowledge(), child_rng()) is None
    case, _ = asked()
    (row,) = [row for row in GUIDED.missing([case], knowledge()) if "class_from" in row.slice]
    assert row.unavailable is not None


def test_pictures_that_move_half_way_are_held_to_half_of_the_squared_error():
    for losses in (("mse", CLASS_GUIDED), (CLASS_GUIDED,)):
        attack = replace(GUIDED, losses=losses, size=64)
        control = attack.positive_control(knowledge(), child_rng())
        found = positive_control(control, control.answers(attack, child_rng(1)), Judge(), child_rng(2))

        assert {(one.measurement.slice["loss"], one.expected) for one in found} == {
            (loss, ">= 3" if loss == CLASS_GUIDED else ">= 10") for loss in losses
        }
        assert all(one.passed for one in found)

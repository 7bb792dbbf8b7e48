from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import current_thread

import pytest
import torch
from torch.nn import functional

from fdgsec.attacks.style_inversion import inverter_cache
from fdgsec.attacks.style_inversion.attack import StyleInversion
from fdgsec.attacks.style_inversion.inverter import (
    style_features,
    style_from_linear,
)
from fdgsec.attacks.style_inversion.inverter_cache import InverterCache
from fdgsec.attacks.style_inversion.style_rows import populations
from fdgsec.attacks.style_inversion.training_images import mirrored
from fdgsec.federation.artifacts import ImageStyles
from fdgsec.metrics.measurement import Measurement
from fdgsec.nn.styles.channel_statistics import linear_statistic
from fdgsec.nn.styles.image_styles import encoder_named
from fdgsec.runtime import threads
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.attack import PositiveControl
from fdgsec.threats.judging.judge import Judge
from fdgsec.threats.positive_control_data import upload
from tests.support.noisy_styles import Noise
from tests.support.quadrants import (
    AUXILIARY,
    DOMAINS,
    INTRA,
    MSE,
    SERVER,
    child_rng,
    image_rows,
    pooled_pair,
    quadrant_statistics,
    reconstructions,
    victims,
)
from tests.support.short_inversion import BriefInversion


@cache
def planted() -> tuple[StyleInversion, PositiveControl, list[Measurement]]:
    attack = StyleInversion()
    planted_control = attack.positive_control(SERVER, child_rng())
    answers = attack.run(planted_control.cases, planted_control.knowledge, child_rng(1))
    return (
        attack,
        planted_control,
        Judge(bootstrap_repeats=300).measure(answers, planted_control.cases, planted_control.truths, child_rng(2)),
    )


@pytest.mark.parametrize("control", ["B0", "B1", "B2", "B3", "B4"])
@pytest.mark.parametrize("loss", ["mse", "perceptual_mini"])
@pytest.mark.medium
def test_what_is_planted_is_found_beyond_every_control(control: str, loss: str):
    _, planted_control, rows = planted()
    (gain,) = [
        r
        for r in rows
        if r.name == planted_control.measurement and (r.slice["over"], r.slice["loss"]) == (control, loss)
    ]

    assert gain.low is not None
    assert gain.low > planted_control.at_least


@pytest.mark.medium
def test_a_part_of_the_auxiliary_images_is_not_held_to_the_goal_of_all():
    attack = StyleInversion(losses=("mse",), priors=("intra",), auxiliary=(20,))
    control = attack.positive_control(SERVER, child_rng())

    answers = control.answers(attack, child_rng(1))
    rows = Judge(bootstrap_repeats=300).measure(answers, control.cases, control.truths, child_rng(2))

    gains = [row for row in rows if row.name == control.measurement]
    assert len(gains) == 5
    assert all(row.low is not None and row.low > control.at_least for row in gains)


@pytest.mark.parametrize("prior", ["intra", "inter", "third-party"])
@pytest.mark.medium
def test_what_is_planted_is_found_with_any_prior_alone(prior: str):
    attack = StyleInversion(priors=(prior,), losses=("mse",))
    control = attack.positive_control(SERVER, child_rng())

    answers = attack.run(control.cases, control.knowledge, child_rng(1))
    rows = Judge(bootstrap_repeats=300).measure(answers, control.cases, control.truths, child_rng(2))

    gains = {row.slice["over"]: row.low for row in rows if row.name == control.measurement}
    assert gains.keys() == {"B0", "B1", "B2", "B3", "B4"}
    assert all(low is not None and low > control.at_least for low in gains.values())


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.medium
def test_priors_that_train_side_by_side_draw_the_same_pictures(
    cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """To the bit what priors draw that are trained one after another, on first use."""
    cases = [image_rows(victims(domain), DOMAINS[domain]) for domain in range(3)]
    attack = BriefInversion(losses=("mse",), size=8)
    with monkeypatch.context() as patched:
        patched.setattr(InverterCache, "train", lambda _cache, _priors: None)
        alone = reconstructions(attack, cases, SERVER)
    trained, fit = list[str](), inverter_cache.fit_generator
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path / "another"))
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _process: set(range(cores)), raising=False)
    monkeypatch.setattr(threads.os, "cpu_count", lambda: cores)
    monkeypatch.setattr(
        inverter_cache, "fit_generator",
        lambda *given, **more: trained.append(current_thread().name) or fit(*given, **more),
    )  # fmt: skip

    found = reconstructions(attack, cases, SERVER)

    assert len(found) == len(alone) >= 6
    assert all(torch.equal(one.images, other.images) for one, other in zip(alone, found, strict=True))
    assert len(trained) >= 3
    assert any(name.startswith("side-by-side") for name in trained) == (cores > 1)


@pytest.mark.parametrize(
    ("losses", "encoder", "reentrant", "together"),
    [
        (("mse",), "pixels", False, True),  # asks its own networks alone
        (("mse", "retrieved"), "pixels", True, True),
        (("mse", "retrieved"), "pixels", False, False),
        (("mse", "gan"), "statistics of one's own", True, False),
    ],
)
def test_an_encoder_that_is_not_reentrant_is_asked_by_one_thread(
    losses: tuple[str, ...], encoder: str, reentrant: bool, together: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(type(encoder_named("pixels")), "reentrant", reentrant)
    cache = StyleInversion(losses=losses).inverter_cache(replace(SERVER, encoder=encoder), child_rng())
    asked = list[int]()
    monkeypatch.setattr(inverter_cache, "side_by_side", lambda _work, _parts, most: asked.append(most) or iter(()))

    cache.train([])

    assert (asked[0] > 1) == together


@pytest.mark.parametrize("priors", [(), ("intra", "other")])
def test_a_prior_that_is_none_is_refused(priors: tuple[str, ...]):
    with pytest.raises(UsageError, match="priors are intra, inter, third-party"):
        StyleInversion(priors=priors)


@pytest.mark.medium
def test_planted_images_are_picked_out_of_their_gallery():
    _, _, rows = planted()
    tops = [row.value for row in rows if row.name == "gallery_top1" and row.slice["distance"] == "mse"]

    assert len(tops) == 3
    assert all(value is not None and value > 0.9 for value in tops)  # chance is 1/40


def test_exchanged_styles_find_nothing():
    attack, planted_control, _ = planted()
    answers = attack.negative_control(planted_control.cases, planted_control.knowledge, child_rng(1))
    nulls = Judge().null(answers, planted_control.cases, planted_control.truths, child_rng(2))

    assert [row.name for row in nulls] == ["psnr"]
    assert nulls[0].p_value > 0.05


def test_a_single_row_cannot_be_exchanged_and_is_left_out_of_the_negative_control():
    case = image_rows(victims(0, 1), "red")

    assert INTRA.negative_control([case], SERVER, child_rng()) == []
    assert len(reconstructions(INTRA, [case], SERVER)) == 1


def test_equal_streams_give_equal_pictures():
    cases = [image_rows(victims(0), "red")]
    first, again = (reconstructions(INTRA, cases, SERVER) for _ in range(2))

    assert all(torch.equal(a.images, b.images) for a, b in zip(first, again, strict=True))
    assert all(torch.equal(a.controls[n], b.controls[n]) for a, b in zip(first, again, strict=True) for n in a.controls)


@pytest.mark.medium
def test_every_case_is_answered_once_per_prior_and_loss():
    cases = [image_rows(victims(0), "red"), image_rows(victims(1), "green")]
    found = reconstructions(MSE, cases, SERVER)
    keys = {(a.case, a.slice["prior"], a.slice["loss"], a.slice["rows"]) for a in found}

    assert len(found) == len(keys) == 2 * 3
    assert {a.slice["rows"] for a in found} == {"as_if_released"}
    assert all(a.images.shape == (6, 3, 8, 8) for a in found)


def test_controls_are_the_mean_the_nearest_in_style_and_another_row_of_the_domain():
    victim = victims(0)
    (answer,) = reconstructions(INTRA, [image_rows(victim, "red")], SERVER)
    red = AUXILIARY.of_domain("red")
    both = [red, mirrored(red)]
    public = functional.avg_pool2d(torch.cat([part.pixels() for part in both]).float() / 255, 2)
    styles = torch.cat([style_features(*quadrant_statistics(part).style(unbiased=False)) for part in both])
    asked = style_features(*quadrant_statistics(victim).style(unbiased=False))
    spread = styles.std(0, correction=0)
    spread = spread + 1e-3 * spread.mean()
    centered = [((part - styles.mean(0)) / spread).clamp(-5, 5) for part in (asked, styles)]
    near = (centered[0][:, None] - centered[1][None]).square().sum(2).argmin(1)

    assert torch.allclose(answer.controls["B0"], public.mean(0).expand(6, -1, -1, -1), atol=1e-6)
    assert torch.allclose(answer.controls["B2"], public[near], atol=1e-6)
    source = [[bool(torch.equal(b3, image)) for image in answer.images].index(True) for b3 in answer.controls["B3"]]
    assert sorted(source) == list(range(6))
    assert all(place != number for number, place in enumerate(source))


def test_an_inverted_statistic_is_the_style_it_came_from():
    mean, std = torch.randn(5, 4, dtype=torch.float64), 0.1 + torch.rand(5, 4, dtype=torch.float64)
    again = style_from_linear(linear_statistic(mean, std))

    assert torch.allclose(again[0], mean)
    assert torch.allclose(again[1], std, rtol=1e-9)


def test_the_difference_of_two_pooled_releases_is_the_added_records_style():
    added = victims(1, 1)
    (rows,) = populations([pooled_pair(AUXILIARY.of_domain("green"), added, "green")], SERVER)
    expected = style_features(*quadrant_statistics(added).style(unbiased=False))

    assert (rows.kind, rows.sizes) == ("difference", (1,))
    # released as float32: 17 times 6e-8 of a variance of about 0.003 is 1e-3 of its logarithm at most
    assert torch.allclose(rows.features, expected, atol=1e-3)


def test_differences_of_one_domain_serve_as_each_others_control():
    holds = AUXILIARY.of_domain("green")
    cases = [pooled_pair(holds, victims(1, 4).subset(torch.tensor([n])), "green") for n in range(4)]
    found = reconstructions(INTRA, cases, SERVER)
    images, exchanged = torch.cat([a.images for a in found]), torch.cat([a.controls["B3"] for a in found])

    assert [a.case for a in found] == [0, 1, 2, 3]
    assert not any(torch.equal(a, b) for a, b in zip(images, exchanged, strict=True))
    assert torch.equal(images.flatten(1).sort(0).values, exchanged.flatten(1).sort(0).values)


def test_a_released_std_is_read_as_unbiased():
    victim = victims(0)
    (rows,) = populations([image_rows(victim, "red")], SERVER)
    expected = style_features(*quadrant_statistics(victim).style(unbiased=False))

    assert torch.allclose(rows.features, expected, atol=1e-5)  # float32 release; HW / (HW - 1) would be 8e-3 off


@pytest.mark.parametrize("scale", [0.3, 1.0])
@pytest.mark.medium
def test_behind_noise_a_decoder_learns_from_rows_as_they_are_released(scale: float):
    attack, planted_control, _ = planted()
    noise = Noise(scale=scale)
    mean, std = planted_control.cases[0].released()
    sent = noise.on(ImageStyles(mean=mean.float(), std=std.float()), stream(0, "attack"))
    case = replace(planted_control.cases[0], views=(upload(sent),))
    alone, gains = replace(attack, losses=("mse",)), {}
    for name, defended in (("aware", noise), ("not", None)):
        answers = alone.run([case], replace(planted_control.knowledge, defended=defended), child_rng(1))
        rows = Judge(bootstrap_repeats=100).measure(answers, [case], planted_control.truths, child_rng(2))
        gains[name] = next(r.value or 0.0 for r in rows if r.name == "psnr_gain" and r.slice["over"] == "B0")

    assert gains["aware"] > gains["not"] + 0.7
    assert gains["aware"] > -0.5  # nothing to be read: the mean image

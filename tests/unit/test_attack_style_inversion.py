from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.artifacts import ImageStyles, StyleStatistics
from fdgsec.attacks.style_inversion import StyleInversion
from fdgsec.data.domains import DomainDataset
from fdgsec.errors import UsageError
from fdgsec.inversion import (
    LINEAR_SIDE,
    Schedule,
    TrainingSet,
    fit_generator,
    fit_linear,
    style_features,
    style_from_linear,
)
from fdgsec.inversion_priors import colourless, cropped, encoded, mirrored, painted, prior_images
from fdgsec.inversion_rows import populations
from fdgsec.metrics.images import mse
from fdgsec.metrics.judge import Judge
from fdgsec.networks.style_generator import small_shape
from fdgsec.planting import upload
from fdgsec.reports import Measurement
from fdgsec.rng import stream
from fdgsec.styles import Moments, linear_statistic, moments
from fdgsec.threats import Case, Knowledge, Plant, Reconstructions, TargetFacts

DOMAINS = ("red", "green", "blue", "lines")
MSE = StyleInversion(losses=("mse",), size=8)
INTRA = replace(MSE, priors=("intra",))


def coins(seed: int = 0) -> torch.Generator:
    return stream(seed, "attack", "test")


def quadrant_statistics(dataset: DomainDataset) -> Moments:
    """An encoder whose channels are the three colours of each quarter of the image: twelve means, twelve spreads."""
    pixels = dataset.pixels().to(torch.float32) / 255
    half = pixels.shape[-1] // 2
    quarters = [pixels[:, :, a : a + half, b : b + half] for a in (0, half) for b in (0, half)]
    return moments(torch.cat(quarters, dim=1))


def world(per_domain: int = 24, size: int = 16) -> DomainDataset:
    """Noisy images with a random colour per quarter; `lines` are grey."""
    rng = torch.Generator().manual_seed(5)
    count = per_domain * len(DOMAINS)
    quarters = torch.rand(count, 3, 2, 2, generator=rng)
    domains = torch.arange(len(DOMAINS)).repeat_interleave(per_domain)
    for domain in range(3):
        quarters[domains == domain, domain] += 0.5
    quarters[domains == 3] = quarters[domains == 3].mean(1, keepdim=True)
    pixels = quarters.repeat_interleave(size // 2, 2).repeat_interleave(size // 2, 3) / 1.5
    pixels += 0.05 * torch.randn(count, 1, size, size, generator=rng)
    return DomainDataset(
        name="world", store=(pixels.clamp(0, 1) * 255).to(torch.uint8), rows=torch.arange(count),
        labels=torch.zeros(count, dtype=torch.int64), domains=domains, ids=tuple(f"i{n}" for n in range(count)),
        class_names=("any",), domain_names=DOMAINS,
    )  # fmt: skip


WORLD = world()


def knowledge(
    auxiliary: DomainDataset | None = None, unseen: DomainDataset | None = None, own: DomainDataset | None = None
) -> Knowledge:
    return Knowledge(
        statistics=quadrant_statistics, encoder="quadrants", class_names=("any",), domain_names=DOMAINS,
        auxiliary=auxiliary, unseen=unseen, own=own,
    )  # fmt: skip


AUXILIARY = WORLD.subset(torch.cat([torch.arange(n * 24, n * 24 + 16) for n in range(3)]))
SERVER = knowledge(AUXILIARY, WORLD.of_domain("lines"))


def victims(domain: int, count: int = 6) -> DomainDataset:
    return WORLD.subset(torch.arange(domain * 24 + 16, domain * 24 + 16 + count))


def image_rows(images: DomainDataset, domain: str) -> Case:
    mean, std = quadrant_statistics(images).style(unbiased=True)
    view = upload(ImageStyles(mean=mean.float(), std=std.float()))
    return Case(
        request="as_if_released", views=(view,), victim="client:0", domain=domain, slice={"domain": domain},
        candidates=images,
    )  # fmt: skip


def pooled_pair(holds: DomainDataset, added: DomainDataset, domain: str) -> Case:
    views = []
    for rows in (holds.rows, torch.cat([holds.rows, added.rows])):
        mean, std = quadrant_statistics(WORLD.subset(rows)).pooled().style(unbiased=False)
        views.append(upload(StyleStatistics(mean=mean[0].float(), std=std[0].float())))
    return Case(
        request="add_one_record", views=tuple(views), victim="client:0", domain=domain, slice={"domain": domain},
        records=len(holds),
    )  # fmt: skip


def reconstructions(attack: StyleInversion, cases: Sequence[Case], known: Knowledge) -> list[Reconstructions]:
    guess = attack.run(cases, known, coins())
    assert all(isinstance(answer, Reconstructions) for answer in guess)
    return [answer for answer in guess if isinstance(answer, Reconstructions)]


@cache
def planted() -> tuple[StyleInversion, Plant, list[Measurement]]:
    attack = StyleInversion()
    plant = attack.plant(SERVER, coins())
    guess = attack.run(plant.cases, plant.knowledge, coins(1))
    return attack, plant, Judge(bootstrap_repeats=300).measure(guess, plant.cases, plant.truths, coins(2))


@pytest.mark.parametrize("control", ["B0", "B1", "B2", "B3", "B4"])
@pytest.mark.parametrize("loss", ["mse", "perceptual_mini"])
def test_what_is_planted_is_found_beyond_every_control(control: str, loss: str):
    _, plant, rows = planted()
    (gain,) = [r for r in rows if r.name == plant.measurement and (r.slice["over"], r.slice["loss"]) == (control, loss)]

    assert gain.low is not None
    assert gain.low > plant.at_least


def test_planted_images_are_picked_out_of_their_gallery():
    _, _, rows = planted()
    tops = [row.value for row in rows if row.name == "gallery_top1" and row.slice["distance"] == "mse"]

    assert len(tops) == 2
    assert all(value is not None and value > 0.9 for value in tops)  # chance is 1/40


def test_exchanged_styles_find_nothing():
    attack, plant, _ = planted()
    guess = attack.shuffled(plant.cases, plant.knowledge, coins(1))
    nulls = Judge().null(guess, plant.cases, plant.truths, coins(2))

    assert [row.name for row in nulls] == ["psnr"]
    assert nulls[0].p_value > 0.05


def test_a_single_row_cannot_be_exchanged_and_is_left_out_of_the_negative_control():
    case = image_rows(victims(0, 1), "red")

    assert INTRA.shuffled([case], SERVER, coins()) == []
    assert len(INTRA.run([case], SERVER, coins())) == 1


def test_equal_streams_give_equal_pictures():
    cases = [image_rows(victims(0), "red")]
    first, again = (reconstructions(INTRA, cases, SERVER) for _ in range(2))

    assert all(torch.equal(a.images, b.images) for a, b in zip(first, again, strict=True))
    assert all(torch.equal(a.controls[n], b.controls[n]) for a, b in zip(first, again, strict=True) for n in a.controls)


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
    centred = [((part - styles.mean(0)) / spread).clamp(-5, 5) for part in (asked, styles)]
    near = (centred[0][:, None] - centred[1][None]).square().sum(2).argmin(1)

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


def test_foreign_channels_are_refused():
    view = upload(ImageStyles(mean=torch.zeros(2, 5), std=torch.ones(2, 5)))
    case = Case(request="released", views=(view,), victim="client:0", domain="red", slice={"domain": "red"})

    with pytest.raises(UsageError, match="released 5 channels; encoder quadrants has 12"):
        populations([case], SERVER)


@pytest.mark.parametrize(("victim", "expected"), [("red", "green"), ("green", "blue"), ("blue", "red")])
def test_the_servers_inter_prior_is_the_next_source_domain(victim: str, expected: str):
    found = prior_images("inter", victim, SERVER)

    assert not isinstance(found, str)
    assert set(found[1].domains.tolist()) == {DOMAINS.index(expected)}


def test_a_client_attacks_other_domains_with_its_own_images_alone():
    client = knowledge(own=AUXILIARY.of_domain("red"))
    found = prior_images("inter", "green", client)

    assert not isinstance(found, str)
    assert set(found[1].domains.tolist()) == {0}
    assert prior_images("inter", "red", client) == "the adversary's own images are of red"
    assert isinstance(prior_images("intra", "green", client), str)
    assert prior_images("third-party", "green", client) == "no images of the unseen domain"


def test_priors_without_data_are_reported_with_their_reason_and_not_answered():
    client = knowledge(own=AUXILIARY.of_domain("red"))
    cases = [image_rows(victims(1), "green")]
    reasons = {str(row.slice["prior"]): row.unavailable for row in MSE.missing(cases, client)}

    assert set(reasons) == {"intra of green", "third-party of green"}
    assert {a.slice["prior"] for a in reconstructions(MSE, cases, client)} == {"inter"}


def test_whoever_does_not_know_the_victims_domain_has_no_intra_prior_and_takes_all_own_images_for_inter():
    client = knowledge(unseen=WORLD.of_domain("lines"), own=AUXILIARY)
    found = prior_images("inter", None, client)

    assert not isinstance(found, str)
    assert found[1] is AUXILIARY
    assert prior_images("third-party", None, client) == prior_images("third-party", "red", client)
    for kind, known in (("intra", client), ("inter", SERVER)):
        assert prior_images(kind, None, known) == "the adversary does not know the domain of the victim's images"


def test_a_prior_that_may_be_of_the_victims_domain_is_not_called_inter():
    client = knowledge(own=AUXILIARY.of_domain("red"))
    case = image_rows(victims(1), "green")

    (told,) = reconstructions(MSE, [case], client)
    (untold,) = reconstructions(MSE, [replace(case, domain=None)], client)

    assert (told.slice["prior"], untold.slice["prior"]) == ("inter", "own")


def test_an_outsider_inverts_with_the_unseen_domain_alone():
    outsider = knowledge(unseen=WORLD.of_domain("lines"))
    cases = [replace(image_rows(victims(1), "green"), domain=None)]

    assert {a.slice["prior"] for a in reconstructions(MSE, cases, outsider)} == {"third-party"}
    assert [row.slice["prior"] for row in MSE.missing(cases, outsider)] == ["intra", "inter"]


def test_lpips_without_weights_is_reported_and_never_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: object):
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path))
    attack = StyleInversion(losses=("mse", "lpips"), priors=("intra",), size=64)
    (row,) = attack.missing([image_rows(victims(0), "red")], SERVER)

    assert row.slice == {"loss": "lpips"}
    assert row.unavailable is not None
    assert "vgg16" in row.unavailable
    assert {a.slice["loss"] for a in reconstructions(attack, [image_rows(victims(0), "red")], SERVER)} == {"mse"}


def test_unknown_losses_are_refused():
    with pytest.raises(UsageError, match="perceptual_mini, lpips"):
        StyleInversion(losses=("ssim",))


def test_pooled_targets_are_asked_for_pairs_of_runs_and_others_for_rows():
    def asked(*kinds: str) -> list[str]:
        facts = TargetFacts(artifact_kinds=frozenset(kinds), clients=3, images_per_client=9, classes=7, profile="quick")
        return [request.kind for request in MSE.plan(facts)]

    assert asked("StyleStatistics", "StyleBank") == ["add_one_record"]
    assert asked("ImageStyles", "StyleBank") == ["released", "as_if_released"]


def test_only_line_drawings_are_painted_and_paint_brings_colour():
    lines, red = WORLD.of_domain("lines"), WORLD.of_domain("red")
    paint = painted(lines, rng=coins())

    assert colourless(lines)
    assert not colourless(red)
    assert not colourless(paint)
    assert len(set(paint.ids) | set(lines.ids)) == 2 * len(lines)
    assert encoded("p", lines, quadrant_statistics, size=16, crops=0, limit=50, rng=coins()).painted


def test_variants_keep_labels_and_shape_and_a_mirror_twice_is_the_image():
    red = WORLD.of_domain("red")

    assert torch.equal(mirrored(mirrored(red)).pixels(), red.pixels())
    assert torch.equal(mirrored(red).pixels(), red.pixels().flip(3))
    assert cropped(red, rng=coins()).pixels().shape == red.pixels().shape


def test_rows_shown_to_a_painted_prior_get_its_mean_and_spread():
    prior = encoded("p", WORLD.of_domain("lines"), quadrant_statistics, size=16, crops=0, limit=50, rng=coins())
    rows = 3 + 2 * torch.randn(9, 24, dtype=torch.float64)

    assert torch.allclose(prior.aligned(rows).mean(0), prior.linear.centre)
    assert torch.allclose(prior.aligned(rows).std(0), prior.linear.spread)
    assert torch.equal(prior.aligned(rows[:7]), rows[:7])  # too few to be averaged
    assert torch.equal(replace(prior, painted=False).aligned(rows), rows)


def noise_set(count: int, copies: int) -> TrainingSet:
    rng = torch.Generator().manual_seed(3)
    features = torch.randn(count, 6, generator=rng, dtype=torch.float64).repeat(copies, 1)
    images = torch.rand(count, 3, 16, 16, generator=rng).repeat(copies, 1, 1, 1)
    return TrainingSet(features=features, images=images, groups=torch.arange(count).repeat(copies))


def test_cross_validated_predictions_learn_nothing_from_an_images_own_copies():
    training = noise_set(40, 3)
    _, unseen = fit_linear(training)
    mean = training.images.mean(0)

    # images are independent of styles, so honest predictions cannot beat the mean; leaked ones would come near zero
    assert float((unseen - training.images).square().mean()) > 0.99 * float((mean - training.images).square().mean())


def test_the_linear_inverse_recovers_a_linear_picture():
    training = noise_set(60, 1)
    weight = 0.05 * torch.randn(6, 3 * LINEAR_SIDE**2, generator=torch.Generator().manual_seed(1))
    images = (0.5 + training.features.float() @ weight).clamp(0, 1).reshape(-1, 3, LINEAR_SIDE, LINEAR_SIDE)
    linear, unseen = fit_linear(replace(training, images=images))

    # the smallest penalty, 1, shrinks weights by about 1 in 60; pixels vary by 0.12
    assert float((linear(training.features) - images).abs().mean()) < 0.005
    assert float((unseen - images).abs().mean()) < 0.01


def test_a_generator_that_only_does_harm_is_discarded():
    training = noise_set(40, 1)
    linear, unseen = fit_linear(training)
    wild = Schedule(steps=4, rate=10.0, check=2)
    kept = fit_generator(training, linear, unseen, shape=small_shape(16), loss=mse, schedule=wild, rng=coins())

    assert torch.allclose(kept(training.features), linear(training.features).clamp(0.02, 0.98), atol=1e-6)


def test_a_generator_learns_what_a_linear_map_cannot():
    rng = torch.Generator().manual_seed(2)
    features = torch.randn(200, 4, generator=rng, dtype=torch.float64)
    bright = (features[:, 0] * features[:, 1] > 0).float()  # exclusive or: invisible to a ridge
    images = (0.2 + 0.6 * bright)[:, None, None, None].expand(-1, 3, 8, 8).contiguous()
    training = TrainingSet(features=features, images=images, groups=torch.arange(200))
    linear, unseen = fit_linear(training)
    schedule = Schedule(steps=120, rate=5e-3, dropout=0.0, noise=0.0, check=40)
    inverter = fit_generator(training, linear, unseen, shape=small_shape(8), loss=mse, schedule=schedule, rng=coins())

    def error(drawn: Tensor) -> float:
        return float((drawn.mean((1, 2, 3)) - images.mean((1, 2, 3))).square().mean())

    assert error(inverter(features)) < 0.5 * error(linear(features))

"""How an adversarial inverter learns: its code of styles, its losses, and the baseline that sees no style."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.attacks.style_inversion import inverter_gan
from fdgsec.attacks.style_inversion.attack import Profile, StyleInversion
from fdgsec.attacks.style_inversion.inverter import (
    LinearInverse,
    Loss,
    TrainingSet,
    fit_linear,
    held_out,
    style_features,
)
from fdgsec.attacks.style_inversion.inverter_gan import (
    AdversarialInverter,
    AdversarialOptions,
    Ranking,
    conditional_inverter,
    cutout,
    discriminator_loss,
    fit_baseline,
    style_code,
    train_conditional,
    translated,
)
from fdgsec.attacks.style_inversion.style_residuals import residuals_of
from fdgsec.attacks.style_inversion.training_images import encode_prior
from fdgsec.data.shapes import shapes
from fdgsec.federation.artifacts import ImageStyles
from fdgsec.metrics.image_similarity import mse, psnr
from fdgsec.nn.networks.style_discriminator import StyleDiscriminator
from fdgsec.nn.networks.style_generator import GeneratorShape, StyleGenerator
from fdgsec.nn.styles.channel_statistics import EPS
from fdgsec.nn.styles.image_styles import statistics
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import GeneratedSets, Reconstructions
from fdgsec.threats.attack import Case
from fdgsec.threats.positive_control_data import upload
from tests.support.quadrants import (
    AUXILIARY,
    SERVER,
    child_rng,
    image_rows,
    lacking,
    quadrant_statistics,
    victims,
)

TINY = GeneratorShape(size=8, cap=16, numerator=256, seed_channels=16)
SHORT = AdversarialOptions(steps=6, batch=4, latent=4, lessons=4, tries=3)


def colored(count: int = 48, side: int = 8) -> TrainingSet:
    """Pictures of one color each, which the first three of six numbers say."""
    rng = torch.Generator().manual_seed(3)
    features = torch.randn(count, 6, generator=rng, dtype=torch.float64)
    color = (0.5 + 0.15 * features[:, :3]).clamp(0.05, 0.95).float()
    return TrainingSet(
        features=features, images=color[:, :, None, None].expand(-1, -1, side, side).contiguous(),
        groups=torch.arange(count),
    )  # fmt: skip


def fit_adversarial(
    training: TrainingSet, linear: LinearInverse, unseen: Tensor, *, contest: AdversarialOptions, rng: torch.Generator,
    shape: GeneratorShape, perceptual: Loss, ranking: Ranking | None = None,
) -> AdversarialInverter:  # fmt: skip
    networks = train_conditional(
        training, linear, unseen, shape=shape, perceptual=perceptual, contest=contest, rng=rng
    )  # fmt: skip
    return conditional_inverter(networks, training, linear, contest=contest, rng=rng, ranking=ranking)


def fitted(contest: AdversarialOptions) -> tuple[AdversarialInverter, TrainingSet]:
    training = colored()
    linear, unseen = fit_linear(training)
    return fit_adversarial(
        training, linear, unseen, shape=TINY, perceptual=mse, contest=contest, rng=child_rng()
    ), training  # fmt: skip


def test_the_code_of_the_training_styles_is_white_and_no_wider_than_a_quarter_of_the_images():
    training = colored(20)
    code = style_code(training, fit_linear(training)[0])

    found = code(training.features)

    assert found.shape == (20, 5)
    assert torch.allclose(found.mean(0), torch.zeros(5), atol=1e-5)
    assert torch.allclose(found.T @ found / 20, torch.eye(5), atol=1e-4)


def test_directions_in_which_nothing_varies_are_left_out_of_the_code():
    training = colored(40)
    flat = replace(training, features=training.features[:, [0, 0, 1]])

    assert style_code(flat, fit_linear(flat)[0])(flat.features).shape == (40, 2)


@torch.no_grad()
def test_the_discriminators_loss_is_the_hinge_of_both_sides_and_of_what_it_cannot_redraw():
    judge = StyleDiscriminator(3, TINY, rng=child_rng()).eval()
    real, drawn, styles = *torch.rand(2, 4, 3, 8, 8, generator=child_rng(2)), torch.randn(4, 3, generator=child_rng(3))

    found = float(discriminator_loss(judge, real, drawn, styles, child_rng(1)).detach())

    rng, by_hand = child_rng(1), 0.0
    shown = cutout(translated(real, rng), rng)
    other = cutout(translated(drawn, rng), rng)
    for number in range(4):
        one = slice(number, number + 1)
        maps = judge.trunk(shown[one])
        by_hand += sum(max(0.0, 1 - float(logit)) for logit in judge(maps, styles[one]).flatten()) / 4
        logits = judge(judge.trunk(other[one]), styles[one]).flatten()
        by_hand += sum(max(0.0, 1 + float(logit)) for logit in logits) / 4
        by_hand += float((judge.redrawn(maps) - functional.avg_pool2d(shown[one], 2)).detach().square().mean()) / 4
    assert found == pytest.approx(by_hand, abs=1e-5)


def test_a_moved_picture_is_the_picture_elsewhere():
    dot = torch.zeros(60, 1, 16, 16)
    dot[:, :, 8, 5] = 1

    places = translated(dot, child_rng()).flatten(1).argmax(1)

    assert {int(place) // 16 for place in places} == {6, 7, 8, 9, 10}  # an eighth of 16 pixels either way
    assert {int(place) % 16 for place in places} == {3, 4, 5, 6, 7}


def test_a_covered_picture_lacks_at_most_a_square_of_half_its_side():
    seen = cutout(torch.ones(200, 3, 16, 16), child_rng())

    hidden = (seen[:, 0] == 0).flatten(1).sum(1)
    assert int(hidden.max()) <= 9 * 9
    assert int(hidden.min()) >= 4 * 4
    assert torch.equal(seen[:, 0], seen[:, 1])


def test_gradients_pass_through_what_is_moved_and_not_through_what_is_covered():
    picture = torch.full((1, 3, 8, 8), 0.5, requires_grad=True)

    cutout(translated(picture, child_rng()), child_rng(1)).sum().backward()

    assert picture.grad is not None
    assert 0 < int((picture.grad > 0).sum()) < picture.numel()


@pytest.mark.medium
def test_equal_streams_and_equal_calls_give_equal_pictures():
    (first, training), (again, _) = fitted(SHORT), fitted(SHORT)

    drawn = first(training.features[:5])

    assert drawn.shape == (5, 3, 8, 8)
    assert torch.equal(drawn, first(training.features[:5]))
    assert torch.equal(drawn, again(training.features[:5]))
    assert 0 < float(drawn.min()) < float(drawn.max()) < 1


def test_of_several_pictures_the_one_is_kept_whose_style_is_told_best():
    inverter, training = fitted(SHORT)
    features = training.features[:6]
    turns = [replace(inverter, contest=replace(SHORT, tries=tries))(features) for tries in (1, 2, 3)]

    with torch.no_grad():
        gaps = torch.stack([(inverter.predictor(t) - inverter.code(features)).square().mean(1) for t in turns])

    assert bool((gaps[1:] <= gaps[:-1] + 1e-6).all())
    assert bool((gaps[2] < gaps[0]).any())


def test_of_several_pictures_the_one_is_kept_whose_style_is_nearest_under_the_public_encoder():
    known, asked = replace(SERVER, statistics=quadrant_statistics), victims(0)
    red = AUXILIARY.of_domain("red")
    prior = encode_prior("red", red, quadrant_statistics, size=8, crops=0, limit=300, rng=child_rng())
    features = style_features(*quadrant_statistics(asked).style(unbiased=False))
    ranking = residuals_of(prior, known).of_reconstructions
    trained = fit_adversarial(
        prior.training, prior.linear, prior.unseen, shape=TINY, perceptual=mse, contest=SHORT, rng=child_rng(),
        ranking=ranking,
    )  # fmt: skip

    drawn = [replace(trained, contest=replace(SHORT, tries=tries))(features) for tries in (1, 2, 3)]

    gaps = torch.stack([ranking(images, features) for images in drawn])
    assert bool((gaps[1:] <= gaps[:-1] + 1e-9).all())
    assert bool((gaps[2] < gaps[0]).any())
    enlarged = functional.interpolate(drawn[2], size=(16, 16), mode="bilinear")
    half = [(enlarged * 255).round()[:, :, a : a + 8, b : b + 8] / 255 for a in (0, 8) for b in (0, 8)]
    maps = torch.cat(half, dim=1).double().flatten(2)
    mean, deviation = maps.mean(2), (maps.var(2, correction=0) + EPS).sqrt()
    known_mean, known_std = quadrant_statistics(red).style(unbiased=False)
    public = torch.cat([known_mean, known_std], dim=1)
    unit = public.std(0, correction=0) + 0.1 * public.std(0, correction=0).mean()
    given = torch.cat(quadrant_statistics(asked).style(unbiased=False), dim=1)
    by_hand = ((torch.cat([mean, deviation], dim=1) - given) / unit).square().mean(1).sqrt()
    assert torch.allclose(gaps[2], by_hand, rtol=1e-4)


def color_error(drawn: Tensor, true: Tensor) -> float:
    return float((drawn.mean((2, 3)) - true.mean((2, 3))).square().mean())


@pytest.mark.slow
def test_the_adversarial_inverter_learns_colors_that_it_is_not_given_a_linear_part_of():
    training = colored()
    nothing = torch.full((48, 3, 16, 16), 0.5)
    blank = LinearInverse(
        center=torch.zeros(6, dtype=torch.float64), spread=torch.ones(6, dtype=torch.float64),
        average=torch.full((768,), 0.5, dtype=torch.float64), weight=torch.zeros(6, 768, dtype=torch.float64),
    )  # fmt: skip
    contest = AdversarialOptions(steps=150, batch=16, rate=2e-3, decay=0.9, latent=4, lessons=50, tries=1)

    inverter = fit_adversarial(training, blank, nothing, shape=TINY, perceptual=mse, contest=contest, rng=child_rng())

    drawn = inverter(training.features)
    assert color_error(drawn, training.images) < 0.3 * color_error(nothing, training.images)


@pytest.mark.slow
def test_the_baseline_learns_from_its_discriminator_alone_which_color_is_real():
    red = torch.tensor([0.9, 0.1, 0.2])[:, None, None].expand(3, 8, 8)
    images = (red + 0.05 * torch.randn(40, 3, 8, 8, generator=child_rng())).clamp(0, 1)
    contest = AdversarialOptions(steps=150, batch=16, rate=2e-3, decay=0.9, latent=4)

    trained = fit_baseline(images, shape=TINY, contest=contest, rng=child_rng())
    untrained = fit_baseline(images, shape=TINY, contest=replace(contest, steps=0), rng=child_rng())

    drawn, before = trained(20, child_rng(1)), untrained(20, child_rng(1))
    assert color_error(drawn, red.expand(20, -1, -1, -1)) < 0.3 * color_error(before, red.expand(20, -1, -1, -1))
    assert torch.equal(drawn, trained(20, child_rng(1)))
    assert not torch.equal(drawn, trained(20, child_rng(2)))


@pytest.mark.medium
def test_an_adversarial_loss_that_cannot_see_so_small_pictures_says_so():
    attack = StyleInversion(losses=("mse", "gan"), size=8)
    (row,) = lacking(attack, [image_rows(victims(0), "red")], SERVER)

    assert row.slice == {"loss": "gan"}
    assert "at least 16 px" in str(row.unavailable)
    assert {
        a.slice["loss"] for a in attack.run([image_rows(victims(0), "red")], SERVER, child_rng()) if "loss" in a.slice
    } == {"mse"}


class Brief(StyleInversion):
    """The attack with a tenth of the quick profile's adversarial steps."""

    _QUICK = StyleInversion.PROFILES["quick"]
    PROFILES: ClassVar[Mapping[str, Profile]] = {
        "quick": replace(
            _QUICK, effort=replace(_QUICK.effort, contest=replace(_QUICK.effort.contest, steps=30, lessons=30))
        )
    }


@pytest.mark.slow
def test_the_adversarial_variant_and_the_baseline_run_on_shapes_at_32_px():
    data = shapes(image_size=32, per_domain=84).of_domain("photo")
    known, asked = data.subset(torch.arange(60)), data.subset(torch.arange(60, 84))
    attack = Brief(losses=("mse", "gan"), priors=("intra",), size=32, baseline=True)
    server: Knowledge = replace(
        SERVER, statistics=lambda images: statistics("mini", images), encoder="mini", auxiliary=known,
        domain_names=data.domain_names, unseen=None,
    )  # fmt: skip
    mean, std = statistics("mini", asked).style(unbiased=True)
    case = Case(
        question="as_if_released", views=(upload(ImageStyles(mean=mean.float(), std=std.float())),), victim="client:0",
        domain="photo", slice={"domain": "photo"}, candidates=asked,
    )  # fmt: skip

    answers = attack.run([case], server, child_rng())

    drawn = {str(a.slice["loss"]): a for a in answers if isinstance(a, Reconstructions)}
    true = asked.pixels().float() / 255
    gain = psnr(drawn["gan"].images, true) - psnr(drawn["gan"].controls["B3"], true)
    assert drawn["gan"].images.shape == (24, 3, 32, 32)
    assert float(gain.mean()) > 0.5  # dB; measured 2 to 3
    assert {a.name for a in answers if isinstance(a, GeneratedSets)} == {
        "styles, mse", "styles, gan", "exchanged styles, mse", "baseline",
    }  # fmt: skip


def _steps_taken(contest: AdversarialOptions, monkeypatch: pytest.MonkeyPatch) -> tuple[int, StyleGenerator]:
    """How many steps adversarial training took on `colored` over a gray linear part, and what it gave."""
    taken, training = list[int](), colored()
    linear, unseen = fit_linear(training)
    counted = inverter_gan.update_average
    with monkeypatch.context() as patched:
        patched.setattr(inverter_gan, "update_average", lambda *given: (taken.append(1), counted(*given)))
        networks = train_conditional(
            training, linear, torch.full_like(unseen, 0.5), shape=TINY, perceptual=mse, contest=contest, rng=child_rng()
        )  # fmt: skip
    return len(taken), networks.generator


def test_adversarial_training_ends_where_held_out_images_come_no_nearer(monkeypatch: pytest.MonkeyPatch):
    still = replace(SHORT, steps=60, rate=0.0, decay=0.0, check=3, patience=2, settled=0.01)

    taken, generator = _steps_taken(still, monkeypatch)

    assert taken == 6, "two checks without a gain"
    shorter = replace(still, steps=6)
    assert all(
        torch.equal(value, generator.state_dict()[name])
        for name, value in _steps_taken(shorter, monkeypatch)[1].state_dict().items()
    ), "the weights are those of the last step"


def test_adversarial_training_takes_all_steps_while_held_out_images_come_nearer_or_nobody_checks(
    monkeypatch: pytest.MonkeyPatch,
):
    gaining = replace(SHORT, steps=30, rate=1e-3, perceptual=1000.0, check=3, patience=2, settled=0.01)

    assert _steps_taken(gaining, monkeypatch)[0] == 30
    assert _steps_taken(replace(SHORT, steps=30, rate=0.0), monkeypatch)[0] == 30


def test_held_out_images_train_neither_network(monkeypatch: pytest.MonkeyPatch):
    seen = set[int]()
    training = colored()
    linear, unseen = fit_linear(training)
    judged = inverter_gan.discriminator_loss

    def noted(judge: StyleDiscriminator, real: Tensor, *others: Tensor | torch.Generator) -> Tensor:
        seen.update(int((training.images == one).all((1, 2, 3)).nonzero()[0, 0]) for one in real)
        return judged(judge, real, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(inverter_gan, "discriminator_loss", noted)
    contest = replace(SHORT, steps=80, check=1000, validation=0.25)
    train_conditional(training, linear, unseen, shape=TINY, perceptual=mse, contest=contest, rng=child_rng())

    held = held_out(training.groups, 0.25, child(child_rng(), "validation"))
    assert int(held.sum()) == 12
    assert seen == set((~held).nonzero().flatten().tolist())

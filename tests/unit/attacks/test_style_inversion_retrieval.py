"""Reconstructions that begin at public images: drafts ranked by the public encoder, and optimized where it can be."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.attacks.style_inversion.attack import StyleInversion
from fdgsec.attacks.style_inversion.inverter import style_features
from fdgsec.attacks.style_inversion.inverter_cache import RETRIEVED
from fdgsec.attacks.style_inversion.retrieval import (
    SHARES,
    RetrievalInverter,
    RetrievalOptions,
    encoder_with_gradients,
    retrieval_of,
)
from fdgsec.attacks.style_inversion.style_residuals import residuals_of
from fdgsec.attacks.style_inversion.training_images import encode_prior
from fdgsec.data.domains import DomainDataset
from fdgsec.data.shapes import shapes
from fdgsec.nn.styles.callable_encoder import CallableEncoder
from fdgsec.nn.styles.image_styles import register_encoder, statistics
from fdgsec.runtime.errors import UsageError
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Prediction
from fdgsec.threats.attack import PositiveControl
from fdgsec.threats.judging.judge import Judge
from tests.support.noisy_styles import Noise
from tests.support.quadrants import (
    AUXILIARY,
    SERVER,
    child_rng,
    image_rows,
    lacking,
    reconstructions,
    victims,
)

OPTIONS = RetrievalOptions(nearest=3, draws=2, steps=8, rows=9)
FOUND = StyleInversion(losses=(RETRIEVED,), priors=("intra",), size=8)
DATA = shapes(image_size=32, per_domain=24).of_domain("photo")


def inverter(public: DomainDataset, known: Knowledge, options: RetrievalOptions = OPTIONS) -> RetrievalInverter:
    behind = None if known.defended is None else known
    prior = encode_prior(
        "public", public, known.statistics, size=public.image_size[0], crops=0, limit=300, rng=child_rng(),
        behind=behind,
    )  # fmt: skip
    return retrieval_of(prior, residuals_of(prior, known), known, options)


def shown(encoder: str) -> Knowledge:
    return replace(SERVER, statistics=lambda images: statistics(encoder, images), encoder=encoder)


def features(images: DomainDataset, known: Knowledge) -> Tensor:
    return style_features(*known.statistics(images).style(unbiased=False))


def mean_std(images: DomainDataset, known: Knowledge) -> Tensor:
    return torch.cat(known.statistics(images).style(unbiased=False), dim=1)


def spread_of(styles: Tensor) -> Tensor:
    return styles.std(0, correction=0) + 0.1 * styles.std(0, correction=0).mean()


def as_images(pictures: Tensor, like: DomainDataset) -> DomainDataset:
    stored = (pictures * 255).round().to(torch.uint8)
    count = torch.arange(len(stored))
    return replace(
        like, store=stored, rows=count, labels=0 * count, domains=0 * count, ids=tuple(str(n) for n in count),
        attributes={},
    )  # fmt: skip


def test_without_gradients_the_draft_is_kept_whose_style_is_nearest():
    red, asked = AUXILIARY.of_domain("red"), victims(0)
    made = inverter(red, SERVER)
    assert made.encoder is None

    found = made.retrieve(features(asked, SERVER))

    styles, targets = mean_std(red, SERVER), mean_std(asked, SERVER)
    unit, coarse = spread_of(styles), made.linear(features(asked, SERVER))
    for row, target in enumerate(targets):
        near = [(((style - target) / unit) ** 2).mean().sqrt() for style in styles]
        best = (float("inf"), torch.empty(0))
        for number in sorted(range(len(red)), key=lambda n: float(near[n]))[: OPTIONS.nearest]:
            own = red.pixels(torch.tensor([number])).float() / 255
            gap = functional.interpolate(coarse[row : row + 1] - own, size=(16, 16), mode="bilinear")  # side 16 already
            for share in SHARES:
                draft = ((own + share * gap).clamp(0, 1) * 255).round() / 255
                residual = (((mean_std(as_images(draft, red), SERVER)[0] - target) / unit) ** 2).mean().sqrt()
                best = min(best, (float(residual), draft[0]), key=lambda pair: pair[0])
        assert float(found.residual[row]) == pytest.approx(best[0], rel=1e-6)
        assert torch.allclose(found.shown[row], best[1], atol=1e-6)
        assert float(found.before[row]) == pytest.approx(float(min(near)), rel=1e-6)


def test_with_gradients_pictures_give_back_the_style_better_than_any_draft():
    known, asked, public = shown("pixels"), DATA.subset(torch.arange(20, 24)), DATA.subset(torch.arange(20))
    made = inverter(public, known, replace(OPTIONS, steps=30))
    assert made.encoder is not None

    found = made.retrieve(features(asked, known))
    ranked = replace(made, options=replace(OPTIONS, steps=0)).retrieve(features(asked, known))

    unit = spread_of(mean_std(public, known))
    gap = (mean_std(as_images(found.shown, public), known) - mean_std(asked, known)) / unit
    assert torch.allclose(found.residual, gap.square().mean(1).sqrt(), atol=1e-6)  # of the very pictures that are shown
    assert bool((found.residual < ranked.residual).all())
    assert bool((ranked.residual <= found.before + 1e-9).all())
    assert float(found.residual.mean()) < 0.2 * float(found.before.mean())


def test_a_public_image_is_found_by_its_own_style():
    public = AUXILIARY.of_domain("green")
    made = inverter(public, SERVER)

    found = made.retrieve(features(public, SERVER))

    assert torch.allclose(found.shown, public.pixels().float() / 255, atol=1e-6)
    assert float(found.residual.max()) < 1e-6


def test_the_encoder_is_used_where_it_gives_gradients_and_the_statistics_that_are_known():
    sample, unit = DATA.subset(torch.arange(1)), torch.ones(1)
    own = register_encoder(CallableEncoder(lambda images: images.detach()[:, :, ::2, ::2], name="coarse"))

    assert encoder_with_gradients(shown("pixels"), sample, unit) is not None
    assert encoder_with_gradients(shown("mini"), sample, unit) is not None
    assert encoder_with_gradients(shown(own), sample, unit) is None  # no gradients
    assert encoder_with_gradients(replace(shown("mini"), encoder="pixels"), sample, unit) is None  # other statistics
    assert encoder_with_gradients(SERVER, sample, unit) is None  # no encoder of this name
    assert encoder_with_gradients(replace(SERVER, encoder="pixels"), sample, unit) is None


def test_pictures_do_not_depend_on_the_rows_beside_them():
    public, asked = AUXILIARY.of_domain("red"), features(victims(0), SERVER)
    made = inverter(public, SERVER)

    assert torch.equal(made(asked), torch.cat([made(row[None]) for row in asked]))


@pytest.mark.medium
def test_behind_noise_the_expected_row_before_it_is_matched():
    public, asked = AUXILIARY.of_domain("red"), features(victims(0), SERVER)
    made = inverter(public, replace(SERVER, defended=Noise(scale=1.0)))
    middle = made.residuals.styles.mean(0)
    plain = inverter(public, SERVER).residuals.targets(asked)

    drawn = made.residuals.targets(asked)

    assert made.residuals.defense_noise is not None
    assert float((drawn - middle).norm()) < 0.7 * float((plain - middle).norm())


@cache
def planted() -> tuple[StyleInversion, PositiveControl]:
    attack = StyleInversion(losses=(RETRIEVED,))
    return attack, attack.positive_control(SERVER, child_rng())


@pytest.mark.parametrize("encoder", ["planted thumbnails", "none"])
@pytest.mark.medium
def test_what_is_planted_is_found_beyond_every_control_with_gradients_and_by_ranking(encoder: str):
    attack, control = planted()
    known = replace(control.knowledge, encoder=encoder)
    prior = attack.inverter_cache(known, child_rng()).prior("intra", "planted", single=True)
    assert prior is not None
    assert (encoder_with_gradients(known, prior.images, torch.ones(1)) is None) == (encoder == "none")

    answers = attack.run(control.cases, known, child_rng(1))
    rows = Judge(bootstrap_repeats=300).measure(answers, control.cases, control.truths, child_rng(2))

    gains = {row.slice["over"]: row.low for row in rows if row.name == control.measurement}
    assert set(gains) == {"B0", "B1", "B2", "B3", "B4"}
    assert all(low is not None and low > control.at_least for low in gains.values())
    residual = {a.slice["of"]: a.value for a in answers if isinstance(a, Prediction) and a.name == "style_residual"}
    assert residual["picture"] < 0.5 * residual["nearest public picture"]


def test_exchanged_styles_find_nothing():
    attack, control = planted()
    answers = replace(attack, refinement=0).negative_control(control.cases, control.knowledge, child_rng(1))
    (null,) = Judge().null(answers, control.cases, control.truths, child_rng(2))

    assert null.name == "psnr"
    assert null.p_value > 0.05


def test_colorized_line_drawings_are_no_images_to_begin_at():
    attack, cases = replace(FOUND, priors=("intra", "third-party")), [image_rows(victims(0), "red")]

    assert {a.slice["prior"] for a in reconstructions(attack, cases, SERVER)} == {"intra"}
    (row,) = lacking(attack, cases, SERVER)
    assert row.slice == {"prior": "third-party", "domain": "red", "loss": RETRIEVED}
    assert "line drawings" in str(row.unavailable)


def test_a_client_that_released_too_many_rows_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch):
    profile = FOUND.PROFILES["quick"]
    effort = replace(profile.effort, retrieval=replace(OPTIONS, rows=5))
    monkeypatch.setattr(StyleInversion, "PROFILES", {"quick": replace(profile, effort=effort)})
    cases = [image_rows(victims(0), "red"), image_rows(victims(1, 4), "green")]

    assert {a.case for a in reconstructions(FOUND, cases, SERVER)} == {1}
    (row,) = lacking(FOUND, cases, SERVER)
    assert row.unavailable == "a client released 6 rows; retrieved draws at most 5"


def test_wrong_numbers_of_draws_and_images_are_refused():
    for wrong in ({"draws": -1}, {"refinement": -1}, {"auxiliary": (50, 4)}):
        with pytest.raises(UsageError, match="at least"):
            StyleInversion(**wrong)  # type: ignore[arg-type]


@pytest.mark.medium
def test_priors_of_fewer_images_are_nested_and_answer_once_more():
    attack, cases = replace(FOUND, losses=("mse",), auxiliary=(8, 12)), [image_rows(victims(0), "red")]
    cache_of = attack.inverter_cache(SERVER, child_rng())
    few, more, every = (cache_of.prior("intra", "red", single=True, images=n) for n in (8, 12, 0))
    assert few is not None
    assert more is not None
    assert every is not None

    answers = reconstructions(attack, cases, SERVER)

    assert (len(few.images), len(more.images), len(every.images)) == (8, 12, 16)
    assert set(few.images.ids) < set(more.images.ids) < set(every.images.ids)
    assert not set(every.images.ids) & set(victims(0).ids)
    assert [answer.slice.get("auxiliary") for answer in answers] == [None, 8, 12]
    assert torch.equal(answers[0].images, reconstructions(replace(attack, auxiliary=()), cases, SERVER)[0].images)
    assert not torch.equal(answers[1].images, answers[2].images)


def test_more_images_than_a_prior_has_are_reported():
    attack, cases = replace(FOUND, losses=("mse",), auxiliary=(8, 40)), [image_rows(victims(0), "red")]

    assert [answer.slice.get("auxiliary") for answer in reconstructions(attack, cases, SERVER)] == [None, 8]
    (row,) = lacking(attack, cases, SERVER)
    assert row.slice == {"prior": "intra", "domain": "red", "auxiliary": 40}
    assert row.unavailable == "the prior has 16 images"

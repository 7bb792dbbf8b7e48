"""A generator as the prior of pictures behind a gradient: it learns the adversary's images and is searched for others."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fdgsec.attacks.gradient_inversion.attack import GradientInversion
from fdgsec.attacks.gradient_inversion.control import planted_gradients
from fdgsec.attacks.gradient_inversion.image_prior import ImagePrior, fit_image_prior
from fdgsec.attacks.gradient_inversion.picture_search import search_latents, search_pictures, starting_point
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.metrics.image_similarity import psnr
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.answers import Reconstructions
from fdgsec.threats.judging.controls import positive_control
from fdgsec.threats.judging.judge import Judge
from tests.support.perturbation_generators import BLANK

SIDE = 16


def boards(count: int, seed: int) -> DomainDataset:
    """Pictures of six numbers each: the two colors of a board of fields of four pixels."""
    rng = torch.Generator().manual_seed(seed)
    first, second = torch.rand(2, count, 3, 1, 1, generator=rng)
    rows = torch.arange(SIDE) // 4
    colors = torch.where((rows.unsqueeze(1) + rows) % 2 == 0, first, second)
    return DomainDataset(
        name="boards", store=(colors * 255).round().to(torch.uint8), rows=torch.arange(count),
        labels=torch.zeros(count, dtype=torch.int64), domains=torch.zeros(count, dtype=torch.int64),
        ids=tuple(f"board {seed}/{number}" for number in range(count)), class_names=("board",), domain_names=("all",),
    )  # fmt: skip


@pytest.fixture(scope="module")
def prior() -> ImagePrior:
    return fit_image_prior(boards(60, 0), steps=150, rng=stream(0, "attack", "prior"))


@pytest.mark.slow
def test_it_draws_the_images_that_it_learned(prior: ImagePrior):
    true = as_float(boards(60, 0).pixels())
    with torch.no_grad():
        drawn = prior(prior.latents)
    assert drawn.shape == true.shape
    assert float((drawn - true).abs().mean()) < 0.3 * float((true.mean(0) - true).abs().mean())
    assert prior.learned == frozenset(boards(60, 0).ids)
    assert prior.latents.shape == (60, 6)  # as many numbers as its pictures have


def test_equal_streams_give_equal_priors_and_latents():
    few = boards(20, 1)
    first, second = (fit_image_prior(few, steps=3, rng=stream(5, "attack", "prior")) for _ in range(2))
    draws = [one.sampled(4, stream(6, "attack", "draw")) for one in (first, second)]
    assert torch.equal(first.latents, second.latents)
    assert torch.equal(*draws)
    assert torch.equal(first(draws[0]), second(draws[0]))


def test_sizes_that_are_no_power_of_two_are_enlarged():
    images = boards(20, 1)
    cut = images.pixels()[:, :, :12, :12]
    small = DomainDataset(
        name="small", store=cut, rows=torch.arange(20), labels=images.labels, domains=images.domains, ids=images.ids,
        class_names=images.class_names, domain_names=images.domain_names,
    )  # fmt: skip
    made = fit_image_prior(small, steps=2, rng=stream(0, "attack", "prior"))
    assert made(made.latents[:3]).shape == (3, 3, 12, 12)


def test_too_few_images_are_refused():
    with pytest.raises(UsageError, match="16 or more images"):
        fit_image_prior(boards(15, 0), steps=2, rng=stream(0, "attack", "prior"))


@pytest.mark.slow
def test_where_few_numbers_are_seen_the_generator_finds_the_picture_and_smoothness_does_not(prior: ImagePrior):
    """24 random sums over a picture's 768 numbers: many smooth pictures have them, and one of this family."""
    true = as_float(boards(6, 7).pixels())
    sums = torch.randn(24, true[0].numel(), generator=torch.Generator().manual_seed(3)) / SIDE

    def distance(images: Tensor) -> Tensor:
        return ((images - true).flatten(1) @ sums.T).square().mean()

    found = {}
    for name, given in (("smooth", None), ("generator", prior)):
        start, _ = starting_point(given, len(true), (SIDE, SIDE), stream(1, "attack", "start"))
        found[name] = search_pictures(distance, start, prior=given, steps=400, rate=0.05, variation=0.1)
    better = psnr(found["generator"], true) - psnr(found["smooth"], true)
    assert float(better.mean()) > 3
    assert float(distance(found["generator"])) < 0.02


@pytest.mark.slow
def test_the_prior_itself_stays_as_it_is(prior: ImagePrior):
    before = {name: value.clone() for name, value in prior.generator.state_dict().items()}
    start, _ = starting_point(prior, 2, (SIDE, SIDE), stream(2, "attack", "start"))
    search_latents(lambda images: images.square().mean(), prior, start, steps=10)
    assert all(torch.equal(value, before[name]) for name, value in prior.generator.state_dict().items())


@pytest.mark.slow
def test_both_priors_answer_under_their_names_and_pass_the_planted_control():
    attack = GradientInversion(steps=80, variation=0.05, priors=("smooth", "generator"), prior_steps=60)
    planted = planted_gradients(BLANK, stream(0, "attack"), batches=(1, 1), heads=0)
    answers = list(attack.run(planted.cases, planted.knowledge, stream(0, "attack", "run")))
    drawn = [answer.slice["prior"] for answer in answers if isinstance(answer, Reconstructions)]
    assert drawn == ["smooth", "smooth", "generator", "generator"]
    controls = positive_control(planted, answers, Judge(bootstrap_repeats=50), stream(0, "attack"))
    assert {row.measurement.slice["prior"] for row in controls} == {"smooth", "generator"}
    assert all(row.passed for row in controls), controls


def test_an_unknown_prior_is_refused():
    with pytest.raises(UsageError, match="smooth, generator"):
        GradientInversion(priors=("flow",))  # type: ignore[arg-type]


def test_with_few_public_images_the_generator_is_unavailable_and_smoothness_answers():
    attack = GradientInversion(steps=2, variation=0.05, priors=("smooth", "generator"))
    planted = planted_gradients(BLANK, stream(0, "attack"), batches=(1,), heads=0)
    few = planted.knowledge.public_images().subset(torch.arange(17))
    knowledge = replace(planted.knowledge, auxiliary=few)
    answers = attack.run(planted.cases, knowledge, stream(0, "attack", "run"))
    assert {answer.slice["prior"] for answer in answers} == {"smooth"}
    (row,) = attack.missing(planted.cases, knowledge)
    assert row.unavailable == "a generator learns from 18 or more public images; the adversary has 17"

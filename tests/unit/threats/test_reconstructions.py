"""Reconstructions judged: gains over blind guesses, ranks among candidates, and what cannot be measured."""

import pytest
import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset, downsample
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.answers import Answer, Reconstructions
from fdgsec.threats.attack import Case, Truth
from fdgsec.threats.judging.galleries import KEPT, Embedded, Lineup, squared_distances
from fdgsec.threats.judging.judge import Judge
from tests.support.judged import case, judged
from tests.support.one_domain import one_domain


def images(count: int, *, size: int = 24, seed: int = 0, ids: str = "x") -> DomainDataset:
    pixels = torch.randint(0, 256, (count, 3, size, size), generator=stream(seed, "attack"), dtype=torch.uint8)
    return one_domain(pixels, ids=ids)


class Brightness:
    name = "brightness"

    def __call__(self, first: Tensor, second: Tensor) -> Tensor:
        return (first.flatten(1).mean(1) - second.flatten(1).mean(1)).abs()


class Fussy:
    name = "fussy"

    def __call__(self, first: Tensor, second: Tensor) -> Tensor:
        raise ValueError(f"needs at least 64 px;\ngot {first.shape[-1]}.")


def reconstructions(
    true: DomainDataset, guessed: Tensor, **controls: Tensor
) -> tuple[list[Answer], list[Case], list[Truth]]:
    answer = Reconstructions(case=0, images=guessed, controls=controls)
    return [answer], [case(candidates=true)], [Truth(images=true.pixels(), rows=torch.arange(len(true)))]


def test_a_gain_is_positive_where_the_reconstruction_is_nearer_than_the_control():
    true = images(12)
    near, far = downsample(true.pixels(), (12, 12)), torch.rand(12, 3, 12, 12, generator=stream(5, "attack"))
    answers = reconstructions(true, near * 0.9, B0=near * 0.9, B1=far, B2=far, B3=near * 0.5, B4=far)

    rows = judged(*answers, Judge(perceptual=[Brightness()], bootstrap_repeats=300))

    for name in ("psnr_gain", "ssim_gain", "brightness_gain"):
        assert float(rows[name, "B3"].low or 0) > 0, name
        assert rows[name, "B3"].leaks
        assert rows[name, "B1"].verdict == rows[name, "B4"].verdict == "descriptive"
    assert rows["psnr_gain", "B0"].value == 0
    assert rows["psnr_gain", "B0"].verdict.startswith("undecided")


def test_the_rows_of_a_client_are_one_unit_of_gains_and_means():
    true = [images(10, seed=seed, ids=str(seed)) for seed in range(3)]
    small = [downsample(one.pixels(), (12, 12)) for one in true]
    answers = [
        Reconstructions(case=i, images=near * own, controls={"B3": near * other})
        for i, (near, own, other) in enumerate(zip(small, (0.9, 0.9, 0.7), (0.8, 0.8, 0.9), strict=True))
    ]
    truths = [Truth(images=one.pixels(), rows=torch.arange(10)) for one in true]

    rows = judged(answers, [case(candidates=one) for one in true], truths)

    gain, mean = rows["psnr_gain", "B3"], rows["psnr",]
    assert gain.method == mean.method == "cluster-bootstrap"
    assert gain.n == mean.n == 30
    assert None not in (gain.low, mean.low, mean.chance)
    assert float(gain.low or 0) < 0 < float(gain.value or 0)  # as thirty rows, 20 gains outweigh 10 losses
    assert not mean.leaks


def test_a_mean_psnr_excludes_that_of_its_control_only_where_the_gain_excludes_zero():
    true = images(12)
    small = downsample(true.pixels(), (12, 12))
    fade = torch.where(torch.arange(12) % 2 == 0, 0.2, 0.95).reshape(-1, 1, 1, 1)  # B3 is 14 dB worse or 10 dB better

    rows = judged(*reconstructions(true, small * 0.84, B3=small * fade))

    gain, mean = rows["psnr_gain", "B3"], rows["psnr",]
    assert None not in (mean.p_value, gain.p_value, mean.low, mean.chance, mean.value)
    assert (mean.value or 0) > (mean.chance or 0) + 1
    assert (mean.low or 0) <= (mean.chance or 0)
    assert mean.p_value == pytest.approx(gain.p_value)


def test_mean_psnr_and_its_chance_are_averages_over_images():
    true = images(6)
    small = downsample(true.pixels(), (8, 8))
    guessed = small * torch.linspace(0.5, 0.9, 6).reshape(-1, 1, 1, 1)

    rows = judged(*reconstructions(true, guessed, B3=torch.zeros_like(small)))

    by_hand = [-10 * float(torch.log10((a - b).square().mean())) for a, b in zip(guessed, small, strict=True)]
    blind = [-10 * float(torch.log10(b.square().mean())) for b in small]
    assert rows["psnr",].value == pytest.approx(sum(by_hand) / 6, abs=1e-4)
    assert rows["psnr",].chance == pytest.approx(sum(blind) / 6, abs=1e-4)
    assert str(rows["ssim",].unavailable).startswith("SSIM needs images of at least 11 px")


def test_the_true_image_is_ranked_among_candidates_of_the_reconstructions_size():
    true = images(20)

    rows = judged(*reconstructions(true, downsample(true.pixels(), (12, 12)), B3=torch.zeros(20, 3, 12, 12)))

    assert rows["gallery_top1", "mse"].value == 1
    assert rows["gallery_top1", "mse"].chance == 1 / 20
    assert rows["median_rank", "mse"].value == 1


def test_a_perceptual_lineup_is_blind_chance_for_a_constant_reconstruction():
    true = images(30)
    judge = Judge(perceptual=[Brightness()], bootstrap_repeats=300, lineup=Lineup(rows=16, candidates=10))

    rows = judged(*reconstructions(true, torch.zeros(30, 3, 12, 12)), judge)

    assert rows["gallery_top1", "brightness"].chance == 1 / 10
    assert rows["gallery_top1", "brightness"].n == 16


def test_images_too_small_for_a_distance_are_a_reason_not_an_error():
    rows = judged(
        *reconstructions(images(5), torch.zeros(5, 3, 12, 12)), Judge(perceptual=[Fussy()], bootstrap_repeats=300)
    )

    assert rows["fussy",].unavailable == "needs at least 64 px; got 12."
    assert rows["gallery_top1", "fussy"].value is None


def test_area_shrinking_averages_the_pixels_that_it_covers():
    pixels = images(2, size=6).pixels()

    small = downsample(pixels, (3, 3))

    by_hand = pixels[1, 2, 2:4, 4:6].float().mean() / 255
    assert float(small[1, 2, 1, 2]) == pytest.approx(float(by_hand), abs=1e-6)


def test_squared_distances_agree_with_subtraction():
    first, second = (torch.rand(n, 3, 5, 5, generator=stream(n, "attack")) for n in (70, 9))

    found = squared_distances(first, second)

    by_hand = (first.unsqueeze(1) - second).double().square().flatten(2).sum(2)
    assert torch.allclose(found.double(), by_hand, atol=1e-4)  # float32 sums of 75 terms below 1


def test_equal_pictures_are_embedded_once_and_the_last_used_are_kept():
    seen: list[int] = []

    def embed(pictures: Tensor) -> Tensor:
        seen.append(len(pictures))
        return pictures.mean((2, 3))

    embedder = Embedded(embed=embed)
    pictures = torch.rand(3, 3, 4, 4, generator=stream(0, "world", "pictures"))
    repeated = pictures[[0, 1, 0, 0]]

    assert torch.equal(embedder(repeated), repeated.mean((2, 3)))
    assert torch.equal(embedder(pictures), pictures.mean((2, 3)))
    assert seen == [2, 1]

    for number in range(KEPT):
        embedder(torch.full((1, 3, 4, 4), number / KEPT))
    assert len(embedder.kept) == KEPT

"""Exposure, client sizes and palettes judged, and the order of rows."""

import pytest
import torch
from scipy.stats import wasserstein_distance

from fdgsec.attacks.pool_exposure.row_order import lag_correlation, neighbor_distances
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.answers import Exposure, InferredSize, Palettes
from fdgsec.threats.attack import Truth
from fdgsec.threats.judging.judge import Judge
from fdgsec.threats.judging.palettes import gaussian_palettes, palette_distances, palettes_of
from tests.support.judged import case, judged


def test_exposure_counts_images_that_were_rightly_called_published():
    members = torch.tensor([True, True, True, False, False, False, False, False])
    said = torch.tensor([True, True, False, True, False, False, False, False])
    answers = [Exposure(case=i, published=said, images=4) for i in range(3)]

    row = judged(answers, [case(question="rounds")] * 3, [Truth(members=members)] * 3)["exposed_fraction",]

    assert row.value == 2 / 4
    assert row.chance == pytest.approx(3 * (3 / 8) / 4)  # three of eight candidates named, three of eight are members
    assert row.n == 12
    assert row.low is not None
    assert row.high is not None
    assert row.low < 0.4
    assert row.high > 0.6


@pytest.mark.medium
def test_the_interval_of_exposure_holds_what_was_to_be_expected_95_times_in_100():
    held, n, k, rounds = 0, 40, 4, 10
    expected = 1 - (1 - k / n) ** rounds

    for seed in range(100):
        rng = stream(seed, "attack")
        answers, truths = [], []
        for number in range(10):
            members = torch.zeros(2 * n, dtype=torch.bool)
            for _ in range(rounds):
                members[torch.randperm(n, generator=rng)[:k]] = True
            answers.append(Exposure(case=number, published=members, images=n))
            truths.append(Truth(members=members))
        row = judged(answers, [case()] * 10, truths)["exposed_fraction",]
        assert row.low is not None
        assert row.high is not None
        held += row.low <= expected <= row.high

    assert held >= 90  # 95% less two standard deviations of 100 draws


def test_one_client_is_bounded_by_its_images_alone():
    members = torch.arange(8) < 4

    row = judged([Exposure(case=0, published=members, images=4)], [case()], [Truth(members=members)])[
        "exposed_fraction",
    ]

    assert (row.value, row.method) == (1, "clopper-pearson")


def test_exposure_without_a_truth_says_so_and_one_of_another_shape_is_a_fault():
    said = torch.zeros(8, dtype=torch.bool)

    row = judged([Exposure(case=0, published=said, images=4)], [case()], [Truth()])["exposed_fraction",]

    assert "nobody knows what client:1 published" in str(row.unavailable)
    with pytest.raises(ValueError, match="published must be"):
        judged([Exposure(case=0, published=said, images=4)], [case()], [Truth(members=torch.ones(7).bool())])
    with pytest.raises(ValueError, match="images at least 8"):
        judged([Exposure(case=0, published=said, images=4)], [case()], [Truth(members=torch.ones(8).bool())])


def test_an_inferred_size_stands_beside_the_guess_without():
    cases = [case(slice={"domain": "photo", "n_per_client": 40})] * 7
    answers = [InferredSize(case=i, images=size, without=72.0) for i, size in enumerate([40, 40, 44, 38, 40, 41, 30])]

    (row,) = judged(answers, cases, [Truth()] * 7).values()

    assert (row.name, row.value, row.chance) == ("relative_error", pytest.approx(1 / 40), pytest.approx(0.8))
    assert row.higher_is == "safe"
    assert row.leaks


def test_a_size_that_no_slice_tells_is_unavailable():
    (row,) = judged([InferredSize(case=0, images=4.0, without=3.0)], [case()], [Truth()]).values()

    assert "nobody knows the size" in str(row.unavailable)


def test_palettes_are_the_quantiles_of_the_pixels():
    images = torch.randint(0, 256, (3, 3, 20, 30), generator=stream(0, "attack")).to(torch.uint8)

    found = palettes_of(images, count=50)

    flat = images.flatten(2).double().sort(2).values / 255
    for number in range(50):
        place = 12 * number + 6 - 1  # of 600 pixels, 12 k + 6 are the share (k + .5) / 50
        assert torch.allclose(found[:, :, number], flat[:, :, place], rtol=0, atol=1e-12)


def test_their_distance_is_the_earth_movers_of_the_histograms():
    images = torch.randint(0, 256, (2, 3, 40, 40), generator=stream(0, "attack")).to(torch.uint8)
    images[1] //= 2
    flat = images.flatten(2).double() / 255
    by_scipy = sum(wasserstein_distance(flat[0, c].numpy(), flat[1, c].numpy()) for c in range(3)) / 3

    apart = palette_distances(palettes_of(images), palettes_of(images))

    assert float(apart[0, 1]) == pytest.approx(by_scipy, abs=1 / 128)  # half a part of 64
    assert apart.diagonal().tolist() == [0, 0]


def test_the_palette_of_gaussian_pixels_follows_from_mean_and_std():
    pixels = (0.5 + 0.1 * torch.randn(1, 3, 200, 200, generator=stream(0, "attack"))).clamp(0, 1)
    images = (255 * pixels).round().to(torch.uint8)

    closed = gaussian_palettes(torch.full((1, 3), 0.5), torch.full((1, 3), 0.1))

    assert float(palette_distances(closed, palettes_of(images))) < 0.003  # a 255th of rounding
    assert float(gaussian_palettes(torch.ones(1, 3), torch.ones(1, 3)).max()) == 1


def pictures(count: int = 12) -> torch.Tensor:
    """One-colored images of random colors."""
    colors = torch.randint(0, 256, (count, 3, 1, 1), generator=stream(4, "attack"))
    return colors.expand(-1, -1, 8, 8).to(torch.uint8)


def test_true_palettes_leak_and_the_public_guess_does_not():
    images = pictures()
    true, blind = palettes_of(images), palettes_of(images).quantile(0.5, dim=0)
    truth = Truth(images=images, domains=torch.zeros(12, dtype=torch.int64))

    told = judged([Palettes(case=0, palettes=true, without=blind)], [case()], [truth])
    untold = judged([Palettes(case=0, palettes=blind.expand_as(true), without=blind)], [case()], [truth])

    assert told["palette_emd",].value == 0
    assert told["palette_emd",].verdict == "descriptive"
    assert told["palette_emd_gain", "public median"].leaks
    assert untold["palette_emd_gain", "public median"].value == 0
    assert untold["palette_emd_gain", "public median"].verdict.startswith("undecided")
    assert untold["palette_emd_gain", "random image"].higher_is == "descriptive"  # whatever is median beats that


@pytest.mark.parametrize(("third", "leaks"), [(0.5, False), (0.1, True)])
def test_the_rows_of_a_client_are_one_unit_of_a_palette_gain(third: float, leaks: bool):
    gray = [torch.full((10, 3, 8, 8), 51, dtype=torch.uint8) for _ in range(3)]  # 51 is .2
    answers = [
        Palettes(case=i, palettes=torch.full((10, 3, 4), guess), without=torch.full((3, 4), 0.4))
        for i, guess in enumerate((0.1, 0.101, third))  # off by .1, .099 and more or as much; the others by .2
    ]

    row = judged(answers, [case() for _ in gray], [Truth(images=one) for one in gray])[
        "palette_emd_gain", "public median"
    ]

    assert row.value == pytest.approx((0.1 + 0.101 + (0.1 if leaks else -0.1)) / 3)
    assert row.method == "cluster-bootstrap"
    assert row.leaks == leaks


def test_another_image_is_one_of_the_same_domain():
    images = pictures(4)
    images[2:] = 255  # two images of one domain that do not differ
    truth = Truth(images=images, domains=torch.tensor([0, 0, 1, 1]))
    true = palettes_of(images)

    rows = judged([Palettes(case=0, palettes=true, without=true[0])], [case()], [truth])

    apart = float((true[0] - true[1]).abs().mean())
    assert rows["palette_emd",].chance == pytest.approx(apart / 2)


def test_a_lone_image_has_no_other_to_be_compared_with():
    images = pictures(1)
    answer = Palettes(case=0, palettes=palettes_of(images), without=torch.zeros(3, 64))

    rows = judged([answer], [case()], [Truth(images=images)])

    assert rows["palette_emd",].chance_kind == "none"
    assert ("palette_emd_gain", "random image") not in rows


def test_palettes_that_cannot_be_judged_say_why():
    images = pictures(2)
    fine = Palettes(case=0, palettes=palettes_of(images), without=torch.zeros(3, 64))
    none = Palettes(case=0, palettes=torch.zeros(0, 3, 64), without=torch.zeros(3, 64))

    assert "no true image" in str(judged([fine], [case()], [Truth()])["palette_emd",].unavailable)
    assert "no row" in str(judged([none], [case()], [Truth(images=images[:0])])["palette_emd",].unavailable)
    with pytest.raises(ValueError, match="palettes must be"):
        judged([fine], [case()], [Truth(images=images[:1])])


def test_a_null_test_of_these_answers_gives_no_row():
    answer = Exposure(case=0, published=torch.ones(2).bool(), images=2)

    assert Judge().null([answer], [case()], [Truth(members=torch.ones(2).bool())], stream(0, "attack")) == []


def test_sorted_rows_are_alike_and_shuffled_ones_are_not():
    rng = stream(0, "attack")
    ordered = torch.arange(40.0).unsqueeze(1) + torch.randn(40, 4, generator=rng)

    correlation, p_value = lag_correlation(ordered, rng=rng)
    p_values = [lag_correlation(ordered[torch.randperm(40, generator=rng)], rng=rng)[1] for _ in range(100)]

    assert correlation > 0.8
    assert p_value == 1 / 1000
    assert sum(p <= 0.05 for p in p_values) <= 10  # P(more | 5%) = 1.1%


def test_the_lag_one_autocorrelation_is_the_mean_product_of_neighbors():
    rows = torch.randn(6, 3, generator=stream(1, "attack"), dtype=torch.float64)
    z = (rows - rows.mean(0)) / rows.std(0, correction=0)
    by_hand = sum(float(z[i] @ z[i + 1]) / 3 for i in range(5)) / 5

    assert lag_correlation(rows, rng=stream(0, "attack"))[0] == pytest.approx(by_hand)


def test_a_candidate_is_compared_with_the_rows_before_and_after():
    rows = torch.randn(5, 3, generator=stream(1, "attack"), dtype=torch.float64)
    known = torch.randn(7, 3, generator=stream(2, "attack"), dtype=torch.float64)
    scale, center = known.std(0, correction=0), known.mean(0)
    z, c = (rows - center) / scale, (known - center) / scale

    found = neighbor_distances(rows, known)

    for row in range(5):
        beside_it = [i for i in (row - 1, row + 1) if 0 <= i < 5]
        by_hand = [sum(float((z[i] - c[g]).norm()) for i in beside_it) / len(beside_it) for g in range(7)]
        assert found[row].tolist() == pytest.approx(by_hand)


def test_two_rows_have_no_order_to_speak_of():
    with pytest.raises(ValueError, match="three rows"):
        neighbor_distances(torch.zeros(2, 3), torch.zeros(4, 3))
    with pytest.raises(ValueError, match="three rows"):
        lag_correlation(torch.zeros(2, 3), rng=stream(0, "attack"))

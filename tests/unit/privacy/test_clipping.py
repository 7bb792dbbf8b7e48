"""Regions hold every row, also rows that are not finite or too large for float64, and leave the rows inside alone."""

import math

import pytest
import torch
from torch import Tensor

from fdgsec.federation.public_clip_bounds import color_spaces
from fdgsec.privacy.clipping import (
    SMALLEST_SCALE,
    Ball,
    HalfDiscs,
    Region,
    ball_of,
    clip_rows,
    count_weight,
    finite_rows,
    sensitivity_of_client,
    sensitivity_of_mean,
    sensitivity_of_rows,
    sensitivity_of_sum_and_count,
)

BALL = Ball(center=torch.tensor([1.0, -2.0]).double(), scale=torch.tensor([2.0, 0.5]).double(), bound=3.0)
DISCS = HalfDiscs(mean=torch.tensor([0.4, 0.5]).double(), std=torch.tensor([0.25, 0.5]).double())


def row(*numbers: float) -> Tensor:
    return torch.tensor([numbers], dtype=torch.float64)


@pytest.mark.parametrize("size", [0.999, 1.0, 1.0 + 1e-9, 1.001, 2.0, 1e200, 1e308])
def test_no_row_is_longer_than_the_bound_and_shorter_ones_stay(size: float):
    given = row(0.6, 0.8) * size

    (clipped,) = clip_rows(given, 1.0)

    assert float(clipped.norm()) <= 1.0
    assert float(clipped.norm()) == pytest.approx(min(size, 1.0), rel=1e-11)
    assert torch.equal(clipped, given[0]) == (size < 1)
    torch.testing.assert_close(clipped / clipped.norm(), torch.tensor([0.6, 0.8]).double())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_with_one_number_that_is_not_finite_becomes_zeros_and_others_stay(bad: float):
    rows = torch.tensor([[bad, 0.1], [0.1, bad], [0.1, 0.2], [bad, bad]], dtype=torch.float64)
    kept = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.1, 0.2], [0.0, 0.0]], dtype=torch.float64)

    assert torch.equal(clip_rows(rows, 1.0), kept)
    assert torch.equal(finite_rows(rows), kept)


def test_zeros_and_the_smallest_numbers_pass_a_clip():
    tiny = row(0.0, 5e-324)

    assert torch.equal(clip_rows(row(0.0, 0.0), 1.0), row(0.0, 0.0))
    assert torch.equal(clip_rows(tiny, 1.0), tiny)


def test_rows_of_any_leading_shape_are_clipped_each_by_itself():
    rows = torch.tensor([[[3.0, 4.0], [0.3, 0.4]], [[0.0, 0.0], [0.0, -9.0]]], dtype=torch.float64)

    lengths = clip_rows(rows, 2.0).norm(dim=-1)

    torch.testing.assert_close(lengths, torch.tensor([[2.0, 0.5], [0.0, 2.0]]).double())


def test_a_balls_coordinates_are_distances_from_its_center_in_its_units():
    inside, outside = row(3.0, -1.75), row(1.0, -2.0 + 0.5 * 12.0)

    assert torch.equal(BALL.inside(inside), row(1.0, 0.5))
    assert torch.equal(BALL.values(row(1.0, 0.5)), inside)
    torch.testing.assert_close(BALL.values(BALL.inside(outside)), row(1.0, -2.0 + 0.5 * 3.0), rtol=1e-11, atol=0)
    assert (BALL.radius, BALL.diameter) == (3.0, 6.0)
    assert BALL.inside(inside.float()).dtype == torch.float64


@pytest.mark.parametrize(("bound", "scale"), [(0.0, 1.0), (-1.0, 1.0), (math.nan, 1.0), (1.0, 0.0), (1.0, -2.0)])
def test_a_ball_that_holds_nothing_is_refused(bound: float, scale: float):
    with pytest.raises(ValueError, match="a ball needs a bound and scales above 0"):
        Ball(center=torch.zeros(2).double(), scale=torch.tensor([1.0, scale]).double(), bound=bound)


def test_half_discs_are_as_wide_as_black_is_from_white():
    assert DISCS.diameter == pytest.approx(math.sqrt(16 + 4), rel=1e-15)
    assert DISCS.radius == pytest.approx(math.sqrt(20) / 2, rel=1e-15)


@pytest.mark.parametrize("space", [DISCS, *color_spaces()])
def test_a_row_that_is_not_finite_becomes_the_center_of_the_half_discs(space: HalfDiscs):
    gray = torch.cat([(0.5 - space.mean) / space.std, torch.zeros_like(space.std)])
    rows = gray.repeat(3, 1)
    rows[0, 0], rows[1, -1], rows[2, 0] = math.nan, math.inf, -math.inf

    torch.testing.assert_close(space.inside(rows), torch.zeros_like(rows), rtol=0, atol=1e-15)
    torch.testing.assert_close(space.values(space.inside(rows)), gray.repeat(3, 1))


def test_each_channels_mean_and_std_are_shortened_together_and_a_std_below_0_is_0():
    plain = HalfDiscs(mean=torch.zeros(2).double(), std=torch.ones(2).double())

    found = plain.inside(row(0.5 + 3.0, 0.6, 4.0, -1.0))

    torch.testing.assert_close(found, row(0.3, 0.1, 0.4, 0.0), rtol=1e-11, atol=1e-12)
    assert float(found[0, [0, 2]].norm()) <= 0.5


@pytest.mark.parametrize("region", [BALL, DISCS])
def test_coordinates_survive_the_way_to_values_and_back(region: Region):
    coordinates = 0.1 * torch.rand(5, 2 * (1 + (region is DISCS)), generator=torch.Generator().manual_seed(0)).double()

    torch.testing.assert_close(region.inside(region.values(coordinates)), coordinates, rtol=1e-9, atol=1e-12)


def test_a_public_ball_has_the_mean_and_the_units_of_its_rows():
    public = torch.tensor([[0.0, 10.0, 5.0], [2.0, 14.0, 5.0], [4.0, 18.0, 5.0]], dtype=torch.float32)
    spread = public.double().std(0, correction=0)

    ball = ball_of(public, bound=None)

    assert torch.equal(ball.center, torch.tensor([2.0, 14.0, 5.0]).double())
    # the constant third number is measured in a tenth of the median unit of those that vary
    median = float(spread[:2].median())
    torch.testing.assert_close(ball.scale, torch.tensor([*spread[:2].tolist(), SMALLEST_SCALE * median]).double())
    assert SMALLEST_SCALE == 0.1
    lengths = ((public.double() - ball.center) / ball.scale).norm(dim=1)
    assert ball.bound == pytest.approx(float(lengths.quantile(0.95)), rel=1e-12)
    assert ball_of(public, bound=None, quantile=0.5).bound == pytest.approx(float(lengths.median()), rel=1e-12)


def test_a_public_ball_takes_what_it_is_told():
    public = torch.tensor([[0.0, 10.0], [2.0, 14.0]])

    told = ball_of(public, bound=7.0, centered=False, scaled=False)

    assert told.bound == 7.0
    assert torch.equal(told.center, torch.zeros(2).double())
    assert torch.equal(told.scale, torch.ones(2).double())
    assert ball_of(public, bound=None, centered=False, scaled=False, quantile=1.0).bound == pytest.approx(
        math.sqrt(200)
    )


def test_public_rows_that_are_all_alike_still_make_a_ball():
    ball = ball_of(torch.full((2, 3), 4.0), bound=None)

    assert torch.equal(ball.scale, torch.ones(3).double())
    assert 0 < ball.bound < 1e-4


@pytest.mark.parametrize("public", [torch.zeros(1, 3), torch.zeros(3), torch.zeros(0, 3), torch.zeros(2, 2, 2)])
def test_fewer_than_two_public_rows_are_refused(public: Tensor):
    with pytest.raises(ValueError, match="at least two rows"):
        ball_of(public, bound=1.0)


@pytest.mark.parametrize("region", [BALL, DISCS])
def test_sensitivities_are_those_of_the_region(region: Region):
    radius, diameter = region.radius, region.diameter

    assert sensitivity_of_mean(region, 4) == {"replace-one": diameter / 4, "zero-out": radius / 4}
    assert sensitivity_of_rows(region) == {"replace-one": diameter, "zero-out": radius}
    assert sensitivity_of_client(region, 9) == {"replace-one": 3 * diameter, "zero-out": 3 * radius}
    assert sensitivity_of_sum_and_count(region) == pytest.approx(
        {"replace-one": diameter, "zero-out": radius, "add-remove": radius * math.sqrt(1.5)}
    )
    assert count_weight(region) == pytest.approx(radius / math.sqrt(2))

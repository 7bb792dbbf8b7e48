"""Every sensitivity is searched for a violation: hypothesis steers toward pairs of neighbors that lie far apart.

Each example holds 250 pairs, each search 60 examples: 15,000 pairs per sensitivity."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings, target
from hypothesis import strategies as st
from torch import Tensor

from fdgsec.federation.public_clip_bounds import Frame, Reference, color_spaces
from fdgsec.federation.released_statistics import PooledStyles, ReleasedStatistic, StyleDistributions
from fdgsec.privacy.clipping import (
    Ball,
    HalfDiscs,
    Region,
    count_weight,
    sensitivity_of_client,
    sensitivity_of_mean,
    sensitivity_of_rows,
    sensitivity_of_sum_and_count,
)
from fdgsec.runtime.random_streams import stream

PAIRS, EXAMPLES = 250, 60
ROUNDING = 1 + 1e-12
search = settings(
    deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow], derandomize=True, database=None
)
seeds = st.integers(0, 10**6)
magnitudes = st.sampled_from([1e-6, 1e-3, 0.1, 0.5, 1.0, 1.5, 10.0, 1e3, 1e8])
"""How far records lie out, in units of the bound."""
shapes_of_pairs = st.sampled_from(["independent", "opposite", "alike", "orthogonal", "one axis"])


def drawn(seed: int, *size: int) -> Tensor:
    return torch.randn(*size, generator=stream(seed, "world", "pairs"), dtype=torch.float64)


@st.composite
def balls(draw: st.DrawFn) -> tuple[Ball, int]:
    dimension = draw(st.sampled_from([1, 2, 3, 17, 256]))
    seed = draw(seeds)
    scale = drawn(seed, dimension).exp() if draw(st.booleans()) else torch.ones(dimension, dtype=torch.float64)
    bound = draw(st.sampled_from([1e-3, 0.3, 1.0, 100.0, 1e5]))
    return Ball(center=5 * drawn(seed + 1, dimension), scale=scale, bound=bound), dimension


@st.composite
def neighbors(draw: st.DrawFn, dimension: int) -> tuple[Tensor, Tensor]:
    """Two rows (PAIRS, D) in units of the bound: what one record was, and what it becomes."""
    seed, kind = draw(seeds), draw(shapes_of_pairs)
    first, other = drawn(seed, PAIRS, dimension), drawn(seed + 1, PAIRS, dimension)
    if kind == "opposite":
        other = -first
    elif kind == "alike":
        other = first + 1e-3 * other
    elif kind == "orthogonal":
        other = other - (other * first).sum(1, keepdim=True) / first.square().sum(1, keepdim=True) * first
    elif kind == "one axis":
        first[:, 1:], other[:, 1:] = 0, 0
    return draw(magnitudes) * first, draw(magnitudes) * other


def worst(distances: Tensor, sensitivity: float, label: str) -> None:
    ratio = float(distances.max()) / sensitivity
    target(min(ratio, 2.0), label=label)
    assert ratio <= ROUNDING, f"{label}: {ratio} of the sensitivity"


def distance(first: Tensor, second: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm((first - second).flatten(1), dim=1)
    return lengths


@search
@given(balls(), st.data(), st.integers(1, 40))
def test_a_mean_moves_by_no_more_than_its_sensitivity(made: tuple[Ball, int], data: st.DataObject, count: int):
    ball, dimension = made
    was, becomes = (ball.values(ball.bound * rows) for rows in data.draw(neighbors(dimension)))
    rest = ball.inside(ball.values(ball.bound * drawn(data.draw(seeds), count - 1, dimension))).sum(0)
    known = sensitivity_of_mean(ball, count)

    before, after = (ball.inside(rows) + rest for rows in (was, becomes))
    without = rest.expand_as(before)

    worst(distance(before / count, after / count), known["replace-one"], "mean, replace-one")
    worst(distance(before / count, without / count), known["zero-out"], "mean, zero-out")


@search
@given(balls(), st.data(), st.integers(1, 40))
def test_a_sum_and_a_count_move_by_no_more_than_their_sensitivity(
    made: tuple[Ball, int], data: st.DataObject, count: int
):
    ball, dimension = made
    was, becomes = (ball.values(ball.bound * rows) for rows in data.draw(neighbors(dimension)))
    rest = ball.inside(ball.values(ball.bound * drawn(data.draw(seeds), count - 1, dimension))).sum(0)
    known, weight = sensitivity_of_sum_and_count(ball), count_weight(ball)

    def released(rows: Tensor, number: int) -> Tensor:
        return torch.cat([rows, torch.full((PAIRS, 1), weight * number, dtype=torch.float64)], dim=1)

    before, after = released(ball.inside(was) + rest, count), released(ball.inside(becomes) + rest, count)
    nulled, left = released(rest.expand(PAIRS, -1), count), released(rest.expand(PAIRS, -1), count - 1)

    worst(distance(before, after), known["replace-one"], "sum, replace-one")
    worst(distance(before, nulled), known["zero-out"], "sum, zero-out")
    worst(distance(before, left), known["add-remove"], "sum, add-remove")


@search
@given(balls(), st.data())
def test_a_row_moves_by_no_more_than_its_sensitivity(made: tuple[Ball, int], data: st.DataObject):
    ball, dimension = made
    was, becomes = (ball.inside(ball.values(ball.bound * rows)) for rows in data.draw(neighbors(dimension)))
    known = sensitivity_of_rows(ball)

    worst(distance(was, becomes), known["replace-one"], "row, replace-one")
    worst(was.norm(dim=1), known["zero-out"], "row, zero-out")


@search
@given(balls(), st.data(), st.integers(1, 6))
@pytest.mark.medium
def test_a_whole_client_moves_by_no_more_than_its_sensitivity(made: tuple[Ball, int], data: st.DataObject, rows: int):
    ball, dimension = made
    both = [data.draw(neighbors(dimension)) for _ in range(rows)]
    was, becomes = (
        torch.stack([ball.inside(ball.values(ball.bound * pair[side])) for pair in both], dim=1) for side in (0, 1)
    )
    known = sensitivity_of_client(ball, rows)

    worst(distance(was, becomes), known["replace-one"], "client, replace-one")
    worst(distance(was, torch.zeros_like(was)), known["zero-out"], "client, zero-out")


@st.composite
def pictures(draw: st.DrawFn) -> Tensor:
    """Images (PAIRS, 3, pixels) in [0, 1]: flat ones, black and white ones of any share, and what lies between."""
    seed, pixels = draw(seeds), draw(st.sampled_from([4, 9, 64, 1024]))
    noise = drawn(seed, PAIRS, 3, pixels)
    kind = draw(st.sampled_from(["black and white", "flat", "gray", "channels apart"]))
    share = torch.rand(PAIRS, 1, 1, generator=stream(seed, "world", "share"), dtype=torch.float64)
    if kind == "flat":
        return share.round(decimals=draw(st.integers(0, 3))).expand(PAIRS, 3, pixels)
    if kind == "gray":
        return torch.sigmoid(draw(magnitudes) * noise)
    wanted = share if kind == "black and white" else share.expand(PAIRS, 3, 1) * torch.tensor([[[0.0], [1.0], [0.5]]])
    return (torch.special.ndtr(noise) < wanted).double()


def color_rows(images: Tensor, space: HalfDiscs, *, correction: int, eps: float) -> Tensor:
    inputs = (images - space.mean[:, None]) / space.std[:, None]
    return torch.cat([inputs.mean(2), (inputs.var(2, correction=correction) + eps).sqrt()], dim=1)


@search
@given(pictures(), pictures(), st.integers(0, 1), st.sampled_from([0.0, 1e-6, 1e-5]), st.sampled_from(color_spaces()))
@pytest.mark.medium
def test_color_statistics_of_any_two_images_lie_within_a_half_disc_per_channel(
    first: Tensor, second: Tensor, correction: int, eps: float, space: HalfDiscs
):
    rows = [color_rows(images, space, correction=correction, eps=eps) for images in (first, second)]

    worst(distance(*rows), space.diameter, "raw colors")
    worst(distance(*(space.inside(found) for found in rows)), space.diameter, "colors, replace-one")
    worst(space.inside(rows[0]).norm(dim=1), space.radius, "colors, zero-out")


@search
@given(seeds, seeds, magnitudes, magnitudes, st.sampled_from(color_spaces()))
def test_the_bound_on_colors_holds_for_rows_that_are_of_no_image(
    seed: int, other: int, size: float, other_size: float, space: HalfDiscs
):
    first, second = (m * drawn(s, PAIRS, 6) for s, m in ((seed, size), (other, other_size)))

    worst(distance(space.inside(first), space.inside(second)), space.diameter, "any colors, replace-one")
    worst(space.inside(first).norm(dim=1), space.radius, "any colors, zero-out")


@search
@given(seeds, st.data(), st.integers(1, 20), st.booleans(), st.booleans())
def test_a_distribution_of_styles_moves_by_no_more_than_its_sensitivity(
    seed: int, data: st.DataObject, count: int, released: bool, scaled: bool
):
    channels, released_statistic = 5, StyleDistributions(released=released)
    public = statistics(released_statistic, drawn(seed, 40, 2 * channels))
    about = public.mean(0)
    region = Reference(scaled=scaled).ball(released_statistic.about(public, about))
    frame = Frame(released_statistic=released_statistic, about=about, region=region)
    was, becomes = (statistics(released_statistic, rows) for rows in data.draw(neighbors(2 * channels)))
    rest = frame.coordinates(statistics(released_statistic, drawn(seed + 1, count - 1, 2 * channels))).sum(0)
    known = sensitivity_of_mean(region, count)

    before, after = ((frame.coordinates(rows) + rest) / count for rows in (was, becomes))

    worst(distance(before, after), known["replace-one"], "distribution, replace-one")
    worst(distance(before, (rest / count).expand_as(before)), known["zero-out"], "distribution, zero-out")


def statistics(released_statistic: ReleasedStatistic, styles: Tensor) -> Tensor:
    """t of images whose (mu, sigma) are `styles` (n, 2C), sigma of either sign folded to one."""
    mean, std = styles.chunk(2, dim=1)
    both = torch.cat([mean, std.abs()], dim=1)
    if isinstance(released_statistic, PooledStyles):
        return torch.cat([mean, std.square() + mean.square()], dim=1)
    return torch.cat([both, both.square()], dim=1)


def everywhere(bound: float, dimension: int) -> Ball:
    one = torch.ones(dimension, dtype=torch.float64)
    return Ball(center=0 * one, scale=one, bound=bound)


@pytest.mark.parametrize("count", [1, 7, 100])
def test_two_far_records_on_opposite_sides_attain_the_bound_on_a_mean(count: int):
    ball = everywhere(3.0, 4)
    far = torch.tensor([[9.0, 0, 0, 0]], dtype=torch.float64)

    moved = float((ball.inside(far) - ball.inside(-far)).norm()) / count

    assert moved == pytest.approx(sensitivity_of_mean(ball, count)["replace-one"])
    assert sensitivity_of_mean(ball, count)["replace-one"] == 6.0 / count


def test_a_far_record_that_joins_attains_the_bound_on_sum_and_count():
    ball = everywhere(3.0, 4)

    joined = math.hypot(float(ball.inside(torch.full((4,), 50.0)).norm()), count_weight(ball))

    assert joined == pytest.approx(sensitivity_of_sum_and_count(ball)["add-remove"])
    assert count_weight(ball) == pytest.approx(3.0 / math.sqrt(2))


def test_black_and_white_attain_the_bound_on_colors():
    network, plain = color_spaces()
    black, white = torch.zeros(1, 3, 16, dtype=torch.float64), torch.ones(1, 3, 16, dtype=torch.float64)

    apart = [
        float(
            (color_rows(black, space, correction=0, eps=0.0) - color_rows(white, space, correction=0, eps=0.0)).norm()
        )
        for space in (network, plain)
    ]

    assert apart == pytest.approx([network.diameter, plain.diameter])
    assert apart == pytest.approx([7.665, math.sqrt(3)], abs=5e-4)


@pytest.mark.parametrize("region", [everywhere(2.0, 3), *color_spaces()])
def test_what_lies_inside_a_region_stays_as_it_is(region: Region):
    dimension = 3 if isinstance(region, Ball) else 6
    rows = 0.01 * drawn(3, 20, dimension).abs()
    values = region.values(rows)

    torch.testing.assert_close(region.values(region.inside(values)), values, rtol=0, atol=1e-12)

"""The figures of a sweep: what they show, and what they must bear."""

import math
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.axes._base import _AxesBase

from fdgsec.experiments.sweep.plots import OptionAxis, against_option, figures, pareto
from tests.support.swept import curve

NOISE = {None: 1.0, 0.01: 1.0, 0.1: 0.9, 1.0: 0.4, 10.0: 0.05, 100.0: 0.02}
SCORES = {None: [0.6, 0.7], 0.1: [0.6, 0.6], 100.0: [0.3, 0.5]}


def ticks(axes: _AxesBase) -> dict[str, float]:
    return {label.get_text(): place for label, place in zip(axes.get_xticklabels(), axes.get_xticks(), strict=True)}


@pytest.mark.medium
def test_both_figures_are_drawn_and_equal_numbers_give_equal_bytes():
    first, second = figures(curve(NOISE, SCORES)), figures(curve(NOISE, SCORES))

    assert set(first) == {"noise", "pareto"}
    assert first == second
    assert all(png.startswith(b"\x89PNG") for png in first.values())


def test_accuracies_that_do_not_compare_are_crosses_that_no_line_joins():
    found = curve(NOISE, SCORES)
    found["accuracy"] = [
        point | {"notes": ["27 steps against 9"] if point["value"] == 0.1 else []} for point in found["accuracy"]
    ]

    panel, lower = pareto(found).axes[0], against_option(found).axes[1]
    markers = {str(line.get_marker()) for line in panel.lines}
    joined = next(line for line in lower.lines if line.get_linestyle() == "-" and line.get_marker() == "s")

    assert {"x", "o"} <= markers
    assert len(np.asarray(panel.lines[0].get_xdata())) == len(SCORES) - 1
    assert len(np.asarray(joined.get_xdata())) == len(SCORES) - 2  # no defense stands aside
    assert not any(line.get_marker() == "x" for line in pareto(curve(NOISE, SCORES)).axes[0].lines)


def test_without_accuracy_there_is_one_figure_with_one_panel():
    found = curve(NOISE)

    assert set(figures(found)) == {"noise"}
    assert len(against_option(found).axes) == 1


@pytest.mark.parametrize("rates", [{None: 1.0}, {None: 1.0, 0.1: 0.9}, {0.1: 0.9, 1.0: 0.5}])
def test_too_few_values_or_no_undefended_run_give_no_figure(rates: dict[float | None, float | None]):
    assert not figures(curve(rates))


def test_noise_grows_and_epsilon_falls_from_left_to_right_with_no_defense_leftmost():
    noise = OptionAxis.of(curve(NOISE))
    epsilon = OptionAxis.of(curve({None: 1.0, 0.5: 0.03, 8.0: 0.5, math.inf: 1.0}, epsilon=True, option="epsilon"))

    places = [noise.places[value] for value in NOISE]
    assert all(left < right for left, right in pairwise(places))
    assert sorted(epsilon.places, key=lambda value: epsilon.places[value]) == [None, math.inf, 8.0, 0.5]


def test_zero_and_infinity_stand_beside_what_has_a_logarithm():
    axis = OptionAxis.of(curve({None: 1.0, 0.0: 1.0, 0.1: 0.9, 1.0: 0.1, math.inf: 0.03}))

    assert sorted(axis.places, key=lambda value: axis.places[value]) == [None, 0.0, 0.1, 1.0, math.inf]


@pytest.mark.parametrize(
    ("rates", "epsilon", "labels"),
    [
        (NOISE, False, {"none", "0.01", "0.1", "1", "10", "100"}),
        ({None: 1.0, 0.0: 1.0, 2.0: 0.5, 4.0: 0.1}, False, {"none", "0", "2", "4"}),
        ({None: 1.0, 1.0: 0.03, 4.0: 0.4, math.inf: 1.0}, True, {"none", "inf", "4", "1"}),
    ],
)
def test_ticks_name_decades_or_values_and_what_stands_beside_them(
    rates: dict[float | None, float | None], epsilon: bool, labels: set[str]
):
    found = curve(rates, epsilon=epsilon, option="epsilon" if epsilon else "scale")
    axis, axes = OptionAxis.of(found), against_option(found).axes[0]

    named = ticks(axes)
    assert set(named) == labels
    assert named["none"] == axis.places[None]
    for value, place in axis.places.items():
        if value is not None and f"{value:g}" in named:
            assert math.isclose(named[f"{value:g}"], place, abs_tol=1e-12)


def test_the_upper_axis_gives_noise_in_standard_deviations_between_clients():
    canvas = against_option(curve(NOISE))

    second = next(axes for axes in canvas.axes[0].child_axes if "standard deviations" in axes.get_xlabel())
    canvas.draw_without_rendering()
    assert ticks(second)["1"] == pytest.approx(0.0)  # in its own decades
    low, high = canvas.axes[0].get_xlim()
    assert second.get_xlim() == pytest.approx((low - math.log10(0.02), high - math.log10(0.02)))  # .02 is one of them


@pytest.mark.medium
def test_fisc_settings_are_marked_on_scales_that_reach_them_alone():
    inside, outside = against_option(curve(NOISE)), against_option(curve({None: 1.0, 1.0: 0.9, 10.0: 0.1}))
    other = against_option(curve(NOISE, option="epsilon"))

    legends = [{text.get_text() for text in canvas.legends[0].get_texts()} for canvas in (inside, outside, other)]
    assert ["FISC's settings, Table 10" in legend for legend in legends] == [True, False, False]


def test_legends_name_every_attack_chance_and_what_is_expected():
    texts = {text.get_text() for text in against_option(curve(NOISE)).legends[0].get_texts()}

    assert texts == {"linkage, top-1", "membership, AUC", "chance", "expected", "FISC's settings, Table 10"}


@pytest.mark.medium
def test_one_seed_has_no_interval_and_is_drawn_all_the_same():
    found = curve(NOISE, {None: [0.6], 0.1: [0.5], 100.0: [0.4]})

    assert set(figures(found)) == {"noise", "pareto"}


@pytest.mark.medium
def test_a_value_at_which_nothing_was_measured_leaves_a_gap():
    found = curve({**NOISE, 1.0: None}, SCORES)

    line = next(line for line in against_option(found).axes[0].lines if line.get_label() == "linkage, top-1")
    assert len(line.get_xdata()) == 4  # type: ignore[arg-type]
    assert set(figures(found)) == {"noise", "pareto"}


def test_the_trade_off_has_a_panel_per_attack_and_a_legend_of_values_from_mild_to_strong():
    canvas = pareto(curve(NOISE, SCORES))

    assert [axes.get_xlabel() for axes in canvas.axes] == ["linkage, top-1", "membership, AUC"]
    assert [text.get_text() for text in canvas.legends[0].get_texts()] == ["none", "0.1", "100", "chance"]


@pytest.mark.parametrize("draw", [against_option, pareto])
def test_legends_lie_outside_the_panels(draw):  # type: ignore[no-untyped-def]
    canvas = draw(curve(NOISE, SCORES))
    canvas.draw_without_rendering()

    legend = canvas.legends[0].get_window_extent()
    assert not any(legend.overlaps(axes.get_tightbbox()) for axes in canvas.axes)

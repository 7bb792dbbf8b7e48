"""What a sweep found: which row it follows, which way is stronger, and where it says that clients are hidden."""

import math
from typing import Any

import pytest

from fdgsec.experiments.sweep.tables import grows_stronger, markdown, spreadsheet, strongest, summary, verdict
from tests.support.swept import attack as measured
from tests.support.swept import curve, private, row, trained


def test_the_followed_row_lies_farthest_beyond_chance_without_the_defense_and_is_the_first_of_equals():
    rows = [
        row("auc", 0.9, chance=0.5), row("top1", 0.9, distance="whitened"), row("top1", 0.9, distance="plain"),
        row("top1", 0.99, verdict="unavailable"), row("relative_error", 0.0),
    ]  # fmt: skip

    assert strongest(rows) is rows[1]
    assert strongest([]) is None


def test_a_row_is_followed_by_name_and_slice_to_every_value_and_by_the_likelihood_ratio_where_there_is_one():
    bare = private(None, measured("linkage", [row("top1", 0.9, distance="whitened")]))
    noisy = private(
        1.0,
        measured("linkage", [
            row("top1", 0.8, distance="plain"), row("top1", 0.1, distance="whitened"), row("top1", 0.5, distance="likelihood ratio"),
        ]),
    )  # fmt: skip

    found = summary([noisy, bare])

    assert [point["rows"]["linkage"]["value"] for point in found["privacy"]] == [0.9, 0.5]


def test_rows_of_single_images_are_followed_by_the_nearest_which_weighs_the_noise_itself():
    bare = private(None, measured("linkage", [row("top1", 0.5, distance="nearest row")]))
    noisy = private(
        1.0,
        measured("linkage", [row("top1", 0.1, distance="likelihood ratio"), row("top1", 0.4, distance="nearest row")]),
    )

    found = summary([noisy, bare])

    assert [point["rows"]["linkage"]["value"] for point in found["privacy"]] == [0.5, 0.4]


def test_what_an_attack_could_not_measure_is_missing_and_not_zero():
    failed = private(1.0, measured("linkage", [], status="skipped", reason="a defense kept it away"))

    found = summary([private(None, measured("linkage", [row("top1", 0.9)])), failed])

    assert found["privacy"][1]["rows"] == {"linkage": None}
    assert found["hidden"] is None


def test_clients_are_hidden_where_the_isotonic_fit_of_falling_linkage_is_under_twice_chance():
    found = curve(
        {None: 1.0, 0.1: 0.9, 1.0: 0.05, 2.0: 0.3, 5.0: 0.02, 10.0: 0.05},
        {None: [0.6, 0.7], 1.0: [0.6, 0.6], 10.0: [0.4, 0.5]},
    )

    crossing = found["hidden"]
    assert crossing["value"] == 5.0  # .05 at 1 and .3 at 2 average to .175, over 2/30
    assert crossing["accuracy"]["value"] == 10.0  # the mildest measured one as strong
    assert crossing["accuracy"]["difference"]["value"] == pytest.approx(-0.2)
    assert "at scale = 5 (0.020 [0.000, 0.120], chance 0.033); at 10 the accuracy is 45.0%, -20.0 points" in verdict(
        found
    )


def costing(**changes: float | None) -> dict[str, Any]:
    """A sweep at whose only value linkage is hidden, and whose run there differs from the undefended one."""
    privacy = [private(value, measured("linkage", [row("top1", rate)])) for value, rate in ((None, 1.0), (8.0, 0.03))]
    runs = [trained(None, seed, 0.6, own=0.9) for seed in (0, 1)]
    runs += [trained(8.0, seed, 0.61, **{"own": 0.9, **changes}) for seed in (0, 1)]
    return {"option": "epsilon", "dataset": "pacs", **summary([*privacy, *runs])}


@pytest.mark.parametrize(("steps", "said"), [(3.0, "3 steps against 9"), (None, "steps not recorded")])
def test_accuracies_after_unequal_steps_have_no_difference(steps: float | None, said: str):
    found = costing(steps=steps)

    assert found["accuracy"][1]["difference"] is None
    assert verdict(found).endswith(f"the accuracy is 61.0% (n = 2 seeds), not compared with no defense: {said}.")
    assert f"Accuracy at epsilon = 8: {said}." in markdown(found)


def test_an_accuracy_of_a_model_that_learned_less_of_its_own_domains_is_marked():
    found = costing(own=0.2)

    assert found["accuracy"][1]["difference"]["value"] == pytest.approx(0.01)
    assert "+1.0 points against no defense (n = 2 seeds); has not learned its own domains" in verdict(found)
    assert "Accuracy at epsilon = 8: has not learned its own domains: not comparable." in markdown(found)


def test_equal_runs_are_compared_without_a_note():
    found = costing()

    assert found["accuracy"][1]["notes"] == []
    assert verdict(found).endswith("+1.0 points against no defense (n = 2 seeds).")


def test_an_accuracy_of_one_seed_is_as_sure_as_its_test_images_allow_and_of_several_as_their_spread():
    alone, both = trained(None, 0, 0.5), [trained(1.0, 0, 0.49), trained(1.0, 1, 0.51)]
    alone["accuracy"] |= {"low": 0.45, "high": 0.55}

    points = [private(None, measured("linkage", [row("top1", 0.9)])), alone, *both]
    found = {"option": "scale", "dataset": "shapes", **summary(points)}

    one, two = (point["score"] for point in found["accuracy"])
    assert (one["value"], one["low"], one["high"], one["n"]) == (0.5, 0.45, 0.55, 1)
    assert two["value"] == pytest.approx(0.5)
    assert two["low"] == pytest.approx(0.5 - 12.706 * 0.01, abs=1e-4)  # t with one degree of freedom
    assert "one seed has the 95% interval over its test images" in markdown(found)


def test_an_interval_over_seeds_holds_no_accuracy_below_0_or_above_1():
    found = curve({None: 1.0, 1.0: 0.5}, {None: [0.1, 0.3], 1.0: [0.7, 0.9]})

    wide, other = (point["score"] for point in found["accuracy"])
    assert (wide["value"], wide["low"]) == (pytest.approx(0.2), 0.0)
    assert (other["value"], other["high"]) == (pytest.approx(0.8), 1.0)


def test_of_epsilon_the_largest_that_hides_is_the_mildest():
    found = curve(
        {None: 1.0, 0.5: 0.03, 4.0: 0.04, 100.0: 0.9, math.inf: 1.0},
        {None: [0.7], 0.5: [0.5]},
        epsilon=True,
        option="epsilon",
    )

    assert found["rising"] is False
    assert found["hidden"]["value"] == 4.0
    assert found["hidden"]["accuracy"]["value"] == 0.5
    assert "(n = 1 seed)" in verdict(found)
    assert "nan" not in verdict(found)


def test_without_guarantees_the_attacks_tell_which_way_is_stronger():
    assert curve({None: 1.0, 4.0: 0.03, 8.0: 0.5, 16.0: 1.0}, option="bits")["hidden"]["value"] == 4.0
    assert curve({None: 1.0, 4.0: 1.0, 8.0: 0.5, 16.0: 0.03}, option="k")["hidden"]["value"] == 16.0


def test_scatter_about_chance_does_not_say_that_less_noise_hides_more():
    points = [
        private(
            value, measured("linkage", [row("top1", rate)]), measured("membership", [row("auc", area, chance=0.5)]),
        )
        for value, rate, area in ((0.1, 0.03, 0.9), (1.0, 0.03, 0.7), (10.0, 0.06, 0.5))
    ]  # fmt: skip
    bare = private(None, measured("linkage", [row("top1", 1.0)]), measured("membership", [row("auc", 0.9, chance=0.5)]))

    found = summary([bare, *points])

    assert grows_stronger(found["privacy"])
    assert found["hidden"]["value"] == 0.1


def test_epsilons_stand_with_their_relation_delta_and_unit_and_whether_anybody_checked_them():
    claim = {"part": "run", "epsilon": 1.0, "delta": 1e-5, "unit": "record", "relation": "zero-out", "by": ["noisy"]}
    points = [
        {**private(value, measured("linkage", [row("top1", 0.5)])), "guarantees": [{**claim, "epsilon": value}]}
        for value in (1.0, 2.0)
    ]
    bare = {**claim, "epsilon": None, "uncovered": ["update/model"]}
    runs = [{**trained(1.0, 0, 0.5), "guarantees": [bare]}, {**trained(2.0, 0, 0.5), "guarantees": [claim]}]
    found = {**curve({None: 1.0, 0.1: 0.9}, option="epsilon"), **summary([*points, *runs])}

    text = markdown(found)

    said = "Epsilon is that of the attacked exchange, at delta 1e-05 per record (zero-out) (unvetted: noisy)."
    assert text.count(said) == 1
    assert "The trained run at epsilon = 1 has no guarantee (unprotected: update/model)." in text
    assert (
        "The trained run at epsilon = 2 has epsilon 1 at delta 1e-05 per record (zero-out) (unvetted: noisy)." in text
    )


def test_linkage_that_never_falls_is_said_to_stay():
    found = curve({None: 1.0, 0.1: 0.9, 1.0: 0.8})

    assert (found["hidden"]["value"], found["hidden"]["accuracy"]) == (None, None)
    assert verdict({**found, "dataset": "pacs"}) == "Linkage stays at 2 times chance or more at every value."


BLIND = "attack not adapted to my-noise: no evidence of protection"


def of_domains(
    value: float | None, photo: float, sketch: float, verdict: str = "leaks", **where: str
) -> dict[str, Any]:
    """A point with linkage in two domains; the verdict is that of photo."""
    rows = [
        {**row("top1", photo, verdict=verdict), "slice": {"domain": "photo", **where}},
        {**row("top1", sketch), "slice": {"domain": "sketch", **where}},
    ]
    return private(value, measured("linkage", rows))


def test_clients_are_hidden_only_where_no_population_is_linked():
    points = [of_domains(None, 1.0, 0.97), of_domains(0.1, 0.03, 0.9), of_domains(1.0, 0.0, 0.8)]

    assert summary(points)["hidden"]["value"] is None
    found = summary([*points, of_domains(5.0, 0.0, 0.05)])
    assert (found["hidden"]["value"], found["hidden"]["populations"]) == (5.0, 2)
    assert found["hidden"]["linkage"]["population"] == {"domain": "sketch"}
    text = markdown({"option": "scale", "dataset": "pacs", **found})
    assert "scale = 5 (0.050 [0.000, 0.150], chance 0.033, largest of 2 populations)." in text
    assert "one population" not in text


def test_every_population_is_compared_by_the_likelihood_ratio_where_there_is_one():
    noisy = of_domains(1.0, 0.03, 0.03, distance="whitened")
    noisy["attacks"][0]["measurements"].append(row("top1", 0.5, domain="sketch", distance="likelihood ratio"))

    found = summary([of_domains(None, 1.0, 1.0, distance="whitened"), noisy])

    assert found["hidden"]["value"] is None


def test_linkage_by_an_attack_that_does_not_know_the_defense_hides_nobody():
    points = [of_domains(None, 1.0, 0.97), of_domains(0.1, 0.05, 0.03, BLIND)]
    blind = {"option": "scale", "dataset": "pacs", **summary(points)}

    assert verdict(blind) == "Linkage is no evidence at any value (attack not adapted to my-noise)."
    one = {"option": "scale", "dataset": "pacs", **summary([*points, of_domains(1.0, 0.03, 0.03)])}
    assert one["hidden"]["value"] == 1.0
    assert "is no evidence of protection at scale = 0.1: attack not adapted to my-noise." in markdown(one)


def test_rows_of_other_attacks_that_are_no_evidence_are_named_beside_the_table():
    points = [
        private(value, measured("membership", [row("auc", 0.5, chance=0.5, verdict=said)]))
        for value, said in ((None, "leaks"), (0.1, BLIND), (1.0, BLIND), (5.0, "no leak shown"))
    ]

    text = markdown({"option": "scale", "dataset": "pacs", **summary(points)})

    assert "membership is no evidence of protection at scale = 0.1, 1: attack not adapted to my-noise." in text


def test_a_value_at_which_a_population_is_missing_hides_nobody():
    alone = private(1.0, measured("linkage", [row("top1", 0.03)]))

    found = summary([of_domains(None, 1.0, 0.97), of_domains(0.1, 0.9, 0.9), alone])

    assert found["hidden"]["no_evidence"] == [{"value": 1.0, "reason": "1 of 2 populations were not measured"}]


def test_points_that_kept_one_population_say_which():
    assert "Linkage is that of one population alone (domain photo)." in markdown(curve({None: 1.0, 0.1: 0.03}))


def test_linkage_that_was_not_measured_is_said_so():
    found = curve({None: None, 0.1: None})

    assert found["hidden"] is None
    assert "not measured" in verdict(found)


def test_points_of_several_versions_of_the_code_and_failed_controls_are_said_in_the_table():
    bad = {"negative": [{"passed": False}], "positive": [{"passed": True}]}
    points = [
        private(None, measured("linkage", [row("top1", 1.0)])),
        {**private(0.1, measured("linkage", [row("top1", 0.9)], controls=bad)), "environment": {"code_sha256": "b"}},
    ]

    text = markdown({**curve({None: 1.0, 0.1: 0.9}), **summary(points)})

    assert "Controls failed at 1 of 2 points." in text
    assert "made by 2 versions of the code" in text
    assert "By code_sha256, with how many points: a (1), b (1)." in text


def test_a_spreadsheet_leaves_out_what_was_not_measured():
    lines = spreadsheet(curve({None: 1.0, 0.1: None, 1.0: 0.5})).splitlines()

    assert [line.split(",")[1:3] for line in lines] == [
        ["scale", "what"], ["undefended", "linkage top1"], ["undefended", "membership auc"], ["1", "linkage top1"],
        ["1", "membership auc"],
    ]  # fmt: skip

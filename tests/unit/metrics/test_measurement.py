from dataclasses import replace
from typing import Literal

import pytest

from fdgsec.metrics.measurement import Measurement


def measured(
    name: str, low: float, value: float, high: float, *, chance: float, higher_is: Literal["leak", "safe"] = "leak"
) -> Measurement:
    return Measurement(
        name=name, value=value, low=low, high=high, chance=chance, chance_kind="exact", n=100, higher_is=higher_is
    )


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (measured("auc", 0.49, 0.52, 0.55, chance=0.5), "no leak shown"),
        (measured("auc", 0.45, 0.52, 0.59, chance=0.5), "undecided: the interval reaches 0.59"),
        (measured("auc", 0.07, 0.92, 1.0, chance=0.5), "undecided: the interval reaches 1"),
        (measured("top1", 0.4, 0.5, 1.0, chance=0.5), "undecided: the interval reaches 1"),
        (measured("top1", 0.0, 0.01, 0.02, chance=0.01), "no leak shown"),
        (measured("top1", 0.0, 0.01, 0.03, chance=0.01), "undecided: the interval reaches 0.03"),
        (measured("psnr_gain", -0.1, 0.0, 0.3, chance=0.0), "undecided: the interval reaches 0.3"),  # no margin
        (measured("psnr_gain", -0.3, -0.2, -0.1, chance=0.0), "no leak shown"),
        (measured("top1", 0.025, 1.0, 1.0, chance=1.0), "undecided: chance is as good as a perfect attack"),
        (
            measured("relative_error", 0.0, 0.0, 0.0, chance=0.0, higher_is="safe"),
            "undecided: chance is as good as a perfect attack",
        ),
        (measured("mae", 0.8, 1.0, 1.1, chance=1.0, higher_is="safe"), "undecided: the interval reaches 0.8"),
        (measured("auc", 0.505, 0.51, 0.515, chance=0.5), "leaks slightly"),
        (measured("auc", 0.56, 0.6, 0.65, chance=0.5), "leaks"),
        (measured("auc", 0.76, 0.8, 0.9, chance=0.5), "leaks strongly"),
        (measured("top1", 0.015, 0.03, 0.05, chance=0.01), "leaks slightly"),
        (measured("top1", 0.03, 0.05, 0.07, chance=0.01), "leaks"),
        (measured("top1", 0.96, 1.0, 1.0, chance=0.01), "leaks strongly"),
        (measured("top1", 0.8, 0.9, 1.0, chance=0.5), "leaks strongly"),  # twice chance is out of reach
        (measured("psnr_gain", 0.1, 0.2, 0.3, chance=0.0), "leaks"),  # gains have no margin and no best value
        (measured("relative_error", 0.8, 0.9, 0.95, chance=1.0, higher_is="safe"), "leaks slightly"),
        (measured("relative_error", 0.6, 0.7, 0.8, chance=1.0, higher_is="safe"), "leaks"),
        (measured("relative_error", 0.0, 0.0, 0.4, chance=1.0, higher_is="safe"), "leaks strongly"),
        (measured("median_rank", 2.0, 3.0, 50.0, chance=100.5, higher_is="safe"), "leaks strongly"),
        (measured("mae", 0.9, 1.0, 1.1, chance=1.0, higher_is="safe"), "no leak shown"),
    ],
)
def test_the_words_of_a_verdict_carry_its_size(row: Measurement, words: str) -> None:
    assert row.verdict == words
    assert row.leaks == words.startswith("leaks")


DEPENDS = "undecided: worse than chance, so the answers do depend on the truth"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (measured("auc", 0.0, 0.02, 0.05, chance=0.5), DEPENDS),
        (measured("exposed_auc", 0.3, 0.35, 0.4, chance=0.5), DEPENDS),
        (measured("accuracy", 0.0, 0.1, 0.3, chance=0.5), DEPENDS),
        (measured("precision", 0.0, 0.0, 0.2, chance=0.5), DEPENDS),  # a list of the others
        (measured("median_rank", 180.0, 190.0, 200.0, chance=100.5, higher_is="safe"), DEPENDS),
        (measured("auc", 0.46, 0.475, 0.49, chance=0.5), "no leak shown"),  # within the margin
        (measured("auc", 0.3, 0.41, 0.52, chance=0.5), "no leak shown"),  # contains chance
        (measured("top1", 0.0, 0.001, 0.005, chance=0.01), "no leak shown"),  # a rare hit names nobody
        (measured("balanced_accuracy", 0.089, 0.124, 0.171, chance=1 / 3), "no leak shown"),  # of 7, 3 are there
        (measured("mae", 1.2, 1.3, 1.4, chance=1.0, higher_is="safe"), "no leak shown"),  # a bad guess is one
    ],
)
def test_answers_that_are_wrong_too_often_are_no_all_clear(row: Measurement, words: str) -> None:
    assert (row.verdict, row.leaks) == (words, False)
    assert row.worse_than_chance == (words == DEPENDS)


def test_one_of_many_rows_is_worse_than_chance_by_chance() -> None:
    row = replace(measured("auc", 0.3, 0.39, 0.48, chance=0.5), p_value=1.0, adjusted_p_value=1.0, family=100)

    assert row.verdict == "undecided: worse than chance, but not after Bonferroni over 100 rows"
    assert not row.worse_than_chance
    assert replace(row, family=1).worse_than_chance


def test_a_row_that_excludes_chance_by_itself_only_shows_no_leak() -> None:
    alone = measured("auc", 0.56, 0.6, 0.65, chance=0.5)
    corrected = replace(alone, p_value=0.004, adjusted_p_value=0.4, family=100)

    assert (corrected.verdict, corrected.leaks) == ("undecided: a leak, but not after Holm over 100 rows", False)
    assert replace(corrected, adjusted_p_value=0.05).verdict == "leaks"
    assert "not adapted" in replace(corrected, not_adapted_to="style-noise").verdict


def test_the_document_of_a_row_says_whether_it_leaks_with_both_p_values() -> None:
    row = replace(measured("auc", 0.56, 0.6, 0.65, chance=0.5), p_value=1e-5, adjusted_p_value=1e-3, family=100)

    document = row.document()

    assert (document["leaks"], document["verdict"]) == (True, "leaks")
    assert (document["p_value"], document["adjusted_p_value"], document["family"]) == (1e-5, 1e-3, 100)

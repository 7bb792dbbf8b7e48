"""Pictures in no order: matched before they are judged, controls alike, and never ranked in a gallery."""

from itertools import permutations

import pytest
import torch
from torch import Tensor

from fdgsec.data.domains import as_float
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.answers import Reconstructions
from fdgsec.threats.attack import Case, Truth
from fdgsec.threats.judging.judge import Judge
from fdgsec.threats.judging.reconstructions import in_matched_order, matched_psnr
from tests.support.judged import case, judged


def pixels(count: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (count, 3, 12, 12), generator=stream(seed, "attack"), dtype=torch.uint8)


def answer(images: Tensor, number: int = 0, **controls: Tensor) -> Reconstructions:
    return Reconstructions(case=number, images=images, controls=controls, ordered=False)


def test_pictures_and_controls_are_each_brought_into_the_order_that_errs_least():
    true, rng = pixels(4), stream(1, "attack")
    mixed, other = as_float(true)[[2, 0, 3, 1]], as_float(true)[[1, 3, 0, 2]]
    noise = torch.rand(4, 3, 12, 12, generator=rng)

    found = in_matched_order(answer((mixed + noise / 10).clamp(0, 1), B1=other, B3=noise), true)

    def error(order: tuple[int, ...]) -> float:
        return float((noise[list(order)] - as_float(true)).square().sum())

    best = min(permutations(range(4)), key=error)  # the oracle: all 24 orders
    assert torch.equal(found.controls["B1"], as_float(true))
    assert torch.equal(found.controls["B3"], noise[list(best)])
    assert float((found.images - as_float(true)).abs().max()) <= 0.1 + 1e-6


def test_ordered_pictures_stay_where_they_are():
    true = pixels(3)
    given = Reconstructions(case=0, images=as_float(true)[[2, 1, 0]], controls={})

    assert in_matched_order(given, true) is given


def test_the_order_of_an_unordered_answer_changes_no_number():
    true, answers = pixels(4), as_float(pixels(4)) * 0.8
    truths, cases = [Truth(images=true)] * 2, [case(), case()]
    judge = Judge(bootstrap_repeats=100)

    straight = judged(
        [answer(answers, 0, B0=answers * 0.5), answer(answers, 1, B0=answers * 0.4)], cases, truths, judge
    )
    turned = answers.flip(0)
    shifted = judged([answer(turned, 0, B0=turned * 0.5), answer(turned, 1, B0=turned * 0.4)], cases, truths, judge)

    assert straight.keys() == shifted.keys()
    for key, row in straight.items():
        assert row.value == pytest.approx(shifted[key].value, abs=1e-5) if row.value is not None else row.unavailable


def test_an_answer_is_one_unit_and_is_not_ranked():
    true = pixels(4)
    truth = Truth(images=true, rows=torch.arange(4))

    rows = judged([answer(as_float(true) * f, n) for n, f in enumerate((0.9, 0.8))], [case(), case()], [truth, truth])

    assert rows["psnr",].n == 2
    assert "no order" in (rows["gallery_top1", "mse"].unavailable or "")


def test_ordered_and_unordered_answers_of_one_slice_are_a_fault():
    true = pixels(2)
    both = [answer(as_float(true)), Reconstructions(case=1, images=as_float(true), controls={})]

    with pytest.raises(ValueError, match="all be ordered"):
        judged(both, [case(), case()], [Truth(images=true)] * 2)


def null_p(turn: int, seed: int = 0) -> float:
    sets = [pixels(3, seed=number + 100 * seed) for number in range(6)]
    cases: list[Case] = [case() for _ in sets]
    answers = [answer(as_float(sets[(number + turn) % 6]).flip(0), number) for number in range(6)]
    (row,) = Judge().null(answers, cases, [Truth(images=images) for images in sets], stream(seed, "attack"))
    return row.p_value


def test_the_permutation_test_exchanges_whole_answers():
    assert null_p(0) < 0.01  # the identity is one of 720
    assert null_p(1) > 0.2


def test_matched_psnr_is_that_of_the_best_order():
    true = as_float(pixels(3))
    assert matched_psnr(true[[1, 2, 0]], true) > 80.0  # float32 leaves some 1e-9 of a square
    assert matched_psnr(true[[1, 2, 0]] * 0.5, true) == pytest.approx(matched_psnr(true * 0.5, true), abs=1e-4)

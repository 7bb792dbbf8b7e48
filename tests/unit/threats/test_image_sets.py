"""Sets of images judged: FISC's Table 9 with its floor, at one n, and what it must say beside the numbers."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.metrics.feature_extractors import ExtractedFeatures, Extractor
from fdgsec.metrics.inception_score import inception_score
from fdgsec.metrics.kernel_distance import kernel_distance
from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.answers import Answer, GeneratedSets
from fdgsec.threats.attack import Case, Truth
from fdgsec.threats.judging.groups import grouped
from fdgsec.threats.judging.image_sets import measure_sets
from fdgsec.threats.judging.judge import Judge
from tests.support.judged import case
from tests.support.one_domain import one_domain


class Cells(Extractor):
    """Mean colors of the four quarters of an image: 12 features, of which 4 serve as logits."""

    dimension, classes = 12, 4
    device = torch.device("cpu")

    def __init__(self, name: str = "inception") -> None:
        self.name, self.fingerprint = name, f"cells {name}"

    def _extract(self, images: Tensor) -> ExtractedFeatures:
        cells = torch.nn.functional.adaptive_avg_pool2d(images, 2).flatten(1) * 10
        return ExtractedFeatures(features=cells, logits=cells[:, :4])


def blobs(count: int, *, seed: int = 0, size: int = 16, shift: float = 0.0) -> Tensor:
    small = torch.rand(count, 3, 2, 2, generator=stream(seed, "attack", "blobs")) * 0.6 + shift
    return small.repeat_interleave(size // 2, 2).repeat_interleave(size // 2, 3)


def real(count: int = 60, *, seed: int = 9, ids: str = "x") -> DomainDataset:
    return one_domain((blobs(count, seed=seed, size=32) * 255).to(torch.uint8), ids=ids)


def answer(name: str, images: Tensor, *, number: int = 0, **where: str) -> GeneratedSets:
    return GeneratedSets(case=number, slice={**where, "column": name}, images=images, name=name)


def judged(
    answers: list[Answer], cases: list[Case], truths: list[Truth], *extractors: Extractor
) -> dict[tuple[str, ...], Measurement]:
    rows = measure_sets(grouped(answers, cases, truths), extractors or (Cells(), Cells("cells")), stream(0, "attack"))
    assert len({(row.name, tuple(row.slice.items())) for row in rows}) == len(rows)
    return {
        (row.name, str(row.slice.get("prior", "")), str(row.slice.get("column")), str(row.slice.get("images"))): row
        for row in rows
    }


def one_case(count: int = 60) -> tuple[list[Case], list[Truth]]:
    return [case()], [Truth(images=real(count).pixels())]


class Counted(Cells):
    """Keeps how many images it was shown, one number a pass."""

    def __init__(self) -> None:
        super().__init__("cells")
        self.shown: list[int] = []

    def _extract(self, images: Tensor) -> ExtractedFeatures:
        self.shown.append(len(images))
        return super()._extract(images)


@pytest.mark.parametrize(("limit", "made", "drawn"), [(20, 15, 30), (20, 40, 40), (40, 15, 30), (40, 30, 60)])
def test_an_extractor_with_a_limit_sees_twice_as_many_real_images_as_of_the_largest_set(
    limit: int, made: int, drawn: int
):
    """Rows say that images were drawn wherever some were left out, of either side."""
    extractor = Counted()
    cases, truths = one_case(60)

    rows = measure_sets(
        grouped([answer("styles", blobs(made, seed=1))], cases, truths), [extractor], stream(0, "attack"),
        limits={"cells": limit},
    )  # fmt: skip

    assert sum(extractor.shown) == drawn + min(made, limit)
    assert {row.slice["images"] for row in rows} == {"equal", "all" if drawn == 60 and made <= limit else "drawn"}


def test_every_column_stands_beside_one_floor_at_one_n():
    near, far = blobs(40, seed=1), blobs(30, seed=2, shift=0.4)
    sets = [
        answer("styles, mse", near, prior="intra"), answer("styles, mse", far, prior="inter"), answer("baseline", near)
    ]  # fmt: skip

    rows = judged(list(sets), *one_case())

    assert {row.n for (_, _, _, images), row in rows.items() if images == "equal"} == {30}
    assert rows["fid", "intra", "styles, mse", "all"].n == 40
    assert [key for key in rows if key[2] == "real" and key[3] == "equal"] == [
        (name, "", "real", "equal")
        for name in ("fid", "kid", "inception_score", "log_inception_score", "frechet_cells", "kernel_cells")
    ]
    close, away, floor = (
        float(rows["kernel_cells", prior, column, "equal"].value or 0)
        for prior, column in (("intra", "styles, mse"), ("inter", "styles, mse"), ("", "real"))
    )
    assert away > 10 * max(abs(close), abs(floor))
    assert all(row.verdict == "descriptive" for row in rows.values())


def test_distances_are_those_of_all_real_images_at_the_sets_size():
    made = blobs(40, seed=1, shift=0.1)

    rows = judged([answer("styles, mse", made)], *one_case())

    small = torch.nn.functional.avg_pool2d(real().pixels().float() / 255, 2)
    by_hand = kernel_distance(Cells().features(small), Cells().features(made))
    assert rows["kid", "", "styles, mse", "all"].value == pytest.approx(by_hand, abs=1e-6)
    assert rows["kid", "", "styles, mse", "all"].slice["side"] == 16


def test_the_same_pictures_in_another_order_score_the_same():
    made = blobs(40, seed=1)
    sets = [answer("styles, mse", made), answer("exchanged styles, mse", made.flip(0))]

    rows = judged(list(sets), *one_case())

    for name in ("fid", "kid", "inception_score"):
        own, exchanged = (rows[name, "", column, "all"].value for column in ("styles, mse", "exchanged styles, mse"))
        assert own == pytest.approx(exchanged, rel=1e-9)


def test_a_score_is_at_least_one_and_its_logarithm_stands_beside_it():
    same = blobs(1, seed=3).expand(30, -1, -1, -1)  # one picture thirty times: the least a score can be
    varied = blobs(30, seed=1)

    rows = judged([answer("same", same), answer("varied", varied)], *one_case())

    for column in ("same", "varied", "real"):
        for images in ("all", "equal"):
            score, log = (rows[name, "", column, images].value for name in ("inception_score", "log_inception_score"))
            assert score is not None
            assert log is not None
            assert 1 <= score <= 4
            assert log == pytest.approx(math.log(score), abs=1e-9)
    assert rows["inception_score", "", "same", "all"].value == pytest.approx(1, abs=1e-6)
    expected = inception_score(Cells().logits(varied))
    assert rows["inception_score", "", "varied", "all"].value == pytest.approx(expected, rel=1e-6)


def test_rows_of_few_images_say_in_which_direction_they_are_biased():
    rows = judged([answer("styles, mse", blobs(40, seed=1))], *one_case())

    biases = {name: row.slice.get("bias") for (name, _, _, images), row in rows.items() if images == "all"}
    assert biases == {
        "fid": "upwards, n < 2048", "frechet_cells": "upwards, n < 2048", "kid": None, "kernel_cells": None,
        "inception_score": "downwards, n < 5000", "log_inception_score": "downwards, n < 5000",
    }  # fmt: skip


def test_sets_in_parts_are_judged_whole():
    made, truth = blobs(40, seed=1), real()
    whole = judged([answer("styles, mse", made)], *one_case())

    cases = [case(victim=f"client:{number}") for number in range(4)]
    truths = [Truth(images=truth.pixels()[number * 15 : number * 15 + 15]) for number in range(4)]
    parts: list[Answer] = [
        answer("styles, mse", made[number * 10 : number * 10 + 10], number=number) for number in range(4)
    ]
    rows = judged(parts, cases, truths)

    key = ("kid", "", "styles, mse", "all")
    assert rows[key].value == pytest.approx(whole[key].value, abs=1e-12)
    assert rows[key].n == 40


def test_where_no_image_is_behind_a_row_the_candidates_are_the_real_images_each_once():
    candidates = real()
    halves = [candidates.subset(torch.arange(0, 40)), candidates.subset(torch.arange(20, 60))]
    cases = [case(victim=f"client:{number}", candidates=part) for number, part in enumerate(halves)]
    made = blobs(40, seed=1)
    parts: list[Answer] = [
        answer("styles, mse", made[number * 20 : number * 20 + 20], number=number) for number in range(2)
    ]

    rows = judged(parts, cases, [Truth(), Truth()])

    whole = judged([answer("styles, mse", made)], *one_case())
    key = ("kid", "", "styles, mse", "all")
    assert rows[key].value == pytest.approx(whole[key].value, abs=1e-12)
    assert rows["inception_score", "", "real", "all"].n == 60


def test_without_real_images_there_is_a_reason():
    rows = judged([answer("styles, mse", blobs(4))], [case()], [Truth()], Cells())

    assert {row.value for row in rows.values()} == {None}
    assert "no real images of client:1" in str(rows["fid", "", "styles, mse", "None"].unavailable)


def test_pictures_that_are_not_finite_are_a_reason():
    rows = judged([answer("styles, mse", torch.full((4, 3, 16, 16), float("nan")))], *one_case(), Cells())

    assert "not finite" in str(rows["fid", "", "styles, mse", "None"].unavailable)


def test_a_set_cannot_be_called_real():
    with pytest.raises(ValueError, match="not called 'real'"):
        judged([answer("real", blobs(4))], *one_case())


def test_the_judge_asks_its_extractors_about_sets_and_says_which_weights_it_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path))
    monkeypatch.setenv("FDGSEC_WEIGHTS", str(tmp_path))
    cases, truths = one_case()
    guess = [answer("styles, mse", blobs(20, seed=1)), answer("styles, mse", blobs(20, seed=1, size=8), prior="small")]

    rows = Judge(extractors=("inception", "mini")).measure(guess, cases, truths, stream(0, "attack"))

    lacking = [row for row in rows if row.name in ("fid", "kid", "inception_score", "log_inception_score")]
    assert [(row.value, dict(row.slice)) for row in lacking] == [(None, {})] * 4
    assert all("inception_fid" in str(row.unavailable) for row in lacking)
    assert [row.n for row in rows if row.name == "frechet_mini" and row.slice.get("images") == "equal"] == [20, 20]
    (small,) = [row for row in rows if row.name == "kernel_mini" and row.slice["side"] == 8]
    assert "at least 16 pixels" in str(small.unavailable)


def test_without_sets_no_extractor_is_asked_for():
    cases, truths = one_case()

    assert Judge(extractors=("inception",)).measure([], cases, truths, stream(0, "attack")) == []
    assert replace(Judge(), extractors=()).extractors == ()

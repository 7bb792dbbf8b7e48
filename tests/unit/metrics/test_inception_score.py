import math
import warnings

import pytest
import torch
from torch import Tensor, nn
from torchmetrics.image.inception import InceptionScore

from fdgsec.metrics.inception_score import inception_score, inception_scores, score_interval
from fdgsec.runtime.random_streams import stream


def logits(*, seed: int, n: int, classes: int = 12, sharpness: float = 2.0) -> Tensor:
    return sharpness * torch.randn(n, classes, generator=stream(seed, "attack", "logits"))


def test_the_score_equals_its_definition_image_by_image() -> None:
    values = logits(seed=0, n=7)
    probabilities = [row.double().softmax(0) for row in values]
    marginal = torch.stack(probabilities).mean(0)

    divergences = [float((p * (p / marginal).log()).sum()) for p in probabilities]

    assert inception_score(values) == pytest.approx(math.exp(sum(divergences) / 7), rel=1e-12)


def test_the_score_equals_torchmetrics_on_the_same_logits() -> None:
    values = logits(seed=1, n=60)
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # it announces that it keeps all features
        theirs = InceptionScore(feature=nn.Identity(), splits=1)
        theirs.inception = nn.Identity()
        theirs.features = [values]
        expected = float(theirs.compute()[0])

    assert inception_score(values) == pytest.approx(expected, abs=1e-5)
    assert inception_scores(values, splits=1, rng=stream(0, "attack")).tolist() == pytest.approx([expected], abs=1e-5)


def test_splits_are_scored_apart_and_hold_every_image_once() -> None:
    values = logits(seed=2, n=10)
    order = torch.randperm(10, generator=stream(3, "attack"))

    scores = inception_scores(values, splits=3, rng=stream(3, "attack"))

    expected = [inception_score(values[part]) for part in (order[:4], order[4:8], order[8:])]
    assert scores.tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("sharpness", [0.0, 0.1, 3.0, 300.0])
@pytest.mark.parametrize("n", [1, 5, 200])
def test_the_score_lies_between_one_and_the_number_of_classes_and_of_images(n: int, sharpness: float) -> None:
    score = inception_score(logits(seed=4, n=n, sharpness=sharpness))

    assert 1 <= score <= min(n, 12) * (1 + 1e-12)


def test_sure_and_even_predictions_score_the_number_of_classes_and_unsure_ones_one() -> None:
    assert inception_score(1000 * torch.eye(5).repeat(3, 1)) == pytest.approx(5)
    assert inception_score(torch.zeros(8, 5)) == pytest.approx(1, abs=1e-12)
    assert inception_score(logits(seed=5, n=1).repeat(9, 1)) == pytest.approx(1, abs=1e-12)


def test_intervals_cover_the_mean_score_of_fifty_images() -> None:
    rng = stream(6, "attack", "coverage")
    rounds, n, classes = 300, 50, 10
    tilt = torch.linspace(0, 2, classes)

    def drawn() -> Tensor:
        return 2 * torch.randn(n, classes, generator=rng) + tilt

    expected = sum(inception_score(drawn()) for _ in range(2000)) / 2000
    samples = [drawn() for _ in range(rounds)]

    bands = [score_interval(sample, value=inception_score(sample), rng=rng) for sample in samples]

    covered = sum(band is not None and band.low <= expected <= band.high for band in bands)
    assert covered / rounds >= 0.93


def test_an_interval_stays_within_what_is_possible_and_vanishes_where_nothing_varies() -> None:
    wild = logits(seed=7, n=4, classes=3, sharpness=20)
    value = inception_score(wild)

    band = score_interval(wild, value=value, rng=stream(0, "attack"))

    assert band is not None
    assert 1 <= band.low <= value <= band.high <= 3 * (1 + 1e-12)
    assert score_interval(torch.zeros(6, 3), value=1.0, rng=stream(0, "attack")) is None


def test_logits_that_are_not_finite_and_splits_without_images_are_refused() -> None:
    with pytest.raises(ValueError, match="logits must be finite"):
        inception_score(torch.full((3, 4), math.nan))
    with pytest.raises(ValueError, match=r"splits must lie in 1\.\.3"):
        inception_scores(torch.zeros(3, 4), splits=4, rng=stream(0, "attack"))

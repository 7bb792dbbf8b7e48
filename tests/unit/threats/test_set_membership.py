"""Membership of sets of images, by hand."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fdgsec.attacks.statistics.noise_image_classifiers import noise_images
from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import View
from fdgsec.threats.answers import SetMembership
from fdgsec.threats.attack import Case, Truth
from fdgsec.threats.judging.judge import Judge


def asked(labels: Tensor, victim: str = "client:1") -> Case:
    images = noise_images(len(labels), side=4, classes=5, rng=stream(0, "attack"))
    return Case(
        question="trained", views=(View(messages=()),), victim=victim, slice={"domain": "photo"},
        candidates=replace(images, labels=labels),
    )  # fmt: skip


def judged(scores: Tensor, labels: Tensor, members: Tensor, *, size: int, seed: int = 0) -> Measurement:
    answers = [SetMembership(case=0, slice={"set": size}, scores=scores, size=size)]
    (row,) = Judge(bootstrap_repeats=50).measure(
        answers, [asked(labels)], [Truth(members=members)], stream(seed, "attack")
    )
    return row


def test_a_shift_that_single_images_hide_shows_in_sets():
    """Members are higher by half a standard deviation: the AUC is Phi(.5 sqrt(n / 2)) for sets of n."""
    members = torch.arange(8000) % 2 == 0
    scores = torch.randn(8000, generator=stream(1, "attack"), dtype=torch.float64) + 0.5 * members
    labels = torch.zeros(8000, dtype=torch.int64)

    for size in (2, 10):
        row = judged(scores.unsqueeze(0), labels, members, size=size)
        expected = float(torch.special.ndtr(torch.tensor(0.5 * (size / 2) ** 0.5)))
        assert row.n == 8000 // size
        assert row.value == pytest.approx(expected, abs=0.025)


def test_sets_on_both_sides_have_the_same_classes():
    """Scores are the class, whatever the membership: sets of the same classes tie, and others would not."""
    labels = torch.cat([torch.arange(5).repeat(12), torch.tensor([4] * 60)])
    members = torch.arange(120) < 60

    row = judged(labels.double().unsqueeze(0), labels, members, size=3)

    assert row.value == pytest.approx(0.5)
    assert row.n == 8  # twelve members and others of class 4, and nobody else has a counterpart


def test_a_set_is_scored_under_the_one_model_where_its_mean_is_largest():
    """Each image is high under one of two models; only members are high under the same one."""
    members = torch.arange(40) < 20
    first = torch.cat([torch.ones(20), torch.tensor([1.0, 0.0] * 10)])
    second = torch.cat([torch.zeros(20), torch.tensor([0.0, 1.0] * 10)])
    labels = torch.zeros(40, dtype=torch.int64)

    row = judged(torch.stack([first, second]), labels, members, size=10)

    assert row.value == 1.0
    assert judged(torch.stack([first, second]).amax(0, keepdim=True), labels, members, size=10).value == 0.5


def test_the_interval_of_few_perfect_sets_is_wide():
    members = torch.arange(40) < 20

    row = judged(members.double().unsqueeze(0), torch.zeros(40, dtype=torch.int64), members, size=10)

    assert (row.value, row.high) == (1.0, 1.0)
    assert row.low is not None
    assert row.low < 0.5


def test_too_few_images_for_two_sets_are_named():
    members = torch.arange(38) < 19

    row = judged(members.double().unsqueeze(0), torch.zeros(38, dtype=torch.int64), members, size=10)

    assert row.unavailable == "19 members of client:1 make 1 sets of 10; 2 are needed"


def test_scores_of_another_shape_are_a_fault_of_the_attack():
    members = torch.arange(40) < 20

    with pytest.raises(ValueError, match="one column per candidate"):
        judged(members.double(), torch.zeros(40, dtype=torch.int64), members, size=10)


def null_p_values(shift: float) -> list[float]:
    found = []
    for seed in range(100):
        rng = stream(seed, "attack", "null")
        members = torch.randperm(200, generator=rng) < 100
        scores = torch.randn(1, 200, generator=rng, dtype=torch.float64) + shift * members
        answers = [SetMembership(case=0, scores=scores, size=10)]
        cases = [asked(torch.arange(200) % 4)]
        (row,) = Judge().null(answers, cases, [Truth(members=members)], rng, permutations=99)
        found.append(row.p_value)
    return found


@pytest.mark.medium
def test_the_null_exchanges_whole_sets():
    silent, loud = null_p_values(0.0), null_p_values(1.0)

    assert sum(p <= 0.05 for p in silent) <= 12  # 100 at 5%: more with probability .0015
    assert sum(p <= 0.05 for p in loud) >= 95

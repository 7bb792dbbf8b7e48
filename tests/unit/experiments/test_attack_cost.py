"""What attacks may cost: seconds for many candidates, memory that knows no square of them, and the same numbers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.attack_cases import QUESTIONS
from benchmarks.attack_cost import GRIDS, PARTS, Size, cell, scoring, sizes
from fdgsec.attacks.statistics.tracing import TracingTest, effective_dimension, likelihood_ratio, standardized_score
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.registry import ATTACKS

LINEAR = ("scoring", "look-up", "membership", "differencing", "reidentification", "inter-client")
"""Parts whose candidates are as many as somebody likes."""


@pytest.mark.parametrize("reference", [None, 50])
@pytest.mark.parametrize("test", [likelihood_ratio, standardized_score])
def test_all_pairs_at_once_are_the_ratios_one_by_one(test: TracingTest, reference: int | None):
    rng = stream(0, "world", "pairs")
    u = torch.randn(7, 30, generator=rng, dtype=torch.float64) / 4
    v = torch.randn(11, 30, generator=rng, dtype=torch.float64)

    together = test(u, v, records=16, reference=reference)

    apart = torch.stack([test(release, v, records=16, reference=reference) for release in u])
    torch.testing.assert_close(together, apart, rtol=1e-12, atol=1e-12)


def test_the_effective_dimension_in_blocks_is_that_of_the_whole_gram_matrix():
    records = torch.randn(600, 40, generator=stream(0, "world", "gram"), dtype=torch.float64)
    gram = records @ records.T

    across = (gram.square().sum() - gram.diagonal().square().sum()) / (600 * 599)
    assert effective_dimension(records) == pytest.approx(float(gram.diagonal().mean() ** 2 / across), rel=1e-12)


def test_each_number_is_varied_about_the_largest_of_the_others():
    found = sizes([10, 20], [1, 2], [4, 8])

    assert [(size.candidates, size.clients, size.dimension) for size in found] == [
        (10, 2, 8), (20, 2, 8), (20, 1, 8), (20, 2, 4)
    ]  # fmt: skip


@pytest.mark.parametrize("part", ["scoring", "look-up", "membership", "differencing", "linkage", "reidentification"])
def test_a_cell_has_seconds_and_memory(part: str):
    cost = PARTS[part](Size(candidates=60, clients=5, dimension=32, reference=60))

    assert cost.seconds > 0
    assert cost.mib >= 0


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.medium
def test_every_question_is_answered_for_a_registered_attack(name: str):
    assert QUESTIONS[name](Size(candidates=30, clients=4, dimension=16, reference=40)).answer()
    assert name in ATTACKS


def test_every_part_says_what_it_varies():
    assert set(GRIDS) == set(PARTS)


@pytest.mark.slow
def test_the_table_is_printed_and_written(tmp_path: Path):
    out, root = tmp_path / "cost.json", Path(__file__).parents[3]
    small = ["--candidates", "20", "--clients", "2", "--dimensions", "8", "--repeats", "1", "--out", str(out)]

    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.attack_cost", "scoring", "look-up", *small],
        capture_output=True, text=True, cwd=root, check=True,
    )  # fmt: skip

    costs = json.loads(out.read_text())["costs"]
    assert [(row["part"], row["candidates"]) for row in costs] == [("scoring", 20), ("look-up", 20)]
    assert "seconds" in done.stdout.splitlines()[0]


@pytest.mark.slow
def test_ten_thousand_candidates_meet_a_hundred_means_in_two_seconds():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        cost = scoring(Size(candidates=10_000, clients=100, dimension=1024), repeats=2)
    finally:
        torch.set_num_threads(threads)

    assert cost.seconds <= 2.0


@pytest.mark.slow
@pytest.mark.parametrize("part", LINEAR)
def test_memory_grows_with_the_candidates_and_not_with_their_square(part: str):
    few, many = (
        cell(part, Size(candidates=count, clients=20, dimension=64, reference=100), threads=1, repeats=1).mib
        for count in (10_000, 40_000)
    )

    # 40,000 x 40,000 numbers would be 12,000 MiB, 40,000 x 64 are 20 MiB
    assert many <= 600
    assert many <= 6 * max(few, 20)

"""Set reconstruction from a table of candidates' statistics, beside least squares in numpy."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fdgsec.attacks.set_reconstruction.attack import SetReconstruction
from fdgsec.experiments.attack_vectors.given_questions import GivenVectors, sizes_of
from fdgsec.experiments.attack_vectors.read_candidates import CandidateTable, candidate_table
from fdgsec.experiments.attack_vectors.read_vectors import sent_of_table
from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.attack import Question
from fdgsec.threats.judging.controls import positive_control
from fdgsec.threats.judging.judge import Judge
from fdgsec.threats.judging.permutation_tests import NullRow
from tests.support.client_vectors import alone, mini_styles

Rows = npt.NDArray[Any]
EPS = 1e-5


def table_of(count: int, *, seed: int = 0) -> Rows:
    """The per-image styles of bundled images under the bundled encoder, (count, 2 C)."""
    _, found = mini_styles()
    chosen = np.random.default_rng(seed).permutation(len(found))[:count]
    mean, std = found.rows(torch.from_numpy(chosen)).style(unbiased=False)
    return torch.cat([mean, std], dim=1).numpy()


def pooled(rows: Rows, behind: Sequence[int]) -> Rows:
    """The style pooled over images of equal size: the mean of (mu, sigma^2 + mu^2), turned back into a style."""
    mean, std = np.split(rows[list(behind)], 2, axis=1)
    center = mean.mean(0)
    return np.concatenate([center, np.sqrt((std**2 + mean**2).mean(0) - center**2)])


def asked(vectors: Rows, rows: Rows, owner: Sequence[int] | None) -> GivenVectors:
    sent = sent_of_table(torch.from_numpy(vectors), rows="clients", where="vectors")
    of = None if owner is None else torch.tensor(owner)
    table = candidate_table(torch.from_numpy(rows), of, where="candidates")
    sizes = sizes_of((), table, len(sent)) or [20] * len(sent)
    return GivenVectors(first=sent, second=list(sent.values()), table=table, sizes=sizes)


def answered(given: GivenVectors, *, null: bool = False) -> tuple[dict[str, Measurement], list[NullRow]]:
    pairs = given.cases(Question(kind="given", scheme="candidates"))
    cases, truths = [case for case, _ in pairs], [truth for _, truth in pairs]
    assert isinstance(given.table, CandidateTable)
    knowledge = replace(alone(), statistics=given.table.statistics)
    attack = SetReconstruction()
    run = attack.negative_control if null else attack.run
    answers = run(cases, knowledge, stream(0, "attack", "sets"))
    rows = Judge().measure(answers, cases, truths, stream(0, "world", "judge"))
    nulls = Judge().null(answers, cases, truths, stream(0, "world", "null"))
    return {row.name: row for row in rows}, list(nulls)


def owners(count: int, clients: int, size: int) -> list[int]:
    """The number of the client of each candidate, in random order."""
    listed = [client + 1 for client in range(clients) for _ in range(size)] + [0] * (count - clients * size)
    return [listed[place] for place in np.random.default_rng(1).permutation(count)]


def of_owners(rows: Rows, owner: Sequence[int]) -> Rows:
    return np.stack([pooled(rows, [i for i, one in enumerate(owner) if one == client])
                     for client in range(1, max(owner) + 1)])  # fmt: skip


@pytest.mark.medium
def test_a_table_gives_the_lists_that_least_squares_gives():
    rows, owner = table_of(80), owners(80, 2, 20)
    vectors = of_owners(rows, owner)

    found, _ = answered(asked(vectors.astype(np.float32), rows, owner))

    mean, std = np.split(rows, 2, axis=1)
    t = np.concatenate([mean, std**2 + mean**2], axis=1)
    scale = t.std(0) + 1e-12
    for client, vector in enumerate(vectors):
        mean, std = np.split(vector, 2)
        release = np.concatenate([mean, std**2 + mean**2])
        weights = np.linalg.lstsq((t / scale).T, 20 * release / scale, rcond=None)[0]
        assert [int(weight > 0.5) for weight in weights] == [int(one == client + 1) for one in owner]
    assert found["exact_list"].value == 1.0
    assert found["auc"].value == 1.0
    assert found["exact_list"].n == 2


@pytest.mark.medium
def test_statistics_with_two_decimals_still_rank_the_members():
    rows, owner = table_of(80), owners(80, 2, 20)

    found, _ = answered(asked(of_owners(rows, owner), rows.round(2), owner))

    assert float(found["auc"].value or 0) > 0.8


def test_without_a_truth_nothing_is_measured_but_the_list_is_given():
    rows, owner = table_of(60), owners(60, 1, 20)
    given = asked(of_owners(rows, owner), rows, None)

    found, nulls = answered(given)

    assert "nobody knows the members" in str(found["exact_list"].unavailable)
    assert nulls == []


@pytest.mark.medium
def test_releases_of_random_candidates_show_no_member():
    rows, owner = table_of(80), owners(80, 2, 20)

    _, nulls = answered(asked(of_owners(rows, owner), rows, owner), null=True)

    assert nulls
    assert all(row.p_value > 0.01 for row in nulls)


def test_columns_that_never_vary_are_left_out():
    rows, owner = table_of(60), owners(60, 1, 20)
    channels = rows.shape[1] // 2
    rows[:, [3, 5]], rows[:, [channels + 3, channels + 5]] = [0.0, 2.0], [EPS**0.5, 0.0]

    found, _ = answered(asked(of_owners(rows, owner), rows, owner))

    assert found["exact_list"].value == 1.0


def test_planted_lists_are_found_without_images():
    attack = SetReconstruction()
    control = attack.positive_control(alone(), stream(0, "attack", "plant"))

    answers = attack.run(control.cases, control.knowledge, stream(0, "attack", "planted"))

    found = positive_control(control, answers, Judge(), stream(0, "world", "planted"))
    assert {case.question for case in control.cases} == {"given"}
    assert control.knowledge.auxiliary is None
    assert all(one.passed for one in found)

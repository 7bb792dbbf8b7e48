"""Set reconstruction from the difference of two releases of a client that dropped images in between, or exchanged."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from fdgsec.attacks.set_reconstruction.attack import SetReconstruction
from fdgsec.attacks.set_reconstruction.release_equations import reader_of
from fdgsec.attacks.set_reconstruction.signed_changes import solved_change
from fdgsec.data.roles import Roles
from fdgsec.defenses.style_noise import StyleNoise
from fdgsec.metrics.roc import auc
from fdgsec.nn.styles.image_styles import statistics
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.answers import Membership
from fdgsec.threats.attack import Case, Question, TargetFacts
from tests.support.three_domains import challenger_of, knowledge_of, lists_and_null, members_of, roles_of_shapes

EXCHANGE = Question(kind="added_images", count=2, records=40, added=6, dropped=5, gallery=1000)


@pytest.fixture(scope="module")
def roles() -> Roles:
    return roles_of_shapes()


def shown(case: Case) -> torch.Tensor:
    assert case.candidates is not None
    return statistics("mini", case.candidates).linear()


def test_one_case_asks_for_new_images_and_one_for_dropped_ones(roles: Roles):
    challenger = challenger_of(roles)
    pairs = challenger.cases(EXCHANGE)
    assert [case.asks for case, _ in pairs] == ["added", "dropped"] * 6
    for (new, came), (old, left) in zip(pairs[::2], pairs[1::2], strict=True):
        assert (new.records, new.added, new.dropped) == (old.records, old.added, old.dropped) == (41, 6, 5)
        assert (int(members_of(came).sum()), int(members_of(left).sum())) == (6, 5)
        assert not bool((members_of(came) & members_of(left)).any())
        first, last = (knowledge_of(challenger).released_statistic.release(new.release(run))[0] for run in (0, 1))
        signed = shown(new)[members_of(came)].sum(0) - shown(old)[members_of(left)].sum(0)
        torch.testing.assert_close(41 * last - 40 * first, signed, rtol=1e-3, atol=1e-3)


def test_a_client_that_only_drops_images_is_asked_for_these_alone(roles: Roles):
    pairs = challenger_of(roles).cases(replace(EXCHANGE, count=1, added=0, gallery=30))
    assert [(case.asks, case.records, case.added, case.dropped) for case, _ in pairs] == [("dropped", 35, 0, 5)] * 3
    assert [(len(members_of(truth)), int(members_of(truth).sum())) for _, truth in pairs] == [(30, 5)] * 3


@pytest.mark.parametrize("added", [0, 6])
@pytest.mark.medium
def test_lists_of_changed_images_are_exact_through_the_target(roles: Roles, added: int):
    """The control through the target: CCST's own exchanges; and the null, of auxiliary images that change alike."""
    challenger = challenger_of(roles)

    rows, null = lists_and_null(challenger, knowledge_of(challenger), replace(EXCHANGE, added=added))

    exact = [(row.slice["asked"], row.value) for row in rows if row.name == "exact_list"]
    assert sorted(exact) == sorted([(asks, 1.0) for asks in ({"added", "dropped"} if added else {"dropped"})] * 3)
    assert abs(null - 0.5) < 0.2


def test_a_linear_program_finds_the_same_changes(roles: Roles):
    """The second implementation: the smallest sum of residuals over weights in [-1, 1] of known sums, by HiGHS."""
    challenger = challenger_of(roles)
    (new, came), (_, left) = challenger.cases(EXCHANGE)[:2]
    known = reader_of([new], knowledge_of(challenger), stream(0, "attack")).equations(new, new)
    rows, count = known.candidates.T.shape
    totals = np.zeros((2, 2 * count + 2 * rows))
    totals[0, :count], totals[1, count : 2 * count] = 1, 1
    found = linprog(
        np.r_[np.zeros(2 * count), np.ones(2 * rows)],
        A_eq=np.vstack([
            np.hstack([known.candidates.T, -known.candidates.T, np.eye(rows), -np.eye(rows)]), totals,
        ]),
        b_eq=np.r_[11 * known.release, 6, 5], bounds=[(0, 1)] * (2 * count) + [(0, None)] * (2 * rows), method="highs",
    )  # fmt: skip

    posterior = solved_change(known, added=6, dropped=5, asks="added")

    assert found.x is not None
    weights = found.x[:count] - found.x[count : 2 * count]
    np.testing.assert_allclose(posterior.weights, weights, atol=0.02)
    assert (weights > 0.5).tolist() == members_of(came).tolist()
    assert (weights < -0.5).tolist() == members_of(left).tolist()


@pytest.mark.medium
def test_changes_behind_noise_still_rank(roles: Roles):
    challenger = challenger_of(roles, StyleNoise(p=0.1, scale=0.05))
    pairs = challenger.cases(replace(EXCHANGE, gallery=60))
    cases = [case for case, _ in pairs]
    answers = SetReconstruction().run(cases, knowledge_of(challenger), stream(0, "attack"))
    areas = [
        auc(answer.scores[members], answer.scores[~members])
        for answer in answers
        if isinstance(answer, Membership) and (members := members_of(pairs[answer.case][1])).any()
    ]
    assert 0.6 < sum(areas) / len(areas) < 1


def test_a_null_changes_by_images_of_the_adversary(roles: Roles):
    """Eleven auxiliary images, six of them new, behind the difference of two releases that share the rest."""
    challenger = challenger_of(roles)
    knowledge = knowledge_of(challenger)
    case, _ = challenger.cases(EXCHANGE)[0]
    made = reader_of([case], knowledge, stream(0, "attack")).independent(case, stream(3, "attack", "null"))
    statistic = knowledge.released_statistic
    first, last = (statistic.release(made.release(run))[0] for run in (0, 1))
    assert knowledge.auxiliary is not None
    records = statistic.records(knowledge.statistics(knowledge.auxiliary.of_domain(case.domain or "")))
    change = 41 * last - 40 * first - records.mean(0)  # one image more than fewer
    away = change.abs() / (11**0.5 * records.std(0).clamp_min(1e-6))
    assert 0.05 < float(away.median()) < 1.5


def test_dropped_images_are_asked_about_alone_and_beside_as_many_new_ones():
    facts = TargetFacts(
        artifact_kinds=frozenset({"StyleStatistics"}), clients=3, images_per_client=100, classes=7, profile="quick"
    )
    asked = [one for one in SetReconstruction(added=(), dropped=(10,)).plan(facts) if one.kind == "added_images"]
    assert [(one.records, one.added, one.dropped) for one in asked] == [(130, 0, 10), (130, 10, 10)]
    with pytest.raises(UsageError, match="dropped"):
        SetReconstruction(dropped=(0,))
    with pytest.raises(UsageError, match="fewer than the 130"):
        SetReconstruction(dropped=(130,))

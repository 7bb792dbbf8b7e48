"""Set reconstruction from the difference of two releases of a client that added images in between."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear

from fdgsec.attacks.set_reconstruction.attack import SetReconstruction
from fdgsec.attacks.set_reconstruction.release_equations import reader_of
from fdgsec.data.roles import Roles
from fdgsec.defenses.style_noise import StyleNoise
from fdgsec.nn.styles.image_styles import statistics
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.attack import Question, TargetFacts
from tests.support.three_domains import challenger_of, exact_lists, knowledge_of, lists_and_null, roles_of_shapes

FIVE = Question(kind="added_images", count=3, records=40, added=5, gallery=1000)


@pytest.fixture(scope="module")
def roles() -> Roles:
    return roles_of_shapes()


@pytest.mark.medium
def test_the_second_release_has_more_images_and_old_ones_are_candidates(roles: Roles):
    challenger = challenger_of(roles)
    pairs = challenger.cases(FIVE)
    assert len(pairs) == 9
    for case, truth in pairs:
        assert case.candidates is not None
        assert truth.members is not None
        assert (case.records, case.added, int(truth.members.sum())) == (45, 5, 5)
        assert case.slice["gallery"] == len(case.candidates) == len(challenger.others(0))  # the whole domain
        statistic = knowledge_of(challenger).released_statistic
        first, last = (statistic.release(case.release(run))[0] for run in (0, 1))
        new = statistic.records(statistics("mini", case.candidates.subset(truth.members))).sum(0)
        torch.testing.assert_close(45 * last - 40 * first, new, rtol=1e-3, atol=1e-3)


def test_galleries_smaller_than_a_domain_hold_every_new_image(roles: Roles):
    _, truth = challenger_of(roles).cases(replace(FIVE, count=1, gallery=20))[0]
    assert truth.members is not None
    assert (len(truth.members), int(truth.members.sum())) == (20, 5)
    assert challenger_of(roles).cases(replace(FIVE, records=1000)) == []


@pytest.mark.medium
def test_lists_of_added_images_are_exact_through_the_target(roles: Roles):
    """The control through the target: CCST's own exchanges; and the null, of auxiliary images that grow alike."""
    challenger = challenger_of(roles)

    rows, null = lists_and_null(challenger, knowledge_of(challenger), FIVE)

    assert exact_lists(rows) == [1.0] * 3
    assert abs(null - 0.5) < 0.2


def test_another_solver_finds_the_same_new_images(roles: Roles):
    """The second implementation: scipy's bounded least squares on n' r' - n r."""
    challenger = challenger_of(roles)
    knowledge = knowledge_of(challenger)
    case, truth = challenger.cases(FIVE)[0]
    assert case.candidates is not None
    assert truth.members is not None
    t = knowledge.statistics(case.candidates).linear()
    first, last = (knowledge.released_statistic.release(case.release(run))[0] for run in (0, 1))
    scale = t.std(0).clamp_min(1e-9)
    found = lsq_linear((t / scale).T.numpy(), ((45 * last - 40 * first) / scale).numpy(), (0, 1), method="bvls").x
    assert set(found.argsort()[-5:].tolist()) == set(truth.members.nonzero().flatten().tolist())


@pytest.mark.medium
def test_the_error_of_a_difference_is_that_of_both_sums_over_the_number_of_new_images(roles: Roles):
    """Noise of one standard deviation in both releases: sqrt(45^2 + 40^2) / 5 times it in the mean of the new ones."""
    challenger = challenger_of(roles, StyleNoise(p=0.1, scale=1.0))
    case, _ = challenger.cases(FIVE)[0]
    reader = reader_of([case], knowledge_of(challenger), stream(0, "attack"))

    both = reader.equations(case, case)
    alone = reader.equations(replace(case, added=0), replace(case, views=case.views[1:]))

    assert both.images == 5
    ratio = np.median(both.noise / alone.noise)
    assert ratio == pytest.approx((45**2 + 40**2) ** 0.5 / 5, rel=0.05)


def test_a_null_grows_by_images_of_the_adversary(roles: Roles):
    challenger = challenger_of(roles)
    knowledge = knowledge_of(challenger)
    case, _ = challenger.cases(FIVE)[0]
    made = reader_of([case], knowledge, stream(0, "attack")).independent(case, stream(3, "attack", "null"))
    statistic = knowledge.released_statistic
    first, last = (statistic.release(made.release(run))[0] for run in (0, 1))
    assert knowledge.auxiliary is not None
    records = statistic.records(knowledge.statistics(knowledge.auxiliary.of_domain(case.domain or "")))
    grown = (45 * last - 40 * first) / 5
    away = (grown - records.mean(0)).abs() / records.std(0).clamp_min(1e-6)
    assert float(away.median()) < 1.5  # a mean of five images, and not the difference of two clients


def test_added_images_are_asked_about_where_both_styles_are_of_one_encoder():
    attack = SetReconstruction(sizes=(40,), added=(10, 40))
    facts = TargetFacts(
        artifact_kinds=frozenset({"StyleStatistics"}), clients=3, images_per_client=100, classes=7, profile="quick"
    )
    found = [question.added for question in attack.plan(facts) if question.kind == "added_images"]
    assert found == [10, 40]
    of_models = replace(facts, artifact_kinds=frozenset({"StyleDistribution"}))
    assert not [question for question in attack.plan(of_models) if question.kind == "added_images"]
    with pytest.raises(UsageError, match="added"):
        SetReconstruction(added=(0,))

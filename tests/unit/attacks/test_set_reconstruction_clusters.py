"""Set reconstruction from means with unknown weights: FISC's styles, which are means over clusters of cluster means."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from fdgsec.attacks.set_reconstruction.attack import SetReconstruction
from fdgsec.attacks.set_reconstruction.release_equations import reader_of
from fdgsec.attacks.set_reconstruction.unequal_weights import solved_unequal
from fdgsec.data.roles import Roles
from fdgsec.federation.method import CLUSTER_SIZES, Client, Clock
from fdgsec.federation.released_statistics import ChannelMeans, PooledStyles
from fdgsec.methods.fisc import FISC
from fdgsec.metrics.roc import auc
from fdgsec.nn.styles.image_styles import statistics
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.answers import MemberList
from fdgsec.threats.attack import Question, TargetFacts
from tests.support.three_domains import challenger_of, exact_lists, knowledge_of, lists_and_null, roles_of_shapes

METHODS = (FISC(), FISC(sigma="mixture"), FISC(client_partition="first"))
QUESTION = Question(kind="resampled_clients", count=2, records=30, gallery=60)
FACTS = TargetFacts(
    artifact_kinds=frozenset({"StyleStatistics"}), clients=3, images_per_client=100, classes=7, profile="quick",
    pooled=False, weighted=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def roles() -> Roles:
    return roles_of_shapes()


@pytest.mark.parametrize("method", METHODS)
def test_the_declared_statistic_averages_to_the_release_with_each_clusters_weight(roles: Roles, method: FISC):
    """The definition: weight 1 / (K n_k) for every image of cluster k of K."""
    client = Client(name="client:1", data=roles.federation.of_domain(1))
    clock = Clock(round=0, rounds=0, participants=("client:1",))
    sent, state = method.share(client, model=None, state={}, clock=clock, rng=stream(0, "world", "t"))
    sizes = state[CLUSTER_SIZES].double()
    weights = 1 / ((1 / sizes).sum() * sizes)  # the sum of 1 / n_k over images is K
    statistic = method.weighted_statistic
    assert statistic is not None
    assert len(sizes.unique()) > 1
    expected = weights @ statistic.records(statistics("mini", client.data))
    torch.testing.assert_close(statistic.release(sent["style"])[0], expected, rtol=1e-5, atol=1e-5)


def test_statistics_are_declared_where_the_release_is_a_weighted_mean_of_known_images():
    declared = [method.weighted_statistic for method in METHODS]
    assert [type(statistic) for statistic in declared] == [ChannelMeans, PooledStyles, ChannelMeans]
    assert FISC(style_input="loader").weighted_statistic is None
    assert FISC(style_input="loader", local_clustering=False, sigma="mixture").shared_mean is None
    for sigma in ("mean", "mixture"):
        plain = FISC(local_clustering=False, sigma=sigma)
        assert plain.weighted_statistic is None
        assert plain.shares_means


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.medium
def test_lists_behind_clusters_are_exact_through_the_target(roles: Roles, method: FISC):
    """The control through the target: FISC's own exchange; and the null, of auxiliary images."""
    challenger = challenger_of(roles, method=method)

    rows, null = lists_and_null(challenger, knowledge_of(challenger), QUESTION)

    assert exact_lists(rows) == [1.0] * 3
    assert abs(null - 0.5) < 0.2


def test_a_linear_program_finds_the_same_weights(roles: Roles):
    """The second implementation: the smallest sum of residuals over weights of at least 0, by HiGHS."""
    challenger = challenger_of(roles, method=FISC())
    case, truth = challenger.cases(QUESTION)[0]
    knowledge = replace(knowledge_of(challenger), released_statistic=ChannelMeans())
    known = reader_of([case], knowledge, stream(0, "attack")).equations(case, case)
    rows, count = known.candidates.T.shape
    found = linprog(
        np.r_[np.zeros(count), np.ones(2 * rows)],
        A_eq=np.hstack([known.candidates.T, np.eye(rows), -np.eye(rows)]), b_eq=known.release,
        bounds=[(0, None)] * (count + 2 * rows), method="highs",
    )  # fmt: skip

    posterior = solved_unequal(known)

    assert found.x is not None
    np.testing.assert_allclose(posterior.weights, 30 * found.x[:count], atol=0.02)
    assert truth.members is not None
    assert torch.equal(posterior.believed(), truth.members)


def test_more_members_than_half_the_numbers_still_rank(roles: Roles):
    """64 members, 128 candidates and 60 of the numbers: no list is determined, and members have larger weights."""
    challenger = challenger_of(roles, method=FISC())
    case, truth = challenger.cases(replace(QUESTION, records=64, gallery=110))[0]
    knowledge = replace(knowledge_of(challenger), released_statistic=ChannelMeans())
    known = reader_of([case], knowledge, stream(0, "attack")).equations(case, case)
    few = replace(
        known, candidates=known.candidates[:, :60], release=known.release[:60], noise=known.noise[:60],
        spread=known.spread[:60],
    )  # fmt: skip

    posterior = solved_unequal(few)

    assert truth.members is not None
    assert 0.55 < auc(posterior.scores()[truth.members], posterior.scores()[~truth.members]) < 1
    assert float(posterior.scores().sum()) == pytest.approx(64, rel=0.01)
    assert int(posterior.believed().sum()) == 64


def test_clients_with_all_members_in_the_gallery_are_asked_about():
    questions = SetReconstruction(sizes=(40,)).plan(FACTS)
    assert [(one.kind, one.records, one.held) for one in questions] == [("resampled_clients", 40, 1.0)] * 2
    with pytest.raises(UsageError, match="means over a client's images"):
        SetReconstruction().plan(replace(FACTS, weighted=False))


def test_the_positive_control_plants_clusters(roles: Roles):
    knowledge = knowledge_of(challenger_of(roles, method=FISC()))
    control = SetReconstruction().positive_control(knowledge, stream(0, "attack", "control"))
    answers = SetReconstruction().run(control.cases, control.knowledge, stream(0, "attack"))
    lists = [answer for answer in answers if isinstance(answer, MemberList)]
    assert len(lists) == 6
    for answer in lists:
        members = control.truths[answer.case].members
        assert members is not None
        assert torch.equal(answer.believed, members)

"""Lists behind FISC's clusters and noise, refined by running the method on lists like them."""

from itertools import combinations

import numpy as np
import pytest
import torch

from fdgsec.attacks.set_reconstruction import partition_refinement
from fdgsec.attacks.set_reconstruction.attack import SetReconstruction
from fdgsec.attacks.set_reconstruction.cluster_errors import ErrorCovariance, whitened_equations
from fdgsec.attacks.set_reconstruction.clustered_means import ClusterReader, cluster_reader
from fdgsec.attacks.set_reconstruction.partition_refinement import (
    PartitionRefinement,
    WeightsBehind,
    carried,
    drawn_lists,
    entropy,
)
from fdgsec.attacks.set_reconstruction.unequal_weights import ranked_weights
from fdgsec.data.roles import Roles
from fdgsec.defenses.style_noise import StyleNoise
from fdgsec.experiments.simulated_runs.challenger import Challenger
from fdgsec.federation.method import CLUSTER_SIZES, Client, Clock
from fdgsec.federation.released_statistics import ChannelMeans
from fdgsec.methods.fisc import FISC
from fdgsec.metrics.roc import auc
from fdgsec.nn.styles.image_styles import statistics
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Membership
from fdgsec.threats.attack import Case, Question, Truth
from tests.support.three_domains import challenger_of, knowledge_of, members_of, roles_of_shapes

QUESTION = Question(kind="resampled_clients", count=6, records=20, gallery=40)
NOISE = StyleNoise(p=0.1, scale=0.05)
LOUD = StyleNoise(p=0.1, scale=0.3)


@pytest.fixture(scope="module")
def roles() -> Roles:
    return roles_of_shapes(240)


def set_up(roles: Roles, *defenses: StyleNoise) -> tuple[Challenger, Knowledge]:
    challenger = challenger_of(roles, *defenses, method=FISC())
    return challenger, knowledge_of(challenger)


def read(challenger: Challenger, knowledge: Knowledge) -> tuple[ClusterReader, list[tuple[Case, Truth]]]:
    """The reader of the first domain's cases, and these."""
    pairs = challenger.cases(QUESTION)
    mine = [pair for pair in pairs if pair[0].domain == pairs[0][0].domain]
    return cluster_reader([case for case, _ in mine], knowledge, stream(0, "attack", "reader")), mine


def refinement_of(reader: ClusterReader) -> PartitionRefinement:
    assert reader.near is not None
    return PartitionRefinement(weighted=reader.weights, nearest=reader.near.reader, knowledge=reader.knowledge)


def area(scores: torch.Tensor, truth: Truth) -> float:
    return auc(scores[members_of(truth)], scores[~members_of(truth)])


@pytest.mark.slow
def test_refined_lists_are_exact_where_others_only_rank(roles: Roles):
    """Paired: all readings of the same six releases. A verified list is exact."""
    reader, pairs = read(*set_up(roles, NOISE))
    assert reader.near is not None
    exact, better = 0, []
    for number, (case, truth) in enumerate(pairs):
        found = ranked_weights(reader.weights.equations(case, case))
        refined = refinement_of(reader).refined(case, case, found, stream(0, "attack", "refined", number))
        right = torch.equal(refined.posterior.believed(), members_of(truth))
        assert right or not refined.verified
        exact += right
        better.append(area(refined.posterior.scores(), truth) - area(found.scores(), truth))

    assert exact >= 5
    assert min(better) >= 0
    assert np.mean(better) > 0.01


@pytest.mark.slow
def test_the_reader_believes_verified_lists(roles: Roles):
    reader, pairs = read(*set_up(roles, NOISE))
    found = [reader.solved(case, case) for case, _ in pairs[1:3]]
    assert all(
        torch.equal(one.believed(), members_of(truth)) for one, (_, truth) in zip(found, pairs[1:3], strict=True)
    )
    assert not reader.refines  # nothing had to be rehearsed


@pytest.mark.medium
def test_no_list_of_a_gallery_without_the_members_is_verified(roles: Roles):
    """Releases of auxiliary images, which no candidate is behind."""
    challenger, knowledge = set_up(roles, NOISE)
    reader, pairs = read(challenger, knowledge)
    refinement = refinement_of(reader)
    for number, (case, _) in enumerate(pairs[:2]):
        seen = reader.independent(case, stream(0, "attack", "null", number))
        found = ranked_weights(reader.weights.equations(case, seen))
        assert refinement.suits(case, seen)
        assert not refinement.refined(case, seen, found, stream(0, "attack", "refined", number)).verified


@pytest.mark.nightly
@pytest.mark.slow
def test_releases_of_other_images_rank_nobody(roles: Roles):
    challenger, knowledge = set_up(roles, NOISE)
    pairs = challenger.cases(QUESTION)[:6]
    answers = SetReconstruction().negative_control([case for case, _ in pairs], knowledge, stream(0, "attack", "null"))

    ranked = [area(answer.scores, pairs[answer.case][1]) for answer in answers if isinstance(answer, Membership)]

    assert len(ranked) == len(pairs)
    assert abs(np.mean(ranked) - 0.5) < 4 * np.std(ranked) / len(ranked) ** 0.5


@pytest.mark.medium
def test_nothing_is_refined_where_noise_leaves_too_little_of_a_list_or_there_is_none(roles: Roles):
    for defenses in ([LOUD], []):
        reader, pairs = read(*set_up(roles, *defenses))
        case, _ = pairs[0]
        assert not refinement_of(reader).suits(case, case)
    reader, pairs = read(*set_up(roles, NOISE))
    case, _ = pairs[0]
    assert refinement_of(reader).suits(case, case)


def test_the_weights_behind_a_style_are_those_of_the_methods_clusters(roles: Roles):
    """The definition: n / (K n_k) for an image of cluster k of K."""
    data = roles.federation.of_domain(1)
    client, clock = Client(name="client:1", data=data), Clock(round=0, rounds=0, participants=("client:1",))
    sent, state = FISC().share(client, model=None, state={}, clock=clock, rng=stream(0, "world", "t"))
    sizes = state[CLUSTER_SIZES].double()
    statistic = ChannelMeans()

    behind = WeightsBehind(statistic.records(statistics("mini", data)))
    (found,) = behind.weights(torch.ones(1, len(data), dtype=torch.bool), statistic.release(sent["style"])[0][None])

    expected = len(data) / ((1 / sizes).sum() * sizes)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)  # the style is float32


@pytest.mark.parametrize("numbers", [4, 40])
def test_the_weights_of_several_lists_are_those_of_least_squares(numbers: int):
    """The oracle: an orthogonal solver for each list. Two of the candidates are one image."""
    rng = np.random.default_rng(6)
    records = torch.from_numpy(rng.normal(size=(20, numbers)) + 100)
    records[1] = records[0]
    lists = torch.zeros(3, 20, dtype=torch.bool)
    for row, other in zip(lists, ([5, 11], [2, 7], [9, 19]), strict=True):
        row[[0, 1, 3, 4, 8, *other]] = True
    drawn = torch.from_numpy(rng.dirichlet(np.ones(20), size=3)) * lists
    releases = drawn / drawn.sum(1, keepdim=True) @ records

    found = WeightsBehind(records).weights(lists, releases)

    for weights, listed, release in zip(found, lists, releases, strict=True):
        members = records[listed]
        count = len(members)
        matrix = torch.cat([(members - records.mean(0)).T, torch.ones(1, count, dtype=torch.float64)])
        target = torch.cat([release - members.mean(0), torch.zeros(1, dtype=torch.float64)])
        off = torch.linalg.lstsq(matrix, count * target.unsqueeze(1), driver="gelsd").solution.squeeze(1)
        torch.testing.assert_close(weights[listed], 1 + off, atol=1e-5, rtol=0)
        torch.testing.assert_close(weights[0], weights[1], atol=1e-5, rtol=0)
        assert (weights[~listed] == 0).all()


def test_lists_are_drawn_as_often_as_their_probabilities_say(monkeypatch: pytest.MonkeyPatch):
    """The oracle: all 15 lists of 2 of 6, under the Gaussian likelihood and the prior, at temperature 1."""
    monkeypatch.setattr(partition_refinement, "HOTTEST", 1.0)
    rng = np.random.default_rng(0)
    candidates, release = torch.from_numpy(rng.normal(size=(6, 3))), torch.from_numpy(rng.normal(size=3))
    known = whitened_equations(
        candidates, release, ErrorCovariance(own=np.full(3, 0.3), common=np.zeros((1, 3))), images=2
    )
    prior = torch.linspace(-1, 1, 6, dtype=torch.float64)
    begun = torch.zeros(4000, 6, dtype=torch.bool)
    begun[:, :2] = True

    lists = drawn_lists(known, begun, prior=prior, rng=stream(0, "attack", "lists"))

    every = list(combinations(range(6), 2))
    off = [known.release - known.candidates[list(one)].mean(0) for one in every]
    logits = torch.tensor(
        [float(prior[list(one)].sum()) - 0.5 * (e @ e) for one, e in zip(every, off, strict=True)], dtype=torch.float64
    )
    found = torch.stack([lists[:, list(one)].all(1).double().mean() for one in every])
    assert (lists.sum(1) == 2).all()
    torch.testing.assert_close(found, logits.softmax(0), atol=0.032, rtol=0)  # 4 deviations of a share in 4,000 chains


def test_what_a_release_carries_is_the_capacity_of_a_gaussian_channel():
    """The oracle: half of the log determinant of the received sum's covariance, in units of the noise's."""
    candidates = torch.from_numpy(np.random.default_rng(1).normal(size=(10, 4)))
    around = candidates - candidates.mean(0)
    expected = 0.5 * torch.logdet(torch.eye(4, dtype=torch.float64) + 0.3 * 0.7 * around.T @ around)
    assert carried(candidates, 3) == pytest.approx(float(expected))
    assert entropy(3, 10) == pytest.approx(np.log(120))

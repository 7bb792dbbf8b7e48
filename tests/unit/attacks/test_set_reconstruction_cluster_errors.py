"""Means over clusters behind noise: read as means over images, stds and all, up to an error that is simulated."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.covariance import ledoit_wolf

from fdgsec.attacks.set_reconstruction.attack import SetReconstruction
from fdgsec.attacks.set_reconstruction.cluster_errors import (
    ErrorCovariance,
    asked_of,
    drawn_lists_of,
    shrunk_covariance,
    whitened_equations,
)
from fdgsec.attacks.set_reconstruction.clustered_means import ClusterReader, cluster_reader
from fdgsec.attacks.set_reconstruction.list_equations import ListEquations
from fdgsec.attacks.set_reconstruction.unequal_weights import listed_weights, ranked_weights, solved_unequal
from fdgsec.data.roles import Roles
from fdgsec.defenses.style_noise import StyleNoise
from fdgsec.experiments.simulated_runs.challenger import Challenger
from fdgsec.federation.method import Client, Clock
from fdgsec.federation.released_statistics import MeanStyles
from fdgsec.methods.fisc import FISC
from fdgsec.metrics.roc import auc
from fdgsec.nn.styles.image_styles import statistics
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Membership
from fdgsec.threats.attack import Case, Question, Truth
from tests.support.three_domains import challenger_of, knowledge_of, members_of, roles_of_shapes

QUESTION = Question(kind="resampled_clients", count=6, records=20, gallery=40)
NOISE = StyleNoise(p=0.1, scale=0.3)
FEW = 26
"""Of 256 means: about as many as there are members, and fewer than candidates."""
FEWER = 22
"""So few that no list is told by the means alone."""


@pytest.fixture(scope="module")
def roles() -> Roles:
    return roles_of_shapes(240)


def set_up(roles: Roles, *defenses: StyleNoise) -> tuple[Challenger, Knowledge]:
    challenger = challenger_of(roles, *defenses, method=FISC())
    return challenger, knowledge_of(challenger)


def read(challenger: Challenger, knowledge: Knowledge) -> tuple[ClusterReader, list[tuple[Case, Truth]]]:
    pairs = challenger.cases(QUESTION)
    mine = [pair for pair in pairs if pair[0].domain == pairs[0][0].domain]
    return cluster_reader([case for case, _ in mine], knowledge, stream(0, "attack", "reader")), mine


def of_few_means(known: ListEquations, count: int = FEW) -> ListEquations:
    """So many of the equations."""
    kept = np.linspace(0, len(known.release) - 1, count).astype(int)
    return replace(
        known, candidates=known.candidates[:, kept], release=known.release[kept], noise=known.noise[kept],
        spread=known.spread[kept],
    )  # fmt: skip


def area(scores: torch.Tensor, truth: Truth) -> float:
    return auc(scores[members_of(truth)], scores[~members_of(truth)])


@pytest.mark.medium
def test_behind_noise_the_stds_rank_members_that_means_alone_do_not(roles: Roles):
    challenger, knowledge = set_up(roles, NOISE)
    reader, pairs = read(challenger, knowledge)

    found = [area(reader.solved(case, case).scores(), truth) for case, truth in pairs]
    means = [area(solved_unequal(reader.weights.equations(case, case)).scores(), truth) for case, truth in pairs]

    assert "weights" not in reader.best.values()
    assert np.mean(found) > np.mean(means) + 0.03


@pytest.mark.medium
def test_without_noise_lists_are_solved_for_and_nothing_is_rehearsed(roles: Roles):
    challenger, knowledge = set_up(roles)
    reader, pairs = read(challenger, knowledge)

    for case, truth in pairs:
        assert torch.equal(reader.solved(case, case).believed(), members_of(truth))
    assert not reader.best


@pytest.mark.parametrize("defenses", [(), (NOISE,)], ids=["without noise", "behind noise"])
@pytest.mark.medium
def test_stds_of_the_same_weights_rank_better_than_means_that_leave_them_open(
    roles: Roles, defenses: tuple[StyleNoise, ...]
):
    challenger, knowledge = set_up(roles, *defenses)
    reader, pairs = read(challenger, knowledge)
    assert reader.spreads is not None

    ranked = []
    for case, truth in pairs:
        few = of_few_means(reader.weights.equations(case, case))
        both = reader.spreads.solved(case, case, few)
        ranked.append([area(found.scores(), truth) for found in (ranked_weights(few), both)])

    means, stds = np.mean(ranked, axis=0)
    assert stds > means


@pytest.mark.medium
def test_stds_of_the_same_weights_find_whole_lists_that_means_leave_open(roles: Roles):
    challenger, knowledge = set_up(roles)
    reader, pairs = read(challenger, knowledge)
    assert reader.spreads is not None

    for case, truth in pairs:
        few = of_few_means(reader.weights.equations(case, case), FEWER)
        assert listed_weights(few) is None
        assert torch.equal(reader.spreads.solved(case, case, few).believed(), members_of(truth))


@pytest.mark.medium
def test_weights_that_the_method_does_not_tell_are_found_from_means(roles: Roles):
    """The oracle: FISC's own, 1 / (K n_k)."""
    challenger, knowledge = set_up(roles)
    reader, pairs = read(challenger, knowledge)
    assert reader.near is not None
    assert reader.spreads is not None
    case, _ = pairs[0]
    told = reader.spreads.error(case)

    made = reader.near.made[asked_of(case)]
    reader.near.made[asked_of(case)] = replace(made, weights=None)
    reader.spreads.found.clear()
    found = reader.spreads.error(case)

    assert made.weights is not None
    torch.testing.assert_close(made.weights.sum(1), torch.ones(len(made.weights), dtype=torch.float64))
    np.testing.assert_allclose(found.levels, told.levels, rtol=0.01)
    torch.testing.assert_close(found.bias, told.bias, rtol=0.05, atol=1e-3 * float(told.bias.abs().max()))


@pytest.mark.nightly
@pytest.mark.medium
def test_releases_of_other_images_rank_nobody(roles: Roles):
    challenger, knowledge = set_up(roles, NOISE)
    pairs = challenger.cases(QUESTION)
    answers = SetReconstruction().negative_control([case for case, _ in pairs], knowledge, stream(0, "attack", "null"))

    areas = [area(answer.scores, pairs[answer.case][1]) for answer in answers if isinstance(answer, Membership)]

    assert len(areas) == len(pairs)
    assert abs(np.mean(areas) - 0.5) < 4 * np.std(areas) / len(areas) ** 0.5


@pytest.mark.parametrize("defended", [False, True])
@pytest.mark.medium
def test_the_error_is_that_of_the_methods_own_styles(roles: Roles, defended: bool):
    """The oracle: FISC's share on other lists of the candidates, less the plain mean of their images' means and
    stds."""
    challenger, knowledge = set_up(roles, *([NOISE] if defended else []))
    reader, pairs = read(challenger, knowledge)
    case, _ = pairs[0]
    assert reader.near is not None
    assert case.candidates is not None
    method, statistic = FISC(), MeanStyles()

    bias, covariance = reader.near.error(case)

    clock = Clock(round=0, rounds=0, participants=("client:1",))
    expected = []
    for rows in drawn_lists_of(len(case.candidates), 20, 200, stream(1, "attack", "other lists")):
        held = case.candidates.subset(rows)
        sent, _ = method.share(
            Client(name="client:1", data=held), model=None, state={}, clock=clock, rng=stream(0, "world", "t")
        )
        plain = statistic.records(statistics("mini", held)).mean(0)
        expected.append(statistic.release(sent["style"])[0] - plain)
    other = torch.stack(expected)
    deviation = other.std(0)
    assert float(((bias - other.mean(0)).abs() / (deviation / 200**0.5)).median()) < 2  # two draws of 200 lists
    ratio = np.sqrt(covariance.matrix.diagonal()) / deviation.numpy()
    assert 0.8 < float(np.median(ratio)) < 1.25


@pytest.mark.parametrize(("defenses", "lists"), [((), 3000), ((NOISE,), 200)], ids=["without noise", "behind noise"])
@pytest.mark.medium
def test_more_lists_are_simulated_where_no_noise_hides_what_they_tell(
    roles: Roles, defenses: tuple[StyleNoise, ...], lists: int
):
    reader, pairs = read(*set_up(roles, *defenses))
    case, _ = pairs[0]
    assert reader.near is not None

    made = reader.near.simulated(case)

    assert made.lists.shape == (lists, 20)
    assert len(made.sent) == lists
    assert made.weights is not None
    assert all(len(set(rows.tolist())) == 20 for rows in made.lists[::97])


def test_what_is_known_of_two_galleries_is_kept(roles: Roles):
    reader, pairs = read(*set_up(roles, NOISE))
    assert reader.near is not None
    for case, _ in pairs[:3]:
        reader.near.error(case)

    assert list(reader.near.found) == list(reader.near.made) == [asked_of(case) for case, _ in pairs[1:3]]


def test_where_all_candidates_are_members_nothing_is_rehearsed(roles: Roles):
    reader, pairs = read(*set_up(roles, NOISE))
    case, truth = pairs[0]
    assert case.candidates is not None
    whole = replace(case, candidates=case.candidates.subset(members_of(truth).nonzero().flatten()))

    found = reader.solved(whole, whole)

    assert bool(found.believed().all())
    assert reader.best == {(20, 20): "weights"}


def test_lists_of_the_same_candidates_in_another_order_are_simulated_once(roles: Roles):
    challenger, knowledge = set_up(roles, NOISE)
    reader, pairs = read(challenger, knowledge)
    case, _ = pairs[0]
    assert reader.near is not None
    assert case.candidates is not None
    turned = replace(case, candidates=case.candidates.subset(torch.arange(len(case.candidates)).flip(0)))

    assert reader.near.simulated(case) is reader.near.simulated(turned)


@pytest.mark.parametrize(("errors", "numbers"), [(4, 9), (40, 9)], ids=["few errors", "many errors"])
def test_whitened_vectors_have_the_covariance_of_white_noise(errors: int, numbers: int):
    rng = np.random.default_rng(0)
    covariance = ErrorCovariance(own=rng.uniform(0.1, 1, numbers), common=rng.normal(size=(errors, numbers)))
    root = np.asarray(np.linalg.cholesky(covariance.matrix), dtype=np.float64)

    white = covariance.whitened(root.T)

    np.testing.assert_allclose(white.T @ white, np.eye(numbers), atol=1e-10)


@pytest.mark.parametrize("common", [2, 5, 9])
def test_whitened_residuals_are_mahalanobis_distances(common: int):
    """The definition: |W (r - T'w)|^2 is (r - T'w)' C^-1 (r - T'w) for every list w."""
    rng = np.random.default_rng(0)
    candidates, root = rng.normal(size=(12, 5)), rng.normal(size=(common, 5))
    covariance, release = ErrorCovariance(own=np.full(5, 0.1), common=root), rng.normal(size=5)

    known = whitened_equations(torch.from_numpy(candidates), torch.from_numpy(release), covariance, images=4)

    assert (known.noise == 1).all()
    for _ in range(5):
        listed = rng.permutation(12)[:4]
        off = release - candidates[listed].mean(0)
        white = known.release - known.candidates[listed].mean(0)
        assert white @ white == pytest.approx(off @ np.linalg.solve(0.1 * np.eye(5) + root.T @ root, off))


@pytest.mark.parametrize("constant", [0.0, 1e-5, 300.0])
def test_channels_that_are_never_active_are_left_out(constant: float):
    rng = np.random.default_rng(2)
    candidates, own = rng.normal(size=(12, 6)), np.ones(6)
    candidates[:, 2], own[2] = constant, 0.0
    covariance = ErrorCovariance(own=own, common=np.zeros((1, 6)))
    release = candidates[:4].mean(0)

    known = whitened_equations(torch.from_numpy(candidates), torch.from_numpy(release), covariance, images=4)

    assert known.candidates.shape == (12, 5)
    np.testing.assert_allclose(known.candidates[:4].mean(0), known.release)


def test_errors_that_are_zero_have_no_covariance():
    errors = np.random.default_rng(3).normal(size=(40, 5))
    errors[:, 1] = 0

    found = shrunk_covariance(errors).matrix

    assert np.isfinite(found).all()
    assert (found[1] == 0).all()


def test_a_shrunk_covariance_keeps_the_variances():
    errors = np.random.default_rng(1).normal(size=(50, 8)) * np.arange(1, 9)

    found = shrunk_covariance(errors).matrix

    np.testing.assert_allclose(found.diagonal(), errors.var(0), rtol=0.05)
    assert np.linalg.eigvalsh(found).min() > 0


def test_a_shrunk_covariance_is_that_of_the_library():
    """The oracle: Ledoit and Wolf's estimate of the correlations as scikit-learn computes it."""
    errors = np.random.default_rng(4).normal(size=(12, 30)) @ np.random.default_rng(5).normal(size=(30, 30))
    spread = errors.std(0)

    expected = ledoit_wolf((errors - errors.mean(0)) / spread, assume_centered=True)[0] * np.outer(spread, spread)

    np.testing.assert_allclose(shrunk_covariance(errors).matrix, expected, atol=1e-12 * expected.max())


def test_an_adversary_that_cannot_run_the_method_reads_the_means_alone(roles: Roles):
    challenger, knowledge = set_up(roles, NOISE)
    reader, pairs = read(challenger, replace(knowledge, simulate=None))
    case, _ = pairs[0]

    assert reader.near is None
    assert torch.equal(
        reader.solved(case, case).scores(), solved_unequal(reader.weights.equations(case, case)).scores()
    )

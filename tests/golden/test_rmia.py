"""RMIA and two baselines against slow transcriptions of the papers, examples worked by hand, and their limits.

RMIA: Zarifzadeh et al. 2024, arXiv:2312.03262; the loss threshold, Yeom et al. 2018, arXiv:1709.01604; calibration,
Watson et al. 2022, arXiv:2111.08440."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor

from fdgsec.attacks.statistics.lira_rmia import (
    Population,
    References,
    calibrated_score,
    loss_score,
    rmia_offline,
    rmia_online,
)
from fdgsec.metrics.roc import auc
from fdgsec.runtime.random_streams import stream
from tests.support.reference_models import (
    CANDIDATES,
    MODELS,
    POPULATION,
    TWO_IN_TWO_OUT,
    confidences,
    gaussian_world,
    references,
)


def slow_rmia(
    target: Tensor, models: References, population: Population, *, gamma: float, offline_a: float | None
) -> list[float]:
    """Count, pair by pair, how many z have LR(x, z) >= gamma; `offline_a` None is the online attack."""

    def marginal(inside: list[float], outside: list[float]) -> float:
        if offline_a is None:
            return 0.5 * float(np.mean(inside)) + 0.5 * float(np.mean(outside))
        return 0.5 * ((1 + offline_a) * float(np.mean(outside)) + (1 - offline_a))

    made = []
    for n in range(len(target)):
        inside: list[float] = []
        outside: list[float] = []
        for k in range(models.models):
            (inside if bool(models.members[k, n]) else outside).append(math.exp(float(models.values[k, n])))
        ratio_x = math.exp(float(target[n])) / marginal(inside, outside)
        beaten = 0
        for m in range(len(population.target)):
            shown = [math.exp(float(population.references[k, m])) for k in range(population.models)]
            p_z = float(np.mean(shown)) if offline_a is None else marginal([], shown)
            beaten += ratio_x / (math.exp(float(population.target[m])) / p_z) >= gamma
        made.append(beaten / len(population.target))
    return made


def population(seed: int) -> Population:
    return Population(
        models=MODELS,
        target=confidences(POPULATION, seed=seed).log(),
        references=confidences(MODELS, POPULATION, seed=seed + 1).log(),
    )


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_online_rmia_is_the_share_of_pairs_whose_likelihood_ratio_reaches_gamma(gamma: float):
    models, target = references(confidences(MODELS, CANDIDATES, seed=7).log()), confidences(CANDIDATES, seed=8).log()

    scores = rmia_online(target, models, population=population(9), gamma=gamma)

    expected = slow_rmia(target, models, population(9), gamma=gamma, offline_a=None)
    assert scores.tolist() == pytest.approx(expected, abs=1e-12)
    assert 3 <= len(set(expected))


@pytest.mark.parametrize("offline_a", [0.0, 0.3, 1.0])
def test_offline_rmia_puts_the_line_through_one_in_the_place_of_in_models(offline_a: float):
    models, target = references(confidences(MODELS, CANDIDATES, seed=11).log()), confidences(CANDIDATES, seed=12).log()

    scores = rmia_offline(target, models, population=population(13), gamma=1.5, offline_a=offline_a)

    expected = slow_rmia(target, models, population(13), gamma=1.5, offline_a=offline_a)
    assert scores.tolist() == pytest.approx(expected, abs=1e-12)
    assert 3 <= len(set(expected))


def test_calibrated_score_is_the_mean_loss_of_out_models_less_the_targets_loss():
    models, target = references(confidences(MODELS, CANDIDATES, seed=15).log()), confidences(CANDIDATES, seed=16).log()

    scores = calibrated_score(target, models)

    for n in range(CANDIDATES):
        losses = [-float(models.values[k, n]) for k in range(MODELS) if not bool(models.members[k, n])]
        assert float(scores[n]) == pytest.approx(float(np.mean(losses)) - -float(target[n]), rel=1e-12)


def hand_made() -> tuple[Tensor, References, Population]:
    """One candidate and four z, in probabilities that divide well."""
    models = References(
        models=4, values=torch.tensor([[0.9], [0.7], [0.4], [0.2]], dtype=torch.float64).log(), members=TWO_IN_TWO_OUT
    )
    z = Population(
        models=4,
        target=torch.tensor([0.5, 0.6, 0.9, 0.3], dtype=torch.float64).log(),
        references=torch.tensor([[0.5, 0.3, 0.6, 0.6]] * 4, dtype=torch.float64).log(),
    )
    return torch.tensor([0.8], dtype=torch.float64).log(), models, z


def test_hand_worked_online_rmia():
    # p_in = (.9 + .7) / 2 = .8, p_out = (.4 + .2) / 2 = .3, p(x) = (.8 + .3) / 2 = .55, ratio .8 / .55 = 1.4545.
    # The z have ratios .5/.5 = 1, .6/.3 = 2, .9/.6 = 1.5 and .3/.6 = .5, so LR(x, z) = 1.4545, .7273, .9697, 2.9091.
    # gamma 1: two of four; gamma 2: one; gamma .9: three.
    target, models, z = hand_made()

    scores = [float(rmia_online(target, models, population=z, gamma=gamma)) for gamma in (1.0, 2.0, 0.9)]

    assert scores == [0.5, 0.25, 0.75]


def test_hand_worked_offline_rmia():
    # a = .3: p(x) = (1.3 * .3 + .7) / 2 = .545, ratio .8 / .545 = 1.4679.
    # p(z) = (1.3 * .5 + .7) / 2 = .675, (1.3 * .3 + .7) / 2 = .545, (1.3 * .6 + .7) / 2 = .74 and .74 again, so the z have
    # ratios .5/.675 = .7407, .6/.545 = 1.1009, .9/.74 = 1.2162, .3/.74 = .4054 and LR = 1.9817, 1.3333, 1.2069, 3.6208.
    # gamma 1: all four; gamma 1.25: three; gamma 1.5: two; gamma 2: one.
    target, models, z = hand_made()

    scores = [float(rmia_offline(target, models, population=z, gamma=g, offline_a=0.3)) for g in (1.0, 1.25, 1.5, 2.0)]

    assert scores == [1.0, 0.75, 0.5, 0.25]


def test_hand_worked_baselines():
    # The target gives p = .8, loss -log .8 = .223144. OUT models give .4 and .2: mean loss (.916291 + 1.609438) / 2 =
    # 1.262864; calibrated 1.262864 - .223144 = 1.039721 = log(.8 / sqrt(.08)).
    target, models, _ = hand_made()

    assert float(loss_score(target)) == pytest.approx(-0.223144, abs=1e-6)
    assert float(calibrated_score(target, models)) == pytest.approx(1.039721, abs=1e-6)


def test_rmia_with_gamma_one_gives_non_members_uniform_scores_and_so_its_threshold_is_one_minus_the_fpr():
    rng = stream(22, "world", "uniform")
    logits = torch.randn(17, 5000, generator=rng, dtype=torch.float64) + 2 * torch.randn(5000, generator=rng)
    said = -torch.log1p((-logits).exp())
    nobody = References(models=16, values=said[1:, :1000], members=torch.zeros(16, 1000, dtype=torch.bool))
    z = Population(models=16, target=said[0, 1000:], references=said[1:, 1000:])

    scores = rmia_offline(said[0, :1000], nobody, population=z)

    assert kstest(scores.numpy(), "uniform").statistic < 1.95 * math.sqrt(1 / 1000 + 1 / 4000)  # p about .001


def test_online_rmia_reaches_the_auc_of_the_calibrated_confidence_it_ranks():
    # LR(x, z) >= 1 compares p(x|theta)/p(x) with the population's: at a large population the order is that ratio's own.
    target, members, phi = gaussian_world(separation=1.5, candidates=2000, models=16, queries=1)
    values = -torch.log1p((-phi.values[..., 0]).exp())
    said = -torch.log1p((-target[:, 0]).exp())
    models = References(models=16, values=values, members=phi.members)
    z = Population(models=16, target=said[~members], references=values[:, ~members])

    scores = rmia_online(said, models, population=z)

    inside = torch.where(phi.members, values.exp(), 0).sum(0) / phi.members.sum(0)
    outside = torch.where(phi.members, 0, values.exp()).sum(0) / (~phi.members).sum(0)
    ratio = said.exp() / ((inside + outside) / 2)
    assert auc(scores[members], scores[~members]) == pytest.approx(auc(ratio[members], ratio[~members]), abs=0.005)
    assert auc(scores[members], scores[~members]) > auc(said[members], said[~members]) + 0.05

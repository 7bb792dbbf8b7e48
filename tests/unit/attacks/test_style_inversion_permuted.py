"""The negative control of inversion in the long run: permuted styles, drawn by one trained generator, find nobody."""

from dataclasses import replace

import pytest
import torch
from scipy import stats
from torch import Tensor

from fdgsec.attacks.style_inversion.attack import StyleInversion
from fdgsec.attacks.style_inversion.reconstruction_answers import reconstruct_rows
from fdgsec.attacks.style_inversion.style_rows import populations
from fdgsec.data.domains import downsample
from fdgsec.runtime.random_streams import child, stream
from fdgsec.threats.answers import Reconstructions
from fdgsec.threats.judging.galleries import squared_distances
from fdgsec.threats.judging.judge import Judge
from tests.support.quadrants import SERVER

PERMUTATIONS = 100
ROOT = stream(11, "attack", "permuted")


def percentiles(pictures: Tensor, gallery: Tensor, true: Tensor) -> Tensor:
    """The rank of each picture's true image among all, as a share of them: (R,), the smallest 1 / R."""
    distances = squared_distances(pictures, gallery)
    own = distances[torch.arange(len(true)), true]
    return (distances <= own[:, None]).sum(1).to(torch.float64) / len(gallery)


@pytest.mark.medium
def test_the_negative_control_is_the_runs_own_pictures_each_given_to_another_row():
    attack = StyleInversion(losses=("mse",), priors=("intra",))
    control = attack.positive_control(SERVER, child(ROOT, "plant"))
    rng, control_rng = child(ROOT, "run"), child(ROOT, "shuffled")

    answers, exchanged = attack.run_with_control(control.cases, control.knowledge, rng, control_rng)

    own = [answer for answer in answers if isinstance(answer, Reconstructions)]
    theirs = [answer for answer in exchanged if isinstance(answer, Reconstructions)]
    assert [answer.case for answer in own] == [answer.case for answer in theirs]
    pictures, others = (torch.cat([answer.images for answer in part]).flatten(1) for part in (own, theirs))
    shown = torch.cdist(others, pictures).argmin(1)
    assert sorted(shown.tolist()) == list(range(len(pictures)))  # the same pictures, each once
    assert not bool((shown == torch.arange(len(shown))).any())  # and none for its own row
    assert torch.allclose(others, pictures[shown], atol=1e-5)  # kernels round by the place in a batch


@pytest.mark.slow
def test_permuted_styles_raise_alarm_as_often_as_chance_and_rank_the_truth_uniformly():
    attack = StyleInversion(losses=("mse",))
    control = attack.positive_control(SERVER, child(ROOT, "plant"))
    (rows,) = populations(control.cases, control.knowledge)
    inverter_cache = attack.inverter_cache(control.knowledge, child(ROOT, "train"))
    prior = inverter_cache.prior("intra", "planted", single=True)
    assert prior is not None
    inverter = inverter_cache.inverter(prior, "mse")
    assert inverter is not None
    (case,), (truth,) = control.cases, control.truths
    assert case.candidates is not None
    assert truth.rows is not None
    gallery, count = downsample(case.candidates, (16, 16)), len(rows.features)
    p_values, placed = [], []
    for number in range(PERMUTATIONS):
        child_rng = child(ROOT, "permutation", number)
        order = torch.randperm(count, generator=child_rng)
        drawn = reconstruct_rows(replace(rows, features=rows.features[order]), prior, inverter, child_rng)
        answers = drawn.reconstructions({"prior": "intra", "loss": "mse", "rows": rows.kind})
        (null,) = Judge().null(answers, control.cases, control.truths, child_rng, permutations=199)
        p_values.append(null.p_value)
        # one row of each permutation, whose places are then independent
        asked = int(torch.randint(count, (1,), generator=child_rng))
        placed.append(float(percentiles(drawn.images, gallery, truth.rows)[asked]))

    alarms = sum(p_value < 0.05 for p_value in p_values)
    top_places = sum(place <= 0.05 for place in placed)  # the first 2 of 40
    low, high = (float(stats.binom.ppf(level, PERMUTATIONS, 0.05)) for level in (0.0005, 0.9995))
    assert low <= alarms <= high
    assert low <= top_places <= high
    # uniform on 1/40, 2/40, ..., which lies 1/80 above uniform on [0, 1]
    assert stats.kstest(torch.tensor(placed) - 1 / 80, "uniform").pvalue > 0.001

    own = reconstruct_rows(rows, prior, inverter, child(ROOT, "own"))
    (null,) = Judge().null(own.reconstructions({}), control.cases, control.truths, child(ROOT, "own"), permutations=199)
    assert null.p_value < 0.001  # the same pictures in their own order: what the control must be able to see
    assert float(percentiles(own.images, gallery, truth.rows).mean()) < 0.1

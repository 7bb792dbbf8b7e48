"""Updates and scores that one client, or one image, moves further than their cost allows, and sound ones."""

import pytest

from fdgsec.defenses.dp_fedavg import DPFedAvg
from fdgsec.defenses.private_scores import PrivateScores
from fdgsec.experiments.audit.moved_releases import moved_too_far
from fdgsec.federation.defense import Defense
from fdgsec.methods.fedavg import FedAvg
from fdgsec.methods.feddag_dp import FedDAGDP
from tests.support.misstated_updates import (
    ScoresOfRarelyWrongImages,
    ScoresOfTheMajority,
    UpdatesClippedByTensor,
    UpdatesClippedInTheLargest,
    UpdatesClippedWithoutOne,
    UpdatesWithNoiseOf,
    UpdatesWithNoiseOfTheirLength,
    UpdatesWithoutNoiseOnVectors,
)
from tests.unit.experiments.test_moves_beyond_the_cost import site_of


def said_of(defense: Defense) -> list[str]:
    method = FedDAGDP() if isinstance(defense, PrivateScores) else FedAvg()
    site = site_of(method, defense)
    return [f"{one.release.slot} {one.words}" for one in moved_too_far(site, site.defense_stack)]


@pytest.mark.parametrize(
    "liar",
    [
        UpdatesClippedWithoutOne(epsilon=4.0), UpdatesClippedWithoutOne(epsilon=4.0, skipped=3),
        UpdatesClippedByTensor(epsilon=4.0), UpdatesClippedInTheLargest(epsilon=4.0),
        UpdatesWithoutNoiseOnVectors(epsilon=4.0), UpdatesWithNoiseOfTheirLength(epsilon=4.0),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
@pytest.mark.medium
def test_an_update_that_moves_further_is_found(liar: Defense):
    (said,) = said_of(liar)

    assert said.startswith("model "), said


@pytest.mark.parametrize(
    "liar", [ScoresOfTheMajority(), ScoresOfRarelyWrongImages()], ids=lambda value: type(value).__name__
)
def test_scores_that_move_further_are_found(liar: Defense):
    (said,) = said_of(liar)

    assert said.startswith("scores by "), said


@pytest.mark.parametrize(
    "sound",
    [
        DPFedAvg(epsilon=1.0), DPFedAvg(epsilon=8.0), DPFedAvg(epsilon=8.0, neighbors="replace-one"),
        DPFedAvg(epsilon=60.0, trust="distributed"), DPFedAvg(epsilon=8.0, weight_cap=20),
        UpdatesWithNoiseOf(epsilon=8.0), PrivateScores(epsilon=1.0), PrivateScores(epsilon=60.0),
    ],
    ids=lambda value: f"{type(value).__name__}-{value.epsilon:g}",
)  # fmt: skip
@pytest.mark.medium
def test_a_sound_one_is_not(sound: Defense):
    assert said_of(sound) == []

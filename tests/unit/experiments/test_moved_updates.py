"""Updates and scores that one client, or one image, moves further than their cost allows, and sound ones."""

from dataclasses import replace

import pytest

from fdgsec.defenses.dp_fedavg import DPFedAvg
from fdgsec.defenses.private_scores import PrivateScores
from fdgsec.experiments.audit.moved_releases import moved_too_far
from fdgsec.experiments.audit.neighboring_clients import releases_of
from fdgsec.experiments.audit.noise_checks import check_messages
from fdgsec.experiments.audit.noise_within import update_repeats
from fdgsec.federation.defense import Defense
from fdgsec.methods.fedavg import FedAvg
from fdgsec.methods.feddag_dp import FedDAGDP
from fdgsec.testing.small_federation import start_of
from tests.support.misstated_updates import (
    ScoresCut,
    ScoresOfRarelyWrongImages,
    ScoresOfTheMajority,
    ScoresWithoutNoiseWhereLarge,
    UpdatesClippedByTensor,
    UpdatesClippedInTheLargest,
    UpdatesClippedWhereFinite,
    UpdatesClippedWithoutOne,
    UpdatesWithLessNoiseInLaterRounds,
    UpdatesWithNoiseOf,
    UpdatesWithNoiseOfTheirLength,
    UpdatesWithNoiseOverAndOver,
    UpdatesWithNormsAsTheyAre,
    UpdatesWithoutNoiseOnTheStem,
    UpdatesWithoutNoiseOnVectors,
    UpdatesWithTheirAverages,
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
        UpdatesClippedWhereFinite(epsilon=4.0), UpdatesWithNormsAsTheyAre(epsilon=4.0),
        UpdatesWithLessNoiseInLaterRounds(epsilon=4.0),
        UpdatesWithoutNoiseOnTheStem(epsilon=4.0),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
@pytest.mark.medium
def test_an_update_that_moves_further_is_found(liar: Defense):
    (said,) = said_of(liar)

    assert said.startswith("model "), said


@pytest.mark.parametrize(
    "liar",
    [ScoresOfTheMajority(), ScoresOfRarelyWrongImages(), ScoresWithoutNoiseWhereLarge()],
    ids=lambda value: type(value).__name__,
)
def test_scores_that_move_further_are_found(liar: Defense):
    (said,) = said_of(liar)

    assert said.startswith("scores "), said


@pytest.mark.parametrize(
    "sound",
    [
        DPFedAvg(epsilon=1.0), DPFedAvg(epsilon=8.0), DPFedAvg(epsilon=8.0, neighbors="replace-one"),
        DPFedAvg(epsilon=60.0, trust="distributed"), DPFedAvg(epsilon=8.0, weight_cap=20),
        UpdatesWithNoiseOf(epsilon=8.0), PrivateScores(epsilon=1.0), PrivateScores(epsilon=60.0),
        ScoresCut(epsilon=8.0),
    ],
    ids=lambda value: f"{type(value).__name__}-{value.epsilon:g}",
)  # fmt: skip
@pytest.mark.medium
def test_a_sound_one_is_not(sound: Defense):
    assert said_of(sound) == []


def test_averages_beside_an_update_are_found():
    defense = UpdatesWithTheirAverages(epsilon=4.0)
    site = replace(site_of(FedAvg(), defense), model=start_of(FedAvg(), norm="batch"))

    (one,) = moved_too_far(site, site.defense_stack)

    assert one.by == "one client"
    assert one.words.startswith("in what has no noise")


@pytest.mark.parametrize("defense", [UpdatesWithNoiseOverAndOver(), DPFedAvg()], ids=lambda value: type(value).__name__)
def test_noise_of_an_update_that_comes_again_is_found(defense: Defense):
    site = site_of(FedAvg(), defense)
    (update,) = next(releases for releases in releases_of(site) if releases[0].step == "fit")

    assert update_repeats(update, site.defense_stack) == isinstance(defense, UpdatesWithNoiseOverAndOver)


def test_scores_that_are_cut_do_not_come_again():
    site = site_of(FedDAGDP(), ScoresCut(epsilon=4.0))
    scores = next(releases for releases in releases_of(site) if releases[0].step == "review")

    found = check_messages(scores, site, 0, releases=1024, confidence=0.95)

    assert found.alike is None

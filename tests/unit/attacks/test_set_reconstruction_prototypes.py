"""Set reconstruction from class means of features: FPL's prototypes of clients that train for one round."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear

from fdgsec.attacks.set_reconstruction.attack import SetReconstruction
from fdgsec.attacks.set_reconstruction.class_means import prototypes_of, reader_of_prototypes, way_to_update
from fdgsec.attacks.statistics.domain_populations import images_of
from fdgsec.data.domains import as_float
from fdgsec.data.roles import Roles
from fdgsec.experiments.simulated_runs.challenger import Challenger
from fdgsec.federation.artifacts import Prototypes
from fdgsec.federation.global_model import GlobalModel
from fdgsec.methods.fpl import FPL
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.attack import Question, TargetFacts
from tests.support.stablefdg_setting import start
from tests.support.three_domains import (
    challenger_of,
    exact_lists,
    knowledge_of,
    lists_and_null,
    mean_area,
    members_of,
    roles_of_shapes,
)

QUESTION = Question(kind="prototypes", count=2, records=28, gallery=56)
STEP = TrainingPlan(batch_size=64, learning_rate=0.01, crop=None, flip=0.0)
AUGMENTED = TrainingPlan(batch_size=8, learning_rate=0.01)


@pytest.fixture(scope="module")
def roles() -> Roles:
    return roles_of_shapes()


def trained(roles: Roles, plan: TrainingPlan = STEP) -> Challenger:
    method = FPL(plan=plan)
    return challenger_of(roles, method=method, model=start(method))


def model_of(challenger: Challenger) -> GlobalModel:
    assert challenger.model is not None
    return challenger.model


def knowing(challenger: Challenger) -> Knowledge:
    """What the server knows, its network and the clients' plan among it."""
    return replace(
        knowledge_of(challenger), network=lambda state: model_of(challenger).with_state(state).module(),
        plan=challenger.method.client_plan,
    )  # fmt: skip


@pytest.mark.medium
def test_prototypes_of_one_step_are_class_means_under_the_model_that_was_sent(roles: Roles):
    """The definition, and the equations: features less their class's prototype sum to zero over the members."""
    challenger = trained(roles)
    case, truth = challenger.cases(QUESTION)[0]
    assert case.candidates is not None
    inside = case.candidates.subset(members_of(truth))
    with torch.no_grad():
        features = model_of(challenger).module().train().features(as_float(inside.pixels()))
    sent = prototypes_of(case.views[0], case.victim)
    for label, prototype in zip(sent.classes.tolist(), sent.features, strict=True):
        torch.testing.assert_close(prototype, features[inside.labels == label].mean(0), rtol=1e-4, atol=1e-5)

    known = reader_of_prototypes([case], knowing(challenger), stream(0, "attack")).equations(case, case)
    total, spread = known.candidates[members_of(truth).numpy()].sum(0), np.abs(known.candidates).sum(0)
    assert float(np.abs(total).max()) < 0.01 * float(np.median(spread))


@pytest.mark.medium
def test_lists_behind_prototypes_of_one_step_are_exact_through_the_target(roles: Roles):
    """The control through the target: FPL's own training; and the null, of clients of the adversary's images."""
    challenger = trained(roles)

    rows, null = lists_and_null(challenger, knowing(challenger), QUESTION)

    assert exact_lists(rows) == [1.0] * 3
    assert abs(null - 0.5) < 0.2


def test_another_solver_finds_the_same_list_from_one_class_at_a_time(roles: Roles):
    """The second implementation: scipy's bounded least squares on raw features, class by class."""
    challenger = trained(roles)
    case, truth = challenger.cases(QUESTION)[0]
    assert case.candidates is not None
    network, pixels = model_of(challenger).module().train(), as_float(case.candidates.pixels())
    with torch.no_grad():
        network.features(pixels[members_of(truth)])  # its batch statistics, as training saw them
    for layer in network.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            assert layer.running_mean is not None
            assert layer.running_var is not None
            before = 0.9 * torch.ones(1)  # of the running variance, at first 1
            layer.running_mean, layer.running_var = layer.running_mean / 0.1, (layer.running_var - before) / 0.1
    with torch.no_grad():
        features = network.eval().features(pixels).double()
    sent, found = prototypes_of(case.views[0], case.victim), torch.zeros(len(features), dtype=torch.bool)
    for label, prototype in zip(sent.classes.tolist(), sent.features.double(), strict=True):
        mine = (case.candidates.labels == label).nonzero().flatten()
        count = int((members_of(truth)[mine]).sum())
        matrix = torch.cat([features[mine].T, torch.ones(1, len(mine), dtype=torch.float64)])
        target = torch.cat([count * prototype, torch.tensor([float(count)], dtype=torch.float64)])
        weights = lsq_linear(matrix.numpy(), target.numpy(), (0, 1), method="bvls").x
        found[mine[weights > 0.5]] = True
    assert torch.equal(found, members_of(truth))


@pytest.mark.medium
def test_augmentation_and_several_steps_blur_prototypes_and_members_still_rank(roles: Roles):
    challenger = trained(roles, AUGMENTED)
    pairs = challenger.cases(QUESTION)
    cases, truths = [case for case, _ in pairs], [truth for _, truth in pairs]
    answers = SetReconstruction().run(cases, knowing(challenger), stream(0, "attack"))
    assert 0.53 < mean_area(answers, truths) < 1


def test_candidates_of_a_class_that_was_not_sent_are_no_members(roles: Roles):
    challenger = trained(roles)
    case, _ = challenger.cases(QUESTION)[0]
    assert case.candidates is not None
    sent = prototypes_of(case.views[0], case.victim)
    fewer = Prototypes(features=sent.features[1:], classes=sent.classes[1:])
    told = tuple(
        replace(one, artifact=fewer) if one.sender == case.victim and isinstance(one.artifact, Prototypes) else one
        for one in case.views[0].messages
    )
    seen = replace(case, views=(replace(case.views[0], messages=told),))
    known = reader_of_prototypes([case], knowing(challenger), stream(0, "attack")).equations(case, seen)
    found = known.solved(0.1)
    assert float(found.scores()[case.candidates.labels == sent.classes[0]].max()) < 0.01


def test_clients_larger_than_the_adversarys_images_are_learned_from_clients_of_all_of_these(roles: Roles):
    """One step on them has no error: their features are those of one step, not of as many as a larger client takes."""
    challenger = trained(roles)
    case, _ = challenger.cases(QUESTION)[0]
    reader = reader_of_prototypes([case], knowing(challenger), stream(0, "attack"))
    assert len(images_of(reader.knowledge, reader.domain)) <= STEP.batch_size

    error, _ = replace(reader, size=10 * STEP.batch_size).error

    assert case.candidates is not None
    spread = reader.features(case.candidates, case.views[0], case.victim, size=28).std(0)
    assert float((error.abs() / spread.clamp_min(1e-3 * float(spread.max()))).max()) < 0.01


@pytest.mark.parametrize(
    ("plan", "size", "way"),
    [
        (TrainingPlan(batch_size=64), 40, 0.0),  # one step: no step has been taken before
        (TrainingPlan(batch_size=10), 40, 0.375),  # 0, 1, 2, 3 of 4
        (TrainingPlan(batch_size=10, epochs=2), 40, 0.6875),  # 4 to 7 of 8
        (TrainingPlan(batch_size=10, steps=6), 40, 0.75),  # the last pass has two: 4 and 5 of 6
    ],
)
def test_features_are_those_of_the_last_pass(plan: TrainingPlan, size: int, way: float):
    assert way_to_update(plan, size) == pytest.approx(way)


def test_clients_that_train_are_asked_about_with_all_members_in_the_gallery(roles: Roles):
    facts = TargetFacts(
        artifact_kinds=frozenset({"ModelState", "Prototypes"}), clients=3, images_per_client=100, classes=7,
        profile="quick",
    )  # fmt: skip
    questions = SetReconstruction(sizes=(40,)).plan(facts)
    assert [(one.kind, one.records, one.held) for one in questions] == [("prototypes", 40, 1.0)] * 2
    challenger = trained(roles)
    assert replace(challenger, model=None, memo={}).cases(QUESTION) == []
    case, _ = challenger.cases(QUESTION)[0]
    with pytest.raises(UsageError, match="without any"):
        SetReconstruction().run([replace(case, candidates=None)], knowing(challenger), stream(0, "attack"))

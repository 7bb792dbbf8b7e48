"""Set reconstruction from head gradients: FedIIR's upload before training."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from fdgsec.attacks.set_reconstruction.attack import SetReconstruction
from fdgsec.attacks.set_reconstruction.head_gradients import (
    gradient_of,
    head_gradients,
    mean_of_batches,
    reader_of_gradients,
)
from fdgsec.attacks.set_reconstruction.list_equations import ListEquations
from fdgsec.attacks.set_reconstruction.unequal_weights import listed_weights
from fdgsec.data.domains import as_float
from fdgsec.data.roles import Roles
from fdgsec.experiments.simulated_runs.challenger import Challenger
from fdgsec.federation.artifacts import HeadGradient
from fdgsec.federation.global_model import GlobalModel
from fdgsec.methods.fediir import FedIIR
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import ADVERSARIES, Knowledge
from fdgsec.threats.attack import Question, TargetFacts
from tests.support.stablefdg_setting import start
from tests.support.three_domains import (
    challenger_of,
    exact_lists,
    knowledge_of,
    lists_and_null,
    members_of,
    roles_of_shapes,
)

QUESTION = Question(kind="head_gradients", count=3, records=26, gallery=52)
WHOLE, RAGGED = TrainingPlan(batch_size=64), TrainingPlan(batch_size=8)
FACTS = TargetFacts(
    artifact_kinds=frozenset({"ModelState", "HeadGradient"}), clients=3, images_per_client=100, classes=7,
    profile="quick", knows=frozenset(ADVERSARIES["server"].knows),
)  # fmt: skip


@pytest.fixture(scope="module")
def roles() -> Roles:
    return roles_of_shapes()


def sharing(roles: Roles, plan: TrainingPlan = WHOLE) -> Challenger:
    method = FedIIR(plan=plan)
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


def test_an_images_gradient_is_that_of_automatic_differentiation():
    rng = torch.Generator().manual_seed(0)
    head, features = torch.nn.Linear(5, 3).double(), torch.randn(4, 5, dtype=torch.float64, generator=rng)
    labels = torch.tensor([0, 2, 1, 2])
    found = head_gradients(features, head(features), labels)
    for row, label in enumerate(labels):
        loss = functional.cross_entropy(head(features[row : row + 1]), label.reshape(1))
        weight, bias = torch.autograd.grad(loss, [head.weight, head.bias])
        torch.testing.assert_close(found[row], torch.cat([weight.flatten(), bias]))


def test_the_last_batch_counts_like_the_others():
    rows = torch.tensor([[0.0], [2.0], [7.0]], dtype=torch.float64)
    assert mean_of_batches(rows, 2).tolist() == [4.0]
    assert mean_of_batches(rows, 3).tolist() == [3.0]


@pytest.mark.parametrize("plan", [WHOLE, RAGGED])
@pytest.mark.medium
def test_lists_behind_head_gradients_are_exact_through_the_target(roles: Roles, plan: TrainingPlan):
    """The control through the target, and the null: 26 images are one batch, or three of 8 and one of 2."""
    challenger = sharing(roles, plan)

    rows, null = lists_and_null(challenger, knowing(challenger), QUESTION)

    assert exact_lists(rows) == [1.0] * 3
    assert abs(null - 0.5) < 0.2


def test_another_solver_finds_the_same_list_from_automatic_derivatives(roles: Roles):
    """The second implementation: least squares on gradients that torch differentiates, image by image."""
    challenger = sharing(roles)
    case, truth = challenger.cases(QUESTION)[0]
    assert case.candidates is not None
    network, columns = model_of(challenger).module().eval(), list[torch.Tensor]()
    for row, label in enumerate(case.candidates.labels):
        pixels = as_float(case.candidates.pixels(torch.tensor([row])))
        loss = functional.cross_entropy(network(pixels), label.reshape(1))
        parts = torch.autograd.grad(loss, [network.head.weight, network.head.bias])
        columns.append(torch.cat([part.flatten() for part in parts]).double())
    matrix = torch.stack(columns, dim=1).numpy()
    weights = np.linalg.lstsq(matrix, QUESTION.records * gradient_of(case.views[0], case.victim).numpy(), rcond=1e-8)[0]
    assert torch.equal(torch.from_numpy(weights > 0.5), members_of(truth))


def test_members_of_a_short_last_batch_have_larger_weights(roles: Roles):
    challenger = sharing(roles, RAGGED)
    case, truth = challenger.cases(QUESTION)[0]
    reader = reader_of_gradients([case], knowing(challenger), stream(0, "attack"))
    weights = reader.solved(case, case).scores() / QUESTION.records
    counted = torch.tensor([1 / 32] * 24 + [1 / 8] * 2, dtype=torch.float64)
    torch.testing.assert_close(weights[members_of(truth)].sort().values, counted, rtol=1e-3, atol=0)


def test_known_weights_of_batches_name_lists_that_unknown_ones_leave_open(roles: Roles):
    """50 of 80 with a last batch of 2, by the first 60 components of the gradients: more members than half of them."""
    challenger = sharing(roles, RAGGED)
    case, _ = challenger.cases(QUESTION)[0]
    reader = replace(reader_of_gradients([case], knowing(challenger), stream(0, "attack")), size=50)
    rng = np.random.default_rng(0)
    rows, weights = rng.standard_normal((80, 60)), np.r_[np.full(48, 1 / 56), np.full(2, 1 / 14), np.zeros(30)]
    known = ListEquations(
        candidates=rows, release=weights @ rows, noise=np.full(60, 1e-7), spread=np.ones(60),
        images=50,
    )  # fmt: skip
    assert listed_weights(known) is None
    found = reader.propagated(known)
    assert found is not None
    assert found.believed().tolist() == [True] * 50 + [False] * 30
    other = replace(known, release=rng.standard_normal(60) / 7)
    assert reader.propagated(other) is None


def test_noise_on_a_gradient_leaves_less_than_the_list(roles: Roles):
    """The release's error is what the adversary's own gradients show: behind noise, candidates are ranked."""
    challenger = sharing(roles)
    case, truth = challenger.cases(QUESTION)[0]
    rng = torch.Generator().manual_seed(0)
    noised = tuple(
        replace(one, artifact=HeadGradient(
            weight=one.artifact.weight + 0.01 * torch.randn(one.artifact.weight.shape, generator=rng),
            bias=one.artifact.bias + 0.01 * torch.randn(one.artifact.bias.shape, generator=rng),
        )) if isinstance(one.artifact, HeadGradient) else one
        for one in case.views[0].messages
    )  # fmt: skip
    reader = reader_of_gradients([case], knowing(challenger), stream(0, "attack"))
    seen = replace(case, views=(replace(case.views[0], messages=noised),))
    assert torch.equal(reader.solved(case, case).believed(), members_of(truth))
    assert not torch.equal(reader.solved(case, seen).believed(), members_of(truth))


def test_the_server_is_asked_about_and_a_client_is_refused(roles: Roles):
    questions = SetReconstruction(sizes=(40,)).plan(FACTS)
    assert [(one.kind, one.records, one.held) for one in questions] == [("head_gradients", 40, 1.0)] * 2
    with pytest.raises(UsageError, match="senders' names"):
        SetReconstruction().plan(replace(FACTS, knows=frozenset(ADVERSARIES["client"].knows)))
    challenger = sharing(roles)
    assert replace(challenger, model=None, memo={}).cases(QUESTION) == []
    case, _ = challenger.cases(QUESTION)[0]
    with pytest.raises(UsageError, match="without any"):
        SetReconstruction().run([replace(case, candidates=None)], knowing(challenger), stream(0, "attack"))


def test_the_judge_has_the_pictures_where_they_are_asked_for(roles: Roles):
    case, truth = sharing(roles).cases(
        Question(kind="head_gradients", count=1, records=2, gallery=20, scheme="pictures")
    )[0]
    assert case.candidates is not None
    assert truth.rows is not None
    assert truth.images is not None
    assert torch.equal(case.candidates.pixels(truth.rows), truth.images)
    assert truth.labels is not None
    assert truth.labels.tolist() == case.candidates.labels[truth.rows].tolist()

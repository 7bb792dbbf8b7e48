"""private-scores: what one validation image can do to scores, the noise that hides it, and what whole runs cost."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fdgsec.defenses.private_scores import PrivateScores, sensitivity_of_scores
from fdgsec.experiments.run_config import build
from fdgsec.experiments.setup.guarantees import guarantee_documents
from fdgsec.federation.artifacts import ModelState, Scores
from fdgsec.federation.defense import Outgoing, Protected, Sender
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.method import Client, Clock, Method
from fdgsec.federation.round_loop import RoundLoop
from fdgsec.federation.wire import Wire
from fdgsec.methods.fedavg import FedAvg
from fdgsec.methods.feddag import FedDAG
from fdgsec.methods.feddag_dp import FedDAGDP
from fdgsec.methods.feddg_ga import FedDGGA
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.privacy.accounting import Use, epsilon
from fdgsec.privacy.mechanisms import noise_multiplier
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import simulated_key, simulated_stream
from tests.support.round_loop import four_clients
from tests.support.single_records import drawn, start

PLAN = TrainingPlan(batch_size=8, steps=1, learning_rate=0.05, crop=None, flip=0.0)
METHOD = FedDAGDP(plan=PLAN, warm_up=0, generator="fcn16", rho=0.05)
PAIRS = 150  # neighbors per example of hypothesis


@pytest.fixture(scope="module")
def clients() -> list[Client]:
    return four_clients()[:3]


def review(values: Tensor, *, method: Method = METHOD, rounds: int = 1, **client: object) -> Outgoing:
    """What client:0, with four validation images, answers."""
    judge = replace(four_clients()[0], **client)  # type: ignore[arg-type]
    clock = Clock(round=0, rounds=rounds, participants=("client:0",))
    sender = Sender(client=judge, method=method, clock=clock, model=None, state={}, statistic_source=None)
    return Outgoing(round=0, stage="review", name="scores", artifact=Scores(values=values), sender=sender)


def protected(defense: PrivateScores, message: Outgoing, draw: int = 0) -> Protected:
    found = defense.on_message(message, simulated_stream(0, "test", draw))
    assert found is not None
    return found


def cost(found: Protected) -> Use:
    assert found.uses is not None
    (use,) = found.uses
    return use


@given(
    scores=st.integers(1, 12), images=st.integers(1, 60), bound=st.floats(0.05, 50.0), seed=st.integers(0, 2**31),
    extreme=st.booleans(), gone=st.booleans(),
)  # fmt: skip
@settings(max_examples=100, deadline=None, derandomize=True)
def test_no_image_moves_scores_by_more_than_their_sensitivity(
    scores: int, images: int, bound: float, seed: int, extreme: bool, gone: bool
):
    rng = stream(seed, "world", "losses")
    losses = 3 * bound * torch.rand(PAIRS, images, scores, generator=rng, dtype=torch.float64)
    other = 3 * bound * torch.rand(PAIRS, 1, scores, generator=rng, dtype=torch.float64)
    if extreme:  # nothing, or beyond the cut
        losses, other = (2 * bound * (values > bound).double() for values in (losses, other))
    neighbors = torch.cat([torch.zeros_like(other) if gone else other, losses[:, 1:]], 1)

    moved = (_answers(losses, bound) - _answers(neighbors, bound)).norm(dim=1)  # 100 x 150 pairs

    assert float(moved.max()) <= sensitivity_of_scores(scores=scores, images=images, bound=bound) * (1 + 1e-12)


def _answers(losses: Tensor, bound: float) -> Tensor:
    """Means over images (pairs, images, scores) of losses cut at the bound."""
    return losses.clamp(0, bound).mean(1)


def test_an_image_that_every_model_gets_wrong_for_one_that_none_does_moves_them_by_all_of_it():
    wrong, right = torch.full((1, 5, 3), 9.0).double(), torch.full((1, 5, 3), 9.0).double()
    right[:, 0] = 0

    moved = (_answers(wrong, 4.0) - _answers(right, 4.0)).norm()

    assert float(moved) == pytest.approx(sensitivity_of_scores(scores=3, images=5, bound=4.0))
    assert float(moved) == pytest.approx(math.sqrt(3) * 4 / 5)


def test_a_loss_that_is_no_number_counts_as_the_bound(clients: list[Client]):
    broken = {name: torch.full_like(value, 1e36) for name, value in start(METHOD).state.state.items()}

    answered = METHOD.review(
        clients[0], model=start(METHOD), inbox={"client:1": ModelState(state=broken)}, state={}, rng=drawn("review")
    )

    assert 0 <= float(answered.values) <= METHOD.loss_bound


@pytest.mark.parametrize(("asked", "rounds", "models"), [(0.5, 1, 2), (4.0, 7, 5), (8.0, 50, 1)])
def test_reviews_of_all_rounds_cost_what_was_asked_for(asked: float, rounds: int, models: int):
    message = review(torch.ones(models), rounds=rounds)

    use = cost(protected(PrivateScores(epsilon=asked), message))

    validation = message.sender.client.validation
    assert validation is not None
    assert dict(use.sensitivity) == pytest.approx(
        {relation: math.sqrt(models) * 4.0 / len(validation) for relation in ("replace-one", "zero-out")}
    )
    for relation in ("replace-one", "zero-out"):
        whole = epsilon([use] * rounds, delta=1e-5, relation="replace-one" if relation == "replace-one" else "zero-out")
        assert whole == pytest.approx(asked, rel=1e-9)


def test_the_noise_has_the_deviation_that_was_paid_for():
    message, defense = review(torch.full((4000,), 2.0)), PrivateScores(epsilon=2.0)

    found = protected(defense, message)

    moved = found.artifact.tensors()["values"].double() - 2.0
    assert float(moved.std()) == pytest.approx(cost(found).noise, rel=0.05)  # 4.5 standard errors
    assert cost(found).noise == pytest.approx(noise_multiplier(2.0, 1e-5) * cost(found).sensitivity["zero-out"])


def test_noise_comes_from_the_stream_that_is_handed_in():
    first, again, other = (protected(PrivateScores(), review(torch.ones(3)), draw).artifact for draw in (0, 0, 1))

    assert torch.equal(first.tensors()["values"], again.tensors()["values"])
    assert not torch.equal(first.tensors()["values"], other.tensors()["values"])


def test_without_noise_nothing_is_promised():
    found = protected(PrivateScores(epsilon=math.inf), review(torch.ones(3)))

    assert found.uses is None
    assert found.artifact.tensors()["values"].tolist() == [1.0, 1.0, 1.0]


@dataclass(frozen=True, kw_only=True)
class Uncut(FedDAGDP):
    """Says that its losses are cut at 4, and cuts none."""


@pytest.mark.parametrize("values", [[1.0, 4.1], [-0.1, 1.0]])
def test_scores_beyond_what_their_method_says_are_refused(values: list[float]):
    with pytest.raises(UsageError, match=r"Uncut says that its scores lie in \[0, 4\]"):
        protected(PrivateScores(), review(torch.tensor(values), method=Uncut()))


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (FedAvg(), "FedAvg sends no scores"),
        (FedDAGDP(beta=0.0, k=0), "FedDAGDP sends no scores"),
        (FedAvg(select="validation"), "of FedAvg have not; take feddag-dp"),
        (FedDAG(), "of FedDAG have not; take feddag-dp"),
        (FedDGGA(), "of FedDGGA have not; take feddag-dp"),
    ],
)
def test_methods_without_scores_or_without_a_bound_are_refused(method: Method, said: str):
    with pytest.raises(UsageError, match=said):
        PrivateScores().check(method)


@pytest.mark.parametrize("stage", ["share", "update"])
def test_what_is_no_review_is_none_of_its_business(stage: str):
    message = replace(review(torch.ones(2)), stage=stage)

    assert PrivateScores().on_message(message, simulated_stream(0, "any")) is None


def test_a_judge_without_validation_images_is_refused():
    with pytest.raises(UsageError, match="client:0 judges models without validation images"):
        protected(PrivateScores(), review(torch.ones(2), validation=None))


@pytest.mark.parametrize("options", [{"epsilon": 0.0}, {"epsilon": math.nan}, {"delta": 0.0}, {"delta": 1.0}])
def test_options_out_of_range_are_refused(options: Mapping[str, object]):
    with pytest.raises(UsageError, match="private-scores"):
        build(PrivateScores, options, where="defense private-scores")


@pytest.mark.medium
def test_alone_it_promises_scores_and_names_models(clients: list[Client]):
    defense_stack = DefenseStack(defenses=(PrivateScores(epsilon=2.0),), name="test")
    wire = Wire(secret=lambda upload, number: simulated_stream(0, number), keep=lambda message: False)
    engine = LocalEngine(members=clients, method=METHOD, seed=0, defense_stack=defense_stack)

    RoundLoop(method=METHOD, engine=engine, wire=wire, key=simulated_key(0), rounds=3).run(start(METHOD))

    run, scores = guarantee_documents(wire.ledger, defense_stack, METHOD, delta=1e-5, simulated=True)
    assert run["epsilon"] is None
    assert run["uncovered"] == ["update/model", "update/generator", "update/perturbed", "update/numbers"]
    assert (scores["part"], scores["relation"]) == ("scores only", "replace-one")
    assert float(str(scores["epsilon"])) == pytest.approx(2.0, rel=1e-6)

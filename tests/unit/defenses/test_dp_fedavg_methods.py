"""dp-fedavg under methods that send more than a model: whom it refuses before training, and what the ledger then names."""

from collections.abc import Sequence

import pytest

from fdgsec.defenses.dp_fedavg import DPFedAvg
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client
from fdgsec.federation.round_loop import RoundLoop
from fdgsec.federation.stacked_methods import Stacked
from fdgsec.federation.wire import Wire
from fdgsec.methods.fedavg import FedAvg, detached
from fdgsec.methods.fedbn import FedBN
from fdgsec.methods.feddg_ga import FedDGGA
from fdgsec.methods.mixstyle import MixStyle
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.privacy.ledger import Guarantee
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import simulated_key, simulated_stream
from tests.support.toy_federation import images

PLAN = TrainingPlan(steps=1, batch_size=4, crop=None, learning_rate=0.1)


def guarantees(method: FedAvg, *, norm: str = "group", rounds: int = 2) -> Sequence[Guarantee]:
    """What a run of three clients promises under dp-fedavg."""
    plan = Blueprint(backbone="tiny", classes=2, norm="batch" if norm == "batch" else "group", remodel=method.remodel)
    begun = GlobalModel(blueprint=plan, state=ModelState(state=detached(plan.network(stream(0, "world", "start")))))
    members = [Client(name=f"client:{number}", data=images(8, f"c{number}")) for number in range(3)]
    defense_stack = DefenseStack(defenses=(DPFedAvg(epsilon=2.0),))
    defense_stack.check(method)
    wire = Wire(secret=lambda upload, number: simulated_stream(0, number), keep=lambda message: False)
    engine = LocalEngine(members=members, method=method, seed=0, defense_stack=defense_stack)
    RoundLoop(method=method, engine=engine, wire=wire, key=simulated_key(0), rounds=rounds).run(begun)
    return wire.ledger.guarantees(delta=1e-5)


def test_gaps_among_an_updates_numbers_are_refused_before_training_for_they_would_be_dropped():
    with pytest.raises(UsageError, match=r"dp-fedavg keeps clients' numbers \(gap\), by which the server of feddg-ga"):
        DPFedAvg().check(FedDGGA(rule="pardon"))
    with pytest.raises(UsageError, match="feddg-ga"):
        DPFedAvg().check(Stacked(base=FedDGGA(rule="pardon"), local=MixStyle()))


@pytest.mark.medium
def test_gaps_that_come_as_scores_after_aggregation_are_sent_and_named_as_unprotected():
    run, model = guarantees(FedDGGA(plan=PLAN))

    assert (run.epsilon, run.uncovered) == (None, ("review/scores",))
    assert model.part == "model only"
    assert model.epsilon == pytest.approx(2.0, rel=1e-6)


@pytest.mark.medium
def test_batch_norm_that_fedbn_sends_beside_the_model_is_named_as_unprotected():
    run, model = guarantees(FedBN(plan=PLAN, unseen="average"), norm="batch")

    assert (run.part, run.epsilon, run.uncovered) == ("run", None, ("update/norm",))
    assert run.line() == "run: none, unprotected: update/norm"
    assert model.covers == ("update/model", "update/numbers")
    assert model.epsilon == pytest.approx(2.0, rel=1e-6)


@pytest.mark.medium
def test_batch_norm_that_stays_with_its_client_is_no_release():
    (run,) = guarantees(FedBN(plan=PLAN, unseen="initial"), norm="batch")

    assert run.covers == ("update/model", "update/numbers")
    assert run.epsilon == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize(("trust", "refused"), [("distributed", True), ("local", False), ("server", False)])
def test_a_quorum_is_refused_where_a_missing_client_would_take_its_noise_along(trust: str, refused: bool):
    defense_stack = DefenseStack(defenses=(DPFedAvg(trust=trust),))  # type: ignore[arg-type]

    if refused:
        with pytest.raises(UsageError, match="needs every client's noise in the sum; leave --quorum at 1"):
            defense_stack.check_quorum(0.5)
    else:
        defense_stack.check_quorum(0.5)
    defense_stack.check_quorum(1.0)

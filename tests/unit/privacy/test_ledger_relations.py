"""The ledger over mechanisms with different neighboring relations: one relation for all, named beside every epsilon."""

import math

import pytest

from fdgsec.defenses.dp_sgd import DPSGD
from fdgsec.experiments.setup.guarantees import CHOSEN, guarantee_documents
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.methods.fedavg import FedAvg
from fdgsec.privacy.accounting import Use
from fdgsec.privacy.ledger import Ledger
from fdgsec.privacy.mechanisms import epsilon_of

DELTA = 1e-5
STYLE = Use(mechanism="gaussian", noise=2.0, sensitivity={"replace-one": 2.0, "zero-out": 1.0})
MODEL = Use(mechanism="gaussian", noise=3.0, sensitivity={"zero-out": 1.0})


def ledger(*stages: tuple[str, Use]) -> Ledger:
    found = Ledger()
    for stage, use in stages:
        found.write("client:0", round=0, stage=stage, kinds={"a": "kind"}, uses={"a": (use,)})
    return found


def test_a_joint_epsilon_counts_every_mechanism_in_the_relation_that_it_states():
    run, style, model = ledger(("share", STYLE), ("update", MODEL)).guarantees(delta=DELTA)

    together = 1 / math.sqrt(1 / 2**2 + 1 / 3**2)  # the style's multiplier is 2 under zero-out, 1 under replace-one
    assert [one.relation for one in (run, style, model)] == ["zero-out"] * 3
    assert run.epsilon == pytest.approx(epsilon_of(together, DELTA))
    assert style.epsilon == pytest.approx(epsilon_of(2.0, DELTA))
    assert model.epsilon == pytest.approx(epsilon_of(3.0, DELTA))


def test_a_mechanism_alone_is_stated_in_its_strictest_relation():
    (run,) = ledger(("share", STYLE)).guarantees(delta=DELTA)

    assert run.relation == "replace-one"
    assert run.epsilon == pytest.approx(epsilon_of(1.0, DELTA))


def test_every_printed_epsilon_has_relation_unit_and_delta():
    for one in ledger(("share", STYLE), ("update", MODEL)).guarantees(delta=DELTA):
        assert "at delta 1e-05 per record (zero-out), over" in one.line()


def test_options_that_were_chosen_on_private_images_are_named_as_not_accounted():
    documents = guarantee_documents(
        ledger(("update", MODEL)), DefenseStack(defenses=(DPSGD(epsilon=8.0),)), FedAvg(), delta=DELTA, simulated=False
    )

    assert documents
    assert all(CHOSEN in str(one["assumptions"]) for one in documents)


@pytest.mark.parametrize("uses", [None, (MODEL,)])
def test_validation_images_whose_scores_weigh_the_models_are_said_not_to_be_covered(uses: tuple[Use, ...] | None):
    found = ledger(("update", MODEL))
    found.write("client:0", round=0, stage="review", kinds={"scores": "Scores"}, uses={"scores": uses})

    documents = guarantee_documents(
        found, DefenseStack(defenses=(DPSGD(epsilon=8.0),)), FedAvg(), delta=DELTA, simulated=False
    )

    said = ["images that a client keeps for validation are not covered" in str(one["assumptions"]) for one in documents]
    assert set(said) == {uses is None}

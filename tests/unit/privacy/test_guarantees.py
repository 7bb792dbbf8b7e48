"""Defenses whose promises do not add up are refused before anything is trained; the others add up in the ledger too."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import pytest

import fdgsec
from fdgsec.defenses.dp_fedavg import DPFedAvg
from fdgsec.defenses.dp_sgd import DPSGD
from fdgsec.defenses.private_scores import PrivateScores
from fdgsec.defenses.private_styles import PrivateStyles
from fdgsec.defenses.quantize import Quantize
from fdgsec.experiments.setup.guarantees import attributed
from fdgsec.federation.defense import Defense, PlansGuarantee
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.method import Method
from fdgsec.methods.ccst import CCST
from fdgsec.methods.feddag_dp import FedDAGDP
from fdgsec.privacy.accounting import AdjacencyError, Use
from fdgsec.privacy.guarantees import PlannedGuarantee, check_composable
from fdgsec.privacy.ledger import Guarantee, Ledger, guarantee_line
from fdgsec.runtime.errors import UsageError

CLIENT_STYLES, COUNTED_STYLES = PrivateStyles(unit="client"), PrivateStyles(neighbors="add-remove")
PAYING: Sequence[PlansGuarantee] = [
    PrivateStyles(), PrivateStyles(neighbors="zero-out"), COUNTED_STYLES, CLIENT_STYLES, DPSGD(epsilon=1.0), PrivateScores(),
    DPFedAvg(), DPFedAvg(neighbors="replace-one"),
]  # fmt: skip


def made(defense: PlansGuarantee) -> PlannedGuarantee:
    assert isinstance(defense.promise, PlannedGuarantee)
    return defense.promise


PAIRS = [pair for pair in combinations(map(made, PAYING), 2) if pair[0].stage != pair[1].stage]


def refusal(*defenses: Defense, method: Method | None = None) -> str:
    with pytest.raises(UsageError) as found:
        DefenseStack(defenses=defenses).check(method or CCST())
    return str(found.value)


@pytest.mark.parametrize(
    ("defenses", "said"),
    [
        (
            (DPSGD(epsilon=8.0), CLIENT_STYLES),
            ("dp-sgd protects records and private-styles:unit=client,neighbors=replace-one clients",),
        ),
        (
            (PrivateStyles(), DPFedAvg()),
            (
                "private-styles:unit=record,neighbors=replace-one protects records",
                "dp-fedavg:neighbors=zero-out clients",
            ),
        ),
        (
            (DPSGD(epsilon=8.0), COUNTED_STYLES),
            ("dp-sgd holds under zero-out", "private-styles:unit=record,neighbors=add-remove under add-remove"),
        ),
    ],
    ids=["another unit", "a unit that another defense brings", "another relation"],
)
def test_two_that_do_not_compose_are_named_with_what_to_choose(defenses: Sequence[Defense], said: Sequence[str]):
    message = refusal(*defenses)

    assert all(part in message for part in said)
    assert "let both protect records" in message or "take neighbors=zero-out" in message
    assert "\n" not in message


@pytest.mark.parametrize("styles", ["unit=client", "neighbors=add-remove"])
def test_what_does_not_compose_is_refused_before_a_round_is_trained(styles: str):
    defenses = ["dp-sgd:epsilon=8", f"private-styles:{styles}"]

    with pytest.raises(AdjacencyError, match=f"dp-sgd .*private-styles.*{styles}.* do not compose"):
        fdgsec.train(
            "ccst", rounds=10**6, defenses=defenses, norm="group", per_domain=8, image_size=32
        )  # would take a year


@pytest.mark.parametrize(
    "defenses",
    [
        (DPSGD(epsilon=8.0), PrivateStyles()),
        (PrivateStyles(neighbors="zero-out"), DPSGD(epsilon=8.0)),
        (PrivateStyles(unit="client"), DPFedAvg()),
        (DPSGD(epsilon=math.inf), CLIENT_STYLES),  # clips, and promises nothing
        (DPSGD(noise_multiplier=0.0), CLIENT_STYLES),
        (DPSGD(epsilon=8.0), PrivateStyles(unit="client", epsilon=math.inf)),
    ],
)
def test_what_composes_or_promises_nothing_is_taken(defenses: Sequence[Defense]):
    DefenseStack(defenses=defenses).check(CCST())


def test_scores_compose_with_records_and_not_with_clients():
    DefenseStack(defenses=(DPSGD(epsilon=8.0), PrivateScores())).check(FedDAGDP())

    with pytest.raises(AdjacencyError, match=r"dp-fedavg.* protects clients and private-scores records"):
        check_composable([made(DPFedAvg()), made(PrivateScores())])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (PrivateStyles(epsilon=0.5), PrivateStyles(epsilon=math.inf, clip=1e9)),
        (PrivateStyles(epsilon=math.inf, clip=1e9), PrivateStyles(epsilon=0.5)),
        (PrivateStyles(), PrivateStyles()),
        (DPSGD(epsilon=8.0), DPFedAvg()),
        (DPFedAvg(), DPSGD(epsilon=8.0)),
    ],
    ids=["the second would release the raw style", "the first would", "the same", "dp-sgd first", "dp-sgd last"],
)
def test_two_mechanisms_on_the_same_messages_are_refused(one: Defense, other: Defense):
    with pytest.raises(UsageError, match=r"both mechanisms on what clients send .* Leave one out\."):
        DefenseStack(defenses=(one, other)).check(CCST())


def use(promise: PlannedGuarantee) -> Use:
    return Use(mechanism="gaussian", noise=2.0, sensitivity=dict.fromkeys(promise.relations, 1.0), unit=promise.unit)


def refused(step: Callable[[], object]) -> bool:
    try:
        step()
    except AdjacencyError:
        return True
    return False


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=lambda promise: promise.by)
def test_the_check_refuses_just_what_the_ledger_cannot_compose(one: PlannedGuarantee, other: PlannedGuarantee):
    ledger = Ledger()
    for promise in (one, other):
        ledger.write("client:0", round=0, stage=promise.stage, kinds={"a": "kind"}, uses={"a": (use(promise),)})

    assert refused(lambda: check_composable([one, other])) == refused(lambda: ledger.guarantees(delta=1e-5))


def stated(*defenses: Defense, covers: tuple[str, ...]) -> Guarantee:
    ledger = Ledger()
    for slot in covers:
        stage, _, name = slot.partition("/")
        use = Use(mechanism="gaussian", noise=2.0, sensitivity={"zero-out": 1.0})
        ledger.write("client:0", round=0, stage=stage, kinds={name: "Any"}, uses={name: (use,)})
    return attributed(ledger.guarantees(delta=1e-5)[0], defenses)


def test_an_epsilon_carries_the_pages_of_the_mechanisms_that_nobody_else_has_checked():
    found = stated(PrivateStyles(), DPSGD(epsilon=1.0), Quantize(), covers=("share/style", "update/model"))

    assert found.document()["vetted"] is False
    assert found.document()["by"] == ["private-styles", "dp-sgd"]
    assert found.line().endswith(" (unvetted: docs/defenses/private-styles.md, docs/defenses/dp-sgd.md)")


def test_a_mechanism_that_did_not_act_is_not_named():
    assert stated(PrivateStyles(), DPSGD(epsilon=1.0), covers=("update/model",)).by == ("dp-sgd",)


@dataclass(frozen=True, kw_only=True)
class OwnStyles(PrivateStyles):
    """A mechanism of somebody else."""


def test_somebody_elses_mechanism_is_unvetted_by_name():
    assert stated(OwnStyles(), covers=("share/style",)).line().endswith("over share/style (unvetted: OwnStyles)")


def test_only_a_review_of_every_mechanism_takes_the_mark_away(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fdgsec.experiments.setup.guarantees.VETTED", frozenset({"private-styles"}))

    one = stated(PrivateStyles(), covers=("share/style",))
    two = stated(PrivateStyles(), DPSGD(epsilon=1.0), covers=("share/style", "update/model"))

    assert one.vetted
    assert one.line().endswith("over share/style")
    assert not two.vetted


def test_what_a_ledger_states_by_itself_and_what_older_runs_stored_is_unvetted():
    ledger = Ledger()
    use = Use(mechanism="gaussian", noise=2.0, sensitivity={"zero-out": 1.0})
    ledger.write("client:0", round=0, stage="share", kinds={"style": "Any"}, uses={"style": (use,)})
    document = ledger.guarantees(delta=1e-5)[0].document()
    older = {key: value for key, value in document.items() if key not in ("by", "vetted")}

    assert guarantee_line(document).endswith("over share/style (unvetted)")
    assert guarantee_line(older).endswith("over share/style (unvetted)")


def test_a_large_delta_says_what_it_allows():
    document = {**stated(DPSGD(epsilon=1.0), covers=("update/model",)).document(), "delta": 0.99}

    assert "but with a probability of 0.99 it may tell anything, over update/model" in guarantee_line(document)
    assert "it may tell anything" not in guarantee_line({**document, "delta": 1e-5})

"""The attack `poisoning`: what is asked for, how harm is judged, and controls that can fail."""

from dataclasses import replace

import pytest

from fdgsec.attacks.poisoning.attack import Poisoning
from fdgsec.attacks.poisoning.control import planted_harm
from fdgsec.data.domains import DomainDataset
from fdgsec.experiments.attack.loop import reason_to_skip
from fdgsec.federation.forged_artifacts import Honest, Scaled
from fdgsec.federation.malicious_client_protocol import MaliciousClient
from fdgsec.metrics.measurement import Measurement
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import ADVERSARIES, Knowledge
from fdgsec.threats.answers import Harm, Harmed, Outcome
from fdgsec.threats.attack import Case, TargetFacts, Truth
from fdgsec.threats.judging.controls import negative_controls, positive_control
from fdgsec.threats.judging.judge import Judge

FACTS = TargetFacts(
    artifact_kinds=frozenset({"StyleStatistics", "InterpolationStyle"}), clients=3, images_per_client=10, classes=2,
    profile="quick", knows=frozenset({"own data"}), rounds=6,
)  # fmt: skip


def nothing(dataset: DomainDataset) -> Moments:
    raise NotImplementedError


BLANK = Knowledge(
    statistics=nothing, encoder="none", class_names=(), domain_names=(), auxiliary=None, unseen=None, own=None
)


def test_forgeries_are_of_what_a_target_sends_malformed_ones_first():
    (pairs, guarded, breakdown) = Poisoning().plan(FACTS)

    assert (pairs.kind, pairs.count, pairs.rounds) == ("hostile", 5, 2)
    assert [f"{one.kind}: {one.name}" for one in pairs.malicious_clients] == [
        "everything: honest",
        *(f"StyleStatistics: {flaw}" for flaw in ("nan", "infinity", "negative", "another shape", "missing")),
        *(f"ModelState: {flaw}" for flaw in ("nan", "infinity", "another shape", "missing")),
        "Scores, weight: weight 1e+12", "StyleStatistics: x10", "StyleStatistics: x100", "ModelState: update x10",
        "ModelState: update x-1", "Scores, weight: weight 1e+06",
    ]  # fmt: skip
    assert (guarded.kind, guarded.clients, guarded.hostile) == ("guarded_exchanges", 9, (2,))
    assert (breakdown.kind, breakdown.clients, breakdown.hostile) == ("breakdown", 21, (1, 3, 5, 7, 9, 10))


def test_a_run_without_training_has_no_model_to_forge_and_a_full_one_all_rounds():
    untrained, *_ = Poisoning().plan(replace(FACTS, rounds=0))
    full, *_ = Poisoning().plan(replace(FACTS, profile="full"))

    assert {one.kind for one in untrained.malicious_clients} == {"everything", "StyleStatistics"}
    assert full.rounds == 6


def test_some_forgeries_alone_can_be_asked_for():
    (pairs,) = Poisoning(forgeries=("update x-1",)).plan(FACTS)

    assert [one.name for one in pairs.malicious_clients] == ["honest", "update x-1"]


@pytest.mark.parametrize(
    ("attack", "facts", "said"),
    [(Poisoning(forgeries=("update x11",)), FACTS, "did you mean 'update x10'"),
     (Poisoning(hostile=(21,)), FACTS, "needs an honest client"), (Poisoning(seeds=0), FACTS, "at least 1"),
     (Poisoning(), replace(FACTS, clients=1), "the forger is the only client")],
)  # fmt: skip
def test_what_cannot_be_asked_is_named(attack: Poisoning, facts: TargetFacts, said: str):
    with pytest.raises(UsageError, match=said):
        attack.plan(facts)


@pytest.mark.parametrize(("adversary", "able"), [("server", False), ("outsider", False), ("client", True)])
def test_only_a_client_can_forge(adversary: str, able: bool):
    reason = reason_to_skip(Poisoning(), "fisc", FACTS.artifact_kinds, ADVERSARIES[adversary])

    assert reason == ("" if able else "not applicable: poisoning needs a malicious client (--adversary client)")


@pytest.mark.medium
def test_a_hundredfold_update_is_found_to_do_harm():
    attack = Poisoning()
    planted_control = attack.positive_control(BLANK, stream(0, "attack"))
    guess = attack.run(planted_control.cases, planted_control.knowledge, stream(0, "attack"))

    (control,) = positive_control(planted_control, guess, Judge(bootstrap_repeats=100), stream(0, "attack"))

    assert control.passed
    assert control.measurement.n == 5


@pytest.mark.parametrize(
    ("malicious_client", "passed"), [(Honest(), True), (Scaled(kind="ModelState", factor=1 + 1e-6), False)]
)
@pytest.mark.medium
def test_the_negative_control_fails_where_a_run_differs_however_little(malicious_client: MaliciousClient, passed: bool):
    planted_control = planted_harm(BLANK, stream(0, "attack"), malicious_client=malicious_client)
    cases = [replace(case, slice={"forgery": "honest"}) for case in planted_control.cases]
    guess = Poisoning().negative_control(cases, BLANK, stream(0, "attack"))

    (null,) = Judge().null(guess, cases, planted_control.truths, stream(0, "attack"))

    assert [control.passed for control in negative_controls([null], comparisons=1)] == [passed]


def judged(*harms: Harm) -> dict[tuple[str, str], Measurement]:
    cases = [Case(question="hostile", views=(), victim="client:0", slice={"forgery": "x10"})] * len(harms)
    guess = [Harmed(case=number) for number in range(len(harms))]
    rows = Judge(bootstrap_repeats=200).measure(guess, cases, [Truth(harm=one) for one in harms], stream(0, "attack"))
    return {(row.name, str(row.slice.get("run", row.slice.get("of", "")))): row for row in rows}


def ran(before: float, after: float, *, moved: float = 0.5, ended: str = "", refused: bool = False) -> Harm:
    outcome = Outcome(ended=ended, refused=refused, accuracy={} if ended else {"unseen domain": after})
    return Harm(
        honest=Outcome(accuracy={"unseen domain": before}), hostile=outcome, blind={"unseen domain": 0.25},
        displacement={} if ended else {"InterpolationStyle": moved},
    )  # fmt: skip


def test_accuracy_lost_is_the_mean_difference_of_pairs_against_no_loss():
    rows = judged(ran(0.9, 0.5), ran(0.8, 0.5, moved=1.5), ran(0.7, 0.5))

    lost = rows["honest_accuracy_drop", ""]
    assert lost.value == pytest.approx(0.3, abs=1e-12)
    assert (lost.chance, lost.leaks, lost.method) == (0.0, True, "paired-bootstrap")
    assert (rows["accuracy", "honest"].value, rows["accuracy", "honest"].chance) == (pytest.approx(0.8), 0.25)
    assert rows["accuracy", "hostile"].value == pytest.approx(0.5)
    assert rows["displacement", "InterpolationStyle"].value == pytest.approx(2.5 / 3)


def test_runs_that_ended_are_counted_and_say_why():
    some = judged(ran(0.9, 0.5), ran(0.8, 0.0, ended="client:1 sent a bad ModelState."), ran(0.7, 0.5))
    none = judged(ran(0.9, 0.0, ended="client:0 sent a bad ModelState.", refused=True))

    assert (some["ended", ""].value, some["refused", ""].value) == (pytest.approx(1 / 3), 0.0)
    assert (some["honest_accuracy_drop", ""].n, some["honest_accuracy_drop", ""].value) == (2, pytest.approx(0.3))
    assert (none["refused", ""].value, none["ended", ""].value) == (1.0, 0.0)
    assert none["honest_accuracy_drop", ""].unavailable == "the run ended: client:0 sent a bad ModelState."


def test_a_drop_among_the_runs_that_a_forgery_left_alive_is_no_evidence_and_ending_runs_is_harm():
    ended = [ran(0.6, 0.0, ended="FloatingPointError: x")] * 7

    rows = judged(*ended, ran(0.6, 0.601), ran(0.62, 0.619), ran(0.61, 0.6105))

    drop = rows["honest_accuracy_drop", ""]
    assert drop.verdict == "7 of 10 runs were ended by the forgery: no evidence of protection"
    assert (rows["ended", ""].value, rows["ended", ""].chance, rows["ended", ""].verdict) == (0.7, 0.0, "leaks")


def test_refusals_put_no_drop_in_doubt_and_no_end_in_five_runs_is_undecided():
    refused = ran(0.6, 0.0, ended="client:0 sent a bad ModelState.", refused=True)

    rows = judged(refused, ran(0.6, 0.601), ran(0.62, 0.619), ran(0.61, 0.6105))

    assert rows["honest_accuracy_drop", ""].verdict == "no leak shown"
    assert rows["ended", ""].verdict.startswith("undecided")


def test_a_forgery_of_what_nobody_sends_is_unavailable_and_no_proof_of_harmlessness():
    same = Outcome(transcript_sha256="ab", accuracy={"unseen domain": 0.5})

    (row,) = judged(Harm(honest=same, hostile=same, displacement={"global model": 0.0})).values()

    assert row.unavailable is not None
    assert row.unavailable.startswith("nothing was forged")

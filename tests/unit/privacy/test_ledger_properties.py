"""The ledger's guarantee is that of the worst-off client, in the strictest relation that all uses know."""

import math
from dataclasses import replace
from itertools import permutations

import pytest

from fdgsec.privacy.accounting import AdjacencyError, Relation, Unit, Use
from fdgsec.privacy.ledger import Guarantee, Ledger, Uses, epsilon_text, guarantee_line
from fdgsec.privacy.mechanisms import epsilon_of

DELTA = 1e-5
ALL: tuple[Relation, ...] = ("replace-one", "add-remove", "zero-out")


def use(multiplier: float, *relations: Relation, unit: Unit = "record", rate: float = 1.0) -> Use:
    return Use(
        mechanism="gaussian", noise=multiplier, sensitivity=dict.fromkeys(relations or ALL, 1.0), unit=unit,
        sampling_rate=rate,
    )  # fmt: skip


def together(*multipliers: float) -> float:
    """The epsilon of Gaussian releases of these multipliers: mu^2 adds up (Dong, Roth & Su 2022, Corollary 2)."""
    return epsilon_of(1 / math.sqrt(sum(1 / multiplier**2 for multiplier in multipliers)), DELTA)


def ledger(*replies: tuple[str, str, Uses], round: int = 0) -> Ledger:
    """A ledger of replies (client, "stage/slot", uses)."""
    made = Ledger()
    for client, place, uses in replies:
        stage, slot = place.split("/")
        made.write(client, round=round, stage=stage, kinds={slot: "StyleStatistics"}, uses={slot: uses})
    return made


def found(made: Ledger, *, own_return: bool = False) -> tuple[Guarantee, ...]:
    return made.guarantees(delta=DELTA, own_return=own_return)


@pytest.mark.parametrize("order", list(permutations([0.8, 2.0, 5.0])))
def test_the_run_costs_what_its_worst_off_client_pays_in_any_order(order: tuple[float, ...]):
    made = ledger(*((f"client:{i}", "share/style", (use(noise),)) for i, noise in enumerate(order)))

    (run,) = found(made)

    assert (run.part, run.epsilon) == ("run", pytest.approx(together(0.8), rel=1e-9))


def test_releases_of_one_client_add_up_and_those_of_others_do_not():
    made = ledger(
        ("client:0", "share/style", (use(2.0), use(3.0))),
        ("client:0", "update/model", (use(1.5),)),
        ("client:1", "share/style", (use(1.4),)),
        ("client:1", "update/model", (use(4.0),)),
    )

    run, share, update = found(made)

    assert [each.part for each in (run, share, update)] == ["run", "share/style", "update/model"]
    assert run.epsilon == pytest.approx(together(2.0, 3.0, 1.5), rel=1e-9)
    assert together(2.0, 3.0, 1.5) > together(1.4, 4.0)
    assert share.epsilon == pytest.approx(together(1.4), rel=1e-9)  # another client is the worst off here
    assert update.epsilon == pytest.approx(together(1.5), rel=1e-9)
    assert (run.covers, share.covers, update.covers) == (
        ("share/style", "update/model"), ("share/style",), ("update/model",),
    )  # fmt: skip
    assert {each.uncovered for each in (run, share, update)} == {()}


@pytest.mark.parametrize("rounds", [1, 3])
def test_rounds_add_up(rounds: int):
    made = Ledger()
    for round in range(rounds):
        made.write("client:0", round=round, stage="update", kinds={"model": "ModelState"}, uses={"model": (use(2.0),)})

    (run,) = found(made)

    assert run.epsilon == pytest.approx(together(*[2.0] * rounds), rel=1e-9)


@pytest.mark.parametrize(
    ("relations", "stated"),
    [
        ([ALL, ALL], "replace-one"),
        ([ALL, ("add-remove", "zero-out")], "add-remove"),
        ([("replace-one", "zero-out"), ("add-remove", "zero-out")], "zero-out"),
        ([("zero-out",), ALL], "zero-out"),
    ],
)
def test_the_strictest_relation_that_all_uses_know_is_stated(relations: list[tuple[Relation, ...]], stated: Relation):
    made = ledger(*((f"client:{i}", "share/style", (use(1.0, *known),)) for i, known in enumerate(relations)))

    assert [each.relation for each in found(made)] == [stated]


def test_each_part_is_stated_in_the_runs_relation():
    made = ledger(
        ("client:0", "share/style", (use(1.0),)), ("client:0", "update/model", (use(1.0, "add-remove", "zero-out"),))
    )

    assert {each.relation for each in found(made)} == {"add-remove"}


def test_uses_without_a_common_relation_have_no_guarantee():
    made = ledger(("client:0", "share/style", (use(1.0, "replace-one"), use(1.0, "add-remove"))))

    with pytest.raises(AdjacencyError, match=r"no neighboring relation is common .*\(replace-one; add-remove\)"):
        found(made)


def test_records_and_clients_do_not_compose_even_where_no_client_has_both():
    made = ledger(("client:0", "share/style", (use(1.0),)), ("client:1", "share/style", (use(1.0, unit="client"),)))

    with pytest.raises(AdjacencyError, match=r"different units \(record, client\)"):
        found(made)


def test_one_release_without_a_mechanism_leaves_the_run_without_a_guarantee():
    made = ledger(
        ("client:0", "share/style", (use(2.0),)),
        ("client:1", "share/style", (use(1.0),)),
        ("client:0", "update/model", (use(1.0),)),
        ("client:1", "update/model", None),
    )

    run, part = found(made)

    assert (run.part, run.epsilon, run.relation, run.mechanism) == ("run", None, None, "none")
    assert (run.covers, run.uncovered) == ((), ("update/model",))
    assert (part.part, part.covers, part.uncovered) == ("style only", ("share/style",), ())
    assert part.epsilon == pytest.approx(together(1.0), rel=1e-9)


def test_a_slot_that_no_defense_named_is_unprotected():
    made = Ledger()
    made.write("client:0", round=0, stage="share", kinds={"style": "StyleStatistics"}, uses={})

    (run,) = found(made)

    assert (run.epsilon, run.uncovered) == (None, ("share/style",))


def test_post_processing_is_covered_and_alone_states_nothing():
    made = ledger(("client:0", "share/style", (use(2.0),)), ("client:0", "update/numbers", ()))

    (run,) = found(made)
    (alone,) = found(ledger(("client:0", "update/numbers", ())))

    assert run.covers == ("share/style", "update/numbers")
    assert run.epsilon == pytest.approx(together(2.0), rel=1e-9)
    assert alone.epsilon is None


@pytest.mark.parametrize("own_return", [False, True])
def test_a_model_trained_on_an_unprotected_share_is_unprotected(own_return: bool):
    made = ledger(
        ("client:0", "share/style", None), ("client:0", "share/bank", (use(8.0),)),
        ("client:0", "update/model", (use(1.0),)), ("client:0", "review/losses", None),
        ("client:0", "review/scores", (use(3.0),)),
    )  # fmt: skip

    run, part = found(made, own_return=own_return)

    assert run.epsilon is None
    open_slots = ("share/style", "review/losses")
    assert run.uncovered == ((*open_slots, "update/model") if own_return else open_slots)
    assert part.part == ("bank + scores only" if own_return else "bank + model + scores only")
    paid = (8.0, 3.0) if own_return else (8.0, 1.0, 3.0)
    assert part.epsilon == pytest.approx(together(*paid), rel=1e-9)


def test_a_share_does_not_come_back_unless_the_method_says_so():
    made = ledger(("client:0", "share/style", None), ("client:0", "update/model", (use(1.0),)))

    assert made.guarantees(delta=DELTA)[0].uncovered == ("share/style",)


def test_an_unprotected_update_leaves_a_protected_share_protected():
    made = ledger(("client:0", "share/style", (use(1.0),)), ("client:0", "update/model", None))

    run, part = found(made, own_return=True)

    assert (run.uncovered, part.covers) == (("update/model",), ("share/style",))


def test_sums_cost_less_only_for_whom_they_were_restated():
    made = ledger(("client:0", "update/model", (use(0.5),)), ("client:1", "update/model", (use(0.5),)))
    made.restate(0, stage="update", slot="model", uses=(use(2.0),), against="who sees sums")
    made.restate(0, stage="update", slot="model", uses=(use(4.0),), against="readers")

    alone, sums, readers = found(made)

    assert [each.part for each in (alone, sums, readers)] == ["run", "run against who sees sums", "run against readers"]
    assert [each.epsilon for each in (alone, sums, readers)] == pytest.approx(
        [together(0.5), together(2.0), together(4.0)], rel=1e-9
    )


@pytest.mark.parametrize(
    ("round", "stage", "slot"), [(1, "update", "model"), (0, "share", "model"), (0, "update", "x")]
)
def test_a_restated_sum_changes_its_own_round_stage_and_slot_alone(round: int, stage: str, slot: str):
    made = ledger(("client:0", "update/model", (use(0.5),)))
    made.restate(round, stage=stage, slot=slot, uses=(use(2.0),), against="who sees sums")

    _, sums = found(made)

    assert sums.epsilon == pytest.approx(together(0.5), rel=1e-9)


def test_a_sum_without_a_guarantee_is_not_listed():
    made = ledger(("client:0", "update/model", (use(0.5),)), ("client:0", "share/style", None))
    made.restate(0, stage="update", slot="model", uses=(use(2.0),), against="who sees sums")

    assert [each.part for each in found(made)] == ["run", "model only", "model only against who sees sums"]


@pytest.mark.parametrize(("clients", "few"), [(1, True), (9, True), (10, False)])
def test_the_number_of_clients_is_an_assumption_of_guarantees_per_client(clients: int, few: bool):
    made = ledger(*((f"client:{i}", "update/model", (use(1.0, unit="client"),)) for i in range(clients)))

    (run,) = found(made)

    demonstration = ": a demonstration" if few else ""
    assert run.assumptions == (f"N = {clients} clients, no amplification by sampling{demonstration}",)
    assert run.unit == "client"


def test_assumptions_are_kept_and_nothing_is_added_for_records():
    (run,) = ledger(("client:0", "share/style", (use(1.0),))).guarantees(
        delta=DELTA, assumptions=("the key is secret",)
    )

    assert run.assumptions == ("the key is secret",)
    assert found(ledger(("client:0", "share/style", None)))[0].assumptions == ()


def test_the_mechanism_names_every_kind_once_and_says_what_was_sampled():
    laplace = Use(mechanism="laplace", noise=1.0, sensitivity={"zero-out": 1.0})
    made = ledger(("client:0", "share/style", (use(1.0), laplace, use(5.0))), ("client:0", "update/model", ()))
    sampled = ledger(("client:0", "update/model", (use(1.0, "zero-out", rate=0.5), use(1.0, "zero-out"))))

    assert [each.mechanism for each in found(made)] == ["gaussian + laplace"]
    assert [each.mechanism for each in found(sampled)] == ["Poisson-sampled gaussian + gaussian"]


def test_a_line_says_the_epsilon_with_its_relation_unit_and_delta_or_what_is_unprotected():
    covered = ledger(("client:0", "share/style", (use(1.0),)), ("client:0", "update/model", (use(1.0),)))
    bare = ledger(("client:0", "share/style", None))

    assert found(covered)[0].line() == (
        f"run: epsilon {together(1.0, 1.0):.4g} at delta 1e-05 per record (replace-one), over share/style, update/model (unvetted)"
    )
    assert found(bare)[0].line() == "run: none, unprotected: share/style"
    assert found(Ledger())[0].line() == "run: none, unprotected: everything"


def test_an_epsilon_is_marked_unless_it_is_vetted_with_the_page_of_each_mechanism():
    (run,) = found(ledger(("client:0", "share/style", (use(1.0),))))

    assert not run.vetted
    assert replace(run, by=("dp-sgd", "of-a-plugin")).line().endswith(
        "over share/style (unvetted: docs/defenses/dp-sgd.md, of-a-plugin)"
    )  # fmt: skip
    assert replace(run, by=("dp-sgd",), vetted=True).line().endswith("over share/style")


def test_no_noise_is_written_as_an_infinite_epsilon():
    document = found(ledger(("client:0", "share/style", (use(0.0),))))[0].document()

    assert document["epsilon"] == "inf"
    assert guarantee_line(document).startswith("run: epsilon inf at delta")


def test_a_round_epsilon_stays_round():
    written = [epsilon_text(value) for value in (8.0, 8 + 1e-13, 7.99999, 0.5, 9.17201, 100.0, 0.0, float("inf"))]

    assert written == ["8", "8", "8", "0.5", "9.173", "100", "0", "inf"]

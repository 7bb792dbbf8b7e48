from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from fdgsec.attacks.model_membership.attack import CONTROLS, ModelMembership
from fdgsec.attacks.model_membership.control import CLASSES, Interpolators, fit_interpolating_classifier
from fdgsec.attacks.model_membership.membership_scores import ModelOutputs, ReferenceOutputs, membership_scores
from fdgsec.attacks.statistics.noise_image_classifiers import linear_classifier, noise_images
from fdgsec.attacks.statistics.reference_federations import (
    assign_images,
    global_model,
    pools_of,
    reference_runs,
    rounds_of,
)
from fdgsec.data.domains import DomainDataset
from fdgsec.experiments.run_config import load_preset, made
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.wire import SERVER, Message
from fdgsec.metrics.measurement import Measurement
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.nn.training.training_loop import logits
from fdgsec.runtime.errors import CannotRunError, UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge, View
from fdgsec.threats.answers import Answer
from fdgsec.threats.attack import Case, PositiveControl, ReadsModels, TargetFacts
from fdgsec.threats.judging.controls import positive_control
from fdgsec.threats.judging.judge import Judge


def nothing(dataset: DomainDataset) -> Moments:
    raise NotImplementedError


BLANK = Knowledge(
    statistics=nothing, encoder="none", class_names=(), domain_names=(), auxiliary=None, unseen=None, own=None
)
ATTACK = ModelMembership(
    references=8
)  # of two clients, who take turns: each has every image twice, as online tests need
FACTS = TargetFacts(artifact_kinds=ATTACK.reads, clients=3, images_per_client=700, classes=7, profile="full")
ALL_TESTS = ["lira", "rmia", "loss", "calibrated", "lira online", "rmia online"]
ROUND_TESTS = ["fedmia loss", "fedmia gradient"]
LABEL_TESTS = ["gap", "label-only"]
REGRESSIONS = ["update regression", "head regression"]


def planted(seed: int = 0) -> PositiveControl:
    return ATTACK.positive_control(BLANK, stream(seed, "attack"))


def answered(cases: Sequence[Case], knowledge: Knowledge, seed: int = 0) -> list[Answer]:
    return list(ATTACK.run(cases, knowledge, stream(seed, "attack")))


def of(answers: Sequence[Answer], test: str, model: str) -> list[Answer]:
    """The answers of one test about single images; of "loss", those about the last round."""
    found = [
        answer
        for answer in answers
        if (answer.slice["test"], answer.slice["model"]) == (test, model) and "set" not in answer.slice
    ]
    return (
        found if test in [*ROUND_TESTS, *REGRESSIONS] else [answer for answer in found if "rounds" not in answer.slice]
    )


def of_sets(row: Measurement) -> bool:
    return "set" in row.slice


def by_references(answers: Sequence[Answer]) -> list[Answer]:
    return [answer for answer in answers if "references" in answer.slice]


def p_value(answers: Sequence[Answer], planted_control: PositiveControl, seed: int) -> float:
    (row,) = Judge().null(
        answers, planted_control.cases, planted_control.truths, stream(seed, "attack", "null"), permutations=199
    )
    return row.p_value


def of_strangers(planted_control: PositiveControl, seed: int) -> list[Case]:
    """The planted questions about models that were trained on images that nobody asks about."""
    images = noise_images(48, side=16, classes=CLASSES, rng=stream(seed, "attack", "strangers"))
    view = Interpolators()(
        [images.subset(torch.arange(24)), images.subset(torch.arange(24, 48))], stream(seed, "attack")
    )
    return [replace(case, views=(view,)) for case in planted_control.cases]


def exhibited(planted_control: PositiveControl) -> list[Case]:
    """The planted questions as a client of a larger federation meets them: two models, and nobody says whose."""
    states = [planted_control.cases[0].views[0].sent(f"client:{number}", ModelState) for number in (2, 1)]
    shown = View(
        messages=tuple(
            Message(round=1, stage="exhibit", sender=SERVER, receiver="client:0", artifact=state)
            for state in states if state is not None
        )
    )  # fmt: skip
    return [replace(case, views=(shown,), domain=None, records=None) for case in planted_control.cases]


def test_the_quick_profile_trains_no_references_and_asks_about_few_clients():
    quick = made("attacks", "model-membership", load_preset("quick")["attacks"]["model-membership"], where="quick")

    assert isinstance(quick, ModelMembership)
    assert quick.references == 0
    assert [question.clients for question in quick.plan(FACTS)] == [6]
    assert [question.clients for question in ModelMembership().plan(FACTS)] == [0]


def test_an_outsider_without_images_is_told_so():
    with pytest.raises(UsageError, match="needs auxiliary or own data"):
        ATTACK.plan(replace(FACTS, knows=frozenset({"encoder", "unseen"})))


def test_the_challenger_keeps_models_for_it():
    assert isinstance(ATTACK, ReadsModels)
    assert ATTACK.keeps == "models=last"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.medium
def test_every_test_finds_what_interpolating_models_remember(seed: int):
    planted_control = planted(seed)

    controls = positive_control(
        planted_control,
        answered(planted_control.cases, planted_control.knowledge, seed),
        Judge(bootstrap_repeats=50),
        stream(seed, "attack"),
    )

    assert {(c.measurement.slice["test"], c.measurement.slice["model"]) for c in controls} == {
        (test, model) for test in [*ALL_TESTS, *LABEL_TESTS, *REGRESSIONS] for model in ("client", "global")
    } | {(test, "client") for test in ROUND_TESTS}
    assert {
        (c.measurement.slice["test"], c.measurement.slice["model"]) for c in controls if of_sets(c.measurement)
    } == {(test, model) for test in ("lira", *REGRESSIONS) for model in ("client", "global")} | {
        ("fedmia loss", "client")
    }
    assert all(control.passed for control in controls), controls


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.medium
def test_a_client_has_a_positive_control_of_models_without_owners(seed: int):
    own = noise_images(4, side=16, classes=4, rng=stream(seed, "attack"))
    planted_control = ATTACK.positive_control(replace(BLANK, own=own), stream(seed, "attack"))

    controls = positive_control(
        planted_control,
        answered(planted_control.cases, planted_control.knowledge, seed),
        Judge(bootstrap_repeats=50),
        stream(seed, "attack"),
    )

    assert {c.measurement.slice["model"] for c in controls} == {"peer", "global"}
    assert {c.measurement.slice["test"] for c in controls} == {*ALL_TESTS, *LABEL_TESTS, *REGRESSIONS}
    assert all(control.passed for control in controls), controls


@pytest.mark.slow
def test_the_shuffled_attack_finds_nothing():
    rows = [(test, model) for test in ("lira", "label-only", *REGRESSIONS) for model in ("client", "global")]
    alarms = dict.fromkeys([*rows, *((test, "client") for test in ROUND_TESTS)], 0)
    for seed in range(20):
        planted_control = planted(seed)
        guess = ATTACK.negative_control(planted_control.cases, planted_control.knowledge, stream(seed, "attack"))
        for test, model in alarms:
            alarms[test, model] += p_value(of(guess, test, model), planted_control, seed) < 0.05

    assert max(alarms.values()) <= 4  # 12 rows of 20 tests at 5%: some row above with probability .03


@pytest.mark.nightly
@pytest.mark.slow
def test_models_of_strangers_betray_nobody():
    rows = [(test, model) for test in [*ALL_TESTS, *LABEL_TESTS, *REGRESSIONS] for model in ("client", "global")]
    alarms = dict.fromkeys([*rows, *((test, "client") for test in ROUND_TESTS)], 0)
    for seed in range(20):
        planted_control = planted(seed)
        answers = answered(of_strangers(planted_control, seed), planted_control.knowledge, seed)
        for test, model in alarms:
            alarms[test, model] += p_value(of(answers, test, model), planted_control, seed) < 0.05

    assert max(alarms.values()) <= 5  # 24 rows of 20 tests at 5%: some row above with probability .008


@pytest.mark.medium
def test_the_shuffled_attack_answers_every_case_and_model():
    planted_control = planted()

    guess = ATTACK.negative_control(planted_control.cases, planted_control.knowledge, stream(0, "attack"))

    for model in ("client", "global"):
        assert [answer.case for answer in of(guess, "lira", model)] == [0, 1]


@pytest.mark.medium
def test_a_client_reads_the_models_that_it_judges_without_knowing_whose_they_are():
    planted_control = planted()
    client = replace(planted_control.knowledge, auxiliary=None, own=planted_control.knowledge.auxiliary)
    cases = exhibited(planted_control)

    rows = Judge(bootstrap_repeats=50).measure(
        answered(cases, client), cases, planted_control.truths, stream(0, "attack")
    )  # fmt: skip

    areas = {row.slice["test"]: row.value for row in rows if row.name == "auc" and not of_sets(row)}
    assert {row.slice["model"] for row in rows} == {"peer"}
    assert set(areas) >= {"lira", "rmia", "loss", "calibrated"}
    assert all(area is not None and area > 0.85 for area in areas.values()), areas


def test_one_exhibit_is_not_taken_for_a_peer():
    planted_control = planted()
    cases = [replace(c, views=(View(messages=c.views[0].messages[:1]),)) for c in exhibited(planted_control)]

    assert answered(cases, planted_control.knowledge) == []
    rows = ATTACK.missing(cases, planted_control.knowledge)
    assert [row.unavailable is not None and "no model" in row.unavailable for row in rows if not of_sets(row)] == [True]


def test_clients_that_are_not_asked_about_are_counted():
    planted_control = planted()
    first = planted_control.cases[:1]

    asked = replace(ATTACK, victims=1).missing(first, planted_control.knowledge)
    everybody = replace(ATTACK, victims=2).missing(planted_control.cases, planted_control.knowledge)

    assert [row.unavailable for row in asked if row.slice.get("clients") == "others"] == [
        "1 further client was not asked about: at most 1 are (attacks.model-membership.victims), and none with few images"
    ]
    assert [row for row in everybody if row.slice.get("clients") == "others"] == []


def test_an_update_without_the_model_before_it_is_said_to_be_unread():
    planted_control = planted()
    alone = [
        replace(case, views=(View(messages=tuple(m for m in case.views[0].messages if m.sender != SERVER)),))
        for case in planted_control.cases
    ]

    def unread(cases: Sequence[Case], attack: ModelMembership) -> list[Measurement]:
        rows = attack.missing(cases, planted_control.knowledge)
        return [row for row in rows if row.slice.get("test") == "update regression"]

    for attack in (ATTACK, replace(ATTACK, tests="regression")):
        (row,) = unread(alone, attack)
        assert "was not seen beside the one that it returned" in str(row.unavailable)
        assert unread(planted_control.cases, attack) == []


def test_regression_alone_does_not_complain_of_references():
    planted_control = planted()

    rows = replace(ATTACK, tests="regression").missing(planted_control.cases, planted_control.knowledge)

    assert [row for row in rows if "reference" in str(row.unavailable)] == []


def test_models_of_one_class_are_not_asked_about():
    with pytest.raises(CannotRunError, match="one class"):
        ATTACK.plan(replace(FACTS, classes=1))


def test_clients_with_too_few_images_are_counted():
    planted_control = planted()

    rows = ATTACK.missing(planted_control.cases[:1], planted_control.knowledge)

    (row,) = [row for row in rows if row.slice.get("clients") == "others"]
    assert row.unavailable == "1 further client was not asked about: none with few images is"


def test_without_references_the_negative_control_trains_for_as_many_rounds_as_are_read():
    planted_control, asked = planted(), list[int]()

    def simulate(data: Sequence[DomainDataset], rng: torch.Generator, *, rounds: int) -> View:
        asked.append(rounds)
        return Interpolators()(data, rng, rounds=rounds)

    long = [replace(case, views=(lasting(case.views[0], 9),)) for case in planted_control.cases]
    knowledge = replace(planted_control.knowledge, simulate=simulate)
    replace(ATTACK, references=0, gradient_rounds=3).negative_control(long, knowledge, stream(0, "attack"))
    replace(ATTACK, references=0, gradient_rounds=1).negative_control(long, knowledge, stream(0, "attack"))
    ATTACK.negative_control(long, knowledge, stream(0, "attack"))

    assert asked == [3, 2, *[9] * (1 + CONTROLS)]


def lasting(view: View, rounds: int) -> View:
    """The view of a run of so many rounds, the last of which is the view's last."""
    later = rounds_of(view) - rounds
    return View(messages=tuple(replace(message, round=message.round - later) for message in view.messages))


def test_the_global_model_of_a_first_round_is_nobodys():
    data = noise_images(8, side=16, classes=4, rng=stream(0, "attack"))
    halves = [data.subset(torch.arange(4)), data.subset(torch.arange(4, 8))]

    assert global_model(Interpolators()(halves, stream(0, "attack"), rounds=1)) is None
    assert global_model(Interpolators()(halves, stream(0, "attack"), rounds=2)) is not None


@pytest.mark.medium
def test_every_row_says_how_many_reference_models_it_was_measured_with():
    planted_control = planted()

    found = by_references(answered(planted_control.cases, planted_control.knowledge))
    control = ATTACK.negative_control(planted_control.cases, planted_control.knowledge, stream(0, "attack"))

    assert {answer.slice["references"] for answer in found} == {8}
    assert {answer.slice["references"] for answer in by_references(list(control))} == {4}


@pytest.mark.medium
def test_few_references_of_many_clients_leave_the_online_tests_out():
    planted_control = planted()

    answers = by_references(
        list(ModelMembership(references=6).run(planted_control.cases, planted_control.knowledge, stream(0, "attack")))
    )

    assert {a.slice["test"] for a in answers if a.slice["model"] == "client"} == {"lira", "rmia", "loss", "calibrated"}
    assert {a.slice["test"] for a in answers if a.slice["model"] == "global"} == set(ALL_TESTS)


def test_an_adversary_that_cannot_run_the_target_is_told_so():
    planted_control = planted()

    with pytest.raises(UsageError, match="cannot run it"):
        answered(planted_control.cases, replace(planted_control.knowledge, simulate=None))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"references": 3}, "references must be 4 or more; got 3"),
        ({"candidates": 1}, "candidates must be 2 or more; got 1"),
        ({"largest": 0}, "largest must be 2 or more; got 0"),
        ({"gradient_rounds": 0}, "gradient_rounds must be finite and at least 1; got 0"),
        ({"sets": (10, 1)}, "sets must be finite and at least 2; got 1"),
    ],
)
def test_numbers_that_no_test_can_be_made_with_are_refused_before_anything_runs(options: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=message):
        replace(ATTACK, **options)


def test_every_image_is_in_as_many_federations_and_with_one_client_of_each():
    dealt = assign_images(8, 100, clients=3, share=0.5, rng=stream(0, "attack"))

    assert dealt.shape == (3, 8, 100)
    assert dealt.sum(0).max() == 1
    assert dealt.any(0).sum(0).tolist() == [4] * 100
    assert dealt.sum(1).max() <= 2  # four federations, three clients who take turns


def test_a_pool_holds_each_candidate_once_and_nothing_that_is_set_aside():
    planted_control = planted()
    twice = [planted_control.cases[0], replace(planted_control.cases[0], victim="client:2")]

    (pool,) = pools_of([0, 1], twice, planted_control.knowledge, stream(0, "attack"))

    candidates = twice[0].candidates
    assert candidates is not None
    assert len(set(pool.images.ids)) == len(pool.images.ids) == pool.public + len(candidates)
    assert not set(pool.images.ids) & set(pool.aside.ids)
    for places in pool.places.values():
        assert [pool.images.ids[int(place)] for place in places] == list(candidates.ids)
        assert torch.equal(pool.images.labels[places], candidates.labels)


def test_references_train_on_what_they_are_said_to_train_on():
    planted_control = planted()
    pools = pools_of([0, 1], planted_control.cases, planted_control.knowledge, stream(0, "attack"))

    runs = list(
        reference_runs(pools, planted_control.knowledge, models=4, most=None, rounds=2, rng=stream(1, "attack"))
    )

    run, (pool,) = runs[2], pools
    state = run.view.sent(run.clients[1], ModelState)
    assert state is not None
    expected = fit_interpolating_classifier(pool.images.subset(run.members[1]))
    assert torch.allclose(state.tensors()["head.weight"], expected["head.weight"])
    assert torch.equal(run.trained_on(pool), run.members[0] | run.members[1])


def test_calibrated_and_loss_scores_are_those_of_the_formulas():
    images = noise_images(12, side=16, classes=4, rng=stream(0, "attack"))
    states = [fit_interpolating_classifier(images.subset(torch.arange(start, start + 6))) for start in (0, 2, 4, 6, 1)]
    outputs = [
        ModelOutputs(pool=given[:8], aside=given[8:])
        for given in (logits(linear_classifier(state), images.pixels()) for state in states)
    ]
    members = torch.tensor([[True] * 4 + [False] * 4, [False] * 8, [False] * 4 + [True] * 4, [False] * 8])
    panel = ReferenceOutputs(
        outputs=outputs[1:], members=members, labels=images.labels[:8], aside_labels=images.labels[8:]
    )
    places = torch.tensor([6, 1, 3])

    found = membership_scores(outputs[0], panel, places)

    assert list(found) == ["lira", "rmia", "loss", "calibrated"]  # one model saw each at most: nothing online
    for row, place in enumerate(places.tolist()):
        label = int(images.labels[place])
        own = float(outputs[0].pool[place].double().log_softmax(0)[label])
        out = [
            float(one.pool[place].double().log_softmax(0)[label])
            for one, inside in zip(outputs[1:], members[:, place].tolist(), strict=True) if not inside
        ]  # fmt: skip
        assert float(found["loss"][row]) == pytest.approx(own, rel=1e-9)
        assert float(found["calibrated"][row]) == pytest.approx(own - sum(out) / len(out), rel=1e-9)


def test_sets_that_are_too_large_are_named_once_for_each_population():
    planted_control = planted()

    rows = [row for row in ATTACK.missing(planted_control.cases, planted_control.knowledge) if of_sets(row)]

    assert [row.slice["set"] for row in rows] == [40]
    assert rows[0].unavailable == "2 sets of 40 members and of others need 160 candidates; client:2 has 48"

"""Gradient inversion: wins where a step was planted, says why where there is none, and finds nothing in others' gradients."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fdgsec.attacks.gradient_inversion.attack import GradientInversion
from fdgsec.attacks.gradient_inversion.candidate_matching import outline_distances
from fdgsec.attacks.gradient_inversion.control import planted_gradients
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.metrics.image_similarity import psnr
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import ADVERSARIES, Knowledge, View
from fdgsec.threats.answers import Answer, Labels, Prediction, Proportions, Ranking, Reconstructions
from fdgsec.threats.attack import Case, PositiveControl, ReadsModels, TargetFacts
from fdgsec.threats.judging.controls import positive_control
from fdgsec.threats.judging.judge import Judge


def nothing(dataset: DomainDataset) -> Moments:
    raise NotImplementedError


BLANK = Knowledge(
    statistics=nothing, encoder="none", class_names=(), domain_names=(), auxiliary=None, unseen=None, own=None
)
ATTACK = GradientInversion(steps=60, variation=0.05)
FACTS = TargetFacts(
    artifact_kinds=frozenset({"ModelState"}), clients=3, images_per_client=700, classes=7, profile="quick",
    knows=frozenset(ADVERSARIES["server"].knows),
)  # fmt: skip


def planted(seed: int = 0, *batches: int) -> PositiveControl:
    return planted_gradients(BLANK, stream(seed, "attack"), batches=batches or (1, 1, 2, 2), heads=0)


def pictures(answers: list[Answer]) -> dict[int, Tensor]:
    return {answer.case: answer.images for answer in answers if isinstance(answer, Reconstructions)}


def as_it_was(planted_control: PositiveControl, **changes: int) -> list[Case]:
    """The planted questions as if about the run itself."""
    return [
        replace(case, question="released", slice={"domain": "planted"}, **changes) for case in planted_control.cases
    ]


def run(cases: list[Case], knowledge: Knowledge, seed: int = 0) -> list[Answer]:
    return list(ATTACK.run(cases, knowledge, stream(seed, "attack", "run")))


def test_it_asks_about_the_run_and_about_single_steps_of_every_size():
    attack = GradientInversion(records=(8, 1, 8), count=3, model="last")

    requests = attack.plan(FACTS)

    assert [(r.kind, r.records, r.count, r.scheme) for r in requests] == [
        ("released", 0, 0, ""), ("single_step", 1, 3, "last"), ("single_step", 8, 3, "last"),
    ]  # fmt: skip


def test_adversaries_without_updates_or_images_are_told_so():
    with pytest.raises(UsageError, match="updates that clients send"):
        ATTACK.plan(replace(FACTS, knows=frozenset(ADVERSARIES["client"].knows)))
    with pytest.raises(UsageError, match="needs auxiliary or own data"):
        ATTACK.plan(replace(FACTS, knows=frozenset(ADVERSARIES["outsider"].knows)))


def test_options_out_of_range_are_refused():
    with pytest.raises(UsageError, match="records of 1 to 8"):
        GradientInversion(records=(9,))
    with pytest.raises(UsageError, match="records of 1 to 8"):
        GradientInversion(steps=-1)


def test_the_challenger_keeps_models_for_it():
    assert isinstance(ATTACK, ReadsModels)
    assert ATTACK.keeps == "models=last"


@pytest.mark.medium
def test_planted_pictures_and_labels_are_recovered_better_than_by_every_control():
    planted_control = planted()

    answers = run(list(planted_control.cases), planted_control.knowledge)

    controls = positive_control(planted_control, answers, Judge(bootstrap_repeats=50), stream(0, "attack"))
    assert {(c.measurement.slice["rows"], c.measurement.slice["over"]) for c in controls} == {
        (rows, over) for rows in ("batch-1", "batch-2") for over in ("B0", "B1", "B2", "B3")
    }
    assert all(control.passed for control in controls), controls
    for answer in answers:
        shares, labels = planted_control.truths[answer.case].proportions, planted_control.truths[answer.case].labels
        assert shares is not None
        assert labels is not None
        if isinstance(answer, Proportions):
            assert torch.equal(answer.estimate, shares)
        if isinstance(answer, Labels):
            assert torch.equal(answer.predicted, labels)
        if isinstance(answer, Prediction):
            assert answer.value < 0.02  # of 1 where gradients have nothing in common


def test_the_picture_is_picked_out_of_candidates_by_its_gradient_and_by_its_outline():
    planted_control = planted(0, 1, 1)
    everything = planted_control.knowledge.public_images()
    shown = replace(everything, rows=torch.arange(26), labels=torch.zeros(26, dtype=torch.int64), domains=torch.zeros(26, dtype=torch.int64), ids=tuple(map(str, range(26))), attributes={})  # fmt: skip
    cases = [
        replace(case, candidates=shown) for case in planted_control.cases
    ]  # the public pictures, then the clients'

    found = [answer for answer in run(cases, planted_control.knowledge) if isinstance(answer, Ranking)]

    assert {(answer.case, answer.slice["by"]) for answer in found} == {
        (case, by) for case in (0, 1) for by in ("gradient", "outline")
    }
    assert [int(answer.distances.argmin()) for answer in found] == [24 + answer.case for answer in found]


def test_outlines_do_not_depend_on_colors():
    shapes = torch.zeros(3, 3, 24, 24)
    shapes[0, :, 4:12, 4:12], shapes[1, :, 12:20, 6:18], shapes[2, :, 2:8, 10:22] = 1.0, 1.0, 1.0
    drawn = 0.7 - 0.3 * shapes[[1]] * torch.tensor([0.2, 1.0, 0.4]).reshape(3, 1, 1)

    apart = outline_distances(drawn, shapes)

    assert float(apart[0, 1]) < 0.01
    assert float(apart[0, [0, 2]].min()) > 0.5


@pytest.mark.medium
def test_the_weight_of_smoothness_is_rehearsed_where_none_is_given():
    planted_control = planted(0, 1)

    answers = list(
        GradientInversion(steps=40).run(planted_control.cases, planted_control.knowledge, stream(0, "attack", "run"))
    )

    images = planted_control.truths[0].images
    assert images is not None
    assert float(psnr(pictures(answers)[0], as_float(images))) > 20.0  # controls reach 9 to 16 dB


def test_the_shuffled_attack_draws_the_pictures_of_others():
    planted_control = planted(1, 1, 1)
    true = [as_float(truth.images) for truth in planted_control.truths if truth.images is not None]

    found = pictures(
        list(ATTACK.negative_control(planted_control.cases, planted_control.knowledge, stream(1, "attack")))
    )

    assert float(psnr(found[0], true[1])) > float(psnr(found[0], true[0])) + 3.0
    assert float(psnr(found[1], true[0])) > float(psnr(found[1], true[1])) + 3.0


def test_a_case_alone_in_its_slice_has_nobody_to_be_shuffled_with_but_is_answered():
    planted_control = planted(0, 1)

    assert list(ATTACK.negative_control(planted_control.cases, planted_control.knowledge, stream(0, "attack"))) == []
    (answer,) = [
        a for a in run(list(planted_control.cases), planted_control.knowledge) if isinstance(a, Reconstructions)
    ]
    assert set(answer.controls) == {"B0", "B1", "B2", "B3"}
    assert not torch.equal(answer.controls["B3"], answer.images)


def test_many_local_steps_are_unavailable_with_their_reason():
    planted_control = planted()
    cases = as_it_was(planted_control, records=700)

    rows = ATTACK.missing(cases, planted_control.knowledge)

    assert run(cases, planted_control.knowledge) == []
    assert {row.name for row in rows} == {"psnr", "mae"}
    for row in rows:
        assert row.slice == {"domain": "planted", "loss": "gradient"}
        assert row.unavailable is not None
        assert "a batch of 64 records" in row.unavailable
        assert "11 local steps" in row.unavailable  # ten full batches and one of 60


@pytest.mark.medium
def test_the_run_itself_is_inverted_where_its_clients_take_one_step():
    planted_control = planted(0, 1, 2)
    cases = as_it_was(planted_control)

    found = pictures(run(cases, planted_control.knowledge))

    assert ATTACK.missing(cases, planted_control.knowledge) == []
    for number, truth in enumerate(planted_control.truths):
        assert truth.images is not None
        assert found[number].shape == truth.images.shape
    alone = planted_control.truths[0].images
    assert alone is not None
    assert float(psnr(found[0], as_float(alone))) > 20.0


@pytest.mark.parametrize(
    ("knowledge", "words"),
    [
        ({"plan": TrainingPlan(optimizer="adam", learning_rate=0.1)}, "Adam"),
        ({"plan": TrainingPlan(momentum=0.9, learning_rate=0.1), "keeps_moments": True}, "momentum 0.9"),
        ({"plan": TrainingPlan(batch_size=1, steps=1, learning_rate=0.1)}, "1 of 2 images"),
        ({"plan": None}, "does not know"),
        ({"network": None}, "does not know"),
    ],
    ids=["adam", "momentum", "part of a client", "no plan", "no architecture"],
)
def test_what_stands_against_the_runs_own_inversion_is_said(knowledge: dict[str, object], words: str):
    planted_control = planted(0, 2)
    known = replace(planted_control.knowledge, **knowledge)  # type: ignore[arg-type]

    row, _ = ATTACK.missing(as_it_was(planted_control), known)

    assert row.unavailable is not None
    assert words in row.unavailable


def test_the_first_step_of_a_fresh_optimizer_has_no_momentum():
    planted_control = planted(0, 1)
    known = replace(planted_control.knowledge, plan=TrainingPlan(momentum=0.9, learning_rate=0.1))

    assert ATTACK.missing(as_it_was(planted_control), known) == []


def test_an_update_that_was_not_seen_or_did_not_move_is_said():
    planted_control = planted(0, 1)
    model, update = planted_control.cases[0].views[0].messages
    unseen = replace(planted_control.cases[0], views=(View(messages=(model,)),))
    still = replace(planted_control.cases[0], views=(View(messages=(model, replace(update, artifact=model.artifact))),))

    reasons = [row.unavailable or "" for row in ATTACK.missing([unseen, still], planted_control.knowledge)]

    assert len(reasons) == 2  # one slice: both reasons in each of its rows
    assert all("no update of client:1 was seen" in reason for reason in reasons)
    assert all("equals the one before it" in reason for reason in reasons)


def test_an_adversary_whose_auxiliary_images_are_none_is_told_so():
    planted_control = planted(0, 1)
    empty = replace(
        planted_control.knowledge, auxiliary=planted_control.knowledge.public_images().subset(torch.arange(0))
    )

    with pytest.raises(UsageError, match="use more images"):
        run(list(planted_control.cases), empty)


@pytest.mark.medium
def test_the_same_stream_gives_the_same_answers():
    planted_control = planted(2, 1)

    first, second = (pictures(run(list(planted_control.cases), planted_control.knowledge)) for _ in range(2))

    assert torch.equal(first[0], second[0])


def p_value(answers: list[Answer], planted_control: PositiveControl, seed: int, name: str) -> float:
    rows = Judge().null(
        answers, planted_control.cases, planted_control.truths, stream(seed, "attack", "null"), permutations=199
    )
    return next(row.p_value for row in rows if row.name == name)


@pytest.mark.slow
def test_the_shuffled_attack_is_silent_and_the_attack_is_not():
    quick = GradientInversion(steps=30, variation=0.05)
    alarms, found = {"psnr": 0, "balanced_accuracy": 0, "mae": 0}, 0
    for seed in range(20):
        planted_control = planted(seed, *[1] * 8)
        answers = list(
            quick.negative_control(planted_control.cases, planted_control.knowledge, stream(seed, "attack", "run"))
        )
        for name in alarms:
            alarms[name] += p_value(answers, planted_control, seed, name) < 0.05
        if seed < 2:
            found += p_value(list(quick.run(planted_control.cases, planted_control.knowledge, stream(seed, "attack"))), planted_control, seed, "psnr") < 0.01  # fmt: skip

    assert max(alarms.values()) <= 4  # 20 tests at 5%: more with probability .003
    assert found == 2


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 2])
def test_gradients_of_strangers_betray_nobody(batch: int):
    quick = GradientInversion(steps=15, variation=0.05)
    alarms = 0
    for seed in range(20):
        planted_control, others = planted(seed, *[batch] * 8), planted(seed + 1000, *[batch] * 8)
        cases = [
            replace(case, views=other.views) for case, other in zip(planted_control.cases, others.cases, strict=True)
        ]
        answers = list(quick.run(cases, planted_control.knowledge, stream(seed, "attack", "run")))
        alarms += p_value(answers, planted_control, seed, "psnr") < 0.05

    assert alarms <= 4

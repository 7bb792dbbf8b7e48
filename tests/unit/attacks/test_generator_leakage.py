from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch

from fdgsec.attacks.generator_leakage.attack import GeneratorLeakage
from fdgsec.attacks.generator_leakage.control import OverfittedGenerators
from fdgsec.attacks.generator_leakage.generator_membership import GeneratorUpdate
from fdgsec.attacks.statistics.noise_image_classifiers import noise_images
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import ModelState
from fdgsec.methods.fedadg import Generator
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge, View
from fdgsec.threats.answers import Answer, Labels, Membership, Reconstructions
from fdgsec.threats.attack import Answers, Case, PositiveControl, ReadsModels, TargetFacts
from fdgsec.threats.judging.controls import positive_control
from fdgsec.threats.judging.judge import Judge
from tests.support.perturbation_generators import BLANK, generator, seen, state_of

pytestmark = pytest.mark.medium

ATTACK = GeneratorLeakage(references=6)
FACTS = TargetFacts(artifact_kinds=ATTACK.reads, clients=3, images_per_client=700, classes=7, profile="quick")


@cache
def planted(seed: int = 0) -> PositiveControl:
    return ATTACK.positive_control(BLANK, stream(seed, "attack"))


def asked(view: View) -> Case:
    return replace(planted_case(), views=(view,))


def planted_case() -> Case:
    images = noise_images(4, side=8, classes=2, rng=stream(0, "attack"))
    return Case(
        question="trained",
        views=(),
        victim="client:1",
        slice={"domain": "planted"},
        domain="planted",
        candidates=images,
    )


def p_value(answers: Sequence[Answer], planted_control: PositiveControl, seed: int) -> float:
    (row,) = Judge().null(
        answers, planted_control.cases, planted_control.truths, stream(seed, "attack", "null"), permutations=199
    )
    return row.p_value


def test_a_server_asks_about_the_trained_run_and_a_client_nothing():
    assert [question.kind for question in ATTACK.plan(FACTS)] == ["trained"]
    assert isinstance(ATTACK, ReadsModels)
    with pytest.raises(UsageError, match="only their mean"):
        ATTACK.plan(replace(FACTS, knows=frozenset({"encoder", "own data"})))
    with pytest.raises(UsageError, match="needs auxiliary"):
        ATTACK.plan(replace(FACTS, knows=frozenset({"encoder", "unseen"})))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"references": 3}, "references must be 4 or more; got 3"),
        ({"largest": 1}, "largest must be 2 or more; got 1"),
        ({"a": 1.5}, r"a must lie in \[0, 1\]"),
        ({"margin": -0.1}, "margin be 0 or more"),
    ],
)
def test_options_that_no_target_has_are_refused_before_anything_runs(options: dict[str, float], message: str):
    with pytest.raises(UsageError, match=message):
        replace(ATTACK, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def won() -> tuple[PositiveControl, Answers]:
    """A plant, and what the attack says about it."""
    planted_control = planted()
    return planted_control, ATTACK.run(planted_control.cases, planted_control.knowledge, stream(0, "attack"))


def controls(planted_control: PositiveControl, guess: Answers) -> dict[str, bool]:
    """By measurement and test, whether the positive control was passed."""
    found = positive_control(planted_control, guess, Judge(bootstrap_repeats=50), stream(0, "attack"))
    return {f"{c.measurement.name} {c.measurement.slice['test']}": c.passed for c in found}


def test_what_was_planted_is_found_by_all_three_questions(won: tuple[PositiveControl, Answers]):
    assert controls(*won) == {
        "auc response": True, "auc loss": True, "balanced_accuracy fingerprint": True, "psnr_gain decoder": True,
    }  # fmt: skip


@pytest.mark.parametrize("always", range(3))
def test_a_fingerprint_that_always_says_the_same_fails_the_positive_control(
    won: tuple[PositiveControl, Answers], always: int
):
    planted_control, guess = won
    broken = [
        replace(answer, predicted=torch.full_like(answer.predicted, always)) if isinstance(answer, Labels) else answer
        for answer in guess
    ]

    passed = controls(planted_control, broken)

    assert [name for name, well in passed.items() if not well] == ["balanced_accuracy fingerprint"]


def test_a_decoder_that_draws_what_its_control_draws_fails_the_positive_control(won: tuple[PositiveControl, Answers]):
    planted_control, guess = won
    broken = [
        replace(answer, images=answer.controls["B3"]) if isinstance(answer, Reconstructions) else answer
        for answer in guess
    ]

    passed = controls(planted_control, broken)

    assert [name for name, well in passed.items() if not well] == ["psnr_gain decoder"]


def test_an_attack_that_asks_one_question_less_fails_the_positive_control(won: tuple[PositiveControl, Answers]):
    planted_control, guess = won

    passed = controls(planted_control, [answer for answer in guess if not isinstance(answer, Labels)])

    assert passed["balanced_accuracy fingerprint"] is False


def test_rows_of_the_decoder_are_measured_and_accuse_nobody(won: tuple[PositiveControl, Answers]):
    planted_control, guess = won

    rows = Judge(bootstrap_repeats=50).measure(
        guess, planted_control.cases, planted_control.truths, stream(0, "attack")
    )

    decoder = [row for row in rows if row.slice.get("test") == "decoder"]
    gains = [row for row in decoder if row.name == "psnr_gain" and row.slice["over"] == "B3"]
    assert {row.verdict for row in decoder} <= {"descriptive", "unavailable"}
    assert [None not in (row.value, row.low, row.high, row.chance) for row in gains] == [True, True]
    assert any(row.leaks for row in rows if row.name == "auc")


def memberships(guess: Sequence[Answer]) -> list[Membership]:
    return [answer for answer in guess if isinstance(answer, Membership)]


def fitting(planted_control: PositiveControl, *, steps: int) -> Knowledge:
    """The plant's knowledge of the candidates' domain, with federations that fit for so many steps.

    Ten steps, half as many, are enough to remember; of other domains only the fingerprint makes use."""
    simulate, images = planted_control.knowledge.simulate, planted_control.knowledge.auxiliary
    assert isinstance(simulate, OverfittedGenerators)
    assert images is not None
    return replace(
        planted_control.knowledge, simulate=replace(simulate, steps=steps), auxiliary=images.of_domain("planted")
    )


def fitted_to(images: DomainDataset, knowledge: Knowledge, planted_control: PositiveControl, seed: int) -> Case:
    """The planted question about a generator that was fitted to `images`."""
    assert knowledge.simulate is not None
    view = knowledge.simulate([images], stream(seed, "attack", "fit"), rounds=1)
    return replace(planted_control.cases[0], views=(view,))


@pytest.mark.nightly
@pytest.mark.slow
def test_neither_the_shuffled_attack_nor_generators_of_strangers_betray_anybody():
    attack = GeneratorLeakage(references=4)
    alarms = {(kind, test): 0 for kind in ("shuffled", "strangers") for test in ("response", "loss")}
    for seed in range(6):
        planted_control = planted(seed)
        knowledge, rng = fitting(planted_control, steps=10), stream(seed, "attack")
        images = noise_images(16, side=6, classes=8, rng=stream(seed, "attack", "strangers"))
        guesses = {
            "shuffled": attack.negative_control(planted_control.cases[:1], knowledge, rng),
            "strangers": attack.run([fitted_to(images, knowledge, planted_control, seed)], knowledge, rng),
        }
        for kind, guess in guesses.items():
            for answer in memberships(guess):
                alarms[kind, str(answer.slice["test"])] += p_value([answer], planted_control, seed) < 0.05

    assert max(alarms.values()) <= 2  # 4 rows of 6 tests at 5%: some row above with probability .009


@pytest.mark.parametrize("seed", range(2))
def test_generators_fitted_as_briefly_to_the_candidates_do_betray_them(seed: int):
    planted_control = planted(seed)
    knowledge, candidates, members = (
        fitting(planted_control, steps=10),
        planted_control.cases[0].candidates,
        planted_control.truths[0].members,
    )
    assert candidates is not None
    assert members is not None
    case = fitted_to(candidates.subset(members), knowledge, planted_control, seed)

    guess = GeneratorLeakage(references=4).run([case], knowledge, stream(seed, "attack"))

    answers = memberships(guess)
    assert [answer.slice["test"] for answer in answers] == ["response", "loss"]
    assert all(p_value([answer], planted_control, seed) < 0.01 for answer in answers)


def test_what_has_no_generator_of_feddag_is_left_out_with_a_reason():
    other = Generator(noise=4, classes=2, hidden=8, width=6)
    other.draw(stream(0, "attack"))
    cases = [asked(seen(state_of(other), state_of(other))), asked(View(messages=()))]

    rows = ATTACK.missing(cases, BLANK)

    assert list(ATTACK.run(cases, replace(BLANK, auxiliary=cases[0].candidates), stream(0, "attack"))) == []
    assert "a perturbation generator has a stem.weight" in str(rows[0].unavailable)
    assert "was not seen" in str(rows[1].unavailable)


def test_one_domain_alone_leaves_nothing_to_tell_and_says_so():
    images = noise_images(12, side=8, classes=2, rng=stream(0, "attack"))
    case = replace(planted_case(), views=(seen(state_of(generator(0)), state_of(generator(1))),))

    rows = ATTACK.missing([case], replace(BLANK, auxiliary=images))

    assert [row.name for row in rows] == ["balanced_accuracy", "accuracy"]
    assert all("2 domains or more; 1 have as many" in str(row.unavailable) for row in rows)


def test_a_generator_that_was_not_trained_tells_nothing():
    same = state_of(generator(0))

    rows = ATTACK.missing([asked(seen(same, state_of(generator(0))))], BLANK)

    assert "warm-up" in str(rows[0].unavailable)
    with pytest.raises(UsageError, match="it carries no information"):
        GeneratorUpdate.of(seen(same, state_of(generator(0))), "client:1")


def test_the_clients_own_model_is_never_asked():
    planted_control = planted()
    knowledge = fitting(planted_control, steps=2)
    bare = [
        replace(c, views=(View(messages=tuple(m for m in c.views[0].messages if type(m.artifact) is not ModelState)),))
        for c in planted_control.cases
    ]
    attack = GeneratorLeakage(references=4)

    with_model = memberships(attack.run(planted_control.cases[:1], knowledge, stream(0, "attack")))
    without = memberships(attack.run(bare[:1], knowledge, stream(0, "attack")))

    assert [dict(answer.slice) for answer in without] == [
        {"test": test, "references": 4} for test in ("response", "loss")
    ]
    for one, other in zip(with_model, without, strict=True):
        assert torch.equal(one.scores, other.scores)

"""What clients hold: read from styles by shadow clients, from prototypes at sight, from gradients by arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from fdgsec.attacks.attribute_inference.control import PlantedFederation, planted_clients
from fdgsec.attacks.attribute_inference.properties import PropertyInference
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import HeadGradient, ImageStyles, Prototypes, StyleStatistics
from fdgsec.federation.released_statistics import PooledStyles, ReleasedStatistic, StyleDistributions
from fdgsec.federation.wire import SERVER, Message
from fdgsec.metrics.measurement import Measurement
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import ADVERSARIES, Knowledge, View
from fdgsec.threats.answers import Presence, Proportions
from fdgsec.threats.attack import Answers, Case, PositiveControl, TargetFacts
from fdgsec.threats.judging.controls import negative_controls, positive_control
from fdgsec.threats.judging.judge import Judge
from fdgsec.threats.positive_control_data import upload

ATTACK = PropertyInference(shadows=400, simulated=80)
JUDGE = Judge(bootstrap_repeats=200)


def nothing(dataset: DomainDataset) -> Moments:
    raise NotImplementedError


BLANK = Knowledge(
    statistics=nothing, encoder="none", class_names=(), domain_names=(), auxiliary=None, unseen=None, own=None
)


def facts(*kinds: str, adversary: str = "server") -> TargetFacts:
    return TargetFacts(
        artifact_kinds=frozenset(kinds), clients=3, images_per_client=700, classes=7, profile="quick",
        knows=frozenset(ADVERSARIES[adversary].knows),
    )  # fmt: skip


def world(seed: int, *, contrast: float = 1.0, of: str = "StyleStatistics") -> PositiveControl:
    """The plant's clients, of which only those whose release is of one kind are asked about."""
    planted_control = planted_clients(BLANK, stream(seed, "attack", "plant"), concentration=0.3, contrast=contrast)
    asked = [n for n, case in enumerate(planted_control.cases) if case.release().kind == of]
    return replace(
        planted_control,
        cases=[planted_control.cases[n] for n in asked],
        truths=[planted_control.truths[n] for n in asked],
    )


def measured(planted_control: PositiveControl, answers: Answers) -> list[Measurement]:
    return JUDGE.measure(answers, planted_control.cases, planted_control.truths, stream(0, "world", "judge"))


def estimates(answers: Answers) -> list[Proportions]:
    return [answer for answer in answers if isinstance(answer, Proportions)]


def test_styles_ask_for_clients_with_skewed_shares_of_classes_and_of_domains():
    plan = PropertyInference(sizes=(40,)).plan(facts("StyleStatistics", "StyleBank"))

    assert [(r.kind, r.count, r.records, r.scheme) for r in plan] == [
        ("mixtures", 30, 40, "labels"), ("mixtures", 30, 40, "domains"),
    ]  # fmt: skip


def test_prototypes_are_read_in_the_run_and_gradients_of_more_clients_too():
    prototypes, gradients = ATTACK.plan(facts("ModelState", "Prototypes")), ATTACK.plan(facts("HeadGradient"))

    assert [r.kind for r in prototypes] == ["released"]
    assert [(r.kind, r.records) for r in gradients] == [("released", 0), ("mixtures", 40)]


@pytest.mark.parametrize("adversary", ["client", "outsider"])
def test_styles_are_not_read_without_images_to_make_shadow_clients_of(adversary: str):
    with pytest.raises(UsageError, match="must know auxiliary, client sizes, victim domains"):
        ATTACK.plan(facts("StyleStatistics", adversary=adversary))


def test_prototypes_are_read_by_whoever_sees_what_each_client_sends():
    assert ATTACK.plan(facts("Prototypes", adversary="outsider"))
    for unseeing in (facts("Prototypes", adversary="client"), replace(facts("Prototypes"), named=False)):
        with pytest.raises(UsageError, match="under its own name"):
            ATTACK.plan(unseeing)


@pytest.mark.parametrize(
    ("seed", "style", "released_statistic"),
    [
        *((seed, "StyleStatistics", PooledStyles()) for seed in range(3)),
        (0, "StyleDistribution", StyleDistributions()),
    ],
)
def test_what_was_planted_is_found_in_every_kind_of_artifact_and_by_every_way_to_learn(
    seed: int, style: str, released_statistic: ReleasedStatistic
):
    planted_control = PropertyInference().positive_control(
        replace(BLANK, released_statistic=released_statistic), stream(seed, "attack", "plant")
    )
    answers = PropertyInference().run(planted_control.cases, planted_control.knowledge, stream(seed, "attack"))

    controls = positive_control(planted_control, answers, JUDGE, stream(seed, "attack"))

    assert {control.measurement.slice["artifact"] for control in controls} == {
        style, "Prototypes", "HeadGradient",
    }  # fmt: skip
    assert {control.measurement.slice.get("learned_on") for control in controls} == {
        None, "same domain", "other domains", "all domains",
    }  # fmt: skip
    assert len(controls) == 12
    assert all(control.passed for control in controls), [control.measurement for control in controls]


def test_planted_shares_are_estimated_far_better_than_blindly():
    planted_control = world(0)

    rows = [
        row
        for row in measured(
            planted_control, ATTACK.run(planted_control.cases, planted_control.knowledge, stream(0, "attack"))
        )
        if row.name == "mae"
    ]

    assert len(rows) == 7
    for row in rows:
        assert row.value is not None
        assert row.chance is not None
        assert row.value < 0.5 * row.chance
        assert row.leaks


@pytest.mark.medium
def test_exchanged_releases_are_not_significant():
    failures = rows = 0
    for seed in range(6):
        planted_control = planted_clients(BLANK, stream(seed, "attack", "plant"), concentration=0.3)
        answers = ATTACK.negative_control(
            planted_control.cases, planted_control.knowledge, stream(seed, "attack", "ring")
        )
        nulls = Judge().null(
            answers, planted_control.cases, planted_control.truths, stream(seed, "world", "null"), permutations=199
        )
        failures += sum(not control.passed for control in negative_controls(nulls, comparisons=len(nulls)))
        rows += len(nulls)

    assert rows == 6 * 23
    assert failures <= 3  # each fails with probability .05/23: .3 in all


@pytest.mark.slow
def test_classes_that_color_nothing_are_rarely_found():
    """False alarms: 100 federations whose styles say nothing of classes; a leak would be called for 2.5% at most."""
    called = {"auc": 0, "mae": 0}
    for seed in range(100):
        planted_control = world(seed, contrast=0.0)
        asked = [n for n, case in enumerate(planted_control.cases) if case.domain == "planted ink"]
        planted_control = replace(
            planted_control,
            cases=[planted_control.cases[n] for n in asked],
            truths=[planted_control.truths[n] for n in asked],
        )
        for row in measured(
            planted_control, ATTACK.run(planted_control.cases, planted_control.knowledge, stream(seed, "attack"))
        ):
            if row.slice["learned_on"] == "same domain":
                called[row.name] += row.leaks

    assert max(called.values()) <= 6, called  # Binomial(100, .025) exceeds 6 with probability .01


def test_answers_are_shares():
    planted_control = world(1)

    for answer in estimates(ATTACK.run(planted_control.cases, planted_control.knowledge, stream(0, "attack"))):
        assert len(answer.estimate) == (2 if answer.of == "domains" else 4)
        for shares in (answer.estimate, answer.without):
            assert float(shares.min()) >= 0
            assert float(shares.sum()) == pytest.approx(1)


def test_a_class_that_no_auxiliary_image_shows_gets_nothing():
    planted_control = world(2)
    known = planted_control.knowledge.auxiliary
    assert known is not None
    lacking = replace(planted_control.knowledge, auxiliary=known.subset(known.labels != 3))

    for answer in estimates(ATTACK.run(planted_control.cases[:14], lacking, stream(0, "attack"))):
        assert float(answer.estimate[3]) < 1e-9
        assert float(answer.without[3]) == 0


def test_a_few_clients_do_not_stand_for_their_domain():
    planted_control = world(0)

    answers = ATTACK.run(planted_control.cases[:9], planted_control.knowledge, stream(0, "attack"))

    assert {answer.slice["learned_on"] for answer in answers} == {"same domain", "all domains"}


def test_a_style_of_so_many_images_is_not_read_where_their_number_is_unknown():
    planted_control = world(0)

    with pytest.raises(UsageError, match="how many images"):
        ATTACK.run([replace(planted_control.cases[0], records=None)], planted_control.knowledge, stream(0, "attack"))


def test_rows_of_single_images_are_read_as_a_part_of_the_client():
    planted_control = world(0)
    assert isinstance(planted_control.knowledge.simulate, PlantedFederation)
    cases = [replace(case, views=(upload(_rows(case.release(), 3)),)) for case in planted_control.cases[:14]]

    answers = ATTACK.run(cases, planted_control.knowledge, stream(0, "attack"))

    assert {answer.slice["artifact"] for answer in answers} == {"ImageStyles"}
    assert all(len(answer.estimate) == 4 for answer in estimates(answers))


def _rows(style: object, count: int) -> ImageStyles:
    assert isinstance(style, StyleStatistics)
    return ImageStyles(mean=style.mean.expand(count, -1), std=style.std.expand(count, -1))


def doubled(style: object) -> StyleStatistics:
    assert isinstance(style, StyleStatistics)
    return StyleStatistics(mean=2 * style.mean, std=2 * style.std)


@dataclass(frozen=True, kw_only=True, eq=False)
class Doubling:
    """A method whose releases are no means of what the adversary reads: it sends twice the pooled style."""

    federation: PlantedFederation

    def __call__(self, data: Sequence[DomainDataset], rng: torch.Generator, *, rounds: int = 0) -> View:
        return View(
            messages=tuple(
                replace(upload(doubled(self.federation.style(held))).messages[0], sender=f"client:{number}")
                for number, held in enumerate(data, 1)
            )
        )


def test_releases_that_are_no_means_are_learned_from_the_methods_own_code():
    planted_control = world(0)
    federation = planted_control.knowledge.simulate
    assert isinstance(federation, PlantedFederation)
    cases = [replace(case, views=(upload(doubled(case.release())),)) for case in planted_control.cases]
    simulated = replace(planted_control.knowledge, simulate=Doubling(federation=federation))

    mistaken = ATTACK.run(cases, planted_control.knowledge, stream(0, "attack"))  # it is told that means are sent
    learned = ATTACK.run(cases, simulated, stream(0, "attack"))

    for wrong, right in zip(measured(planted_control, mistaken), measured(planted_control, learned), strict=True):
        if wrong.name == "mae":
            assert wrong.value is not None
            assert right.value is not None
            assert right.chance is not None
            assert right.value < 0.6 * right.chance, right.slice
            if right.slice["learned_on"] != "other domains":  # where clients are read about their own mean
                assert right.value < 0.6 * wrong.value, right.slice


def gradients(biases: Sequence[Tensor]) -> View:
    return View(
        messages=tuple(
            Message(
                round=number, stage="share", sender="client:0", receiver=SERVER,
                artifact=HeadGradient(weight=torch.zeros(4, 2), bias=bias.float()),
            )
            for number, bias in enumerate(biases)
        )
    )  # fmt: skip


def test_the_first_gradient_is_read_because_its_model_is_public():
    shares = torch.tensor([0.5, 0.5, 0.0, 0.0])
    case = Case(
        question="released",
        views=(gradients([0.25 - shares, torch.zeros(4)]),),
        victim="client:0",
        slice={"domain": "x"},
    )

    answers = ATTACK.run([case], replace(BLANK, class_names=("a", "b", "c", "d")), stream(0, "attack"))

    (estimate,) = estimates(answers)
    assert estimate.estimate.tolist() == pytest.approx(shares.tolist(), abs=1e-6)
    assert estimate.without.tolist() == [0.25] * 4
    assert dict(estimate.slice) == {"artifact": "HeadGradient", "reading": "uniform softmax", "domain": "all"}


def test_clients_of_the_run_are_guessed_blindly_by_their_domains_shares():
    planted_control = world(0, of="HeadGradient")
    known = planted_control.knowledge.auxiliary
    assert known is not None
    skewed = replace(planted_control.knowledge, auxiliary=known.subset((known.labels > 0) | (known.domains > 0)))

    answers = ATTACK.run([replace(planted_control.cases[0], question="released")], skewed, stream(0, "attack"))

    assert [answer.without.tolist() for answer in estimates(answers)] == [pytest.approx([0, 1 / 3, 1 / 3, 1 / 3])] * 2


def test_a_class_whose_prototype_was_never_sent_is_not_held():
    messages = [
        Message(
            round=number, stage="fit", sender=sender, receiver=SERVER,
            artifact=Prototypes(features=torch.zeros(len(classes), 2), classes=torch.tensor(classes)),
        )
        for number, (sender, classes) in enumerate([("client:0", [0, 2, 2]), ("client:1", [3]), ("client:0", [2])])
    ]  # fmt: skip
    case = Case(question="released", views=(View(messages=tuple(messages)),), victim="client:0", slice={"domain": "x"})

    (answer,) = ATTACK.run([case], replace(BLANK, class_names=("a", "b", "c", "d")), stream(0, "attack"))

    assert isinstance(answer, Presence)
    assert answer.scores.tolist() == [1, 0, 2, 0]
    assert dict(answer.slice) == {"artifact": "Prototypes", "domain": "all"}

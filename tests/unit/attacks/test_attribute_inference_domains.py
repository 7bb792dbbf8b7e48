"""Domain inference from single rows and from pooled styles."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from sklearn.metrics import balanced_accuracy_score
from torch import Tensor

from fdgsec.attacks.attribute_inference.domains import DomainInference
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Answer, Labels
from fdgsec.threats.attack import PositiveControl, TargetFacts, Truth
from fdgsec.threats.positive_control_data import PlantedStatistics, planted_moments

EMPTY = Knowledge(
    statistics=PlantedStatistics(moments=planted_moments(torch.zeros(1, 2), torch.ones(1, 2))), encoder="planted",
    class_names=("any",), domain_names=("ink", "oil"), auxiliary=None, unseen=None, own=None,
)  # fmt: skip


def planted(seed: int) -> PositiveControl:
    return DomainInference().positive_control(EMPTY, stream(seed, "attack", "plant"))


def facts(*kinds: str) -> TargetFacts:
    return TargetFacts(artifact_kinds=frozenset(kinds), clients=3, images_per_client=700, classes=7, profile="quick")


def joined(answers: Sequence[Answer], truths: Sequence[Truth], numbers: set[int]) -> tuple[Tensor, Tensor]:
    predicted, true = [], []
    for answer in answers:
        domains = truths[answer.case].domains
        assert isinstance(answer, Labels)
        assert domains is not None
        if answer.case in numbers:
            assert answer.predicted.shape == domains.shape
            predicted.append(answer.predicted)
            true.append(domains)
    return torch.cat(true), torch.cat(predicted)


def accuracy(answers: Sequence[Answer], control: PositiveControl, question: str) -> float:
    numbers = {number for number, case in enumerate(control.cases) if case.question == question}
    true, predicted = joined(answers, control.truths, numbers)
    return float(balanced_accuracy_score(true.numpy(), predicted.numpy()))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("request_kind", ["as_if_released", "resampled_clients"])
def test_planted_domains_are_recognized_in_rows_and_in_pooled_styles(seed: int, request_kind: str):
    control = planted(seed)

    answers = DomainInference().run(control.cases, control.knowledge, stream(seed, "attack", "run"))

    assert accuracy(answers, control, request_kind) >= control.at_least >= 0.9


def test_answers_number_the_domain_names_and_count_the_source_domains():
    control = planted(3)
    images = control.knowledge.auxiliary
    assert images is not None
    without_first = replace(control.knowledge, auxiliary=images.subset(images.domains != 0))

    answers = DomainInference().run(control.cases, without_first, stream(0, "attack", "run"))

    predicted = torch.cat([answer.predicted for answer in answers if isinstance(answer, Labels)])
    assert {answer.classes for answer in answers if isinstance(answer, Labels)} == {2}
    assert set(predicted.tolist()) == {1, 2}


def test_all_domains_are_judged_together():
    control = planted(6)

    answers = DomainInference().run(control.cases, control.knowledge, stream(0, "attack", "run"))

    merged = {tuple({**control.cases[answer.case].slice, **answer.slice}.items()) for answer in answers}
    assert merged == {
        (("domain", "all"), ("rows", "as_if_released")), (("domain", "all"), ("rows", "resampled_clients"))
    }  # fmt: skip


@pytest.mark.medium
def test_exchanged_rows_know_nothing_of_their_domain():
    right = asked = 0
    for seed in range(8):
        control = planted(seed)
        answers = DomainInference().negative_control(control.cases, control.knowledge, stream(seed, "attack", "null"))
        true, predicted = joined(answers, control.truths, set(range(len(control.cases))))
        right, asked = right + int((true == predicted).sum()), asked + len(true)

    assert abs(right / asked - 1 / 3) < 3 * (1 / 3 * 2 / 3 / asked) ** 0.5


def test_pooled_release_is_read_as_pooled_whatever_it_was_asked_for():
    """A pooled std contains the spread between images; the linear statistic takes that into account."""
    control = planted(4)
    pooled = [number for number, case in enumerate(control.cases) if case.question == "resampled_clients"]
    released = [replace(control.cases[number], question="released") for number in pooled]
    attack = DomainInference()

    as_released = attack.run(released, control.knowledge, stream(0, "attack", "run"))
    as_resampled = attack.run([control.cases[n] for n in pooled], control.knowledge, stream(0, "attack", "run"))

    for one, other in zip(as_released, as_resampled, strict=True):
        assert isinstance(one, Labels)
        assert isinstance(other, Labels)
        assert torch.equal(one.predicted, other.predicted)


@pytest.mark.medium
def test_public_images_of_one_style_leave_chance():
    """As behind `quantize:bits=1`, which gives all pictures one style; what is released may be another one."""
    control = planted(7)
    images = control.knowledge.auxiliary
    assert images is not None
    alike = planted_moments(torch.zeros(len(images), 16), torch.ones(len(images), 16))
    nothing = replace(control.knowledge, statistics=PlantedStatistics(moments=alike))

    answers = DomainInference().run(control.cases, nothing, stream(0, "attack", "run"))

    assert len(answers) == len(control.cases)
    for question in ("as_if_released", "resampled_clients"):
        assert accuracy(answers, control, question) == pytest.approx(1 / 3)


def test_plan_asks_for_more_of_the_kind_that_was_released():
    attack = DomainInference()

    assert [r.kind for r in attack.plan(facts("ImageStyles", "StyleBank"))] == ["released", "as_if_released"]
    assert [(r.kind, r.count, r.records) for r in attack.plan(facts("StyleStatistics", "StyleBank"))] == [
        ("released", 0, 0), ("resampled_clients", 10, 40)
    ]  # fmt: skip


def test_adversary_without_auxiliary_images_or_with_one_domain_is_told_so():
    control = planted(5)
    images = control.knowledge.auxiliary
    assert images is not None

    with pytest.raises(UsageError, match="auxiliary images of every domain"):
        DomainInference().run(control.cases, replace(control.knowledge, auxiliary=None), stream(0, "attack", "run"))
    with pytest.raises(UsageError, match="2 domains or more; the adversary has 1"):
        DomainInference().run(
            control.cases, replace(control.knowledge, auxiliary=images.of_domain(0)), stream(0, "attack", "run")
        )

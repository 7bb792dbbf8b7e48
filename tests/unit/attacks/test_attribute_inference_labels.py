"""Label inference: wins where styles carry the class, and stays at 1/K where they do not."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from sklearn.metrics import balanced_accuracy_score
from torch import Tensor

from fdgsec.attacks.attribute_inference.labels import LabelInference
from fdgsec.federation.artifacts import ImageStyles
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Answer, Labels
from fdgsec.threats.attack import Case, PositiveControl, TargetFacts, Truth
from fdgsec.threats.positive_control_data import PlantedStatistics, planted_images, planted_moments, upload

NAMES = ("cat", "dog", "owl")
EMPTY = Knowledge(
    statistics=PlantedStatistics(moments=planted_moments(torch.zeros(1, 2), torch.ones(1, 2))), encoder="planted",
    class_names=NAMES, domain_names=("ink", "oil"), auxiliary=None, unseen=None, own=None,
)  # fmt: skip


def facts(*kinds: str) -> TargetFacts:
    return TargetFacts(artifact_kinds=frozenset(kinds), clients=3, images_per_client=700, classes=3, profile="quick")


def world(seed: int, *, color: float, auxiliary: int = 45, released: int = 60, domains: int = 2) -> PositiveControl:
    """Images of `domains` domains whose channel means shift by `color` standard deviations with the class."""
    rng = stream(seed, "world", "labels")
    per_domain, channels = auxiliary + released, 12
    domain = torch.arange(domains).repeat_interleave(per_domain)
    labels = torch.randint(3, (len(domain),), generator=rng)
    palette = color * torch.randn(3, channels, generator=rng, dtype=torch.float64)
    scale = torch.tensor([1.0, 7.0]).double()[domain].unsqueeze(1)
    noise = torch.randn(len(domain), channels, generator=rng, dtype=torch.float64)
    mean = scale * (palette[labels] + noise) + 30.0 * domain.unsqueeze(1)
    variance = scale * (0.5 + torch.rand(len(domain), channels, generator=rng, dtype=torch.float64))
    images = planted_images(labels, domain, class_names=NAMES, domain_names=("ink", "oil"))
    statistics = PlantedStatistics(moments=planted_moments(mean, variance))
    position = torch.arange(len(domain)) % per_domain
    cases, truths = [], []
    for number in range(domains):
        shown = images.subset((position >= auxiliary) & (domain == number))
        style = statistics(shown).style(unbiased=True)
        view = upload(ImageStyles(mean=style[0].float(), std=style[1].float()))
        name = images.domain_names[number]
        cases.append(
            Case(question="as_if_released", views=(view,), victim="client:0", domain=name, slice={"domain": name})
        )
        truths.append(Truth(labels=shown.labels, domains=shown.domains))
    knowledge = replace(EMPTY, statistics=statistics, auxiliary=images.subset(position < auxiliary))
    return PositiveControl(
        cases=cases, truths=truths, knowledge=knowledge, measurement="balanced_accuracy", at_least=0.9
    )


def joined(answers: Sequence[Answer], truths: Sequence[Truth]) -> tuple[Tensor, Tensor]:
    predicted, true = [], []
    for answer in answers:
        labels = truths[answer.case].labels
        assert isinstance(answer, Labels)
        assert labels is not None
        predicted.append(answer.predicted)
        true.append(labels)
    return torch.cat(true), torch.cat(predicted)


def accuracy(answers: Sequence[Answer], truths: Sequence[Truth]) -> float:
    true, predicted = joined(answers, truths)
    return float(balanced_accuracy_score(true.numpy(), predicted.numpy()))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_planted_classes_are_recognized(seed: int):
    control = LabelInference().positive_control(EMPTY, stream(seed, "attack", "plant"))

    answers = LabelInference().run(control.cases, control.knowledge, stream(seed, "attack", "run"))

    assert control.measurement == "balanced_accuracy"
    assert accuracy(answers, control.truths) >= control.at_least >= 0.9


@pytest.mark.medium
def test_styles_without_the_class_give_one_over_the_number_of_classes():
    right = asked = 0
    for seed in range(6):
        plain = world(seed, color=0.0)
        true, predicted = joined(
            LabelInference(folds=3).run(plain.cases, plain.knowledge, stream(seed, "attack", "run")), plain.truths
        )
        right, asked = right + int((true == predicted).sum()), asked + len(true)

    half_width = 1.96 * (1 / 3 * 2 / 3 / asked) ** 0.5
    assert asked == 720
    assert abs(right / asked - 1 / 3) < 1.5 * half_width  # three of a thousand sets of seeds would miss it


def test_colors_shared_by_all_domains_help_where_own_images_are_few():
    colored = world(0, color=1.0, auxiliary=9, released=200)
    knowledge = colored.knowledge
    assert knowledge.auxiliary is not None
    alone = replace(knowledge, auxiliary=knowledge.auxiliary.of_domain("ink"))

    together = LabelInference(folds=3).run(colored.cases[:1], knowledge, stream(0, "attack", "run"))
    single = LabelInference(folds=3).run(colored.cases[:1], alone, stream(0, "attack", "run"))

    assert accuracy(together, colored.truths) > 0.6
    assert accuracy(together, colored.truths) >= accuracy(single, colored.truths)


@pytest.mark.medium
def test_exchanged_rows_know_nothing_of_their_labels():
    right = asked = 0
    for seed in range(6):
        colored = world(seed, color=2.0)
        answers = LabelInference(folds=3).negative_control(
            colored.cases, colored.knowledge, stream(seed, "attack", "null")
        )
        true, predicted = joined(answers, colored.truths)
        right, asked = right + int((true == predicted).sum()), asked + len(true)

    assert abs(right / asked - 1 / 3) < 3 * (1 / 3 * 2 / 3 / asked) ** 0.5


@pytest.mark.medium
def test_setting_is_chosen_without_looking_at_what_was_released():
    """A row's prediction does not depend on the rows it came with."""
    colored = world(1, color=1.0)
    mean, std = colored.cases[0].released()
    half = upload(ImageStyles(mean=mean[:20].float(), std=std[:20].float()))
    attack = LabelInference(folds=3)

    whole = attack.run(colored.cases[:1], colored.knowledge, stream(0, "attack", "run"))
    part = attack.run([replace(colored.cases[0], views=(half,))], colored.knowledge, stream(0, "attack", "run"))

    assert torch.equal(joined(whole, colored.truths)[1][:20], joined_predictions(part))


def joined_predictions(answers: Sequence[Answer]) -> Tensor:
    return torch.cat([answer.predicted for answer in answers if isinstance(answer, Labels)])


@pytest.mark.parametrize("told", ["oil", None])
def test_client_that_holds_one_domain_reads_rows_of_another_by_their_own_spread(told: str | None):
    colored = world(2, color=2.0, released=120)
    knowledge = colored.knowledge
    assert knowledge.auxiliary is not None
    client = replace(knowledge, auxiliary=None, own=knowledge.auxiliary.of_domain("ink"))

    asked = [replace(colored.cases[1], domain=told)]

    answers = LabelInference(folds=3).run(asked, client, stream(0, "attack", "run"))

    assert accuracy(answers, colored.truths[1:]) > 0.8


def test_rows_of_a_domain_that_was_not_told_are_read_alike_whatever_it_is():
    colored = world(2, color=2.0, released=120)
    asked = [replace(case, domain=None) for case in colored.cases]

    answers = LabelInference(folds=3).run(asked, colored.knowledge, stream(0, "attack", "run"))

    assert accuracy(answers[:1], colored.truths) > 0.8
    assert accuracy(answers[1:], colored.truths) > 0.8


def test_without_any_images_the_attack_is_not_planned():
    blind = replace(facts("ImageStyles"), knows=frozenset({"encoder", "class names"}))

    with pytest.raises(UsageError, match="needs auxiliary or own data"):
        LabelInference().plan(blind)


def test_clients_of_mixed_domains_are_read_with_one_model():
    colored = world(3, color=2.0, domains=1)
    mixed = replace(colored.cases[0], question="released", domain="mixed", slice={"domain": "mixed"})

    answers = LabelInference(folds=3).run([mixed], colored.knowledge, stream(0, "attack", "run"))

    assert accuracy(answers, colored.truths) > 0.8
    assert answers[0].slice == {"rows": "released"}


def test_plan_asks_for_single_image_rows_only():
    attack = LabelInference()

    assert [(r.kind, r.per_class) for r in attack.plan(facts("ImageStyles", "StyleBank"))] == [
        ("released", 0), ("as_if_released", 60)
    ]  # fmt: skip
    assert [r.kind for r in attack.plan(facts("StyleBank"))] == ["released", "as_if_released"]
    with pytest.raises(UsageError, match="reads styles of single images"):
        attack.plan(facts("StyleStatistics", "StyleBank"))


def test_too_few_own_images_for_a_choice_still_make_a_model():
    colored = world(4, color=2.0, auxiliary=9)

    answers = LabelInference(folds=5).run(colored.cases, colored.knowledge, stream(0, "attack", "run"))

    assert accuracy(answers, colored.truths) > 0.8


def test_one_class_alone_is_an_error():
    colored = world(5, color=1.0)
    auxiliary = colored.knowledge.auxiliary
    assert auxiliary is not None
    one = replace(colored.knowledge, auxiliary=auxiliary.subset(auxiliary.labels == 0))

    with pytest.raises(UsageError, match="at least 2 classes"):
        LabelInference().run(colored.cases, one, stream(0, "attack", "run"))


@pytest.mark.medium
def test_more_labeled_images_of_one_world_find_more():
    colored = world(1, color=0.7, auxiliary=240, released=300)

    answers = LabelInference(folds=3, auxiliary=(8, 40, 240)).run(
        colored.cases, colored.knowledge, stream(0, "attack", "run")
    )

    by_count: dict[object, list[Answer]] = {}
    for answer in answers:
        by_count.setdefault(answer.slice.get("auxiliary"), []).append(answer)
    found = {count: accuracy(some, colored.truths) for count, some in by_count.items()}
    assert list(found) == [None, 8, 40, 240]
    assert all({answer.case for answer in some} == {0, 1} for some in by_count.values())
    assert 1 / 3 < found[8] < found[40] - 0.05
    assert found[40] < found[240] - 0.02
    assert found[240] == pytest.approx(found[None], abs=0.05)  # the same images, and folds of their own


@pytest.mark.medium
def test_too_few_labeled_images_of_a_domain_are_reported_and_the_other_domain_is_tested():
    colored = world(2, color=2.0)
    auxiliary = colored.knowledge.auxiliary
    assert auxiliary is not None
    ink = (auxiliary.domains == 0).nonzero().flatten()
    uneven = replace(colored.knowledge, auxiliary=auxiliary.subset(torch.cat([ink[:12], torch.arange(45, 90)])))
    attack = LabelInference(folds=3, auxiliary=(30,))

    answers = attack.run(colored.cases, uneven, stream(0, "attack", "run"))

    assert [(answer.case, answer.slice.get("auxiliary")) for answer in answers] == [(0, None), (1, None), (1, 30)]
    assert {(row.slice["domain"], row.unavailable) for row in attack.missing(colored.cases, uneven)} == {
        ("ink", "the adversary has 12 images of ink, not 30")
    }


def test_the_negative_control_is_of_all_images_alone():
    colored = world(1, color=1.0)

    null = LabelInference(folds=3, auxiliary=(20,)).negative_control(
        colored.cases, colored.knowledge, stream(0, "attack", "null")
    )

    assert [answer.slice for answer in null] == [{"rows": "as_if_released"}] * 2


def test_one_labeled_image_of_a_domain_is_refused():
    with pytest.raises(UsageError, match="auxiliary must be"):
        LabelInference(auxiliary=(1, 50))


def test_a_class_with_one_image_does_not_leave_a_fold_with_one_class():
    colored = world(6, color=2.0, auxiliary=12, domains=1)
    auxiliary = colored.knowledge.auxiliary
    assert auxiliary is not None
    skewed = replace(auxiliary, labels=torch.tensor([1] + [0] * 11))

    answers = LabelInference(folds=3).run(
        colored.cases, replace(colored.knowledge, auxiliary=skewed), stream(0, "attack", "run")
    )

    assert set(joined_predictions(answers).tolist()) <= {0, 1}

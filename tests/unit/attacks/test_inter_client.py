from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fdgsec.attacks.inter_client.attack import InterClient
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.federation.artifacts import Artifact, ImageStyles, InterpolationStyle, StyleBank
from fdgsec.federation.wire import SERVER, Message
from fdgsec.metrics.measurement import Measurement
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.nn.styles.image_styles import statistics
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge, View
from fdgsec.threats.answers import Answer, GeneratedSets, Labels, Ranking, Reconstructions
from fdgsec.threats.attack import Case, PositiveControl, TargetFacts
from fdgsec.threats.judging.controls import negative_controls, positive_control
from fdgsec.threats.judging.judge import Judge
from tests.support.noisy_styles import Noise


def nothing(dataset: DomainDataset) -> Moments:
    raise NotImplementedError


BLANK = Knowledge(
    statistics=nothing, encoder="none", class_names=(), domain_names=(), auxiliary=None, unseen=None, own=None
)
ATTACK = InterClient()
SINGLE = TargetFacts(
    artifact_kinds=frozenset({"ImageStyles", "StyleBank"}), clients=3, images_per_client=700, classes=7, profile="quick",
    knows=frozenset({"encoder", "class names", "own data"}),
)  # fmt: skip


def planted(seed: int = 0) -> PositiveControl:
    return ATTACK.positive_control(BLANK, stream(seed, "attack"))


def received(case: Case, artifact: Artifact) -> Case:
    """The same question after the client received `artifact` instead."""
    message = Message(round=0, stage="broadcast", sender=SERVER, receiver="client:0", artifact=artifact)
    return replace(case, views=(View(messages=(message,)),))


def of_read(answers: list[Answer]) -> list[Answer]:
    return [answer for answer in answers if not isinstance(answer, GeneratedSets)]


def measured(answers: list[Answer], planted_control: PositiveControl) -> list[Measurement]:
    return Judge(bootstrap_repeats=200).measure(
        of_read(answers), planted_control.cases, planted_control.truths, stream(0, "attack")
    )


def test_rows_of_single_images_are_asked_for_and_of_pooled_releases_the_run_alone():
    pooled = replace(SINGLE, artifact_kinds=frozenset({"StyleStatistics", "InterpolationStyle"}))

    assert [question.kind for question in ATTACK.plan(SINGLE)] == ["released", "as_if_released"]
    assert [question.kind for question in ATTACK.plan(pooled)] == ["released"]


def test_an_adversary_that_is_no_client_is_told_so():
    with pytest.raises(UsageError, match="this adversary is none"):
        ATTACK.plan(replace(SINGLE, knows=frozenset({"encoder", "class names", "auxiliary"})))


@pytest.mark.parametrize("seed", range(3))
def test_every_reading_of_planted_rows_wins(seed: int):
    planted_control = planted(seed)
    answers = list(ATTACK.run(planted_control.cases, planted_control.knowledge, stream(seed, "attack")))
    rows = {(row.name, row.slice.get("over", "")): row for row in measured(answers, planted_control)}

    controls = positive_control(planted_control, of_read(answers), Judge(bootstrap_repeats=100), stream(seed, "attack"))

    assert controls
    assert all(control.passed for control in controls)
    assert (rows["top1", ""].value or 0) > 0.9
    for control in ("B0", "B2", "B3"):
        assert (rows["psnr_gain", control].low or 0) > 0


def test_exchanged_rows_are_not_significant():
    failures, total = 0, 0
    for seed in range(8):
        planted_control = planted(seed)
        guess = ATTACK.negative_control(
            planted_control.cases, planted_control.knowledge, stream(seed, "attack", "ring")
        )
        rows = Judge().null(
            guess, planted_control.cases, planted_control.truths, stream(seed, "attack", "null"), permutations=199
        )
        failures += sum(not control.passed for control in negative_controls(rows, comparisons=len(rows)))
        total += len(rows)

    assert total == 24  # classes, images and colors
    assert failures <= 2  # each fails with probability .05 / 3: more than 2 in 1 of 120


@pytest.mark.slow
def test_rows_that_say_nothing_alarm_as_often_as_the_level_says():
    alarms, total = 0, 0
    for seed in range(100):
        planted_control = planted(seed)
        rng = stream(seed, "attack", "noise")
        bank = planted_control.cases[0].views[0].latest(StyleBank)
        assert bank is not None
        mixed = torch.randperm(len(bank.mean), generator=rng)
        case = received(planted_control.cases[0], replace(bank, mean=bank.mean[mixed], std=bank.std[mixed]))
        guess = of_read(list(ATTACK.run([case], planted_control.knowledge, rng)))
        rows = Judge().null(guess, [case], planted_control.truths, rng, permutations=199)
        alarms += sum(row.p_value <= 0.05 for row in rows)
        total += len(rows)

    assert total == 300
    assert alarms <= 32  # three tests of one permutation each; were they one, binomial(100, .05) > 10 in 1 of 100


def test_a_case_that_shows_own_images_is_left_out():
    planted_control = planted()
    own = planted_control.knowledge.own
    bank = planted_control.cases[0].views[0].latest(StyleBank)
    assert own is not None
    assert bank is not None
    mean, std = (part[:1].float() for part in statistics("pixels", own).style(unbiased=True))
    shown = StyleBank(
        mean=torch.cat([bank.mean[1:], mean]), std=torch.cat([bank.std[1:], std]), owner=torch.ones_like(bank.owner)
    )

    assert ATTACK.run([received(planted_control.cases[0], shown)], planted_control.knowledge, stream(0, "attack")) == []


def sets_of(case: Case, knowledge: Knowledge) -> dict[str, Tensor]:
    answers = ATTACK.run([case], knowledge, stream(0, "attack"))
    return {answer.name: answer.images for answer in answers if isinstance(answer, GeneratedSets)}


def test_own_images_take_on_the_received_rows_statistics():
    planted_control = planted()
    bank = planted_control.cases[0].views[0].latest(StyleBank)
    assert bank is not None
    one = StyleBank(
        mean=torch.tensor([[0.1, 0.2, 0.3], [0.0, 0.0, 0.0]]), std=torch.full((2, 3), 0.1), owner=torch.tensor([1, 2])
    )

    made = sets_of(received(planted_control.cases[0], one), planted_control.knowledge)
    found = statistics("pixels", as_dataset(made["stylized"], planted_control)).mean

    assert set(made) == {"stylized", "stylized as another", "own images"}
    assert torch.allclose(found, one.mean[:1].double().expand_as(found), atol=0.01)  # 8 bits are .02 of a unit
    assert not torch.allclose(made["stylized"], made["stylized as another"], atol=0.01)


def as_dataset(images: Tensor, planted_control: PositiveControl) -> DomainDataset:
    own = planted_control.knowledge.own
    assert own is not None
    pixels = (images * 255).round().to(torch.uint8)
    count = torch.arange(len(pixels))
    return replace(own.subset(count), store=pixels, rows=count)


def test_an_interpolation_style_restyles_own_images_and_is_read_no_further():
    planted_control = planted()
    case = replace(
        received(planted_control.cases[0], InterpolationStyle(mean=torch.zeros(3), std=torch.full((3,), 0.2))),
        question="released", candidates=None,
    )  # fmt: skip

    answers = ATTACK.run([case], planted_control.knowledge, stream(0, "attack"))

    assert [(type(a), a.slice["received"], a.slice["set"]) for a in answers] == [
        (GeneratedSets, "InterpolationStyle", "stylized"), (GeneratedSets, "InterpolationStyle", "own images"),
    ]  # fmt: skip


def test_the_set_of_own_images_is_what_the_client_holds():
    planted_control = planted()
    own = planted_control.knowledge.own
    assert own is not None

    plain = sets_of(planted_control.cases[0], planted_control.knowledge)["own images"]

    assert sorted(plain.flatten(1).sum(1).tolist()) == sorted(as_float(own.pixels()).flatten(1).sum(1).tolist())


def test_without_a_decoder_the_missing_sets_say_why(monkeypatch: pytest.MonkeyPatch):
    planted_control = planted()
    encoder = type("Silent", (), {"has_decoder": False})()
    monkeypatch.setattr("fdgsec.attacks.inter_client.curious_client.encoder_named", lambda name: encoder)

    answers = ATTACK.run(planted_control.cases, planted_control.knowledge, stream(0, "attack"))
    (row,) = ATTACK.missing(planted_control.cases, planted_control.knowledge)

    assert [type(answer) for answer in answers] == [Ranking, Reconstructions, Labels]
    assert row.unavailable is not None
    assert "statistics only" in row.unavailable


def test_a_client_without_images_is_refused():
    planted_control = planted()

    with pytest.raises(UsageError, match="at least 2"):
        ATTACK.run(planted_control.cases, replace(planted_control.knowledge, own=None), stream(0, "attack"))


def behind(planted_control: PositiveControl, noise: Noise) -> PositiveControl:
    """The same bank with noise on its rows, and a client that knows of it."""
    bank = planted_control.cases[0].views[0].latest(StyleBank)
    assert bank is not None
    sent = noise.on(ImageStyles(mean=bank.mean, std=bank.std), stream(0, "attack"))
    assert isinstance(sent, ImageStyles)
    case = received(planted_control.cases[0], replace(bank, mean=sent.mean, std=sent.std))
    return replace(planted_control, cases=[case], knowledge=replace(planted_control.knowledge, defended=noise))


@pytest.mark.medium
def test_who_knows_of_noise_learns_from_noisy_rows_and_compares_in_its_metric():
    gains = []
    for seed in range(3):
        noisy, found = behind(planted(seed), Noise(scale=0.8)), {}
        for name, knowledge in (("aware", noisy.knowledge), ("not", replace(noisy.knowledge, defended=None))):
            rows = measured(list(ATTACK.run(noisy.cases, knowledge, stream(seed, "attack"))), noisy)
            found[name] = {
                (row.name, row.slice.get("drawn")): row.value or 0.0 for row in rows if "over" not in row.slice
            }
        gains.append({key: found["aware"][key] - found["not"][key] for key in found["not"]})
    gain = {key: sum(each[key] for each in gains) / len(gains) for key in gains[0]}

    assert gain["top5", None] > 0.1  # by its style, of 60 candidates
    assert gain["psnr", "mean color"] > 1.0
    assert gain["balanced_accuracy", None] > -0.05

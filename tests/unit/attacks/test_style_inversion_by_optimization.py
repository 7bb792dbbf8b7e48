from dataclasses import replace
from functools import cache
from threading import current_thread

import pytest
import torch

from fdgsec.attacks.style_inversion import optimization_attack
from fdgsec.attacks.style_inversion.optimization_attack import OptimizationInversion
from fdgsec.data.domains import DomainDataset, as_float, downsample
from fdgsec.data.shapes import shapes
from fdgsec.federation.artifacts import ImageStyles, StyleStatistics
from fdgsec.metrics.measurement import Measurement
from fdgsec.nn.styles.channel_statistics import style_of
from fdgsec.nn.styles.image_styles import encoder_named, statistics
from fdgsec.runtime import threads
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Prediction, Reconstructions
from fdgsec.threats.attack import Answers, Case, PositiveControl, TargetFacts, Truth
from fdgsec.threats.judging.controls import negative_controls, positive_control
from fdgsec.threats.judging.judge import Judge
from fdgsec.threats.positive_control_data import upload

SHORT = OptimizationInversion(steps=3, restarts=2, side=16)
DATA = shapes(image_size=32, per_domain=42)
PUBLIC = torch.arange(42) < 21
SERVER_KNOWS = ("encoder", "auxiliary", "client sizes", "victim domains")


def child_rng(seed: int = 0) -> torch.Generator:
    return stream(seed, "attack", "test")


def of(domain: str, first: int, last: int) -> DomainDataset:
    return DATA.of_domain(domain).subset(torch.arange(first, last))


def knowledge(encoder: str = "pixels") -> Knowledge:
    return Knowledge(
        statistics=lambda dataset: statistics(encoder, dataset), encoder=encoder, class_names=DATA.class_names,
        domain_names=DATA.domain_names, auxiliary=DATA.subset(PUBLIC.repeat(4) & (DATA.domains < 3)), unseen=None,
        own=None,
    )  # fmt: skip


def image_rows(images: DomainDataset, domain: str | None, encoder: str = "pixels") -> Case:
    mean, std = statistics(encoder, images).style(unbiased=True)
    view = upload(ImageStyles(mean=mean.float(), std=std.float()))
    return Case(
        question="as_if_released", views=(view,), victim="client:0", domain=domain, slice={"domain": str(domain)},
        candidates=images,
    )  # fmt: skip


def pooled_pair(holds: DomainDataset, added: DomainDataset, domain: str) -> Case:
    views = []
    for rows in (holds.rows, torch.cat([holds.rows, added.rows])):
        images = replace(
            holds, rows=rows, ids=tuple(str(row) for row in rows.tolist()), labels=torch.zeros_like(rows),
            domains=torch.zeros_like(rows), attributes={},
        )  # fmt: skip
        mean, std = statistics("pixels", images).pooled().style(unbiased=False)
        views.append(upload(StyleStatistics(mean=mean[0].float(), std=std[0].float())))
    return Case(
        question="add_one_record", views=tuple(views), victim="client:0", domain=domain, slice={"domain": domain},
        records=len(holds),
    )  # fmt: skip


def pictures(answers: Answers, restarts: str = "best") -> list[Reconstructions]:
    return [a for a in answers if isinstance(a, Reconstructions) and a.slice["restarts"] == restarts]


def numbers(answers: Answers, name: str, of: str = "best") -> list[float]:
    return [a.value for a in answers if isinstance(a, Prediction) and a.name == name and a.slice["of"] == of]


@cache
def planted() -> tuple[OptimizationInversion, PositiveControl, Answers]:
    attack = OptimizationInversion(restarts=2)
    planted_control = attack.positive_control(knowledge("mini"), child_rng())
    return attack, planted_control, attack.run(planted_control.cases, planted_control.knowledge, child_rng(1))


@cache
def judged() -> list[Measurement]:
    _, planted_control, answers = planted()
    return Judge(bootstrap_repeats=300).measure(answers, planted_control.cases, planted_control.truths, child_rng(2))


def facts(*kinds: str, knows: tuple[str, ...] = SERVER_KNOWS) -> TargetFacts:
    return TargetFacts(
        artifact_kinds=frozenset(kinds), clients=3, images_per_client=50, classes=7, profile="quick",
        knows=frozenset(knows),
    )  # fmt: skip


@pytest.mark.medium
def test_the_positive_control_is_won_against_every_control_by_both_answers():
    _, planted_control, answers = planted()

    controls = positive_control(planted_control, answers, Judge(bootstrap_repeats=300), child_rng(2))

    assert {(c.measurement.slice["over"], c.measurement.slice["restarts"]) for c in controls} == {
        (control, restarts) for control in ("B0", "B1", "B2", "B3", "B4") for restarts in ("best", "mean")
    }
    assert all(control.passed for control in controls)


@pytest.mark.parametrize("over", ["B0", "B2", "B3"])
@pytest.mark.medium
def test_images_of_one_color_leak_beyond_the_decisive_controls(over: str):
    rows = [row for row in judged() if row.name == "psnr_gain" and row.slice["over"] == over]

    assert [row.leaks for row in rows] == [True, True]


def test_images_of_one_color_are_picked_out_of_their_gallery():
    tops = [row.value for row in judged() if row.name == "gallery_top1" and row.slice["distance"] == "mse"]

    assert tops == [1.0, 1.0]  # chance is 1/10


@pytest.mark.medium
def test_exchanged_styles_find_nothing():
    attack, planted_control, _ = planted()
    answers = attack.negative_control(planted_control.cases, planted_control.knowledge, child_rng(1))
    nulls = Judge().null(answers, planted_control.cases, planted_control.truths, child_rng(2))

    assert [row.name for row in nulls] == ["psnr"]
    assert all(control.passed for control in negative_controls(nulls, comparisons=1))


def test_styles_that_say_nothing_about_the_images_raise_false_alarms_no_more_often_than_the_level():
    _, planted_control, answers = planted()
    (found,) = pictures(answers)
    true = planted_control.truths[0].images
    assert true is not None
    alarms = 0
    for number in range(100):
        order = torch.randperm(len(true), generator=child_rng(number))  # blind to what the permutation test exchanges
        truths = [Truth(images=true[order])]
        (null,) = Judge().null([found], planted_control.cases, truths, child_rng(number), permutations=199)
        alarms += null.p_value <= 0.05

    assert alarms <= 11  # P(Binomial(100, .05) > 11) = .0043


@pytest.mark.medium
def test_a_procedural_pictures_statistics_are_met_but_its_layout_stays_open():
    victims = of("photo", 30, 33)
    attack = OptimizationInversion(steps=150, restarts=2, side=32)
    answers = attack.run([image_rows(victims, "photo", "mini")], knowledge("mini"), child_rng())
    (found,) = pictures(answers)
    mean, std = statistics("mini", victims).style(unbiased=False)
    with torch.no_grad():
        own = style_of(encoder_named("mini").encode(found.images), unbiased=False)
    gap = torch.cat([own[0] - mean, own[1] - std], dim=1).norm() / torch.cat([mean, std], dim=1).norm()

    assert float(gap) < 0.05
    assert numbers(answers, "converged_fraction") == [1.0]
    assert numbers(answers, "style_residual")[0] < numbers(answers, "style_residual", of="B2")[0] / 5
    assert numbers(answers, "restart_share")[0] > 0.5
    assert numbers(answers, "restart_spread")[0] > 0.1


def test_answers_and_bookkeeping_come_for_every_case():
    cases = [image_rows(of("photo", 21, 27), "photo"), image_rows(of("cartoon", 21, 24), "cartoon")]
    answers = SHORT.run(cases, knowledge(), child_rng())

    assert [(a.case, a.slice["restarts"], tuple(a.images.shape)) for a in answers if isinstance(a, Reconstructions)] == [
        (0, "best", (6, 3, 16, 16)), (0, "mean", (6, 3, 16, 16)),
        (1, "best", (3, 3, 16, 16)), (1, "mean", (3, 3, 16, 16)),
    ]  # fmt: skip
    assert len(numbers(answers, "converged_fraction")) == len(numbers(answers, "restart_share")) == 2
    assert len(numbers(answers, "style_residual", of="B4")) == 2


def test_controls_are_the_mean_the_nearest_in_style_and_another_row_of_the_domain():
    victims = of("photo", 21, 27)
    (answer,) = pictures(SHORT.run([image_rows(victims, "photo")], knowledge(), child_rng()))
    public = of("photo", 0, 21)
    small = downsample(public, (16, 16))
    every, known, asked = (
        torch.cat(statistics("pixels", part).style(unbiased=False), dim=1)
        for part in (knowledge().public_images(), public, victims)
    )
    spread = every.std(0, correction=0)
    spread = spread + 0.1 * spread.mean()
    near = (((asked[:, None] - known[None]) / spread) ** 2).sum(2).argmin(1)

    assert torch.allclose(answer.controls["B0"], small.mean(0).expand(6, -1, -1, -1), atol=1e-6)
    assert all(any(torch.equal(image, one) for one in small) for image in answer.controls["B1"])
    assert torch.equal(answer.controls["B2"], small[near])
    source = [[bool(torch.equal(b3, image)) for image in answer.images].index(True) for b3 in answer.controls["B3"]]
    assert sorted(source) == list(range(6))
    assert all(place != number for number, place in enumerate(source))
    assert not any(torch.equal(b4, image) for b4 in answer.controls["B4"] for image in answer.images)


def test_without_the_victims_domain_all_public_images_serve():
    (answer,) = pictures(SHORT.run([image_rows(of("photo", 21, 24), None)], knowledge(), child_rng()))

    assert torch.allclose(
        answer.controls["B0"][0], downsample(knowledge().public_images(), (16, 16)).mean(0), atol=1e-6
    )


def test_a_single_row_has_the_style_of_a_public_image_as_its_control_and_cannot_be_exchanged():
    case = image_rows(of("photo", 21, 22), "photo")
    (answer,) = pictures(SHORT.run([case], knowledge(), child_rng()))

    assert answer.controls["B3"].shape == (1, 3, 16, 16)
    assert not torch.equal(answer.controls["B3"], answer.images)
    assert not torch.equal(answer.controls["B3"], answer.controls["B4"])
    assert SHORT.negative_control([case], knowledge(), child_rng()) == []


def test_the_mean_answer_averages_what_the_best_was_chosen_from():
    case = image_rows(of("photo", 21, 24), "photo")
    one = replace(SHORT, restarts=1)
    answers, single = SHORT.run([case], knowledge(), child_rng()), one.run([case], knowledge(), child_rng())
    first, mean, best = pictures(single)[0].images, pictures(answers, "mean")[0].images, pictures(answers)[0].images
    second = 2 * mean - first

    assert torch.equal(first, pictures(single, "mean")[0].images)
    assert all(
        torch.allclose(b, f, atol=1e-4) or torch.allclose(b, s, atol=1e-4)
        for b, f, s in zip(best, first, second, strict=True)
    )


def test_differences_of_one_domain_are_parted_and_serve_as_each_others_control():
    holds = of("painting", 0, 21)
    cases = [pooled_pair(holds, of("painting", n, n + 1), "painting") for n in range(30, 33)]
    answers = replace(SHORT, steps=100).run(cases, knowledge(), child_rng())
    found = pictures(answers)
    images, exchanged = torch.cat([a.images for a in found]), torch.cat([a.controls["B3"] for a in found])
    true = as_float(of("painting", 30, 33).pixels())

    assert [a.case for a in found] == [0, 1, 2]
    assert torch.allclose(images.mean((2, 3)), true.mean((2, 3)), atol=0.05)  # the added records' own colors
    assert not any(torch.equal(a, b) for a, b in zip(images, exchanged, strict=True))
    assert torch.equal(images.flatten(1).sort(0).values, exchanged.flatten(1).sort(0).values)


def test_starting_at_the_mean_image_keeps_its_layout():
    case = image_rows(of("photo", 21, 24), "photo")

    def likeness(attack: OptimizationInversion) -> float:
        (answer,) = pictures(attack.run([case], knowledge(), child_rng()), "mean")
        pairs = [
            torch.stack([a.flatten(), b.flatten()]) for a, b in zip(answer.images, answer.controls["B0"], strict=True)
        ]
        return min(float(torch.corrcoef(pair)[0, 1]) for pair in pairs)

    many = replace(SHORT, steps=20, restarts=6)
    assert likeness(replace(many, start="mean image")) > likeness(many) + 0.1


def test_the_canvas_is_never_larger_than_what_the_encoder_saw():
    case = image_rows(of("photo", 21, 23), "photo", "mini")
    (answer,) = pictures(replace(SHORT, side=64).run([case], knowledge("mini"), child_rng()))

    assert answer.images.shape == (2, 3, 32, 32)


@pytest.mark.parametrize("cores", [1, 3])
def test_equal_streams_give_equal_pictures_on_several_cores(cores: int, monkeypatch: pytest.MonkeyPatch):
    cases = [image_rows(of("photo", 21, 24), "photo"), image_rows(of("cartoon", 0, 3), "cartoon")]
    first = pictures(SHORT.run(cases, knowledge(), child_rng()))
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _process: set(range(cores)), raising=False)
    monkeypatch.setattr(threads.os, "cpu_count", lambda: cores)

    again = pictures(SHORT.run(cases, knowledge(), child_rng()))

    assert len(first) == 2
    assert all(torch.equal(a.images, b.images) for a, b in zip(first, again, strict=True))
    assert all(torch.equal(a.controls[n], b.controls[n]) for a, b in zip(first, again, strict=True) for n in a.controls)


@pytest.mark.parametrize("reentrant", [True, False])
def test_an_encoder_that_is_not_reentrant_is_asked_by_one_thread(reentrant: bool, monkeypatch: pytest.MonkeyPatch):
    cases = [image_rows(of("photo", 21, 24), "photo"), image_rows(of("cartoon", 0, 3), "cartoon")]
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _process: {0, 1, 2}, raising=False)
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 3)
    monkeypatch.setattr(type(encoder_named("pixels")), "reentrant", reentrant)
    names, matched = list[str](), optimization_attack.match
    monkeypatch.setattr(
        optimization_attack,
        "match",
        lambda *given, **more: names.append(current_thread().name) or matched(*given, **more),
    )

    SHORT.run(cases, knowledge(), child_rng())

    assert len(names) == 2
    assert any(name.startswith("side-by-side") for name in names) == reentrant


def test_clients_that_release_more_rows_than_are_drawn_are_left_out_with_the_reason():
    few, many = image_rows(of("photo", 21, 27), "photo", "mini"), image_rows(of("cartoon", 0, 33), "cartoon", "mini")
    known = knowledge("mini")
    answered = {answer.case for answer in SHORT.run([few, many], known, child_rng())}
    (row,) = SHORT.missing([few, many], known)

    assert answered == {0}
    assert row.unavailable == "a client released 33 rows; quick draws at most 32"
    assert SHORT.missing([few], known) == []
    assert SHORT.missing([many], knowledge("pixels")) == []  # no network to pass through: eight times as many


def test_rows_are_asked_for_where_images_are_released_singly_and_pairs_where_they_are_pooled():
    single = OptimizationInversion().plan(facts("ImageStyles", "StyleBank"))
    pooled = OptimizationInversion().plan(facts("StyleStatistics", "StyleBank"))

    assert [(question.kind, question.per_class) for question in single] == [("released", 0), ("as_if_released", 2)]
    assert [(question.kind, question.count) for question in pooled] == [("add_one_record", 8)]


def test_what_cannot_be_parted_or_controlled_is_refused():
    with pytest.raises(UsageError, match="must know client sizes and victim domains"):
        OptimizationInversion().plan(facts("StyleStatistics", knows=("encoder", "own data")))
    with pytest.raises(UsageError, match="needs auxiliary or own data"):
        OptimizationInversion().plan(facts("ImageStyles", knows=("encoder",)))
    with pytest.raises(UsageError, match="those of this target are not"):
        OptimizationInversion().plan(replace(facts("StyleStatistics"), pooled=False))


def test_wrong_options_are_refused_by_name():
    with pytest.raises(UsageError, match="a side of at least 16 px"):
        OptimizationInversion(side=8)
    with pytest.raises(UsageError, match="starts noise, mean image; got quick, zero"):
        OptimizationInversion(start="zero")  # type: ignore[arg-type]

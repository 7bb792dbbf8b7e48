"""A sweep: what it plans, what it resumes, which row it follows, and where it says that clients are hidden."""

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fdgsec.cli.app import main
from fdgsec.defenses.k_anonymous import KAnonymous
from fdgsec.defenses.private_styles import PrivateStyles
from fdgsec.defenses.quantize import Quantize
from fdgsec.defenses.style_noise import StyleNoise
from fdgsec.experiments.failed_runs import FailedRunsError
from fdgsec.experiments.run_config import defense_text
from fdgsec.experiments.sweep import run_sweep as verb
from fdgsec.experiments.sweep.points import stored
from fdgsec.experiments.sweep.run_sweep import (
    Point,
    SweepRequest,
    parsed_over,
    parsed_values,
    plan,
    sweep,
)
from fdgsec.runtime.errors import DataError, UsageError
from fdgsec.runtime.progress import NoProgress
from tests.support.swept import attack as measured
from tests.support.swept import row

SMALL = {"per_domain": 20, "image_size": 16}
REQUEST = SweepRequest(
    target="ccst-overall", dataset="shapes", defenses=(StyleNoise(),), option="scale", values=(0.5, 0.05),
    accuracy_at=(0.5,), seeds=2, given=SMALL,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("scale=0.5,1,inf", (0.5, 1.0, math.inf)),
        ("scale=log:0.01:100:5", (0.01, 0.1, 1.0, 10.0, 100.0)),
        ("scale=log:1:10:3", (1.0, 3.16, 10.0)),
    ],
)
def test_values_are_listed_or_a_logarithmic_grid_with_both_ends(text: str, values: tuple[float, ...]):
    assert parsed_over(text) == ("scale", values)


@pytest.mark.parametrize(
    "text", ["scale", "=1", "scale=", "scale=a", "scale=log:1:10", "scale=log:0:1:3", "scale=1,,2"]
)
def test_what_is_no_list_of_values_is_refused(text: str):
    with pytest.raises(UsageError, match=r"expects option=|values are numbers"):
        parsed_over(text)


def test_accuracies_are_asked_for_like_values():
    assert parsed_values("log:1:100:3") == (1.0, 10.0, 100.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"defenses": ()}, r"needs a defense \(--defense\), and an option"),
        ({"values": ()}, "an option of it with values"),
        ({"values": (1.0, 1.0)}, "different values"),
        ({"values": (math.nan,), "accuracy_at": ()}, "got nan"),
        ({"accuracy_at": (7.0,)}, "--accuracy-at 7 is not one of the values"),
        ({"seeds": 0}, "1 or more"),
    ],
)
def test_a_request_that_makes_no_sense_says_why(changes: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=message):
        replace(REQUEST, **changes)


def test_privacy_and_accuracy_of_a_sweep_are_those_of_one_method():
    assigned = (
        "method.k=2",
        "method.plan.learning_rate=0.5",
        "run.backbone=resnet18",
        "attacks.membership.clients=9",
    )

    points = plan(replace(REQUEST, assignments=assigned), data_root=None)

    kinds = {point.kind for point in points}
    ks = {point.config.options["k"] for point in points}
    trained = [point.config for point in points if point.kind == "accuracy"]
    assert kinds == {"privacy", "accuracy"}
    assert ks == {2}
    assert {config.backbone for config in trained} == {"resnet18"}
    assert {config.options["plan"]["learning_rate"] for config in trained} == {0.5}
    assert not any(config.attack_options for config in trained)


def test_an_encoder_of_the_method_is_that_of_its_accuracy_too():
    points = plan(replace(REQUEST, assignments=("method.encoder=squeezenet",)), data_root=None)

    assert {(point.config.encoder, point.config.options["encoder"]) for point in points} == {
        ("squeezenet", "squeezenet")
    }


def test_the_last_defense_takes_the_value_and_none_is_no_defense():
    request = replace(REQUEST, defenses=(Quantize(bits=4), StyleNoise(p=0.2)))

    assert request.defenses_at(0.5) == (Quantize(bits=4), StyleNoise(p=0.2, scale=0.5))
    private = replace(REQUEST, defenses=(Quantize(bits=4), PrivateStyles(clip=2.0)), option="epsilon")
    assert private.defenses_at(math.inf) == (Quantize(bits=4), PrivateStyles(clip=2.0, epsilon=math.inf))
    assert request.defenses_at(None) == ()
    assert replace(REQUEST, defenses=(KAnonymous(),), option="k").defenses_at(3.0) == (KAnonymous(k=3),)


def test_privacy_comes_first_then_accuracy_seed_by_seed_each_with_a_point_without_defense():
    points = plan(REQUEST, data_root=None)

    assert [(p.kind, p.value, p.config.seed) for p in points] == [
        ("privacy", None, 0), ("privacy", 0.5, 0), ("privacy", 0.05, 0),
        ("accuracy", None, 0), ("accuracy", 0.5, 0), ("accuracy", None, 1), ("accuracy", 0.5, 1),
    ]  # fmt: skip
    assert len({p.key for p in points}) == 7
    assert points[0].config.defenses == ()
    assert points[-1].config.backbone == "squeezenet1_0"  # the protocol's
    assert points[-1].config.options["k"] == 3  # its arm's


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"option": "size"}, "size"),
        ({"option": "p", "values": (0.5, 1.5), "accuracy_at": ()}, "p in"),
        ({"target": "fisc", "defenses": (PrivateStyles(),), "option": "epsilon"}, "per record"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_computed(changes: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=message):
        plan(replace(REQUEST, **changes), data_root=None)


def finished(_: Path | None, point: Point) -> dict[str, Any]:
    """What a point gives: linkage halves with every value, accuracy falls by a tenth; nothing is run."""
    value = point.value or 0.0
    rows = [row("top1", 1 / (1 + 10 * value)), row("auc", 0.9, chance=0.5)]
    return {
        "kind": point.kind, "value": point.value, "seed": point.config.seed, "settings": point.config.sha256,
        "defenses": list(map(defense_text, point.config.defenses)), "guarantees": [{"part": "run", "epsilon": None}],
        "accuracy": {"value": 0.6 - value / 10 + point.config.seed / 100},
        "attacks": [measured("linkage", rows)], "seconds": 1.0, "environment": {"code_sha256": "a"},
    }  # fmt: skip


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand in for runs, which end at once."""
    seen: list[str] = []

    def compute(data_root: Path | None, point: Point) -> dict[str, Any]:
        seen.append(point.key)
        return finished(data_root, point)

    monkeypatch.setattr(verb, "compute", compute)
    return seen


@pytest.fixture
def failing(computed: list[str], monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, float | None]]:
    """Have points of these kinds and values end with an error."""
    failed, run = set[tuple[str, float | None]](), verb.compute

    def compute(data_root: Path | None, point: Point) -> dict[str, Any]:
        if (point.kind, point.value) in failed:
            raise UsageError("its weights are not finite.")
        return run(data_root, point)

    monkeypatch.setattr(verb, "compute", compute)
    return failed


@pytest.mark.medium
def test_a_point_that_fails_stops_no_other_one_and_is_named_at_the_end(
    computed: list[str], failing: set[tuple[str, float | None]], tmp_path: Path
):
    failing |= {("privacy", 0.5), ("accuracy", None)}

    with pytest.raises(
        FailedRunsError,
        match=r"^runs that failed: 3; the same command tries them again: privacy at 0\.5, seed 0: its weights are not "
        r"finite\.; accuracy at no defense, seed 0: ",
    ):
        sweep(REQUEST, data_root=None, out=tmp_path, progress=NoProgress())

    assert len(computed) == json.loads((tmp_path / "sweep.json").read_text())["finished"] == 4
    failing.clear()
    assert sweep(REQUEST, data_root=None, out=tmp_path, progress=NoProgress())["finished"] == 7
    assert len(computed) == 7


def test_where_the_first_point_fails_none_follows(
    computed: list[str], failing: set[tuple[str, float | None]], tmp_path: Path
):
    failing.add(("privacy", None))

    with pytest.raises(UsageError, match=r"^its weights are not finite\.$"):
        sweep(REQUEST, data_root=None, out=tmp_path, progress=NoProgress())

    assert not computed


@pytest.mark.medium
def test_a_sweep_goes_on_where_a_limit_stopped_it_and_computes_nothing_twice(computed: list[str], tmp_path: Path):
    first = sweep(REQUEST, data_root=None, out=tmp_path, progress=NoProgress(), limit=2)
    second = sweep(REQUEST, data_root=None, out=tmp_path, progress=NoProgress())
    again = sweep(REQUEST, data_root=None, out=tmp_path, progress=NoProgress())

    assert (first["finished"], second["finished"], second["planned"]) == (2, 7, 7)
    assert again == second
    assert len(computed) == len(set(computed)) == 7


def test_nothing_is_computed_with_a_limit_of_zero(computed: list[str], tmp_path: Path):
    found = sweep(REQUEST, data_root=None, out=tmp_path, progress=NoProgress(), limit=0)

    assert not computed
    assert found["hidden"] is None
    assert not list(tmp_path.glob("*.png"))


@pytest.mark.medium
def test_other_settings_are_other_points(computed: list[str], tmp_path: Path):
    sweep(REQUEST, data_root=None, out=tmp_path, progress=NoProgress())
    sweep(replace(REQUEST, profile="full"), data_root=None, out=tmp_path, progress=NoProgress())

    assert len(computed) == 7 + 3  # the accuracies are the same


@pytest.mark.parametrize("text", ["no json", '{"cells": {}}', '{"points": [1]}', '{"points": {"a": 1}}'])
def test_another_kind_of_file_is_refused_and_left_alone(computed: list[str], tmp_path: Path, text: str):
    (tmp_path / "points.json").write_text(text)

    with pytest.raises(DataError, match=r"points\.json"):
        sweep(REQUEST, data_root=None, out=tmp_path, progress=NoProgress())

    assert (tmp_path / "points.json").read_text() == text
    assert not computed


def test_points_of_another_schema_are_refused(tmp_path: Path):
    (tmp_path / "points.json").write_text('{"schema": 7, "points": {}}')

    with pytest.raises(DataError, match="schema 7"):
        stored(tmp_path / "points.json")


def test_an_infinite_value_is_written_as_json_and_read_again(computed: list[str], tmp_path: Path):
    request = replace(REQUEST, defenses=(PrivateStyles(),), option="epsilon", values=(8.0, math.inf), accuracy_at=())

    found = sweep(request, data_root=None, out=tmp_path, progress=NoProgress())
    again = sweep(request, data_root=None, out=tmp_path, progress=NoProgress())

    assert found == again
    assert len(computed) == 3
    both = [(tmp_path / name).read_text() for name in ("points.json", "sweep.json")]
    assert not any(word in text for word in ("Infinity", "NaN") for text in both)
    assert json.loads(both[1])["privacy"][2]["value"] == "inf"


@pytest.mark.medium
def test_all_formats_hold_the_same_numbers(computed: list[str], tmp_path: Path):
    sweep(REQUEST, data_root=None, out=tmp_path, progress=NoProgress())

    document = json.loads((tmp_path / "sweep.json").read_text())
    lines = list(csv.DictReader(io.StringIO((tmp_path / "sweep.csv").read_text())))
    table = (tmp_path / "sweep.md").read_text()
    assert [point["value"] for point in document["privacy"]] == [None, 0.05, 0.5]
    assert document["privacy"][1]["rows"]["linkage"]["value"] == pytest.approx(2 / 3)
    assert [(line["axis"], line["scale"]) for line in lines] == [
        ("privacy", "undefended"), ("privacy", "0.05"), ("privacy", "0.5"), ("accuracy", "undefended"), ("accuracy", "0.5"),
    ]  # fmt: skip
    assert float(lines[1]["value"]) == document["privacy"][1]["rows"]["linkage"]["value"]
    assert "| 0.05 | 0.667 [0.567, 0.767] |  | none |" in table
    assert (tmp_path / "noise.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow  # two processes that import everything anew
def test_workers_find_what_one_process_finds(tmp_path: Path):
    request = SweepRequest(
        target="ccst-overall", dataset="shapes", defenses=(StyleNoise(),), option="scale", values=(5.0,), accuracy_at=(),
        attacks=("linkage",), given={"per_domain": 49, "image_size": 16}, assignments=("attacks.linkage.clients=4",),
    )  # fmt: skip

    one = sweep(request, data_root=None, out=tmp_path / "one", progress=NoProgress())
    two = sweep(replace(request, workers=2), data_root=None, out=tmp_path / "two", progress=NoProgress())

    assert one["privacy"] == two["privacy"]
    assert one["finished"] == two["finished"] == 2
    assert one["followed"]["linkage"]["measurement"] == "top1"


def test_the_verb_prints_where_clients_are_hidden(
    computed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    code = main(
        ["sweep", "--target", "ccst-overall", "--defense", "style-noise", "--over", "scale=1,10", "--accuracy-at", "none",
         "--per-domain", "20", "--image-size", "16", "--out", str(tmp_path)]
    )  # fmt: skip

    printed = capsys.readouterr().out
    assert code == 0
    assert "ccst-overall on shapes, 3 of 3 points" in printed
    assert "Linkage falls under 2 times chance at scale = 10" in " ".join(printed.split())


def test_the_verb_refuses_an_unknown_option_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    code = main(["sweep", "--over", "scala=1,2", "--accuracy-at", "none", "--out", str(tmp_path / "new")])

    assert code == 2
    assert "scala" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()

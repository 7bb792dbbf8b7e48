"""The published JSON Schema of report.json: every report validates, and damaged ones do not."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import fdgsec
from fdgsec.experiments.report import schema
from fdgsec.metrics.measurement import Control, Measurement
from fdgsec.privacy.ledger import Guarantee

pytestmark = pytest.mark.medium

SMALL: dict[str, Any] = {"per_domain": 70, "image_size": 16}
SCHEMA = fdgsec.AttackReport.json_schema()


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A report with a finished attack, skipped ones, controls, a defense and a guarantee."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("FDGSEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        defenses = ["style-noise:scale=0.5"]
        return fdgsec.attack("ccst-single", attacks=["linkage", "poisoning"], defenses=defenses, **SMALL).document()


def problems(document: object) -> list[str]:
    return [error.message for error in Draft202012Validator(SCHEMA).iter_errors(json.loads(json.dumps(document)))]


def test_the_schema_is_one_and_is_the_published_one():
    Draft202012Validator.check_schema(SCHEMA)

    published = Path(__file__).parents[3] / "docs" / "report.schema.json"
    assert json.loads(published.read_text()) == SCHEMA


def test_the_schema_names_every_entry_that_a_report_writes():
    row = Measurement(
        name="auc", value=1, low=0, high=1, chance=0.5, chance_kind="exact", n=1, not_adapted_to="a", unread="b"
    )
    control = Control(measurement=replace(row, value=None, unavailable="few"), expected="", passed=True)
    parts = SCHEMA["$defs"]

    assert set(SCHEMA["properties"]) == {"schema", *(spec.name for spec in fields(schema.AttackReport))}
    assert set(parts["measurement"]["properties"]) == {*row.document(), "unavailable"}
    assert set(parts["control"]["properties"]) == {*control.document(), "not_adapted_to", "unread"}
    attack = schema.AttackResult(name="a", adversary={}, status="done", target=control).document()
    assert set(parts["attack"]["properties"]) == set(attack)
    assert set(parts["attack"]["properties"]["controls"]["properties"]) == set(attack["controls"])  # type: ignore[call-overload]
    assert set(parts["figure"]["properties"]) == {spec.name for spec in fields(schema.Figure)} - {"png"}
    assert set(SCHEMA["properties"]["guarantees"]["items"]["properties"]) == {spec.name for spec in fields(Guarantee)}


def test_reports_of_attacks_trainings_and_vectors_validate(
    attacked: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path))
    assert problems(attacked) == []
    assert problems(fdgsec.train("fedavg", rounds=1, backbone="tiny", **SMALL).document()) == []
    vectors = {"A": [1.0, 2.0, 0.5, 0.5], "B": [1.5, 2.0, 0.5, 0.4], "C": [1.0, 2.5, 0.4, 0.5]}
    assert problems(fdgsec.attack_vectors(vectors).document()) == []  # type: ignore[arg-type]


def first(document: dict[str, Any]) -> dict[str, Any]:
    rows = [row for attack in document["attacks"] for row in attack["measurements"]]
    return next(row for row in rows if row["value"] is not None)


@pytest.mark.parametrize(
    "damage",
    [
        lambda document: document.update(schema=2),
        lambda document: document.pop("attacks"),
        lambda document: document.update(mine=1),
        lambda document: document.update(seed="0"),
        lambda document: document["dataset"].update(images=-1),
        lambda document: document["dataset"]["roles"]["federation"].update(photo="many"),
        lambda document: document.update(accuracy={"value": 2}),
        lambda document: document["guarantees"][0].pop("epsilon"),
        lambda document: document["artifacts"][0].update(sha256="abc"),
        lambda document: document["attacks"][0].update(status="perhaps"),
        lambda document: document["attacks"][0]["controls"].update(strange=[]),
        lambda document: document["attacks"][0]["adversary"].update(knows="everything"),
        lambda document: first(document).pop("chance"),
        lambda document: first(document).update(value=None),
        lambda document: first(document).update(unavailable="few"),
        lambda document: first(document).update(higher_is="better"),
        lambda document: first(document).update(slice={"domain": ["photo"]}),
        lambda document: first(document).update(verdict=""),
    ],
)
def test_a_damaged_report_does_not_validate(attacked: dict[str, Any], damage: Callable[[dict[str, Any]], object]):
    document = json.loads(json.dumps(attacked))
    damage(document)

    assert problems(document)

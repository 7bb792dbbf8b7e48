"""What `AttackReport.load` accepts keeps the published schema, and what keeps the schema is refused for one reason only:
its entries contradict each other, which no schema can say."""

import copy
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import fdgsec
from fdgsec.runtime.errors import UsageError
from tests.unit.experiments.test_attack_report import report

SCORE = {"value": 0.6, "low": 0.5, "high": 0.7, "n": 90}
GUARANTEE = {
    "part": "run", "epsilon": 4.0, "delta": 1e-5, "unit": "record", "relation": "replace-one", "mechanism": "gaussian",
    "assumptions": ["a"], "covers": ["share/style"], "uncovered": [], "by": ["style-noise"], "vetted": True,
}  # fmt: skip
SENT = {
    "round": 0, "stage": "share", "sender": "client:0", "receiver": "server", "kind": "StyleStatistics", "bytes": 8,
    "sha256": "0" * 64,
}  # fmt: skip
WHOLE: dict[str, Any] = json.loads(
    report(
        accuracy={"unseen_domain": "sketch", **SCORE, "per_domain": {"photo": SCORE}}, backbone="tiny",
        defenses=[{"name": "style-noise", "options": {"scale": 0.5}}], guarantees=[GUARANTEE], artifacts=[SENT],
        model_traffic=[{"stage": "fit", "kind": "ModelState", "messages": 6, "bytes": 600}],
        unread_kinds=["Prototypes"], environment={"command": "fdgsec attack"},
    ).json()
)  # fmt: skip
SCHEMA = Draft202012Validator(fdgsec.AttackReport.json_schema())
CONTRADICTIONS = ("by the other entries", "outside its interval", "has no chance level", " twice")
"""What a refusal says where every entry is legal by itself."""
Place = tuple[str | int, ...]
DROP, ADD = "<drop>", "<add>"
VALUES = (None, True, False, -1, 0, 7, 5.0, 0.25, -1e300, 1e300, "", "x", "inf", "0.5", [], ["x"], {}, {"a": "b"})


def places(part: Any, before: Place = ()) -> Iterator[Place]:
    """Where the document has an entry."""
    entries = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for key, value in entries:
        yield (*before, key)
        yield from places(value, (*before, key))


PLACES = list(places(WHOLE))


def mutated(place: Place, change: Any) -> dict[str, Any]:
    document = copy.deepcopy(WHOLE)
    holder: Any = document
    for key in place[:-1]:
        holder = holder[key]
    if change == DROP:
        del holder[place[-1]]
    elif change == ADD and isinstance(holder, dict):
        holder["mine"] = 1
    else:
        holder[place[-1]] = change
    return document


def refusal(document: dict[str, Any]) -> str:
    """Why the loader refuses a document; empty where it does not."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        path.write_text(json.dumps(document))
        try:
            fdgsec.AttackReport.load(path)
        except UsageError as error:
            return str(error)
    return ""


def test_the_document_that_is_changed_is_one():
    assert SCHEMA.is_valid(WHOLE)
    assert refusal(WHOLE) == ""
    assert len(PLACES) > 150


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(PLACES), st.sampled_from((DROP, ADD, *VALUES)))
@example(("unread_kinds",), DROP)
@example(("dataset", "roles"), DROP)
@example(("accuracy", "high"), DROP)
@example(("attacks", 0, "mine"), ADD)
@example(("guarantees", 0, "epsilon"), "x")
@example(("guarantees", 0, "epsilon"), "inf")
@example(("guarantees", 0, "delta"), 7)
@example(("model_traffic", 0, "messages"), 1e300)
@example(("model_traffic", 0, "bytes"), 5.0)
@example(("artifacts", 0, "bytes"), 5.0)
@example(("artifacts", 0, "sha256"), "x")
@example(("attacks", 0, "measurements", 0, "n"), -1)
@example(("attacks", 0, "measurements", 0, "adjusted_p_value"), 7)
@example(("attacks", 0, "measurements", 0, "low"), 7)
@example(("attacks", 0, "measurements", 0, "slice"), {"gallery": "many"})
@pytest.mark.medium
def test_loader_and_schema_agree_on_every_changed_report(place: Place, change: Any):
    document = mutated(place, change)

    said = refusal(document)

    if not SCHEMA.is_valid(document):
        assert said
    elif said:
        assert any(each in said for each in CONTRADICTIONS), said


@pytest.mark.slow
@pytest.mark.parametrize("change", [DROP, ADD, *VALUES], ids=repr)
def test_loader_and_schema_agree_on_this_change_of_every_entry(change: Any):
    for place in PLACES:
        document = mutated(place, change)
        said = refusal(document)
        legal = SCHEMA.is_valid(document)
        assert legal or said, place
        assert not (legal and said) or any(each in said for each in CONTRADICTIONS), (place, said)

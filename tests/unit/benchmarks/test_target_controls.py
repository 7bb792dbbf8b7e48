"""The table of controls through bundled targets: what stands there stays, but for the attacks that are run again."""

import json
from pathlib import Path

import pytest

from benchmarks import target_controls


def line(target: str, **values: float) -> str:
    controls = {name: {"passed": True, "value": value, "reason": ""} for name, value in values.items()}
    return json.dumps({"target": target, "adversary": "server", "controls": controls, "seconds": 1.0}) + "\n"


def test_only_the_named_attacks_of_stored_pairs_are_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    results = tmp_path / "controls.jsonl"
    results.write_text(line("fisc", linkage=0.5, membership=0.5) + line("fedavg", poisoning=0.5))
    asked: list[tuple[str, str, list[str]]] = []

    def controlled(target: str, adversary: str, attacks: list[str]) -> dict[str, object]:
        asked.append((target, adversary, list(attacks)))
        loaded: dict[str, object] = json.loads(line(target, **dict.fromkeys(attacks or ["linkage"], 0.9)))
        return {**loaded, "adversary": adversary}

    monkeypatch.setattr(target_controls, "RESULTS", results)
    monkeypatch.setattr(target_controls, "controlled", controlled)
    monkeypatch.setattr(target_controls, "targets", lambda: ["fisc", "fedavg", "dsu"])

    target_controls.run(["server"], [], ["linkage"])

    assert asked == [("fisc", "server", ["linkage"]), ("dsu", "server", [])]
    found = target_controls.stored()
    assert [target for target, _ in found] == ["fisc", "fedavg", "dsu"]
    values = {name: control["value"] for name, control in found["fisc", "server"]["controls"].items()}  # type: ignore[attr-defined]
    assert values == {"linkage": 0.9, "membership": 0.5}

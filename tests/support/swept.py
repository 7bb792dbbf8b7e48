"""Finished points of a sweep, made by hand."""

from collections.abc import Mapping, Sequence
from typing import Any

from fdgsec.experiments.sweep.tables import summary


def row(
    name: str, value: float | None, *, chance: float = 1 / 30, verdict: str = "leaks", **where: str
) -> dict[str, Any]:
    low, high = (None, None) if value is None else (max(value - 0.1, 0.0), min(value + 0.1, 1.0))
    return {
        "name": name, "slice": {"domain": "photo", **where}, "value": value, "low": low, "high": high, "chance": chance, "n": 30,
        "verdict": "unavailable" if value is None else verdict,
    }  # fmt: skip


def attack(name: str, rows: Sequence[Mapping[str, Any]], **changes: object) -> dict[str, Any]:
    return {"name": name, "status": "done", "reason": "", "controls": {}, "measurements": list(rows), **changes}


def guarantee(epsilon: float | None) -> list[dict[str, Any]]:
    return [{"part": "run", "epsilon": epsilon}]


def private(value: float | None, *attacks: Mapping[str, Any], epsilon: float | None = None) -> dict[str, Any]:
    return {
        "kind": "privacy", "value": value, "seed": 0, "guarantees": [] if value is None else guarantee(epsilon),
        "accuracy": None, "attacks": list(attacks), "environment": {"code_sha256": "a"},
    }  # fmt: skip


def trained(
    value: float | None, seed: int, accuracy: float, *, steps: float | None = 9.0, own: float | None = None
) -> dict[str, Any]:
    """A trained run, with its optimizer steps and the accuracy on its clients' own domains."""
    score: dict[str, Any] = {"value": accuracy, "unseen_domain": "sketch"}
    score |= {} if steps is None else {"steps": {"per_client_and_round": steps, "total": 10 * steps}}
    score |= {} if own is None else {"per_domain": {"photo": {"value": own}}}
    return {
        "kind": "accuracy", "value": value, "seed": seed, "guarantees": [], "accuracy": score, "attacks": [],
        "environment": {"code_sha256": "a"},
    }  # fmt: skip


def curve(
    linkage: Mapping[float | None, float | None],
    accuracy: Mapping[float | None, Sequence[float]] | None = None,
    *,
    epsilon: bool = False,
    option: str = "scale",
) -> dict[str, Any]:
    """The document of a sweep whose linkage and membership are given by value, accuracies by value and seed."""
    points = [
        private(
            value,
            attack("linkage", [row("top1", rate), row("between_client_sd", 0.02, verdict="descriptive")]),
            attack(
                "membership",
                [
                    row("auc", None if rate is None else 0.5 + rate / 2, chance=0.5),
                    row("one_candidate_auc", 0.55, verdict="descriptive", line="rehearsal"),
                ],
            ),
            epsilon=value if epsilon and value != float("inf") else None,
        )
        for value, rate in linkage.items()
    ]
    points += [
        trained(value, seed, score)
        for value, scores in (accuracy or {}).items()
        for seed, score in enumerate(scores)
    ]  # fmt: skip
    return {
        "schema": 1, "target": "ccst-overall", "dataset": "shapes", "defenses": ["style-noise:p=0.1"], "option": option,
        "protocol": "quick", "profile": "quick", "planned": len(points), "finished": len(points), **summary(points),
    }  # fmt: skip

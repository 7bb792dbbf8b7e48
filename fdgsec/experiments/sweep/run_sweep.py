"""The verb `sweep`: the privacy-accuracy trade-off over one option of a defense, point by point, resumable.

Privacy is measured by attacks on an exchange (or on several rounds), accuracy by training under a protocol of
`fdgsec bench`, usually at fewer values. Both include a point without the defense as the baseline. Each finished point
is written at once."""

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_type_hints

import torch

from fdgsec.experiments.attack.run_attacks import attack
from fdgsec.experiments.bench.protocols import Protocol, protocol_named
from fdgsec.experiments.bench.run_bench import traffic_of
from fdgsec.experiments.failed_runs import Failed, Runs
from fdgsec.experiments.options_in_effect import check_in_effect
from fdgsec.experiments.run_config import (
    RunConfig,
    attack_settings,
    build,
    changed,
    defense_text,
    merged,
    parse_assignments,
)
from fdgsec.experiments.setup.defenses import defense_stack_of
from fdgsec.experiments.setup.run_inputs import load_world, method_of
from fdgsec.experiments.sweep.plots import figures
from fdgsec.experiments.sweep.points import SCHEMA, as_json, slimmed, store, stored
from fdgsec.experiments.sweep.tables import markdown, spreadsheet, summary
from fdgsec.experiments.sweep.web_page import page
from fdgsec.experiments.train import train
from fdgsec.federation.defense import Defense
from fdgsec.federation.run_folder import reserved
from fdgsec.runtime.cache_files import write_atomic
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.interruption import kept_text, telling
from fdgsec.runtime.progress import NoProgress, Progressive
from fdgsec.runtime.registry import name_of, target_named
from fdgsec.threats.attack import Attack

RESULTS = "points.json"
ATTACKS = ("linkage", "membership", "label-inference")
"""The default attacks, which infer the sender of a release, its members and their classes."""


OF_BOTH = ("allow_partial", "device", "encoder", "style_size", "backbone", "norm", "pretrained")
"""Settings of the attacked runs that hold for the trained ones as well, as options of the method do; the others are the
protocol's."""


@dataclass(frozen=True, kw_only=True)
class SweepRequest:
    """The `values` of an `option` of the last defense in `defenses`, and the settings of the runs.

    `accuracy_at` are the values at which the accuracy is measured too, None for all, empty for none; each over `seeds`
    seeds of `protocol`. `workers` points are computed at once."""

    target: str
    dataset: str
    defenses: tuple[Defense, ...]
    option: str
    values: tuple[float, ...]
    accuracy_at: tuple[float, ...] | None = None
    attacks: tuple[str | Attack, ...] = ATTACKS
    protocol: str = "quick"
    seeds: int = 3
    seed: int = 0
    profile: str = "quick"
    workers: int = 1
    given: Mapping[str, Any] = field(default_factory=dict)
    assignments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.defenses or not self.values:
            raise UsageError("a sweep needs a defense (--defense), and an option of it with values (--over).")
        if len(set(self.values)) != len(self.values) or min(self.seeds, self.workers) < 1:
            raise UsageError("a sweep needs different values, and seeds and workers of 1 or more.")
        if any(math.isnan(value) for value in self.values):
            raise UsageError("a sweep needs numbers as values; got nan.")
        strange = set(self.accuracy_at or ()) - set(self.values)
        if strange:
            raise UsageError(f"--accuracy-at {min(strange):g} is not one of the values of --over; add it there.")

    def defenses_at(self, value: float | None) -> tuple[Defense, ...]:
        """The defenses with the option set to `value`; None: no defense at all. Raises UsageError for an unknown
        option."""
        if value is None:
            return ()
        *before, last = self.defenses
        kind = type(last)
        if get_type_hints(kind).get(self.option) is int and value.is_integer():
            value = int(value)
        return (
            *before,
            build(kind, {**changed(last), self.option: value}, where=f"defense {name_of('defenses', kind)}"),
        )


@dataclass(frozen=True, kw_only=True)
class Point:
    """One point to compute: attacks, or accuracy for one seed, at one value (None: without the defense)."""

    kind: Literal["privacy", "accuracy"]
    value: float | None
    config: RunConfig

    @property
    def key(self) -> str:
        """The key of the result in the results file."""
        value = "none" if self.value is None else repr(self.value)
        return f"{self.kind}/{value}/{self.config.seed}/{self.config.sha256[:16]}"


def parsed_over(text: str) -> tuple[str, tuple[float, ...]]:
    """Read "epsilon=0.5,1,inf", or "scale=log:0.01:100:13" for a logarithmic grid with both ends.

    Raises UsageError for anything else."""
    option, equals, rest = text.partition("=")
    if not equals or not option or not rest:
        raise UsageError(f"--over expects option=value,value,... or option=log:low:high:count; got {text!r}.")
    return option, parsed_values(rest)


def parsed_values(text: str) -> tuple[float, ...]:
    """Read "0.5,1,inf" or "log:0.01:100:13". Raises UsageError for anything else."""
    try:
        if text.startswith("log:"):
            low, high, count = text.removeprefix("log:").split(":")
            grid = torch.logspace(math.log10(float(low)), math.log10(float(high)), int(count), dtype=torch.float64)
            return tuple(float(f"{value:.3g}") for value in grid.tolist())
        return tuple(float(part) for part in text.split(","))
    except (ValueError, RuntimeError) as error:
        raise UsageError(
            f"values are numbers with commas between them, or log:low:high:count; got {text!r}."
        ) from error


def sweep(
    request: SweepRequest, *, data_root: Path | None, out: Path, progress: Progressive, limit: int | None = None
) -> dict[str, Any]:
    """Compute what is missing (at most `limit` points), write sweep.json, .csv, .md and the figures; give the document.

    Raises UsageError before anything is computed, DataError for a results file of another kind, the error of a point
    that fails before any other one has ended, and FailedRunsError at the end where later ones did."""
    planned = plan(request, data_root=data_root)
    with reserved(out, goes_on=(RESULTS, "sweep.json")):
        done = stored(out / RESULTS)
        missing = [point for point in planned if point.key not in done][:limit]
        runs = Runs(ended=_finished(planned, done))
        kept = telling(lambda: kept_text(out / RESULTS, _finished(planned, done), len(planned), "points"))
        work = partial(compute, data_root)
        with kept, closing(runs.results(work, missing, workers=request.workers, name=_named)) as ended:
            for number, (point, found) in enumerate(ended, 1):
                if not isinstance(found, Failed):
                    done[point.key] = found
                    store(out / RESULTS, _kept(planned, done))
                progress.update("points", number, len(missing))
        if done:
            store(out / RESULTS, _kept(planned, done))
        document = _document(request, planned, done)
        write_atomic(out / "sweep.json", as_json(document))
        write_atomic(out / "sweep.csv", spreadsheet(document))
        write_atomic(out / "sweep.md", markdown(document))
        drawn = figures(document)
        for name, png in drawn.items():
            write_atomic(out / f"{name}.png", png)
        write_atomic(out / "sweep.html", page(document, drawn))
        runs.check()
        return document


def _named(point: Point) -> str:
    value = "no defense" if point.value is None else f"{point.value:g}"
    return f"{point.kind} at {value}, seed {point.config.seed}"


def _finished(planned: Sequence[Point], done: Mapping[str, Mapping[str, Any]]) -> int:
    return sum(point.key in done for point in planned)


def _kept(planned: Sequence[Point], done: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The stored points: this sweep's points reduced to what it needs, other points in full."""
    return {**done, **slimmed({point.key: done[point.key] for point in planned if point.key in done})}


def plan(request: SweepRequest, *, data_root: Path | None) -> list[Point]:
    """List the points: privacy first, then accuracy seed by seed. Raises UsageError for what cannot run."""
    points = []
    asked = request.values if request.accuracy_at is None else request.accuracy_at
    for value in (None, *request.values):
        given = {**request.given, "dataset": request.dataset, "seed": request.seed,
                 "attacks": request.attacks, "defenses": request.defenses_at(value)}  # fmt: skip
        config = attack_settings(request.target, given, profile=request.profile, assignments=request.assignments)
        check_in_effect(config, request.assignments, trains=bool(config.rounds or asked))
        defense_stack_of(config, method_of(config))  # whether these defenses, with this value, work with the method
        points.append(Point(kind="privacy", value=value, config=config))
    if not asked:
        return points
    table, unseen = protocol_named(request.protocol), _unseen(points[0].config, data_root)
    for seed in range(request.seed, request.seed + request.seeds):
        for value in (None, *asked):
            config = _trained(request, table, unseen, seed)
            points.append(
                Point(kind="accuracy", value=value, config=replace(config, defenses=request.defenses_at(value)))
            )
    return points


def _trained(request: SweepRequest, table: Protocol, unseen: str, seed: int) -> RunConfig:
    """The settings of a training run of the target under the protocol, whose arm it is or whose method's.

    The method has the options of the attacked one, so that a curve shows one method's privacy and accuracy."""
    named = target_named(request.target)
    arm = request.target if request.target in table.arms else named.method
    where = {"dataset": request.dataset, **{k: v for k, v in request.given.items() if k in OF_BOTH}}
    stated = [item for item in request.assignments if _of_both(item)]
    config = table.config(arm, (None, unseen), seed, where, stated)
    options = merged(config.options, named.options, parse_assignments(stated).get("method", {}))
    return replace(config, method=named.method, options=options, target=request.target)


def _of_both(assignment: str) -> bool:
    name = assignment.partition("=")[0].removeprefix("run.")
    return name in OF_BOTH or name.partition(".")[0] in ("method", "with")


def _unseen(config: RunConfig, data_root: Path | None) -> str:
    small = replace(config, per_class=1, per_domain=None, image_size=16)
    return load_world(small, data_root=data_root, progress=NoProgress()).target_name


def compute(data_root: Path | None, point: Point) -> dict[str, Any]:
    """Run one point and keep what the tables and figures need of its report."""
    sent: dict[str, Any] = {}
    if point.kind == "accuracy":
        trained = train(point.config, data_root=data_root, out=None, progress=NoProgress())
        sent, report = {"traffic": traffic_of(trained, point.config)}, trained.document()
    else:
        report = attack(point.config, data_root=data_root, out=None, fresh=False, progress=NoProgress()).document()
    attacks = report["attacks"]
    assert isinstance(attacks, list)
    return {
        "kind": point.kind, "value": point.value, "seed": point.config.seed, "settings": point.config.sha256,
        "defenses": list(map(defense_text, point.config.defenses)), "guarantees": report["guarantees"],
        "accuracy": report["accuracy"],
        "attacks": [
            {key: each[key] for key in ("name", "status", "reason", "controls", "measurements")} for each in attacks
        ],
        **sent, "seconds": report["seconds"], "environment": report["environment"],
    }  # fmt: skip


def _document(request: SweepRequest, planned: Sequence[Point], done: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What all tables and figures are drawn from."""
    found = [done[point.key] for point in planned if point.key in done]
    return {
        "schema": SCHEMA, "target": request.target, "dataset": request.dataset,
        "defenses": list(map(defense_text, request.defenses)), "option": request.option, "protocol": request.protocol,
        "profile": request.profile, "planned": len(planned), "finished": len(found),
        **summary(found),
    }  # fmt: skip

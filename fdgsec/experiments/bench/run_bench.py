"""The verb `bench`: a paper's table, cell by cell, resumed where it stopped.

A cell is one training run: an arm, the domains left out, a seed. Each finished cell is written at once; a cell whose
settings are already in the results is not run again."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from fdgsec.experiments.bench.protocols import Protocol, protocol_named
from fdgsec.experiments.bench.tables import Cell, latex, markdown, spreadsheet, summary
from fdgsec.experiments.report.schema import AttackReport
from fdgsec.experiments.run_config import RunConfig
from fdgsec.experiments.setup.run_inputs import load_world
from fdgsec.experiments.train import train
from fdgsec.federation.run_folder import environment
from fdgsec.runtime.cache_files import write_atomic
from fdgsec.runtime.errors import DataError, UsageError, unknown_name
from fdgsec.runtime.progress import NoProgress, Progressive
from fdgsec.runtime.untrusted_text import read_json_object
from fdgsec.runtime.worker_processes import computed

SCHEMA = 1
RESULTS = "results.json"


@dataclass(frozen=True, kw_only=True)
class BenchRequest:
    """Which table to fill: `arms` empty for all that the protocol lists, `domains` empty for every column.

    `baseline` is the arm that the others are compared with, empty for the protocol's."""

    protocol: str = "quick"
    ablation: str = ""
    dataset: str = "pacs"
    arms: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    baseline: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)
    assignments: tuple[str, ...] = ()

    def table(self) -> Protocol:
        """The protocol, or the ablation where one is named."""
        found = protocol_named(self.ablation, "ablation") if self.ablation else protocol_named(self.protocol)
        return replace(found, baseline=self.baseline) if self.baseline else found

    def changed(self) -> list[str]:
        """The user's changes to the protocol as NAME=VALUE, without the device."""
        given = {name: value for name, value in self.given.items() if value is not None and name != "device"}
        return [*(f"{name}={value}" for name, value in given.items()), *self.assignments]


def bench(
    request: BenchRequest,
    *,
    data_root: Path | None,
    out: Path,
    progress: Progressive,
    limit: int | None = None,
    workers: int = 1,
) -> dict[str, Any]:
    """Run the missing cells (at most `limit`, `workers` in parallel), and write results, CSV, Markdown and LaTeX.

    Returns the summary. Raises UsageError for unknown arms, domains or seeds, DataError for an invalid results file."""
    table = request.table()
    planned = plan(request, table, data_root=data_root)
    done = stored(out / RESULTS)
    missing = [(cell, config) for cell, config in planned if cell.key not in done][:limit]
    progress.update("cells", 0, len(missing))
    for number, ((cell, _), row) in enumerate(computed(partial(compute, data_root), missing, workers=workers), 1):
        done[cell.key] = row
        write_atomic(out / RESULTS, json.dumps({"schema": SCHEMA, "cells": list(done.values())}, indent=1) + "\n")
        _write_tables(table, request, planned, done, out)
        progress.update("cells", number, len(missing))
    return _write_tables(table, request, planned, done, out)


def plan(request: BenchRequest, table: Protocol, *, data_root: Path | None) -> list[tuple[Cell, RunConfig]]:
    """The cells with their settings, seed by seed, so that an interrupted table has complete seeds."""
    arms = request.arms or tuple(table.arms)
    seeds = request.seeds or tuple(range(table.seeds))
    if len(set(seeds)) != len(seeds):
        raise UsageError(f"seeds must differ from each other; got {', '.join(map(str, seeds))}.")
    if table.baseline not in arms and request.baseline:
        raise unknown_name("baseline", request.baseline, arms)
    splits = table.splits(request.dataset, _domains(request, data_root))
    if unknown := set(request.domains) - {test for _, test in splits}:
        raise UsageError(f"{min(unknown)} is not a test domain here; known: {', '.join(t for _, t in splits)}.")
    cells = []
    for seed in seeds:
        for split in splits:
            for arm in arms:
                if not request.domains or split[1] in request.domains:
                    given = {**request.given, "dataset": request.dataset}
                    config = table.config(arm, split, seed, given, request.assignments)
                    cell = Cell(arm=arm, domain=split[1], validation=split[0] or "", seed=seed, settings=config.sha256)
                    cells.append((cell, config))
    return cells


def _domains(request: BenchRequest, data_root: Path | None) -> list[str]:
    """The dataset's domains in its own order, from one image per class."""
    config = RunConfig(method="fedavg", dataset=request.dataset, per_class=1, image_size=16)
    world = load_world(config, data_root=data_root, progress=NoProgress())
    present = torch.unique(world.dataset.domains).tolist()
    return [str(world.dataset.domain_names[number]) for number in present]


def stored(path: Path) -> dict[str, dict[str, Any]]:
    """Read the finished cells by key, none if there is no file. Raises DataError for an invalid file."""
    if not path.exists():
        return {}
    try:
        document = read_json_object(path)
        cells = {str(row["key"]): dict(row) for row in document["cells"]}
    except (ValueError, LookupError, TypeError) as error:
        raise DataError(f"{path} holds no results of a bench: {error}; move it away or give another --out.") from error
    if document.get("schema") != SCHEMA:
        raise DataError(f"{path} has schema {document.get('schema')!r}; this version reads {SCHEMA}.")
    return cells


def compute(data_root: Path | None, planned: tuple[Cell, RunConfig]) -> dict[str, Any]:
    """Train one cell."""
    started = time.monotonic()
    report = train(planned[1], data_root=data_root, out=None, progress=NoProgress())
    return row_of(*planned, report, time.monotonic() - started)


def row_of(cell: Cell, config: RunConfig, report: AttackReport, seconds: float) -> dict[str, Any]:
    """The stored result of one run: scores, traffic per client and round, time and environment."""
    clients = len(report.dataset["roles"]["train"])  # type: ignore[index]
    participants = max(int(config.participation * clients + 1e-9), 1)
    return {
        "key": cell.key, "arm": cell.arm, "domain": cell.domain, "validation": cell.validation, "seed": cell.seed,
        "settings": cell.settings, "method": config.method, "preset": config.preset, "rounds": config.rounds,
        "clients": clients, "accuracy": report.accuracy,
        "traffic": traffic(report, rounds=config.rounds, participants=participants),
        "transcript_sha256": report.transcript_sha256, "seconds": seconds, "environment": environment(),
    }  # fmt: skip


def traffic(report: AttackReport, *, rounds: int, participants: int) -> dict[str, dict[str, float]]:
    """Bytes per round and participant, {"up"|"down": {kind: bytes}}; one-time messages are averaged over rounds."""
    found: dict[str, dict[str, float]] = {"up": {}, "down": {}}
    share = 1 / max(rounds * participants, 1)
    rows = cast(Sequence[Mapping[str, Any]], [*report.artifacts, *report.model_traffic])
    for row in rows:
        way = found["up" if row["stage"] in ("share", "update", "review") else "down"]
        way[row["kind"]] = way.get(row["kind"], 0.0) + row["bytes"] * share
    return found


def _write_tables(
    table: Protocol,
    request: BenchRequest,
    planned: Sequence[tuple[Cell, RunConfig]],
    done: Mapping[str, Mapping[str, Any]],
    out: Path,
) -> dict[str, Any]:
    rows = [done[cell.key] for cell, _ in planned if cell.key in done]
    found = summary(table, request.dataset, rows, planned=len(planned), changed=request.changed())
    write_atomic(out / "bench.json", json.dumps(found, indent=1) + "\n")
    write_atomic(out / "bench.csv", spreadsheet(rows))
    write_atomic(out / "bench.md", markdown(found))
    write_atomic(out / "bench.tex", latex(found))
    return found

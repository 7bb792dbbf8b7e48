"""The verb `bench`: a paper's table, cell by cell, resumed where it stopped.

A cell is one training run: an arm, the domains left out, a seed. Each finished cell is written at once; a cell whose
settings are already in the results is not run again. A cell that fails stops no other one, unless it is the first to
end. Where the protocol has the learning rates chosen, these runs come
first (fdgsec/experiments/bench/tuning.py)."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from fdgsec.experiments.bench.protocols import Protocol, protocol_named
from fdgsec.experiments.bench.tables import Cell, latex, markdown, spreadsheet, summary
from fdgsec.experiments.bench.tuning import (
    Column,
    Trial,
    choices_document,
    chosen_rates,
    sets_rate,
    source_scores,
)
from fdgsec.experiments.bench.web_page import page
from fdgsec.experiments.failed_runs import Failed, Runs
from fdgsec.experiments.report.schema import AttackReport
from fdgsec.experiments.run_config import RunConfig
from fdgsec.experiments.setup.run_federation import FederationRun, RunRequest, federate
from fdgsec.experiments.setup.run_inputs import load_world
from fdgsec.experiments.train import train
from fdgsec.federation.run_folder import reserved
from fdgsec.federation.wire import SERVER, SUM, parties
from fdgsec.nn.training.precision import device_named
from fdgsec.runtime.cache_files import write_atomic
from fdgsec.runtime.errors import DataError, UsageError, message_line, unknown_name
from fdgsec.runtime.interruption import kept_text, telling
from fdgsec.runtime.progress import NoProgress, Progressive
from fdgsec.runtime.untrusted_text import read_json_object

SCHEMA = 1
RESULTS = "results.json"
RATES = "rates.json"
"""The learning rates that were chosen, written before any cell is trained with them."""
Planned = tuple[Cell, RunConfig]


@dataclass(frozen=True, kw_only=True)
class BenchRequest:
    """Which table to fill: `arms` empty for all that the protocol lists, `domains` empty for every column.

    `baseline` is the arm that the others are compared with, empty for the protocol's. `unequal` shows differences
    between arms with unequal optimizer steps as well."""

    protocol: str = "quick"
    ablation: str = ""
    dataset: str = "pacs"
    arms: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    baseline: str = ""
    unequal: bool = False
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
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Run the missing cells (at most `limit`, `workers` in parallel), and write results, page, CSV, Markdown and LaTeX.

    Returns the summary. `tell` gets a line with the time left before the first and after each run. Raises UsageError
    for unknown arms, domains or seeds, DataError for an invalid results file, the error of a run that fails before any
    other one has ended, and FailedRunsError at the end where later ones did."""
    table = request.table()
    device_named(request.given.get("device") or "auto")
    with reserved(out, goes_on=(RESULTS, RATES)):
        columns = _columns(request, table, data_root)
        trials, cells = planned_trials(request, table, columns), _cells(request, table, columns)
        done = stored(out / RESULTS)
        runs = _Runs(table, request, out, done, progress, tell, workers, limit, Runs(ended=len(done)))
        tuning = [(trial.cell, trial.config) for trial in trials]
        runs.add(tuning, partial(compute_trial, data_root), table_of=cells, later=cells if trials else ())
        if table.tuning is not None and trials:
            rates = chosen_rates(trials, runs.done)
            write_atomic(out / RATES, json.dumps(choices_document(table.tuning, rates), indent=1) + "\n")
            cells = _cells(request, table, columns, rates)
            ready = [each for each in cells if (each[0].arm, each[0].domain) in rates]
        else:
            ready = cells
        runs.add(ready, partial(compute, data_root), table_of=cells)
        found = runs.tables(cells)
        runs.tried.check()
        return found


def _finished(planned: Sequence[tuple[Cell, RunConfig]], done: Mapping[str, Mapping[str, Any]]) -> int:
    return sum(cell.key in done for cell, _ in planned)


@dataclass(eq=False)
class _Runs:
    """Runs what is missing, writes each result at once, and tells the time left; at most `limit` runs in all."""

    table: Protocol
    request: BenchRequest
    out: Path
    done: dict[str, dict[str, Any]]
    progress: Progressive
    tell: Callable[[str], None]
    workers: int
    limit: int | None
    tried: Runs

    def add(
        self,
        wanted: Sequence[Planned],
        work: Callable[[Planned], dict[str, Any]],
        *,
        table_of: Sequence[Planned],
        later: Sequence[Planned] = (),
    ) -> None:
        """Run those of `wanted` that are not done, and write the tables of `table_of` after each.

        `later` are runs that come after these; they count for the time left."""
        missing = [each for each in wanted if each[0].key not in self.done]
        arms = [cell.arm for cell, _ in (*missing, *later) if cell.key not in self.done][: self.limit]
        missing = missing[: self.limit]
        if not missing:
            return
        self.tell(f"{len(arms)} runs to do; {time_left(arms, self.done.values(), self.workers)}")
        self.progress.update("cells", 0, len(missing))
        kept = telling(lambda: kept_text(self.out / RESULTS, _finished(wanted, self.done), len(wanted), "runs"))
        with kept, closing(self.tried.results(work, missing, workers=self.workers, name=_named)) as ended:
            for number, (planned, row) in enumerate(ended, 1):
                cell, _ = planned
                arms.remove(cell.arm)
                how = self._taken(cell, row, table_of)
                left = time_left(arms, self.done.values(), self.workers)
                self.tell(f"{_named(planned)}: {how}; {len(arms)} runs and {left}")
                self.progress.update("cells", number, len(missing))
        self.limit = None if self.limit is None else self.limit - len(missing)

    def _taken(self, cell: Cell, row: dict[str, Any] | Failed, table_of: Sequence[Planned]) -> str:
        """Keep a result, and say how its run ended."""
        if isinstance(row, Failed):
            return f"failed ({message_line(str(row.error))})"
        self._keep(cell, row, table_of)
        return f"{row['seconds']:.0f} s"

    def _keep(self, cell: Cell, row: dict[str, Any], table_of: Sequence[Planned]) -> None:
        """Write a result, and the tables with it."""
        self.done[cell.key] = row
        document = {"schema": SCHEMA, "cells": list(self.done.values())}
        write_atomic(self.out / RESULTS, json.dumps(document, indent=1) + "\n")
        self.tables(table_of)

    def tables(self, cells: Sequence[Planned]) -> dict[str, Any]:
        """Write the table in every format, and give its summary."""
        return _write_tables(self.table, self.request, cells, self.done, self.out)


def _named(planned: Planned) -> str:
    cell, _ = planned
    return f"{cell.arm}, {cell.domain}, seed {cell.seed}"


def time_left(arms: Sequence[str], rows: Iterable[Mapping[str, Any]], workers: int) -> str:
    """Say how long runs of `arms` will take: as long as the mean run of the same arm took, else that of all arms.

    `rows` are the results so far."""
    seconds: dict[str, list[float]] = {}
    for row in rows:
        seconds.setdefault(str(row["arm"]), []).append(float(row["seconds"]))
    if not seconds:
        return "no run so far to tell the time left from"
    means = {arm: sum(values) / len(values) for arm, values in seconds.items()}
    usual = sum(means.values()) / len(means)
    minutes = sum(means.get(arm, usual) for arm in arms) / workers / 60
    return f"about {minutes:.0f} min left" if minutes < 120 else f"about {minutes / 60:.1f} h left"


def plan(request: BenchRequest, table: Protocol, *, data_root: Path | None) -> list[Planned]:
    """The cells with their settings, seed by seed, so that an interrupted table has complete seeds.

    Where learning rates are chosen, these cells have the plan's. Raises UsageError for unknown arms or domains."""
    return _cells(request, table, _columns(request, table, data_root))


def _cells(
    request: BenchRequest,
    table: Protocol,
    columns: Sequence[tuple[str | None, str]],
    rates: Mapping[Column, Mapping[str, Any]] | None = None,
) -> list[Planned]:
    """The cells of `columns`, with the chosen learning rates if any."""
    seeds = request.seeds or tuple(range(table.seeds))
    if len(set(seeds)) != len(seeds):
        raise UsageError(f"seeds must differ from each other; got {', '.join(map(str, seeds))}.")
    if table.tuning is not None and table.tuning.seed in seeds:
        raise UsageError(f"seed {table.tuning.seed} chooses the learning rates; give the table other seeds.")
    return [
        _cell(request, table, arm, split, seed, (rates or {}).get((arm, split[1]), {}).get("rate"))
        for seed in seeds
        for split in columns
        for arm in _arms(request, table)
    ]


def _arms(request: BenchRequest, table: Protocol) -> tuple[str, ...]:
    return request.arms or tuple(table.arms)


def planned_trials(request: BenchRequest, table: Protocol, columns: Sequence[tuple[str | None, str]]) -> list[Trial]:
    """The runs that choose the learning rates; none where the protocol or the user fixes them."""
    tuning = table.tuning
    if tuning is None or sets_rate(request.assignments):
        return []
    planned = [
        (rate, _cell(request, table, arm, split, tuning.seed, rate))
        for split in columns
        for arm in _arms(request, table)
        for rate in tuning.rates
    ]
    return [Trial(cell=cell, config=config, rate=rate) for rate, (cell, config) in planned]


def _cell(
    request: BenchRequest, table: Protocol, arm: str, split: tuple[str | None, str], seed: int, rate: float | None
) -> Planned:
    """One cell, at learning rate `rate` or the plan's."""
    given = {**request.given, "dataset": request.dataset}
    config = table.config(arm, split, seed, given, request.assignments, rate=rate)
    cell = Cell(arm=arm, domain=split[1], validation=split[0] or "", seed=seed, settings=config.sha256)
    return cell, config


def _columns(request: BenchRequest, table: Protocol, data_root: Path | None) -> list[tuple[str | None, str]]:
    """The domains left out, those that were asked for. Raises UsageError for an unknown domain or baseline."""
    arms = _arms(request, table)
    if table.baseline not in arms and request.baseline:
        raise unknown_name("baseline", request.baseline, arms)
    splits = table.splits(request.dataset, _domains(request, data_root))
    if unknown := set(request.domains) - {test for _, test in splits}:
        raise UsageError(f"{min(unknown)} is not a test domain here; known: {', '.join(t for _, t in splits)}.")
    return [split for split in splits if not request.domains or split[1] in request.domains]


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


def compute(data_root: Path | None, planned: Planned) -> dict[str, Any]:
    """Train one cell."""
    started, spent = time.monotonic(), time.process_time()
    trained: list[FederationRun] = []

    def federation(request: RunRequest) -> FederationRun:
        trained.append(federate(request))
        return trained[-1]

    report = train(planned[1], data_root=data_root, out=None, progress=NoProgress(), federation=federation)
    row = row_of(*planned, report, time.monotonic() - started)
    curve = [dict(point) for run in trained for point in run.curve]
    return {**row, "curve": curve, "processor_seconds": time.process_time() - spent}


def compute_trial(data_root: Path | None, planned: Planned) -> dict[str, Any]:
    """Train one run of the tuning, and keep nothing of the unseen domain."""
    row = compute(data_root, planned)
    return {**row, "accuracy": source_scores(row["accuracy"])}


def row_of(cell: Cell, config: RunConfig, report: AttackReport, seconds: float) -> dict[str, Any]:
    """The stored result of one run: scores, traffic per client and round, time and environment."""
    clients, participants = _taking_part(report, config)
    return {
        "key": cell.key, "arm": cell.arm, "domain": cell.domain, "validation": cell.validation, "seed": cell.seed,
        "settings": cell.settings, "method": config.method, "preset": config.preset, "rounds": config.rounds,
        "clients": clients, "participants": participants, "accuracy": report.accuracy,
        "traffic": traffic_of(report, config),
        "guarantees": [dict(each) for each in report.guarantees],
        "transcript_sha256": report.transcript_sha256, "seconds": seconds, "environment": dict(report.environment),
    }  # fmt: skip


def _taking_part(report: AttackReport, config: RunConfig) -> tuple[int, int]:
    """The number of clients, and of those that take part in a round."""
    clients = len(report.dataset["roles"]["train"])  # type: ignore[index]
    return clients, max(int(config.participation * clients + 1e-9), 1)


def traffic_of(report: AttackReport, config: RunConfig) -> dict[str, dict[str, float]]:
    """The `traffic` of a training run under its own settings."""
    return traffic(report, rounds=config.rounds, participants=_taking_part(report, config)[1])


def traffic(report: AttackReport, *, rounds: int, participants: int) -> dict[str, dict[str, float]]:
    """Bytes per round and participant, {"up"|"down": {kind: bytes}}; one-time messages are averaged over rounds.

    Where the server gets a sum alone, each participant sends as much as the sum has."""
    found: dict[str, dict[str, float]] = {"up": {}, "down": {}}
    share = 1 / max(rounds * participants, 1)
    sent = [{**row, "sender": parties(str(row["sender"]))} for row in report.artifacts]
    rows = cast(Sequence[Mapping[str, Any]], [*sent, *report.model_traffic])
    for row in rows:
        way = found["up" if row["receiver"] == SERVER else "down"]
        parts = participants if row["sender"] == SUM else 1
        way[row["kind"]] = way.get(row["kind"], 0.0) + row["bytes"] * share * parts
    return found


def _write_tables(
    table: Protocol,
    request: BenchRequest,
    planned: Sequence[Planned],
    done: Mapping[str, Mapping[str, Any]],
    out: Path,
) -> dict[str, Any]:
    rows = [done[cell.key] for cell, _ in planned if cell.key in done]
    found = summary(
        table, request.dataset, rows, planned=len(planned), changed=request.changed(), unequal=request.unequal
    )
    write_atomic(out / "bench.json", json.dumps(found, indent=1) + "\n")
    write_atomic(out / "bench.csv", spreadsheet(rows))
    write_atomic(out / "bench.md", markdown(found))
    write_atomic(out / "bench.tex", latex(found))
    write_atomic(out / "bench.html", page(found))
    return found

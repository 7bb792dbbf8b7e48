"""Flower engines against the local engine: equality and cost: `python -m benchmarks.flower_engines`.

Each method runs on three engines with the same settings: in this process, in Flower's simulation, and on a SuperLink
with SuperNodes (TLS, node keys) at loopback. The table says whether transcripts and final weights are the same bytes,
the number of message stages per round, and the seconds of a round after the first. One thread per process, because
float sums depend on it."""

import argparse
import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fdgsec.experiments.flower.jobs import FlowerFederation, Job
from fdgsec.experiments.run_config import RunConfig, resolve_settings
from fdgsec.experiments.setup.defenses import defense_stack_of
from fdgsec.experiments.setup.run_federation import Federation, FederationRun, RunRequest, federate
from fdgsec.experiments.setup.run_inputs import load_world, method_of, model_of
from fdgsec.experiments.train import split_sources
from fdgsec.federation.artifacts import StyleBank
from fdgsec.federation.engines.flower.loopback import loopback
from fdgsec.federation.engines.flower.nodes_and_jobs import simulate, submit
from fdgsec.federation.run_folder import environment
from fdgsec.runtime.cache_files import write_atomic
from fdgsec.runtime.progress import NoProgress

METHODS = ("ccst", "fisc", "stablefdg", "feddag", "fedalign")


def settings(method: str, clients: int, given: argparse.Namespace) -> RunConfig:
    """The run of one method among `clients` clients on shapes."""
    chosen = {
        "dataset": "shapes", "rounds": given.rounds, "per_domain": given.per_domain, "image_size": given.image_size,
        "partition": "dirichlet", "heterogeneity": 10.0, "clients": clients, "backbone": given.backbone,
        "seed": given.seed,
    }  # fmt: skip
    return resolve_settings(chosen, preset=None, assignments=given.set or (), defaults={"method": method})


def conducted(config: RunConfig, federation: Federation) -> tuple[FederationRun, float]:
    """Run a federation and time it."""
    method = method_of(config)
    world = load_world(config, data_root=None, progress=NoProgress())
    clients, _ = split_sources(world, config)
    model = model_of(config, method, len(world.dataset.class_names))
    started = time.monotonic()
    request = RunRequest(
        method=method, members=clients, model=model, config=config, defense_stack=defense_stack_of(config, method)
    )
    trained = federation(request)
    return trained, time.monotonic() - started


def bank_of(trained: FederationRun) -> str:
    """The hash of the style bank that clients received, empty where the method has none."""
    banks = [row.sha256 for row in trained.transcript.rows if row.kind == StyleBank.kind]
    return banks[0] if banks else ""


def row_of(method: str, engine: str, trained: FederationRun, seconds: float, local: FederationRun) -> dict[str, Any]:
    """One line of the table."""
    stages = [] if trained.federation is None else list(trained.federation["stages"])
    later = [stage["seconds"] for stage in stages if stage["round"] > 0]
    rounds = len({stage["round"] for stage in stages if stage["round"] > 0})
    return {
        "method": method, "engine": engine, "seconds": round(seconds, 2),
        "transcript_equal": trained.transcript.sha256 == local.transcript.sha256,
        "weights_equal": trained.final.state.sha256 == local.final.state.sha256,
        "style_bank_equal": bank_of(trained) == bank_of(local),
        "stages_per_round": [count for _, count in sorted(Counter(stage["round"] for stage in stages).items())],
        "seconds_per_later_round": round(sum(later) / rounds, 2) if rounds else None,
        "state_versions": [stage["states"] for stage in stages], "transcript_sha256": trained.transcript.sha256,
    }  # fmt: skip


def simulated(folder: Path, job: Job) -> None:
    """Run a job in Flower's simulation."""
    simulate(folder, job.clients, timeout=1800, environment={"FDGSEC_SIMULATION": str(folder)})


def measured(given: argparse.Namespace, say: Callable[[str], None]) -> list[Mapping[str, Any]]:
    """All rows, method by method."""
    rows: list[Mapping[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="fdgsec-flower-") as name, ExitStack() as stack:
        reached = stack.enter_context(loopback(Path(name), given.nodes)) if "flower" in given.engines else None
        for method in given.methods:
            for engine, clients in (("flower-sim", given.simulated), ("flower", given.nodes)):
                if engine not in given.engines:
                    continue
                config = settings(method, clients, given)
                local, seconds = conducted(config, federate)
                rows.append(row_of(method, f"local, {clients} clients", local, seconds, local))
                if engine == "flower-sim":
                    runner: Callable[[Path, Job], None] = simulated
                elif reached is not None:
                    runner = partial(deployed, reached.connection)
                federation = FlowerFederation(runner=runner, deployed=engine == "flower", timeout=900)
                remote, seconds = conducted(config, federation)
                row = row_of(method, f"{engine}, {clients} clients", remote, seconds, local)
                rows.append(row | {"state_bytes": largest_state(Path(name)) if engine == "flower" else None})
                for row in rows[-2:]:
                    say(json.dumps(row))
    return rows


def largest_state(folder: Path) -> int:
    """The bytes of the largest state of a node; the states are removed."""
    stored = list(folder.glob("state*/run-*"))
    sizes = [path.stat().st_size for run in stored for path in run.glob("state/*.safetensors")]
    for run in stored:
        shutil.rmtree(run)
    return max(sizes, default=0)


def deployed(connection: Any, folder: Path, _: Job) -> None:
    """Run a job on a SuperLink."""
    submit(folder, connection, timeout=1800)


def table(rows: list[Mapping[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| method | engine | transcript | weights | style bank | stages a round | s, whole run | s, later rounds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        same = [
            "equal" if row[name] else "DIFFERS" for name in ("transcript_equal", "weights_equal", "style_bank_equal")
        ]
        stages = ", ".join(str(count) for count in row["stages_per_round"]) or "-"
        later = "-" if row["seconds_per_later_round"] is None else f"{row['seconds_per_later_round']:.1f}"
        lines.append(
            f"| {row['method']} | {row['engine']} | {' | '.join(same)} | {stages} | {row['seconds']:.1f} | {later} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(METHODS))
    parser.add_argument("--engines", type=lambda text: text.split(","), default=["flower-sim", "flower"])
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--simulated", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--per-domain", type=int, default=48)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--backbone", default="tiny")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", help="name.option=value, as in fdgsec train")
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = measured(given, lambda line: print(line, flush=True))
    print(table(rows))
    if given.results is not None:
        document = {"rows": rows, "environment": environment(), "options": {k: str(v) for k, v in vars(given).items()}}
        write_atomic(given.results, json.dumps(document, indent=1) + "\n")
    return 0 if all(row["transcript_equal"] and row["weights_equal"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())

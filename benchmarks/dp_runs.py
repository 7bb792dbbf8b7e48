"""Cost of differential privacy per method: `python -m benchmarks.dp_runs --dataset shapes|pacs`, resumable.

Six methods, each trained twice from the same start on the same clients: plain, and under dp-sgd with private-styles
where it shares styles and private-scores where it sends scores. Both arms have the same backbone without batch norm,
plan and rounds. Per run: accuracy on the unseen domain, the run's (epsilon, delta) and its parts, CPU seconds per step,
and two attacks. *Model membership*: the loss of the final model for training images against held-out images of the same
domains (Yeom et al., CSF 2018, https://arxiv.org/abs/1709.01604), AUC by DeLong. *Style membership*: `fdgsec attack
--attack membership` on what one exchange releases. Methods that share every round spend a part of epsilon per round;
one exchange at the whole epsilon corresponds to the mean of all rounds' noise."""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import cast

import torch

from benchmarks.dp_attacks import loss_membership, style_membership
from benchmarks.dp_protocol import SUBJECTS, Cell, Protocol, defenses_of, protocol_of
from benchmarks.dp_tables import learned, table
from fdgsec.data.domains import DomainDataset
from fdgsec.experiments.report.accuracy import accuracy_document
from fdgsec.experiments.run_config import RunConfig, defense_of, defense_text
from fdgsec.experiments.setup.defenses import defense_stack_of
from fdgsec.experiments.setup.guarantees import guarantee_documents
from fdgsec.experiments.setup.run_inputs import (
    clients_of,
    division_of,
    load_world,
    method_of,
    model_of,
    named,
    roles_of,
    with_validation,
)
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Method, Reply, Step, StepRequest
from fdgsec.federation.round_loop import RoundLoop, RoundReport
from fdgsec.federation.run_folder import environment
from fdgsec.federation.wire import Wire, keeps_artifacts
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.cache_files import write_atomic
from fdgsec.runtime.progress import NoProgress
from fdgsec.runtime.secret_streams import simulated_key, simulated_stream

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class TimedEngine(LocalEngine):
    """Records CPU seconds and steps of all training except in the first round, which also makes training sets."""

    seconds: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)

    def ask(self, step: Step, requests: Mapping[str, StepRequest]) -> tuple[Mapping[str, Reply], Mapping[str, str]]:
        """Ask the clients, and measure the time."""
        started = time.process_time()  # of this process alone, whoever else is at work on the machine
        replies, failures = super().ask(step, requests)
        if step == "fit" and next(iter(requests.values())).clock.round:
            self.seconds.append(time.process_time() - started)
            self.steps.append(sum(reply.metrics["steps"] for reply in replies.values()))
        return replies, failures


def config_of(cell: Cell, protocol: Protocol) -> RunConfig:
    """The settings of a run."""
    plan = TrainingPlan(batch_size=protocol.batch, optimizer="adam", learning_rate=protocol.learning_rate, crop=None)
    return RunConfig(
        method=cell.method, options={**SUBJECTS[cell.method].options, "plan": asdict(plan)}, dataset=protocol.dataset,
        per_domain=protocol.per_domain, image_size=protocol.image_size, backbone=protocol.backbone, norm="group",
        pretrained=protocol.pretrained, rounds=protocol.rounds, seed=cell.seed,
        defenses=tuple(map(defense_of, defenses_of(cell, protocol))), delta=protocol.delta,
    )  # fmt: skip


def run(cell: Cell, protocol: Protocol, *, data_root: Path | None) -> dict[str, object]:
    """Train one cell, measure it and attack it."""
    started = time.monotonic()
    config = config_of(cell, protocol)
    world = load_world(config, data_root=data_root, progress=NoProgress())
    roles = roles_of(world, config)
    members = roles.federation.subset(roles.federation.domains != world.target)
    strangers = roles.held_out.subset(roles.held_out.domains != world.target)
    method = method_of(config)
    division = division_of(config.defenses)
    clients = [named(client, division) for client in clients_of(members, config)]
    if method.reviews != "none":
        clients = [with_validation(client, seed=cell.seed, division=division) for client in clients]
    method = method.fitting(len(clients))
    defense_stack = defense_stack_of(config, method)
    engine = TimedEngine(members=clients, method=method, seed=cell.seed, defense_stack=defense_stack)
    wire = Wire(
        secret=lambda upload, number: simulated_stream(cell.seed, upload.round, upload.stage, upload.sender, number),
        keep=keeps_artifacts,
    )
    model = model_of(config, method, len(world.dataset.class_names))
    final = trained(method, engine, wire, config, model)
    trained_on = [client.data for client in clients]
    steps = sum(engine.steps)
    return {
        **asdict(cell),
        "accuracy": accuracy_document(final, world.unseen(), by_domain(strangers)),
        "guarantees": guarantee_documents(wire.ledger, defense_stack, method, delta=protocol.delta, simulated=True),
        "defenses": list(map(defense_text, config.defenses)),
        "cpu_seconds_per_step": sum(engine.seconds) / max(steps, 1),
        "steps_per_round": steps / max(len(engine.steps), 1),
        "train_images": sum(len(images) for images in trained_on),
        "model_membership": loss_membership(final, trained_on, strangers),
        "style_membership": style_membership(cell, protocol, data_root=data_root),
        "transcript_sha256": wire.transcript.sha256,
        "seconds": time.monotonic() - started,
        "protocol": asdict(protocol),
        "environment": environment(),
    }


def trained(method: Method, engine: LocalEngine, wire: Wire, config: RunConfig, model: GlobalModel) -> GlobalModel:
    """Run the rounds, printing the progress."""

    def note(report: RoundReport, _: GlobalModel) -> None:
        print(f"  round {report.round + 1} of {report.rounds}", flush=True)

    driver = RoundLoop(
        method=method, engine=engine, wire=wire, key=simulated_key(config.seed), rounds=config.rounds, on_round=note
    )
    final = driver.run(model)
    assert final is not None
    return final


def by_domain(images: DomainDataset) -> dict[str, DomainDataset]:
    """Held-out images of the clients' domains, for choosing a learning rate and checking that training works."""
    return {str(images.domain_names[int(index)]): images.of_domain(int(index)) for index in images.domains.unique()}


def stored(path: Path) -> list[dict[str, object]]:
    """Read the finished cells."""
    if not path.exists():
        return []
    document = json.loads(path.read_text())
    if document.get("schema") != SCHEMA:
        raise SystemExit(
            f"{path} has schema {document.get('schema')!r}; {SCHEMA} was expected. Name another --results."
        )
    return cast(list[dict[str, object]], document["cells"])


def found_in(cells: Sequence[dict[str, object]], cell: Cell, protocol: Protocol) -> dict[str, object] | None:
    """The finished cell with exactly these settings."""
    wanted = {**asdict(cell), "protocol": asdict(protocol)}
    return next((row for row in cells if all(row[key] == value for key, value in wanted.items())), None)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dataset", choices=("shapes", "pacs"), default="shapes")
    parser.add_argument("--data-root", type=Path, help="folder or .zip of the dataset (default: $FDGSEC_DATA)")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/dp-runs.json"))
    parser.add_argument("--methods", nargs="+", choices=list(SUBJECTS), default=list(SUBJECTS))
    parser.add_argument("--arms", nargs="+", choices=("plain", "private"), default=["plain", "private"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--backbone")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--per-domain", type=int)
    parser.add_argument("--epsilon", type=float, help="of dp-sgd, for all rounds")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    """Run what is missing, then print the table."""
    given = arguments()
    torch.set_num_threads(given.threads)
    protocol = protocol_of(given)
    arms = [arm == "private" for arm in ("plain", "private") if arm in given.arms]
    cells = [Cell(method=m, private=p, seed=s) for s in given.seeds for m in given.methods for p in arms]
    for cell in cells:
        if found_in(stored(given.results), cell, protocol) is not None:
            continue
        print(f"{cell.method}, {'private' if cell.private else 'plain'}, seed {cell.seed}", flush=True)
        row = run(cell, protocol, data_root=given.data_root)
        rows = [*stored(given.results), row]  # read again: another process may have worked on other methods
        write_atomic(given.results, json.dumps({"schema": SCHEMA, "cells": rows}, indent=1) + "\n")
        print(f"  {float(str(row['seconds'])):.0f} s, {learned(row)} right on held-out images", flush=True)
    found = [found_in(stored(given.results), cell, protocol) for cell in cells]
    print(table([row for row in found if row is not None]))


if __name__ == "__main__":
    main()

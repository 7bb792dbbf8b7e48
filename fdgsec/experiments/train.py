"""The verb `train`: run a method's rounds and measure accuracy on the domain that nobody has."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fdgsec.config import RunConfig
from fdgsec.console import Progressive
from fdgsec.data.domains import DomainDataset
from fdgsec.data.partition import split_validation
from fdgsec.driver import Driver, RoundReport
from fdgsec.engines.local import LocalEngine
from fdgsec.engines.state import MemoryStates
from fdgsec.experiments.world import World, artifact_rows, clients_of, load_world, method_of, model_of, options_of
from fdgsec.federation import Client, GlobalModel, Method, State
from fdgsec.html import render
from fdgsec.metrics.intervals import wilson
from fdgsec.reports import AttackReport
from fdgsec.rng import stream
from fdgsec.runs import check_replaceable, environment, new_folder
from fdgsec.training import predictions
from fdgsec.wire import Message, Transcript, Wire, keeps_artifacts


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """A finished training run: the model kept, where it came from, and everything that crossed the wire."""

    model: GlobalModel
    transcript: Transcript
    states: Mapping[str, State]
    curve: Sequence[Mapping[str, float]]
    kept_round: int


@dataclass(eq=False)
class _Keeper:
    """Watches rounds, and keeps the model of the best source-validation accuracy, the last where nobody measures it."""

    progress: Progressive
    model: GlobalModel | None = None
    round: int = -1
    best: float = -1.0
    curve: list[dict[str, float]] = field(default_factory=list)

    def __call__(self, report: RoundReport, model: GlobalModel) -> None:
        losses = [metrics["loss"] for metrics in report.metrics.values()]
        point = {"round": float(report.round), "loss": sum(losses) / len(losses)}
        accuracy = report.server.get("validation_accuracy")
        if accuracy is not None:
            point["validation_accuracy"] = float(accuracy)
        self.curve.append(point)
        if accuracy is None or float(accuracy) > self.best:
            self.best = -1.0 if accuracy is None else float(accuracy)
            self.model, self.round = model, report.round
        self.progress.update("rounds", report.round + 1, report.rounds)


def federate(
    method: Method, members: Sequence[Client], model: GlobalModel, config: RunConfig, progress: Progressive
) -> Trained:
    """Run `config.rounds` rounds among `members`."""
    states = MemoryStates()
    wire = Wire(
        secret=lambda message, number: _secret(config.seed, message, number),
        keep=keeps_artifacts if config.keep == "artifacts" else _keep_all,
    )
    keeper = _Keeper(progress=progress)
    engine = LocalEngine(members=members, method=method, seed=config.seed, states=states)
    Driver(
        method=method, engine=engine, wire=wire, seed=config.seed, rounds=config.rounds,
        participation=config.participation, on_round=keeper,
    ).run(model)  # fmt: skip
    return Trained(
        model=keeper.model or model, transcript=wire.transcript, states=states.states, curve=keeper.curve,
        kept_round=keeper.round,
    )  # fmt: skip


def _secret(seed: int, message: Message, number: int) -> torch.Generator:
    return stream(seed, "secret", "defense", message.round, message.stage, message.sender, message.receiver, number)


def _keep_all(message: Message) -> bool:
    return True


def accuracy_document(
    model: GlobalModel, unseen: DomainDataset, validation: Mapping[str, DomainDataset]
) -> dict[str, object]:
    """Measure accuracy on all of `unseen`, and beside it on each source domain's validation images (Wilson)."""
    network = model.module()

    def measured(dataset: DomainDataset) -> dict[str, object]:
        correct = int((predictions(network, dataset.pixels()) == dataset.labels).sum())
        interval = wilson(correct, len(dataset))
        return {"value": correct / len(dataset), "low": interval.low, "high": interval.high, "n": len(dataset)}

    name = str(unseen.domain_names[int(unseen.domains[0])])
    per_domain = {domain: measured(images) for domain, images in validation.items() if len(images)}
    return {"unseen_domain": name, **measured(unseen), "per_domain": per_domain}


def split_sources(world: World, config: RunConfig) -> tuple[list[Client], dict[str, DomainDataset]]:
    """Partition the sources, then split each client's validation tenth off before any augmentation.

    Gives the clients and, for the report, the validation images by domain."""
    clients: list[Client] = []
    held: list[DomainDataset] = []
    for client in clients_of(world.seen(), config):
        rng = stream(config.seed, "world", "validation", client.name)
        train, validation = split_validation(client.data, fraction=0.1, rng=rng)
        clients.append(Client(name=client.name, data=train, validation=validation))
        held.append(validation)
    by_domain: dict[str, DomainDataset] = {}
    for domain in world.sources:
        ids = {name for part in held for name, d in zip(part.ids, part.domains.tolist(), strict=True) if d == domain}
        rows = torch.tensor([i for i, name in enumerate(world.dataset.ids) if name in ids], dtype=torch.int64)
        by_domain[str(world.dataset.domain_names[domain])] = world.dataset.subset(rows)
    return clients, by_domain


def train(config: RunConfig, *, data_root: Path | None, out: Path | None, progress: Progressive) -> AttackReport:
    """Train `config.method` and hand over the report (with no attacks), the curve and the transcript."""
    started = time.monotonic()
    if out is not None:
        check_replaceable(out)
    method = method_of(config)
    world = load_world(config, data_root=data_root, progress=progress)
    clients, validation = split_sources(world, config)
    method.check(len(clients))
    model = model_of(config, method, len(world.dataset.class_names))
    trained = federate(method, clients, model, config, progress)
    artifacts, traffic = artifact_rows(trained.transcript.rows)
    accuracy: dict[str, object] | None = None
    if config.rounds:
        measured = accuracy_document(trained.model, world.unseen(), validation)
        accuracy = {**measured, "round": trained.kept_round}
    report = AttackReport(
        target=config.target or config.method, method=config.method, preset=config.preset,
        dataset=dataset_document(world.dataset, {"train": {c.name: len(c.data) for c in clients}}),
        encoder=config.encoder if "encoder" in options_of(config.method) else "none", backbone=config.backbone, seed=config.seed,
        profile=config.profile, reused=False, defenses=[], guarantees=[],
        accuracy=accuracy, attacks=[], artifacts=artifacts, model_traffic=traffic,
        transcript_sha256=trained.transcript.sha256, environment=environment(), seconds=time.monotonic() - started,
    )  # fmt: skip
    if out is not None:
        with new_folder(out) as draft:
            (draft / "report.json").write_text(report.json())
            (draft / "report.html").write_text(render(report))
            (draft / "measurements.csv").write_text(report.csv())
            (draft / "config.json").write_text(json.dumps(config.document(), indent=1, default=str) + "\n")
            (draft / "curve.json").write_text(json.dumps(list(trained.curve), indent=1) + "\n")
            trained.transcript.save(draft)
    return report


def dataset_document(dataset: DomainDataset, roles: Mapping[str, Mapping[str, int]]) -> dict[str, object]:
    """What the report says about the data."""
    return {
        "name": dataset.name,
        "manifest_sha256": dataset.manifest_sha256,
        "images": len(dataset),
        "domains": list(dataset.domain_names),
        "classes": list(dataset.class_names),
        "roles": {role: dict(counts) for role, counts in roles.items()},
    }

"""Accuracy of CCST against FedAvg: `python benchmarks/ccst_against_fedavg.py --data-root FILE --pretrained`.

Three arms, paired by seed (same images, clients, initial model): FedAvg; FedAvg with K times the local epochs, which
takes as many steps as CCST, so that only the styles differ; CCST overall with augmentation level K. With
`--encoder-blur` a fourth, "reconstruction", passes the same images through the encoder and decoder without AdaIN, to
separate the decoder's effect from the style's.

Accuracy is that of the last round's model on the unseen domain, which no arm selects on; validation accuracy is on a
tenth of the source images, split off before any augmentation. Every finished cell is written to `--results` at once,
and a cell with stored settings is not run again. The difference of two arms has a paired t interval over the seeds."""

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

import torch
from scipy import stats
from torch import Tensor

from fdgsec.data.domains import as_float
from fdgsec.experiments.report.accuracy import accuracy_document
from fdgsec.experiments.run_config import RunConfig
from fdgsec.experiments.setup.run_federation import RunRequest, federate
from fdgsec.experiments.setup.run_inputs import load_world, model_of
from fdgsec.experiments.train import split_sources
from fdgsec.federation.run_folder import environment
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.styles.image_styles import encoder_named
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.cache_files import write_atomic
from fdgsec.runtime.progress import NoProgress

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """The settings that all arms share."""

    dataset: str
    target_domain: str
    per_domain: int
    test_images: int
    image_size: int
    backbone: str
    pretrained: bool
    encoder: str
    rounds: int
    batch: int
    optimizer: str
    momentum: float


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training run: an arm, its K, its learning rate, its seed."""

    arm: str
    k: int
    learning_rate: float
    seed: int


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A mean of paired differences with its 95 % t interval; `low` and `high` are None for fewer than two pairs."""

    mean: float
    low: float | None
    high: float | None
    pairs: int


class Reconstruction(CCST):
    """CCST whose generator decodes the image's own features: blur without style transfer."""

    @torch.inference_mode()
    def generate(self, pixels: Tensor, mean: Tensor, std: Tensor) -> Tensor:  # noqa: ARG002 - CCST's signature
        """Encode and decode; uint8 (n, 3, H, W) in and out."""
        encoder = encoder_named(self.encoder)
        images = encoder.decode(encoder.encode(as_float(pixels)))
        return (images[..., : pixels.shape[2], : pixels.shape[3]].clamp(0, 1) * 255).round().to(torch.uint8)


def method_of(cell: Cell, protocol: Protocol) -> FedAvg:
    """Make the method of an arm."""
    plan = TrainingPlan(
        batch_size=protocol.batch,
        learning_rate=cell.learning_rate,
        optimizer="adam" if protocol.optimizer == "adam" else "sgd",
        momentum=protocol.momentum,
    )
    if cell.arm == "fedavg":
        return FedAvg(plan=plan)
    if cell.arm == "fedavg-steps":
        return FedAvg(plan=replace(plan, epochs=cell.k))
    method = Reconstruction if cell.arm == "reconstruction" else CCST
    return method(plan=plan, style="overall", k=cell.k, encoder=protocol.encoder)


def run(cell: Cell, protocol: Protocol, *, data_root: Path | None) -> dict[str, object]:
    """Train one cell and measure it."""
    started = time.monotonic()
    config = RunConfig(
        method="fedavg", dataset=protocol.dataset, target_domain=protocol.target_domain, per_domain=protocol.per_domain,
        image_size=protocol.image_size, backbone=protocol.backbone, pretrained=protocol.pretrained,
        encoder=protocol.encoder, rounds=protocol.rounds, seed=cell.seed,
    )  # fmt: skip
    world = load_world(config, data_root=data_root, progress=NoProgress())
    test = load_world(
        replace(config, per_domain=protocol.test_images), data_root=data_root, progress=NoProgress()
    ).unseen()
    clients, validation = split_sources(world, config)
    method = method_of(cell, protocol)
    method.check(len(clients))
    model = model_of(config, method, len(world.dataset.class_names))
    trained = federate(RunRequest(method=method, members=clients, model=model, config=config))
    accuracy = accuracy_document(trained.final, test, validation)
    sources = cast(dict[str, dict[str, float]], accuracy["per_domain"])
    seen = sum(found["n"] for found in sources.values())
    return {
        **asdict(cell),
        "accuracy": accuracy["value"],
        "n": accuracy["n"],
        "validation_accuracy": sum(found["value"] * found["n"] for found in sources.values()) / seen if seen else None,
        "train_images": sum(len(client.data) for client in clients),
        "losses": [point["loss"] for point in trained.curve],
        "transcript_sha256": trained.transcript.sha256,
        "seconds": time.monotonic() - started,
        "protocol": asdict(protocol),
        "environment": environment(),
    }


def paired(first: Sequence[float], second: Sequence[float]) -> Difference:
    """The mean of first - second with its 95 % interval by Student's t."""
    differences = [a - b for a, b in zip(first, second, strict=True)]
    count = len(differences)
    mean = sum(differences) / count
    if count < 2:
        return Difference(mean=mean, low=None, high=None, pairs=count)
    error = math.sqrt(sum((d - mean) ** 2 for d in differences) / (count - 1) / count)
    half = float(stats.t.ppf(0.975, count - 1)) * error
    return Difference(mean=mean, low=mean - half, high=mean + half, pairs=count)


def cells_of(given: argparse.Namespace) -> list[Cell]:
    """The cells seed by seed, so that an interrupted run leaves complete seeds; FedAvg has no K (k = 1)."""
    cells = []
    for seed in given.seeds:
        for rate in given.lr:
            cells.append(Cell(arm="fedavg", k=1, learning_rate=rate, seed=seed))
            for k in given.k:
                arms = ["fedavg-steps"] * (k > 1) + ["ccst-overall"] + ["reconstruction"] * given.encoder_blur
                cells += [Cell(arm=arm, k=k, learning_rate=rate, seed=seed) for arm in arms]
    return cells


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


def report(cells: Sequence[dict[str, object]], protocol: Protocol, given: argparse.Namespace) -> None:
    """Print accuracy per seed, means per arm, and the paired differences of CCST to the others."""
    for rate in given.lr:
        for k in given.k:
            names = ["fedavg", "fedavg-steps", "ccst-overall", "reconstruction"]
            table = {name: by_seed(cells, protocol, arm=name, k=k, rate=rate, seeds=given.seeds) for name in names}
            table = {name: column for name, column in table.items() if column}
            print(f"\n{protocol.target_domain} accuracy, K = {k}, learning rate {rate:g}")
            print(f"{'seed':<24}" + "".join(f"{name:>16}" for name in table))
            for seed in given.seeds:
                values = [f"{column[seed]:16.3f}" if seed in column else f"{'-':>16}" for column in table.values()]
                print(f"{seed:<24}" + "".join(values))
            means = "".join(f"{sum(column.values()) / len(column):16.3f}" for column in table.values())
            print(f"{'mean':<24}{means}")
            for other in table:
                print_difference(table, "ccst-overall", other)


def by_seed(
    cells: Sequence[dict[str, object]], protocol: Protocol, *, arm: str, k: int, rate: float, seeds: Sequence[int]
) -> dict[int, float]:
    """An arm's accuracy for each finished seed."""
    own_k = 1 if arm == "fedavg" else k
    rows = {s: found_in(cells, Cell(arm=arm, k=own_k, learning_rate=rate, seed=s), protocol) for s in seeds}
    return {seed: float(str(row["accuracy"])) for seed, row in rows.items() if row is not None}


def print_difference(table: dict[str, dict[int, float]], arm: str, other: str) -> None:
    """Print one paired difference over the seeds that both arms have finished."""
    both = sorted(table.get(arm, {}).keys() & table[other].keys())
    if arm == other or not both:
        return
    found = paired([table[arm][seed] for seed in both], [table[other][seed] for seed in both])
    interval = "needs two seeds" if found.low is None else f"95% [{found.low:+.3f}, {found.high:+.3f}]"
    print(f"{arm} - {other}: {found.mean:+.3f}, {interval}, {found.pairs} seeds")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data-root", type=Path, help="folder or .zip of the dataset (default: $FDGSEC_DATA)")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/ccst_against_fedavg.json"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--k", type=int, nargs="+", default=[3])
    parser.add_argument("--lr", type=float, nargs="+", default=[1e-4])
    parser.add_argument("--encoder-blur", action="store_true", help="add the arm 'reconstruction'")
    parser.add_argument("--dataset", default="pacs")
    parser.add_argument("--target-domain", default="sketch")
    parser.add_argument("--per-domain", type=int, default=300, help="images per source domain, validation included")
    parser.add_argument("--test-images", type=int, default=1000, help="images of the unseen domain")
    parser.add_argument("--image-size", type=int, default=128)
    parser.add_argument("--backbone", default="squeezenet1_0")
    parser.add_argument("--pretrained", action="store_true", help="start from stored ImageNet weights")
    parser.add_argument("--encoder", default="mini")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--optimizer", choices=("sgd", "adam"), default="adam")
    parser.add_argument("--momentum", type=float, default=0.9, help="of sgd; adam has its own")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def main() -> None:
    """Run what is missing, then print the tables."""
    given = arguments()
    torch.set_num_threads(given.threads)
    protocol = Protocol(
        dataset=given.dataset, target_domain=given.target_domain, per_domain=given.per_domain,
        test_images=given.test_images, image_size=given.image_size, backbone=given.backbone,
        pretrained=given.pretrained, encoder=given.encoder, rounds=given.rounds, batch=given.batch,
        optimizer=given.optimizer, momentum=given.momentum,
    )  # fmt: skip
    for cell in cells_of(given):
        if found_in(stored(given.results), cell, protocol) is not None:
            continue
        row = run(cell, protocol, data_root=given.data_root)
        cells = [*stored(given.results), row]  # read again: another process may have worked on other seeds
        write_atomic(given.results, json.dumps({"schema": SCHEMA, "cells": cells}, indent=1) + "\n")
        seconds, accuracy = float(str(row["seconds"])), float(str(row["accuracy"]))
        print(
            f"seed {cell.seed} {cell.arm} k={cell.k} lr={cell.learning_rate:g}: {accuracy:.3f} ({seconds:.0f} s)",
            flush=True,
        )
    report(stored(given.results), protocol, given)


if __name__ == "__main__":
    main()

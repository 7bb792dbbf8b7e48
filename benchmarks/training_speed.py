"""Training speed against a bare loop, and the fastest precision: `python -m benchmarks.training_speed`.

Part "loop": one client epoch (`training.epochs` on uint8 images with augmentation; and FedAvg's whole `fit`, which also
builds the network) against forward, cross-entropy, backward and step on one float batch in memory, with the same
network, batch size, optimizer, precision and layout. The target is 90 % of the bare speed. Precision and layout are
those of the table `fdgsec.nn.training.precision.PRECISION` and, where `--modes` says so, others in its place on both
sides.

Part "precision": a bare step in float32 and bfloat16, contiguous and channels_last, against the table
`fdgsec.nn.training.precision.PRECISION`.

Jobs alternate in one process. Seconds are processor seconds of this process, which other processes hardly affect; wall
seconds are printed as well. Numbers are medians over the repeats, shares are medians of shares."""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest.mock import patch

import torch
from torch.nn import functional

from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client, Clock
from fdgsec.federation.run_folder import environment
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.networks.classifiers import Classifier, build_classifier
from fdgsec.nn.training.batches import TrainingSet
from fdgsec.nn.training.precision import Precision, precision_of, processor_of
from fdgsec.nn.training.training_loop import CrossEntropy, epochs
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.cache_files import write_atomic
from fdgsec.runtime.random_streams import stream

CPU = torch.device("cpu")
CLASSES = 7
TARGET = 0.9
MODES: Mapping[str, Precision | None] = {
    "table": None,
    "float32": Precision(dtype="float32", channels_last=False),
    "bfloat16": Precision(dtype="bfloat16", channels_last=True),
}
Job = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One network at one image size."""

    backbone: str
    image_size: int
    batch: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Processor and wall seconds of every repeat of one job."""

    processor: Sequence[float]
    wall: Sequence[float]


def interleaved(jobs: Mapping[str, Job], *, repeats: int) -> dict[str, Timing]:
    """Run the jobs in turn, `repeats` times each, after one warm-up run each."""
    processor: dict[str, list[float]] = {name: [] for name in jobs}
    wall: dict[str, list[float]] = {name: [] for name in jobs}
    for repeat in range(repeats + 1):
        for name, job in jobs.items():
            started = (time.process_time(), time.perf_counter())
            job()
            if repeat:
                processor[name].append(time.process_time() - started[0])
                wall[name].append(time.perf_counter() - started[1])
    return {name: Timing(processor=processor[name], wall=wall[name]) for name in jobs}


def network_of(backbone: str) -> Classifier:
    """Build a network in training mode."""
    return build_classifier(backbone, CLASSES, rng=stream(0, "world", "network")).train()


def bare(setting: Setting, precision: Precision, plan: TrainingPlan) -> Job:
    """Forward, cross-entropy, backward, step on a batch in memory, `steps` times."""
    layout = torch.channels_last if precision.channels_last else torch.contiguous_format
    network = network_of(setting.backbone).to(memory_format=layout)
    rng = stream(0, "world", "batch")
    size = (setting.batch, 3, setting.image_size, setting.image_size)
    images = torch.rand(*size, generator=rng).contiguous(memory_format=layout)
    labels = torch.randint(0, CLASSES, (setting.batch,), generator=rng)
    optimizer = torch.optim.SGD(network.parameters(), lr=plan.learning_rate, momentum=plan.momentum)

    def job() -> None:
        for _ in range(setting.steps):
            with torch.autocast("cpu", torch.bfloat16) if precision.dtype == "bfloat16" else nullcontext():
                loss = functional.cross_entropy(network(images).float(), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

    return job


def images_of(setting: Setting) -> DomainDataset:
    """Random uint8 images for exactly `steps` batches."""
    count = setting.batch * setting.steps
    rng = stream(0, "world", "images")
    size = (count, 3, setting.image_size, setting.image_size)
    return DomainDataset(
        name="random",
        store=torch.randint(0, 256, size, generator=rng, dtype=torch.uint8),
        rows=torch.arange(count),
        labels=torch.randint(0, CLASSES, (count,), generator=rng),
        domains=torch.zeros(count, dtype=torch.int64),
        ids=tuple(f"random/{i}" for i in range(count)),
        class_names=tuple(str(i) for i in range(CLASSES)),
        domain_names=("random",),
    )


def loop_jobs(setting: Setting, plan: TrainingPlan) -> dict[str, Job]:
    """The bare loop, `training.epochs`, and FedAvg's `fit` on as many images."""
    data = images_of(setting)
    network = network_of(setting.backbone)
    state = {name: value.detach().clone() for name, value in network.state_dict().items()}
    model = GlobalModel(blueprint=Blueprint(backbone=setting.backbone, classes=CLASSES), state=ModelState(state=state))
    client = Client(name="client:0", data=data)
    clock = Clock(round=0, rounds=1, participants=("client:0",))
    method = FedAvg(plan=plan)

    def epoch() -> None:
        epochs(network, TrainingSet.of(data), CrossEntropy(), plan, stream(0, "world", "epoch"))

    def fit() -> None:
        method.fit(client, model=model, inbox={}, state={}, clock=clock, rng=stream(0, "world", "fit"))

    return {"bare": bare(setting, precision_of(CPU, setting.backbone), plan), "epochs": epoch, "fit": fit}


def measure_loop(setting: Setting, *, repeats: int, mode: str = "table") -> dict[str, object]:
    """Time the loop and give the share of the bare speed that `epochs` and `fit` reach."""
    plan = TrainingPlan(batch_size=setting.batch, learning_rate=1e-4, momentum=0.9)
    precision = MODES[mode] or precision_of(CPU, setting.backbone)
    with patch.dict("fdgsec.nn.training.precision.PRECISION", {(processor_of(CPU), setting.backbone): precision}):
        timings = interleaved(loop_jobs(setting, plan), repeats=repeats)
    images = setting.batch * setting.steps
    row: dict[str, object] = {**asdict(setting), "mode": mode, **asdict(precision)}
    for name, timing in timings.items():
        row[f"{name}_images_per_processor_second"] = images / statistics.median(timing.processor)
        row[f"{name}_images_per_wall_second"] = images / statistics.median(timing.wall)
        if name != "bare":
            shares = [b / own for b, own in zip(timings["bare"].processor, timing.processor, strict=True)]
            row[f"{name}_share"], row[f"{name}_shares"] = statistics.median(shares), shares
    return row


def measure_precision(setting: Setting, *, repeats: int) -> dict[str, object]:
    """Time a bare step in the four precisions; give images per processor second, the fastest, and the table's."""
    choices = {
        f"{dtype} {'channels_last' if last else 'contiguous'}": Precision(dtype=dtype, channels_last=last)
        for dtype in ("float32", "bfloat16")
        for last in (False, True)
    }
    plan = TrainingPlan(batch_size=setting.batch, learning_rate=1e-4, momentum=0.9)
    timings = interleaved({name: bare(setting, choice, plan) for name, choice in choices.items()}, repeats=repeats)
    images = setting.batch * setting.steps
    speeds = {name: images / statistics.median(timing.processor) for name, timing in timings.items()}
    table = precision_of(CPU, setting.backbone)
    return {
        **asdict(setting),
        "images_per_processor_second": speeds,
        "fastest": max(speeds, key=lambda name: speeds[name]),
        "table": next(name for name, choice in choices.items() if choice == table),
    }


def print_loop(rows: Sequence[Mapping[str, object]]) -> None:
    """One line per network."""
    print(
        f"\n{'network':<20} {'px':>4} {'mode':<9} {'bare':>8} {'epochs':>8} {'fit':>8}  images per processor second; "
        "share of bare"
    )
    for row in rows:
        speeds = [row[f"{name}_images_per_processor_second"] for name in ("bare", "epochs", "fit")]
        shares = [float(str(row[f"{name}_share"])) for name in ("epochs", "fit")]
        numbers = " ".join(f"{float(str(speed)):8.1f}" for speed in speeds)
        verdict = "ok" if shares[0] >= TARGET else f"below {TARGET:.0%}"
        print(
            f"{row['backbone']:<20} {row['image_size']:>4} {row['mode']:<9} {numbers}  "
            f"epochs {shares[0]:.1%}, fit {shares[1]:.1%}: {verdict}"
        )


def print_precision(rows: Sequence[Mapping[str, object]]) -> None:
    """One line per network and precision, the table's choice and the fastest marked."""
    print("\nimages per processor second of a bare step")
    for row in rows:
        speeds = row["images_per_processor_second"]
        assert isinstance(speeds, dict)
        for name, speed in speeds.items():
            marks = [mark for mark in ("fastest", "table") if row[mark] == name]
            print(f"{row['backbone']:<20} {row['image_size']:>4} {name:<24} {speed:8.1f}  {', '.join(marks)}")


def setting_of(text: str, *, batch: int, steps: int) -> Setting:
    """Read "resnet18:128" (network, pixels) or "tiny:64:10" (also steps)."""
    backbone, size, own, *_ = [*text.split(":"), "", ""]
    return Setting(backbone=backbone, image_size=int(size or 128), batch=batch, steps=int(own or steps))


def processor_name() -> str:
    """The processor, and its vector extensions that determine the speed of bfloat16."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    flags = {word for line in lines if line.startswith("flags") for word in line.split()}
    found = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return ", ".join([names[0] if names else platform.processor(), *found])


def main() -> None:
    """Measure, print, and write JSON where `--out` says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--part", choices=("loop", "precision", "both"), default="both")
    parser.add_argument("--loop", nargs="+", default=["squeezenet1_0:128", "resnet18:128", "tiny:64:10"])
    parser.add_argument(
        "--precision", nargs="+", default=["squeezenet1_0:128", "resnet18:128", "mobilenet_v3_large:128", "tiny:64"]
    )
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=["table"], help="of the loop")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=3, help="steps per repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a JSON file")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    document: dict[str, object] = {
        "environment": {
            **environment(),
            "processor": processor_name(),
            "glibc_tunables": os.environ.get("GLIBC_TUNABLES", ""),
            "load_before": os.getloadavg()[0],
        },
        "repeats": given.repeats,
    }
    if given.part != "precision":
        settings = [setting_of(text, batch=given.batch, steps=given.steps) for text in given.loop]
        rows = [measure_loop(one, repeats=given.repeats, mode=mode) for one in settings for mode in given.modes]
        print_loop(rows)
        document["loop"] = rows
    if given.part != "loop":
        settings = [setting_of(text, batch=given.batch, steps=1) for text in given.precision]
        rows = [measure_precision(setting, repeats=given.repeats) for setting in settings]
        print_precision(rows)
        document["precision"] = rows
    if given.out is not None:
        write_atomic(given.out, json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

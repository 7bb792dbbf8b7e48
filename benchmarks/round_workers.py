"""The time of a round by the number of worker processes, and that the transcript does not depend on it.

    python -m benchmarks.round_workers --backbone resnet18 --clients 8 --images 64 --image-size 32 --repeats 3

Wall seconds, and processor seconds of this process and of its workers, interleaved. On a machine that others use, the
wall seconds say more about them; `cores` tells how many the round really got. "A core each" is what the round would
take with a core for every worker: the seconds of this process, and the workers' seconds shared out."""

import argparse
import os
import time
from statistics import median

import torch

from fdgsec.data.domains import DomainDataset
from fdgsec.experiments.run_config import RunConfig
from fdgsec.experiments.setup.run_federation import RunRequest, federate
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.networks.classifiers import build_classifier
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import stream


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--images", type=int, default=64, help="per client")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def _images(count: int, size: int, name: str) -> DomainDataset:
    rng = stream(0, "world", "images", name)
    return DomainDataset(
        name="noise", store=torch.randint(0, 256, (count, 3, size, size), generator=rng, dtype=torch.uint8),
        rows=torch.arange(count), labels=torch.arange(count) % 7, domains=torch.zeros(count, dtype=torch.int64),
        ids=tuple(f"only/{name}/{number}" for number in range(count)),
        class_names=tuple(f"class {number}" for number in range(7)), domain_names=("only",),
    )  # fmt: skip


def _request(given: argparse.Namespace) -> RunRequest:
    state = build_classifier(given.backbone, 7, rng=stream(0, "world", "start")).state_dict()
    model = GlobalModel(blueprint=Blueprint(backbone=given.backbone, classes=7), state=ModelState(state=dict(state)))
    members = [
        Client(name=f"client:{number}", data=_images(given.images, given.image_size, f"client {number}"))
        for number in range(given.clients)
    ]
    config = RunConfig(method="fedavg", rounds=1, backbone=given.backbone, device="cpu")
    return RunRequest(method=FedAvg(plan=TrainingPlan(batch_size=32)), members=members, model=model, config=config)


def main() -> None:
    """Print one line per number of workers."""
    given = _arguments()
    request, transcripts = _request(given), set[str]()
    walls, own, children = dict[int, list[float]](), dict[int, list[float]](), dict[int, list[float]]()
    for _ in range(given.repeats):
        for workers in given.workers:
            begun, before = time.monotonic(), os.times()
            transcripts.add(federate(request, workers=workers).transcript.sha256)
            after = os.times()
            walls.setdefault(workers, []).append(time.monotonic() - begun)
            own.setdefault(workers, []).append(sum(after[:2]) - sum(before[:2]))
            children.setdefault(workers, []).append(sum(after[2:4]) - sum(before[2:4]))
    assert len(transcripts) == 1, "the transcript depends on the number of workers"
    print("| workers | wall s (min, max) | this process s | workers s | cores | a core each s | 1 worker / this |")
    print("|---|---|---|---|---|---|---|")
    for workers in given.workers:
        wall, here, there = median(walls[workers]), median(own[workers]), median(children[workers])
        alone = here + there / workers
        first = median(own[given.workers[0]])
        ends = f"{min(walls[workers]):.1f}, {max(walls[workers]):.1f}"
        spent = f"{here:.1f} | {there:.1f} | {(here + there) / wall:.2f} | {alone:.1f}"
        print(f"| {workers} | {wall:.1f} ({ends}) | {spent} | {first / alone:.2f} |")


if __name__ == "__main__":
    main()

"""What a client costs in a round beyond its batches, and the memory of a round: `python -m benchmarks.client_rounds`.

    python -m benchmarks.client_rounds --backbone resnet18 --clients 16 --rounds 2
    python -m benchmarks.client_rounds --backbone resnet18 --clients 1000 --rounds 1

Processor milliseconds per client and round of FedAvg whose clients prepare the network for training and take no step:
sending the model, making the network, sending the update, recording it, and averaging. Peak memory is given in models
(the bytes of the state) above that of a round of 2 clients in the same process. The hash of the transcript tells
whether two versions of the code send the same."""

from fdgsec.runtime.worker_processes import keep_freed_memory

keep_freed_memory()  # before torch takes any memory, as the command `fdgsec` does

import argparse
import resource
import time
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client
from fdgsec.federation.round_loop import RoundLoop
from fdgsec.federation.wire import Wire
from fdgsec.methods.fedavg import FedAvg, detached
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import TrainingSet
from fdgsec.nn.training.training_loop import Objective, prepare_training
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import simulated_key, simulated_stream

CLASSES = 7


def no_step(
    model: Classifier,
    data: TrainingSet,
    objective: Objective,
    plan: TrainingPlan,
    rng: torch.Generator,
    *,
    round: int = 0,
    rounds: int = 1,
    beside: Iterable[nn.Parameter] = (),
    optimizer: torch.optim.Optimizer | None = None,
    on_step: Callable[[int, float], None] | None = None,
) -> dict[str, float]:
    """A training loop without batches."""
    del data, objective, round, rounds, beside, optimizer, on_step
    prepare_training(model, plan, rng)
    return {"loss": 0.0, "steps": 0.0}


def members(count: int) -> Sequence[Client]:
    """Clients that name the same 32 images."""
    rng = stream(0, "world", "images")
    images = DomainDataset(
        name="noise", store=torch.randint(0, 256, (32, 3, 32, 32), generator=rng, dtype=torch.uint8),
        rows=torch.arange(32), labels=torch.arange(32) % CLASSES, domains=torch.zeros(32, dtype=torch.int64),
        ids=tuple(f"only/{number}" for number in range(32)),
        class_names=tuple(f"class {number}" for number in range(CLASSES)), domain_names=("only",),
    )  # fmt: skip
    return [Client(name=f"client:{number}", data=images, trainer=no_step) for number in range(count)]


def run(clients: Sequence[Client], model: GlobalModel, rounds: int) -> tuple[float, str]:
    """Run the rounds; processor seconds, and the transcript's hash."""
    method = FedAvg(plan=TrainingPlan(batch_size=32))
    wire = Wire(secret=lambda upload, number: simulated_stream(0, "policy", upload.round, number))
    engine = LocalEngine(members=clients, method=method, seed=0)
    loop = RoundLoop(method=method, engine=engine, wire=wire, key=simulated_key(0), rounds=rounds)
    begun = time.process_time()
    loop.run(model)
    return time.process_time() - begun, wire.transcript.sha256


def peak_bytes() -> int:
    """The peak resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backbone", default="tiny")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(1)
    blueprint = Blueprint(backbone=given.backbone, classes=CLASSES)
    start = ModelState(state=detached(blueprint.network(stream(0, "world", "start"))))
    model = GlobalModel(blueprint=blueprint, state=start)
    run(members(2), model, 1)
    before = peak_bytes()
    spent, transcript = run(members(given.clients), model, given.rounds)
    each = 1e3 * spent / given.clients / given.rounds
    more = (peak_bytes() - before) / start.bytes
    print(f"{given.backbone:<9} {given.clients} clients: {each:6.2f} ms, {more:6.1f} models more, {transcript[:16]}")


if __name__ == "__main__":
    main()

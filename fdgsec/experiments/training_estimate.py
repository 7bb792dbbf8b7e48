"""What a training run will take, measured before its first round: a few images of each client, trained on for real.

Two short runs of two rounds, on one and on two batches per client, give the time and the bytes of a round as a line in
the number of images; the first round, in which images may be stylized, has a line of its own."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import torch

from fdgsec.data.domains import DomainDataset
from fdgsec.experiments.run_config import RunConfig, on_stated_threads
from fdgsec.experiments.setup.run_federation import FederationRun, RunRequest, federate
from fdgsec.experiments.train import training_inputs
from fdgsec.federation.method import Client, State
from fdgsec.federation.wire import Row
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import Progressive

CLIENTS = 4
"""So many clients are measured; of more, the others are taken to be like them."""
ROUNDS = 2
ROW = 300  # bytes of a line of the transcript
MODELS = frozenset({"ModelState", "GeneratorState"})


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Seconds of the first round, of a later one and of all; bytes of the finished run's folder, of what is kept until
    then, and of memory at its peak (None where the system does not tell). Accuracy at the end is not included.

    The memory is the peak of this process so far, which has read all images and trained on batches of full size, and
    what the clients' states grow by."""

    rounds: int
    clients: int
    seconds_first: float
    seconds_round: float
    seconds: float
    bytes_run: int
    bytes_kept: int
    bytes_memory: int | None

    def document(self) -> dict[str, float | None]:
        """The estimate as plain data."""
        return asdict(self)

    def lines(self) -> Sequence[str]:
        """The estimate for a person."""
        run, kept = self.bytes_run / 2**20, self.bytes_kept / 2**20
        time = (
            f"time: about {_spoken(self.seconds)} for {self.rounds} rounds with {self.clients} clients (the first "
            f"{_spoken(self.seconds_first)}, each other {_spoken(self.seconds_round)}), and the accuracy at the end"
        )
        disk = (
            f"disk: about {run:.1f} MB for the run, and {kept:.1f} MB until it is finished, for going on after an "
            "interruption"
        )
        memory = "not known on this system"
        if self.bytes_memory is not None:
            memory = f"about {self.bytes_memory / 2**30:.1f} GB at its peak"
        return time, disk, f"memory: {memory}"


def _spoken(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else f"{timedelta(seconds=round(seconds))} h"


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """One short run: images per client, and seconds and bytes as named."""

    images: float
    numbers: Mapping[str, float]


@dataclass
class _Stopwatch:
    """Notes when a round ends."""

    times: list[float] = field(default_factory=list)

    def update(self, description: str, done: int, total: int) -> None:  # noqa: ARG002 - as Progressive
        if description == "rounds":
            self.times.append(time.monotonic())


@on_stated_threads
def estimate(config: RunConfig, *, data_root: Path | None, progress: Progressive) -> Estimate:
    """Measure two rounds on a few images, and draw out what all rounds take. Raises what `train` raises."""
    if not config.rounds:
        raise UsageError("--dry-run measures rounds, and this run has none; give --rounds 1 or more.")
    _, request, _ = training_inputs(config, data_root=data_root, progress=progress)
    batch = 32 if request.method.client_plan is None else request.method.client_plan.batch_size
    some = request.members[:CLIENTS]
    method = request.method.fitting(len(some))
    short = replace(config, rounds=ROUNDS, keep="models=last", participation=1.0)
    measured = []
    for number, batches in enumerate((1, 2)):
        progress.update("measuring", number, 2)
        members = [_part(client, batch * batches) for client in some]
        measured.append(_measured(replace(request, method=method, members=members, config=short)))
    progress.update("measuring", 2, 2)
    peak, held = _peak(), measured[-1].numbers["states"] * len(some)
    memory = None if peak is None else peak - held
    return _drawn_out(config, request.members, _line(*measured), memory=memory)


def _peak() -> float | None:
    """The largest resident set of this process until now, in bytes; None where there is no such number."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if sys.platform == "darwin" else 1024 * peak)


def _part(client: Client, count: int) -> Client:
    """The same client with at most `count` images, taken at equal distances."""

    def some(images: DomainDataset) -> DomainDataset:
        few = min(count, len(images))
        return images.subset(torch.arange(few) * len(images) // max(few, 1))

    return replace(
        client, data=some(client.data), validation=None if client.validation is None else some(client.validation)
    )


def _measured(request: RunRequest) -> _Measured:
    watch = _Stopwatch()
    run = federate(replace(request, progress=watch))
    first, later = (end - start for start, end in zip(watch.times, watch.times[1:], strict=False))
    models, shared = _bytes(run, lambda row: row.kind in MODELS), _bytes(run, lambda row: row.kind not in MODELS)
    numbers = {
        "first": first, "later": later, "states": float(sum(map(_size, run.states.values()))),
        "shared first": shared[0], "shared later": shared[1], "models": models[1],
        "rows first": float(sum(row.round == 0 for row in run.transcript.rows)),
        "rows later": float(sum(row.round == 1 for row in run.transcript.rows)),
        "model": float(run.final.state.bytes),
    }  # fmt: skip
    clients = len(request.members)
    images = sum(len(client.data) for client in request.members) / clients
    alone = {name: value if name == "model" else value / clients for name, value in numbers.items()}
    return _Measured(images=images, numbers=alone)


def _bytes(run: FederationRun, counts: Callable[[Row], bool]) -> list[float]:
    """The bytes of different payloads of each round."""
    found = [{row.sha256: row.bytes for row in run.transcript.rows if row.round == n and counts(row)} for n in range(2)]
    return [float(sum(sizes.values())) for sizes in found]


def _size(state: State) -> int:
    return sum(value.numel() * value.element_size() for value in state.values())


def _line(one: _Measured, two: _Measured) -> Callable[[str, int], float]:
    """A number of one client with so many images, on the line through two short runs; never falling."""

    def at(name: str, images: int) -> float:
        low, high = one.numbers[name], two.numbers[name]
        if two.images <= one.images:
            return high
        slope = max(high - low, 0.0) / (two.images - one.images)
        return max(high + slope * (images - two.images), 0.0)

    return at


def _drawn_out(
    config: RunConfig, clients: Sequence[Client], at: Callable[[str, int], float], *, memory: float | None
) -> Estimate:
    sizes = [len(client.data) for client in clients]

    def total(name: str) -> float:
        return sum(at(name, size) for size in sizes)

    share = max(int(config.participation * len(clients) + 1e-9), 1) / len(clients)
    others, model = config.rounds - 1, at("model", 0)
    first, each = total("first"), total("later") * share
    rows = total("rows first") + others * share * total("rows later")
    kept_models = {"artifacts": 0, "models=last": 1, "models=all": config.rounds}[config.keep] * share * total("models")
    payloads = total("shared first") + others * share * total("shared later") + kept_models
    states = total("states")
    return Estimate(
        rounds=config.rounds, clients=len(clients), seconds_first=first, seconds_round=each,
        seconds=first + others * each, bytes_run=int(model + payloads + ROW * rows),
        bytes_kept=int(3 * model + 2 * states + payloads + ROW * rows),
        bytes_memory=None if memory is None else int(memory + states),
    )  # fmt: skip

"""How an exchange grows with the number of clients: `python -m benchmarks.exchange_growth`.

    python -m benchmarks.exchange_growth --methods ccst fedccrl --clients 100 1000 4000 10000

For each number of clients, in one process: the exchange itself (share, combine, delivery), the transcript written and
read back, and what adversaries read: the server every client's style, a client everybody's in what it received. CCST's
clients send random styles of 512 numbers, because computing them costs the same for each; FedCCRL's send those of one
image each. Processor seconds, peak memory above that before the exchange, and the exponents p of a least-squares fit of
seconds ~ clients^p, from 1,000 clients on: below, fixed costs count."""

from fdgsec.runtime.worker_processes import keep_freed_memory

keep_freed_memory()

import argparse
import gc
import resource
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import StyleStatistics
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, Method, State
from fdgsec.federation.round_loop import RoundLoop
from fdgsec.federation.wire import Transcript, Wire
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedalign import FedAlign
from fdgsec.methods.fedccrl import FedCCRL
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import simulated_key, simulated_stream
from fdgsec.threats.adversary import ADVERSARIES

Made = TypeVar("Made")
WIDTH = 512
FIXED = 1000  # clients below which fixed costs count
PARTS = ("exchange", "save", "load", "server reads", "client reads")


@dataclass(frozen=True, kw_only=True)
class RandomStyles(CCST):
    """CCST whose clients send random overall styles."""

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        """Draw a style."""
        del client, model, clock
        drawn = torch.rand(2, WIDTH, generator=rng)
        return {"style": StyleStatistics(mean=drawn[0], std=drawn[1])}, state


METHODS: Mapping[str, Method] = {"ccst": RandomStyles(k=1), "fedccrl": FedCCRL(), "fedalign": FedAlign()}


def members(count: int) -> Sequence[Client]:
    """Clients that name the same ten images."""
    rng = stream(0, "world", "images")
    images = DomainDataset(
        name="noise", store=torch.randint(0, 256, (10, 3, 16, 16), generator=rng, dtype=torch.uint8),
        rows=torch.arange(10), labels=torch.arange(10) % 7, domains=torch.zeros(10, dtype=torch.int64),
        ids=tuple(f"only/{number}" for number in range(10)),
        class_names=tuple(f"class {number}" for number in range(7)), domain_names=("only",),
    )  # fmt: skip
    return [Client(name=f"client:{number}", data=images) for number in range(count)]


def exchanged(method: Method, clients: Sequence[Client]) -> Transcript:
    """Exchange once, without training."""
    wire = Wire(secret=lambda upload, number: simulated_stream(0, "policy", upload.round, number))
    engine = LocalEngine(members=clients, method=method, seed=0)
    RoundLoop(method=method, engine=engine, wire=wire, key=simulated_key(0), rounds=0).run(None)
    return wire.transcript


def measured(method: Method, count: int) -> dict[str, float]:
    """Processor seconds of each part, in one process."""
    clients = members(count)
    transcript, exchange = timed(lambda: exchanged(method, clients))
    with tempfile.TemporaryDirectory() as folder:
        _, save = timed(lambda: transcript.save(Path(folder)))
        loaded, load = timed(lambda: Transcript.load(Path(folder)))
    assert loaded.sha256 == transcript.sha256
    server, at_server = timed(lambda: readable(loaded, "server", clients))
    client, at_client = timed(lambda: readable(loaded, "client", clients))
    assert server == count
    assert client >= count - 1  # FedCCRL's clients do not receive their own rows, but see what they sent
    return dict(zip(PARTS, (exchange, save, load, at_server, at_client), strict=True))


def timed(part: Callable[[], Made]) -> tuple[Made, float]:
    """What `part` made, and its processor seconds; garbage of what came before is collected first."""
    gc.collect()
    begun = time.process_time()
    made = part()
    return made, time.process_time() - begun


def readable(transcript: Transcript, adversary: str, clients: Sequence[Client]) -> int:
    """Of how many clients the adversary sees a style."""
    view = ADVERSARIES[adversary].view(transcript)
    return sum(view.styles(client.name) is not None for client in clients)


def exponent(found: Mapping[int, float]) -> float:
    """The least-squares slope of log(seconds) against log(clients)."""
    counts = [count for count in found if count >= FIXED]
    if len(counts) < 2:
        return float("nan")
    return float(np.polyfit(np.log(counts), np.log([max(found[count], 1e-4) for count in counts]), 1)[0])


def peak_mib() -> float:
    """The peak resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Print one line per method and number of clients, and the exponents."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=["ccst", "fedccrl"], choices=list(METHODS))
    parser.add_argument("--clients", nargs="+", type=int, default=[100, 1000, 2000, 4000, 10000])
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| method | clients | {' | '.join(f'{part}, s' for part in PARTS)} | MiB more |")
    print("|---" * (len(PARTS) + 3) + "|")
    for name in given.methods:
        measured(METHODS[name], 10)
        before, found = peak_mib(), dict[int, dict[str, float]]()
        for count in sorted(given.clients):
            found[count] = measured(METHODS[name], count)
            cells = " | ".join(f"{found[count][part]:.2f}" for part in PARTS)
            print(f"| {name} | {count:,} | {cells} | {peak_mib() - before:.0f} |", flush=True)
        slopes = [exponent({count: spent[part] for count, spent in found.items()}) for part in PARTS]
        print(f"| {name} | exponent | {' | '.join(f'{slope:.2f}' for slope in slopes)} | |", flush=True)


if __name__ == "__main__":
    main()

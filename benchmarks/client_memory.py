"""Peak memory against the number of clients: `python -m benchmarks.client_memory`.

Every cell runs in its own process: two rounds of a method, with the same numbers of participants and of images per
client, among an increasing number of clients. All clients name the same stored images, so that the data take constant
memory. The peak is VmHWM of that process. Weights are random, because a client's memory does not depend on the others'
messages."""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from benchmarks.method_cases import CASES, PLAN
from benchmarks.method_speed import surroundings
from benchmarks.training_speed import CLASSES, Setting, images_of, setting_of
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client
from fdgsec.federation.round_loop import RoundLoop
from fdgsec.federation.wire import Upload, Wire
from fdgsec.methods.fedavg import detached
from fdgsec.runtime.cache_files import write_atomic
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import SecretStream, simulated_key, simulated_stream

ROUNDS = 2
SLACK_MIB = 32.0
"""By how much two runs of one cell may differ: fragments of the heap, and where it grows."""


def peak_mib() -> float:
    """The peak resident set of this process, in MiB. Raises RuntimeError where Linux does not report it."""
    for text in Path("/proc/self/status").read_text().splitlines():
        if text.startswith("VmHWM:"):
            return int(text.split()[1]) / 1024
    raise RuntimeError("/proc/self/status has no VmHWM.")


def run(name: str, setting: Setting, *, clients: int, participants: int) -> None:
    """Run one cell in this process and print the peak."""
    data, method = images_of(setting), CASES[name].method
    members = [Client(name=f"client:{number}", data=data) for number in range(clients)]
    plan = Blueprint(backbone=setting.backbone, classes=CLASSES, remodel=method.remodel)
    start = ModelState(state=detached(plan.network(stream(0, "world", "initialisation"))))
    engine = LocalEngine(members=members, method=method, seed=0)
    driver = RoundLoop(
        method=method, engine=engine, wire=Wire(secret=_secret), key=simulated_key(0), rounds=ROUNDS,
        participation=participants / clients,
    )  # fmt: skip
    driver.run(GlobalModel(blueprint=plan, state=start))
    print(peak_mib())


def _secret(upload: Upload, number: int) -> SecretStream:
    return simulated_stream(0, "defense", upload.round, number)


def peak_of(name: str, network: str, *, clients: int, participants: int, threads: int) -> float:
    """Run one cell in a fresh process and return its peak in MiB."""
    options = {"--clients": clients, "--participants": participants, "--threads": threads, "--network": network}
    words = [str(word) for pair in options.items() for word in pair]
    command = [sys.executable, "-m", "benchmarks.client_memory", "--run", name, *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def print_table(rows: Sequence[Mapping[str, object]], clients: Sequence[int]) -> None:
    """One line per method."""
    print(f"{'peak MiB':<12}" + "".join(f"{number:>8} clients" for number in clients) + "   per client more")
    for row in rows:
        peaks, growth = row["peak_mib"], row["growth_mib_per_client"]
        assert isinstance(peaks, dict)
        values = "".join(f"{peaks[number]:>16.0f}" for number in clients)
        print(f"{row['method']:<12}{values}   {growth:.2f} MiB: {'flat' if row['flat'] else 'grows'}")


def main() -> None:
    """Measure, print, and write JSON where `--out` says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--methods", nargs="+", default=["fedavg", "fisc", "stablefdg"], choices=list(CASES))
    parser.add_argument("--clients", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--participants", type=int, default=4, help="clients that train in a round")
    parser.add_argument("--network", default="squeezenet1_0:64:1", help="network:pixels:batches per client")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a JSON file")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    setting = setting_of(given.network, batch=PLAN.batch_size, steps=1)
    if given.run:
        run(given.run, setting, clients=given.clients[0], participants=given.participants)
        return
    rows: list[dict[str, object]] = []
    for name in given.methods:
        effort = {"participants": given.participants, "threads": given.threads}
        peaks = {number: peak_of(name, given.network, clients=number, **effort) for number in given.clients}
        few, many = min(peaks), max(peaks)
        growth = (peaks[many] - peaks[few]) / max(many - few, 1)
        flat = peaks[many] - peaks[few] <= SLACK_MIB
        rows.append({"method": name, "peak_mib": peaks, "growth_mib_per_client": growth, "flat": flat})
    print_table(rows, given.clients)
    if given.out is not None:
        document = {
            "environment": surroundings(), "network": given.network, "participants": given.participants,
            "rounds": ROUNDS, "memory": rows,
        }  # fmt: skip
        write_atomic(given.out, json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

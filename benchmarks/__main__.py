"""All speed and memory benchmarks, one table each: `python -m benchmarks [training|methods|metrics|memory ...]
[--quick]`.

Every part is a module of this folder, run in its own process so that heaps are not shared. Results are written to
`benchmarks/results/speed.json`; parts that were not run keep their earlier results."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from fdgsec.runtime.cache_files import write_atomic

HERE = Path(__file__).parent
TUNED = "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=4294967296"
"""Keep freed blocks in the heap instead of returning their pages to the system, which would zero them for reuse."""

Command = Sequence[str]
FULL: Mapping[str, Command] = {
    "training": (
        "training_speed.py", "--part", "both", "--loop", "tiny:64:8", "resnet18:64:3", "--modes", "float32", "table",
        "bfloat16", "--precision", "tiny:64", "squeezenet1_0:64", "squeezenet1_0:128", "resnet18:64", "resnet50:64",
        "densenet121:64", "mobilenet_v3_large:64",
    ),
    "methods": ("method_speed.py",),
    "metrics": ("metric_speed.py", "--extractors", "mini:96", "squeezenet:96", "inception:32", "--repeats", "5"),
    "memory": ("client_memory.py",),
}  # fmt: skip
QUICK: Mapping[str, Command] = {
    "training": (
        "training_speed.py", "--part", "both", "--loop", "tiny:64:8", "--modes", "float32", "table",
        "--precision", "tiny:64",
    ),
    "methods": ("method_speed.py", "--networks", "tiny:64:4"),
    "metrics": ("metric_speed.py", "--extractors", "mini:48", "--repeats", "5", "--streamed", "500"),
    "memory": ("client_memory.py", "--network", "tiny:64:1", "--clients", "4", "64"),
}  # fmt: skip


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(FULL)}; all of them by default")
    parser.add_argument("--quick", action="store_true", help="the smallest network, and fewer images")
    parser.add_argument(
        "--heap", choices=("tuned", "default"), default="tuned", help="of glibc, for both sides of a ratio"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "speed.json")
    given = parser.parse_args()
    unknown = set(given.parts) - set(FULL)
    if unknown:
        parser.error(f"unknown part {', '.join(sorted(unknown))}; there are {', '.join(FULL)}.")
    return given


def surroundings(*, threads: int, heap: str) -> dict[str, str]:
    """The environment of a part's process: its threads and its heap."""
    own = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    return {**own, "OMP_NUM_THREADS": str(threads), **({"GLIBC_TUNABLES": TUNED} if heap == "tuned" else {})}


def measured(command: Command, *, threads: int, environment: Mapping[str, str]) -> dict[str, object]:
    """Run one part and return what it wrote."""
    script, *options = command
    module = f"benchmarks.{Path(script).stem}"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "part.json"
        subprocess.run(
            [sys.executable, "-m", module, *options, "--threads", str(threads), "--out", str(out)],
            check=True, env=dict(environment),
        )  # fmt: skip
        found: dict[str, object] = json.loads(out.read_text())
    return {"command": [script, *options], **found}


def main() -> None:
    """Run the parts one after the other, and write the results after each."""
    given = arguments()
    commands = QUICK if given.quick else FULL
    environment = surroundings(threads=given.threads, heap=given.heap)
    document: dict[str, object] = json.loads(given.out.read_text()) if given.out.exists() else {}
    for part in given.parts or list(commands):
        print(f"\n== {part}", flush=True)
        found = measured(commands[part], threads=given.threads, environment=environment)
        document[part] = {"heap": given.heap, "quick": given.quick, **found}
        given.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(given.out, json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

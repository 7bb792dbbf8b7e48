"""Kill fdgsec's commands at random moments, give them again, and compare what they report.

    python -m benchmarks.crash_matrix --moments 60

Every second moment is uniform over the time that the command takes undisturbed, every other one over its operations on
files: what is written last takes little time, and would hardly be hit. Moments are drawn from --seed. After a kill the
same command is given once more, and its documents must be those of an undisturbed one, byte for byte but for seconds,
date, command and `reused`, or it must end with a typed error. "power" is a kill after which files that were not synced
have lost their content, and files in folders that were not synced their names. "pair" are two processes on one folder
at once.

Commands run in forks of one process that has imported fdgsec, so that a moment falls into its work. Writes
benchmarks/results/crash-matrix.json."""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

from fdgsec.cli import main as fdgsec
from fdgsec.federation.run_folder import environment
from fdgsec.runtime.cache_files import write_atomic

RESULTS = Path(__file__).parent / "results" / "crash-matrix.json"
SMALL = ("--dataset", "shapes", "--per-domain", "40", "--image-size", "16")


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command without --out, and the documents in its folder that are compared."""

    words: tuple[str, ...]
    documents: tuple[str, ...]


COMMANDS: Mapping[str, Command] = {
    "attack": Command(
        words=(
            "attack", "--target", "ccst-single", *SMALL, "--attack", "pool-exposure", "--attack", "label-inference",
            "--attack", "reidentification",
        ),
        documents=("report.json", "config.json", "measurements.csv", "transcript.jsonl"),
    ),
    "sweep": Command(
        words=(
            "sweep", "--target", "ccst-single", *SMALL, "--over", "scale=0.1,1", "--accuracy-at", "none",
            "--attack", "pool-exposure",
        ),
        documents=("sweep.json", "points.json", "sweep.csv"),
    ),
    "bench": Command(
        words=(
            "bench", "--protocol", "quick", "--dataset", "shapes", "--methods", "fedavg,ccst", "--domains", "sketch",
            "--seeds", "1", "--rounds", "1", "--per-domain", "40", "--image-size", "16", "--backbone", "tiny",
            "--no-pretrained", "--set", "method.plan.steps=2",
        ),
        documents=("results.json", "bench.json"),
    ),
    "claims": Command(
        words=("claims", *SMALL, "--claim", "ccst-dataset"),
        documents=("claims.json", "claims.md"),
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended: its exit code (negative: the signal), seconds, operations on files, and last line."""

    code: int
    seconds: float
    operations: int
    line: str


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A killed command and the same command after it; `outcome` is equal, typed or different."""

    command: str
    kind: str
    moment: float
    killed: bool
    files: int
    outcome: str
    line: str
    first_seconds: float
    second_seconds: float


@dataclass(frozen=True, kw_only=True)
class Place:
    """The folders of one trial."""

    root: Path

    @property
    def out(self) -> Path:
        """The command's --out."""
        return self.root / "results" / "out"

    @property
    def synced(self) -> Path:
        """Where the process notes what it has synced."""
        return self.root / "synced.jsonl"

    def files(self) -> list[Path]:
        """All files that the command has written so far, in the cache and beside its output."""
        return [path for name in ("cache", "results") for path in (self.root / name).rglob("*") if path.is_file()]


def begun(command: Command, place: Place, *, stop_before: int = 0, noting: bool = False) -> int:
    """Begin a command in a fork and give its number; it is killed before operation `stop_before` on a file of `place`.

    With `noting`, it notes what it syncs."""
    number = os.fork()
    if number:
        return number
    code = 70
    try:
        (place.root / "results").mkdir(parents=True, exist_ok=True)
        os.environ["FDGSEC_CACHE"] = str(place.root / "cache")
        said = os.open(place.root / "said.txt", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(said, 1)
        os.dup2(said, 2)
        counted = _count_operations(place, stop_before)
        if noting:
            note_syncs(place.synced)
        code = fdgsec([*command.words, "--out", str(place.out)])
        (place.root / "operations.txt").write_text(str(counted()))
        sys.stderr.flush()
    finally:
        os._exit(code)


def ended(number: int, place: Place, *, after: float | None = None) -> Ended:
    """Wait for a command of `begun`, and kill it where it still runs `after` seconds."""
    started = time.monotonic()
    while True:
        done, status = os.waitpid(number, os.WNOHANG)
        seconds = time.monotonic() - started
        if done:
            break
        if after is not None and seconds >= after:
            os.kill(number, signal.SIGKILL)
            _, status = os.waitpid(number, 0)
            break
        time.sleep(0.002)
    counted, said = place.root / "operations.txt", place.root / "said.txt"
    lines = said.read_text(errors="replace").split("\n") if said.exists() else []
    return Ended(
        code=os.waitstatus_to_exitcode(status), seconds=seconds,
        operations=int(counted.read_text()) if counted.exists() else 0,
        line=next((line for line in reversed(lines) if line.startswith("fdgsec: ")), ""),
    )  # fmt: skip


def _count_operations(place: Place, stop_before: int) -> Callable[[], int]:
    """Count the operations on files below `place`, and kill this process before one of them."""
    counted, root = 0, str(place.root)
    known = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"}

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal counted
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if (event in known or writes) and root in str(arguments[0]):
            counted += 1
            if counted == stop_before:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return lambda: counted


def note_syncs(file: Path) -> None:
    """Note device, inode and time of change of everything that is synced from now on."""
    sync, log = os.fsync, os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def noting(handle: int) -> None:
        sync(handle)
        found = os.fstat(handle)
        os.write(log, f"{json.dumps([found.st_ino, found.st_mtime_ns, time.time_ns()])}\n".encode())

    os.fsync = noting  # type: ignore[assignment]


def lose_power(place: Place) -> int:
    """Empty the files whose content was not synced since it changed, and remove those whose folder was not synced since
    they got their name; give their number."""
    notes = place.synced.read_text().splitlines() if place.synced.exists() else []
    rows = [json.loads(line) for line in notes]
    contents, synced_at = {(inode, changed) for inode, changed, _ in rows}, {inode: at for inode, _, at in rows}
    lost = 0
    for path in place.files():
        found = path.stat()
        if synced_at.get(path.parent.stat().st_ino, 0) < found.st_ctime_ns and random.Random(str(path)).random() < 0.5:
            path.unlink()
        elif (found.st_ino, found.st_mtime_ns) not in contents:
            os.truncate(path, 0)
        else:
            continue
        lost += 1
    return lost


def documents(command: Command, out: Path) -> dict[str, object]:
    """The documents of a finished command but for seconds, date, command, and whether kept results were reused."""
    found: dict[str, object] = {}
    for name in command.documents:
        text = (out / name).read_text()
        found[name] = _without_seconds(json.loads(text)) if name.endswith(".json") else text
    return found


def _without_seconds(value: object) -> object:
    if isinstance(value, dict):
        kept = [key for key in value if "seconds" not in key and key not in ("date", "command", "reused")]
        return [(key, _without_seconds(value[key])) for key in kept]
    return [_without_seconds(each) for each in value] if isinstance(value, list) else value


def outcome(command: Command, place: Place, end: Ended, expected: object) -> str:
    """Whether a command that was given again reported what an undisturbed one does."""
    if end.code == 0:
        return "equal" if documents(command, place.out) == expected else "different"
    return "typed" if end.code in (1, 2, 3) and end.line and "defect" not in end.line else "different"


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """What a command reports, and how long and in how many operations on files."""

    expected: object
    seconds: float
    operations: int


def import_all() -> None:
    """Import what commands need, so that forks begin with their work."""
    import_module("matplotlib.pyplot")
    for package in ("attacks", "cli", "defenses", "experiments", "methods", "metrics", "nn", "threats"):
        found = import_module(f"fdgsec.{package}")
        for module in walk_packages(found.__path__, f"fdgsec.{package}."):
            if "flower" not in module.name and not module.name.endswith("__main__"):
                import_module(module.name)


def undisturbed(name: str, folder: Path) -> Undisturbed:
    """Run a command to its end. Raises RuntimeError where it fails."""
    command, place = COMMANDS[name], Place(root=folder / f"{name}-undisturbed")
    place.root.mkdir(parents=True)
    end = ended(begun(command, place), place)
    if end.code:
        raise RuntimeError(f"{name} ended with {end.code}: {end.line}")
    return Undisturbed(expected=documents(command, place.out), seconds=end.seconds, operations=end.operations)


def killed_and_given_again(name: str, kind: str, at: float, known: Undisturbed, folder: Path) -> Moment:
    """Kill a command at the share `at` of its time or of its operations, and give it again."""
    command, place = COMMANDS[name], Place(root=Path(tempfile.mkdtemp(dir=folder)))
    stop_before = 0 if kind == "time" else 1 + int(at * known.operations)
    number = begun(command, place, stop_before=stop_before, noting=kind == "power")
    first = ended(number, place, after=at * known.seconds if kind == "time" else None)
    files = len(place.files())
    if kind == "power":
        lose_power(place)
    second = ended(begun(command, place), place)
    said = outcome(command, place, second, known.expected)
    if said != "different":
        shutil.rmtree(place.root)
    return Moment(
        command=name, kind=kind, moment=at, killed=first.code == -signal.SIGKILL, files=files, outcome=said,
        line=second.line.replace(str(place.root), "PLACE"), first_seconds=first.seconds, second_seconds=second.seconds,
    )  # fmt: skip


def two_at_once(name: str, known: Undisturbed, folder: Path) -> Moment:
    """Begin a command twice at once on one folder: one of them is refused, the other reports what it always does."""
    command, place = COMMANDS[name], Place(root=Path(tempfile.mkdtemp(dir=folder)))
    numbers = [begun(command, place), begun(command, place)]
    ends = [ended(number, place) for number in numbers]
    codes = sorted(end.code for end in ends)
    said = outcome(command, place, Ended(code=0, seconds=0, operations=0, line=""), known.expected)
    if codes not in ([0, 1], [0, 0]):
        said = "different"
    return Moment(
        command=name, kind="pair", moment=0.0, killed=False, files=len(place.files()), outcome=said, line=str(codes),
        first_seconds=ends[0].seconds, second_seconds=ends[1].seconds,
    )  # fmt: skip


def matrix(moments: int, *, seed: int, names: Sequence[str], folder: Path, say: Callable[[str], None]) -> list[Moment]:
    """Kill each of the named commands in turn, `moments` times in all, and begin each twice at once."""
    import_all()
    draws, rows = random.Random(seed), list[Moment]()
    known = {name: undisturbed(name, folder) for name in names}
    for number in range(moments):
        name, kind = names[number % len(names)], ("time", "write", "power")[number // len(names) % 3]
        rows.append(killed_and_given_again(name, kind, draws.random(), known[name], folder))
        say(f"{number + 1}/{moments} {rows[-1]}")
    rows.extend(two_at_once(name, known[name], folder) for name in names)
    return rows


def counts(rows: Sequence[Moment]) -> dict[str, dict[str, int]]:
    """How many moments of each command and kind ended how."""
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        table = found.setdefault(f"{row.command} {row.kind}", {})
        table[row.outcome] = table.get(row.outcome, 0) + 1
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commands", default=",".join(COMMANDS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


def main() -> None:
    """Run the matrix and write its results."""
    given = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="fdgsec-crashes-"))
    rows = matrix(given.moments, seed=given.seed, names=given.commands.split(","), folder=folder, say=print)
    document = {
        "moments": given.moments, "seed": given.seed, "counts": counts(rows), "rows": [asdict(row) for row in rows],
        "environment": environment(),
    }  # fmt: skip
    write_atomic(given.out, json.dumps(document, indent=1) + "\n")
    print(json.dumps(document["counts"], indent=1))
    if not any(row.outcome == "different" for row in rows):
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

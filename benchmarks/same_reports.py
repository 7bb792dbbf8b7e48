"""Does a refactored tree still write the same reports? Twenty commands, run in two trees and compared number by number.

    cd BEFORE && python AFTER/benchmarks/same_reports.py run --out RESULTS/before
    cd AFTER && python benchmarks/same_reports.py run --out RESULTS/after [--renamed OLD=NEW ...]
    python benchmarks/same_reports.py compare RESULTS/before RESULTS/after [--renamed OLD=NEW ...]

The tree that is tested is the current directory, whatever is installed. `run` takes about ten minutes on two cores; it
skips what has finished, so an interrupted run goes on with the same command. It reads PACS where FDGSEC_DATA points to
it. Commands run on the CPU, with one thread per process and a cache of their own, so that the same code gives the same
bytes. `compare` prints a Markdown table and ends with 1 where anything differs.

Where the refactoring renamed an option or a word in the reports, `--renamed OLD=NEW` (repeatable) rewrites the command
lines of `run`, and the documents of BEFORE in `compare`."""

import argparse
import csv
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

LIMIT = 1200.0
"""Seconds that a command may take, many times what the slowest needs."""
PATIENCE = 120.0
"""Seconds that a server or a node may take to start, or to end."""
TAIL = 20  # lines of stderr that are kept
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, which the encoder `pixels` normalizes by

IGNORED: Mapping[str, str] = {
    "seconds": "a timing",
    "seconds_per_run": "a timing, in the tables of a bench",
    "reused": "whether the cache held the run; depends on which commands ran before",
    "environment": "versions, processor, and the hash of the code under test",
    "code_sha256": "that hash again, as the nodes of a federation tell it to the server",
    "versions": "that hash again, by which a sweep counts its points",
}
"""Keys that are left out of the comparison wherever they occur, each with the reason."""

RESUMED: Mapping[str, str] = {
    "points.json": "what a sweep goes on from; its numbers are in sweep.json",
    "results.json": "what a bench goes on from; its numbers are in bench.json",
}
"""Files that are left out: they name finished work by a hash of its settings, which a renamed option changes."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command line of fdgsec, without its `--out`.

    In `words`, @runs is the folder where each command's results go by name, @inputs that of the vectors for
    `--artifacts`. `needs` names a command that must have run before; with `nodes`, a federation of so many clients is
    up at @server, whose certificate is @ca."""

    name: str
    words: str
    needs: str = ""
    nodes: int = 0


SHAPES = "--dataset shapes --image-size 32 --backbone tiny"
PACS = "--dataset pacs --image-size 32 --backbone tiny"

COMMANDS = (
    Command(
        name="attack-pooled-styles",
        words=f"attack --target ccst-overall {SHAPES} --per-domain 210"
        " --attack membership --attack differencing --attack linkage --attack property-inference",
    ),
    Command(
        name="attack-single-styles",
        words=f"attack --target ccst-single {PACS} --per-domain 240"
        " --attack reidentification --attack membership --attack label-inference --attack domain-inference",
    ),
    Command(
        name="attack-by-a-client",
        words=f"attack --target ccst-single {SHAPES} --per-domain 210 --adversary client"
        " --attack inter-client --attack reidentification --attack membership",
    ),
    Command(
        name="attack-private-stablefdg",
        words=f"attack --target stablefdg {SHAPES} --per-domain 120 --defense private-styles:epsilon=8"
        " --attack membership --attack property-inference --attack linkage",
    ),
    Command(
        name="attack-noisy-fisc",
        words=f"attack --target fisc {SHAPES} --per-domain 210 --defense style-noise:p=0.1,scale=0.05"
        " --attack interpolation-leakage --attack linkage --set attacks.interpolation-leakage.simulations=200"
        " --set attacks.interpolation-leakage.kept=50 --set attacks.interpolation-leakage.federations=6"
        " --set attacks.interpolation-leakage.clients=5 --set attacks.interpolation-leakage.records=4",
    ),
    Command(
        name="attack-fedalign-simulated",
        words=f"attack --target fedalign {PACS} --per-domain 210 --rounds 1 --engine flower-sim"
        " --attack pool-exposure --attack reidentification",
    ),
    Command(
        name="attack-feddag",
        words=f"attack --target feddag {SHAPES} --per-domain 120 --rounds 1 --attack generator-leakage"
        " --set method.warm_up=0 --set attacks.generator-leakage.references=4"
        " --set attacks.generator-leakage.candidates=20",
    ),
    Command(
        name="attack-fedavg",
        words=f"attack --target fedavg {PACS} --per-domain 120 --rounds 1 --attack gradient-inversion"
        " --attack model-membership --set attacks.gradient-inversion.steps=20"
        " --set attacks.model-membership.references=4 --set attacks.model-membership.candidates=20",
    ),
    Command(
        name="attack-for-pictures",
        words=f"attack --target ccst-single {PACS} --per-domain 120 --attack style-inversion"
        " --attack optimisation-inversion"
        ' --set attacks.style-inversion.losses=["mse"] --set attacks.style-inversion.priors=["intra"]'
        " --set attacks.style-inversion.size=32 --set attacks.optimisation-inversion.steps=10",
    ),
    Command(
        name="attack-poisoning",
        words=f"attack --target ccst-overall {SHAPES} --per-domain 60 --rounds 1 --adversary client"
        " --defense guards:centre=median --attack poisoning --set attacks.poisoning.seeds=2"
        " --set attacks.poisoning.images=20 --set attacks.poisoning.hostile=[1,10]",
    ),
    Command(
        name="attack-artifacts",
        words="attack --artifacts @inputs/styles.csv --truth @inputs/truth.csv --encoder pixels --dataset shapes"
        " --per-domain 120 --image-size 16 --attack reidentification --attack membership --attack label-inference",
    ),
    Command(
        name="train-ccst",
        words=f"train --method ccst {PACS} --per-domain 210 --rounds 2 --set method.style=single --roles aside"
        " --keep models=last --with mixstyle",
    ),
    Command(
        name="attack-run",
        words="attack --run @runs/train-ccst --attack reidentification --attack membership --attack domain-inference",
        needs="train-ccst",
    ),
    Command(
        name="train-private",
        words=f"train --method feddag-dp {SHAPES} --per-domain 60 --rounds 2 --seeds 2 --norm group"
        " --defense dp-sgd:epsilon=8 --defense private-scores:epsilon=4 --set method.warm_up=0",
    ),
    Command(
        name="train-simulated",
        words=f"train --method fedavg {SHAPES} --per-domain 120 --rounds 2 --engine flower-sim"
        " --defense secure-aggregation --adapt tent",
    ),
    Command(
        name="train-deployed",
        words=f"train --method stablefdg {SHAPES} --per-domain 48 --rounds 1 --engine flower"
        " --federation @server --ca @ca --partition dirichlet --heterogeneity 10 --clients 2"
        " --defense private-styles:epsilon=8",
        nodes=2,
    ),
    Command(
        name="sweep",
        words=f"sweep --target ccst-single {SHAPES} --per-domain 120 --defense k-anonymous:k=2 --defense quantise"
        " --over bits=2,6 --accuracy-at none --attack reidentification --attack membership",
    ),
    Command(
        name="bench",
        words=f"bench {PACS} --protocol quick --methods fedavg,fisc,fedalign,feddag --domains sketch,photo --seeds 1"
        " --rounds 1 --per-class 12 --clients 6 --no-pretrained",
    ),
    Command(
        name="audit-styles",
        words=f"audit --target ccst-overall {PACS} --per-domain 60 --defense private-styles:epsilon=4"
        " --runs 300 --repeats 3",
    ),
    Command(
        name="audit-training",
        words=f"audit --target fedavg {SHAPES} --per-domain 60 --norm group --rounds 1 --defense dp-sgd:epsilon=4"
        " --canaries 256 --repeats 2",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a command: the command line, its exit code, its seconds and the last lines of its stderr."""

    name: str
    words: str
    exit_code: int
    seconds: float
    stderr: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Results:
    """The folder of one tree's results: each command's outcome and the folder that it wrote."""

    folder: Path

    def documents_of(self, name: str) -> Path:
        """What the command wrote."""
        return self.folder / "runs" / name

    def outcome_of(self, name: str) -> Path:
        """Where the command's outcome is kept once it has ended."""
        return self.folder / "outcomes" / f"{name}.json"

    def outcome(self, name: str) -> Outcome | None:
        """Read a command's outcome, None where it has not ended."""
        path = self.outcome_of(name)
        return Outcome(**json.loads(path.read_text())) if path.exists() else None


@dataclass(frozen=True, kw_only=True)
class Compared:
    """How a command's documents compare: their number, that of the numbers in them, and every difference."""

    name: str
    documents: int
    numbers: int
    differences: Sequence[str]

    @property
    def row(self) -> str:
        """A line of the Markdown table."""
        first, *others = [*self.differences] or ["equal"]
        more = f" (and {len(others)} more)" if others else ""
        return f"| {self.name} | {self.documents} | {self.numbers} | {first}{more} |"


def main() -> int:
    """Run the commands, or compare what two trees wrote."""
    given = arguments()
    renamed = [tuple(pair.split("=", 1)) for pair in given.renamed]
    chosen = [command for command in COMMANDS if not given.only or command.name in given.only]
    if given.verb == "run":
        return run(Results(folder=given.out.resolve()), chosen, renamed)
    before, after = Results(folder=given.before.resolve()), Results(folder=given.after.resolve())
    return compare(before, after, chosen, renamed)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    runner = verbs.add_parser("run", help="run the commands in the current directory's tree")
    runner.add_argument("--out", type=Path, required=True, help="folder for documents, outcomes and the cache")
    comparer = verbs.add_parser("compare", help="compare what two trees wrote")
    comparer.add_argument("before", type=Path)
    comparer.add_argument("after", type=Path)
    names = [command.name for command in COMMANDS]
    for verb in (runner, comparer):
        verb.add_argument(
            "--only", action="append", choices=names, metavar="NAME", help=f"repeatable: {', '.join(names)}"
        )
        verb.add_argument("--renamed", action="append", default=[], metavar="OLD=NEW", help="repeatable")
    given = parser.parse_args()
    if any("=" not in pair for pair in given.renamed):
        parser.error("--renamed expects OLD=NEW")
    return given


def replaced(text: str, pairs: Sequence[tuple[str, ...]]) -> str:
    """Replace every old word by its new one."""
    for old, new in pairs:
        text = text.replace(old, new)
    return text


# --- run


def run(results: Results, chosen: Sequence[Command], renamed: Sequence[tuple[str, ...]]) -> int:
    """Run what has not succeeded yet, and say how each command ended; 1 where one failed."""
    environment = surroundings(results.folder)
    write_vectors(results.folder / "inputs")
    check_tree(environment, elsewhere=results.folder)
    failed = False
    for command in needed(chosen):
        outcome = results.outcome(command.name)
        if outcome is None or outcome.exit_code != 0:
            outcome = finish(command, replaced(command.words, renamed), results, environment)
        failed |= outcome.exit_code != 0
        print(f"{command.name}: exit code {outcome.exit_code} after {outcome.seconds:.0f} s", flush=True)
        if outcome.exit_code != 0:
            print("\n".join(outcome.stderr), flush=True)
    return int(failed)


def needed(chosen: Sequence[Command]) -> list[Command]:
    """The chosen commands and those that they need, in the order of the list."""
    names = {name for command in chosen for name in (command.name, command.needs)}
    return [command for command in COMMANDS if command.name in names]


def surroundings(folder: Path) -> dict[str, str]:
    """The environment of every process: the current directory's tree first, a cache of its own, one thread, no GPU."""
    paths = [str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ, "PYTHONPATH": os.pathsep.join(paths), "FDGSEC_CACHE": str(folder / "cache"),
        "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip


def check_tree(environment: Mapping[str, str], *, elsewhere: Path) -> None:
    """Raise SystemExit where a process that starts elsewhere imports another fdgsec than the current directory's."""
    asked = [sys.executable, "-c", "import fdgsec; print(fdgsec.__file__)"]
    found = subprocess.run(
        asked, cwd=elsewhere, env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(found).resolve().is_relative_to(Path.cwd().resolve()):
        raise SystemExit(f"would test {found}, which is not in the current directory.")


def finish(command: Command, words: str, results: Results, environment: Mapping[str, str]) -> Outcome:
    """Run a command from nothing to its end, with its federation where it has one, and keep the outcome."""
    out = results.documents_of(command.name)
    shutil.rmtree(out, ignore_errors=True)
    with ExitStack() as stack:
        places = {"@runs": str(out.parent), "@inputs": str(results.folder / "inputs")}
        if command.nodes:
            folder = results.folder / "federations" / command.name
            places |= stack.enter_context(federation(folder, command.nodes, environment))
        told = [replaced(word, list(places.items())) for word in words.split()]
        started = time.monotonic()
        done = subprocess.run(
            [*program(), *told, "--out", str(out)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    outcome = Outcome(
        name=command.name, words=words, exit_code=done.returncode, seconds=round(time.monotonic() - started, 1),
        stderr=done.stderr.splitlines()[-TAIL:],
    )  # fmt: skip
    path = results.outcome_of(command.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(outcome), indent=1) + "\n")
    return outcome


def program() -> list[str]:
    """How fdgsec is started."""
    return [sys.executable, "-m", "fdgsec.cli"]


@contextmanager
def federation(folder: Path, nodes: int, environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Serve at loopback with `nodes` clients that have joined; gives @server and @ca."""
    shutil.rmtree(folder, ignore_errors=True)
    keys, served = folder / "keys", folder / "served"
    keys.mkdir(parents=True)
    for number in range(nodes):
        subprocess.run(
            [*program(), "join", "--new-key", str(keys / f"node{number}")],
            env=environment,
            capture_output=True,
            check=True,
        )
    port = free_port()
    address, ca = f"127.0.0.1:{port}", served / "ca.crt"
    with ExitStack() as stack:
        server = ["serve", str(served), "--host", "127.0.0.1", "--port", str(port), "--allow", str(keys)]
        stack.enter_context(background(server, folder / "server.log", environment, ready="serving at"))
        for number in range(nodes):
            secure = ["--ca", str(ca), "--key", str(keys / f"node{number}"), "--reproducible"]
            place = ["--partition", str(number), "--of", str(nodes), "--state", str(folder / f"state{number}")]
            node = ["join", "--server", address, *secure, *place]
            stack.enter_context(background(node, folder / f"node{number}.log", environment, ready="has joined"))
        yield {"@server": address, "@ca": str(ca)}


@contextmanager
def background(words: Sequence[str], log: Path, environment: Mapping[str, str], *, ready: str) -> Iterator[None]:
    """Run fdgsec until the block ends, which begins once it has said `ready`."""
    with log.open("wb") as output:
        process = subprocess.Popen([*program(), *words], env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + PATIENCE
        while ready not in log.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{shlex.join(words)} did not say {ready!r}:\n{log.read_text()}")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE)


def free_port() -> int:
    """A port that nobody listens at just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_vectors(folder: Path, *, images: int = 40, side: int = 16) -> None:
    """Write pictures of colored noise, the styles of the first half as the encoder `pixels` has them, and the truth."""
    draws = np.random.default_rng(0)
    centers, spreads = draws.uniform(0.2, 0.8, (images, 1, 1, 3)), draws.uniform(0.02, 0.2, (images, 1, 1, 3))
    noise = draws.standard_normal((images, side, side, 3))
    pixels = ((centers + spreads * noise).clip(0, 1) * 255).round().astype(np.uint8)
    features = (pixels / 255 - np.array(MEAN)) / np.array(STD)
    spread = np.sqrt(features.var(axis=(1, 2), ddof=1) + 1e-5)
    styles = np.concatenate([features.mean(axis=(1, 2)), spread], axis=1)[: images // 2]
    folder.mkdir(parents=True, exist_ok=True)
    for number, picture in enumerate(pixels):
        Image.fromarray(picture).save(folder / f"{number:03d}.png")
    with (folder / "styles.csv").open("w", newline="") as file:
        csv.writer(file).writerows(styles.tolist())
    labels = ("disc", "square", "triangle", "star", "cross", "ring", "crescent")  # those of `shapes`
    with (folder / "truth.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["image", "label", "domain", "member"])
        table.writerows(
            [f"{number:03d}.png", labels[number % len(labels)], "photo", int(number < images // 2)]
            for number in range(images)
        )


# --- compare


def compare(before: Results, after: Results, chosen: Sequence[Command], renamed: Sequence[tuple[str, ...]]) -> int:
    """Print how every command's documents compare; 1 where one differs."""
    rows = [compared(command.name, before, after, renamed) for command in chosen]
    print("| command | documents | numbers compared | result |\n|---|---|---|---|")
    print("\n".join(row.row for row in rows))
    documents, numbers = sum(row.documents for row in rows), sum(row.numbers for row in rows)
    different = [row.name for row in rows if row.differences]
    print(f"\n{len(rows)} commands, {documents} documents, {numbers} numbers: ", end="")
    print(f"{len(different)} commands differ." if different else "all equal.")
    return int(bool(different))


def compared(name: str, before: Results, after: Results, renamed: Sequence[tuple[str, ...]]) -> Compared:
    """Compare a command's documents value by value; one that failed on either side is never equal."""
    old, new = before.outcome(name), after.outcome(name)
    if old is None or new is None:
        missing = " and ".join(side for side, outcome in (("before", old), ("after", new)) if outcome is None)
        return Compared(name=name, documents=0, numbers=0, differences=[f"not run: {missing}"])
    first, second = values(before, name, renamed), values(after, name, ())
    failed = old.exit_code != 0 or new.exit_code != 0
    differences = [f"failed: exit code {old.exit_code}, now {new.exit_code}"] if failed else []
    for place in dict.fromkeys([*first, *second]):
        was, now = (side.get(place, "missing") for side in (first, second))
        if was != now:
            differences.append(f"{place}: {shortened(was)}, now {shortened(now)}")
    documents = {place.partition(":")[0] for place in first}
    numbers = sum(text[0] in "-0123456789" for text in first.values())
    return Compared(name=name, documents=len(documents), numbers=numbers, differences=differences)


def shortened(text: str, most: int = 60) -> str:
    """A value as it fits into a table."""
    return text.replace("|", "\\|") if len(text) <= most else shortened(f"{text[: most - 3]}...")


def values(results: Results, name: str, renamed: Sequence[tuple[str, ...]]) -> dict[str, str]:
    """Every value of every document that the command wrote, as JSON, by document and place."""
    found: dict[str, str] = {}
    folder = results.documents_of(name)
    for path in sorted(folder.rglob("*.json")):
        if path.name not in RESUMED:
            text = path.read_text().replace(str(results.folder), "RESULTS")
            document = json.loads(replaced(text, renamed))
            file = replaced(str(path.relative_to(folder)), renamed)
            found |= {f"{file}:{place}": value for place, value in leaves(document)}
    return found


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Every scalar below a JSON value, and every empty list or object, with its place; without IGNORED."""
    if not isinstance(value, dict | list) or not value:
        yield place, json.dumps(value)
        return
    children: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in children:
        if key not in IGNORED:
            yield from leaves(child, f"{place}/{key}")


if __name__ == "__main__":
    raise SystemExit(main())

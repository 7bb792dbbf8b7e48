"""Keeps the finished runs of the claims in one file, so that another checkout goes on with those that are missing.

python -m benchmarks.claims_runs keep OUT benchmarks/results/claims-registration-3/runs.jsonl.xz
python -m benchmarks.claims_runs restore benchmarks/results/claims-registration-3/runs.jsonl.xz OUT

OUT is the folder of `fdgsec claims --out`. A line of the file has a run's name, its stamp and its report; the stamp has
the report's hash, and the hash of all that decided it: settings, images, weights, registration, code, versions and
processor. `fdgsec claims` uses a restored run if it would stamp it alike, and makes every other one."""

import argparse
import hashlib
import json
import lzma
import re
from collections.abc import Iterator
from pathlib import Path

from fdgsec.runtime.cache_files import write_atomic
from fdgsec.runtime.checked_files import check_sums, write_sums
from fdgsec.runtime.errors import DataError, UsageError
from fdgsec.runtime.untrusted_text import parse_json_object

NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
LARGEST = 2**30
"""Bytes of the unpacked file."""


def kept(out: Path) -> Iterator[dict[str, str]]:
    """The finished runs under `out`, by name. Raises DataError for one whose files were altered."""
    for stamp in sorted((out / "runs").glob("*.key")):
        folder = stamp.with_suffix("")
        if (folder / "report.json").is_file():
            check_sums(folder)
            yield _checked(
                {
                    "run": folder.name,
                    "stamp": stamp.read_text(),
                    "report": (folder / "report.json").read_bytes().decode(),
                }
            )


def keep(out: Path, file: Path) -> int:
    """Write the finished runs under `out` to `file`; equal runs give equal bytes. Returns how many there are."""
    lines = [json.dumps(run, sort_keys=True) + "\n" for run in kept(out)]
    write_atomic(file, lzma.compress("".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME))
    return len(lines)


def restore(file: Path, out: Path) -> int:
    """Write the runs of `file` that are not under `out`. Returns how many were written.

    Raises UsageError for a file that `keep` did not write, DataError for a report that does not fit its stamp."""
    count = 0
    for run in _lines(file):
        folder = out / "runs" / run["run"]
        if (folder.parent / f"{folder.name}.key").exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "report.json", run["report"])
        write_sums(folder)
        write_atomic(folder.parent / f"{folder.name}.key", run["stamp"])
        count += 1
    return count


def _lines(file: Path) -> list[dict[str, str]]:
    try:
        unpacker = lzma.LZMADecompressor()
        text = unpacker.decompress(file.read_bytes(), max_length=LARGEST).decode()
    except (lzma.LZMAError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} holds no runs of the claims: {error}.") from error
    if not unpacker.eof or unpacker.unused_data:
        raise UsageError(f"{file} is cut short, larger than {LARGEST:,} bytes, or goes on after its end.")
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        run = parse_json_object(line, source=f"{file}, line {number}")
        if set(run) != {"run", "stamp", "report"} or not all(isinstance(value, str) for value in run.values()):
            raise UsageError(f"{file}, line {number}, is no run of the claims.")
        found.append(_checked(run))
    return found


def _checked(run: dict[str, str]) -> dict[str, str]:
    """The run, whose report fits its stamp. Raises DataError."""
    name = run["run"]
    if not NAME.fullmatch(name):
        raise DataError(f"{name[:80]!r} is no name of a run.")
    if run["stamp"].split(" ")[-1] != hashlib.sha256(run["report"].encode(errors="surrogatepass")).hexdigest():
        raise DataError(f"the report of {name} is not the one that was stamped.")
    return run


def main() -> None:
    """Keep or restore."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["keep", "restore"])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    given = parser.parse_args()
    work = keep if given.verb == "keep" else restore
    print(f"{work(given.source, given.target)} runs: {given.source} -> {given.target}")


if __name__ == "__main__":
    main()

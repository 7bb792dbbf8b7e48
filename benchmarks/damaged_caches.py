"""Damage every kind of cached file of a small run, byte by byte, and count what is read back all the same.

At each of POSITIONS places, spread over the file, one bit is flipped, and once more the file is cut there. A *silent
difference* is a damaged entry that is used: each must be a miss, which fdgsec says and computes anew.

    python -m benchmarks.damaged_caches --write          # the table of docs/testing.md"""

import argparse
import os
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import BytesIO, StringIO
from pathlib import Path

import torch
from PIL import Image

from benchmarks.written_tables import write_table
from fdgsec.data.catalog import load_dataset
from fdgsec.data.image_sources import ImageFile, decode, open_source
from fdgsec.experiments.setup.run_federation import observe
from fdgsec.federation.method import Client
from fdgsec.federation.run_folder import load_run, save_run, stored_run
from fdgsec.methods.ccst import CCST
from fdgsec.metrics.feature_extraction import extract_features, feature_statistics
from fdgsec.metrics.feature_extractors import EncoderExtractor
from fdgsec.nn.styles.encoders import load_encoder
from fdgsec.nn.styles.image_styles import forget_encoders, prepare_statistics
from fdgsec.runtime.cache_files import cache_root

POSITIONS = 100
MISS = "it is computed anew"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of cached file: where it is, and how an entry is read (which may compute it anew)."""

    name: str
    path: Path
    read: Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Row:
    """What became of one kind's damaged files."""

    name: str
    size: int
    damaged: int
    said: int
    silent: int

    def line(self) -> str:
        """The row of the table."""
        return f"| {self.name} | {self.size:,} | {self.damaged} | {self.said} | {self.silent} |"


HEAD = "| cached file | bytes | damaged inputs | misses that were said | silent differences |\n|---|---|---|---|---|"


def kinds(folder: Path) -> Sequence[Kind]:
    """Make a small run's cache (shapes, three clients), and give a file of every kind in it."""
    images = load_dataset("shapes", data_root=None, image_size=16, per_domain=14, seed=0)
    extractor = EncoderExtractor(load_encoder("pixels"))
    pixels = _pixels(folder / "images.zip")
    statistics = _made(lambda: _statistics(images))
    extracted, gaussian = (
        _made(lambda: extract_features(extractor, images)), _made(lambda: feature_statistics(extractor, images)),
    )  # fmt: skip
    decoded = _made(pixels)
    clients = [Client(name=f"client:{n}", data=images.of_domain(n)) for n in range(3)]
    seen = observe(CCST(encoder="pixels"), clients, seed=0, name="run")
    run = stored_run("0" * 64)
    states = {name: {"rows": torch.arange(4)} for name in ("client:0", "client:1")}
    save_run(run, seen.transcript, states, {"accuracy": None, "guarantees": [{"epsilon": 8.0}]})
    files = {
        "facts": run / "facts.json", "transcript": run / "transcript.jsonl", "list of hashes": run / "SHA256SUMS",
        "payload": min((run / "payloads").iterdir()), "client state": run / "states" / "client:0.safetensors",
    }  # fmt: skip
    return (
        Kind(name="style statistics", path=statistics, read=lambda: _statistics(images)),
        Kind(name="extracted features", path=extracted, read=lambda: extract_features(extractor, images)),
        Kind(name="feature mean and scatter", path=gaussian, read=lambda: feature_statistics(extractor, images)),
        Kind(name="decoded pixels", path=decoded, read=pixels),
        *(Kind(name=f"run: {name}", path=path, read=lambda: load_run(run)) for name, path in files.items()),
    )


def _statistics(images: object) -> object:
    forget_encoders()
    return prepare_statistics("pixels", images, reuse=True)  # type: ignore[arg-type]


def _made(work: Callable[[], object]) -> Path:
    """The one file that `work` adds to the cache."""
    before = set(cache_root().rglob("*"))
    work()
    (path,) = (path for path in set(cache_root().rglob("*")) - before if path.is_file() and path.parent != cache_root())
    return path


def _pixels(path: Path) -> Callable[[], object]:
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(4):
            buffer = BytesIO()
            Image.new("RGB", (16, 16), (number * 60, 20, 90)).save(buffer, format="PNG")
            archive.writestr(f"{number}.png", buffer.getvalue())

    def read() -> object:
        with open_source(path) as source:
            files = [ImageFile(path=name, id=name, domain=0, label=0, size=size) for name, size in source.files.items()]
            return decode(source, files, image_size=16, memory_budget=0)

    return read


def damage(kind: Kind, *, positions: int = POSITIONS) -> Row:
    """Flip a bit, and cut the file, at `positions` places; the entry is restored before each."""
    whole = kind.path.read_bytes()
    places = sorted({number * len(whole) // positions for number in range(positions)})
    damaged = [(place, bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :]) for place in places]
    damaged += [(place, b"") for place in places]
    said = 0
    for place, rest in damaged:
        kind.path.write_bytes(whole[:place] + rest)
        heard = StringIO()
        with redirect_stderr(heard):
            kind.read()
        said += heard.getvalue().count(MISS) == 1
    kind.path.write_bytes(whole)
    return Row(name=kind.name, size=len(whole), damaged=len(damaged), said=said, silent=len(damaged) - said)


def main(given: Sequence[str] | None = None) -> None:
    """Damage all kinds, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.damaged_caches", description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the table into docs/testing.md")
    options = parser.parse_args(given)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FDGSEC_CACHE"] = str(Path(folder) / "cache")
        rows = [damage(kind) for kind in kinds(Path(folder))]
    table = "\n".join([HEAD, *(row.line() for row in rows)])
    print(table)
    if options.write:
        write_table("testing.md", "damaged caches", table)
    if any(row.silent for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()

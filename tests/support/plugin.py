"""An installed package for a test: its entry points, in a folder at the head of the import path."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def installed(folder: Path, points: Mapping[str, Mapping[str, str]], *, name: str) -> Iterator[None]:
    """Have the modules in `folder` stand behind `points`, a table of names and places for each group."""
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = []
    for group, entries in points.items():
        lines += [f"[fdgsec.{group}]", *(f"{known} = {place}" for known, place in entries.items())]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield

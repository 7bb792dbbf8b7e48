"""An installed package for a test: a module and its entry points, in a folder at the head of the import path."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def installed(folder: Path, code: str, points: Mapping[str, Mapping[str, str]], *, module: str) -> Iterator[None]:
    """Have `module` hold `code` and stand behind `points`, a table of names and attributes for each group."""
    (folder / f"{module}.py").write_text(code)
    about = folder / f"{module}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    lines = []
    for group, entries in points.items():
        lines += [f"[fdgsec.{group}]", *(f"{name} = {module}:{attribute}" for name, attribute in entries.items())]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield
    sys.modules.pop(module, None)

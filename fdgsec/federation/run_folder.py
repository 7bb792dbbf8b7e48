"""The folder of a run: written completely or not at all, and found again by a hash of its settings."""

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from fdgsec.federation.method import State
from fdgsec.federation.wire import Transcript
from fdgsec.nn.training.precision import capabilities, table_rows
from fdgsec.runtime.cache_files import cache_root, draft_of
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.invocation import command_line
from fdgsec.runtime.source_hash import source_sha256
from fdgsec.runtime.version import __version__

MARKS = ("report.json", "transcript.jsonl", "sweep.json", "audit.json", "unfinished/run.json")
"""Files that mark a folder as written by fdgsec, which may then replace it."""
VERSIONED = ("torchvision", "numpy", "scipy", "scikit-learn")
"""Packages beside torch whose versions decide numbers: transforms, random draws, tests and fits."""


def code_sha256() -> str:
    """Hash fdgsec's own source files: a run is reused only by the code that made it."""
    return source_sha256("fdgsec")


def environment() -> dict[str, object]:
    """Describe when, how and on what a run was made: date, command, versions, threads, processor."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command_line(),
        "fdgsec": __version__,
        "code_sha256": code_sha256(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: version(name) for name in VERSIONED},
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": str(capabilities().get("cpu_name", "")),
        "precision": table_rows(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count() or 0,
        "cuda": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
    }


def run_key(*parts: str) -> str:
    """Name a stored run by a hash of settings, data, weights, number format and code."""
    return hashlib.sha256("\n".join([*parts, table_rows(), code_sha256(), torch.__version__]).encode()).hexdigest()


def stored_run(key: str) -> Path:
    """Give the folder of the run called `key`, whether it exists or not."""
    return cache_root() / "runs" / key


def save_run(folder: Path, transcript: Transcript, states: Mapping[str, State], facts: Mapping[str, object]) -> None:
    """Store a transcript, the clients' states and plain facts under `folder`, completely or not at all."""
    with new_folder(folder, private=True) as draft:
        transcript.save(draft)
        (draft / "states").mkdir()
        for client, state in states.items():
            save_file(
                {name: value.contiguous() for name, value in state.items()}, draft / "states" / f"{client}.safetensors"
            )
        (draft / "facts.json").write_text(json.dumps(dict(facts)))


def load_run(folder: Path) -> tuple[Transcript, dict[str, State], dict[str, object]]:
    """Read a stored run back. Raises ArtifactError where it was altered."""
    states: dict[str, State] = {
        path.name.removesuffix(".safetensors"): load_file(path) for path in sorted((folder / "states").iterdir())
    }
    return Transcript.load(folder), states, json.loads((folder / "facts.json").read_text())


@contextmanager
def new_folder(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Yield a draft folder; it replaces `path` on success and is deleted on failure.

    Others may read it as far as the umask allows, unless it is `private`.
    An existing `path` is replaced only if it is empty or was written by fdgsec (it holds one of MARKS)."""
    check_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = draft_of(path)
    draft.mkdir(mode=0o700 if private else 0o777)
    try:
        yield draft
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    if path.exists():
        shutil.rmtree(path)
    draft.rename(path)


def check_replaceable(path: Path) -> None:
    """Raise UsageError where writing a run to `path` would destroy something that fdgsec did not write."""
    if path.is_file():
        raise UsageError(f"--out {path} is a file; name a folder.")
    if path.is_dir() and any(path.iterdir()) and not any((path / mark).exists() for mark in MARKS):
        raise UsageError(f"--out {path} holds files that fdgsec did not write; name a new or empty folder.")

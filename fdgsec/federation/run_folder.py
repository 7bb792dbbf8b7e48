"""The folder of a run: written completely or not at all, and found again by a hash of its settings."""

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file

from fdgsec.federation.method import State
from fdgsec.federation.wire import Transcript
from fdgsec.nn.training.precision import capabilities, table_rows
from fdgsec.runtime.cache_files import cache_root, draft_of
from fdgsec.runtime.checked_files import recalled_folder, remember_folder
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.source_hash import source_sha256
from fdgsec.runtime.tensor_files import read_safetensors
from fdgsec.runtime.untrusted_text import read_json_object
from fdgsec.runtime.version import __version__

MARKS = ("report.json", "transcript.jsonl", "sweep.json", "audit.json")
"""Files that mark a folder as written by fdgsec, which may then replace it."""


def code_sha256() -> str:
    """Hash fdgsec's own source files: a run is reused only by the code that made it."""
    return source_sha256("fdgsec")


def environment() -> dict[str, object]:
    """Describe the software and hardware of a run: versions, threads, processor."""
    return {
        "fdgsec": __version__,
        "code_sha256": code_sha256(),
        "python": platform.python_version(),
        "torch": torch.__version__,
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
    """Store a transcript, the clients' states and plain facts under `folder`, completely or not at all.

    The folder is sealed under its own name, the key of the run."""
    if folder.exists():  # fresh, or damaged so that nothing marks it as fdgsec's any more
        shutil.rmtree(folder)
    with new_folder(folder, private=True) as draft:
        transcript.save(draft)
        (draft / "states").mkdir()
        for client, state in states.items():
            save_file(
                {name: value.contiguous() for name, value in state.items()}, draft / "states" / f"{client}.safetensors"
            )
        (draft / "facts.json").write_text(json.dumps(dict(facts)))
        remember_folder(draft, key=folder.name)


StoredRun = tuple[Transcript, dict[str, State], dict[str, object]]


def load_run(folder: Path) -> StoredRun | None:
    """Read a stored run back; None where there is none, or none that can be trusted, which is said on stderr."""
    return recalled_folder(folder, key=folder.name, read=_read_run)


def _read_run(folder: Path) -> StoredRun:
    states: dict[str, State] = {
        path.name.removesuffix(".safetensors"): read_safetensors(path.read_bytes(), source=str(path))[0]
        for path in sorted((folder / "states").iterdir())
    }
    return Transcript.load(folder), states, read_json_object(folder / "facts.json")


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

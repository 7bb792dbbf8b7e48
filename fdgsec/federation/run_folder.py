"""The folder of a run: written completely or not at all, and found again by a hash of its settings."""

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file

from fdgsec.federation.method import State
from fdgsec.federation.wire import Transcript
from fdgsec.nn.training.precision import capabilities, table_rows
from fdgsec.runtime.cache_files import cache_root, collect_drafts, draft_folder, exchange, sync, sync_tree
from fdgsec.runtime.checked_files import SUMS, recalled_folder, remember_folder, unlisted, write_sums
from fdgsec.runtime.disk_room import ROOM, check_room
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.file_locks import locked
from fdgsec.runtime.invocation import command_line
from fdgsec.runtime.source_hash import source_sha256
from fdgsec.runtime.tensor_files import read_safetensors
from fdgsec.runtime.untrusted_text import read_json_object
from fdgsec.runtime.version import __version__

Kind = Literal["attack", "training", "report", "audit", "comparison"]
KINDS: Mapping[Kind, str] = {
    "attack": "a run of attacks", "training": "a training", "report": "a saved report", "audit": "an audit",
    "comparison": "a comparison",
}  # fmt: skip
MARKS: Mapping[str, Kind] = {
    "curve.json": "training", "report.json": "report", "audit.json": "audit", "comparison.json": "comparison",
}  # fmt: skip
"""The file by which a folder is known, in this order; a report beside a transcript is that of a run of attacks."""
OF_FILE_MANAGERS = (".DS_Store", "Thumbs.db", "desktop.ini")
RESUMED = "unfinished/"
"""Where a training keeps its rounds in the folder that will hold the run (fdgsec.federation.checkpoints)."""
VERSIONED = ("torchvision", "numpy", "scipy", "scikit-learn")
"""Packages beside torch whose versions decide numbers: transforms, random draws, tests and fits."""


def code_sha256() -> str:
    """Hash fdgsec's own source files: a run is reused only by the code that made it."""
    return source_sha256("fdgsec")


def environment() -> dict[str, object]:
    """Describe when, how and on what a run was made: date, command, versions, threads, processor."""
    return {"date": datetime.now(UTC).isoformat(timespec="seconds"), "command": command_line(), **conditions()}


def conditions() -> dict[str, object]:
    """Describe what a run's numbers may depend on beside its settings: versions, threads, processor."""
    return {
        "fdgsec": __version__,
        "code_sha256": code_sha256(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: _version(name) for name in VERSIONED},
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": str(capabilities().get("cpu_name", "")),
        "precision": table_rows(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count() or 0,
        "cuda": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
    }


def _version(name: str) -> str | None:
    """The version of an installed package; None where it was put there without its metadata."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def run_key(*parts: str) -> str:
    """Name a stored run by a hash of settings, data, weights, code, and the versions and the machine that compute it.

    Threads are among the settings; how many cores there are decides no number."""
    machine = {name: value for name, value in conditions().items() if name not in ("threads", "cores")}
    return hashlib.sha256("\n".join([*parts, json.dumps(machine, sort_keys=True)]).encode()).hexdigest()


def stored_run(key: str) -> Path:
    """Give the folder of the run called `key`, whether it exists or not."""
    return cache_root() / "runs" / key


def unreported(folder: Path) -> Path:
    """The mark beside a stored run that no report has been made of it: who goes on with it does not reuse it."""
    return folder.parent / f"{folder.name}.unreported"


def save_run(folder: Path, transcript: Transcript, states: Mapping[str, State], facts: Mapping[str, object]) -> None:
    """Store a transcript, the clients' states and plain facts under `folder`, completely or not at all.

    The folder is sealed under its own name, the key of the run."""
    if folder.exists():  # damaged, or it would have been used
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
def new_folder(path: Path, kind: Kind = "attack", *, private: bool = False) -> Iterator[Path]:
    """Yield a draft folder; it takes the place of `path` in one step on success and is deleted on failure.

    Its content is on the disk before it does, and listed in its SHA256SUMS unless it is `private`; others may then read
    it as far as the umask allows. An existing `path` is replaced only where fdgsec wrote all that is in it, and it is
    of the same `kind`. Raises UsageError for others, InUseError where another process writes it."""
    path = place_of(path)
    if not private:
        _check_ours(path, kind)
    with locked(path, what="the folder"):
        _recover(path, kind, private=private)
        collect_drafts(path)
        with draft_folder(path, private=private) as draft:
            yield draft
            if not private:
                write_sums(draft)
            sync_tree(draft)
            _put_in_place(draft, path)
            sync(path.parent)


def _put_in_place(draft: Path, path: Path) -> None:
    """Give `draft` the name `path`, and delete what had it before."""
    if not path.exists():
        draft.rename(path)
    elif exchange(draft, path):
        shutil.rmtree(draft)
    else:
        path.rename(_previous(path))
        draft.rename(path)
        shutil.rmtree(_previous(path))


def _recover(path: Path, kind: Kind, *, private: bool) -> None:
    """Put back what a process that was killed between two renames had moved aside."""
    aside = _previous(path)
    if aside.exists():
        if not private:
            _check_ours(aside, kind)
        if path.exists():
            shutil.rmtree(aside)
        else:
            aside.rename(path)


def _previous(path: Path) -> Path:
    return path.parent / f".{path.name}.previous"


@contextmanager
def reserved(out: Path | None, *, goes_on: Sequence[str] = ()) -> Iterator[None]:
    """Hold the folder `out` against other processes of fdgsec during the block, once it and the cache can be written.

    Raises NoRoomError where they cannot, InUseError where another process holds `out`, and what `check_goes_on`
    does."""
    check_room(cache_root(), needed=ROOM, option="FDGSEC_CACHE")
    if out is None:
        yield
        return
    out = place_of(out)
    check_room(out.parent, needed=ROOM, option="--out")
    check_goes_on(out, goes_on)
    with locked(out, what="the folder"):
        yield


def check_goes_on(out: Path, names: Sequence[str]) -> None:
    """Raise UsageError for a folder that holds something, and none of the files that the same command leaves in it."""
    held = [path.name for path in out.iterdir() if path.name not in OF_FILE_MANAGERS] if names and out.is_dir() else []
    if held and not set(names) & set(held):
        raise UsageError(f"--out {out} holds other files ({min(held)}); name a new or empty folder.")


def check_replaceable(path: Path, kind: Kind = "attack") -> None:
    """Raise UsageError where writing to `path` would destroy something that fdgsec did not write, or that is of another
    kind.

    Raises NoRoomError where it, or the cache, cannot be written or has no room."""
    path = place_of(path)
    _check_ours(path, kind)
    check_room(cache_root(), needed=ROOM, option="FDGSEC_CACHE")
    check_room(path.parent, needed=ROOM, option="--out")


def place_of(path: str | Path) -> Path:
    """The folder that a path leads to: one for "out", for "missing/../out" and for a link to it."""
    return Path(os.path.realpath(path))


def _check_ours(path: Path, kind: Kind) -> None:
    """Raise UsageError for a file, and for a folder with anything that fdgsec did not write, or of another kind."""
    if path.is_file():
        raise UsageError(f"--out {path} is a file; name a folder.")
    if not path.is_dir() or not any(path.iterdir()):
        return
    found, resumed = _kind_of(path), (path / RESUMED / "run.json").is_file()
    allowed = (RESUMED,) if resumed else ()
    strange = [
        name for name in unlisted(path) if not name.startswith(allowed) and Path(name).name not in OF_FILE_MANAGERS
    ]
    if found is None or strange:
        named = f": {strange[0]}" if strange else ""
        raise UsageError(f"--out {path} holds files that fdgsec did not write{named}; name a new or empty folder.")
    if found != kind:
        raise UsageError(f"--out {path} holds {KINDS[found]}, which would be lost; name another folder.")


def _kind_of(path: Path) -> Kind | None:
    """What fdgsec wrote into a folder; None where it holds no list of files with a document of fdgsec's."""
    if not (path / SUMS).is_file():
        return "training" if (path / RESUMED / "run.json").is_file() else None
    for mark, kind in MARKS.items():
        if (path / mark).is_file() and mark not in unlisted(path):
            return "attack" if kind == "report" and (path / "transcript.jsonl").is_file() else kind
    return None

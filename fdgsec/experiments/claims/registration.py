"""Registrations: the ledger, rules, dataset, encoders and seeds of a run of the claims, fixed before it is made.

`fdgsec claims --register FILE` writes one; once FILE is committed, `fdgsec claims --registration FILE` runs exactly
that, refuses if the ledger or its rules have changed since, and names the commit in its result. The commit's date is
what shows that the ledger came before the numbers."""

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fdgsec.experiments.claims.catalogue import DECIDED_BY, ledger_sha256
from fdgsec.experiments.run_config import build
from fdgsec.federation.run_folder import code_sha256
from fdgsec.runtime.cache_files import write_atomic
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.untrusted_text import read_json_object

NO_CHECKOUT = "not in a checkout"
NOT_COMMITTED = "not committed"
SCHEMA = 2


@dataclass(frozen=True, kw_only=True)
class Registration:
    """What is fixed: `ledger_sha256` is the hash of the files in DECIDED_BY, `inputs` are those of images and weights,
    `settings` override the claims' own.

    `code_sha256` is that of all of fdgsec when it was registered; it may change, and the result says whether it did."""

    ledger_sha256: str
    code_sha256: str
    dataset: str
    profile: str
    encoders: tuple[str, ...]
    seeds: tuple[int, ...]
    claims: tuple[str, ...]
    inputs: Mapping[str, str]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def now(
        cls,
        *,
        dataset: str,
        profile: str,
        encoders: tuple[str, ...],
        seeds: tuple[int, ...],
        claims: tuple[str, ...],
        inputs: Mapping[str, str],
        settings: Mapping[str, Any],
    ) -> "Registration":
        """The registration of `claims` of the present ledger."""
        return cls(
            ledger_sha256=ledger_sha256(), code_sha256=code_sha256(), dataset=dataset, profile=profile,
            encoders=encoders, seeds=seeds, claims=claims, inputs=inputs, settings=settings,
        )  # fmt: skip


def write_registration(registration: Registration, path: Path) -> None:
    """Write a registration. Raises UsageError for a file that exists: what is registered is not changed."""
    if path.exists():
        raise UsageError(f"{path} is a registration already; register under another name.")
    document = {"schema": SCHEMA, "files": list(DECIDED_BY), **asdict(registration)}
    write_atomic(path, json.dumps(document, indent=1) + "\n")


def read_registration(path: Path) -> Registration:
    """Read a registration, and check that the ledger is still the registered one. Raises UsageError."""
    try:
        document = read_json_object(path, error=UsageError)
        found = build(
            Registration, {key: value for key, value in document.items() if key not in ("schema", "files")},
            where=str(path),
        )  # fmt: skip
    except UsageError as error:
        raise UsageError(f"{path} is no registration: {error}") from error
    if found.ledger_sha256 != ledger_sha256():
        raise UsageError(
            f"{', '.join(DECIDED_BY)} are not those registered in {path}: their hash is {ledger_sha256()[:16]}..., the "
            f"registered one {found.ledger_sha256[:16]}...; check out the registered ledger, or register this one."
        )
    return found


def commit_of(path: Path) -> str:
    """The commit that last changed `path`; NOT_COMMITTED if it differs from that, NO_CHECKOUT if there is none."""
    git = shutil.which("git")
    if git is None:
        return NO_CHECKOUT
    file = path.resolve()
    where = [git, "--literal-pathspecs", "-C", str(file.parent)]
    found = _said([*where, "log", "-1", "--format=%H", "--", file.name])
    if found is None:
        return NO_CHECKOUT
    commit = found.decode().strip()
    held = _said([*where, "show", f"{commit}:./{file.name}"]) if commit else None
    return commit if held == file.read_bytes() else NOT_COMMITTED


def _said(command: list[str]) -> bytes | None:
    """What a command prints; None where it fails."""
    done = subprocess.run(command, capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else None

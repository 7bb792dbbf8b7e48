"""A node's limits on its server: each step of a run once, within the announced run.

Guarantees count a run's releases. A server that asked twice for the same step would get the same noise on two models,
and so their difference without any. One that announced more rounds, or more participants who share the noise, would get
more than was accounted for. Therefore the node counts steps itself, in files, and does not rely on messages."""

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from fdgsec.federation.engines.state import NEVER, StateMark
from fdgsec.federation.method import Clock, Method, Step
from fdgsec.runtime.cache_files import sync
from fdgsec.runtime.errors import FdgsecError, UsageError
from fdgsec.runtime.secret_streams import KEY_BYTES, new_key

SECRET = "run.secret"
SETTINGS = "settings.sha256"
FROM_SEED = "run"
"""In place of a file with a key: the node's noise is drawn from the run's seed, which the server knows."""


class RefusedError(FdgsecError):
    """The server asked a node for something outside of the run (exit 1)."""


@dataclass(frozen=True, kw_only=True)
class StepLimits:
    """One client's limits in a run of `rounds` rounds with `clients` clients; `folder` is the node's, for this run."""

    folder: Path
    name: str
    method: Method
    rounds: int
    clients: int

    def admit(self, step: Step, clock: Clock) -> None:
        """Record `step` before it is done. Raises RefusedError where it was done already, or is not part of the run."""
        if clock.rounds != self.rounds or not 0 <= clock.round < max(self.rounds, 1):
            raise RefusedError(
                f"{self.name} was asked for round {clock.round} of {clock.rounds}; the run has {self.rounds} rounds."
            )
        known = {f"client:{number}" for number in range(self.clients)}
        named = set(clock.participants)
        if len(named) != len(clock.participants) or not {self.name} <= named <= known:
            raise RefusedError(f"{self.name} was told of participants that are not among the {self.clients} clients.")
        if not self._takes(step, clock.round):
            raise RefusedError(f"{self.name} was asked to {step} in round {clock.round}, which this run does not.")
        if self._mark("end").exists():
            raise RefusedError(f"{self.name} takes no further part in this run: an earlier step failed.")
        if not self._set(f"{step}.{clock.round}"):
            raise RefusedError(f"{self.name} was asked to {step} in round {clock.round} a second time.")

    def end(self) -> None:
        """Admit no further step of this run."""
        self._set("end")

    def _mark(self, name: str) -> Path:
        return self.folder / "done" / f"{self.name.replace(':', '-')}.{name}"

    def _set(self, name: str) -> bool:
        """Create a mark in one atomic operation, so that two messages at once get one answer; False where it exists.

        The disk holds it before the step is done, so that no failure of power lets a step be asked for again."""
        place = self._mark(name).parent
        if not place.exists():
            place.mkdir(parents=True, exist_ok=True)
            sync(place.parent)
        try:
            os.close(os.open(self._mark(name), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
        sync(place)
        return True

    def _takes(self, step: Step, number: int) -> bool:
        if step == "share":
            often = self.method.shares
            return self.method.asks_for_shares and (often == "every" or (often == "once" and number == 0))
        return self.rounds > 0 and (step == "fit" or self.method.reviews != "none")

    def veiled(self, mark: StateMark) -> StateMark:
        """Hide the content of a state's mark from the server: keep its version, and replace its hash by a keyed one.

        A plain hash would let the server test guesses of the client's data."""
        if mark == NEVER:
            return NEVER
        name = hmac.new(run_secret(self.folder), f"{self.name} {mark.sha256}".encode(), "sha256").hexdigest()
        return StateMark(version=mark.version, sha256=name)


def pin_settings(folder: Path, settings: str) -> None:
    """Hold a run to the settings of its first message: rounds, method and defenses are what noise is calibrated for.

    Raises RefusedError for any others."""
    path, told = folder / SETTINGS, hashlib.sha256(settings.encode()).hexdigest()
    if not path.exists():
        link_once(path, told)
    if path.read_text() != told:
        raise RefusedError("the server sent other settings than this run began with.")


def admit_run(folder: Path, most: int) -> None:
    """Count the run with files in `folder` against the `most` in which the node's owner lets it take part.

    Each run is a new release of the same images with new noise, so that epsilons add up, and an average over runs has
    less noise than each. Raises RefusedError beyond."""
    for number in range(most):
        place = folder.parent / "runs" / str(number)
        if not place.exists():
            link_once(place, folder.name)
        if place.read_text() == folder.name:
            return
    raise RefusedError(f"this node has taken part in {most} runs, and its owner allows no more.")


def run_secret(folder: Path) -> bytes:
    """The node's secret for the run with files in `folder`."""
    return key_in(folder / SECRET)


def key_in(path: Path) -> bytes:
    """The 32 bytes that a file of the node's owner has in hexadecimal, drawn the first time.

    Where several processes start at once, the first one to link its draw sets it for all. Raises UsageError for a file
    with anything else, or one that others can read."""
    if not path.exists():
        link_once(path, new_key().hex())
    try:
        key, mode = bytes.fromhex(path.read_text()), stat.S_IMODE(path.stat().st_mode)
    except (OSError, ValueError):
        key, mode = b"", 0
    if len(key) != KEY_BYTES:
        raise UsageError(f"{path} holds no key of {KEY_BYTES} bytes in hexadecimal; remove it to draw a new one.")
    if mode & 0o077:
        raise UsageError(f"others can read {path}; run: chmod 600 {path}")
    return key


def link_once(path: Path, content: str) -> None:
    """Create `path` with `content`, readable by its owner alone, unless another process does so first; synced."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    with contextlib.suppress(FileExistsError):
        os.link(draft, path)
    draft.unlink()
    sync(path.parent)


def noise_key(folder: Path, key: bytes) -> bytes:
    """Derive the key of a client's noise from the node's own `key` and the run's secret, so that no runs share noise.

    It is as hard to guess as the harder of the two."""
    return hmac.new(run_secret(folder), key, "sha256").digest()

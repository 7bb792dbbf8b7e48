"""A federation on Flower as a job: the input of the server app, its status file and its result.

A job is a folder on the server's machine. `job.json` describes the run; the server app updates `status.json` and writes
the result to `run/`. Flower's exit code is 0 even if the server app raised an error, so only the status is used."""

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from fdgsec.experiments.run_config import RunConfig, build
from fdgsec.experiments.setup.run_federation import FederationRun, RunRequest
from fdgsec.experiments.setup.run_inputs import blueprint_of
from fdgsec.experiments.train import MODEL
from fdgsec.federation.artifacts import ModelState, decode
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Method
from fdgsec.federation.wire import Transcript
from fdgsec.runtime.cache_files import sync_tree, write_atomic
from fdgsec.runtime.checked_files import check_sums, write_sums
from fdgsec.runtime.errors import DataError, FdgsecError, UsageError
from fdgsec.runtime.progress import Progressive, warn
from fdgsec.runtime.untrusted_text import parse_json_object, read_json, read_json_object

Purpose = Literal["train", "attack"]
"""The clients' images: all of the source domains (train), or only those with the federation role (attack)."""

STATUS, ORDER, RUN, FACTS, CURVE = "status.json", "job.json", "run", "facts.json", "curve.json"


class JobFailedError(FdgsecError):
    """A federation on Flower that failed; `exit_code` is that of its server app."""

    def __init__(self, text: str, exit_code: int = 1) -> None:
        """Keep the exit code beside the text."""
        super().__init__(text)
        self.exit_code = exit_code


@dataclass(frozen=True, kw_only=True)
class Job:
    """The input of a server app: the run's settings, the number of clients, quorum and timeouts.

    `quorum` is the share of clients that must answer a step, `timeout` how many seconds an answer may take, `wait` how
    long nodes may take to come online. `deployed` says that clients are not simulated."""

    config: RunConfig
    purpose: Purpose
    clients: int
    quorum: float = 1.0
    timeout: float = 600.0
    wait: float = 300.0
    deployed: bool = True

    def settings(self) -> str:
        """The settings that clients receive, as JSON, without the attacks."""
        told = replace(self.config, attacks=(), attack_options={}, adversary="server")
        return json.dumps({"purpose": self.purpose, "config": told.document()}, sort_keys=True)

    def write(self, folder: Path) -> None:
        """Write job.json."""
        document = {
            **{name: getattr(self, name) for name in self.__dataclass_fields__},
            "config": self.config.document(),
        }
        write_atomic(folder / ORDER, json.dumps(document, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> "Job":
        """Read job.json. Raises UsageError."""
        told = read_json_object(folder / ORDER, error=UsageError)
        config = told.get("config")
        if not isinstance(config, dict):
            raise UsageError(f"{folder / ORDER} has no settings under config.")
        return build(
            cls,
            {**told, "config": RunConfig.of(config, where=f"{folder / ORDER}: config")},
            where=str(folder / ORDER),
        )


def settings_read(text: str) -> tuple[Purpose, RunConfig]:
    """Read `Job.settings`. Raises UsageError."""
    told = parse_json_object(text, source="what the settings of this run say", error=UsageError)
    purpose, config = told.get("purpose"), told.get("config")
    if purpose not in ("train", "attack") or not isinstance(config, dict):
        raise UsageError(f"the settings of this run name the purpose {purpose!r}; train and attack are known.")
    return purpose, RunConfig.of(config, where="run")


@dataclass(eq=False)
class Status:
    """The progress of a job, written after every change: status, exit code, round, nodes that were refused, failures
    and stages."""

    folder: Path
    document: dict[str, Any] = field(
        default_factory=lambda: {
            "status": "running", "exit_code": None, "error": "", "round": 0, "rounds": 0, "clients": {}, "refused": [],
            "failures": [], "stages": [],
        }
    )  # fmt: skip

    def note(self, **changes: object) -> None:
        """Change fields and write the file."""
        self.document |= changes
        write_atomic(self.folder / STATUS, json.dumps(self.document, indent=1) + "\n")

    def add(self, name: Literal["failures", "stages"], entry: Mapping[str, object]) -> None:
        """Append to a list and write the file."""
        self.note(**{name: [*self.document[name], dict(entry)]})


def save_trained(trained: FederationRun, folder: Path) -> None:
    """Write a finished run to `folder`: model, curve, facts, and the transcript last."""
    folder.mkdir(parents=True, exist_ok=True)
    if trained.model is not None:
        write_atomic(folder / MODEL, trained.model.state.encode())
    write_atomic(folder / CURVE, json.dumps(list(trained.curve)) + "\n")
    order = [] if trained.model is None else list(trained.model.state.state)  # the file does not keep the order
    facts = {
        "kept_round": trained.kept_round, "order": order, "guarantees": [dict(each) for each in trained.guarantees]
    }  # fmt: skip
    write_atomic(folder / FACTS, json.dumps(facts) + "\n")
    trained.transcript.save(folder)
    write_sums(folder)
    sync_tree(folder)


def load_trained(folder: Path, blueprint: Blueprint) -> FederationRun:
    """Read a run of `save_trained`; `blueprint` describes its network. Raises ArtifactError or DataError."""
    try:
        check_sums(folder)
        facts, curve = read_json_object(folder / FACTS), read_json(folder / CURVE)
    except DataError as error:
        raise DataError(f"{folder} holds no finished run: {error}") from error
    stored, model = folder / MODEL, None
    if stored.exists():
        state = decode(stored.read_bytes(), source=str(stored))
        if not isinstance(state, ModelState):
            raise DataError(f"{stored} holds {state.kind}; ModelState was expected.")
        model = GlobalModel(
            blueprint=blueprint, state=ModelState(state={name: state.state[name] for name in facts["order"]})
        )
    return FederationRun(
        model=model, transcript=Transcript.load(folder), curve=curve, kept_round=int(facts["kept_round"]),
        guarantees=facts["guarantees"],
    )  # fmt: skip


Runner = Callable[[Path, Job], None]
"""Runs the job in a folder to completion, by Flower's simulation or a SuperLink. Raises FdgsecError on failure."""


@dataclass(frozen=True, kw_only=True)
class FlowerFederation:
    """A federation that `runner` runs on Flower; the counterpart of `federate` in this process."""

    runner: Runner
    purpose: Purpose = "train"
    quorum: float = 1.0
    timeout: float = 600.0
    wait: float = 300.0
    deployed: bool = True

    def __call__(self, request: RunRequest) -> FederationRun:
        """Run the request as a job, and return its result; no round is kept. Raises JobFailedError.

        Raises UsageError where an unfinished run of this process is kept in the place of the result."""
        if request.checkpoints is not None and request.checkpoints.begun:
            raise UsageError(
                f"{request.checkpoints.folder} holds an unfinished run of --engine local; finish it there, give "
                "another --out, or --fresh to discard it."
            )
        return self.run(request.method, request.config, clients=len(request.members), progress=request.progress)

    def run(self, method: Method, config: RunConfig, *, clients: int, progress: Progressive) -> FederationRun:
        """Run `config` on `clients` clients. Raises JobFailedError."""
        job = Job(
            config=config, purpose=self.purpose, clients=clients, quorum=self.quorum, timeout=self.timeout,
            wait=self.wait, deployed=self.deployed,
        )  # fmt: skip
        folder = Path(tempfile.mkdtemp(prefix="fdgsec-job-"))  # kept if the job fails: errors name its logs
        job.write(folder)
        progress.update("federation on Flower", 0, 1)
        self.runner(folder, job)
        status = finished_status(folder)
        progress.update("federation on Flower", 1, 1)
        trained = load_trained(folder / RUN, blueprint_of(config, method, len(classes_of(status))))
        shutil.rmtree(folder, ignore_errors=True)
        return replace(trained, federation={**status, "guarantees": [dict(each) for each in trained.guarantees]})


def classes_of(status: Mapping[str, Any]) -> tuple[str, ...]:
    """The classes that the clients of a job agree on."""
    return tuple(next(iter(status["clients"].values()))["classes"])


def finished_status(folder: Path) -> dict[str, Any]:
    """Read the status of a completed job, and print warnings for nodes that were refused and clients that failed.

    Raises JobFailedError if the job did not complete."""
    path = folder / STATUS
    if not path.exists():
        raise JobFailedError(f"the federation left no {STATUS}: its server app never began; see Flower's log.")
    told = read_json_object(path)
    for reason in told["refused"]:
        warn(reason)
    for failure in told["failures"]:
        warn("round {round}: {client} failed in {step}: {reason}".format(**failure))
    if told["status"] != "done":
        raise JobFailedError(
            str(told["error"] or "the server app ended before it was done."), int(told["exit_code"] or 1)
        )
    return told

"""A finished run to attack: its folder's files, and its data, clients, roles and initial model, reconstructed.

`fdgsec train` uses all images of the source domains. Nobody trains on the validation images, a random tenth of each
client's; they are split in halves into non-members and auxiliary images. Images with a near-duplicate among the
training images are in neither half. Runs of `fdgsec attack` have held-out roles, as have training runs whose report
counts held-out images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset, join
from fdgsec.data.lazy_pixels import LazyPixels
from fdgsec.data.roles import THRESHOLD, Roles, duplicate_groups
from fdgsec.experiments.attack_vectors.read_vectors import OWN
from fdgsec.experiments.run_config import RunConfig
from fdgsec.experiments.setup.run_inputs import (
    World,
    attacked_clients,
    division_of,
    load_world,
    method_of,
    model_of,
    roles_of,
)
from fdgsec.experiments.train import split_sources
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Method
from fdgsec.federation.wire import Transcript
from fdgsec.runtime.checked_files import check_sums
from fdgsec.runtime.errors import ArtifactError, DataError, UsageError
from fdgsec.runtime.progress import Progressive
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.untrusted_text import read_json_object
from fdgsec.threats.adversary import ADVERSARIES

ROLES = ("federation", "held_out", "auxiliary")
MODELS = ("ModelState", "GeneratorState")
"""Kinds whose payloads a run keeps only with `--keep models=...`."""
LEAST_KNOWN = 10
"""Minimum number of auxiliary images per source domain."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Record:
    """The contents of a run's folder: settings, report and transcript."""

    config: RunConfig
    report: Mapping[str, Any]
    transcript: Transcript

    @property
    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """The number of images per role and client or domain."""
        found: Mapping[str, Mapping[str, int]] = self.report["dataset"]["roles"]
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Recorded:
    """A reconstructed run: its data, clients, roles and initial model (None if it had no model).

    `copied` names images with a near-duplicate, which are neither clean members nor clean non-members; empty if the run
    had held-out roles. `random_split`: members and held-out images were split at random, not by an official list.
    `remote_data`: clients held their own images elsewhere, which may differ from the images here."""

    record: Record
    config: RunConfig
    world: World
    method: Method
    clients: tuple[Client, ...]
    roles: Roles
    model: GlobalModel | None
    random_split: bool
    remote_data: bool = False
    copied: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


def read_record(run: Path) -> Record:
    """Read a run's folder. Raises UsageError if it holds no run, DataError or ArtifactError if a file was altered."""
    for name in ("config.json", "report.json", "transcript.jsonl"):
        if not (run / name).is_file():
            raise UsageError(f"{run} holds no finished run ({name} is missing); `fdgsec train --out {run}` writes one.")
    check_sums(run)
    config = settings_of(run)
    if config.target == OWN:
        raise UsageError(f"{run} holds an attack on style vectors, not a run; give the folder of a run.")
    report = read_json_object(run / "report.json")
    try:
        said = report["method"], report["seed"], report["dataset"]["name"], report["transcript_sha256"]
        counts = [report["dataset"][key] for key in ("roles", "manifest_sha256")]
        counts += [report[key] for key in ("accuracy", "defenses", "guarantees")]
    except (KeyError, TypeError) as error:
        raise DataError(f"{run}/report.json is not a report of schema 1: {type(error).__name__} {error}.") from error
    if (
        said[0] not in (config.method_name, config.method)
        or said[1:3] != (config.seed, config.dataset)
        or not counts[0]
    ):
        raise DataError(
            f"{run}/report.json is of {said[0]} on {said[2]}, seed {said[1]}, but config.json is of "
            f"{config.method_name} on {config.dataset}, seed {config.seed}; give a folder whose files are of one run."
        )
    return Record(config=config, report=report, transcript=_transcript(run, said[3]))


def settings_of(run: Path) -> RunConfig:
    """The settings in a run's folder. Raises DataError if they cannot be read, UsageError if they are not valid."""
    return RunConfig.of(read_json_object(run / "config.json"), where=f"{run}/config.json")


def _transcript(run: Path, expected: str) -> Transcript:
    """Read the whole transcript. Raises ArtifactError if a hash, a payload or the last row is not the run's."""
    transcript = Transcript.load(run)
    if transcript.sha256 != expected:
        raise ArtifactError(
            f"{run / 'transcript.jsonl'} ends with {transcript.sha256[:16]}, the report with {expected[:16]}; one of "
            "them was altered."
        )
    for row in transcript.rows:
        if row.kind not in MODELS and row.sha256 not in transcript.payloads:
            raise ArtifactError(f"{run / 'payloads' / row.sha256}.safetensors is missing; the run is not complete.")
    return transcript


def reconstruct_run(record: Record, config: RunConfig, *, data_root: Path | None, progress: Progressive) -> Recorded:
    """Load the run's images and assign them to clients and roles; `config` holds the settings of run and attack.

    Raises DataError if images, clients or roles differ from the run's."""
    method = method_of(config)
    world = load_world(config, data_root=data_root, progress=progress)
    remote_data = _has_remote_data(record, world)
    model, notes = _first_model(record, config, method, len(world.dataset.class_names))
    clients, aside = list[Client](), dict[str, DomainDataset]()
    if "train" in record.counts:
        check_division(record.report, config)
        clients, aside = split_sources(world, config)
        reported = (
            record.counts["train"] if remote_data else {client.name for client in clients}
        )  # defended clients report none
        _check_counts(record, {"train": {each.name: len(each.data) for each in clients if each.name in reported}})
    if set(ROLES) <= set(record.counts):
        roles, copied = roles_of(world, config), frozenset[str]()
        _check_counts(record, roles.summary())
        if "train" not in record.counts:
            if config.rounds:  # what was shared without training is compared with the images themselves
                check_division(record.report, config)
            clients = attacked_clients(world, roles, config, method)
    else:
        roles, copied, note = _validation_aside(clients, join(list(aside.values())), seed=config.seed)
        notes = [*notes, note]
        if "auxiliary" in ADVERSARIES[config.adversary].knows:
            _check_known(roles, world)
        if method.reviews != "none":
            notes.append("clients weigh models by their validation images, which leave a number each in them")
    return Recorded(
        record=record, config=config, world=world, method=method, clients=tuple(clients), roles=roles, model=model,
        random_split=config.splits == "own", remote_data=remote_data, copied=copied, notes=tuple(notes),
    )  # fmt: skip


def check_division(report: Mapping[str, Any], config: RunConfig) -> None:
    """Raise DataError where a run divided its clients' images in another way than this version would.

    Versions before the one that records it divided them by class, also under a guarantee."""
    told, now = report["dataset"].get("division", "stratified"), division_of(config.defenses)
    if told != now:
        raise DataError(
            f"the run divided its clients' images another way ({told}) than this version does under its defenses "
            f"({now}), so that nobody can say which were trained on: train it again."
        )


def _has_remote_data(record: Record, world: World) -> bool:
    """Whether clients held their images elsewhere: the report's manifest is empty or that of the unseen domain.

    Raises DataError if it is the manifest of other images."""
    manifest, here = record.report["dataset"]["manifest_sha256"], world.dataset.manifest_sha256
    if manifest == here:
        return False
    if manifest in ("", world.unseen().manifest_sha256):
        return True
    raise DataError(
        f"the run used other images: {record.config.dataset} has manifest {here[:16]} here, the run's is "
        f"{manifest[:16]}; give the run's images with --data-root."
    )


def _check_known(roles: Roles, world: World) -> None:
    known = {name: counts for name, counts in roles.summary()["auxiliary"].items()}
    lacking = [
        name for name in (str(world.dataset.domain_names[d]) for d in world.sources) if known[name] < LEAST_KNOWN
    ]
    if lacking:
        raise UsageError(
            f"this training run leaves {known[lacking[0]]} auxiliary images of {lacking[0]}; the adversary needs at "
            f"least {LEAST_KNOWN}. Use --adversary client or outsider, which need none, or a run of `fdgsec attack`."
        )


def _check_counts(record: Record, counts: Mapping[str, Mapping[str, int]]) -> None:
    for role, expected in counts.items():
        found = dict(record.counts.get(role, {}))
        if found != dict(expected):
            raise DataError(
                f"the run had {found} images as {role}, but here there are {dict(expected)}: clients held their "
                "own images, or another version of fdgsec split them."
            )


def _first_model(
    record: Record, config: RunConfig, method: Method, classes: int
) -> tuple[GlobalModel | None, list[str]]:
    """The run's initial model, from the seed or from the transcript; else another one, with a note that says so."""
    if not config.rounds and method.shares != "every":
        return None, []
    model = model_of(config, method, classes)
    first = next((row for row in record.transcript.rows if row.stage == "model" and row.round == 0), None)
    if first is None or first.sha256 == model.state.sha256:
        return model, []
    kept = record.transcript.payloads.get(first.sha256)
    if isinstance(kept, ModelState) and kept.tensors().keys() == model.state.tensors().keys():
        return model.with_state(kept.tensors()), []
    return model, ["the run's initial model cannot be reproduced here: simulations start from another one"]


def _validation_aside(
    clients: Sequence[Client], aside: DomainDataset, *, seed: int
) -> tuple[Roles, frozenset[str], str]:
    """Split the images that nobody trained on into non-members and auxiliary images, without near-duplicates.

    Returns the roles, the names of all images with a near-duplicate, and a note for the report."""
    trained = join([client.data for client in clients])
    images = join([trained, aside])
    groups = _groups(images)
    beside = torch.isin(groups[len(trained) :], groups[: len(trained)])
    held, known = _halved(aside.subset(~beside), groups[len(trained) :][~beside], seed=seed)
    share = len(held) / len(images), len(known) / len(images)
    roles = Roles(
        federation=trained, held_out=held, auxiliary=known, fractions=(1 - sum(share), *share), threshold=THRESHOLD,
    )  # fmt: skip
    several = (torch.bincount(groups)[groups] > 1).tolist()
    copied = frozenset(name for name, has_copy in zip(images.ids, several, strict=True) if has_copy)
    note = (
        f"all images of the source domains took part: non-members ({len(held)}) and auxiliary images "
        f"({len(known)}) are those of the {len(aside)} kept for validation that have no near copy among the others"
    )
    return roles, copied, note


def _halved(images: DomainDataset, groups: Tensor, *, seed: int) -> tuple[DomainDataset, DomainDataset]:
    """Assign each domain's images alternately to held-out and auxiliary, sorted by class, in random order within it.

    Alternation continues across classes, which balances the halves even if classes have few images. Near-duplicates of
    held-out images are held out too."""
    rng, held = stream(seed, "world", "validation roles"), torch.zeros(len(images), dtype=torch.bool)
    for domain in images.domains.unique():
        mine = (images.domains == domain).nonzero().flatten()
        mine = mine[torch.randperm(len(mine), generator=rng)]
        mine = mine[images.labels[mine].argsort(stable=True)]
        held[mine[::2]] = True
    held |= torch.isin(groups, groups[held])
    return images.subset(held), images.subset(~held)


def _groups(images: DomainDataset) -> Tensor:
    """The near-duplicate group of every image, (N,) int64, as in fdgsec.data.roles."""
    if "group" in images.attributes:
        return images.attributes["group"]
    return torch.arange(len(images)) if isinstance(images.store, LazyPixels) else duplicate_groups(images)

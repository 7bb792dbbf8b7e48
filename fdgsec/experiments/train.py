"""The verb `train`: run a method's rounds and measure accuracy on the unseen domain."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import torch

from fdgsec.data.domains import DomainDataset
from fdgsec.data.official_split_masks import official_mask, require_official
from fdgsec.data.partition import split_validation
from fdgsec.experiments.finished_training import FinishedTraining
from fdgsec.experiments.report.accuracy import accuracy_document, adapted_document, steps_document
from fdgsec.experiments.report.attack_report import report_files
from fdgsec.experiments.report.schema import AttackReport
from fdgsec.experiments.run_config import RunConfig, on_stated_threads
from fdgsec.experiments.setup.defenses import defense_documents, defense_stack_of
from fdgsec.experiments.setup.required_weights import check_weights
from fdgsec.experiments.setup.run_federation import Federation, FederationRun, RunRequest, federate
from fdgsec.experiments.setup.run_inputs import (
    World,
    artifact_rows,
    clients_of,
    divided,
    division_of,
    load_world,
    method_of,
    model_of,
    named,
    options_of,
    roles_of,
    with_validation,
)
from fdgsec.federation.checkpoints import UNFINISHED, Checkpoints, rounds_in, size_of
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Method
from fdgsec.federation.run_folder import check_replaceable, environment, new_folder, reserved, run_key
from fdgsec.nn.styles.encoders import code_sha256
from fdgsec.nn.styles.image_styles import encoder_named
from fdgsec.nn.training.frozen_maps import kept_part
from fdgsec.nn.training.test_time_adaptation import Tent, adaptation_named, prepare_for_tent
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import Progressive
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.registry import foreign_code

MODEL = "model.safetensors"
"""The kept model's file in a run's folder."""


def split_sources(world: World, config: RunConfig) -> tuple[list[Client], dict[str, DomainDataset]]:
    """Partition the sources into clients, each with validation images split off before any augmentation.

    Validation images are `validation_share` of the client's images, by the seed, or with `splits = "official"` those of
    the official splits, if any. Returns the clients, and per domain the images for accuracy on the sources: validation
    images, or test images if there are any, the official ones or `source_test_share` of each client's. With
    `roles = "aside"`, clients hold only images with the federation role. Raises UsageError if no official split is
    known, for options that exclude each other, and for a number of auxiliary images where none are kept aside."""
    own = config.splits == "own"
    _check_shares(config)
    if config.auxiliary is not None and config.roles != "aside":
        raise UsageError("auxiliary counts images that are kept from the clients; give --roles aside as well.")
    images = world.seen() if own else _listed(world)
    if config.roles == "aside":
        if not own:
            raise UsageError("--roles aside and --splits official exclude each other; leave one of them out.")
        kept = set(roles_of(world, config).federation.ids)
        images = images.subset(torch.tensor([name in kept for name in images.ids]))
    found = clients_of(images, config)
    tests = [_test_images(client, config) for client in found]
    clients = [_divided(_without(client, test), config) for client, test in zip(found, tests, strict=True)]
    held = {name for client in clients if client.validation is not None for name in client.validation.ids}
    held = {name for test in tests if test is not None for name in test.ids} or held
    measured: dict[str, DomainDataset] = {}
    for domain in world.sources:
        images = world.dataset.of_domain(domain)
        chosen = torch.tensor([name in held for name in images.ids])
        if not own:  # a whole domain that is kept for validation has no client
            tested = official_mask(images, "test")
            chosen = tested if tested.any() else chosen | official_mask(images, "validation")
        measured[str(images.domain_names[domain])] = images.subset(chosen)
    return clients, measured


def _listed(world: World) -> DomainDataset:
    """The source images that official splits name for training or validation, in domains that have some of the former.

    Raises UsageError where none is for training, or a source domain is in no split at all."""
    dataset = world.dataset
    require_official(dataset)
    training = official_mask(dataset, "train")
    named = training | official_mask(dataset, "validation")
    for domain in world.sources:
        if not (official_mask(dataset, "test") | named)[dataset.domains == domain].any():
            raise UsageError(
                f"the official splits of {dataset.name} name no image of {dataset.domain_names[domain]}; complete "
                "them, or leave --splits out."
            )
    trained_on = dataset.domains[training & torch.isin(dataset.domains, torch.tensor(world.sources))]
    return dataset.subset(named & torch.isin(dataset.domains, trained_on.unique()))


def _divided(client: Client, config: RunConfig) -> Client:
    """Split a client's images into training and validation."""
    held = official_mask(client.data, "validation")
    if config.splits == "official" and held.any():
        if held.all():
            raise UsageError(
                f"{client.name} would hold official validation images alone under partition {config.partition!r}; "
                "use fewer clients, or leave --splits out."
            )
        own = Client(name=client.name, data=client.data.subset(~held), validation=client.data.subset(held))
        return named(own, division_of(config.defenses))
    division = division_of(config.defenses)
    return with_validation(client, seed=config.seed, share=_share_of_the_rest(config), division=division)


def _share_of_the_rest(config: RunConfig) -> float:
    """The share of validation images among those that are left after the test images."""
    return config.validation_share / (1 - (config.source_test_share if config.splits == "own" else 0.0))


def _check_shares(config: RunConfig) -> None:
    validation, test, target = config.validation_share, config.source_test_share, config.target_share
    if not (0 <= validation < 1 and 0 <= test < 1 and validation + test < 1 and 0 < target <= 1):
        raise UsageError(
            "validation_share and source_test_share must lie in [0, 1) and leave images to train on, and target_share "
            f"in (0, 1]; got {validation:g}, {test:g} and {target:g}."
        )


def _test_images(client: Client, config: RunConfig) -> DomainDataset | None:
    """A client's images that are kept for the accuracy on the sources, None where validation images serve for that."""
    if config.splits != "own" or not config.source_test_share:
        return None
    rng = stream(config.seed, "world", "source-test", client.name)
    division = division_of(config.defenses)
    return split_validation(client.data, fraction=config.source_test_share, rng=rng, division=division)[1]


def _without(client: Client, test: DomainDataset | None) -> Client:
    if test is None:
        return client
    kept = set(test.ids)
    return Client(name=client.name, data=client.data.subset(torch.tensor([i not in kept for i in client.data.ids])))


def unseen_images(world: World, config: RunConfig) -> DomainDataset:
    """The images that the model is measured on: `target_share` of the unseen domain by the seed (1: all of it), or with
    `splits = "official"` its official test images where it has some."""
    unseen = world.unseen()
    if config.splits == "own" and config.target_share < 1:
        rng = stream(config.seed, "world", "target-test")
        return split_validation(unseen, fraction=config.target_share, rng=rng)[1]
    named = official_mask(unseen, "test")
    return unseen.subset(named) if config.splits == "official" and named.any() else unseen


@on_stated_threads
def train(
    config: RunConfig,
    *,
    data_root: Path | None,
    out: Path | None,
    progress: Progressive,
    federation: Federation = federate,
    fresh: bool = False,
    reuse: str = "",
) -> AttackReport:
    """Train `config.method` and return the report (without attacks); with `out`, also write the run directory.

    `federation` runs the rounds: in this process, or on an engine whose clients have the same images. In this process
    every round is kept under `out` until the run is written, and an interrupted run goes on there, unless `fresh`.
    With `reuse`, which says by what engine runs are made, a finished one under `out` is read in place of another.
    Raises UsageError where `out` holds an unfinished run with other settings, and InUseError where another process
    writes there."""
    if out is not None:
        check_replaceable(out, "training")
    with reserved(out):
        return _trained(
            config, data_root=data_root, out=out, progress=progress, federation=federation, fresh=fresh, reuse=reuse
        )


def _trained(
    config: RunConfig,
    *,
    data_root: Path | None,
    out: Path | None,
    progress: Progressive,
    federation: Federation,
    fresh: bool,
    reuse: str,
) -> AttackReport:
    started = time.monotonic()
    world, request, validation = training_inputs(config, data_root=data_root, progress=progress)
    unseen = unseen_images(world, config)
    adaptation = _adaptation(config, request.initial)
    finished = None
    if out is not None:
        checkpoints = _checkpoints(out, world, request, fresh=fresh)
        request = replace(request, checkpoints=checkpoints)
        if reuse and checkpoints is not None:
            finished = FinishedTraining(folder=out, key=f"{checkpoints.key} {reuse}")
    if finished is not None and not fresh and (known := finished.read()) is not None:
        return known
    trained = federation(request)
    accuracy: dict[str, object] | None = None
    if config.rounds:
        plan = request.method.client_plan
        frozen = "none" if plan is None else kept_part(plan)
        measured = accuracy_document(trained.final, unseen, validation, second=world.second(), frozen=frozen)
        accuracy = {**measured, "round": trained.kept_round}
        if (steps := steps_document(trained.curve)) is not None:
            accuracy["steps"] = steps
        if adaptation is not None:
            adapted = adapted_document(trained.final, unseen, adaptation, seed=config.seed)
            accuracy |= {"adapted": {"adaptation": config.adapt, **adapted}}
    roles = {**_counts(request.members, unseen, world.target_name), **_aside(world, config)}
    report = report_of(trained, config, dataset_document(world.dataset, roles, config), accuracy, started)
    if out is not None:
        write_run(report, trained, config, out)
    if finished is not None:
        finished.keep()
    return report


def training_inputs(
    config: RunConfig, *, data_root: Path | None, progress: Progressive
) -> tuple[World, RunRequest, dict[str, DomainDataset]]:
    """The data of a training run, the federation to run, and per domain the images for accuracy on the sources."""
    method = method_of(config)
    check_weights(config)
    world = load_world(config, data_root=data_root, progress=progress)
    clients, validation = split_sources(world, config)
    method.check(len(clients))
    defense_stack = defense_stack_of(config, method)
    model = model_of(config, method, len(world.dataset.class_names))
    request = RunRequest(
        method=method, members=clients, model=model, config=config, defense_stack=defense_stack, progress=progress
    )
    return world, request, validation


def _checkpoints(out: Path, world: World, request: RunRequest, *, fresh: bool) -> Checkpoints | None:
    """Where the rounds of a run are kept until it is written; None for code that has no source to tell it by.

    The key holds everything that decides the run's bytes, the code of plug-ins by their modules."""
    config, model = request.config, request.initial
    foreign = [code for each in (request.method, *config.defenses) for code in foreign_code(each)]
    encoders = sorted(_encoders(request.method))
    foreign += [code_sha256(encoder_named(name)) for name in encoders]
    if not config.rounds or None in foreign:
        return None
    device = torch.cuda.get_device_name() if model.blueprint.device == "cuda" else model.blueprint.device
    key = run_key(
        config.sha256, world.dataset.content_sha256, model.state.sha256, device, *(code or "" for code in foreign),
        *(encoder_named(name).fingerprint for name in encoders),
    )  # fmt: skip
    checkpoints = Checkpoints(folder=out / UNFINISHED, key=key, settings=config.document())
    if fresh:
        checkpoints.clear()
    return checkpoints


def _encoders(method: Method) -> set[str]:
    """The names of the encoders of a method and of those that it extends."""
    own = getattr(method, "encoder", None)
    options: list[object] = [getattr(method, spec.name) for spec in fields(method)] if is_dataclass(method) else []
    below = [_encoders(option) for option in options if isinstance(option, Method)]
    return ({own} if isinstance(own, str) else set[str]()).union(*below)


def kept_so_far(out: Path) -> str:
    """Say, for a run that was interrupted, what is kept under `out` and how to go on."""
    kept = [
        f"{folder} ({size_of(folder) / 2**20:.1f} MB) after round {rounds_in(folder)[-1]}"
        for folder in sorted(out.rglob(UNFINISHED)) if rounds_in(folder)
    ]  # fmt: skip
    if not kept:
        return "no round was finished, and nothing is kept"
    return f"kept in {', '.join(kept)}; the same command goes on there, --fresh starts anew"


def report_of(
    trained: FederationRun,
    config: RunConfig,
    dataset: dict[str, object],
    accuracy: dict[str, object] | None,
    started: float,
) -> AttackReport:
    """The report of a training run, without attacks; `started` is its start time on the monotonic clock."""
    artifacts, traffic = artifact_rows(trained.transcript.rows)
    return AttackReport(
        target=config.target or config.method_name, method=config.method_name, preset=config.preset, dataset=dataset,
        encoder=config.encoder if "encoder" in options_of(config.method) else "none", backbone=config.backbone,
        seed=config.seed, profile=config.profile, reused=False, defenses=defense_documents(config),
        guarantees=trained.guarantees, accuracy=accuracy, attacks=[], artifacts=artifacts, model_traffic=traffic,
        transcript_sha256=trained.transcript.sha256, environment=environment(), seconds=time.monotonic() - started,
    )  # fmt: skip


def write_run(report: AttackReport, trained: FederationRun, config: RunConfig, out: Path) -> None:
    """Write a training run's folder: report, settings, model, curve, transcript, and a remote engine's status."""
    with new_folder(out, "training") as draft:
        for name, content in report_files(report, settings=config.document(), points=trained.curve).items():
            (draft / name).write_bytes(content)
        (draft / "config.json").write_text(json.dumps(config.document(), indent=1, default=str) + "\n")
        (draft / "curve.json").write_text(json.dumps(list(trained.curve), indent=1) + "\n")
        if trained.model is not None:
            (draft / MODEL).write_bytes(trained.model.state.encode())
        if trained.federation is not None:
            (draft / "federation.json").write_text(json.dumps(dict(trained.federation), indent=1) + "\n")
        trained.transcript.save(draft)


def _adaptation(config: RunConfig, model: GlobalModel) -> Tent | None:
    """The test-time adaptation, None without one. Raises UsageError before training if the model cannot adapt."""
    if not config.adapt:
        return None
    if not config.rounds:
        raise UsageError(f"--adapt {config.adapt} measures a trained model; give --rounds 1 or more.")
    prepare_for_tent(model.module())
    return adaptation_named(config.adapt)


def _counts(clients: Sequence[Client], unseen: DomainDataset, target: str) -> dict[str, dict[str, int]]:
    """The numbers of training and validation images per client, and of test images."""
    validation = {client.name: 0 if client.validation is None else len(client.validation) for client in clients}
    training = {client.name: len(client.data) for client in clients}
    return {"train": training, "validation": validation, "test": {target: len(unseen)}}


def _aside(world: World, config: RunConfig) -> dict[str, dict[str, int]]:
    """The numbers of images per role with `roles = "aside"`, else empty."""
    return roles_of(world, config).summary() if config.roles == "aside" else {}


def dataset_document(
    dataset: DomainDataset, roles: Mapping[str, Mapping[str, int]], config: RunConfig | None = None
) -> dict[str, object]:
    """The report's entry for the dataset, and how the run divided its clients' images where that was not by class."""
    return {
        "name": dataset.name,
        "manifest_sha256": dataset.manifest_sha256,
        "images": len(dataset),
        "domains": list(dataset.domain_names),
        "classes": list(dataset.class_names),
        "roles": {role: dict(counts) for role, counts in roles.items()},
        **({} if config is None else divided(config)),
    }

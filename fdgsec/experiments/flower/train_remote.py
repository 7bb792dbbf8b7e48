"""The verb `train` on remote clients that hold their own images; the server has at most the unseen domain."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fdgsec.data.catalog import dataset_entry, load_dataset
from fdgsec.data.domain_groups import join_domains
from fdgsec.data.domains import DomainDataset
from fdgsec.experiments.flower.jobs import FlowerFederation, classes_of
from fdgsec.experiments.report.accuracy import accuracy_document
from fdgsec.experiments.report.schema import AttackReport
from fdgsec.experiments.run_config import RunConfig, on_stated_threads
from fdgsec.experiments.setup.defenses import defense_stack_of
from fdgsec.experiments.setup.run_inputs import divided, method_of
from fdgsec.experiments.train import report_of, write_run
from fdgsec.federation.run_folder import check_replaceable
from fdgsec.runtime.errors import DataError, DatasetNotFoundError, UsageError
from fdgsec.runtime.progress import Progressive


@on_stated_threads
def train_remote(
    config: RunConfig,
    federation: FlowerFederation,
    *,
    clients: int,
    data_root: Path | None,
    out: Path | None,
    progress: Progressive,
) -> AttackReport:
    """Train `config.method` on `clients` clients that hold their own images; the report is that of `train`.

    Accuracy is measured only if the server has the unseen domain's images. Raises UsageError for invalid options,
    JobFailedError if the federation fails."""
    started = time.monotonic()
    if out is not None:
        check_replaceable(out, "training")
    if config.adapt:
        raise UsageError("--adapt needs the dataset on the server; leave it out with --engine flower.")
    method = method_of(config)
    method.check(clients)
    defense_stack_of(config, method)
    name, unseen = _unseen(config, data_root, progress)
    trained = federation.run(method, config, clients=clients, progress=progress)
    told = trained.federation or {}
    classes = classes_of(told)
    accuracy: dict[str, object] | None = None
    if config.rounds and unseen is not None:
        if tuple(unseen.class_names) != classes:
            raise DataError(
                f"the unseen domain has the classes {', '.join(unseen.class_names)}; clients have {', '.join(classes)}."
            )
        accuracy = {**accuracy_document(trained.final, unseen, {}), "round": trained.kept_round}
    document = _data_document(config, unseen, name, classes, told["clients"])
    report = report_of(trained, config, document, accuracy, started)
    if out is not None:
        write_run(report, trained, config, out)
    return report


def _unseen(config: RunConfig, data_root: Path | None, progress: Progressive) -> tuple[str, DomainDataset | None]:
    """The unseen domain's name, and its images, None if they are not available."""
    entry = dataset_entry(config.dataset)
    try:
        dataset = load_dataset(
            config.dataset, data_root=data_root, image_size=config.image_size, allow_partial=True,
            per_domain=config.per_domain, per_class=config.per_class, seed=config.seed, progress=progress.update,
        )  # fmt: skip
    except DatasetNotFoundError:
        return config.target_domain or entry.target_domain or "unknown", None
    wanted = config.target_domain or entry.target_domain or str(dataset.domain_names[-1])
    dataset, target = join_domains(dataset, wanted)
    images = dataset.of_domain(target)
    return target, images if len(images) else None


def _data_document(
    config: RunConfig, unseen: DomainDataset | None, name: str, classes: Sequence[str], clients: Mapping[str, Any]
) -> dict[str, object]:
    """The report's entry for the dataset: the server's images, and the counts that undefended clients report."""
    roles = {
        "train": {each: int(told["training"]) for each, told in clients.items() if told["training"]},
        "validation": {each: int(told["validation"]) for each, told in clients.items() if told["training"]},
        "test": {name: 0 if unseen is None else len(unseen)},
    }
    return {
        "name": config.dataset,
        "manifest_sha256": "" if unseen is None else unseen.manifest_sha256,
        "images": sum(sum(counts.values()) for counts in roles.values()),
        "domains": [name]
        if unseen is None
        else [str(unseen.domain_names[d]) for d in torch.unique(unseen.domains).tolist()],
        "classes": list(classes),
        "roles": roles,
        **divided(config),
    }

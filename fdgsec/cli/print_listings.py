"""What there is: datasets, weights, methods, attacks, defenses and the machine, as the command line lists them."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from fdgsec.cli.tables import Rows, print_rows, print_table
from fdgsec.data.catalog import DatasetEntry, dataset_entry, dataset_names, locate
from fdgsec.data.domains import DomainDataset
from fdgsec.experiments.bench.protocols import protocol_named, protocols
from fdgsec.experiments.claims.catalogue import ledger
from fdgsec.experiments.run_config import presets
from fdgsec.federation.artifacts import KINDS
from fdgsec.federation.engines.flower import versions as flower
from fdgsec.federation.run_folder import environment
from fdgsec.nn.networks.classifiers import BACKBONES
from fdgsec.nn.networks.weights import WeightStatus, listing
from fdgsec.nn.styles.encoders import encoder_names
from fdgsec.runtime.cache_files import cache_root
from fdgsec.runtime.errors import FdgsecError, UsageError
from fdgsec.runtime.registry import names, plugins, resolve, targets

CLASSES_SHOWN = 12
DOMAINS_SHOWN = 40


def print_datasets(*, as_json: bool) -> None:
    """Print the catalogue: size, license, how to get it, and where it was found."""
    rows = []
    entries = {name: dataset_entry(name) for name in dataset_names()}
    for name, entry in entries.items():
        files = entry.files
        known = str(files.images) if files is not None and files.images else "any" if entry.anything else ""
        where = _found(name, entry)
        rows.append((name, entry.title, known, _layout(entry), entry.license, where))
    columns = ("dataset", "what", "images", "layout", "license", "found")
    if as_json:
        pages = [(*row, entries[row[0]].page) for row in rows]
        print_rows("datasets", (*columns, "page"), pages, as_json=True)
        return
    print_table("datasets", columns, rows)
    for name, entry in entries.items():  # whole lines, so that addresses can be copied
        if entry.page:
            fetched = f" (or `fdgsec data fetch {name}`)" if entry.archives or entry.hub else ""
            print(f"{name}: {entry.page}{fetched}")


def _found(name: str, entry: DatasetEntry) -> str:
    if entry.files is None:
        return "bundled"
    if entry.anything:
        return "--data-root"
    try:
        return str(locate(name))
    except FdgsecError:
        return "no"


def _layout(entry: DatasetEntry) -> str:
    files = entry.files
    if files is None:
        return "drawn"
    if files.leaf:
        return "LEAF's json"
    if files.patches is not None:
        return f"images and json, {files.patches.side} px patches"
    if files.list is not None and not files.classes[2:]:
        return files.list.file
    listed = f" + {files.splits}/*.txt" if files.only_listed else ""
    table = f", or {files.list.file}" if files.list is not None else ""
    return f"domain/(split/)class{listed}{table}"


def print_dataset(dataset: DomainDataset) -> None:
    """Print counts per domain and class; of many classes only totals per domain, of many domains only the first 40."""
    wide = len(dataset.class_names) <= CLASSES_SHOWN
    rows: list[tuple[str, ...]] = []
    for index, domain in enumerate(dataset.domain_names):
        counts = torch.bincount(dataset.labels[dataset.domains == index], minlength=len(dataset.class_names)).tolist()
        held = sum(count > 0 for count in counts)
        middle = map(str, counts) if wide else (f"{held} of {len(counts)}",)
        rows.append((domain, *middle, str(sum(counts))))
    if len(rows) > DOMAINS_SHOWN:
        left = rows[DOMAINS_SHOWN:]
        rest = str(sum(int(row[-1]) for row in left))
        rows = [*rows[:DOMAINS_SHOWN], (f"and {len(left)} more", *[""] * (len(rows[0]) - 2), rest)]
    title = (
        f"{dataset.name}: {len(dataset)} images, {dataset.image_size[0]} px, manifest sha256 {dataset.manifest_sha256}"
    )
    print_table(title, ("domain", *(dataset.class_names if wide else ("classes",)), "all"), rows)
    if dataset.split_names:
        counted = ", ".join(f"{name} {len(dataset.of_split(name))}" for name in dataset.split_names)
        print(f"official splits: {counted}")


def dataset_counts(dataset: DomainDataset) -> dict[str, Any]:
    """What `print_dataset` shows as plain data: every class of every domain that has images of it, and the splits."""
    names = dataset.class_names
    counts = {
        domain: torch.bincount(dataset.labels[dataset.domains == index], minlength=len(names)).tolist()
        for index, domain in enumerate(dataset.domain_names)
    }
    return {
        "dataset": dataset.name, "images": len(dataset), "image_size": dataset.image_size[0],
        "manifest_sha256": dataset.manifest_sha256,
        "domains": {
            domain: {name: count for name, count in zip(names, found, strict=True) if count}
            for domain, found in counts.items()
        },
        "splits": {name: len(dataset.of_split(name)) for name in dataset.split_names},
    }  # fmt: skip


def print_weights(rows: Sequence[WeightStatus], *, as_json: bool) -> None:
    """Print which weights are stored."""
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    print_table(
        "weights",
        ("name", "what", "stored", "sha256"),
        [(r.name, r.what, "yes" if r.stored else "no", r.sha256 or "") for r in rows],
    )


def _summary(group: str, name: str) -> str:
    try:
        return _first_line(resolve(group, name))
    except UsageError as error:  # a plug-in that cannot be imported is listed with the reason
        return str(error)


def _first_line(thing: object) -> str:
    text = thing.__doc__ or ""
    return text.splitlines()[0] if text else ""


def _artifacts() -> Rows:
    ours = [(name, _first_line(cls)) for name, cls in KINDS.items()]
    return [*ours, *((name, _summary("artifacts", name)) for name in plugins("artifacts"))]


def _datasets() -> Rows:
    rows = []
    for name in dataset_names():
        entry = dataset_entry(name)
        rows.append((name, entry.target_domain or "(last)", str(entry.image_size), _found(name, entry)))
    return rows


LISTS: Mapping[str, tuple[Sequence[str], Callable[[], Rows]]] = {
    "targets": (("target", "method", "releases"), lambda: [(n, t.method, t.summary) for n, t in targets().items()]),
    "methods": (("method", "what"), lambda: [(n, _summary("methods", n)) for n in names("methods")]),
    "attacks": (("attack", "what"), lambda: [(n, _summary("attacks", n)) for n in names("attacks")]),
    "defenses": (("defense", "what"), lambda: [(n, _summary("defenses", n)) for n in names("defenses")]),
    "datasets": (("dataset", "unseen domain", "px", "where"), _datasets),
    "encoders": (("encoder",), lambda: [(n,) for n in encoder_names()]),
    "artifacts": (("artifact", "what"), _artifacts),
    "backbones": (("backbone",), lambda: [(n,) for n in BACKBONES]),
    "claims": (
        ("claim", "paper", "what"),
        lambda: [(c.id, f"{c.paper} {c.section}", " ".join(c.quotes)) for c in ledger()],
    ),
    "presets": (("preset",), lambda: [(n,) for n in presets()]),
    "protocols": (("protocol", "what"), lambda: [(n, protocol_named(n).title) for n in protocols()]),
    "ablations": (
        ("ablation", "what"),
        lambda: [(n, protocol_named(n, "ablation").title) for n in protocols("ablation")],
    ),
}


def print_list(what: str, *, as_json: bool) -> None:
    """Print one of LISTS."""
    columns, rows = LISTS[what]
    print_rows(what, columns, rows(), as_json=as_json)


def print_doctor(*, as_json: bool) -> None:
    """Print what this machine has, and below it, as whole lines, what to run for a Flower that is missing.

    Raises FlowerUnavailableError at the end where flwr is installed in a version that fdgsec was not tested with."""
    facts = [(key, str(value)) for key, value in environment().items()]
    facts += [(name, _standing(version, verdict)) for name, version, verdict in flower.installed_versions()]
    facts += [
        ("cache", str(cache_root())),
        ("methods", ", ".join(names("methods"))),
        ("attacks", ", ".join(names("attacks"))),
    ]
    facts += [(f"dataset {row[0]}", row[3]) for row in _datasets()]
    facts += [(f"weights {row.name}", "stored" if row.stored else "not stored") for row in listing()]
    if as_json:
        print(json.dumps(dict(facts), indent=1))
    else:
        print_table("doctor", ("what", "found"), facts)
    for name, version, verdict in flower.installed_versions():
        if name == "flwr" and version is not None:
            flower.require_flower(simulation=False)
        elif verdict != flower.TESTED and not as_json:
            print(f"{name} {verdict}")


def _standing(version: str | None, verdict: str) -> str:
    if version is None:
        return "not installed"
    return f"{version}, {'tested' if verdict == flower.TESTED else 'refused'}"

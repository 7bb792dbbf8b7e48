"""What the command line prints: rich tables on a terminal, the same rows as plain text elsewhere, or JSON."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from fdgsec.cache import cache_root
from fdgsec.config import RunConfig, presets
from fdgsec.data.catalog import DATASETS, DatasetEntry, locate
from fdgsec.data.domains import DomainDataset
from fdgsec.encoders import ENCODERS
from fdgsec.errors import FdgsecError, UsageError
from fdgsec.experiments.claims_tables import measured
from fdgsec.experiments.protocols import protocol_named, protocols
from fdgsec.ledger import ledger
from fdgsec.models import BACKBONES
from fdgsec.registry import ATTACKS, METHODS, TARGETS, names, resolve
from fdgsec.reports import AttackReport, AttackResult, Measurement
from fdgsec.runs import environment
from fdgsec.weights import WeightStatus, listing

Rows = Sequence[Sequence[str]]


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=180)


def _print(title: str, columns: Sequence[str], rows: Rows) -> None:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=number == 0)
    for row in rows:
        table.add_row(*row)
    _console().print(table)


def number(value: float | None) -> str:
    """Three significant places, or nothing."""
    return "" if value is None else f"{value:.3g}" if abs(value) < 1e-2 and value else f"{value:.3f}"


def interval(row: Measurement) -> str:
    """[low, high], or nothing."""
    return "" if row.low is None or row.high is None else f"[{number(row.low)}, {number(row.high)}]"


def described(row: Measurement) -> str:
    """The slice in words."""
    return ", ".join(f"{key} {value}" for key, value in row.slice.items())


def headline(row: Measurement) -> bool:
    """Whether a row is one that the terminal shows; the report has them all."""
    if row.name == "psnr_gain":
        return row.slice.get("over") in ("B0", "B2", "B3") or row.unavailable is not None
    if row.name.startswith("gallery_"):
        return row.name == "gallery_top1" and row.slice.get("distance") == "mse"
    return row.name in HEADLINES


HEADLINES = (
    "top1", "auc", "theory_auc", "tpr_at_1pct_fpr", "relative_error", "balanced_accuracy", "accuracy", "exposed_fraction",
)  # fmt: skip


def controls_of(result: AttackResult) -> str:
    """How many controls passed, e.g. "1/1 won, 9/9 silent"."""
    won = sum(control.passed for control in result.positive)
    silent = sum(control.passed for control in result.negative)
    return f"{won}/{len(result.positive)} planted won, {silent}/{len(result.negative)} shuffled silent"


def print_report(report: AttackReport, *, as_json: bool, out: Path) -> None:
    """Print a report: the document, or a table per attack."""
    if as_json:
        print(report.json(), end="")
        return
    console = _console()
    console.print(
        f"target {report.target}, dataset {report.dataset['name']} ({report.dataset['images']} images), encoder "
        f"{report.encoder}, seed {report.seed}, profile {report.profile}{', run reused' if report.reused else ''}",
        highlight=False,
    )
    if report.accuracy is not None:
        values = {key: report.accuracy[key] for key in ("value", "low", "high")}
        value, low, high = (float(str(entry)) for entry in values.values())
        console.print(
            f"accuracy on the unseen domain {report.accuracy['unseen_domain']}: {value:.3f} "
            f"[{low:.3f}, {high:.3f}], n = {report.accuracy['n']}",
            highlight=False,
        )
    for result in report.attacks:
        if result.status == "done":
            shown = [row for row in result.measurements if headline(row)]
            rows = [
                (
                    row.name,
                    described(row),
                    row.unavailable or number(row.value),
                    interval(row),
                    number(row.chance),
                    str(row.n),
                    row.verdict,
                )
                for row in shown
            ]
            title = f"{result.name} by {result.adversary.get('name')}; controls: {controls_of(result)}; {result.seconds:.1f} s"
            _print(title, ("measurement", "slice", "value", "95% interval", "chance", "n", "verdict"), rows)
            if len(shown) < len(result.measurements):
                console.print(f"({len(result.measurements) - len(shown)} more rows in the report)\n", highlight=False)
        else:
            console.print(f"{result.name}: {result.status}: {result.reason}\n", highlight=False)
    console.print(f"written to {out}: report.html, report.json, measurements.csv", highlight=False)


def print_stored(run: Path, *, as_json: bool) -> None:
    """Print a stored report.json. Raises UsageError where there is none."""
    path = run if run.is_file() else run / "report.json"
    if not path.is_file():
        raise UsageError(f"{run} holds no report.json; give a folder that `fdgsec attack` or `fdgsec train` wrote.")
    text = path.read_text()
    if as_json:
        print(text, end="")
        return
    try:
        document = json.loads(text)
        rows = [
            (attack["name"], row["name"], ", ".join(f"{k} {v}" for k, v in row["slice"].items()), number(row["value"]),
             "" if row["low"] is None else f"[{number(row['low'])}, {number(row['high'])}]", number(row["chance"]), row["verdict"])
            for attack in document["attacks"] for row in attack["measurements"]
        ]  # fmt: skip
        title = f"{path}: {document['target']} on {document['dataset']['name']}, encoder {document['encoder']}"
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not a report of schema 1: {type(error).__name__} {error}.") from error
    _print(title, ("attack", "measurement", "slice", "value", "95% interval", "chance", "verdict"), rows)


def print_dry_run(config: RunConfig, rows: Sequence[tuple[str, str]]) -> None:
    """Print which attacks would run."""
    _print(
        f"{config.target} on {config.dataset}, profile {config.profile}, adversary {config.adversary}",
        ("attack", "plan"),
        rows,
    )


CLASSES_SHOWN = 12
DOMAINS_SHOWN = 40


def print_datasets() -> None:
    """Print the catalogue: size, licence, how to get it, and where it was found."""
    rows = []
    for name, entry in DATASETS.items():
        files = entry.files
        known = str(files.images) if files is not None and files.images else "any" if entry.anything else ""
        where = _found(name, entry)
        rows.append((name, entry.title, known, _layout(entry), entry.licence, where))
    _print("datasets", ("dataset", "what", "images", "layout", "licence", "found"), rows)
    for name, entry in DATASETS.items():  # whole lines, so that addresses can be copied
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
    """Print counts per domain and class; per domain alone where there are many classes, the first 40 of many domains."""
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
    _print(title, ("domain", *(dataset.class_names if wide else ("classes",)), "all"), rows)
    if dataset.split_names:
        counted = ", ".join(f"{name} {len(dataset.of_split(name))}" for name in dataset.split_names)
        print(f"official splits: {counted}")


def print_weights(rows: Sequence[WeightStatus]) -> None:
    """Print which weights are stored."""
    _print(
        "weights",
        ("name", "what", "stored", "sha256"),
        [(r.name, r.what, "yes" if r.stored else "no", r.sha256 or "") for r in rows],
    )


def _summary(group: str, name: str) -> str:
    text = resolve(group, name).__doc__ or ""
    return text.splitlines()[0] if text else ""


def _datasets() -> Rows:
    rows = []
    for name, entry in DATASETS.items():
        rows.append((name, entry.target_domain or "(last)", str(entry.image_size), _found(name, entry)))
    return rows


def print_seeds(found: Mapping[str, Any], *, as_json: bool, out: Path | None) -> None:
    """Print the mean over seeds of each score."""
    if as_json:
        print(json.dumps(found, indent=1))
        return
    scores = {f"accuracy on {found['unseen_domain']} (unseen)": found["accuracy"]}
    scores |= {f"weighted {name}": found[name] for name in ("auc", "f1") if name in found}
    scores |= {f"validation accuracy on {domain}": mean for domain, mean in found["per_domain"].items()}
    rows = [
        (name, f"{mean['value']:.3f}", f"[{mean['low']:.3f}, {mean['high']:.3f}]", str(mean["n"]))
        for name, mean in scores.items()
    ]
    _print(f"{found['method']} on {found['dataset']}", ("score", "mean", "95% interval", "seeds"), rows)
    if out is not None:
        _console().print(f"written to {out}: seeds.json and one folder per seed", highlight=False)


def print_claims(found: Mapping[str, Any], *, out: Path) -> None:
    """Print the ledger with its verdicts."""
    rows = [
        (row["id"], row["attack"], measured(row), number(row["chance"]), "" if row["n"] is None else str(row["n"]), row["verdict"], row["reason"])
        for row in found["claims"]
    ]  # fmt: skip
    _print(f"claims on {found['dataset']}", ("claim", "attack", "measured", "chance", "n", "verdict", "note"), rows)
    _console().print(f"written to {out}: claims.html, claims.md, claims.json and a report per run", highlight=False)


LISTS: Mapping[str, tuple[Sequence[str], Callable[[], Rows]]] = {
    "targets": (("target", "method", "releases"), lambda: [(n, t.method, t.summary) for n, t in TARGETS.items()]),
    "methods": (("method", "what"), lambda: [(n, _summary("methods", n)) for n in names("methods")]),
    "attacks": (("attack", "what"), lambda: [(n, _summary("attacks", n)) for n in names("attacks")]),
    "defenses": (("defense", "what"), lambda: [(n, _summary("defenses", n)) for n in names("defenses")]),
    "datasets": (("dataset", "unseen domain", "px", "where"), _datasets),
    "encoders": (("encoder",), lambda: [(n,) for n in ENCODERS]),
    "backbones": (("backbone",), lambda: [(n,) for n in BACKBONES]),
    "claims": (("claim", "paper", "what"), lambda: [(c.id, f"{c.paper} {c.section}", c.claim) for c in ledger()]),
    "presets": (("preset",), lambda: [(n,) for n in presets()]),
    "protocols": (("protocol", "what"), lambda: [(n, protocol_named(n).title) for n in protocols()]),
    "ablations": (
        ("ablation", "what"),
        lambda: [(n, protocol_named(n, "ablation").title) for n in protocols("ablation")],
    ),
}


def print_list(what: str) -> None:
    """Print one of LISTS."""
    columns, rows = LISTS[what]
    _print(what, columns, rows())


def print_doctor() -> None:
    """Print what this machine has."""
    facts = [(key, str(value)) for key, value in environment().items()]
    facts += [("cache", str(cache_root())), ("methods", ", ".join(METHODS)), ("attacks", ", ".join(ATTACKS))]
    facts += [(f"dataset {row[0]}", row[3]) for row in _datasets()]
    facts += [(f"weights {row.name}", "stored" if row.stored else "not stored") for row in listing()]
    _print("doctor", ("what", "found"), facts)

"""What the command line prints: rich tables on a terminal, the same rows as plain text elsewhere, or JSON."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from fdgsec.experiments.claims.tables import deciding, measured, median_seed, otherwise
from fdgsec.experiments.report.schema import AttackReport
from fdgsec.experiments.report.text import (
    HEADLINES,
    controls_of,
    described,
    headline,
    interval,
    number,
    promises,
    unread,
)
from fdgsec.experiments.run_config import RunConfig
from fdgsec.experiments.sweep.tables import named, shown, verdict
from fdgsec.privacy.ledger import review_mark
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.untrusted_text import read_json_object

Rows = Sequence[Sequence[str]]
COLUMNS = ("first", "second", "difference", "intervals")
LEGEND = (
    "Difference is second minus first. Apart: the 95% intervals share nothing, which shows a difference; that they "
    "overlap shows none, and no agreement either."
)


def console() -> Console:
    """The terminal, or 180 columns of plain text elsewhere."""
    found = Console()
    return found if found.is_terminal else Console(width=180)


def print_table(title: str, columns: Sequence[str], rows: Rows) -> None:
    """Print rows of text under a title, the first column unbroken."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=place == 0)
    for row in rows:
        table.add_row(*row)
    console().print(table)


def print_report(report: AttackReport, *, as_json: bool, out: Path) -> None:
    """Print a report: the document, or a table per attack."""
    if as_json:
        print(report.json(), end="")
        return
    terminal = console()
    terminal.print(
        f"target {report.target}, dataset {report.dataset['name']} ({report.dataset['images']} images), encoder "
        f"{report.encoder}, seed {report.seed}, profile {report.profile}{', run reused' if report.reused else ''}",
        highlight=False,
    )
    if report.accuracy is not None:
        values = {key: report.accuracy[key] for key in ("value", "low", "high")}
        value, low, high = (float(str(entry)) for entry in values.values())
        terminal.print(
            f"accuracy on the unseen domain {report.accuracy['unseen_domain']}: {value:.3f} "
            f"[{low:.3f}, {high:.3f}], n = {report.accuracy['n']}",
            highlight=False,
        )
    for line in promises(report):
        terminal.print(line, highlight=False)
    for result in report.attacks:
        if result.status == "done":
            shown = [row for row in result.measurements if headline(row)] or list(result.measurements)
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
            title = f"{result.name} by {result.adversary.get('name')}; {controls_of(result)}; {result.seconds:.1f} s"
            print_table(title, ("measurement", "slice", "value", "95% interval", "chance", "n", "verdict"), rows)
            if len(shown) < len(result.measurements):
                terminal.print(f"({len(result.measurements) - len(shown)} more rows in the report)\n", highlight=False)
        else:
            terminal.print(f"{result.name}: {result.status}: {result.reason}\n", highlight=False)
    if unread(report):
        terminal.print(unread(report), highlight=False)
    terminal.print(f"written to {out}: report.html, report.json, measurements.csv", highlight=False)


def print_stored(run: Path, *, as_json: bool) -> None:
    """Print a stored report.json. Raises UsageError where there is none."""
    path = run if run.is_file() else run / "report.json"
    if not path.is_file():
        raise UsageError(f"{run} holds no report.json; give a folder that `fdgsec attack` or `fdgsec train` wrote.")
    document = read_json_object(path, error=UsageError)
    if as_json:
        print(path.read_text(), end="")
        return
    try:
        rows = [
            (attack["name"], row["name"], ", ".join(f"{k} {v}" for k, v in row["slice"].items()), number(row["value"]),
             "" if row["low"] is None else f"[{number(row['low'])}, {number(row['high'])}]", number(row["chance"]),
             row["verdict"])
            for attack in document["attacks"] for row in attack["measurements"]
        ]  # fmt: skip
        title = f"{path}: {document['target']} on {document['dataset']['name']}, encoder {document['encoder']}"
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{path} is not a report of schema 1: {type(error).__name__} {error}.") from error
    print_table(title, ("attack", "measurement", "slice", "value", "95% interval", "chance", "verdict"), rows)


def print_dry_run(config: RunConfig, rows: Sequence[tuple[str, str]]) -> None:
    """Print which attacks would run."""
    print_table(
        f"{config.target} on {config.dataset}, profile {config.profile}, adversary {config.adversary}",
        ("attack", "plan"),
        rows,
    )


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
    print_table(f"{found['method']} on {found['dataset']}", ("score", "mean", "95% interval", "seeds"), rows)
    if out is not None:
        console().print(f"written to {out}: seeds.json and one folder per seed", highlight=False)


def print_claims(found: Mapping[str, Any], *, out: Path) -> None:
    """Print the ledger with its verdicts, and what would have decided otherwise."""
    rows = [
        (claim["id"], claim["verdict"], ", ".join(column["encoder"] for column in deciding(claim)) or "-",
         measured(seed), number(seed.get("chance")), number(claim.get("adjusted_p_value")), claim.get("reason") or "")
        for claim in found["claims"]
        for seed in [median_seed(claim)]
    ]  # fmt: skip
    columns = ("claim", "verdict", "decided by", "measured, median seed", "chance", "Holm's p", "note")
    print_table(f"claims on {found['dataset']}", columns, rows)
    print_table("which encoder and seed would have decided otherwise", *otherwise(found))
    console().print(f"written to {out}: claims.html, claims.md, claims.json and a report per run", highlight=False)


def print_sweep(found: Mapping[str, Any], *, out: Path) -> None:
    """Print a sweep's curves and what hiding costs."""
    attacks = list(found["followed"])
    accuracy = {point["value"]: point["score"] for point in found["accuracy"]}
    rows = [
        (named(point["value"]), *(shown(point["rows"][name]) for name in attacks), _score(accuracy.get(point["value"])))
        for point in found["privacy"]
    ]
    title = f"{found['target']} on {found['dataset']}, {found['finished']} of {found['planned']} points"
    print_table(title, (found["option"], *attacks, "accuracy"), rows)
    console().print(verdict(found), highlight=False)
    console().print(f"written to {out}: sweep.json, sweep.csv, sweep.md and figures", highlight=False)


def print_audit(found: Mapping[str, Any], *, out: Path) -> None:
    """Print an audit: the claim, the bound with its ceiling beside it, and what neither of them says."""
    terminal, defense = console(), found["defense"]
    options = ", ".join(f"{key}={value}" for key, value in defense["options"].items())
    repeats = f"median of {found['repeats']} audits, " if found["repeats"] > 1 else ""
    curve, most = found["gaussian_bound"], found["gaussian_ceiling"]
    capped = (
        "; the ceiling is under the claim, which this audit could not have failed"
        if max(found["ceiling"], most or 0.0) <= found["claimed_epsilon"]
        else ""
    )
    whole = [] if curve is None else [f"of the Gaussian curve: epsilon {curve:.3f}, ceiling {most:.3f} (same guesses)"]
    bound, claimed = found["scale_bound"], found["scale_claim"]
    few = [] if claimed is None else [f"few records: size of the noise: epsilon {bound:.3f}, claim {claimed:.4g}"]
    for line in (
        f"target {found['target']}, dataset {found['dataset']}, defense {defense['name']}({options})",
        (f"claim: epsilon {found['claimed_epsilon']:.4g} at delta {found['delta']:g} per {found['unit']} "
        f"({found['relation']}), over {', '.join(found['covers'])}{review_mark(found)}"),
        (f"lower bound: epsilon {found['lower_bound']:.3f}, ceiling {found['ceiling']:.3f} ({repeats}"
        f"{found['confidence']:.0%} confidence, {found['auditor']}, {found['runs']} runs){capped}"),
        *whole,
        f"canary: {found['canary']}",
        f"bounds above the claim: {found['above'] if curve is None else found['gaussian_above']} of {found['repeats']}",
        *few,
        f"noise: {found['noise']}",
        f"FAILED: {'; '.join(found['faults'])}" if found["faults"] else "no fault found",
        str(found["note"]),
        f"written to {out}: audit.json",
    ):  # fmt: skip
        terminal.print(line, highlight=False, markup=False)


def _score(score: Mapping[str, Any] | None) -> str:
    return "" if score is None else f"{score['value']:.3f} (n = {score['n']})"


def print_comparison(found: Mapping[str, Any], *, every: bool) -> None:
    """Print two runs side by side: the settings that differ, accuracies, and `every` measurement or the headlines."""
    for reason in found["unlike"]:
        print(f"not alike: {reason}; differences below are not those of the settings alone")
    for place, run in zip(("first", "second"), found["runs"], strict=True):
        print(
            f"{place}: {run['folder']}: {run['method']} ({run['target']}) on {run['dataset']}, "
            f"unseen {run['unseen_domain']}, encoder {run['encoder']}, seed {run['seed']}, profile {run['profile']}"
        )
    settings = [(row["name"], str(row["first"]), str(row["second"])) for row in found["settings"]]
    print_table("settings that differ", ("setting", "first", "second"), settings)
    scores = [(row["score"], *_compared(row)) for row in found["accuracy"]]
    if scores:
        print_table("accuracy", ("score", *COLUMNS), scores)
    _print_compared(found, every=every)
    print(LEGEND)


def _print_compared(found: Mapping[str, Any], *, every: bool) -> None:
    ended = [(row["name"], row["first"], row["second"]) for row in found["attacks"]]
    if ended:
        print_table("attacks that ended differently", ("attack", "first", "second"), ended)
    rows = [row for row in found["measurements"] if every or row["name"] in HEADLINES]
    shown = [
        (
            row["attack"],
            row["name"],
            ", ".join(f"{key} {value}" for key, value in row["slice"].items()),
            *_compared(row),
        )
        for row in rows
    ]
    if shown:
        print_table("measurements", ("attack", "measurement", "slice", *COLUMNS), shown)
    left = len(found["measurements"]) - len(rows)
    lone = len(found["only_first"]), len(found["only_second"])
    if left:
        console().print(f"({left} more rows with --all)", highlight=False)
    if any(lone):
        console().print(
            f"({lone[0]} measurements are of the first run alone, {lone[1]} of the second)", highlight=False
        )


def _compared(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    apart = {None: "", True: "overlap", False: "apart"}[row["overlap"]]
    difference = "" if row["difference"] is None else f"{row['difference']:+.3g}"
    return _measured(row["first"]), _measured(row["second"]), difference, apart


def _measured(part: Mapping[str, Any] | None) -> str:
    if part is None:
        return "-"
    if part["value"] is None:
        return "unavailable"
    bounds = "" if part.get("low") is None else f" [{number(part['low'])}, {number(part['high'])}]"
    return f"{number(part['value'])}{bounds}"

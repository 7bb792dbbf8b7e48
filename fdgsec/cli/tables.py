"""What the command line prints: rich tables on a terminal, the same rows as plain text elsewhere, or JSON."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from fdgsec.experiments.bench.web_page import possible
from fdgsec.experiments.claims.tables import deciding, measured, mechanics, median_seed, otherwise
from fdgsec.experiments.report.text import number
from fdgsec.experiments.run_config import RunConfig
from fdgsec.experiments.sweep.tables import named, reservations, shown, verdict
from fdgsec.privacy.ledger import epsilon_text, review_mark

Rows = Sequence[Sequence[str]]


def console() -> Console:
    """The terminal, or plain text elsewhere, of as many columns as COLUMNS says: 180 without it.

    Brackets are text: limits have them, and names may."""
    found = Console(markup=False)
    return found if found.is_terminal or os.environ.get("COLUMNS", "").isdecimal() else Console(width=180, markup=False)


def print_table(title: str, columns: Sequence[str], rows: Rows) -> None:
    """Print rows of text under a title, the first column unbroken."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=place == 0)
    for row in rows:
        table.add_row(*row)
    console().print(table)


def print_rows(title: str, columns: Sequence[str], rows: Rows, *, as_json: bool) -> None:
    """Print rows of text as a table, or as a JSON list with an object per row."""
    if as_json:
        print(json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=1))
    else:
        print_table(title, columns, rows)


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
    if "adapted" in found:
        scores[f"accuracy after {found['adapted']['adaptation']}"] = found["adapted"]
    if "validation_domain" in found:
        scores[f"accuracy on {found['validation_domain']['domain']} (unseen as well)"] = found["validation_domain"]
    scores |= {f"validation accuracy on {domain}": mean for domain, mean in found["per_domain"].items()}
    scores |= {"validation accuracy, mean over own domains": found["own_domains"]} if "own_domains" in found else {}
    shares = any("majority_share" in mean for mean in scores.values())
    rows = [
        (
            name,
            f"{mean['value']:.3f}",
            "" if mean["low"] is None else "[{low:.3f}, {high:.3f}]".format(**possible(mean)),
            *([f"{mean['majority_share']:.3f}" if "majority_share" in mean else ""] if shares else []),
            str(mean["n"]),
        )
        for name, mean in scores.items()
    ]
    header = ("score", "mean", "95% interval", *(["always naming the most frequent class"] if shares else []), "seeds")
    print_table(f"{found['method']} on {found['dataset']}", header, rows)
    if out is not None:
        console().print(f"written to {out}: seeds.html, seeds.json and one folder per seed", highlight=False)


def print_claims(found: Mapping[str, Any], *, out: Path) -> None:
    """Print the ledger with its verdicts, and what would have decided otherwise."""
    if said := mechanics(found):
        console().print(said, highlight=False)
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
    for line in (verdict(found), *reservations(found)):
        console().print(line, highlight=False)
    console().print(f"written to {out}: sweep.html, sweep.json, sweep.csv, sweep.md and figures", highlight=False)


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
    verdict = f"no fault found in {found['tried']}"
    if found["faults"]:
        verdict = f"FAILED: {'; '.join(found['faults'])}"
    few = []
    if claimed is not None:
        few = [f"few records: size of the noise: epsilon {bound:.3f}, claim {epsilon_text(claimed)}"]
    for line in (
        f"target {found['target']}, dataset {found['dataset']}, defense {defense['name']}({options})",
        (f"claim: epsilon {epsilon_text(found['claimed_epsilon'])} at delta {found['delta']:g} per {found['unit']} "
        f"({found['relation']}), over {', '.join(found['covers'])}{review_mark(found)}"),
        (f"lower bound: epsilon {found['lower_bound']:.3f}, ceiling {found['ceiling']:.3f} ({repeats}"
        f"{found['confidence']:.0%} confidence, {found['auditor']}, {found['runs']} runs){capped}"),
        *whole,
        f"canary: {found['canary']}",
        f"bounds above the claim: {found['above'] if curve is None else found['gaussian_above']} of {found['repeats']}",
        *few,
        f"noise: {found['noise']}",
        verdict,
        *([f"not tested: {'; '.join(found['untested'])}"] if found["untested"] else []),
        str(found["note"]),
        f"written to {out}: audit.json",
    ):  # fmt: skip
        terminal.print(line, highlight=False, markup=False)


def _score(score: Mapping[str, Any] | None) -> str:
    return "" if score is None else f"{score['value']:.3f} (n = {score['n']})"

"""The claims ledger as Markdown and as a single HTML page."""

from collections.abc import Mapping
from html import escape
from typing import Any

COLUMNS = ("Paper", "Claim, in our words", "Decisive attack", "Measured", "Chance", "n", "Verdict")
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; color: #1b1f24; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .45rem .6rem; border-bottom: 1px solid #d8dee4; }
td:nth-child(1) { width: 7rem; } td:nth-child(2) { width: 42%; }
td:nth-child(3) { width: 11rem; overflow-wrap: anywhere; }
td:nth-child(4) { width: 9rem; }
td:nth-child(4), td:nth-child(5), td:nth-child(6) { font-variant-numeric: tabular-nums; }
code { font-size: 12px; overflow-wrap: anywhere; color: #57606a; }
.verdict { font-weight: 600; white-space: nowrap; }
.refuted { color: #b42318; } .supported { color: #1a7f37; } .undecided, .not-run { color: #57606a; }
small { color: #57606a; }
"""


def measured(row: Mapping[str, Any]) -> str:
    """The decisive number with its interval, or a dash."""
    if row["value"] is None:
        return "-"
    return f"{row['measurement']} {row['value']:.3g} [{row['low']:.3g}, {row['high']:.3g}]"


def population(row: Mapping[str, Any]) -> str:
    """The slice of the decisive row in words."""
    return ", ".join(f"{key} {value}" for key, value in (row["slice"] or {}).items())


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    who = "" if row["adversary"] == "server" else f" by a {row['adversary']}"
    attack = f"{row['attack']}{who} on {row['target']}" + (f" ({row['encoder']})" if row["encoder"] else "")
    chance = "-" if row["chance"] is None else f"{row['chance']:.3g}"
    return (
        f"{row['paper']} {row['section']}", row["claim"], attack, measured(row), chance,
        "-" if row["n"] is None else str(row["n"]), row["verdict"],
    )  # fmt: skip


def markdown(document: Mapping[str, Any]) -> str:
    """The table, followed by the rule, population and command of each claim."""
    lines = [f"# Claims on {document['dataset']} ({document['profile']}, seed {document['seed']})", ""]
    lines += ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in _cells(row)) + " |" for row in document["claims"]]
    lines += ["", _legend(), ""]
    for row in document["claims"]:
        lines += [f"## {row['id']}", "", f"Rule: {row['rule']}", ""]
        lines += [f"Population: {population(row)} (of {row['populations']}).", ""] if row["slice"] else []
        lines += [f"Note: {row['reason']}.", ""] if row["reason"] else []
        lines += ["```sh", row["command"], "```", ""]
    return "\n".join(lines)


def page(document: Mapping[str, Any]) -> str:
    """A self-contained HTML page."""
    title = f"Claims on {escape(document['dataset'])}"
    head = "".join(f"<th>{escape(name)}</th>" for name in COLUMNS)
    body = "".join(_row(row) for row in document["claims"])
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head><body><h1>{title}</h1>"
        f"<p>Profile {escape(document['profile'])}, seed {document['seed']}. {escape(_legend())}</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></body></html>\n"
    )


def _row(row: Mapping[str, Any]) -> str:
    *cells, verdict = _cells(row)
    notes = [row["rule"], population(row), row["reason"]]
    under = "<br>".join(f"<small>{escape(note)}</small>" for note in notes if note)
    cells[1] = f"{escape(cells[1])}<br>{under}<br><code>{escape(row['command'])}</code>"
    shown = "".join(f"<td>{cell if number == 1 else escape(cell)}</td>" for number, cell in enumerate(cells))
    kind = verdict.replace(" ", "-")
    return f'<tr id="{escape(row["id"])}">{shown}<td class="verdict {kind}">{escape(verdict)}</td></tr>'


def _legend() -> str:
    return (
        "Refuted: the lower bound exceeds chance plus margin in some population, after Bonferroni over populations and "
        "Holm over the ledger. Supported: every population's upper bound is under it, and the positive control was "
        "passed. The number shown is the weakest criterion of the population that is strongest against the claim; "
        "intervals are 95%."
    )

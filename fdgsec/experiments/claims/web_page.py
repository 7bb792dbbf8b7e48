"""The claims ledger as a single HTML page."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fdgsec.experiments.claims.tables import (
    Table,
    beyond_rows,
    facts,
    legend,
    otherwise,
    overview,
    registration_text,
    seed_rows,
    title,
)

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; color: #1b1f24; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: .6rem 0 1.2rem; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem; border-bottom: 1px solid #d8dee4; }
td { font-variant-numeric: tabular-nums; overflow-wrap: break-word; }
.overview td:nth-child(2) { width: 38%; overflow-wrap: normal; }
.overview td:nth-child(1) { width: 12rem; }
h2 { margin-top: 2.2rem; } h3 { margin: 1.8rem 0 .3rem; }
blockquote { margin: .3rem 0 .3rem 1rem; padding-left: .8rem; border-left: 3px solid #d8dee4; }
dl { display: grid; grid-template-columns: 9rem 1fr; gap: .2rem .8rem; } dt { color: #57606a; } dd { margin: 0; }
code { font-size: 12px; overflow-wrap: anywhere; color: #57606a; }
.verdict { font-weight: 600; }
.contradicted { color: #b42318; } .supported { color: #1a7f37; }
.undecided, .not-run, .not-a-testable-claim { color: #57606a; }
small, .beyond { color: #57606a; }
"""
VERDICTS = ("contradicted", "supported", "undecided", "not run", "not a testable claim")


def page(document: Mapping[str, Any]) -> str:
    """A self-contained page: an overview, what would have decided otherwise, and every claim with all its numbers."""
    heading = escape(title(document))
    claims = "".join(_claim(claim) for claim in document["claims"])
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{heading}</title>'
        f"<style>{STYLE}</style></head><body><h1>{heading}</h1>"
        f"<p>{escape(registration_text(document))}</p><p><small>{escape(legend(document))}</small></p>"
        f"{_table(overview(document), kind='overview', linked=True)}"
        f"<h2>Which encoder and seed would have decided otherwise</h2>{_table(otherwise(document), linked=True)}"
        f"<h2>The claims</h2>{claims}</body></html>\n"
    )


def _claim(claim: Mapping[str, Any]) -> str:
    quotes = "".join(f"<blockquote>&ldquo;{escape(quote)}&rdquo;</blockquote>" for quote in claim["quotes"])
    told = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts(claim))
    numbers = ""
    if "columns" in claim:
        numbers = f"{_table(seed_rows(claim))}<p><code>{escape(claim['command'])}</code></p>"
    notes = "".join(
        f'<p class="beyond">Beyond the claim ({escape(note["attack"])} on {escape(note["target"])}): '
        f"{escape(note['says'])}.</p>{_table(beyond_rows(note))}"
        for note in claim["beyond"]
    )
    return (
        f'<section id="{escape(claim["id"])}"><h3>{escape(claim["id"])}: {_verdict(claim["verdict"])}</h3>'
        f"<p>{escape(claim['paper'])}, {escape(claim['section'])}</p>{quotes}<dl>{told}</dl>{numbers}{notes}</section>"
    )


def _table(table: Table, *, kind: str = "", linked: bool = False) -> str:
    columns, rows = table
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(_row(row, linked=linked) for row in rows)
    return f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _row(row: Sequence[str], *, linked: bool) -> str:
    cells = [_verdict(cell) if cell in VERDICTS else escape(cell) for cell in row]
    if linked:
        cells[0] = f'<a href="#{escape(row[0])}">{cells[0]}</a>'
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _verdict(verdict: str) -> str:
    return f'<span class="verdict {verdict.replace(" ", "-")}">{escape(verdict)}</span>'

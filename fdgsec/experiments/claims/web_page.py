"""The claims ledger as a single HTML page."""

from collections.abc import Mapping, Sequence
from typing import Any

from fdgsec.experiments.claims.tables import (
    Table,
    beyond_rows,
    beyond_text,
    facts,
    legend,
    mechanics,
    otherwise,
    overview,
    registration_text,
    seed_rows,
    title,
)
from fdgsec.experiments.report.pages import page as filled
from fdgsec.experiments.report.words import listed

VERDICTS = ("contradicted", "supported", "undecided", "not run", "not a testable claim")


def page(document: Mapping[str, Any]) -> str:
    """A self-contained page: an overview, what would have decided otherwise, and every claim with all its numbers."""
    return filled(
        "claims.html", title=title(document),
        contents=[("overview", "Overview"), ("otherwise", "Decided otherwise"), ("claims", "The claims")],
        sentence=_sentence(document), registration=registration_text(document), legend=legend(document),
        overview=_judged(overview(document)), otherwise=_judged(otherwise(document)),
        claims=[_claim(claim) for claim in document["claims"]],
    ) + "\n"  # fmt: skip


def _judged(table: Table) -> tuple[Sequence[str], list[list[object]]]:
    """A table whose verdicts have their mark and color."""
    columns, rows = table
    return columns, [[_verdict(cell) if cell in VERDICTS else cell for cell in row] for row in rows]


def _verdict(word: str) -> Mapping[str, str]:
    return {"words": word, "css": {"contradicted": "leaks", "supported": "calm"}.get(word, "open"), "small": ""}


def _sentence(document: Mapping[str, Any]) -> str:
    """How many claims have which verdict: `Of 14 claims, 4 contradicted, 4 supported and 6 undecided.`"""
    found = [claim["verdict"] for claim in document["claims"]]
    counts = [f"{found.count(verdict)} {verdict}" for verdict in VERDICTS if verdict in found]
    said = f"Of {len(found)} {'claim' if len(found) == 1 else 'claims'}, {listed(counts)}."
    return f"{mechanics(document)} {said}".lstrip()


def _claim(claim: Mapping[str, Any]) -> Mapping[str, object]:
    measured = "columns" in claim
    return {
        "id": claim["id"], "verdict": _verdict(claim["verdict"]), "source": f"{claim['paper']}, {claim['section']}",
        "quotes": claim["quotes"], "facts": list(facts(claim)), 
        "seeds": _judged(seed_rows(claim)) if measured else None,
        "command": claim["command"] if measured else "",
        "beyond": [
            (beyond_text(note), beyond_rows(note) if note["rows"] else None) for note in claim["beyond"]
        ],
    }  # fmt: skip

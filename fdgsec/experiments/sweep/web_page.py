"""The page of a sweep: what hiding costs, attacks and accuracy by value with intervals, guarantees."""

from collections.abc import Mapping
from typing import Any

from fdgsec.experiments.bench.web_page import score_bar
from fdgsec.experiments.report.bars import bar_in_words
from fdgsec.experiments.report.html import css_of, webp
from fdgsec.experiments.report.pages import page as filled
from fdgsec.experiments.report.words import MEASURE_WORDS, rate, short
from fdgsec.experiments.sweep.tables import cells_of, named, notes, verdict
from fdgsec.privacy.ledger import epsilon_text

Row = Mapping[str, Any]
TITLES: Mapping[str, str] = {
    "noise": "Attack success, and accuracy where it was measured, over the option. Defenses grow stronger to the right",
    "pareto": "Accuracy on the unseen domain against attack success, a panel per attack",
}


def page(found: Row, drawn: Mapping[str, bytes]) -> str:
    """A self-contained page of sweep.json and its figures."""
    columns, rows = cells_of(found)
    return filled(
        "sweep.html", title=f"{found['target']} on {found['dataset']} under {' then '.join(found['defenses'])}",
        contents=[("figures", "Figures"), ("attacks", "Attacks"), ("accuracy", "Accuracy"), ("guarantee", "Guarantees"),
                  ("table", "Table"), ("made", "How this was made")],
        sentence=verdict(found), option=found["option"], notes=notes(found), skipped=found["skipped"],
        figures=[(name, TITLES[name], webp(png)) for name, png in drawn.items()],
        attacks=[(f"{name}: {_measure(found, name)}", _bars(found, name)) for name in found["followed"]],
        accuracy=_accuracy(found), differences=_differences(found), table_columns=columns, table_rows=rows,
        guarantees=_guarantees(found), facts=_facts(found),
    ) + "\n"  # fmt: skip


def _measure(found: Row, name: str) -> str:
    measurement = str(found["followed"][name]["measurement"])
    where = ", ".join(f"{key} {said}" for key, said in found["followed"][name]["slice"].items())
    return f"{MEASURE_WORDS.get(measurement, measurement)}" + (f" ({where})" if where else "")


def _bars(found: Row, name: str) -> list[Mapping[str, object]]:
    bars = []
    for point in found["privacy"]:
        row, label = point["rows"].get(name), _at(found, point["value"])
        if row is None or row["value"] is None:
            bars.append(bar_in_words(label, "", {"value": None}, css="open", said="", small="", note="not measured"))
            continue
        bounds = "" if row["low"] is None else f" [{short(row['low'])}, {short(row['high'])}]"
        small = f"{rate(row['value'])}{bounds}" + ("" if row["chance"] is None else f", baseline {rate(row['chance'])}")
        css = css_of(row["verdict"])
        bars.append(bar_in_words(label, f"n = {row['n']:,}", row, css=css, said=row["verdict"], small=small))
    return bars


def _at(found: Row, value: float | None) -> str:
    return named(None) if value is None else f"{found['option']} {named(value)}"


def _accuracy(found: Row) -> list[Mapping[str, object]]:
    bars = []
    for point in found["accuracy"]:
        label = _at(found, point["value"])
        bars.append(score_bar(label, "unseen domain", point["score"]))
        if point.get("own_domains") is not None:
            bars.append(score_bar(label, "own domains", point["own_domains"]))
    return bars


def _differences(found: Row) -> list[tuple[str, str, str, str]]:
    rows = []
    for point in found["accuracy"]:
        gap, steps = point["difference"], point.get("steps")
        bounds = "" if gap is None or gap["low"] is None else f" [{100 * gap['low']:+.1f}, {100 * gap['high']:+.1f}]"
        said = "\u2013" if gap is None else f"{100 * gap['value']:+.1f}{bounds}"
        said += "".join(f" ({note})" for note in point.get("notes", ()))
        sent = point.get("bytes_per_round_and_client")
        rows.append((
            _at(found, point["value"]), said, "\u2013" if steps is None else f"{steps:,.4g}",
            "\u2013" if sent is None else f"{sum(sent['up'].values()):,.0f}",
        ))  # fmt: skip
    return rows


def _guarantees(found: Row) -> list[tuple[str, str, str]]:
    rows = []
    for what, points in (("attacked exchange", found["privacy"]), ("trained run", found["accuracy"])):
        for point in points:
            stated = [each for each in point["guarantees"] if each["part"] == "run"]
            said = "; ".join(_stated(each) for each in stated) or "none: no defense"
            rows.append((_at(found, point["value"]), what, said))
    return rows


def _stated(each: Row) -> str:
    if each["epsilon"] is None:
        return f"none, unprotected: {', '.join(each.get('uncovered', ())) or 'everything'}"
    return f"epsilon {epsilon_text(each['epsilon'])} at delta {each['delta']:g} per {each['unit']} ({each['relation']})"


def _facts(found: Row) -> list[tuple[str, str]]:
    known = {
        "target": found["target"], "dataset": found["dataset"], "protocol of accuracies": found["protocol"],
        "profile": found["profile"], "points": f"{found['finished']} of {found['planned']}",
        "controls failed": f"at {found['controls']['failed']} of {found['controls']['points']} points",
        **found["environment"],
    }  # fmt: skip
    return [(str(name), str(value)) for name, value in known.items() if value not in ("", None)]

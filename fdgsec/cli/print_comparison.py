"""A comparison on the terminal: what does not compare first, then a table of questions by run for each group."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from fdgsec.cli.print_report import COLORS
from fdgsec.cli.tables import console, print_table
from fdgsec.experiments.compare.web_page import difference, grouping, row_name, sentence, settings_rows, value_text
from fdgsec.runtime.progress import output

Row = Mapping[str, Any]
LEGEND = (
    "Differences are from the first run of a line that has the row. Intervals that are apart show a difference; "
    "intervals that overlap show neither a difference nor equality."
)


def print_comparison(found: Row, *, every: bool, out: Path) -> None:
    """Print runs side by side: reasons against a comparison, the answer, settings that differ, and per group the
    headlines, or `every` measurement."""
    for reason in found["unlike"]:
        _line(f"not comparable: {reason}")
    if found["unlike"]:
        _line(f"{grouping(found)}; numbers stand beside each other only where runs are comparable")
    _line(sentence(found))
    if output().quiet:
        return
    labels = [run["label"] for run in found["runs"]]
    for run in found["runs"]:
        promised = "; ".join(run["promises"]) or "no defense"
        _line(f"{run['label']}: {run['folder']}; sends {run['sent']}; {promised}")
    if found["settings"]:
        print_table("settings that differ", ("setting", *labels), settings_rows(found))
    if found["attacks"]:
        ended = [(row["name"], *row["values"]) for row in found["attacks"]]
        print_table("attacks that ended differently", ("attack", *labels), ended)
    for group in found["groups"]:
        _print_group(found, group, [labels[number] for number in group], every=every)
    _line(LEGEND)
    _line(f"written to {out}: comparison.html, comparison.json")


def _line(text: str) -> None:
    console().print(text, highlight=False, markup=False)


def _print_group(found: Row, group: Sequence[int], labels: Sequence[str], *, every: bool) -> None:
    scores = [(row["score"], *_values(row)) for row in found["accuracy"] if row["runs"] == group]
    if scores:
        unlike = next(row["unlike"] for row in found["accuracy"] if row["runs"] == group)
        print_table(f"accuracy{f' (not like for like: {unlike})' if unlike else ''}", ("score", *labels), scores)
    _print_questions(found, group, labels)
    measured = [row for row in found["measurements"] if row["runs"] == group]
    if every and measured:
        print_table("measurements", ("measurement", *labels), [(_name(row), *_values(row)) for row in measured])
    shown = {_identity(row) for row in found["headlines"]}
    left = sum(_identity(row) not in shown for row in measured)
    if left and not every:
        _line(f"({left} more rows with --all)")
    lone = [f"{found['alone'][number]} of {label}" for number, label in zip(group, labels, strict=True)]
    if len(group) > 1 and any(found["alone"][number] for number in group):
        _line(f"(measurements of one run alone: {', '.join(lone)})")


def _print_questions(found: Row, group: Sequence[int], labels: Sequence[str]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("question, attack: measurement", *labels):
        table.add_column(column, overflow="fold")
    for question in found["questions"]:
        answers = [question["answers"][number] for number in group]
        rows = [row for row in found["headlines"] if row["question"] == question["question"] and row["runs"] == group]
        if not rows:
            continue
        words = [Text(answer["size"], style=COLORS.get(answer["size"], "dim")) for answer in answers]
        table.add_row(Text(question["asks"], style="bold"), *words)
        for row in rows:
            table.add_row(f"  {_name(row)}", *_values(row))
    if table.row_count:
        console().print(table)


def _identity(row: Row) -> tuple[str, ...]:
    return row["attack"], row["adversary"], row["name"], str(sorted(row["slice"].items(), key=str))


def _name(row: Row) -> str:
    return row_name(row) + (f"; not like for like ({row['unlike']})" if row["unlike"] else "")


def _values(row: Row) -> list[str]:
    gaps = [difference(row, place) for place in range(len(row["values"]))]
    return [value_text(value) + (f" ({gap})" if gap else "") for value, gap in zip(row["values"], gaps, strict=True)]

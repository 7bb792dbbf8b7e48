"""`fdgsec compare`: two finished runs side by side."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fdgsec.cli.options import AsJson
from fdgsec.cli.tables import console, print_table
from fdgsec.experiments.report.text import HEADLINES, number

First = Annotated[Path, typer.Argument(help="A run's folder (or its report.json).", metavar="RUN")]
Second = Annotated[Path, typer.Argument(help="Another one.", metavar="RUN")]
All = Annotated[bool, typer.Option("--all", help="Every measurement, not just those that stand for their attack.")]
LEGEND = (
    "Difference is second minus first. Apart: the 95% intervals share nothing, which shows a difference; that they overlap shows "
    "none, and no agreement either."
)


def command(first: First, second: Second, every: All = False, as_json: AsJson = False) -> int:
    """Show which settings of two runs differ, and their accuracies and measurements side by side."""
    from fdgsec.experiments.compare import compare

    found = compare(first, second)
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return 0
    for reason in found["unlike"]:
        typer.echo(f"not alike: {reason}; differences below are not those of the settings alone")
    for place, run in zip(("first", "second"), found["runs"], strict=True):
        typer.echo(
            f"{place}: {run['folder']}: {run['method']} ({run['target']}) on {run['dataset']}, unseen {run['unseen_domain']}, "
            f"encoder {run['encoder']}, seed {run['seed']}, profile {run['profile']}"
        )
    settings = [(row["name"], str(row["first"]), str(row["second"])) for row in found["settings"]]
    print_table("settings that differ", ("setting", "first", "second"), settings)
    scores = [(row["score"], *_cells(row)) for row in found["accuracy"]]
    if scores:
        print_table("accuracy", ("score", *COLUMNS), scores)
    _print_measurements(found, every=every)
    typer.echo(LEGEND)
    return 0


COLUMNS = ("first", "second", "difference", "intervals")


def _print_measurements(found: Mapping[str, Any], *, every: bool) -> None:
    ended = [(row["name"], row["first"], row["second"]) for row in found["attacks"]]
    if ended:
        print_table("attacks that ended differently", ("attack", "first", "second"), ended)
    rows = [row for row in found["measurements"] if every or row["name"] in HEADLINES]
    shown = [
        (row["attack"], row["name"], ", ".join(f"{key} {value}" for key, value in row["slice"].items()), *_cells(row))
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


def _cells(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    apart = {None: "", True: "overlap", False: "apart"}[row["overlap"]]
    difference = "" if row["difference"] is None else f"{row['difference']:+.3g}"
    return _cell(row["first"]), _cell(row["second"]), difference, apart


def _cell(part: Mapping[str, Any] | None) -> str:
    if part is None:
        return "-"
    if part["value"] is None:
        return "unavailable"
    bounds = "" if part.get("low") is None else f" [{number(part['low'])}, {number(part['high'])}]"
    return f"{number(part['value'])}{bounds}"

"""docs/bench.md lists every protocol, and for every table of the papers its protocol or the reason why there is none."""

import re
from pathlib import Path

import pytest

from fdgsec.experiments.bench.protocols import Protocol, protocol_named, protocols

PAGE = (Path(__file__).parents[2] / "docs" / "bench.md").read_text()
TABLES = {
    "CCST": ["1", "2a", "2b", "3", "4", "5"],
    "StableFDG": ["1", "2", "3", "4a", "4b", *map(str, range(5, 18))],
    "FISC": ["1", "2", "3", "6", "7", "8", "9", "10", "11"],  # 4 and 5: settings, concepts
    "FedAlign": ["1"],  # 2: data sets
    "FedDAG": ["I", "II", "III", "IV", "V", "VI", "VII"],
}
"""The tables of the five papers that hold results."""
FIGURES = {
    "CCST": ["4a", "4b"],
    "StableFDG": ["4"],
    "FISC": ["5", "10"],
    "FedAlign": ["4"],
    "FedDAG": ["5", "6", "7", "10"],
}
"""Their figures that vary a setting."""
NAMES = {name: "protocol" for name in protocols()} | {name: "ablation" for name in protocols("ablation")}


def rows_of(heading: str) -> list[list[str]]:
    """The cells of the table under a heading, without its first two lines."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


ROWS = rows_of("Protocols per paper table")
each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} {row[1]}")


def table(name: str) -> Protocol:
    return protocol_named(name, "ablation" if NAMES[name] == "ablation" else "protocol")


def test_every_table_and_figure_of_the_five_papers_is_listed_once():
    listed = [(paper, place) for paper, place, *_ in ROWS]

    wanted = [(paper, f"Table {number}") for paper, numbers in TABLES.items() for number in numbers]
    wanted += [(paper, f"Figure {number}") for paper, numbers in FIGURES.items() for number in numbers]
    assert set(wanted) <= set(listed)
    assert len(set(listed)) == len(listed)


@each_row
def test_a_listed_protocol_resolves_and_where_none_is_a_reason_stands(row: list[str]):
    _, _, cell, missing = row

    names = re.findall(r"`([^`]+)`", cell)
    assert (cell == "-") == (not names)
    assert names or missing
    for name in names:
        assert table(name).arms


@each_row
def test_a_table_without_a_remark_is_the_source_of_a_protocols_numbers(row: list[str]):
    paper, place, cell, missing = row

    if not missing:
        sources = [table(name).source for name in re.findall(r"`([^`]+)`", cell)]
        number = place.removeprefix("Table ")
        assert any(re.search(rf"^{paper}, Tables? .*\b{number}\b", source) for source in sources)


def test_every_protocol_with_a_papers_numbers_is_in_that_list_and_every_protocol_in_a_table_of_the_page():
    listed = {name for row in ROWS for name in re.findall(r"`([^`]+)`", row[2])}
    described = {row[0].strip("`") for heading in ("Protocols", "Ablations") for row in rows_of(heading)}

    assert {name for name in NAMES if table(name).source} <= listed
    assert described == set(NAMES)

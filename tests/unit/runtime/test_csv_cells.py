"""What a table writes of somebody's names is text in a spreadsheet, on one line."""

import csv
import io

import pytest

from fdgsec.runtime.csv_cells import csv_text, safe_cells


@pytest.mark.parametrize("name", ["=1+1", "+cmd|x", "-2+3", "@SUM(A1)", "  =1", "\t=1", "＝1", "=\n1"])
def test_what_a_spreadsheet_would_compute_is_text(name: str):
    (cell,) = safe_cells([name])

    assert str(cell).startswith("'") or not str(cell).lstrip()[:1] in "=+-@"


@pytest.mark.parametrize("name", ["a\nb", "a\r\nb", "bell\x07", "\x1b[31m", "\u202egnp", "\ud800", "line\u2028end"])
def test_control_characters_are_escaped_and_a_row_stays_one_line(name: str):
    buffer = io.StringIO()

    csv.writer(buffer, lineterminator="\n").writerow(safe_cells([name, "x"]))

    assert buffer.getvalue().encode().decode().count("\n") == 1
    assert buffer.getvalue().rstrip("\n").isprintable()


@pytest.mark.parametrize("cell", [-0.5, 3, None, "-0.5", "-1e-9", "-", "", "client:0", "a, b", "x-y", "A-1"])
def test_numbers_and_plain_names_stay_as_they_are(cell: object):
    assert safe_cells([cell]) == [cell]


def test_a_table_has_its_columns_and_no_row_that_a_spreadsheet_would_compute():
    found = csv_text(["name", "value"], [["=1+1", 0.5], ["client:0", -1]])

    assert found == "name,value\n'=1+1,0.5\nclient:0,-1\n"

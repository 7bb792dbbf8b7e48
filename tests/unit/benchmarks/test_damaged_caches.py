"""Every kind of cached file of a small run, damaged at a hundred places: never read back, always said."""

from pathlib import Path

import pytest

from benchmarks.damaged_caches import POSITIONS, Kind, damage, kinds

KINDS = 9


@pytest.mark.slow
def test_no_damaged_entry_of_any_kind_is_used(own_cache: Path, tmp_path: Path):
    rows = [damage(kind) for kind in kinds(tmp_path)]

    assert len(rows) == KINDS
    assert [(row.name, row.silent) for row in rows if row.silent] == []
    assert all(row.damaged == row.said == 2 * POSITIONS for row in rows if row.size >= POSITIONS)


def test_an_entry_that_is_used_although_it_was_damaged_counts_as_silent(own_cache: Path, tmp_path: Path):
    (tmp_path / "entry").write_bytes(b"x" * 200)

    row = damage(
        Kind(name="unchecked", path=tmp_path / "entry", read=lambda: (tmp_path / "entry").read_bytes()), positions=10
    )

    assert (row.damaged, row.said, row.silent) == (20, 0, 20)

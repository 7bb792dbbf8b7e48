"""The matrix of targets, defenses, adversaries and attacks: some cells anew, and what is stored of all."""

import random
from collections.abc import Iterator

import pytest

from benchmarks.attack_matrix import Key, brief_inversion, cell, cells, stored, table

SAMPLE = random.Random(0).sample(list(cells()), 10)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FDGSEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def check(row: dict[str, object]) -> None:
    attacks = row.get("attacks", {})
    assert isinstance(attacks, dict)
    assert "fault" not in row
    assert row.get("refused") or attacks
    assert {name: reason for name, (status, reason) in attacks.items() if status == "failed"} == {}
    assert all(reason for status, reason in attacks.values() if status == "skipped")
    assert row.get("dry_run_differs", []) == []


@pytest.mark.slow
@pytest.mark.parametrize("key", SAMPLE, ids=lambda key: "-".join(part or "none" for part in key))
def test_a_cell_is_refused_or_each_of_its_attacks_is_done_or_skipped_for_a_reason(key: Key):
    with brief_inversion():
        check(cell(*key))


@pytest.mark.parametrize(
    "key",
    [
        ("shuffle", "server", "ccst-overall"),
        ("secure-aggregation", "server", "fedavg"),
        pytest.param(("k-anonymous", "client", "ccst-single"), marks=pytest.mark.slow),
        pytest.param(("", "client", "fpl"), marks=pytest.mark.slow),
    ],
    ids="-".join,
)
def test_a_dry_run_skips_what_the_run_cannot_see(key: Key):
    with brief_inversion():
        check(cell(*key))


def test_no_stored_cell_failed():
    for row in stored().values():
        check(dict(row))


def test_a_cell_of_the_table_counts_what_is_stored():
    run = sum(int(line.split("|")[3]) for line in table().splitlines()[2:] if line.startswith("|"))

    assert run == len(stored().keys() & set(cells()))

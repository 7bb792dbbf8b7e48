"""A finished run made again: whose images are whose, and folders that are not what was written."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fdgsec
from fdgsec.experiments.attack_run.read_finished_run import read_record
from fdgsec.runtime.checked_files import SUMS, write_sums
from fdgsec.runtime.errors import ArtifactError, DataError, FdgsecError, UsageError
from tests.support.layouts import dassl_vlcs, write
from tests.support.recorded_run import again, edited, pictures, ran


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ran(tmp_path_factory.mktemp("runs") / "ccst")


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copy"))


def test_every_source_image_of_a_training_run_has_one_role_and_nobody_trained_on_the_others(run: Path):
    made = again(run)

    trained = [name for client in made.clients for name in client.data.ids]
    held, known = made.roles.held_out, made.roles.auxiliary
    sources = {name for domain in made.world.sources for name in made.world.dataset.of_domain(domain).ids}
    assert sorted([*trained, *held.ids, *known.ids]) == sorted(sources)
    assert sorted(made.roles.federation.ids) == sorted(trained)
    validation = {name for client in made.clients if client.validation for name in client.validation.ids}
    assert {*held.ids, *known.ids} == validation
    assert made.random_split


def test_halves_of_the_validation_images_are_even_in_every_domain(run: Path):
    roles = again(run).roles

    for domain in (0, 1, 2):
        sizes = [int((part.domains == domain).sum()) for part in (roles.held_out, roles.auxiliary)]
        assert sum(sizes) == 21
        assert abs(sizes[0] - sizes[1]) <= 1
        classes = [
            torch.bincount(part.of_domain(domain).labels, minlength=7) for part in (roles.held_out, roles.auxiliary)
        ]
        assert int((classes[0] - classes[1]).abs().max()) <= 1


@pytest.mark.medium
def test_images_with_a_copy_among_the_training_images_are_nobodys_non_members(tmp_path: Path):
    data = pictures(tmp_path / "data", domains=("x", "y", "z"), each=110, twice=30)
    run = tmp_path / "run"
    settings: dict[str, Any] = {"image_size": 16, "encoder": "pixels", "target_domain": "z"}
    fdgsec.train("ccst", dataset="folder", data_root=data, rounds=0, **settings, out=run,
                 assignments=["method.k=1"])  # fmt: skip

    made = again(run, data_root=data, adversary="client")

    def twin(name: str) -> str:
        return name.removesuffix("-copy") if name.endswith("-copy") else f"{name}-copy"

    trained = set(made.roles.federation.ids)
    left = {*made.roles.held_out.ids, *made.roles.auxiliary.ids}
    validation = {name for client in made.clients if client.validation for name in client.validation.ids}
    beside = {name for name in validation if twin(name) in trained}
    assert beside
    assert left == validation - beside
    assert not any(twin(name) in made.roles.held_out.ids for name in made.roles.auxiliary.ids)
    # 30 images of two classes and two source domains have a copy, and both sides of each pair count
    assert len(made.copied) == 2 * 30 * 2 * 2


def test_a_run_that_left_roles_aside_is_parted_as_it_was(own_cache: Path, tmp_path: Path):
    settings: dict[str, Any] = {"per_domain": 84, "image_size": 16, "encoder": "pixels"}
    report = fdgsec.attack("ccst-single", **settings, attacks=["generator-leakage"], out=tmp_path / "run")

    made = again(tmp_path / "run")

    assert made.roles.summary() == report.dataset["roles"]
    assert sum(len(client.data) for client in made.clients) == sum(
        made.roles.summary()["federation"][name] for name in ("photo", "painting", "cartoon")
    )
    assert made.copied == frozenset()


def test_too_few_images_aside_are_said_to_be_too_few(tmp_path: Path):
    run = ran(tmp_path / "run", per_domain=84)

    with pytest.raises(UsageError, match="leaves 4 auxiliary images of photo; the adversary needs at least 10"):
        again(run)

    assert len(again(run, adversary="client").roles.auxiliary) == 12  # it brings its own images


def test_official_splits_do_not_part_members_from_others_by_chance(tmp_path: Path):
    data = write(tmp_path / "data", dassl_vlcs())
    settings: dict[str, Any] = {"image_size": 16, "encoder": "pixels", "allow_partial": True, "splits": "official"}
    settings |= {"target_domain": "SUN09"}
    fdgsec.train("ccst", dataset="vlcs", data_root=data, rounds=0, **settings, out=tmp_path / "run")

    made = again(tmp_path / "run", data_root=data, adversary="client")

    splits = [made.world.dataset.split_names[int(n)] for n in made.roles.held_out.attributes["split"]]
    assert set(splits) == {"test"}
    assert not made.random_split


def altered(lines: list[str]) -> list[str]:
    return [line.replace('"round": 0', '"round": 1') for line in lines]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: altered(lines), "breaks the hash chain"),
        (lambda lines: lines[1:], "breaks the hash chain"),
        (lambda lines: lines[:-1], "one of them was altered"),
        (lambda lines: [*lines, "no row"], "cannot be read"),
        (lambda lines: [*lines, json.dumps({"round": 0})], "is no row of a transcript"),
    ],
    ids=["a row changed", "the first row gone", "the last row gone", "no JSON", "no row"],
)
def test_a_transcript_that_was_altered_is_refused(copy: Path, change: Callable[[list[str]], list[str]], said: str):
    file = copy / "transcript.jsonl"
    file.write_text("\n".join(change(file.read_text().splitlines())) + "\n")
    write_sums(copy)

    with pytest.raises(ArtifactError, match=said) as caught:
        read_record(copy)

    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_payload_that_was_altered_or_taken_away_is_refused(copy: Path):
    payload = min((copy / "payloads").iterdir())
    content = payload.read_bytes()

    payload.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    write_sums(copy)
    with pytest.raises(ArtifactError, match="does not have the content"):
        read_record(copy)

    payload.unlink()
    write_sums(copy)
    with pytest.raises(ArtifactError, match="is missing; the run is not complete"):
        read_record(copy)


@pytest.mark.parametrize(
    ("file", "changes", "error", "said"),
    [
        ("report.json", {"seed": 5}, DataError, "files are of one run"),
        ("report.json", {"transcript_sha256": "0" * 64}, ArtifactError, "one of them was altered"),
        ("report.json", {"dataset": {}}, DataError, "not a report of schema 1"),
        ("config.json", {"dataset": "pacs"}, DataError, "files are of one run"),
        ("config.json", {"methd": "ccst"}, UsageError, "methd"),
    ],
    ids=["another seed", "another transcript", "no dataset", "another dataset", "no such setting"],
)
def test_files_that_do_not_belong_together_are_refused(
    copy: Path, file: str, changes: dict[str, object], error: type[FdgsecError], said: str
):
    edited(copy, file, **changes)

    with pytest.raises(error, match=said):
        read_record(copy)


def test_a_folder_without_a_run_says_what_is_missing(tmp_path: Path, copy: Path):
    with pytest.raises(UsageError, match=r"config\.json is missing"):
        read_record(tmp_path)

    (copy / "config.json").write_text("{")
    write_sums(copy)
    with pytest.raises(DataError, match=r"config\.json cannot be read"):
        read_record(copy)


def test_every_file_of_a_run_that_is_altered_or_missing_is_named(run: Path, tmp_path: Path):
    names = sorted(path.relative_to(run) for path in run.rglob("*") if path.is_file() and path.name != SUMS)
    assert len(names) >= 6
    for number, name in enumerate(names):
        for damage in ("cut", "gone"):
            other = Path(shutil.copytree(run, tmp_path / f"{number}-{damage}"))
            content = (run / name).read_bytes()
            (other / name).unlink()
            if damage == "cut":
                (other / name).write_bytes(content[:-1])

            with pytest.raises((DataError, UsageError), match=re.escape(name.name)):  # no run without its settings
                read_record(other)


def test_a_run_without_the_hashes_of_its_files_is_refused(copy: Path):
    (copy / SUMS).unlink()

    with pytest.raises(DataError, match="has no SHA256SUMS: it is incomplete, or of an older version"):
        read_record(copy)


def test_other_images_than_the_runs_are_refused(copy: Path):
    edited(copy, "config.json", per_domain=140)

    with pytest.raises(DataError, match="the run used other images"):
        again(copy)


def test_other_clients_than_the_runs_are_refused(copy: Path):
    edited(copy, "config.json", partition="single-domain", clients=6)

    with pytest.raises(DataError, match="but here there are"):
        again(copy)

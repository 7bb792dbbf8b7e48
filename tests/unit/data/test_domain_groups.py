"""Several domains that nobody trains on, as one."""

import json
from pathlib import Path

import pytest
import torch

from fdgsec.cli import main
from fdgsec.data.catalog import load_dataset
from fdgsec.data.domain_groups import join_domains
from fdgsec.data.shapes import shapes
from fdgsec.experiments.bench.protocols import protocol_named
from fdgsec.experiments.run_config import RunConfig
from fdgsec.experiments.setup.run_inputs import load_world
from fdgsec.experiments.train import split_sources, unseen_images
from fdgsec.runtime.errors import DataError, UsageError
from fdgsec.runtime.progress import NoProgress
from tests.support.layouts import Files, camelyon, png, text, write

LOCATIONS = 12


def cameras() -> Files:
    """Twelve cameras: 0-5 train (with images aside of both kinds), 6-8 are looked at, 9-11 are the test."""
    rows, files = ["split,location_remapped,sequence_remapped,datetime,y,filename"], {}
    for number in range(8 * LOCATIONS):
        place = number // 8
        seen = ("train", "train", "train", "train", "train", "train", "id_val", "id_test")[number % 8]
        split = seen if place < 6 else "val" if place < 9 else "test"
        files[f"iwildcam_v2.0/train/{number:04d}.png"] = png(number)
        rows.append(f"{split},{place},{number},,{number % 2},{number:04d}.png")
    listed = {
        "iwildcam_v2.0/metadata.csv": text(*rows),
        "iwildcam_v2.0/categories.csv": text("category_id,y,name"),
    }
    return {**files, **listed}


def test_joined_domains_are_one_at_the_place_of_the_first_and_images_stay_as_they_are():
    data = shapes(per_domain=30, image_size=16, seed=0)
    names = list(data.domain_names)

    joined, name = join_domains(data, f"{names[3]}+{names[1]}")

    assert name == f"{names[3]}+{names[1]}"
    assert list(joined.domain_names) == [names[0], name, names[2]]
    assert (joined.ids, joined.manifest_sha256) == (data.ids, data.manifest_sha256)
    assert torch.equal(joined.labels, data.labels)
    for index, image in enumerate(data.domains.tolist()):
        expected = name if image in (1, 3) else names[image]
        assert joined.domain_names[int(joined.domains[index])] == expected


def test_a_domain_by_itself_changes_nothing():
    data = shapes(per_domain=6, image_size=16, seed=0)

    for name in data.domain_names:
        assert join_domains(data, str(name)) == (data, name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("photo+photo", "names a domain twice"), ("photo+nowhere", "no domain 'nowhere'"), ("photo+", "no domain ''"),
        ("@test", "no official split 'test'; it has none"),
    ],
)  # fmt: skip
def test_what_a_dataset_does_not_have_cannot_be_gathered(name: str, reason: str):
    with pytest.raises(DataError, match=reason):
        join_domains(shapes(per_domain=6, image_size=16, seed=0), name)


def test_a_split_that_is_one_domains_keeps_its_name(tmp_path: Path):
    data = load_dataset("camelyon17", data_root=write(tmp_path, camelyon()), image_size=16, allow_partial=True)

    assert join_domains(data, "@test") == (data, "hospital_2")
    assert join_domains(data, "@val") == (data, "hospital_1")
    with pytest.raises(DataError, match="no domain whose images all lie in the official split 'id_val'"):
        join_domains(data, "@id_val")


def test_cameras_that_wilds_keeps_aside_are_what_fisc_is_measured_on(tmp_path: Path):
    table = protocol_named("fisc-cameras")
    given = {"dataset": "iwildcam", "image_size": 16, "allow_partial": True, "clients": 6}
    config = table.config("fisc-lambda-0", table.splits("iwildcam", [])[0], 0, given)

    world = load_world(config, data_root=write(tmp_path, cameras()), progress=NoProgress())
    clients, measured = split_sources(world, config)

    def split_of(name: str) -> set[str]:
        images = world.dataset.of_domain(name)
        return {str(images.split_names[int(number)]) for number in images.attributes["split"]}

    assert len(world.sources) == 6
    assert (len(world.unseen()), len(world.seen()), world.target_name) == (24, 48, "@test")
    assert (split_of("@test"), split_of("@val")) == ({"test"}, {"val"})
    assert len(unseen_images(world, config)) == 24
    assert sum(len(client.data) for client in clients) == 6 * 6
    assert len(clients) == len(measured) == 6
    assert all(len(client.data.domains.unique()) == 1 for client in clients)  # lambda = 0: cameras stay apart


def test_the_test_cameras_are_unseen_by_default_and_cannot_be_both(tmp_path: Path):
    root = write(tmp_path, cameras())
    config = RunConfig(method="fedavg", dataset="iwildcam", image_size=16, allow_partial=True)

    assert load_world(config, data_root=root, progress=NoProgress()).target_name == "@test"
    with pytest.raises(UsageError, match="both the target and the validation domain"):
        load_world(
            RunConfig(
                method="fedavg", dataset="iwildcam", image_size=16, allow_partial=True, validation_domain="@test"
            ),
            data_root=root,
            progress=NoProgress(),
        )


def test_two_unseen_domains_are_trained_without_and_reported_as_one(tmp_path: Path):
    out = tmp_path / "run"
    arguments = "train --method fedavg --dataset shapes --target-domain photo+cartoon --rounds 1 --per-domain 24 --image-size 16"

    assert main([*arguments.split(), "--out", str(out)]) == 0

    report = json.loads((out / "report.json").read_text())
    assert report["accuracy"]["unseen_domain"] == "photo+cartoon"
    assert report["dataset"]["roles"]["test"] == {"photo+cartoon": 48}
    assert len(report["dataset"]["roles"]["train"]) == 2

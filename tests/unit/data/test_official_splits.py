"""`fdgsec train --splits official`: who trains, validates and is tested on what a dataset's own lists name."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fdgsec.cli import main
from fdgsec.data.catalog import DATASETS
from fdgsec.data.domains import DomainDataset
from fdgsec.experiments.run_config import RunConfig, attack_settings
from fdgsec.experiments.setup.run_inputs import World, load_world
from fdgsec.experiments.train import split_sources, unseen_images
from fdgsec.federation.method import Client
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import NoProgress
from tests.support.layouts import (
    Files,
    camelyon,
    dassl_pacs,
    dassl_vlcs,
    domainbed_vlcs,
    fed_isic,
    minidomainnet,
    text,
    tree,
    write,
)


def settings(dataset: str, **given: str | int) -> RunConfig:
    common = RunConfig(method="fedavg", dataset=dataset, image_size=16, allow_partial=True, splits="official")
    return replace(common, **given)  # type: ignore[arg-type]


def world_of(config: RunConfig, root: Path, files: Files) -> World:
    return load_world(config, data_root=write(root, files), progress=NoProgress())


def names_of_splits(data: DomainDataset | None) -> set[str]:
    assert data is not None
    return {data.split_names[int(number)] for number in data.attributes["split"]}


def validation_of(client: Client) -> DomainDataset:
    assert client.validation is not None
    return client.validation


def domains_of(data: DomainDataset) -> set[str]:
    return {data.domain_names[int(domain)] for domain in data.domains}


def test_clients_train_on_the_training_split_validate_on_the_validation_split_and_are_tested_on_the_test_split(
    tmp_path: Path,
) -> None:
    config = settings("vlcs", target_domain="SUN09")
    world = world_of(config, tmp_path, dassl_vlcs())

    clients, measured = split_sources(world, config)

    assert [names_of_splits(client.data) for client in clients] == [{"train"}] * 3
    assert [names_of_splits(client.validation) for client in clients] == [{"crossval"}] * 3
    assert {name: names_of_splits(images) for name, images in measured.items()} == {
        "Caltech101": {"test"}, "LabelMe": {"test"}, "VOC2007": {"test"},
    }  # fmt: skip
    assert names_of_splits(unseen_images(world, config)) == {"test"}
    assert domains_of(unseen_images(world, config)) == {"SUN09"}
    assert sum(len(client.data) + len(validation_of(client)) for client in clients) == 3 * (4 + 4)


@pytest.mark.parametrize("partition", ["domain", "single-domain", "dirichlet", "lambda"])
def test_no_image_is_in_two_hands_under_any_partition(tmp_path: Path, partition: str) -> None:
    config = settings("vlcs", partition=partition, heterogeneity=1, seed=3)
    world = world_of(config, tmp_path, dassl_vlcs())

    clients, measured = split_sources(world, config)

    hands = [part for client in clients for part in (client.data, validation_of(client))]
    held = [name for part in [*hands, *measured.values(), unseen_images(world, config)] for name in part.ids]
    # 24 train and validate; 12 test images of the sources are measured, 4 of the unseen domain
    assert len(held) == len(set(held)) == 24 + 12 + 4
    assert all(names_of_splits(client.data) == {"train"} for client in clients)


def test_without_official_validation_images_a_tenth_of_the_training_split_is_set_aside(tmp_path: Path) -> None:
    config = settings("fed-isic2019")
    files = fed_isic()
    rows = files["fed_isic2019/train_test_split"].decode().splitlines()
    for number in range(20):  # center_0 has 23 training images then, of which 2 are a tenth
        name = f"ISIC_{1000 + number:07d}"
        rows.append(f"{100 + number},{name},{number % 2},0,train,train_0")
        files[f"fed_isic2019/ISIC_2019_Training_Input/{name}.jpg"] = files[
            "fed_isic2019/ISIC_2019_Training_Input/ISIC_0000000.jpg"
        ]
    world = world_of(config, tmp_path, files | {"fed_isic2019/train_test_split": text(*rows)})

    clients, measured = split_sources(world, config)

    assert (len(clients[0].data), len(validation_of(clients[0]))) == (21, 2)
    assert names_of_splits(clients[0].data) == names_of_splits(clients[0].validation) == {"train"}
    assert names_of_splits(measured["center_0"]) == {"test"}


def test_a_domain_kept_for_validation_or_testing_has_no_client(tmp_path: Path) -> None:
    """Camelyon17's hospital_1 is all validation, hospital_2 all test: WILDS trains on the other three."""
    config = settings("camelyon17", target_domain="hospital_2")
    world = world_of(config, tmp_path, camelyon())

    clients, measured = split_sources(world, config)

    assert [domains_of(client.data) for client in clients] == [{"hospital_0"}, {"hospital_3"}, {"hospital_4"}]
    assert [names_of_splits(client.validation) for client in clients] == [{"id_val"}] * 3
    assert names_of_splits(measured["hospital_1"]) == {"val"}
    assert len(unseen_images(world, config)) == 4


def test_a_domain_that_models_are_chosen_on_has_no_client_either(tmp_path: Path) -> None:
    config = settings("vlcs", target_domain="SUN09", validation_domain="LabelMe")
    world = world_of(config, tmp_path, dassl_vlcs())

    clients, measured = split_sources(world, config)

    assert [domains_of(client.data) for client in clients] == [{"Caltech101"}, {"VOC2007"}]
    assert list(measured) == ["Caltech101", "VOC2007"]


def test_an_unseen_domain_without_a_test_split_is_tested_on_whole(tmp_path: Path) -> None:
    """The lists of PACS for training and validation together are those for testing."""
    files = dassl_pacs() | {
        "pacs/splits/sketch_train_kfold.txt": text("sketch/dog/a.png 1", "sketch/person/a.png 7"),
        "pacs/splits/sketch_crossval_kfold.txt": text("sketch/dog/b.png 1", "sketch/person/b.png 7"),
    }
    config = settings("pacs", target_domain="photo")
    world = world_of(config, tmp_path, files)

    assert len(unseen_images(world, config)) == 4
    assert names_of_splits(split_sources(world, config)[0][0].data) == {"train"}


def test_by_default_the_seed_draws_and_the_official_splits_change_nothing(tmp_path: Path) -> None:
    given = RunConfig(method="fedavg", dataset="vlcs", image_size=16, allow_partial=True, splits="own")
    world = world_of(given, tmp_path, dassl_vlcs())

    clients, _ = split_sources(world, given)

    assert [len(client.data) + len(validation_of(client)) for client in clients] == [12, 12, 12]
    assert len(unseen_images(world, given)) == 12


def test_a_source_domain_that_no_list_names_is_an_error(tmp_path: Path) -> None:
    config = settings("pacs", target_domain="photo")
    files = dassl_pacs() | tree("pacs/images/cartoon/dog")
    files["pacs/splits/cartoon_train_kfold.txt"] = text("cartoon/dog/a.png 1")
    world = world_of(config, tmp_path, files)

    with pytest.raises(UsageError, match="the official splits of pacs name no image of sketch"):
        split_sources(world, config)


def test_a_client_left_with_validation_images_alone_is_an_error(tmp_path: Path) -> None:
    config = settings("vlcs", partition="single-domain", clients=24)
    world = world_of(config, tmp_path, dassl_vlcs())  # 24 images for as many clients

    with pytest.raises(UsageError, match="would hold official validation images alone under partition 'single-domain'"):
        split_sources(world, config)


def command(root: Path, out: Path) -> list[str]:
    given = ["train", "--dataset", "vlcs", "--data-root", str(root), "--allow-partial", "--image-size", "32"]
    return [*given, "--splits", "official", "--rounds", "1", "--out", str(out)]


def test_the_report_counts_who_trains_validates_and_is_tested(tmp_path: Path) -> None:
    root, out = write(tmp_path / "data", dassl_vlcs()), tmp_path / "out"

    assert main(command(root, out)) == 0

    report = json.loads((out / "report.json").read_text())
    assert report["dataset"]["roles"] == {
        "train": {"client:0": 4, "client:1": 4, "client:2": 4},
        "validation": {"client:0": 4, "client:1": 4, "client:2": 4},
        "test": {"SUN09": 4},
    }
    assert report["accuracy"]["n"] == 4
    assert {name: row["n"] for name, row in report["accuracy"]["per_domain"].items()} == {
        "Caltech101": 4, "LabelMe": 4, "VOC2007": 4,
    }  # fmt: skip


def test_a_layout_without_splits_is_answered_in_one_line_with_the_datasets_that_have_some(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, out = write(tmp_path / "data", domainbed_vlcs()), tmp_path / "out"

    assert main(command(root, out)) == 2

    written = capsys.readouterr().err
    assert len(written.splitlines()) == 1
    assert "vlcs has no official training split in the files here" in written
    assert all((name in written) == bool(entry.official) for name, entry in DATASETS.items() if name != "folder")
    assert not out.exists()


def test_attacks_draw_their_own_roles() -> None:
    with pytest.raises(UsageError, match="official splits are for `fdgsec train`"):
        attack_settings("ccst-overall", {"splits": "official"})


def test_the_lists_of_minidomainnet_divide_its_domains(tmp_path: Path) -> None:
    config = settings("minidomainnet")
    world = world_of(config, tmp_path, minidomainnet())

    clients, measured = split_sources(world, config)

    assert [len(client.data) for client in clients] == [2, 2, 2]
    assert [len(images) for images in measured.values()] == [2, 2, 2]
    assert names_of_splits(unseen_images(world, config)) == {"test"}


def test_a_split_column_in_the_list_of_pacs_is_its_official_split(tmp_path: Path) -> None:
    """FISC's benchmark has one such list per pair of unseen domains."""
    files = tree(*(f"pacs_v1.0/{d}/dog" for d in ("photo", "sketch", "cartoon")), per_folder=4)
    splits = {"photo": ("train", "train", "id_val", "id_test"), "sketch": ("test",) * 4, "cartoon": ("val",) * 4}
    rows = [f"{d}/dog/{n}.png,{d},dog,0,{s}" for d, parts in splits.items() for n, s in zip("abcd", parts, strict=True)]
    files["pacs_v1.0/metadata.csv"] = text("path,domain,category,y,split", *rows)

    config = settings("pacs", target_domain="sketch", validation_domain="cartoon")
    world = world_of(config, tmp_path, files)
    clients, measured = split_sources(world, config)

    assert [(len(client.data), len(validation_of(client))) for client in clients] == [(2, 1)]
    assert names_of_splits(measured["photo"]) == {"id_test"}
    assert len(unseen_images(world, config)) == 4

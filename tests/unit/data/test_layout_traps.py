"""The traps of single datasets: what repeats, is listed otherwise, belongs together, or must be cut out."""

from pathlib import Path

import pytest
import torch

from fdgsec.data.catalog import DATASETS, load_dataset
from fdgsec.data.domains import DomainDataset
from fdgsec.data.roles import split_roles
from fdgsec.runtime.errors import DataError, UsageError
from fdgsec.runtime.random_streams import stream
from tests.support.layouts import (
    camelyon,
    dassl_pacs,
    dassl_vlcs,
    digits,
    domainnet,
    femnist,
    iwildcam,
    midog,
    minidomainnet,
    text,
    tree,
    write,
)


def load(name: str, root: Path) -> DomainDataset:
    return load_dataset(name, data_root=root, image_size=8, allow_partial=True)


def test_full_is_not_counted_beside_the_splits_it_repeats(tmp_path: Path) -> None:
    data = load("vlcs", write(tmp_path, dassl_vlcs()))

    assert not [name for name in data.ids if "full" in name]
    assert sorted({name.split("/")[0] for name in data.ids}) == ["Caltech101", "LabelMe", "SUN09", "VOC2007"]
    assert {data.class_names[int(label)] for label in data.labels} == {"bird", "dog"}


def test_full_alone_is_the_whole_set(tmp_path: Path) -> None:
    data = load("vlcs", write(tmp_path, tree("VLCS/SUN/full/0", "VLCS/CALTECH/full/4")))

    assert len(data) == 4
    assert data.split_names == ()


def test_real_world_keeps_its_blank_however_it_is_spelled(tmp_path: Path) -> None:
    for number, domain in enumerate(("Real World", "real_world", "realworld")):
        data = load("office-home", write(tmp_path / str(number), tree(f"OfficeHome/{domain}/TV", "OfficeHome/Art/TV")))
        assert {data.domain_names[int(d)] for d in data.domains} == {"Art", "Real World"}


def test_lists_that_count_classes_from_one_do_not_shift_the_labels(tmp_path: Path) -> None:
    data = load("pacs", write(tmp_path, dassl_pacs()))

    assert all(
        data.class_names[int(label)] == name.split("/")[1] for label, name in zip(data.labels, data.ids, strict=True)
    )


def test_a_subset_by_lists_holds_nothing_else(tmp_path: Path) -> None:
    data = load("minidomainnet", write(tmp_path, minidomainnet()))

    assert {name.split("/")[1] for name in data.ids} == {"teddy-bear", "zebra"}
    assert "infograph" not in data.domain_names


def test_a_list_of_duplicates_takes_them_out(tmp_path: Path) -> None:
    named = {"domain_net/domain_net_duplicates.txt": text("real/t-shirt/a.png", "sketch/t-shirt/b.png", "")}

    data = load("domainnet", write(tmp_path, domainnet() | named))

    assert len(data) == 22
    assert "real/t-shirt/a" not in data.ids
    assert "real/t-shirt/b" in data.ids


def test_both_known_versions_of_domainnet_are_accepted_and_no_third() -> None:
    spec = DATASETS["domainnet"].files
    assert spec is not None

    cleaned, raw = (sum(row for row in table.values() if isinstance(row, int)) for table in spec.counts)

    assert (cleaned, raw, raw - cleaned) == (586_575, 596_006, 9_431)


def test_the_classes_of_domainnet_stand_where_its_lists_and_files_number_them() -> None:
    """Its files are called real_<number>_<image>.jpg, the numbers in its lists are one less."""
    spec, smaller = DATASETS["domainnet"].files, DATASETS["minidomainnet"].files
    assert spec is not None
    assert smaller is not None

    numbers = {
        "aircraft_carrier": 1, "cello": 67, "cell_phone": 68, "drums": 99, "flower": 122, "leaf": 168, "raccoon": 237,
        "see_saw": 257, "The_Eiffel_Tower": 309, "tiger": 312, "t-shirt": 328, "umbrella": 329, "zebra": 344,
    }  # fmt: skip
    assert {name: spec.classes.index(name) + 1 for name in numbers} == numbers
    assert len(spec.class_numbers) == len(spec.classes) == 345
    assert len(smaller.class_numbers) == len(smaller.classes) == 126
    assert [name for name in spec.classes if name in smaller.classes] == list(smaller.classes)


def test_a_class_that_domainnet_does_not_have_is_refused_by_name(tmp_path: Path) -> None:
    files = domainnet() | tree("domain_net/real/teddy")

    with pytest.raises(DataError, match=r"foreign images: 2 \(real/teddy/a\.png, real/teddy/b"):
        load_dataset("domainnet", data_root=write(tmp_path, files), image_size=8)


def test_a_listed_image_that_is_absent_is_named(tmp_path: Path) -> None:
    files = {name: data for name, data in minidomainnet().items() if name != "domainnet/real/zebra/b.png"}

    with pytest.raises(DataError, match=r"1 images of the lists in splits_mini are missing, first real/zebra/b\.png"):
        load("minidomainnet", write(tmp_path, files))


def test_classes_that_never_occur_still_count_where_only_numbers_are_known(tmp_path: Path) -> None:
    data = load("iwildcam", write(tmp_path, iwildcam()))

    assert len(data.class_names) == 182
    assert data.domain_names[:3] == ("location_0", "location_1", "location_2")
    assert int(data.labels.max()) == 161


def test_slides_and_sequences_stay_on_one_side(tmp_path: Path) -> None:
    data = load("camelyon17", write(tmp_path, camelyon()))
    roles = split_roles(data, rng=stream(0, "world"))

    sides = [set(part.attributes["group"].tolist()) for part in (roles.federation, roles.held_out, roles.auxiliary)]

    assert len(data.attributes["group"].unique()) == 10
    assert sides[0].isdisjoint(sides[1] | sides[2])


def test_the_out_of_distribution_hospitals_are_validation_and_test(tmp_path: Path) -> None:
    data = load("camelyon17", write(tmp_path, camelyon()))

    assert {data.domain_names[int(d)] for d in data.of_split("test").domains} == {"hospital_2"}
    assert {data.domain_names[int(d)] for d in data.of_split("val").domains} == {"hospital_1"}


def test_a_patch_is_centered_on_its_box(tmp_path: Path) -> None:
    data = load_dataset("midog", data_root=write(tmp_path, midog()), image_size=64)
    figure = data.subset(data.labels == data.class_names.index("hard_negative")).pixels()[0, 0]

    # the box of columns 90..140 has its middle at 115, and the picture is as bright as its column
    assert figure[:, 0].tolist() == [83] * 64
    assert figure[:, 63].tolist() == [146] * 64


def test_writers_are_domains_and_their_pixels_are_those_of_the_file(tmp_path: Path) -> None:
    data = load_dataset("femnist", data_root=write(tmp_path, femnist()))

    assert data.domain_names[0] == "f0000_12"
    assert data.image_size == (28, 28)
    assert data.pixels(torch.tensor([0]))[0, 1, 0, :3].tolist() == [0, 28, 57]


def test_open_classes_that_differ_in_case_alone_are_two(tmp_path: Path) -> None:
    data = load("femnist", write(tmp_path, tree("femnist/f0001/A", "femnist/f0001/a", "femnist/f0002/a")))

    assert data.class_names == ("A", "a")
    assert data.labels.tolist() == [0, 0, 1, 1, 1, 1]


def test_a_folder_needs_a_root_and_domains_in_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name its root with --data-root"):
        load_dataset("folder")
    with pytest.raises(DataError, match="is not a folder of your own"):
        load("folder", write(tmp_path, {"readme.txt": b"?"}))


def test_an_unknown_split_is_answered_with_those_there_are(tmp_path: Path) -> None:
    data = load("digits-dg", write(tmp_path, digits()))

    with pytest.raises(DataError, match="has no official split 'test'; it has train, val"):
        data.of_split("test")

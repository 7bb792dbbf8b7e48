"""Every dataset of the catalogue, read from a small tree in its true layout, traps included."""

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fdgsec.data.catalog import DATASETS, load_dataset
from fdgsec.data.domains import DomainDataset
from fdgsec.data.partition import lodo, partition
from fdgsec.data.roles import split_roles
from fdgsec.errors import DataError, UsageError
from fdgsec.rng import stream

Files = dict[str, bytes]


def png(value: int, *, side: int = 8) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), (value % 256, value // 256 % 256, 7)).save(buffer, "PNG")
    return buffer.getvalue()


def tree(*folders: str, per_folder: int = 2) -> Files:
    """Images a.png, b.png in each folder, all different."""
    names = [f"{folder}/{'abcdefgh'[number]}.png" for folder in folders for number in range(per_folder)]
    return {name: png(17 * index) for index, name in enumerate(names)}


def text(*lines: str) -> bytes:
    return "\n".join(lines).encode()


def domainbed_vlcs() -> Files:
    return tree(*(f"VLCS/{d}/{c}" for d in ("Caltech101", "LabelMe", "SUN09", "VOC2007") for c in ("bird", "dog")))


def dassl_vlcs() -> Files:
    """Every split numbers its files anew, and `full` holds all of them once more."""
    domains = ("CALTECH", "LABELME", "PASCAL", "SUN")
    parts = tree(*(f"VLCS/{d}/{s}/{c}" for d in domains for s in ("train", "crossval", "test") for c in ("0", "3")))
    return parts | tree(*(f"VLCS/{d}/full/{c}" for d in domains for c in ("0", "3")), per_folder=6)


def dassl_pacs() -> Files:
    """Labels in the lists count from 1, and the list for tests repeats the others."""
    lists = {
        "pacs/splits/photo_train_kfold.txt": text("photo/dog/a.png 1", "photo/person/a.png 7"),
        "pacs/splits/photo_crossval_kfold.txt": text("photo/dog/b.png 1", "photo/person/b.png 7"),
        "pacs/splits/photo_test_kfold.txt": text(*(f"photo/{c}/{n}.png 1" for c in ("dog", "person") for n in "ab")),
    }
    return tree(*(f"pacs/images/{d}/{c}" for d in ("photo", "sketch") for c in ("dog", "person"))) | lists


def office_home() -> Files:
    domains = ("Art", "Clipart", "Product", "Real World")
    return tree(*(f"OfficeHomeDataset_10072016/{d}/{c}" for d in domains for c in ("Alarm_Clock", "TV")))


def dassl_office_home() -> Files:
    domains = ("art", "clipart", "product", "real_world")
    return tree(
        *(f"office_home_dg/{d}/{s}/{c}" for d in domains for s in ("train", "val") for c in ("Alarm_Clock", "TV"))
    )


def digits() -> Files:
    domains = ("mnist", "mnist_m", "svhn", "syn")
    return tree(*(f"digits_dg/{d}/{s}/{c}" for d in domains for s in ("train", "val") for c in ("0", "7")))


def domainnet() -> Files:
    domains = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
    images = tree(*(f"domain_net/{d}/{c}" for d in domains for c in ("aircraft_carrier", "t-shirt")))
    return images | {
        "domain_net/splits/real_train.txt": text("real/aircraft_carrier/a.png 0", "real/t-shirt/a.png 312")
    }


def minidomainnet() -> Files:
    """The images of all of DomainNet, of which lists of their own choose some and number them anew."""
    domains = ("clipart", "painting", "real", "sketch", "infograph")
    images = tree(*(f"domainnet/{d}/{c}" for d in domains for c in ("aircraft_carrier", "t-shirt", "zebra")))
    lists: Files = {}
    for domain in domains[:4]:
        for split, name in (("train", "a"), ("test", "b")):
            lines = text(f"{domain}/t-shirt/{name}.png 0", f"{domain}/zebra/{name}.png 1")
            lists[f"domainnet/splits_mini/{domain}_{split}.txt"] = lines
    return images | lists


def office_caltech() -> Files:
    plain = tree(*(f"office_caltech_10/{d}/{c}" for d in ("amazon", "dslr") for c in ("back_pack", "mug")))
    return plain | tree("office_caltech_10/caltech10/backpack", "office_caltech_10/caltech10/coffee-mug",
                        "office_caltech_10/webcam/images/back_pack", "office_caltech_10/webcam/images/mug")  # fmt: skip


def camelyon() -> Files:
    rows, files = [",patient,node,x_coord,y_coord,tumor,slide,center,split"], {}
    for centre in range(5):
        for number in range(4):
            patient, slide = f"{4 + centre:03d}", 10 * centre + number // 2
            rows.append(f"{len(files)},{patient},4,{number},96,{number % 2},{slide},{centre},{number % 2}")
            stem = f"patch_patient_{patient}_node_4_x_{number}_y_96.png"
            files[f"camelyon17_v1.0/patches/patient_{patient}_node_4/{stem}"] = png(31 * len(files))
    return {**files, "camelyon17_v1.0/metadata.csv": text(*rows), "camelyon17_v1.0/RELEASE_v1.0.txt": b""}


def iwildcam() -> Files:
    """Locations by the hundred, and classes by number, of which some never occur: there are 182 all the same."""
    rows, files = ["split,location_remapped,sequence_remapped,datetime,y,filename"], {}
    for number in range(24):
        files[f"iwildcam_v2.0/train/{number:04d}.png"] = png(13 * number)
        rows.append(
            f"{('train', 'val', 'id_test')[number % 3]},{number // 2},{number // 4},,{7 * number},{number:04d}.png"
        )
    return {
        **files,
        "iwildcam_v2.0/metadata.csv": text(*rows),
        "iwildcam_v2.0/categories.csv": text("category_id,y,name"),
    }


def midog() -> Files:
    images = [
        {
            "id": i,
            "file_name": f"{i:03d}.tiff",
            "width": 200,
            "height": 150,
            "tumor_type": ("lymphoma", "melanoma")[i % 2],
        }
        for i in range(4)
    ]
    boxes = [
        {"image_id": i, "category_id": 1 + k, "bbox": [90 * k, 40, 90 * k + 50, 90]} for i in range(4) for k in range(2)
    ]
    buffer = io.BytesIO()
    Image.fromarray(np.tile(np.arange(200, dtype=np.uint8), (150, 1))).convert("RGB").save(buffer, "TIFF")
    files = {f"MIDOG++/{image['file_name']}": buffer.getvalue() for image in images}
    return {**files, "MIDOG++/MIDOG++.json": json.dumps({"images": images, "annotations": boxes}).encode()}


def gdrbench() -> Files:
    domains = ("APTOS", "DEEPDR", "FGADR", "IDRID", "MESSIDOR", "RLDR")
    images = tree(*(f"GDRBench/images/{d}/{c}" for d in domains for c in ("nodr", "pdr")))
    lists = {f"GDRBench/splits/{d}_{s}.txt": text(f"{d}/nodr/{n}.png 0", f"{d}/pdr/{n}.png 4")
             for d in domains for s, n in (("train", "a"), ("crossval", "b"))}  # fmt: skip
    masks = {f"GDRBench/masks/{d}/nodr/a.png": png(1) for d in domains}
    return images | lists | masks


def fed_isic() -> Files:
    rows, files = [",image,target,center,fold,fold2"], {}
    for centre in range(6):
        for number in range(4):
            name = f"ISIC_{10 * centre + number:07d}"
            fold = "test" if number == 3 else "train"
            rows.append(f"{len(files)},{name},{number % 2},{centre},{fold},{fold}_{centre}")
            folder = "ISIC_2019_Training_Input_preprocessed" if centre else "ISIC_2019_Training_Input"
            files[f"fed_isic2019/{folder}/{name}.jpg"] = png(11 * len(files))
    return {**files, "fed_isic2019/train_test_split": text(*rows)}


def femnist() -> Files:
    def document(writers: range) -> bytes:
        data = {f"f{w:04d}_12": {"x": [[((w + i + p) % 10) / 9 for p in range(784)] for i in range(3)], "y": [w % 62, 11, 61]}
                for w in writers}  # fmt: skip
        return json.dumps({"users": list(data), "num_samples": [3] * len(data), "user_data": data}).encode()

    return {f"femnist/data/{split}/all_data_0.json": document(range(4)) for split in ("train", "test")}


def own_folder() -> Files:
    return tree("mine/summer/cat", "mine/summer/dog", "mine/winter/cat", "mine/winter/dog")


# name, layout, images, domains, classes that occur, official splits
ROWS: list[tuple[str, Callable[[], Files], int, int, int, tuple[str, ...]]] = [
    ("pacs", dassl_pacs, 8, 2, 2, ("crossval", "train")),
    ("vlcs", domainbed_vlcs, 16, 4, 2, ()),
    ("vlcs", dassl_vlcs, 48, 4, 2, ("crossval", "test", "train")),
    ("office-home", office_home, 16, 4, 2, ()),
    ("office-home", dassl_office_home, 32, 4, 2, ("train", "val")),
    ("digits-dg", digits, 32, 4, 2, ("train", "val")),
    ("domainnet", domainnet, 24, 6, 2, ("train",)),
    ("minidomainnet", minidomainnet, 16, 4, 2, ("test", "train")),
    ("office-caltech-10", office_caltech, 16, 4, 2, ()),
    ("camelyon17", camelyon, 20, 5, 2, ("id_val", "test", "train", "val")),
    ("iwildcam", iwildcam, 24, 12, 24, ("id_test", "train", "val")),
    ("midog", midog, 8, 2, 2, ()),
    ("gdrbench", gdrbench, 24, 6, 2, ("crossval", "train")),
    ("fed-isic2019", fed_isic, 24, 6, 2, ("test", "train")),
    ("femnist", femnist, 24, 4, 6, ("train", "test")),
    ("folder", own_folder, 8, 2, 2, ()),
]
CASES = [pytest.param(*row, id=f"{row[0]}-{row[1].__name__}") for row in ROWS]


def write(root: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def load(name: str, root: Path, *, allow_partial: bool = True, lazy: bool | None = None) -> DomainDataset:
    return load_dataset(name, data_root=root, image_size=8, allow_partial=allow_partial, lazy=lazy)


@pytest.mark.parametrize(("name", "layout", "images", "domains", "classes", "splits"), CASES)
def test_a_true_layout_gives_its_images_domains_classes_and_splits(
    tmp_path: Path,
    name: str,
    layout: Callable[[], Files],
    images: int,
    domains: int,
    classes: int,
    splits: tuple[str, ...],
) -> None:
    data = load(name, write(tmp_path, layout()))

    assert len(data) == len(set(data.ids)) == images
    assert len(data.domains.unique()) == domains
    assert len(data.labels.unique()) == classes
    assert tuple(data.split_names) == splits
    assert sum(len(data.of_split(split)) for split in splits) in (0, images, 4, 2)


@pytest.mark.parametrize(("name", "layout", "images", "domains", "classes", "splits"), CASES)
def test_leaving_one_domain_out_and_one_client_per_domain_loses_no_image(
    tmp_path: Path,
    name: str,
    layout: Callable[[], Files],
    images: int,
    domains: int,
    classes: int,
    splits: tuple[str, ...],
) -> None:
    data = load(name, write(tmp_path, layout()))
    target = data.domain_index(DATASETS[name].target_domain or data.domain_names[-1])
    if target not in data.domains:
        target = int(data.domains[-1])
    split = lodo(data, target)
    sources, unseen = data.subset(split.train), data.subset(split.test)

    alone = partition(sources, "domain", rng=stream(0, "world"))
    mixed = partition(sources, "lambda", rng=stream(0, "world"), clients=2, lam=0.5)

    assert len(alone) == domains - 1
    for parts in (alone, mixed):
        assert sum(len(part.data) for part in parts) + len(unseen) == images
    assert len(split_roles(sources, rng=stream(0, "world")).federation) >= len(sources) // 2


@pytest.mark.parametrize(("name", "layout", "images", "domains", "classes", "splits"), CASES)
def test_an_archive_gives_what_the_folder_gives(
    tmp_path: Path,
    name: str,
    layout: Callable[[], Files],
    images: int,
    domains: int,
    classes: int,
    splits: tuple[str, ...],
) -> None:
    packed = tmp_path / f"{name}.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for path, content in layout().items():
            archive.writestr(path, content)

    first, second = load(name, write(tmp_path / "tree", layout())), load(name, packed)

    assert first.content_sha256 == second.content_sha256


@pytest.mark.parametrize(("name", "layout"), [(row[0], row[1]) for row in ROWS if row[0] not in ("folder", "femnist")])
def test_an_incomplete_set_is_refused_unless_that_is_allowed(
    tmp_path: Path, name: str, layout: Callable[[], Files]
) -> None:
    root = write(tmp_path, layout())
    if name == "midog":
        pytest.skip("the number of annotated figures differs between editions, so none is demanded")

    with pytest.raises(DataError, match=r"is not the known .*--allow-partial") as caught:
        load(name, root, allow_partial=False)
    assert "\n" not in str(caught.value)


def test_full_is_not_counted_beside_the_splits_it_repeats(tmp_path: Path) -> None:
    data = load("vlcs", write(tmp_path, dassl_vlcs()))

    assert not [name for name in data.ids if "full" in name]
    assert sorted({name.split("/")[0] for name in data.ids}) == ["Caltech101", "LabelMe", "SUN09", "VOC2007"]
    assert {data.class_names[int(label)] for label in data.labels} == {"bird", "dog"}


def test_full_alone_is_the_whole_set(tmp_path: Path) -> None:
    data = load("vlcs", write(tmp_path, tree("VLCS/SUN/full/0", "VLCS/CALTECH/full/4")))

    assert len(data) == 4
    assert data.split_names == ()


def test_real_world_keeps_its_blank_however_it_is_spelt(tmp_path: Path) -> None:
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

    assert data.class_names == ("t-shirt", "zebra")
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


def test_a_listed_image_that_is_absent_is_named(tmp_path: Path) -> None:
    files = {name: data for name, data in minidomainnet().items() if name != "domainnet/real/zebra/b.png"}

    with pytest.raises(DataError, match=r"1 images of the lists in splits_mini are not there, first real/zebra/b\.png"):
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


def test_a_patch_is_centred_on_its_box(tmp_path: Path) -> None:
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
    with pytest.raises(DataError, match="holds no"):
        load("folder", write(tmp_path, {"readme.txt": b"?"}))


def test_an_unknown_split_is_answered_with_those_there_are(tmp_path: Path) -> None:
    data = load("digits-dg", write(tmp_path, digits()))

    with pytest.raises(DataError, match="has no official split 'test'; it has train, val"):
        data.of_split("test")

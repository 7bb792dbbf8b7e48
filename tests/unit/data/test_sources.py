"""Folders, archives, layouts, and what is said when they are not as they should be."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fdgsec.data.catalog import load_dataset
from fdgsec.data.dataset_scan import scan
from fdgsec.data.dataset_specs import FolderSpec
from fdgsec.data.image_sources import open_source
from fdgsec.runtime.errors import DataError
from tests.support.small_pacs import SMALL, Files, load, pacs, png, under, write, write_zip


def renamed(files: Files, names: Mapping[str, str]) -> Files:
    return {"/".join(names.get(part, part) for part in name.split("/")): data for name, data in files.items()}


def wilds() -> Files:
    """Images in one heap, and the columns of the list that comes with pacs_v1.0."""
    rows = [",split,domain_remapped,domain,category,y,path"]
    for number, name in enumerate(SMALL):
        domain, label, _ = name.split("/")
        rows.append(f"{number},train,0,{domain},{label},{pacs().classes.index(label)},heap/{number}.png")
    heap = {f"heap/{number}.png": content for number, content in enumerate(SMALL.values())}
    return {**heap, "heap/unlisted.png": png(1), "metadata.csv": "\n".join(rows).encode(), "RELEASE_v1.0.txt": b""}


LISTS: Files = {"splits/photo_train_kfold.txt": b"photo/dog/a.png 1\nphoto/person/a.png 7\n"}
LAYOUTS: Mapping[str, Callable[[], Files]] = {
    "flat": lambda: under("PACS/"),
    "kfold": lambda: under("PACS/kfold/"),
    "dassl": lambda: {**under("pacs/images/"), **under("pacs/", LISTS)},
    "fedalign": lambda: under("pacs/raw/"),
    "other names": lambda: under("Pacs/", renamed(SMALL, {"art_painting": "Art", "photo": "PHOTO", "dog": "Dog"})),
    "art painting": lambda: under("PACS/", renamed(SMALL, {"art_painting": "Art Painting"})),
    "domains at the root": lambda: SMALL,
    "other images above": lambda: {**under("PACS/kfold/"), "photo/cats/x.png": png(1), "metadata.csv": b"path,domain"},
    "housekeeping": lambda: {
        **under("PACS/"),
        "PACS/photo/.DS_Store": b"?",
        "PACS/photo/dog/Thumbs.db": b"?",
        "PACS/photo/dog/._a.png": b"?",
        "__MACOSX/PACS/photo/dog/a.png": b"?",
    },
}


def refused(root: Path, *, allow_partial: bool = True) -> str:
    """The message with which loading `root` is refused, in one line."""
    with pytest.raises(DataError) as caught:
        load_dataset("pacs", data_root=root, image_size=8, allow_partial=allow_partial)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_every_layout_gives_the_same_dataset(tmp_path: Path, layout: str, kind: str) -> None:
    files = LAYOUTS[layout]()
    root = write(tmp_path, files) if kind == "folder" else write_zip(tmp_path / "pacs.zip", files)

    data = load(root)

    assert list(data.ids) == [
        "art_painting/house/x",
        "photo/dog/a",
        "photo/dog/b",
        "photo/person/a",
        "sketch/dog/n_4068-1",
    ]
    assert data.domains.tolist() == [0, 2, 2, 2, 3]
    assert data.labels.tolist() == [5, 0, 0, 6, 0]
    assert data.pixels()[:, 0, 0, 0].tolist() == [40, 20, 10, 30, 50]


def test_a_wilds_list_says_what_each_image_is_wherever_it_lies(tmp_path: Path) -> None:
    data = load(write(tmp_path / "pacs_v1.0", wilds()).parent)

    assert list(data.ids) == ["art_painting/house/3", "photo/dog/0", "photo/dog/1", "photo/person/2", "sketch/dog/4"]
    assert data.labels.tolist() == [5, 0, 0, 6, 0]
    assert data.pixels()[:, 0, 0, 0].tolist() == [40, 10, 20, 30, 50]


def test_a_wilds_list_without_class_names_counts_classes_from_zero(tmp_path: Path) -> None:
    files = {**SMALL, "metadata.csv": b"domain,y,path\nphoto,0,photo/dog/a.png\nart,5,art_painting/house/x.png\n"}

    data = load(write(tmp_path, files))

    assert list(data.ids) == ["art_painting/house/x", "photo/dog/a"]
    assert data.labels.tolist() == [5, 0]


def test_a_listed_image_that_is_absent_is_named_with_its_line(tmp_path: Path) -> None:
    files = {**SMALL, "metadata.csv": b"domain,y,path\nphoto,0,photo/dog/a.png\nphoto,0,photo/dog/gone.png\n"}

    message = refused(write(tmp_path, files))

    assert "line 3 of metadata.csv lists photo/dog/gone.png, which is missing" in message


def test_pixels_are_rgb_and_resampled_to_the_size_asked_for(tmp_path: Path) -> None:
    root = write(tmp_path, {"photo/dog/a.png": png(7, side=32, mode="L")})

    data = load(root, image_size=16)

    with Image.open(root / "photo/dog/a.png") as image:
        expected = np.asarray(image.convert("RGB").resize((16, 16), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
    assert data.image_size == (16, 16)
    assert np.array_equal(data.pixels()[0].numpy(), expected)


def test_the_order_of_members_in_an_archive_does_not_matter(tmp_path: Path) -> None:
    forwards = write_zip(tmp_path / "pacs-a.zip", SMALL)
    backwards = write_zip(tmp_path / "pacs-b.zip", {name: SMALL[name] for name in reversed(list(SMALL))})

    assert load(forwards).content_sha256 == load(backwards).content_sha256


def test_an_incomplete_dataset_is_refused_with_counts_and_the_way_on(tmp_path: Path) -> None:
    message = refused(write(tmp_path, SMALL), allow_partial=False)

    assert "not the known PACS of 9991 images" in message
    assert "art_painting/dog has 0 of 379" in message
    assert "--allow-partial" in message


def test_the_right_numbers_of_the_wrong_names_are_refused(tmp_path: Path) -> None:
    known = hashlib.sha256(b"photo/dog/a\nphoto/dog/b").hexdigest()
    spec = FolderSpec(
        title="Two", domains={"photo": ()}, classes=("dog",), counts=({"photo": (2,)},), manifest_sha256=known
    )
    right = write(tmp_path / "right", {"photo/dog/a.png": png(1), "photo/dog/b.jpg": png(2)})
    wrong = write(tmp_path / "wrong", {"photo/dog/a.png": png(1), "photo/dog/c.png": png(2)})

    with open_source(right) as source:
        assert [file.id for file in scan(source, spec).files] == ["photo/dog/a", "photo/dog/b"]
    write(right, {"photo/cat/c.png": png(3)})
    with open_source(right) as source, pytest.raises(DataError, match=r"foreign images: 1 \(photo/cat/c\.png\)"):
        scan(source, spec)
    with open_source(wrong) as source, pytest.raises(DataError, match="the numbers agree but the names do not"):
        scan(source, spec)


def test_foreign_images_are_named_and_left_out_only_on_request(tmp_path: Path) -> None:
    root = write(tmp_path, {**SMALL, "photo/cat/c.png": png(1), "clipart/dog/d.png": png(2), "photo/e.png": png(3)})

    message = refused(root, allow_partial=False)

    assert "foreign images: 3 (clipart/dog/d.png, photo/cat/c.png, photo/e.png)" in message
    assert len(load(root)) == 5


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"photo/dog/a.png": b""}, "photo/dog/a.png is empty (0 bytes)"),
        ({"photo/dog/a.png": b"no image"}, "photo/dog/a.png cannot be decoded"),
        ({"photo/dog/a.png": png(1, side=64)[:-40]}, "photo/dog/a.png cannot be decoded"),
        ({"photo/dog/a.png": png(1), "photo/dog/a.jpg": png(1)}, "photo/dog/a.jpg and photo/dog/a.png are two files"),
        ({"photo/cat/a.png": png(1)}, "holds no PACS images, only others (photo/cat/a.png)"),
        ({"cats/a.png": png(1)}, "holds no PACS images: expected folders <domain>/<class>/"),
        ({"photo/dog/a\nb.png": b""}, "photo/dog/a?b.png is empty"),
        ({"read.me": b"?"}, "found read.me"),
        ({}, "found no file"),
    ],
)
@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_a_bad_file_is_refused_by_name_in_one_line(tmp_path: Path, files: Files, words: str, kind: str) -> None:
    (tmp_path / "PACS").mkdir()
    root = write(tmp_path / "PACS", files) if kind == "folder" else write_zip(tmp_path / "pacs.zip", files)

    assert words in refused(root)


def test_a_truncated_archive_is_refused_by_name(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "pacs.zip", SMALL)
    path.write_bytes(path.read_bytes()[:-200])

    assert "pacs.zip is not a complete zip archive" in refused(tmp_path)


def test_a_damaged_archive_member_is_refused_by_name(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "pacs.zip", {"PACS/photo/dog/a.png": png(1, side=64)})
    content = bytearray(path.read_bytes())
    content[80:90] = b"0123456789"
    path.write_bytes(content)

    assert "PACS/photo/dog/a.png cannot be decoded" in refused(tmp_path)


def test_a_member_of_an_archive_that_would_fill_the_memory_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "pacs.zip", {"PACS/photo/dog/a.png": png(1)})
    content = bytearray(path.read_bytes())
    size = content.index(b"PK\1\2") + 24  # of the member once unpacked, in the directory at the end
    content[size : size + 4] = (2**31 + 1).to_bytes(4, "little")
    path.write_bytes(content)

    assert "PACS/photo/dog/a.png would unpack to 2147483649 bytes" in refused(tmp_path)


def test_a_directory_of_an_archive_that_is_no_text_is_refused_by_name(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "pacs.zip", {"PACS/photo/dog/\N{DOG}.png": png(1)})
    content = path.read_bytes()
    path.write_bytes(content.replace("\N{DOG}".encode(), b"\xff\xfe\xfd\xfc"))

    assert "pacs.zip is not a complete zip archive" in refused(tmp_path)


@pytest.mark.parametrize(
    ("dataset", "name"), [("pacs", "metadata.csv"), ("femnist", "data/train/all_data.json")], ids=["list", "leaf"]
)
def test_a_damaged_list_of_an_archive_is_refused_by_name(tmp_path: Path, dataset: str, name: str) -> None:
    path = write_zip(tmp_path / f"{dataset}.zip", {name: b"domain,y,path\n" * 200})
    content = bytearray(path.read_bytes())
    content[30 + len(name) : 34 + len(name)] = b"\xff\xff\xff\xff"  # the compressed bytes follow the name
    path.write_bytes(content)

    with pytest.raises(DataError, match=f"{name} cannot be unpacked") as caught:
        load_dataset(dataset, data_root=path)
    assert "\n" not in str(caught.value)


def test_an_archive_whose_member_has_no_name_is_refused_in_one_line(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "pacs.zip", {"PACS/photo/dog/a.png": png(1)})
    content = bytearray(path.read_bytes())
    entry = content.index(b"PK\1\2")  # in which the lengths of name, extra field and comment are at 28, 30 and 32
    content[entry + 28 : entry + 34] = b"\0\0\0\0" + len("PACS/photo/dog/a.png").to_bytes(2, "little")
    path.write_bytes(content)

    assert "pacs.zip is not a complete zip archive" in refused(tmp_path)


def test_a_link_to_nothing_is_named(tmp_path: Path) -> None:
    root = write(tmp_path / "PACS", SMALL)
    (root / "photo" / "dog" / "z.png").symlink_to(tmp_path / "gone.png")

    assert f"{root / 'photo' / 'dog' / 'z.png'} cannot be read: No such file" in refused(root)


def test_a_link_to_a_folder_above_is_not_followed_for_ever(tmp_path: Path) -> None:
    root = write(tmp_path / "PACS", SMALL)
    (root / "photo" / "again").symlink_to(root)

    assert len(load(root)) == 5

"""Folders, archives, layouts, and what is said when they are not as they should be."""

import hashlib
import io
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fdgsec.data.catalog import DATASETS, load_dataset, locate
from fdgsec.data.domains import DomainDataset
from fdgsec.data.folder import decode, open_source
from fdgsec.data.layouts import scan
from fdgsec.data.specs import FolderSpec
from fdgsec.errors import DataError, DatasetNotFoundError, UsageError

Files = Mapping[str, bytes]


def pacs() -> FolderSpec:
    spec = DATASETS["pacs"].files
    assert spec is not None
    return spec


def png(value: int, *, side: int = 8, mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    ramp = (np.arange(side * side).reshape(side, side) + value).astype(np.uint8)
    Image.fromarray(ramp).convert(mode).save(buffer, "PNG")
    return buffer.getvalue()


SMALL: Files = {
    "photo/dog/b.png": png(10),
    "photo/dog/a.png": png(20),
    "photo/person/a.png": png(30),
    "art_painting/house/x.png": png(40),
    "sketch/dog/n_4068-1.png": png(50),
}


def write(root: Path, files: Files) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def write_zip(path: Path, files: Files) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def under(prefix: str, files: Files = SMALL) -> Files:
    return {prefix + name: content for name, content in files.items()}


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


def load(root: Path, *, image_size: int = 8) -> DomainDataset:
    return load_dataset("pacs", data_root=root, image_size=image_size, allow_partial=True)


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

    assert "line 3 of metadata.csv lists photo/dog/gone.png, which is not there" in message


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


def test_a_dataset_that_is_not_there_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError) as caught:
        load_dataset("pacs", data_root=tmp_path / "nowhere")

    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_code == 3
    for words in (str(tmp_path / "nowhere"), "art_painting, cartoon, photo, sketch", "https://", "--data-root"):
        assert words in message


def test_the_data_root_comes_from_the_environment_and_then_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "mine" / "PACS", SMALL)
    write(tmp_path / "cache" / "data" / "PACS", SMALL)
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path / "cache"))

    monkeypatch.setenv("FDGSEC_DATA", str(tmp_path / "mine"))
    assert locate("pacs") == tmp_path / "mine" / "PACS"
    monkeypatch.delenv("FDGSEC_DATA")
    assert locate("pacs") == tmp_path / "cache" / "data" / "PACS"


def test_a_folder_wins_over_an_archive_beside_it_and_an_empty_one_does_not(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "PACS-128.zip", under("PACS/"))
    (tmp_path / "PACS").mkdir()

    assert locate("pacs", tmp_path) == archive
    write(tmp_path / "PACS", SMALL)
    assert locate("pacs", tmp_path) == tmp_path / "PACS"


def test_a_dataset_buried_among_others_is_not_searched_for(tmp_path: Path) -> None:
    write(tmp_path, under("mine/deep/"))

    with pytest.raises(DatasetNotFoundError):
        locate("pacs", tmp_path)
    assert locate("pacs", tmp_path / "mine" / "deep") == tmp_path / "mine" / "deep"


def test_an_unknown_dataset_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match=r"unknown dataset 'pasc'.*did you mean 'pacs'"):
        load_dataset("pasc")


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(UsageError, match="image_size must be at least 1; got 0"):
        load_dataset("pacs", image_size=0)
    with pytest.raises(UsageError, match="per_domain must be at least 1; got 0"):
        load_dataset("pacs", per_domain=0)


def many(classes: Mapping[str, int]) -> Files:
    return {f"photo/{name}/{i:03}.png": png(i) for name, count in classes.items() for i in range(count)}


def test_per_domain_keeps_classes_in_proportion_and_decodes_nothing_else(tmp_path: Path) -> None:
    files = {**many({"dog": 30, "house": 20, "person": 10}), "sketch/dog/a.png": png(1)}
    heard: list[tuple[str, int, int]] = []

    data = load_dataset(
        "pacs",
        data_root=write(tmp_path, files),
        image_size=8,
        allow_partial=True,
        per_domain=12,
        progress=lambda what, done, of: heard.append((what, done, of)),
    )

    assert data.labels[data.domains == 2].bincount(minlength=7).tolist() == [6, 0, 0, 0, 0, 4, 2]
    assert int((data.domains == 3).sum()) == 1
    assert heard == [("decoding", 13, 13)]


def test_per_domain_draws_by_seed_and_by_nothing_else(tmp_path: Path) -> None:
    root = write(tmp_path, many({"dog": 40}))

    def drawn(seed: int) -> list[str]:
        data = load_dataset("pacs", data_root=root, image_size=8, allow_partial=True, per_domain=10, seed=seed)
        return list(data.ids)

    assert drawn(0) == drawn(0)
    assert drawn(0) == sorted(drawn(0))
    assert drawn(0) != drawn(1)


def test_pixels_above_the_budget_are_mapped_from_a_file_that_is_reused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path / "cache"))
    root = write(tmp_path / "PACS", SMALL)

    def mapped() -> tuple[DomainDataset, list[int]]:
        decoded: list[int] = []
        data = load_dataset(
            "pacs",
            data_root=root,
            image_size=8,
            allow_partial=True,
            memory_budget=100,
            progress=lambda _, done, __: decoded.append(done),
        )
        return data, decoded

    first, first_decoded = mapped()
    assert isinstance(first.store, torch.Tensor)
    first.store.zero_()  # changes the copy in memory alone
    second, second_decoded = mapped()

    assert (first_decoded, second_decoded) == ([5], [])
    assert torch.equal(second.pixels(), load(root).pixels())
    assert [path.stat().st_size for path in (tmp_path / "cache" / "pixels").iterdir()] == [5 * 3 * 8 * 8]


def test_an_interrupted_or_resized_pixel_file_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path / "cache"))
    root = write(tmp_path / "PACS", SMALL)
    with open_source(root) as source:
        files = scan(source, pacs(), allow_partial=True).files
        expected = decode(source, files, image_size=8)
        decode(source, files, image_size=8, memory_budget=0)
        (stored,) = (tmp_path / "cache" / "pixels").iterdir()
        stored.write_bytes(stored.read_bytes()[:7])

        again = decode(source, files, image_size=8, memory_budget=0)

    assert torch.equal(again, expected)


def test_a_corrupt_image_leaves_no_pixel_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path / "cache"))
    root = write(tmp_path / "PACS", {**SMALL, "photo/dog/z.png": b"no image"})

    with pytest.raises(DataError, match=r"photo/dog/z\.png"):
        load_dataset("pacs", data_root=root, image_size=8, allow_partial=True, memory_budget=0)

    assert list((tmp_path / "cache" / "pixels").iterdir()) == []


def test_threads_change_the_time_and_not_the_pixels(tmp_path: Path) -> None:
    with open_source(write(tmp_path, many({"dog": 150}))) as source:
        files = scan(source, pacs(), allow_partial=True).files

        assert torch.equal(
            decode(source, files, image_size=8, threads=1), decode(source, files, image_size=8, threads=3)
        )


def test_shapes_is_one_set_of_images_whatever_the_seed() -> None:
    heard: list[tuple[str, int, int]] = []

    first = load_dataset(
        "shapes", image_size=16, per_domain=7, progress=lambda what, done, of: heard.append((what, done, of))
    )

    assert len(first) == 28
    assert heard[-1] == ("drawing", 28, 28)
    assert DATASETS["shapes"].target_domain in first.domain_names
    assert load_dataset("shapes", image_size=16, per_domain=7, seed=5).content_sha256 == first.content_sha256


def test_the_known_counts_of_pacs_add_up() -> None:
    assert pacs().images == 9991
    assert {domain: sum([row] if isinstance(row, int) else row) for domain, row in pacs().counts[0].items()} == {
        "art_painting": 2048,
        "cartoon": 2344,
        "photo": 1670,
        "sketch": 3929,
    }

"""Where a dataset is found, which of its images are taken, and how their pixels are kept."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from fdgsec.data.catalog import DATASETS, load_dataset, locate
from fdgsec.data.dataset_scan import scan
from fdgsec.data.domains import DomainDataset
from fdgsec.data.image_sources import decode, open_source
from fdgsec.runtime.checked_files import SEAL_BYTES
from fdgsec.runtime.errors import DataError, DatasetNotFoundError, UsageError
from tests.support.small_pacs import SMALL, Files, load, pacs, png, under, write, write_zip


def test_a_dataset_that_is_not_there_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError) as caught:
        load_dataset("pacs", data_root=tmp_path / "nowhere")

    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_code == 3
    for words in (str(tmp_path / "nowhere"), "art_painting, cartoon, photo, sketch", "https://", "--data-root"):
        assert words in message


def test_the_data_root_comes_from_the_environment_and_then_from_the_cache(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "mine" / "PACS", SMALL)
    write(own_cache / "data" / "PACS", SMALL)

    monkeypatch.setenv("FDGSEC_DATA", str(tmp_path / "mine"))
    assert locate("pacs") == tmp_path / "mine" / "PACS"
    monkeypatch.delenv("FDGSEC_DATA")
    assert locate("pacs") == own_cache / "data" / "PACS"


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


def test_pixels_above_the_budget_are_mapped_from_a_file_that_is_reused(tmp_path: Path, own_cache: Path) -> None:
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
    assert [path.stat().st_size for path in (own_cache / "pixels").iterdir()] == [5 * 3 * 8 * 8 + SEAL_BYTES]


def test_an_interrupted_or_resized_pixel_file_is_written_anew(tmp_path: Path, own_cache: Path) -> None:
    root = write(tmp_path / "PACS", SMALL)
    with open_source(root) as source:
        files = scan(source, pacs(), allow_partial=True).files
        expected = decode(source, files, image_size=8)
        decode(source, files, image_size=8, memory_budget=0)
        (stored,) = (own_cache / "pixels").iterdir()
        stored.write_bytes(stored.read_bytes()[:7])

        again = decode(source, files, image_size=8, memory_budget=0)

    assert torch.equal(again, expected)


def test_a_corrupt_image_leaves_no_pixel_file_behind(tmp_path: Path, own_cache: Path) -> None:
    root = write(tmp_path / "PACS", {**SMALL, "photo/dog/z.png": b"no image"})

    with pytest.raises(DataError, match=r"photo/dog/z\.png"):
        load_dataset("pacs", data_root=root, image_size=8, allow_partial=True, memory_budget=0)

    assert list((own_cache / "pixels").iterdir()) == []


def test_an_archive_is_decoded_once_in_a_process_and_anew_when_it_has_changed(tmp_path: Path) -> None:
    decoded: list[int] = []

    def load(path: Path, size: int = 8) -> DomainDataset:
        return load_dataset(
            "pacs", data_root=path, image_size=size, allow_partial=True,
            progress=lambda _what, done, _of: decoded.append(done),
        )  # fmt: skip

    files = under("PACS/")
    archive = write_zip(tmp_path / "PACS-128.zip", files)
    first, second = load(archive), load(archive)
    assert decoded == [5]
    assert torch.equal(first.pixels(), second.pixels())

    load(archive, size=4)
    assert decoded == [5, 5]
    name = next(path for path in files if path.endswith(".png"))
    write_zip(archive, {**files, name: png(99)})
    os.utime(archive, ns=(1, 1))
    assert not torch.equal(load(archive).pixels(), first.pixels())
    assert decoded == [5, 5, 5]


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

import fcntl
import gzip
import io
import os
import random
import shutil
import tarfile
import zipfile
from collections import namedtuple
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import pytest

from fdgsec.data.fetch import Archive, fetch_dataset
from fdgsec.runtime.errors import DataError, DatasetNotFoundError, MissingResourceError
from tests.support.local_site import Site
from tests.support.tiny_dataset import JPEG, PAGE, PNG, files_below, picture


def tarred(members: Mapping[str, bytes | tarfile.TarInfo], *, mode: str = "w:gz") -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode=mode) as archive:  # type: ignore[call-overload]
        for name, member in members.items():
            if isinstance(member, bytes):
                entry = tarfile.TarInfo(name)
                entry.size = len(member)
                archive.addfile(entry, io.BytesIO(member))
            else:
                archive.addfile(member)
    return content.getvalue()


def folder(name: str) -> tarfile.TarInfo:
    return special(name, tarfile.DIRTYPE)


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry


def zipped(members: Mapping[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return content.getvalue()


class Fetch(Protocol):
    def __call__(self, *names: str, progress: list[tuple[str, int, int]] | None = None) -> list[Path]: ...


@pytest.fixture
def fetch(site: Site, tmp_path: Path) -> Fetch:
    def run(*names: str, progress: list[tuple[str, int, int]] | None = None) -> list[Path]:
        return fetch_dataset(
            "tiny",
            title="Tiny",
            page=PAGE,
            root=tmp_path / "data",
            folder="Tiny",
            archives=[Archive(url=site.url(name), file_name=name) for name in names],
            progress=None if progress is None else lambda *state: progress.append(state),
        )

    return run


def test_a_zip_stays_as_it_is(site, tmp_path, fetch):
    site.files["tiny.zip"] = zipped({"Tiny/photo/dog/1.png": PNG})
    seen: list[tuple[str, int, int]] = []

    assert fetch("tiny.zip", progress=seen) == [tmp_path / "data" / "tiny.zip"]
    assert (tmp_path / "data" / "tiny.zip").read_bytes() == site.files["tiny.zip"]
    assert seen[-1] == ("tiny.zip (MB)", 1, 1)


@pytest.mark.parametrize(("name", "mode"), [("tiny.tar.gz", "w:gz"), ("tiny.tar", "w"), ("tiny.tar.xz", "w:xz")])
def test_a_tar_becomes_the_datasets_folder_and_is_not_fetched_twice(site, tmp_path, fetch, name, mode):
    site.files[name] = tarred({"VLCS/photo/dog/1.png": PNG, "VLCS/photo/dog/2.jpg": JPEG}, mode=mode)

    assert fetch(name) == [tmp_path / "data" / "Tiny"] == fetch(name)
    assert files_below(tmp_path / "data") == ["Tiny/VLCS/photo/dog/1.png", "Tiny/VLCS/photo/dog/2.jpg"]
    assert (tmp_path / "data/Tiny/VLCS/photo/dog/2.jpg").read_bytes() == JPEG
    assert len(site.asked) == 1


def test_a_tar_may_name_the_folder_it_was_packed_in(site, tmp_path, fetch):
    site.files["tiny.tar"] = tarred({"./": folder("./"), "./photo": folder("./photo"), "./photo/1.png": PNG}, mode="w")

    fetch("tiny.tar")

    assert files_below(tmp_path / "data") == ["Tiny/photo/1.png"]


def test_several_tars_become_one_folder_beside_what_is_not_packed(site, tmp_path, fetch):
    site.files |= {"a.tar.gz": tarred({"photo/dog/1.png": PNG}), "b.tgz": tarred({"sketch/dog/1.png": PNG})}
    site.files["list.txt"] = b"photo/dog/1.png 0\n"

    held = fetch("a.tar.gz", "list.txt", "b.tgz")

    assert held == [tmp_path / "data" / "Tiny", tmp_path / "data" / "list.txt"]
    assert files_below(tmp_path / "data") == ["Tiny/photo/dog/1.png", "Tiny/sketch/dog/1.png", "list.txt"]


def test_a_cut_download_of_a_tar_leaves_no_folder_and_is_taken_up_by_the_next_call(site, tmp_path, fetch):
    site.files["tiny.tar.gz"] = content = tarred({"photo/dog/1.png": PNG})
    site.cuts = [100, 0]

    with pytest.raises(DatasetNotFoundError, match=r"^Tiny was not fetched: .*Get it from https://example\.org/tiny"):
        fetch("tiny.tar.gz")
    assert files_below(tmp_path / "data") == ["tiny.tar.gz.part", "tiny.tar.gz.part.json"]

    fetch("tiny.tar.gz")
    assert site.asked[-1] == ("tiny.tar.gz", "bytes=100-")
    assert files_below(tmp_path / "data") == ["Tiny/photo/dog/1.png"]
    assert len(content) > 100


EVIL = {
    "climbs": {"../evil": b"x"},
    "climbs inside": {"photo/../../evil": b"x"},
    "is absolute": {"/tmp/evil": b"x"},
    "climbs on Windows": {"..\\evil": b"x"},
    "is absolute on Windows": {"C:/evil": b"x"},
    "links": {"link": special("link", tarfile.SYMTYPE, "/etc"), "link/evil": b"x"},
    "links inside": {"photo/1.png": PNG, "link": special("link", tarfile.LNKTYPE, "photo/1.png")},
    "is a device": {"device": special("device", tarfile.CHRTYPE)},
    "is a pipe": {"pipe": special("pipe", tarfile.FIFOTYPE)},
}


@pytest.mark.parametrize("members", EVIL.values(), ids=EVIL.keys())
def test_a_tar_that_reaches_outside_its_folder_is_refused_and_deleted(site, tmp_path, fetch, members):
    site.files["tiny.tar.gz"] = tarred({"photo/dog/1.png": PNG, **members})

    with pytest.raises(DataError, match="is refused: its member") as caught:
        fetch("tiny.tar.gz")

    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.99])
def test_a_damaged_tar_is_refused_and_deleted(site, tmp_path, fetch, mode, share):
    whole = tarred({f"photo/dog/{i}.jpg": picture("JPEG", i) for i in range(40)}, mode=mode).rstrip(b"\0")
    site.files["tiny.tar.gz"] = whole[: int(len(whole) * share)]

    with pytest.raises(DataError, match=r"tiny\.tar\.gz is damaged or not a tar archive"):
        fetch("tiny.tar.gz")

    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
@pytest.mark.medium
def test_a_tar_whose_middle_is_damaged_is_refused_and_deleted(site, tmp_path, fetch, mode):
    whole = bytearray(tarred({f"photo/{i}.png": random.Random(i).randbytes(200_000) for i in range(9)}, mode=mode))
    whole[len(whole) // 2 : len(whole) // 2 + 64] = bytes(64)
    site.files["tiny.tar.gz"] = bytes(whole)

    with pytest.raises(DataError, match=r"tiny\.tar\.gz is damaged or not a tar archive"):
        fetch("tiny.tar.gz")

    assert list((tmp_path / "data").iterdir()) == []


def test_a_tar_that_needs_one_name_for_a_file_and_a_folder_is_refused_and_deleted(site, tmp_path, fetch):
    site.files["tiny.tar"] = tarred({"photo": PNG, "photo/1.png": PNG}, mode="w")

    with pytest.raises(DataError, match=r"tiny\.tar is damaged or not a tar archive"):
        fetch("tiny.tar")

    assert list((tmp_path / "data").iterdir()) == []


def test_a_tar_whose_header_points_backwards_is_refused_instead_of_read_for_ever(site, tmp_path, fetch):
    content = bytearray(tarred({"photo/1.png": PNG, "photo/2.png": PNG}, mode="w"))
    header = content[:512]
    header[124:136] = (-512).to_bytes(12, "big", signed=True)  # the size, in base 256
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    site.files["tiny.tar"] = bytes(header + content[512:])

    with pytest.raises(DataError, match=r"tiny\.tar is damaged or not a tar archive"):
        fetch("tiny.tar")


def test_a_tar_that_unpacks_to_hundreds_of_times_its_size_is_refused_before_it_does(site, tmp_path, fetch):
    entry = tarfile.TarInfo("photo/dog/1.png")
    entry.size = 2**31
    site.files["tiny.tar.gz"] = gzip.compress(entry.tobuf() + bytes(10_000))

    with pytest.raises(DataError, match=r"would unpack to 2147483648 bytes or more, over 200 times its own size"):
        fetch("tiny.tar.gz")

    assert list((tmp_path / "data").iterdir()) == []


def test_what_a_killed_call_left_is_cleared_away_and_what_a_running_one_fills_is_not(site, tmp_path, fetch):
    left, filling = tmp_path / "data" / ".fetch-00000000", tmp_path / "data" / ".fetch-11111111"
    for path in (left, filling):
        path.mkdir(parents=True)
        (path / "half.png").write_bytes(b"?")
    site.files["tiny.tar"] = tarred({"photo/1.png": PNG}, mode="w")
    running = os.open(filling, os.O_RDONLY)
    fcntl.flock(running, fcntl.LOCK_EX)  # as good as another process's

    fetch("tiny.tar")

    os.close(running)
    assert files_below(tmp_path / "data") == [".fetch-11111111/half.png", "Tiny/photo/1.png"]


def test_a_broken_zip_that_was_there_before_is_refused_and_not_deleted(tmp_path, fetch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "tiny.zip").write_bytes(b"mine")

    with pytest.raises(DataError, match=r"tiny\.zip is not a zip archive; move it away"):
        fetch("tiny.zip")

    assert (tmp_path / "data" / "tiny.zip").read_bytes() == b"mine"


def test_a_tar_that_ends_between_two_members_is_not_taken_for_a_smaller_dataset(site, tmp_path, fetch):
    site.files["tiny.tar"] = tarred({"photo/dog/1.png": bytes(512), "photo/dog/2.png": bytes(512)}, mode="w")[:1024]

    with pytest.raises(DataError, match="it breaks off at byte 1024"):
        fetch("tiny.tar")

    assert not (tmp_path / "data" / "Tiny").exists()


def test_a_tar_that_unpacks_to_more_than_the_disk_holds_is_given_up(site, tmp_path, fetch, monkeypatch):
    site.files["tiny.tar.gz"] = tarred({"photo/dog/1.png": bytes(3_000_000)})
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**7, 8 * 10**6, 2 * 10**6))

    with pytest.raises(MissingResourceError, match=r"does not fit: its member 'photo/dog/1\.png' has 3000000"):
        fetch("tiny.tar.gz")

    assert not (tmp_path / "data" / "Tiny").exists()


def test_what_only_calls_itself_a_zip_is_deleted(site, tmp_path, fetch):
    site.files["tiny.zip"] = b"quota exceeded"

    with pytest.raises(DataError, match=r"tiny\.zip gave no zip archive; it was deleted"):
        fetch("tiny.zip")

    assert list((tmp_path / "data").iterdir()) == []


def test_a_dataset_that_nobody_may_hand_on_ends_with_the_page_of_its_owners(tmp_path, fetch):
    with pytest.raises(DatasetNotFoundError) as caught:
        fetch()

    assert str(caught.value) == (
        f"Tiny cannot be fetched automatically. Get it from {PAGE}, put it into {tmp_path / 'data'}, and run "
        "`fdgsec data check tiny`."
    )
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("place", ["../out.zip", "/out.zip", ""])
def test_a_catalogue_cannot_place_files_outside_the_data_root(tmp_path, place):
    with pytest.raises(ValueError, match="inside the data root"):
        fetch_dataset(
            "tiny", title="Tiny", page=PAGE, root=tmp_path, folder="Tiny",
            archives=[Archive(url="https://example.org/a", file_name=place)],
        )  # fmt: skip

"""Downloads that were cut: what is taken up, and what starts over."""

import fcntl
import hashlib
import json
import shutil
from collections import namedtuple

import pytest

from fdgsec.runtime.download import DownloadError
from tests.support.local_site import Site
from tests.support.offered_file import CONTENT, DIGEST, get, leave_a_part, names


@pytest.fixture
def site(site: Site) -> Site:
    site.files["data.bin"] = CONTENT
    return site


@pytest.mark.parametrize("sha256", [DIGEST, None])
def test_a_cut_connection_is_taken_up_again_within_one_call(site, tmp_path, sha256):
    site.cuts = [1_000_000, 500_000]

    assert get(site, tmp_path, sha256=sha256).read_bytes() == CONTENT
    assert [span for _, span in site.asked] == [None, "bytes=1000000-", "bytes=1500000-"]


def test_a_connection_that_brings_nothing_more_ends_the_call_and_keeps_what_came(site, tmp_path):
    site.cuts = [1_000_000, 0]

    with pytest.raises(DownloadError) as caught:
        get(site, tmp_path)

    assert str(caught.value) == (
        f"{site.url('data.bin')} cannot be downloaded: the connection ended after 1000000 of 3000000 bytes. "
        "The 1000000 bytes so far are kept for the next try."
    )
    assert names(tmp_path) == ["data.bin.part", "data.bin.part.json"]


def test_the_next_call_asks_only_for_the_rest(site, tmp_path):
    leave_a_part(site, tmp_path, length=1_000_000)

    assert get(site, tmp_path).read_bytes() == CONTENT
    assert site.asked == [("data.bin", "bytes=1000000-")]
    assert names(tmp_path) == ["data.bin"]


def test_a_part_that_is_already_everything_is_recognized(site, tmp_path):
    leave_a_part(site, tmp_path, length=1_000_000)
    (tmp_path / "data.bin.part").write_bytes(CONTENT)

    assert get(site, tmp_path, sha256=None).read_bytes() == CONTENT
    assert site.asked == [("data.bin", "bytes=3000000-")]


def test_a_part_longer_than_the_file_is_dropped(site, tmp_path):
    leave_a_part(site, tmp_path, length=1_000_000)
    (tmp_path / "data.bin.part").write_bytes(CONTENT + b"more")

    assert get(site, tmp_path).read_bytes() == CONTENT


def test_a_server_without_ranges_starts_over(site, tmp_path):
    leave_a_part(site, tmp_path, length=1_000_000)
    site.ranges = False

    assert get(site, tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("sha256", [DIGEST, None])
def test_a_file_that_changed_on_the_server_since_is_fetched_from_its_beginning(site, tmp_path, sha256):
    leave_a_part(site, tmp_path, length=1_000_000)
    site.files["data.bin"], site.etag = CONTENT[::-1], '"v2"'

    expected = None if sha256 is None else hashlib.sha256(CONTENT[::-1]).hexdigest()

    assert get(site, tmp_path, sha256=expected).read_bytes() == CONTENT[::-1]


def test_without_a_validator_only_a_known_digest_allows_a_resumption(site, tmp_path):
    site.etag = None
    leave_a_part(site, tmp_path, length=1_000_000)

    assert get(site, tmp_path, sha256=None).read_bytes() == CONTENT
    assert site.asked == [("data.bin", None)]

    (tmp_path / "data.bin").unlink()
    leave_a_part(site, tmp_path, length=1_000_000)
    assert get(site, tmp_path, sha256=DIGEST).read_bytes() == CONTENT
    assert site.asked == [("data.bin", "bytes=1000000-")]


def test_a_part_of_another_address_is_not_taken_up(site, tmp_path):
    leave_a_part(site, tmp_path, length=1_000_000)
    note = tmp_path / "data.bin.part.json"
    note.write_text(json.dumps({"url": site.url("other.bin"), "validator": '"v1"'}))

    assert get(site, tmp_path).read_bytes() == CONTENT
    assert site.asked == [("data.bin", None)]


def test_a_damaged_part_is_found_by_the_digest_and_the_next_call_starts_over(site, tmp_path):
    leave_a_part(site, tmp_path, length=1_000_000)
    (tmp_path / "data.bin.part").write_bytes(bytes(1_000_000))

    with pytest.raises(DownloadError, match="gave another file"):
        get(site, tmp_path)

    assert names(tmp_path) == []
    assert get(site, tmp_path).read_bytes() == CONTENT


def test_only_the_rest_needs_room(site, tmp_path, monkeypatch):
    leave_a_part(site, tmp_path, length=2_000_000)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**7, 9 * 10**6, 10**6))

    assert get(site, tmp_path).read_bytes() == CONTENT


def test_a_part_of_another_version_is_not_taken_from_a_server_that_does_not_compare(site, tmp_path):
    leave_a_part(site, tmp_path, length=1_000_000)
    site.files["data.bin"], site.etag, site.checks_if_range = CONTENT[::-1], '"v2"', False

    assert get(site, tmp_path, sha256=None).read_bytes() == CONTENT[::-1]
    assert [span for _, span in site.asked] == ["bytes=1000000-", None]


def test_a_part_that_begins_elsewhere_is_not_taken_and_the_file_is_fetched_from_its_beginning(site, tmp_path):
    leave_a_part(site, tmp_path, length=1_000_000)
    site.off_by = 7

    assert get(site, tmp_path).read_bytes() == CONTENT
    assert [span for _, span in site.asked] == ["bytes=1000000-", None]


def test_a_part_that_nobody_asked_for_is_not_taken_for_the_whole(site, tmp_path):
    site.volunteers, site.off_by = True, 100

    with pytest.raises(DownloadError, match=r"sent a part that it was not asked for: 'bytes 100-2999999/3000000'"):
        get(site, tmp_path, sha256=None)

    assert names(tmp_path) == []


@pytest.mark.parametrize("part", [0, 1_000_000])
def test_a_server_that_refuses_every_range_ends_in_one_line(site, tmp_path, part):
    if part:
        leave_a_part(site, tmp_path, length=part)
    site.unsatisfiable = True

    with pytest.raises(DownloadError, match="HTTP Error 416"):
        get(site, tmp_path)


def test_two_processes_never_write_to_one_part(site, tmp_path):
    with (tmp_path / "data.bin.part.json").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)  # locks belong to the open file: this one is as good as another process's

        with pytest.raises(DownloadError, match="is being downloaded by another process"):
            get(site, tmp_path)

    assert site.asked == []
    assert get(site, tmp_path).read_bytes() == CONTENT

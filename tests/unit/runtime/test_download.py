"""Downloads that run through, and what is said where nothing can be had."""

import shutil
import socket
from collections import namedtuple

import pytest

from fdgsec.runtime import download as downloads
from fdgsec.runtime.download import DownloadError, download, in_megabytes, reach
from fdgsec.runtime.errors import MissingResourceError
from tests.support.local_site import Site
from tests.support.offered_file import CONTENT, DIGEST, get, leave_a_part, names


@pytest.fixture
def site(site: Site) -> Site:
    site.files["data.bin"] = CONTENT
    return site


def test_a_file_arrives_whole_in_a_new_folder_with_progress_from_nothing_to_all(site, tmp_path):
    seen: list[tuple[int, int | None]] = []

    file = download(
        site.url("data.bin"),
        tmp_path / "new" / "data.bin",
        sha256=DIGEST[:8],
        size=len(CONTENT),
        progress=lambda *state: seen.append(state),
    )

    assert file.read_bytes() == CONTENT
    assert names(file.parent) == ["data.bin"]
    assert (seen[0], seen[-1]) == ((0, 3_000_000), (3_000_000, 3_000_000))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_file_that_is_there_is_not_asked_for_again(site, tmp_path):
    get(site, tmp_path)
    site.asked.clear()

    assert get(site, tmp_path).read_bytes() == CONTENT
    assert get(site, tmp_path, sha256=None).read_bytes() == CONTENT
    assert site.asked == []


def test_a_file_that_disagrees_with_its_digest_is_replaced(site, tmp_path):
    (tmp_path / "data.bin").write_bytes(b"old")

    assert get(site, tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("sha256", "size", "message"),
    [
        ("0" * 64, None, rf"sha256 {DIGEST}; expected 0000.*It was deleted; nothing was stored\."),
        (None, 5, r"offers 3000000 bytes; expected 5: it is another file"),
    ],
)
def test_another_file_replaces_nothing_good_and_leaves_nothing_bad(site, tmp_path, sha256, size, message):
    (tmp_path / "data.bin").write_bytes(b"what the user has")

    with pytest.raises(DownloadError, match=message):
        get(site, tmp_path, sha256=sha256, size=size)

    assert (tmp_path / "data.bin").read_bytes() == b"what the user has"
    assert names(tmp_path) == ["data.bin"]


def refuse(*_: object, **__: object) -> None:
    raise OSError(101, "Network is unreachable")


def cut_off(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Take the network away, and count how often somebody reaches for it."""
    tries: list[None] = []

    def count(*_: object, **__: object) -> None:
        tries.append(None)
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", count)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return tries


@pytest.mark.parametrize("part", [0, 1_000_000])
def test_without_a_network_there_is_one_line_after_one_try_and_exit_code_3(site, tmp_path, monkeypatch, part):
    if part:
        leave_a_part(site, tmp_path, length=part)
    before, tries = names(tmp_path), cut_off(monkeypatch)

    with pytest.raises(MissingResourceError) as caught:
        get(site, tmp_path)

    assert str(caught.value).startswith(
        f"{site.url('data.bin')} cannot be downloaded: [Errno 101] Network is unreachable."
    )
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3
    assert len(tries) == 1
    assert names(tmp_path) == before


def test_reaching_for_an_address_says_in_one_line_that_there_is_no_network(site, monkeypatch):
    reach(site.url("data.bin"))
    cut_off(monkeypatch)

    with pytest.raises(DownloadError, match=r"data\.bin cannot be reached: .*unreachable\.$"):
        reach(site.url("data.bin"))


def test_a_missing_page_and_a_page_in_the_place_of_the_file_are_told_apart(site, tmp_path):
    with pytest.raises(DownloadError, match=r"none\.bin cannot be downloaded: HTTP Error 404: Not Found\.$"):
        download(site.url("none.bin"), tmp_path / "data.bin", sha256=None, size=None)
    site.kind = "text/html; charset=utf-8"
    with pytest.raises(DownloadError, match=r"gave a web page, not data\.bin"):
        get(site, tmp_path)

    assert names(tmp_path) == []


def test_a_file_of_unannounced_length_is_taken_only_where_something_else_can_tell_that_it_is_whole(site, tmp_path):
    site.says_length = False

    with pytest.raises(DownloadError, match="does not say how long it is"):
        get(site, tmp_path, sha256=None)

    site.cuts = [1_000_000]
    with pytest.raises(DownloadError, match="gave another file"):
        get(site, tmp_path)
    assert names(tmp_path) == []
    assert get(site, tmp_path).read_bytes() == CONTENT


def test_a_disk_that_is_too_small_is_noticed_before_a_byte_is_stored(site, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**7, 8 * 10**6, 2 * 10**6))

    with pytest.raises(DownloadError, match=r"needs 3 MB in .*, which has 2 MB free: make room"):
        get(site, tmp_path)

    assert names(tmp_path) == []


def test_a_redirection_is_followed(site, tmp_path):
    site.moved = {"old.bin": site.url("data.bin")}

    assert download(site.url("old.bin"), tmp_path / "a", sha256=DIGEST, size=None).read_bytes() == CONTENT


def test_a_redirection_to_another_scheme_is_refused(site, tmp_path):
    site.moved = {"old.bin": "ftp://127.0.0.1/data.bin"}

    with pytest.raises(DownloadError, match=r"refused to be sent from http to ftp://127\.0\.0\.1/data\.bin"):
        download(site.url("old.bin"), tmp_path / "a", sha256=DIGEST, size=None)


def test_no_redirection_leads_from_https_to_what_can_be_read_on_its_way():
    handler, secure = downloads._Redirects(), downloads.Request("https://example.org/data.bin")

    with pytest.raises(OSError, match=r"refused to be sent from https to http://example\.org"):
        handler.redirect_request(secure, None, 302, "Found", None, "http://example.org/data.bin")  # type: ignore[arg-type]


@pytest.mark.parametrize("length", ["many", "-5", "1e6"])
def test_a_length_that_is_no_number_counts_as_none(site, tmp_path, length):
    site.length = length

    with pytest.raises(DownloadError, match="does not say how long it is"):
        get(site, tmp_path, sha256=None)


def test_what_a_server_says_cannot_steer_the_terminal(site, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError("gone\x1b[2J away")

    monkeypatch.setattr(socket, "create_connection", refuse)

    with pytest.raises(DownloadError, match=r"cannot be reached: gone\?\[2J away\.$"):
        reach(site.url("data.bin"))


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://example.org/a", "/etc/hostname"])
def test_other_schemes_are_refused(tmp_path, url):
    with pytest.raises(ValueError, match="must be an http"):
        download(url, tmp_path / "a", sha256=None, size=None)


def test_a_folder_that_cannot_be_made_is_said_in_one_line(site, tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(DownloadError, match=r"file/data\.bin cannot be written: "):
        get(site, tmp_path / "file")


def test_megabytes_are_rounded_up_and_an_unknown_total_is_what_has_come():
    seen: list[tuple[str, int, int]] = []
    progress = in_megabytes(lambda *state: seen.append(state), "weights")

    progress(1, 2_500_000)
    progress(2_500_000, None)

    assert seen == [("weights (MB)", 1, 3), ("weights (MB)", 3, 3)]

"""Members of zip archives: the bytes that zipfile gives, in bounded memory whatever an archive says of itself."""

import io
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable

import pytest

from fdgsec.runtime import zip_members
from fdgsec.runtime.zip_members import ZIP_DAMAGE, unpacked

PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
NAME = "a/picture.png"


def packed(content: bytes, packing: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", packing) as archive:
        archive.writestr("first.txt", b"first")
        archive.writestr(NAME, content)
    return buffer.getvalue()


def read(archive: bytes, change: Callable[[zipfile.ZipInfo], None] | None = None, *, most: int = 2**31) -> bytes:
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        member = opened.getinfo(NAME)
        if change is not None:
            change(member)
        return unpacked(opened, member, most=most)


def peak_of(archive: bytes, change: Callable[[zipfile.ZipInfo], None] | None = None) -> tuple[object, int]:
    """What comes of reading, and the most memory that it takes."""
    tracemalloc.start()
    try:
        found: object = read(archive, change)
    except ZIP_DAMAGE as error:
        found = error
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found, peak


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("content", [b"", b"x", bytes(range(256)) * 5000])
def test_a_member_has_the_bytes_that_were_packed(packing: int, content: bytes):
    assert read(packed(content, packing)) == content


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.medium
def test_a_member_that_unpacks_to_more_than_it_says_takes_no_more_memory_than_it_says(packing: int):
    archive = packed(bytes(2**26), packing) if packing else packed(bytes(2**20), packing)

    found, peak = peak_of(archive, lambda member: setattr(member, "file_size", 100))

    assert isinstance(found, zipfile.BadZipFile)
    assert peak < 2**20 + 3 * len(archive)


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_member_that_unpacks_to_less_or_to_other_bytes_is_damaged(packing: int):
    archive = packed(b"some bytes", packing)
    for name, value in (("file_size", 11), ("CRC", 1)):
        with pytest.raises(ZIP_DAMAGE):
            read(archive, lambda member, name=name, value=value: setattr(member, name, value))  # type: ignore[misc]
    with pytest.raises(zipfile.BadZipFile, match="would unpack to 10 bytes, and may have 9"):
        read(archive, most=9)


def test_a_dictionary_of_gigabytes_is_not_laid_out():
    content = bytes(range(256)) * 500
    archive = bytearray(packed(content, zipfile.ZIP_LZMA))
    at = archive.index(b"\x05\x00\x5d", archive.index(NAME.encode())) + 3  # behind the version, the size and lc, lp, pb
    archive[at : at + 4] = (2**32 - 1).to_bytes(4, "little")

    found, peak = peak_of(bytes(archive))

    assert found == content
    assert peak < 2**20


def test_an_lzma_stream_without_a_mark_at_its_end_is_whole():
    """419 zeros as literals, from an encoder that writes no mark: what is left in the decoder stands for one zero more."""
    stream = bytes.fromhex("140905005d00000100") + bytes(52)
    archive = packed(stream, zipfile.ZIP_STORED)

    def of_lzma(member: zipfile.ZipInfo) -> None:
        member.compress_type, member.file_size, member.CRC = zipfile.ZIP_LZMA, 419, zlib.crc32(bytes(419))

    assert read(archive, of_lzma) == bytes(419)
    with pytest.raises(zipfile.BadZipFile):  # a stream with a mark that says that there is more
        read(packed(bytes(419), zipfile.ZIP_LZMA), lambda member: setattr(member, "file_size", 418))


def test_no_memory_is_damage(monkeypatch: pytest.MonkeyPatch):
    def full(*_given: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr(zip_members, "_inflated", full)
    with pytest.raises(zipfile.BadZipFile, match="no memory for its 10 bytes"):
        read(packed(b"some bytes", zipfile.ZIP_DEFLATED))


def test_a_stored_member_of_two_sizes_is_not_read():
    archive = packed(b"some bytes", zipfile.ZIP_STORED)
    with pytest.raises(zipfile.BadZipFile):
        read(archive, lambda member: setattr(member, "file_size", 9))


def test_a_member_that_says_to_be_packed_into_gigabytes_is_not_given_them():
    archive = packed(b"some bytes", zipfile.ZIP_DEFLATED)

    found, peak = peak_of(archive, lambda member: setattr(member, "compress_size", 2**31))

    assert isinstance(found, ZIP_DAMAGE)
    assert peak < 2**21 + 2**20


def test_an_unknown_method_and_a_password_are_damage():
    archive = packed(b"some bytes", zipfile.ZIP_STORED)
    with pytest.raises(NotImplementedError, match="method 93"):
        read(archive, lambda member: setattr(member, "compress_type", 93))
    with pytest.raises(RuntimeError, match="encrypted"):
        read(archive, lambda member: setattr(member, "flag_bits", 1))

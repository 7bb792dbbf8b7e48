"""Archives packed by LZMA: xz in every form is read, and none takes the memory that its header asks for."""

import binascii
import io
import lzma
import struct
import tarfile
from pathlib import Path

import pytest

from fdgsec.data.unpack import unpack_tar
from fdgsec.runtime.errors import DataError

CONTENT = bytes(range(256)) * 400


def tar() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in ("photo/dog/1.png", "photo/dog/2.png"):
            member = tarfile.TarInfo(name)
            member.size = len(CONTENT)
            archive.addfile(member, io.BytesIO(CONTENT))
    return packed.getvalue()


def folder(place: Path) -> Path:
    (place / "out").mkdir()
    return place / "out"


def in_two_streams() -> bytes:
    whole = tar()
    return lzma.compress(whole[:5000]) + bytes(8) + lzma.compress(whole[5000:]) + bytes(4)


def with_a_large_dictionary() -> bytes:
    """xz whose block asks for a dictionary of 4 GiB, with the check sum of its header made anew."""
    packed = bytearray(lzma.compress(tar()))
    length = (packed[12] + 1) * 4
    assert packed[14:16] == b"\x21\x01"  # LZMA2, with one byte of properties: the size of its dictionary
    packed[16] = 40
    packed[12 + length - 4 : 12 + length] = struct.pack("<I", binascii.crc32(packed[12 : 12 + length - 4]))
    return bytes(packed)


def alone_with_a_large_dictionary() -> bytes:
    """The older format, which has neither a magic number nor a check sum, and which no dataset comes in."""
    packed = bytearray(lzma.compress(tar(), format=lzma.FORMAT_ALONE))
    packed[1:5] = b"\xff" * 4
    return bytes(packed)


@pytest.mark.parametrize(
    "packed",
    [lzma.compress(tar(), preset=9), in_two_streams()],
    ids=["xz -9", "two streams and padding"],
)
def test_what_was_packed_comes_out(packed: bytes, tmp_path: Path):
    file = tmp_path / "images.tar.xz"
    file.write_bytes(packed)

    unpack_tar(file, folder(tmp_path))

    found = {path.name: path.read_bytes() for path in (tmp_path / "out").rglob("*.png")}
    assert found == {"1.png": CONTENT, "2.png": CONTENT}


@pytest.mark.parametrize(
    ("packed", "said"),
    [(with_a_large_dictionary(), "emory usage limit"), (alone_with_a_large_dictionary(), "not a tar archive")],
    ids=["xz", "lzma"],
)
def test_a_header_does_not_decide_how_much_memory_is_taken(packed: bytes, said: str, tmp_path: Path):
    file = tmp_path / "images.tar.xz"
    file.write_bytes(packed)

    with pytest.raises(DataError, match=said):
        unpack_tar(file, folder(tmp_path))


@pytest.mark.parametrize("cut", [10, 200, -1, -9])
def test_an_archive_that_breaks_off_is_damaged(cut: int, tmp_path: Path):
    file = tmp_path / "images.tar.xz"
    file.write_bytes(lzma.compress(tar())[:cut])

    with pytest.raises(DataError, match="damaged"):
        unpack_tar(file, folder(tmp_path))

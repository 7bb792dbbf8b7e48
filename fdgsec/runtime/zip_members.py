"""Members of zip archives from elsewhere, unpacked into no more memory than their size in the archive's directory.

zipfile trusts the packed bytes: a member that is said to have a hundred bytes may unpack to gigabytes before its size
is compared, and one packed by LZMA asks for a dictionary of up to 4 GiB before its first byte. Here a member is
unpacked piece by piece up to its stated size, with a dictionary that is no larger than that; what is longer or shorter
is damaged."""

import bz2
import copy
import lzma
import struct
import zipfile
import zlib
from functools import partial
from typing import IO, Protocol

ZIP_DAMAGE = (
    OSError, ValueError, EOFError, RuntimeError, LookupError, ArithmeticError, struct.error, zlib.error, lzma.LZMAError,
    zipfile.BadZipFile,
)  # fmt: skip
"""What damaged or encrypted archives and members raise, depending on their compression."""
PIECE = 2**20
"""Packed bytes that are read at once: their number in the directory may be a lie as well."""
LEAST_DICTIONARY = 4096
"""Bytes of the smallest dictionary of LZMA."""
ENDS = 0x2
"""Flag of a member packed by LZMA whose stream has a mark at its end (APPNOTE.TXT 4.4.4)."""


class Decompressor(Protocol):
    """A decompressor of the standard library."""

    @property
    def eof(self) -> bool:
        """Whether the end of the stream was reached."""
        ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        """Give at most `max_length` bytes."""
        ...


def unpacked(archive: zipfile.ZipFile, member: zipfile.ZipInfo, *, most: int) -> bytes:
    """The bytes of a member, which may be `most`. Raises one of ZIP_DAMAGE for more, and where it is damaged."""
    if member.file_size > most:
        raise zipfile.BadZipFile(f"it would unpack to {member.file_size} bytes, and may have {most}")
    try:
        plain = _plain(archive, member)
    except MemoryError as error:
        raise zipfile.BadZipFile(f"there is no memory for its {member.file_size} bytes") from error
    if len(plain) != member.file_size:
        raise zipfile.BadZipFile(f"it does not unpack to the {member.file_size} bytes that its archive says")
    if zlib.crc32(plain) != member.CRC:
        raise zipfile.BadZipFile("its bytes have another CRC-32 than its archive says")
    return plain


def _plain(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """The unpacked bytes, of which there are at most one more than the directory says."""
    size, kind = member.file_size, member.compress_type
    with _packed(archive, member) as file:
        if kind == zipfile.ZIP_STORED:
            return b"".join(iter(partial(file.read, PIECE), b"")) if member.compress_size == size else b""
        if kind == zipfile.ZIP_DEFLATED:
            return _inflated(zlib.decompressobj(-zlib.MAX_WBITS), file, size + 1)
        if kind == zipfile.ZIP_BZIP2:
            return _inflated(bz2.BZ2Decompressor(), file, size + 1)
        if kind == zipfile.ZIP_LZMA:
            # without a mark at its end a stream goes on, as what is left in the decoder may stand for one more byte
            more = 1 if member.flag_bits & ENDS else 0
            return b"" if size == 0 else _inflated(_lzma(file, size), file, size + more)
    raise NotImplementedError(f"it is packed by method {kind}, which is not supported")


def _packed(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> IO[bytes]:
    """The bytes of a member as they are stored; zipfile checks its header, and that no password is needed."""
    stored = copy.copy(member)
    stored.compress_type, stored.file_size = zipfile.ZIP_STORED, member.compress_size
    del stored.CRC  # that of the unpacked bytes, which zipfile would compare
    return archive.open(stored)


def _inflated(decompressor: Decompressor, file: IO[bytes], most: int) -> bytes:
    """At most so many bytes, 1 or more, read piece by piece until these are there."""
    plain = bytearray()
    while not decompressor.eof and len(plain) < most and (piece := file.read(PIECE)):
        plain += decompressor.decompress(piece, most - len(plain))
    return bytes(plain)


def _lzma(file: IO[bytes], size: int) -> lzma.LZMADecompressor:
    """What unpacks the LZMA stream behind its header: version, size of properties, and these (APPNOTE.TXT 5.8.8): one
    byte for lc, lp and pb, and four for the size of the dictionary, of which no more than the stream's is needed."""
    _version, length, settings, dictionary = struct.unpack("<HHBI", file.read(9))
    if length != 5:
        raise lzma.LZMAError(f"its properties have {length} bytes in place of 5")
    coder: dict[str, int] = {
        "id": lzma.FILTER_LZMA1, "dict_size": max(LEAST_DICTIONARY, min(dictionary, size)),
        "lc": settings % 9, "lp": settings // 9 % 5, "pb": settings // 45,
    }  # fmt: skip
    return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=[coder])

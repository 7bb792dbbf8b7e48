"""Members of zip archives from elsewhere, unpacked into no more memory than their size in the archive's directory.

zipfile trusts the packed bytes: a member that is said to have a hundred bytes may unpack to gigabytes before its size
is compared, and one packed by LZMA asks for a dictionary of up to 4 GiB before its first byte. Here a member is
unpacked up to its stated size and one byte more, with a dictionary that is no larger than that; what is longer or
shorter is damaged."""

import bz2
import copy
import lzma
import struct
import zipfile
import zlib

ZIP_DAMAGE = (
    OSError, ValueError, EOFError, RuntimeError, LookupError, ArithmeticError, struct.error, zlib.error, lzma.LZMAError,
    zipfile.BadZipFile,
)  # fmt: skip
"""What damaged or encrypted archives and members raise, depending on their compression."""
PIECE = 2**20
"""Packed bytes that are read at once: their number in the directory may be a lie as well."""
LEAST_DICTIONARY = 4096
"""Bytes of the smallest dictionary of LZMA."""


def unpacked(archive: zipfile.ZipFile, member: zipfile.ZipInfo, *, most: int) -> bytes:
    """The bytes of a member, which may be `most`. Raises one of ZIP_DAMAGE for more, and where it is damaged."""
    if member.file_size > most:
        raise zipfile.BadZipFile(f"it would unpack to {member.file_size} bytes, and may have {most}")
    plain = _plain(_packed(archive, member), member)
    if len(plain) != member.file_size:
        raise zipfile.BadZipFile(f"it does not unpack to the {member.file_size} bytes that its archive says")
    if zlib.crc32(plain) != member.CRC:
        raise zipfile.BadZipFile("its bytes have another CRC-32 than its archive says")
    return plain


def _packed(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """The bytes of a member as they are stored; zipfile checks its header, and that no password is needed."""
    stored = copy.copy(member)
    stored.compress_type, stored.file_size = zipfile.ZIP_STORED, member.compress_size
    del stored.CRC  # that of the unpacked bytes, which zipfile would compare
    with archive.open(stored) as file:
        return b"".join(iter(lambda: file.read(PIECE), b""))


def _plain(packed: bytes, member: zipfile.ZipInfo) -> bytes:
    """The unpacked bytes, of which there are at most one more than the directory says."""
    most = member.file_size + 1
    if member.compress_type == zipfile.ZIP_STORED:
        return packed
    if member.compress_type == zipfile.ZIP_DEFLATED:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, most)
    if member.compress_type == zipfile.ZIP_BZIP2:
        return bz2.BZ2Decompressor().decompress(packed, most)
    if member.compress_type == zipfile.ZIP_LZMA:
        return _of_lzma(packed, most)
    raise NotImplementedError(f"it is packed by method {member.compress_type}, which is not supported")


def _of_lzma(packed: bytes, most: int) -> bytes:
    """At most so many bytes of an LZMA stream behind its header: version, size of properties, and these (APPNOTE.TXT
    5.8.8): one byte for lc, lp and pb, and four for the size of the dictionary."""
    _version, size, settings, dictionary = struct.unpack_from("<HHBI", packed)
    if size != 5:
        raise lzma.LZMAError(f"its properties have {size} bytes in place of 5")
    coder: dict[str, int] = {
        "id": lzma.FILTER_LZMA1, "dict_size": max(LEAST_DICTIONARY, min(dictionary, most)),
        "lc": settings % 9, "lp": settings // 9 % 5, "pb": settings // 45,
    }  # fmt: skip
    return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=[coder]).decompress(packed[9:], most)

"""One file of three blocks that a web server on this machine offers."""

import hashlib
import random
from pathlib import Path

import pytest

from fdgsec.runtime.download import DownloadError, download
from tests.support.local_site import Site

CONTENT = random.Random(0).randbytes(3_000_000)  # three blocks
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def get(site: Site, folder: Path, *, sha256: str | None = DIGEST, size: int | None = None) -> Path:
    return download(site.url("data.bin"), folder / "data.bin", sha256=sha256, size=size)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def leave_a_part(site: Site, folder: Path, *, length: int) -> None:
    """Let the server cut one answer after `length` bytes and all later ones at once."""
    site.cuts = [length, 0]
    with pytest.raises(DownloadError):
        get(site, folder)
    assert (folder / "data.bin.part").read_bytes() == CONTENT[:length]
    site.asked.clear()
    site.cuts = []

"""A dataset called Tiny, fetched from a web server on this machine or from a hub."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

PAGE = "https://example.org/tiny"


def picture(kind: str, shade: int) -> bytes:
    content = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), shade, dtype=np.uint8)).save(content, format=kind)
    return content.getvalue()


PNG, JPEG = picture("PNG", 40), picture("JPEG", 200)


def files_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())

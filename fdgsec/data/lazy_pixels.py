"""Lazily decoded pixels, for datasets that are too large for memory or for a file of decoded pixels."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fdgsec.data.image_sources import ImageFile, Pixels, Source, acquire_source, decode_image, default_threads

CACHE_BYTES = 2**30


class LazyPixels:
    """A replacement of a (S, 3, H, W) uint8 tensor: `store[rows]` decodes those rows, in parallel.

    The last `cache_bytes` of decoded pixels are kept. Raises DataError, with the file, when an image is accessed that
    cannot be decoded."""

    dtype = torch.uint8
    ndim = 4

    def __init__(
        self,
        path: Path,
        files: Sequence[ImageFile],
        *,
        image_size: int,
        threads: int = 0,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        """Open the source at `path`; nothing is decoded yet."""
        self._source: Source = acquire_source(path)
        self._files = files
        self._threads = threads or default_threads()
        self._kept: OrderedDict[int, Pixels] = OrderedDict()
        self._limit = max(1, cache_bytes // (3 * image_size**2))
        self._lock = threading.Lock()
        self.shape = torch.Size((len(files), 3, image_size, image_size))

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, rows: Tensor) -> Tensor:
        wanted = rows.tolist()
        found: dict[int, Pixels] = {}
        with self._lock:
            for row in wanted:
                if row in self._kept:
                    self._kept.move_to_end(row)
                    found[row] = self._kept[row]
        missing = [row for row in dict.fromkeys(wanted) if row not in found]
        size = int(self.shape[3])
        if missing:
            with ThreadPoolExecutor(max_workers=self._threads) as pool:
                made = pool.map(lambda row: decode_image(self._source, self._files[row], size), missing)
                found |= dict(zip(missing, made, strict=True))
        with self._lock:
            for row in missing:
                self._kept[row] = found[row]
            while len(self._kept) > self._limit:
                self._kept.popitem(last=False)
        if not wanted:
            return torch.empty((0, *self.shape[1:]), dtype=torch.uint8)
        return torch.from_numpy(np.stack([found[row] for row in wanted]))

    def describe(self, rows: Tensor) -> bytes:
        """Identify these rows without reading them: path, size in bytes, box and stamp of each file."""
        files = (self._files[row] for row in rows.tolist())
        return "\n".join(f"{f.path}|{f.size}|{f.box}|{self._source.stamp(f.path)}" for f in files).encode()

"""Batched feature extraction from image sets of any length; results for datasets are cached by content and weights.

The cache key is the extractor's fingerprint and `DomainDataset.content_sha256`, so a cached result always belongs to
the same weights and images. Tensors, the images under evaluation, are not cached; datasets, their reference, are."""

from collections.abc import Callable, Iterator, Mapping

import torch
from safetensors.torch import save
from torch import Tensor

from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.metrics.feature_extractors import ExtractedFeatures, Extractor
from fdgsec.metrics.frechet_distance import ROWS, Gaussian, gaussian
from fdgsec.runtime.cache_files import cache_root
from fdgsec.runtime.checked_files import recalled, remember
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.tensor_files import read_safetensors

Images = Tensor | DomainDataset
BATCH = 16  # images in one pass of the network: fastest on a CPU; use 128 or more on a GPU
_READ = 128  # images read from a dataset at once: enough to decode in parallel


def extract_features(
    extractor: Extractor, images: Images, *, batch_size: int = BATCH, reuse: bool = True
) -> ExtractedFeatures:
    """Extract features and logits of all images, float32 on the CPU.

    `images` is a dataset, uint8, or floating in [0, 1]; (N, D + K) numbers are held. With `reuse` a dataset's result
    may be read from the cache; it is written there in any case. Raises UsageError for no images or no batch size,
    ValueError for values out of range or not finite."""

    def compute() -> dict[str, Tensor]:
        parts = list(_passes(extractor, images, batch_size))
        found = {"features": torch.cat([part.features.cpu() for part in parts])}
        logits = [part.logits.cpu() for part in parts if part.logits is not None]
        return found | ({"logits": torch.cat(logits)} if logits else {})

    found = _cached("extracted", extractor, images, compute, reuse=reuse)
    return ExtractedFeatures(features=found["features"], logits=found.get("logits"))


def feature_statistics(
    extractor: Extractor, images: Images, *, batch_size: int = BATCH, reuse: bool = True
) -> Gaussian:
    """Compute mean and scatter of the features of all images; memory does not depend on their number.

    Arguments and errors as for `extract_features`."""

    def compute() -> dict[str, Tensor]:
        found = _streamed(part.features for part in _passes(extractor, images, batch_size))
        return {"count": torch.tensor(found.count), "mean": found.mean, "scatter": found.scatter}

    found = _cached("gaussian", extractor, images, compute, reuse=reuse)
    return Gaussian(count=int(found["count"]), mean=found["mean"], scatter=found["scatter"])


def _streamed(batches: Iterator[Tensor]) -> Gaussian:
    """Summarize batches of features (n, D), collected into blocks of `ROWS` first."""
    total: Gaussian | None = None
    waiting: list[Tensor] = []
    for batch in batches:
        waiting.append(batch)
        if sum(len(part) for part in waiting) >= ROWS:
            total, waiting = _with(total, waiting), []
    return _with(total, waiting) if total is None or waiting else total


def _with(total: Gaussian | None, waiting: list[Tensor]) -> Gaussian:
    found = gaussian(torch.cat(waiting))
    return found if total is None else total.joined(found)


def _passes(extractor: Extractor, images: Images, batch_size: int) -> Iterator[ExtractedFeatures]:
    size = len(images)
    if not size or batch_size < 1:
        raise UsageError(f"extraction needs images and a batch size of at least 1; got {size} and {batch_size}.")
    for start in range(0, size, step := -(-_READ // batch_size) * batch_size):
        rows = torch.arange(start, min(start + step, size))
        read = images.pixels(rows) if isinstance(images, DomainDataset) else images[start : start + step]
        for batch in read.split(batch_size):
            yield extractor.extract(as_float(batch) if batch.dtype == torch.uint8 else batch)


def _cached(
    kind: str, extractor: Extractor, images: Images, compute: Callable[[], dict[str, Tensor]], *, reuse: bool
) -> Mapping[str, Tensor]:
    """Read the stored result of a dataset, else compute and store it; a damaged file counts as none."""
    if not isinstance(images, DomainDataset) or not len(images):
        return compute()
    seen = f"{kind}-{extractor.name}-{extractor.fingerprint[:32]}-{images.content_sha256[:32]}"
    path = cache_root() / "features" / f"{seen}.safetensors"
    key = f"{kind} {extractor.name} {extractor.fingerprint} {images.content_sha256}"
    stored = recalled(path, key=key, read=_tensors) if reuse else None
    if stored is not None:
        return stored
    found = compute()
    remember(path, save({name: tensor.contiguous() for name, tensor in found.items()}), key=key)
    return found


def _tensors(content: bytes) -> Mapping[str, Tensor]:
    return read_safetensors(content, source="its content")[0]

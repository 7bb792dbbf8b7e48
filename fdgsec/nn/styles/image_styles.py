"""Styles of images: per-image channel statistics, computed once per dataset, and AdaIN style transfer.

Style transfer is AdaIN between an encoder and its decoder (Huang & Belongie, ICCV 2017,
https://arxiv.org/abs/1703.06868); CCST (its eq. 5) and FISC (its eq. 4) make their training images with it."""

import hashlib
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from uuid import uuid4

import torch
from safetensors.torch import save
from torch import Tensor
from torch.nn.functional import interpolate

from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.nn.styles.channel_statistics import EPS, Moments, adain
from fdgsec.nn.styles.encoders import StyleEncoder, code_sha256, load_encoder
from fdgsec.nn.styles.image_moments import BLOCK, image_moments
from fdgsec.nn.training.numerics import numerics_of
from fdgsec.nn.training.precision import FLOAT, STYLIZATION, Precision, WantedPrecision, autocast, precision_of
from fdgsec.runtime.cache_files import cache_root
from fdgsec.runtime.checked_files import recalled, remember
from fdgsec.runtime.errors import DataError
from fdgsec.runtime.source_hash import source_sha256
from fdgsec.runtime.tensor_files import read_safetensors
from fdgsec.runtime.threads import side_by_side

Progress = Callable[[int, int], None]
CHUNK = 128  # images copied from the (possibly memory-mapped) store at a time
MOST_AT_ONCE = 4  # blocks encoded at once: a VGG's maps of one block at 224 px are half a gigabyte


@dataclass(frozen=True, kw_only=True, eq=False)
class _Table:
    """Statistics of the rows of one pixel store under one encoder, computed on demand."""

    known: Tensor
    count: Tensor
    mean: Tensor
    m2: Tensor

    def fill(self, rows: Tensor, found: Moments) -> None:
        self.count[rows], self.mean[rows], self.m2[rows] = found.count, found.mean, found.m2
        self.known[rows] = True

    def read(self, rows: Tensor) -> Moments:
        return Moments(count=self.count[rows], mean=self.mean[rows], m2=self.m2[rows])


_TABLES: dict[tuple[int, str], _Table] = {}  # memo: (pixel store, encoder at size and threads) -> statistics


_INTRODUCED: dict[str, StyleEncoder] = {}  # memo: encoders made in this process, whose names carry their fingerprints


def register_encoder(encoder: StyleEncoder) -> str:
    """Register an `encoder` that was built, not loaded (a model's early layers) for `encoder_named`; give its name."""
    _INTRODUCED[encoder.name] = encoder
    return encoder.name


def is_registered(name: str) -> bool:
    """Tell whether `register_encoder` has registered this name."""
    return name in _INTRODUCED


def encoder_named(name: str) -> StyleEncoder:
    """Load an encoder once per process."""
    return _INTRODUCED[name] if name in _INTRODUCED else _loaded(name)


def forget_encoders() -> None:
    """Drop every encoder that was loaded or registered, with its statistics; call it after changing stored weights."""
    _TABLES.clear()
    _INTRODUCED.clear()
    _loaded.cache_clear()


@lru_cache(maxsize=4)
def _loaded(name: str) -> StyleEncoder:
    return load_encoder(name)


def resized(pixels: Tensor, size: int | None) -> Tensor:
    """Resize uint8 images (n, 3, H, W) to `size` x `size` (antialiased, rounded to 8 bits); None keeps their size."""
    if size is None or tuple(pixels.shape[2:]) == (size, size):
        return pixels
    parts = [scaled(as_float(part), size) for part in pixels.split(CHUNK)]
    return (torch.cat(parts).clamp(0, 1) * 255).round().to(torch.uint8)


def scaled(images: Tensor, size: int | None) -> Tensor:
    """Resize float images (n, 3, H, W) to `size` x `size` (antialiased); None keeps their size."""
    if size is None or tuple(images.shape[2:]) == (size, size):
        return images
    return interpolate(images, size=(size, size), mode="bilinear", antialias=True, align_corners=False)


def _table(dataset: DomainDataset, encoder: StyleEncoder, size: int | None) -> _Table:
    key = (id(dataset.store), f"{encoder.fingerprint}@{size} on {torch.get_num_threads()}")
    if key not in _TABLES:
        images, channels = dataset.store.shape[0], encoder.channels
        _TABLES[key] = _Table(
            known=torch.zeros(images, dtype=torch.bool),
            count=torch.zeros(images, dtype=torch.float64),
            mean=torch.zeros(images, channels, dtype=torch.float64),
            m2=torch.zeros(images, channels, dtype=torch.float64),
        )
        weakref.finalize(dataset.store, _TABLES.pop, key, None)
    return _TABLES[key]


def statistics(
    name: str, dataset: DomainDataset, *, size: int | None = None, progress: Progress | None = None
) -> Moments:
    """Compute one row of float64 moments per image of `dataset` under the encoder called `name`, at `size` px.

    `progress(done, total)` counts the images that still had to be encoded. On a CPU, blocks of images are encoded side
    by side on all cores, each on the stated threads: the rows are the same to the bit."""
    encoder = encoder_named(name)
    table = _table(dataset, encoder, size)
    missing = torch.unique(dataset.rows[~table.known[dataset.rows]])
    if len(missing):
        done = 0
        for rows, found in _encoded(encoder, dataset, size, missing):
            table.fill(rows, found)
            done += len(rows)
            if progress is not None:
                progress(done, len(missing))
    return table.read(dataset.rows)


def _encoded(
    encoder: StyleEncoder, dataset: DomainDataset, size: int | None, missing: Tensor
) -> Iterator[tuple[Tensor, Moments]]:
    """The moments of the `missing` rows of the pixel store, part by part, in order."""

    def moments_of(rows: Tensor) -> tuple[Tensor, Moments]:
        return rows, image_moments(encoder, resized(dataset.store[rows], size))

    if not reentrant(encoder) or len(missing) <= CHUNK:
        yield from map(moments_of, missing.split(CHUNK))
    else:
        yield from side_by_side(moments_of, missing.split(BLOCK), most=MOST_AT_ONCE)


def reentrant(encoder: StyleEncoder) -> bool:
    """Whether several threads may encode at once: it says so, and computes on the processor."""
    return encoder.reentrant and encoder.device.type == "cpu"


def prepare_statistics(
    name: str, dataset: DomainDataset, *, reuse: bool, size: int | None = None, progress: Progress | None = None
) -> bool:
    """Prepare the statistics of all of `dataset`, from disk where `reuse` allows; tell whether they came from there.

    Computed statistics are stored for the next run of the same code on such a machine: fdgsec's networks and data, the
    encoder's own module, the version of torch, and what its sums depend on. Without `reuse` they are computed anew."""
    encoder = encoder_named(name)
    code = code_sha256(encoder)
    own = uuid4().hex if code is None else code
    computed_by = f"{own} {source_sha256('fdgsec.nn')} {source_sha256('fdgsec.data')} {torch.__version__}"
    machine = numerics_of(encoder.device)
    key = f"{encoder.fingerprint} {size or 'as is'} {dataset.content_sha256} {computed_by} {machine}"
    path = cache_root() / "features" / f"{hashlib.sha256(key.encode()).hexdigest()[:40]}.safetensors"
    if not reuse:
        _table(dataset, encoder, size).known[dataset.rows] = False
    elif (stored := recalled(path, key=key, read=_moments)) is not None:
        _table(dataset, encoder, size).fill(dataset.rows, stored)
        return True
    found = statistics(name, dataset, size=size, progress=progress)
    remember(path, save({"count": found.count, "mean": found.mean, "m2": found.m2}), key=key)
    return False


def _moments(content: bytes) -> Moments:
    """Read stored statistics. Raises DataError."""
    stored, _ = read_safetensors(content, source="its content")
    if stored.keys() != {"count", "mean", "m2"}:
        raise DataError("it holds no statistics.")
    return Moments(count=stored["count"], mean=stored["mean"], m2=stored["m2"])


def style_transfer(
    encoder: StyleEncoder,
    images: Tensor,
    mean: Tensor,
    std: Tensor,
    *,
    eps: float = EPS,
    alpha: float = 1.0,
    clamp: bool = True,
    precision: WantedPrecision = "float32",
) -> Tensor:
    """Encode, apply AdaIN with the style (`mean`, `std`), decode, and crop the padding of the encoder's stride.

    `images` are float32 (N, 3, H, W), the result too; `mean` and `std` are (C,) or (N, C). The decoder gets
    `alpha` parts of the restyled features and 1 - `alpha` of the content's own; its output is clamped to [0, 1] unless
    `clamp` is off. `precision` is that of a training plan, for the networks of encoders that draw in bfloat16; AdaIN
    itself is computed in float32."""
    with autocast(images.device, _precision_of_pictures(encoder, precision)):
        content = encoder.encode(images)
    content = content.to(images)
    styled = adain(content, mean.to(content), std.to(content), eps=eps)
    features = styled if alpha == 1 else torch.lerp(content, styled, alpha)
    with autocast(images.device, _precision_of_pictures(encoder, precision)):
        drawn = encoder.decode(features, clamp=clamp)
    return drawn.to(images)[..., : images.shape[2], : images.shape[3]]


def _precision_of_pictures(encoder: StyleEncoder, wanted: WantedPrecision) -> Precision:
    """That of the table or of the plan; float32 for encoders of which nobody has looked what another one changes."""
    return precision_of(encoder.device, STYLIZATION, wanted=wanted) if encoder.draws_in_bfloat16 else FLOAT


def pictures(images: Tensor, *, size: int | None) -> Tensor:
    """Round float images (N, 3, H, W) to 8 bits, clamped to [0, 1], and resize them to `size` (None: unchanged)."""
    return resized((images.clamp(0, 1) * 255).round().to(torch.uint8), size)

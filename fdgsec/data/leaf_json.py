"""Reader of LEAF's JSON (FEMNIST): pixels as numbers in the file, each writer is a domain (Caldas et al. 2018)."""

from collections.abc import Iterator

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset, downsample
from fdgsec.data.image_sources import Source, printable, text_of
from fdgsec.runtime.errors import DataError
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.untrusted_text import parse_json

SIDE = 28
CLASSES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
SPLITS = ("train", "test")


def read_leaf(source: Source, *, image_size: int, per_domain: int | None, seed: int) -> DomainDataset | None:
    """Read every JSON file with LEAF's `user_data`; None where there is none (a hub copy is a tree of images).

    Images in files below `train` and `test` get that split. `per_domain` keeps at most that many images of each
    writer, sampled by `seed`. Raises DataError for a damaged file."""
    names = sorted(name for name in source.files if name.lower().endswith(".json"))
    parts: list[tuple[str, str, Tensor, Tensor]] = []
    for name in names:
        split = next((part for part in name.split("/") if part in SPLITS), "")
        parts += [(writer, split, pixels, labels) for writer, pixels, labels in _writers(source, name)]
    if not parts:
        return None
    parts.sort(key=lambda part: (part[0], part[1]))
    if per_domain is not None:
        parts = [_drawn(part, per_domain, seed) for part in parts]
    writers = sorted({writer for writer, *_ in parts})
    numbers = {writer: number for number, writer in enumerate(writers)}
    ids, counted = [], dict.fromkeys(writers, 0)
    for writer, _, _, labels in parts:
        for label in labels.tolist():
            ids.append(f"{writer}/{CLASSES[label]}/{counted[writer]:05d}")
            counted[writer] += 1
    gray = torch.cat([pixels for _, _, pixels, _ in parts]).unsqueeze(1).expand(-1, 3, -1, -1)
    store = gray if image_size == SIDE else (downsample(gray, (image_size, image_size)) * 255).round().to(torch.uint8)
    split_names = tuple(name for name in SPLITS if any(part[1] == name for part in parts))
    attributes = {}
    if split_names:
        which = [split_names.index(split) if split else -1 for _, split, _, labels in parts for _ in range(len(labels))]
        attributes["split"] = torch.tensor(which)
    return DomainDataset(
        name="femnist", store=store.contiguous(), rows=torch.arange(len(ids)),
        labels=torch.cat([labels for *_, labels in parts]),
        domains=torch.tensor([numbers[writer] for writer, _, _, labels in parts for _ in range(len(labels))]),
        ids=tuple(ids), class_names=CLASSES, domain_names=tuple(writers), attributes=attributes,
        split_names=split_names,
    )  # fmt: skip


def _writers(source: Source, name: str) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield each writer of one file with its images (n, 28, 28) uint8, dark on white, and labels (n,)."""
    try:
        document = parse_json(text_of(source, name), source=f"{source.path}: {name}")
        if not isinstance(document, dict) or "user_data" not in document:
            return
        for writer, data in document["user_data"].items():
            pixels = torch.tensor(data["x"], dtype=torch.float32).view(-1, SIDE, SIDE)
            labels = torch.tensor(data["y"], dtype=torch.int64)
            if len(pixels) != len(labels) or (
                len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(CLASSES)
            ):
                raise ValueError(
                    f"writer {writer} has {len(pixels)} images and {len(labels)} labels, or labels out of range"
                )
            if len(labels):
                yield str(writer), (pixels.clamp(0, 1) * 255).round().to(torch.uint8), labels
    except DataError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise DataError(
            f"{source.path}: {name} is not LEAF's JSON ({printable(str(error))}); prepare it again."
        ) from error


def _drawn(part: tuple[str, str, Tensor, Tensor], limit: int, seed: int) -> tuple[str, str, Tensor, Tensor]:
    writer, split, pixels, labels = part
    kept = torch.randperm(len(labels), generator=stream(seed, "world", "per-domain", "femnist", writer, split))[:limit]
    kept = kept.sort().values
    return writer, split, pixels[kept], labels[kept]

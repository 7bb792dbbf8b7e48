"""What bfloat16 changes in style statistics, and the time it takes: `python -m benchmarks.rounded_styles`.

Of each encoder that has a variant in bfloat16 and whose weights are stored: the styles of single images of PACS, of
each domain's images together (CCST), and the one that FISC's client with them sends, the mean over its FINCH clusters;
by both in turn on one thread. Moved is the norm of the difference by that of the style, the median over images or
domains; for FISC also the greatest, because another partition is another style. Apart is the norm of the difference of
the styles of two images of one domain, likewise: what tells them apart.

    python -m benchmarks.rounded_styles --keep FILE                                      # on one processor
    ONEDNN_MAX_CPU_ISA=AVX512_CORE python -m benchmarks.rounded_styles --against FILE    # on another, or as if

also say by how much the styles of images differ between processors."""

import argparse
import statistics
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.rounded_pictures import ROUNDED, pictures
from fdgsec.methods.fisc import client_style, partition_of
from fdgsec.nn.styles.channel_statistics import Moments, concatenated
from fdgsec.nn.styles.encoders import ENCODERS, StyleEncoder, load_encoder
from fdgsec.nn.styles.image_moments import image_moments
from fdgsec.nn.styles.image_styles import resized
from fdgsec.runtime.errors import FdgsecError


def compared(
    exact: StyleEncoder, rounded: StyleEncoder, domains: list[Tensor], *, repeats: int
) -> tuple[str, dict[str, Tensor]]:
    """A line of the table, and the styles of images by each encoder."""
    seconds = {encoder.name: list[float]() for encoder in (exact, rounded)}
    found = dict[str, list[Moments]]()
    for encoder in [exact, rounded] * (repeats + 1):  # the first turn warms up
        begun = time.process_time()
        found[encoder.name] = [image_moments(encoder, images) for images in domains]
        seconds[encoder.name].append(time.process_time() - begun)
    own, other = found[exact.name], found[rounded.name]
    single, pooled, clustered = (_moved(of(own), of(other)) for of in (_singly, _pooled, _clustered))
    apart = torch.cat([_moved(part[:-1], part[1:]) for part in (_singly([domain]) for domain in own)])
    took, takes = (statistics.median(taken[1:]) for taken in seconds.values())
    numbers = [f"{float(moved.median()):.2%}" for moved in (single, pooled, clustered)]
    numbers += [f"{float(clustered.max()):.2%}", f"{float(apart.median()):.0%}"]
    line = [rounded.name, *numbers, f"{took / sum(map(len, domains)):.3f}", f"{took / takes:.2f}"]
    return f"| {' | '.join(line)} |", {name: _singly(parts) for name, parts in found.items()}


def _singly(domains: list[Moments]) -> Tensor:
    """The style of each image, (n, 2C)."""
    return torch.cat(concatenated(domains).style(unbiased=True), dim=1)


def _pooled(domains: list[Moments]) -> Tensor:
    """The style of all images of each domain, (number of domains, 2C)."""
    return torch.cat([torch.cat(part.pooled().style(unbiased=False), dim=1) for part in domains])


def _clustered(domains: list[Moments]) -> Tensor:
    """FISC's style of a client with the images of each domain, (number of domains, 2C)."""
    labels = [partition_of(_singly([part]), "last") for part in domains]
    return torch.stack([torch.cat(client_style(part, own)) for part, own in zip(domains, labels, strict=True)])


def _moved(styles: Tensor, others: Tensor) -> Tensor:
    """The norm of the difference of each row by that of the first's, (n,)."""
    moved: Tensor = (others - styles).norm(dim=1) / styles.norm(dim=1)
    return moved


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=int, default=24, help="of each domain")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--size", type=int, help="side in pixels; default: 128, as stored")
    parser.add_argument("--keep", type=Path, help="write the styles of images to this file")
    parser.add_argument("--against", type=Path, help="compare them with those of another processor, in this file")
    given = parser.parse_args()
    torch.set_num_threads(1)
    domains = [(255 * images).round().to(torch.uint8) for images in pictures(given.images)]
    heads = ["encoder", "moved, an image's", "CCST's", "FISC's", "the most", "two images apart", "s in float32"]
    print(f"| {' | '.join([*heads, 'times as fast'])} |\n|{'---|' * (len(heads) + 1)}")
    found = dict[str, Tensor]()
    for name in ENCODERS:
        if not name.endswith(ROUNDED):
            continue
        try:
            exact, rounded = load_encoder(name.removesuffix(ROUNDED)), load_encoder(name)
        except FdgsecError:  # its weights are not stored
            continue
        line, styles = compared(exact, rounded, [resized(part, given.size) for part in domains], repeats=given.repeats)
        found |= styles
        print(line, flush=True)
    if given.keep is not None:
        save_file(found, given.keep)
    for name, others in (load_file(given.against) if given.against is not None else {}).items():
        apart = _moved(found[name], others)
        print(f"{name}: between processors {float(apart.median()):.1e} (median), {float(apart.max()):.1e} (most)")


if __name__ == "__main__":
    main()

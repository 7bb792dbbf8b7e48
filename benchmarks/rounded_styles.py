"""What bfloat16 changes in style statistics, and the time it takes: `python -m benchmarks.rounded_styles`.

Of each encoder that has a variant in bfloat16 and whose weights are stored: the styles of single images of PACS and of
each domain's images together, by both in turn on one thread. Moved is the norm of the difference by that of the style;
apart is the norm of the difference of the styles of two images of one domain, likewise: what tells them apart."""

import argparse
import statistics
import time
from itertools import pairwise

import torch
from torch import Tensor

from benchmarks.rounded_pictures import ROUNDED, pictures
from fdgsec.nn.styles.channel_statistics import Moments, concatenated
from fdgsec.nn.styles.encoders import ENCODERS, StyleEncoder, image_moments, load_encoder
from fdgsec.runtime.errors import FdgsecError


def compared(exact: StyleEncoder, rounded: StyleEncoder, domains: list[Tensor], *, repeats: int) -> str:
    """A line of the table."""
    seconds = {encoder.name: list[float]() for encoder in (exact, rounded)}
    found = dict[str, list[Moments]]()
    for encoder in [exact, rounded] * (repeats + 1):  # the first turn warms up
        begun = time.process_time()
        found[encoder.name] = [image_moments(encoder, images) for images in domains]
        seconds[encoder.name].append(time.process_time() - begun)
    own, other = found[exact.name], found[rounded.name]
    single, pooled = (_moved(of(own), of(other)) for of in (_singly, _pooled))
    apart = [_moved(one.unsqueeze(0), two.unsqueeze(0)) for part in own for one, two in pairwise(_singly([part]))]
    took, takes = (statistics.median(taken[1:]) for taken in seconds.values())
    numbers = [f"{single:.2%}", f"{pooled:.2%}", f"{statistics.median(apart):.0%}"]
    return f"| {' | '.join([rounded.name, *numbers, f'{took / sum(map(len, domains)):.3f}', f'{took / takes:.2f}'])} |"


def _singly(domains: list[Moments]) -> Tensor:
    """The style of each image, (n, 2C)."""
    return torch.cat(concatenated(domains).style(unbiased=True), dim=1)


def _pooled(domains: list[Moments]) -> Tensor:
    """The style of all images of each domain, (number of domains, 2C)."""
    return torch.cat([torch.cat(part.pooled().style(unbiased=False), dim=1) for part in domains])


def _moved(styles: Tensor, others: Tensor) -> float:
    """The median over rows of the norm of the difference by the norm of the first."""
    return float(((others - styles).norm(dim=1) / styles.norm(dim=1)).median())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=int, default=12, help="of each domain")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    domains = [(255 * images).round().to(torch.uint8) for images in pictures(given.images)]
    print(
        "| encoder | an image's style moved | a domain's | two images apart | s an image in float32 | times as fast |"
    )
    print("|---|---|---|---|---|---|")
    for name in ENCODERS:
        if not name.endswith(ROUNDED):
            continue
        try:
            exact, rounded = load_encoder(name.removesuffix(ROUNDED)), load_encoder(name)
        except FdgsecError:  # its weights are not stored
            continue
        print(compared(exact, rounded, domains, repeats=given.repeats), flush=True)


if __name__ == "__main__":
    main()

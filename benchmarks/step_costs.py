"""Cost of the heap setting and of AdaIN's gradients: `python -m benchmarks.step_costs [--part heap|adain]`.

Part "heap": a bare step in this process's heap (run it with FDGSEC_HEAP=default and without, in turn), and its peak
memory. Part "adain": statistics and AdaIN of maps, forward and backward, with our gradients and with autograd's, and
`group_norm`."""

import argparse
import resource
import statistics
import time
from collections.abc import Callable

from fdgsec.runtime.worker_processes import keep_freed_memory

KEPT = keep_freed_memory()  # before torch takes any memory

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.training_speed import CPU, bare, setting_of
from fdgsec.nn.styles.feature_styles import apply_style, instance_statistics
from fdgsec.nn.training.precision import precision_of
from fdgsec.nn.training.training_plan import TrainingPlan

Style = tuple[Tensor, Tensor]


def by_autograd(maps: Tensor, style: Style) -> Tensor:
    """The same result with autograd's gradients."""
    precise = maps.float()
    mean = precise.mean((2, 3), keepdim=True)
    pixels = maps.shape[2] * maps.shape[3]
    std = ((precise - mean.detach()).square().sum((2, 3), keepdim=True) / (pixels - 1) + 1e-6).sqrt()
    return torch.addcmul(style[0], maps - mean, style[1] / std).to(maps.dtype)


def in_closed_form(maps: Tensor, style: Style) -> Tensor:
    """The implementation of fdgsec."""
    mean, std = instance_statistics(maps)
    return apply_style(maps, mean, std, new_mean=style[0], new_std=style[1])


def by_group_norm(maps: Tensor, style: Style) -> Tensor:
    """torch's own kernel for the first half, but for n - 1 in the variance."""
    return torch.addcmul(style[0], functional.group_norm(maps, maps.shape[1], eps=1e-6), style[1])


def print_adain() -> None:
    """Milliseconds of processor time, medians of 15."""
    shape = (64, 128, 15, 15)
    plain = torch.randn(shape).to(memory_format=torch.channels_last)
    style, slope = (torch.randn(64, 128, 1, 1), torch.rand(64, 128, 1, 1)), torch.randn_like(plain)
    ways: list[Callable[[Tensor, Style], Tensor]] = [by_autograd, in_closed_form, by_group_norm]
    for way in ways:
        spent = []
        for _ in range(15):
            maps = plain.clone(memory_format=torch.preserve_format).requires_grad_()
            begun = time.process_time()
            made = way(maps, style)
            between = time.process_time()
            made.backward(slope)  # type: ignore[no-untyped-call]
            spent.append((between - begun, time.process_time() - between))
        forward, back = (1e3 * statistics.median(times) for times in zip(*spent, strict=True))
        print(f"{way.__name__:<16} forward {forward:5.1f} ms, back {back:5.1f} ms")


def print_heap(text: str) -> None:
    """Images per processor second, a median of 4, and MiB."""
    setting = setting_of(text, batch=32, steps=2)
    job = bare(
        setting, precision_of(CPU, setting.backbone), TrainingPlan(batch_size=32, learning_rate=1e-4, momentum=0.9)
    )
    job()
    spent = []
    for _ in range(4):
        begun = time.process_time()
        job()
        spent.append(time.process_time() - begun)
    speed, peak = 64 / statistics.median(spent), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{text:<24} heap {'kept' if KEPT else 'default'}: {speed:6.1f} images per processor second, {peak} MiB")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", choices=("heap", "adain"), default="heap")
    parser.add_argument("--network", default="squeezenet1_0:64", help="network:pixels")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.part == "adain":
        print_adain()
    else:
        print_heap(given.network)


if __name__ == "__main__":
    main()

"""What batch norm tells beside the gradient: the running statistics that a client sends back hold those of its batch.

A batch norm in training mode moves them by a known share toward the mean and variance of its inputs. Undone, that is what
every such layer saw. Pictures can be asked to look the same to it: the regularizer of Yin et al., "See through Gradients",
CVPR 2021, arXiv:2104.07586, section 3.2, here with the batch's own statistics in place of the training set's."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from fdgsec.nn.networks.classifiers import Classifier

Statistic = tuple[Tensor, Tensor]
"""Mean and variance (divided by n - 1) of a layer's inputs, each (C,)."""
TINY = 1e-5


def batch_statistics(model: Classifier, after: Mapping[str, Tensor]) -> dict[str, Statistic]:
    """Undo one update of the running statistics from `model` to the state `after`: by layer, what the batch had.

    Layers that averaged over all batches (no momentum) or keep no statistics are left out, and so is what `after` lacks."""
    found: dict[str, Statistic] = {}
    for name, layer in _layers(model):
        share, mean, variance = layer.momentum, layer.running_mean, layer.running_var
        keys = (f"{name}.running_mean", f"{name}.running_var")
        if not share or mean is None or variance is None or any(key not in after for key in keys):
            continue
        parts = [
            (after[key].to("cpu", torch.float64) - (1 - share) * before.to("cpu", torch.float64)) / share
            for key, before in zip(keys, (mean, variance), strict=True)
        ]
        found[name] = (parts[0].float(), parts[1].clamp_min(0).float())
    return found


def image_statistics(model: Classifier, images: Tensor) -> dict[str, Statistic]:
    """What every batch norm of `model` would see of a batch of `images` in training mode; the model stays as it is."""
    network, seen = copy.deepcopy(model).train(), dict[str, Statistic]()
    with _watching(network, seen), torch.no_grad():
        network(images)
    return {name: (mean.cpu(), variance.cpu()) for name, (mean, variance) in seen.items()}


@contextmanager
def norm_gap(network: Classifier, goal: Mapping[str, Statistic]) -> Iterator[Callable[[], Tensor]]:
    """Say, after every forward pass within, how far what the batch norms saw is from `goal`.

    The mean over layers and channels of ((mean - mean*)^2 + (std - std*)^2) / var*: differentiable, 0 without a goal."""
    seen: dict[str, Statistic] = {}
    device = next(network.parameters()).device
    wanted = {name: (mean.to(device), variance.to(device)) for name, (mean, variance) in goal.items()}

    def gap() -> Tensor:
        parts = [
            (((seen[name][0] - mean).square() + (seen[name][1].clamp_min(TINY).sqrt() - variance.clamp_min(TINY).sqrt()).square())
             / variance.clamp_min(TINY)).mean()
            for name, (mean, variance) in wanted.items()
        ]  # fmt: skip
        return torch.stack(parts).mean() if parts else torch.zeros((), device=device)

    with _watching(network, seen):
        yield gap


@contextmanager
def _watching(network: Classifier, seen: dict[str, Statistic]) -> Iterator[None]:
    def note(name: str, layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        variance, mean = torch.var_mean(given[0], dim=(0, 2, 3), correction=1)
        seen[name] = (mean, variance)

    hooks = [layer.register_forward_pre_hook(partial(note, name)) for name, layer in _layers(network)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _layers(network: Classifier) -> list[tuple[str, nn.BatchNorm2d]]:
    return [(name, module) for name, module in network.named_modules() if isinstance(module, nn.BatchNorm2d)]

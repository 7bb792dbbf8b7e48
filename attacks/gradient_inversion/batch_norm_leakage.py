"""Batch statistics from batch norm: the running statistics that a client returns reveal those of its batch.

A batch norm in training mode moves its running statistics by a known share toward the mean and variance of its inputs.
Inverting this gives the input statistics of every such layer. Reconstructed images can be required to match them: the
regularizer of Yin et al., "See through Gradients", CVPR 2021, arXiv:2104.07586, section 3.2, here with the batch's own
statistics in place of the training set's."""

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
    """Invert one update of the running statistics from `model` to the state `after`: the batch's statistics, by layer.

    Layers that average over all batches (no momentum) or keep no statistics are left out, and so are layers missing
    from `after`."""
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
    """The input statistics of every batch norm of `model` for a batch of `images` in training mode; `model` is
    unchanged."""
    network, seen = copy.deepcopy(model).train(), dict[str, Statistic]()
    with _recording(network, seen), torch.no_grad():
        network(images)
    return {name: (mean.cpu(), variance.cpu()) for name, (mean, variance) in seen.items()}


@contextmanager
def batch_norm_distance(network: Classifier, goal: Mapping[str, Statistic]) -> Iterator[Callable[[], Tensor]]:
    """Measure, after every forward pass in the context, how far the batch norms' input statistics are from `goal`.

    The mean over layers and channels of ((mean - mean*)^2 + (std - std*)^2) / var*: differentiable, 0 without a
    goal."""
    seen: dict[str, Statistic] = {}
    device = next(network.parameters()).device
    wanted = {name: (mean.to(device), variance.to(device)) for name, (mean, variance) in goal.items()}

    def gap() -> Tensor:
        parts = [_squared_distance(seen[name], statistic).mean() for name, statistic in wanted.items()]
        return torch.stack(parts).mean() if parts else torch.zeros((), device=device)

    with _recording(network, seen):
        yield gap


def _squared_distance(seen: Statistic, goal: Statistic) -> Tensor:
    """((mean - mean*)^2 + (std - std*)^2) / var* by channel, (C,)."""
    (mean, variance), (goal_mean, goal_variance) = seen, goal
    gap = variance.clamp_min(TINY).sqrt() - goal_variance.clamp_min(TINY).sqrt()
    return ((mean - goal_mean).square() + gap.square()) / goal_variance.clamp_min(TINY)


@contextmanager
def _recording(network: Classifier, seen: dict[str, Statistic]) -> Iterator[None]:
    """Record the input statistics of every batch norm in `seen`, by layer, while the context is open."""

    def record(name: str, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        variance, mean = torch.var_mean(inputs[0], dim=(0, 2, 3), correction=1)
        seen[name] = (mean, variance)

    hooks = [layer.register_forward_pre_hook(partial(record, name)) for name, layer in _layers(network)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _layers(network: Classifier) -> list[tuple[str, nn.BatchNorm2d]]:
    return [(name, module) for name, module in network.named_modules() if isinstance(module, nn.BatchNorm2d)]

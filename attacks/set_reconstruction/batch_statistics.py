"""Batch statistics: by what training normalized, from the running statistics of the models before and after it.

Batch norm moves its running mean and variance by a share m of the way to each batch's (Ioffe and Szegedy, ICML 2015),
so that after T steps the returned ones hold (1 - m)^T of those that were sent and, for the rest, a weighted mean over
the batches: of one step, its batch itself."""

from typing import cast

import torch
from torch import Tensor, nn

from fdgsec.federation.artifacts import ModelState
from fdgsec.nn.networks.classifiers import Classifier


def normalized_as_in_training(
    network: Classifier, *, sent: ModelState, returned: ModelState, pixels: Tensor, batch: int
) -> Classifier:
    """Set a `network` to evaluation, with batch norm by the batches between the model `sent` and the one `returned`.

    Running variances divide by one less than the numbers of a batch of `batch` images, normalization by all of them;
    `pixels` (1, 3, H, W) tell how many numbers a map has. Layers that did not train keep their statistics."""
    network.eval()
    maps = _map_sizes(network, pixels)
    for name, layer in network.named_modules():
        if not isinstance(layer, nn.BatchNorm2d) or not layer.track_running_stats:
            continue
        steps = int(returned.state[f"{name}.num_batches_tracked"] - sent.state[f"{name}.num_batches_tracked"])
        if steps < 1 or layer.momentum is None:
            continue
        kept, count = (1 - layer.momentum) ** steps, batch * maps[name]
        for entry, factor in (("running_mean", 1.0), ("running_var", (count - 1) / count)):
            before, after = (state.state[f"{name}.{entry}"].double() for state in (sent, returned))
            found = factor * (after - kept * before) / (1 - kept)
            values = cast(Tensor, getattr(layer, entry))
            values.copy_(found.clamp_min(0) if entry == "running_var" else found)
    return network


def _map_sizes(network: Classifier, pixels: Tensor) -> dict[str, int]:
    """The numbers of one channel's map of one image at every batch-norm layer."""
    found: dict[str, int] = {}

    def look(name: str) -> None:
        def seen(_layer: nn.Module, given: tuple[Tensor, ...]) -> None:
            found[name] = given[0].shape[2:].numel()

        handles.append(network.get_submodule(name).register_forward_pre_hook(seen))

    handles: list[torch.utils.hooks.RemovableHandle] = []
    for name, layer in network.named_modules():
        if isinstance(layer, nn.BatchNorm2d):
            look(name)
    with torch.no_grad():
        network.features(pixels)
    for handle in handles:
        handle.remove()
    return found

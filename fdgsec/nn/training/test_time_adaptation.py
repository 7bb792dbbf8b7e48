"""Test-time adaptation: a trained model is updated on the unlabeled images that it is tested on.

Tent (Wang, Shelhamer, Liu, Olshausen & Darrell, ICLR 2021, https://arxiv.org/abs/2006.10726) minimizes the entropy of
predictions in the scales and shifts of the norm layers, online, while batch norm takes its statistics from the test
batch. CCST's Table 2b applies it to federated models. It needs the whole unseen domain in batches, so its accuracy is
reported beside the plain one, never in its place."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fdgsec.data.domains import as_float
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.precision import autocast, precision_of
from fdgsec.runtime.errors import UsageError, unknown_name


@dataclass(frozen=True, kw_only=True)
class Tent:
    """Settings of Tent: `steps` per batch, `passes` over all images, and its optimizer (SGD, Nesterov momentum .9).

    The defaults are those of the authors' configuration for CIFAR-10-C."""

    steps: int = 1
    passes: int = 1
    batch_size: int = 200
    optimizer: Literal["adam", "sgd"] = "adam"
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        if min(self.steps, self.passes) < 1 or self.batch_size < 2 or self.learning_rate <= 0:
            raise UsageError(
                f"tent needs steps and passes >= 1, batches of at least 2 and a learning rate above 0; got {self}."
            )


ADAPTATIONS: Mapping[str, Tent] = {
    "tent": Tent(),
    # fed_run.py of CCST's code: SGD at 1e-4, ten epochs of two passes over the unseen domain. The second pass is meant
    # as a test, but Tent adapts in evaluation mode too, so the printed result is that of the twentieth pass.
    "tent-ccst": Tent(passes=20, batch_size=32, optimizer="sgd", learning_rate=1e-4),
}


def adaptation_named(name: str) -> Tent:
    """Look up a value of `--adapt`. Raises UsageError with the nearest name."""
    if name not in ADAPTATIONS:
        raise unknown_name("adaptation", name, ADAPTATIONS)
    return ADAPTATIONS[name]


def tent_predictions(model: Classifier, images: Tensor, *, how: Tent, rng: torch.Generator) -> Tensor:
    """Predict the class of each uint8 image, (n,) int64, while a copy of `model` adapts to them; `model` is unchanged.

    Images come in an order drawn from `rng`, anew in each pass (in a dataset's order a batch would have one class).
    The result is a batch's prediction in the last pass, before its last update. Raises UsageError for a network without
    norm layers."""
    network = prepare_for_tent(model)
    parameters = [value for value in network.parameters() if value.requires_grad]
    optimizer: torch.optim.Optimizer = torch.optim.Adam(parameters, lr=how.learning_rate)
    if how.optimizer == "sgd":
        optimizer = torch.optim.SGD(parameters, lr=how.learning_rate, momentum=0.9, nesterov=True)
    predicted = torch.empty(len(images), dtype=torch.int64)
    for _ in range(how.passes):
        for rows in _batches(torch.randperm(len(images), generator=rng), how.batch_size):
            for _ in range(how.steps):
                predicted[rows] = _adapted(network, images[rows], optimizer)
    return predicted


def prepare_for_tent(model: Classifier) -> Classifier:
    """Copy `model` so that only its norm layers train, and batch norm uses the statistics of the current batch.

    Group-norm layers train their scales and shifts too. Raises UsageError where there is no norm layer."""
    network = deepcopy(model).eval().requires_grad_(False)
    layers = [layer for layer in network.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm | nn.GroupNorm)]
    if not layers:
        raise UsageError(f"tent adapts norm layers, and {model.backbone} has none; leave --adapt out.")
    for layer in layers:
        layer.requires_grad_(True)
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    return network


def _batches(order: Tensor, size: int) -> list[Tensor]:
    """Cut `order` into batches of `size`; a single last image joins the batch before, as alone it has no statistics."""
    parts = list(order.split(size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def _adapted(network: Classifier, images: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    """Predict one batch, then take one step on the mean entropy of these predictions."""
    device = next(network.parameters()).device
    precision = precision_of(device, network.backbone, wanted="float32")
    network.to(memory_format=precision.layout)
    with autocast(device, precision):
        logits: Tensor = network(as_float(images.to(device)).contiguous(memory_format=precision.layout)).float()
    entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum(1)
    optimizer.zero_grad(set_to_none=True)
    entropy.mean().backward()
    optimizer.step()
    return logits.detach().argmax(1).cpu()

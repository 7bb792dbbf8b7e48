"""Linear classifiers of noise images, used by the positive controls of several attacks."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fdgsec.data.domains import DomainDataset
from fdgsec.nn.networks.classifiers import Classifier

SIDE = 16


def noise_images(count: int, *, side: int, classes: int, rng: torch.Generator) -> DomainDataset:
    """Images (count, 3, side, side) of independent pixels with random labels, which can only be memorized."""
    return DomainDataset(
        name="planted", store=torch.randint(0, 256, (count, 3, side, side), generator=rng, dtype=torch.uint8),
        rows=torch.arange(count), labels=torch.randint(0, classes, (count,), generator=rng),
        domains=torch.zeros(count, dtype=torch.int64), ids=tuple(f"planted/{number}" for number in range(count)),
        class_names=tuple(f"class {number}" for number in range(classes)), domain_names=("planted",),
    )  # fmt: skip


def linear_classifier(state: Mapping[str, Tensor], *, side: int = SIDE) -> Classifier:
    """Build a classifier that is linear in the normalized pixels."""
    with torch.device("meta"):  # no draws from the global generator for weights that are replaced at once
        head = nn.Linear(3 * side * side, len(state["head.bias"]))
    network = Classifier(
        backbone="linear", norm="batch", body=nn.Identity(), neck=nn.Flatten(), head=head.to_empty(device="cpu")
    )
    network.load_state_dict(dict(state))
    return network

"""Linear layers that methods add to a classifier, drawn from their own generator."""

import torch
from torch import nn


def drawn_linear(inputs: int, outputs: int, rng: torch.Generator) -> nn.Linear:
    """Build a linear layer on the CPU, its weight and bias drawn from `rng` by torch's own initialization."""
    with torch.device("meta"):  # nothing is drawn from the global stream
        layer = nn.Linear(inputs, outputs)
    layer.to_empty(device="cpu")
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -(inputs**-0.5), inputs**-0.5, generator=rng)
    return layer

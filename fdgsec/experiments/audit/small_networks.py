"""Small networks in the place of large ones: what is done to any number of a model is done to a few in the same way."""

import math
from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor, nn

from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.global_model import GlobalModel
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.networks.loaded_copies import loaded_copy

LINEAR, POINTWISE, WIDTH = 4, 2, 3
"""Layers of a matrix and a vector beside the last layer, 1x1 convolutions without bias, and the width of kernels of
more than one pixel."""


class _Beside(nn.ModuleList):
    """Layers that an objective looks at one by one; images pass by them, so that the network gives an output."""

    def forward(self, maps: Tensor) -> Tensor:
        """The maps as they are."""
        return maps


class SmallModel(GlobalModel):
    """A global model whose network is one of this module's, whatever the blueprint."""

    def module(self, *, layout: torch.memory_format = torch.contiguous_format) -> Classifier:
        """Make the network with the state."""
        state = self.state.state
        built = _skeleton(state["head.weight"].shape[1], any(name.startswith("body") for name in state))
        network = loaded_copy(built, state, layout=layout)
        assert network is not None  # names and shapes are its own
        return network

    def parameter_names(self) -> frozenset[str]:
        """The names of the network's parameters, which are all entries."""
        return frozenset(self.state.state)

    def with_state(self, state: Mapping[str, Tensor]) -> "SmallModel":
        """A small model with another state."""
        return SmallModel(blueprint=self.blueprint, state=ModelState(state=dict(state)))


def small_model(like: GlobalModel, network: Classifier) -> SmallModel:
    """The model of one of these networks, with the blueprint of another model."""
    state = {name: value.detach().clone() for name, value in network.state_dict().items()}
    return SmallModel(blueprint=like.blueprint, state=ModelState(state=state))


def layered(inputs: int) -> Classifier:
    """A network of a linear layer without bias and small ones, with zero weights: 17 tensors of so many numbers.

    The small layers are of the kinds that backbones have: linear layers and 1x1 convolutions of one input, one of these
    with a bias, a 3x3 convolution and a depthwise one, whose kernels have up to 8 numbers more, and a group norm."""
    return _network(inputs, small=True)


def one_layer(inputs: int) -> Classifier:
    """A network of one linear layer without bias, with zero weights."""
    return _network(inputs, small=False)


@cache
def _skeleton(inputs: int, small: bool) -> Classifier:
    return _network(inputs, small=small)


def _network(inputs: int, *, small: bool) -> Classifier:
    with torch.device("meta"):  # avoids draws from the global random stream
        head, body = nn.Linear(inputs, 1, bias=False), _Beside(_small_layers(inputs) if small else ())
    for part in (head, body):
        part.to_empty(device="cpu")
        for weights in part.parameters():
            nn.init.zeros_(weights)
    return Classifier(backbone="linear", norm="group", body=body, neck=nn.Flatten(), head=head)


def _small_layers(inputs: int) -> list[nn.Module]:
    wide = math.ceil(inputs / WIDTH**2)
    return [
        *(nn.Linear(1, inputs) for _ in range(LINEAR)),
        *(nn.Conv2d(1, inputs, 1, bias=False) for _ in range(POINTWISE)),
        nn.Conv2d(1, inputs, 1),
        nn.Conv2d(1, wide, WIDTH, bias=False),
        nn.Conv2d(wide, wide, WIDTH, groups=wide, bias=False),
        nn.GroupNorm(1, inputs, eps=0.0),
    ]

"""Small networks in the place of large ones: what is done to any number of a model is done to a few in the same way."""

from functools import cache

import torch
from torch import nn

from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.method import GlobalModel
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.networks.loaded_copies import loaded_copy

LINEAR, KERNELS = 6, 4
"""Layers of a matrix and a vector, and convolutions without bias, beside the last layer."""


class SmallModel(GlobalModel):
    """A global model whose network is one of this module's, whatever the blueprint."""

    def module(self, *, layout: torch.memory_format = torch.contiguous_format) -> Classifier:
        """Make the network with the state."""
        state = self.state.state
        body = [value.ndim for name, value in state.items() if name.startswith("body")]
        built = _skeleton(state["head.weight"].shape[1], body.count(2), body.count(4))
        network = loaded_copy(built, state, layout=layout)
        assert network is not None  # names and shapes are its own
        return network


def small_model(like: GlobalModel, network: Classifier) -> SmallModel:
    """The model of one of these networks, with the blueprint of another model."""
    state = {name: value.detach().clone() for name, value in network.state_dict().items()}
    return SmallModel(blueprint=like.blueprint, state=ModelState(state=state))


def layered(inputs: int) -> Classifier:
    """A network of a linear layer without bias and small ones, with zero weights: 17 tensors of so many numbers.

    The small layers have one input and as many outputs as there are pixels: tensors of 1, 2 and 4 dimensions."""
    return _network(inputs, linear=LINEAR, kernels=KERNELS)


def one_layer(inputs: int) -> Classifier:
    """A network of one linear layer without bias, with zero weights."""
    return _network(inputs, linear=0, kernels=0)


@cache
def _skeleton(inputs: int, linear: int, kernels: int) -> Classifier:
    return _network(inputs, linear=linear, kernels=kernels)


def _network(inputs: int, *, linear: int, kernels: int) -> Classifier:
    with torch.device("meta"):  # avoids draws from the global random stream
        layers: list[nn.Module] = [nn.Linear(1, inputs) for _ in range(linear)]
        layers += [nn.Conv2d(1, inputs, 1, bias=False) for _ in range(kernels)]
        head, body = nn.Linear(inputs, 1, bias=False), nn.Sequential(*layers)
    for part in (head, body):
        part.to_empty(device="cpu")
        for weights in part.parameters():
            nn.init.zeros_(weights)
    return Classifier(backbone="linear", norm="group", body=body, neck=nn.Flatten(), head=head)

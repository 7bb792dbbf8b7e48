"""The model that a server broadcasts: the architecture of a network, and its state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from fdgsec.federation.artifacts import ModelState
from fdgsec.nn.networks.classifiers import Classifier, build_classifier
from fdgsec.nn.networks.loaded_copies import loaded_copy, skeleton
from fdgsec.runtime.random_streams import stream


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """The architecture of a network and its device; model states themselves stay on the CPU.

    `remodel` is the method's change to the plain classifier (StableFDG's attention, FedSR's random features)."""

    backbone: str
    classes: int
    norm: Literal["batch", "group", "frozen"] = "batch"
    device: str = "cpu"
    remodel: Callable[[Classifier, torch.Generator], Classifier] | None = None

    def network(self, rng: torch.Generator, *, drawn: bool = True) -> Classifier:
        """Build the network on the CPU, its parameters drawn from `rng`.

        `drawn=False` leaves the plain classifier's parameters undefined, for callers that then load a full state."""
        plain = build_classifier(self.backbone, self.classes, norm=self.norm, rng=rng if drawn else None)
        return plain if self.remodel is None else self.remodel(plain, rng)


def _undrawn(blueprint: Blueprint) -> Classifier:
    return blueprint.network(stream(0, "world", "blueprint"), drawn=False)


@lru_cache(maxsize=4)
def _skeleton(blueprint: Blueprint) -> Classifier | None:
    """The network of which all others of this blueprint are copies; None where it cannot be copied."""
    return skeleton(_undrawn(blueprint))


@dataclass(frozen=True, kw_only=True, eq=False)
class GlobalModel:
    """The global model of the federation: a blueprint and a state."""

    blueprint: Blueprint
    state: ModelState

    def module(self, *, layout: torch.memory_format = torch.contiguous_format) -> Classifier:
        """Make a new network with the state, in the memory layout in which it is used next.

        Networks of the same blueprint are copies of one that is built once."""
        built = _skeleton(self.blueprint)
        network = None if built is None else loaded_copy(built, self.state.state, layout=layout)
        if network is None:
            network = _undrawn(self.blueprint)
            network.load_state_dict(dict(self.state.state))
            network.to(memory_format=layout)
        return network.to(self.blueprint.device)

    def parameter_names(self) -> frozenset[str]:
        """The names of the state's entries that a network may train; all others are buffers, or another name of one of
        these that layers share."""
        built = _skeleton(self.blueprint)
        network = _undrawn(self.blueprint) if built is None else built
        return frozenset(name for name, _ in network.named_parameters())

    def with_state(self, state: Mapping[str, Tensor]) -> "GlobalModel":
        """The same blueprint with another state."""
        return GlobalModel(blueprint=self.blueprint, state=ModelState(state=dict(state)))

"""AdaIN's networks with the same random weights on both sides, and their bare passes.

Speed does not depend on the weights, as long as no activation is infinite or denormal."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from benchmarks.peers.clones import Clone
from benchmarks.peers.formats import PART, image_format, in_format
from benchmarks.training_speed import Job
from fdgsec.nn.styles.encoders import AdaInVgg
from fdgsec.nn.styles.image_moments import BLOCK
from fdgsec.nn.styles.image_styles import register_encoder
from fdgsec.nn.training.precision import Precision
from fdgsec.runtime.random_streams import stream


class RandomVgg(AdaInVgg):
    """fdgsec's VGG-19 and decoder under a name of their own, because published weights have the usual one."""

    name = "vgg19-random"


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """The authors' `vgg` (53 modules) and `decoder`, with drawn weights."""

    vgg: nn.Module
    decoder: nn.Module

    @classmethod
    def of(cls, clone: Clone, module: ModuleType, *, file: str) -> "Pair":
        """Take both from the module of `file` and draw weights. Raises UsageError where one is missing."""
        vgg, decoder = (clone.network(module, name, file=file) for name in ("vgg", "decoder"))
        draw_weights(vgg, stream(0, "world", "weights", "vgg"))
        draw_weights(decoder, stream(0, "world", "weights", "decoder"))
        return cls(vgg=vgg, decoder=decoder)

    def load(self, path: str, **_options: object) -> Mapping[str, Tensor]:
        """What the authors' code gets in place of the weights in a file: those that it has."""
        network = self.decoder if "decoder" in Path(path).name else self.vgg
        return network.state_dict()

    def encoder(self) -> RandomVgg:
        """fdgsec's networks with the same weights, registered under their name."""
        states = [
            {name: tensor.clone() for name, tensor in network.state_dict().items()}
            for network in (self.vgg, self.decoder)
        ]
        made = RandomVgg(*states)
        register_encoder(made)
        return made


@torch.no_grad()
def draw_weights(network: nn.Module, rng: torch.Generator) -> None:
    """Draw weights that keep the size of activations through ReLU, and set biases to 0."""
    for parameter in network.parameters():
        size = (2 / parameter[0].numel()) ** 0.5 if parameter.ndim > 1 else 0.0
        parameter.copy_(torch.randn(parameter.shape, generator=rng) * size)


def passes(networks: Sequence[nn.Module], images: Tensor, *, block: int, precision: Precision) -> Job:
    """Forward passes through `networks` one after the other, `block` images at a time, with nothing between them."""
    parts = [image_format(part, precision) for part in images.split(block)]
    copies = [in_format(network, precision) for network in networks]

    def job() -> None:
        with torch.inference_mode():
            for part in parts:
                for network in copies:
                    part = network(part)

    return job


def probe(networks: Sequence[nn.Module], images: Tensor) -> Callable[[Precision], Job]:
    """A few of these passes, in a format to be tried."""
    few = images[: max(1, BLOCK // PART)]
    return lambda precision: passes(networks, few, block=len(few), precision=precision)

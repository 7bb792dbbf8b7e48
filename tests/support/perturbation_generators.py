"""Perturbation generators as artifacts, and as a server sees a client train one."""

import torch

from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import GeneratorState
from fdgsec.federation.wire import SERVER, Message
from fdgsec.nn.networks.perturbation_generator import PerturbationNetwork
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge, View


def nothing(dataset: DomainDataset) -> Moments:
    raise NotImplementedError


BLANK = Knowledge(
    statistics=nothing, encoder="none", class_names=(), domain_names=(), auxiliary=None, unseen=None, own=None
)


def generator(seed: int, width: int = 4) -> PerturbationNetwork:
    return PerturbationNetwork(width, rng=stream(seed, "attack", "generator"))


def state_of(network: torch.nn.Module) -> GeneratorState:
    return GeneratorState(state={name: value.detach() for name, value in network.state_dict().items()})


def seen(given: GeneratorState, returned: GeneratorState) -> View:
    return View(
        messages=(
            Message(round=1, stage="combine", sender=SERVER, receiver="client:1", artifact=given),
            Message(round=1, stage="update", sender="client:1", receiver=SERVER, artifact=returned),
        )
    )

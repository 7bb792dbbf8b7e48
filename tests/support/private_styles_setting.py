"""Clients of noise images who share pixel styles, and what a defense sees of one message of theirs."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.defenses.private_styles import PrivateStyles
from fdgsec.federation.artifacts import Artifact
from fdgsec.federation.defense import Outgoing, Protected, Sender
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Method
from fdgsec.federation.released_statistics import PooledStyles, ReleasedStatistic
from fdgsec.nn.styles.channel_statistics import moments
from fdgsec.nn.styles.encoders import Pixels
from fdgsec.privacy.accounting import Use
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import simulated_stream
from tests.support.toy_federation import PixelStyles, images

PLAIN = PooledStyles()


@dataclass(frozen=True, kw_only=True, eq=False)
class PixelStatistic:
    """Reads styles of the network's input, or (`plain`) of the pixels as they are."""

    plain: bool = False
    released_statistic: ReleasedStatistic = PLAIN

    def records(self, images: DomainDataset) -> Tensor:
        pixels = as_float(images.pixels())
        return self.released_statistic.records(moments(pixels if self.plain else Pixels().encode(pixels)))


def network_input(images: DomainDataset, model: GlobalModel | None) -> PixelStatistic:
    return PixelStatistic()


def plain_pixels(images: DomainDataset, model: GlobalModel | None) -> PixelStatistic:
    return PixelStatistic(plain=True)


def outgoing(method: Method, *, count: int = 12, round: int = 0, rounds: int = 0) -> Outgoing:
    """What `client:0` with `count` images is about to send in its only slot."""
    client = Client(name="client:0", data=images(count, "private"))
    clock = Clock(round=round, rounds=rounds, participants=("client:0",))
    rng = stream(0, "world", "share", round)
    sent, state = method.share(client, model=None, state={}, clock=clock, rng=rng)
    statistic_source = plain_pixels if isinstance(method, PixelStyles) else network_input
    sender = Sender(
        client=client, method=method, clock=clock, model=None, state=state, statistic_source=statistic_source
    )
    (slot,) = sent
    return Outgoing(round=round, stage="share", name=slot, artifact=sent[slot], sender=sender)


def protected(defense: PrivateStyles, message: Outgoing, *, draw: int = 0) -> Protected:
    found = defense.on_message(message, simulated_stream(0, "test", draw))
    assert found is not None
    return found


def cost(found: Protected) -> Sequence[Use]:
    assert found.uses is not None
    return found.uses


def largest_change(first: Artifact, second: Artifact) -> float:
    others = second.tensors()
    return max(float((value - others[name]).abs().max()) for name, value in first.tensors().items())

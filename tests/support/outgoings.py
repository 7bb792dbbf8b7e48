"""One artifact on its way out of a client, for tests of what defenses make of it."""

from fdgsec.federation.artifacts import Artifact
from fdgsec.federation.defense import Outgoing, Sender
from fdgsec.federation.method import Client, Clock, State
from fdgsec.methods.fedavg import FedAvg
from tests.support.toy_federation import images


def outgoing(artifact: Artifact, *, holds: int = 8, state: State | None = None) -> Outgoing:
    """`artifact` leaves "client:0", which holds so many images and remembers `state`."""
    clock = Clock(round=0, rounds=0, participants=("client:0",))
    sender = Sender(
        client=Client(name="client:0", data=images(holds, "c0")), method=FedAvg(), clock=clock, model=None,
        state=state or {}, statistic_source=None,
    )  # fmt: skip
    return Outgoing(round=0, stage="share", name="style", artifact=artifact, sender=sender)

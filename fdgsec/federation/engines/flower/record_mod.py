"""A mod for the client app of any Flower federation: what its clients receive and send is recorded, to be attacked.

A mod sees messages as they leave the client app, behind the mods that stand after it in the list, and before the
network. Array records are recorded by their own names in a message: one that is called as a kind ("style",
"prototypes", ...) is of that kind, others are the model on the way down and an update on the way up. Names may be
mapped by `kinds`. Numbers in metric records are recorded as scores where all are finite."""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod

from fdgsec.federation.recording import KINDS, RecordedWire, open_recording
from fdgsec.federation.wire import SERVER
from fdgsec.runtime.errors import unknown_name

FlowerMod = Mod
FLAT = ("style", "image-styles", "spectra", "scores", "prototypes")
"""Kinds that are one array, and no state of a network."""
ROUND = ("server-round", "current-round", "round")
"""The entries of config records in which Flower's strategies and apps send the number of the round."""


def recording_mod(folder: Path, kinds: Mapping[str, str]) -> FlowerMod:
    """Make the mod that records into `folder`; `kinds` says of which kind the records of a name are.

    Every process of the federation may have its own. Raises UsageError for an unknown kind, and while messages pass
    those of `RecordedWire.send`, and for a folder that holds anything else or the recording of another run."""
    for kind in kinds.values():
        if kind not in KINDS:
            raise unknown_name("kind", kind, KINDS)

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        wire = open_recording(folder, run=str(message.metadata.run_id), afresh=False)
        client = f"client:{context.node_config['partition-id']}" if "partition-id" in context.node_config else (
            f"node {context.node_id}"
        )  # fmt: skip
        number = _round(message) if message.has_content() else None
        if message.has_content():
            _record(wire, message.content, kinds, default="model", sender=SERVER, receiver=client, round=number)
        reply = call_next(message, context)
        if reply.has_content():
            _record(wire, reply.content, kinds, default="update", sender=client, receiver=SERVER, round=number)
        return reply

    return mod


def _round(message: Message) -> int | None:
    """The number of the round, as the server's config or the message's group has it; None where neither does."""
    for record in message.content.values():
        if isinstance(record, ConfigRecord):
            found = next((record[name] for name in ROUND if name in record), None)
            if type(found) is int and found >= 0:
                return found
    group = message.metadata.group_id
    return int(group) if group.isdecimal() and len(group) < 10 else None


def _record(
    wire: RecordedWire,
    content: RecordDict,
    kinds: Mapping[str, str],
    *,
    default: str,
    sender: str,
    receiver: str,
    round: int | None,
) -> None:
    for name, record in content.items():
        if isinstance(record, ArrayRecord) and len(record):
            kind = kinds.get(name, name if name in KINDS else default)
            wire.send(kind, _arrays(kind, record), sender=sender, receiver=receiver, round=round)
        elif isinstance(record, MetricRecord):
            values = [
                float(one) for value in record.values() for one in (value if isinstance(value, list) else [value])
            ]
            if values and all(map(math.isfinite, values)):
                wire.send("scores", values, sender=sender, receiver=receiver, round=round)


def _arrays(kind: str, record: ArrayRecord) -> object:
    """The arrays of a record as `RecordedWire.send` takes them: of a flat kind the only one, or the pair of both."""
    arrays = {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}
    if kind not in FLAT:
        return arrays
    values = list(arrays.values())
    return values[0] if len(values) == 1 else tuple(values)

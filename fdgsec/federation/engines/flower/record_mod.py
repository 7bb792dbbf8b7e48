"""A mod for the client app of any Flower federation: what its clients receive and send is recorded, to be attacked.

A mod sees messages as they leave the client app, behind the mods that stand after it in the list, and before the
network. Array records are recorded by their own names in a message: one that is called as a kind ("style",
"prototypes", ...) is of that kind, others are the model on the way down and an update on the way up. Metric records are
scores. Names of both may be mapped by `kinds`."""

import math
from collections.abc import Mapping
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod

from fdgsec.federation.recording import KINDS, RecordedWire, open_recording
from fdgsec.federation.wire import SERVER
from fdgsec.runtime.errors import ArtifactError, unknown_name

FlowerMod = Mod
FLAT = ("style", "image-styles", "spectra", "scores", "prototypes")
"""Kinds that are one array, and no state of a network."""
ROUND = ("server-round", "current-round", "round")
"""The entries of config records in which Flower's strategies and apps send the number of the round."""


def recording_mod(folder: Path, kinds: Mapping[str, str]) -> FlowerMod:
    """Make the mod that records into `folder`; `kinds` says of which kind the records of a name are.

    Every process of the federation may have its own. Raises UsageError for an unknown kind. While messages pass it
    raises what `RecordedWire.send` does, ArtifactError for a metric that is not finite, and UsageError for a folder
    that holds anything else or the recording of another run."""
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
        elif isinstance(record, MetricRecord) and len(record):
            kind = kinds.get(name, "scores")
            wire.send(kind, _metrics(kind, name, record), sender=sender, receiver=receiver, round=round)


def _metrics(kind: str, name: str, record: MetricRecord) -> object:
    """The numbers of a record: of a flat kind one after the other, else by their names.

    Raises ArtifactError for one that is not finite: a recording without it would not be what was sent."""
    values = {key: value if isinstance(value, list) else [value] for key, value in record.items()}
    odd = next((key for key, found in values.items() if not all(map(math.isfinite, found))), None)
    if odd is not None:
        raise ArtifactError(
            f"metric {odd} of record {name} is not finite ({values[odd]}); finite numbers are recorded. Leave it out "
            "of the message, or send 0 with a flag of its own."
        )
    if kind not in FLAT:
        return values
    return [float(one) for found in values.values() for one in found]


def _arrays(kind: str, record: ArrayRecord) -> object:
    """The arrays of a record as `RecordedWire.send` takes them: of a flat kind the only one, or the pair of both."""
    arrays = {name: array.numpy() for name, array in record.items()}
    if kind not in FLAT:
        return arrays
    values = list(arrays.values())
    return values[0] if len(values) == 1 else tuple(values)

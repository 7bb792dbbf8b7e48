"""A check that clients of one process leave what they received as it was.

Clients in one process receive the same objects: what one writes into them, the next would start from, and no
transcript would have it."""

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from fdgsec.federation.artifacts import Artifact
from fdgsec.federation.method import State, Step, StepRequest
from fdgsec.runtime.errors import UsageError


class ReceivedChangedError(UsageError):
    """A method that wrote into what a client received (exit 2)."""


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """One tensor of a request: where it is, its form, and a checksum of its bytes in memory."""

    where: str
    name: str
    form: str
    checksum: int


@contextmanager
def unchanged(step: Step, requests: Mapping[str, StepRequest]) -> Iterator[None]:
    """Raise ReceivedChangedError after the block, also where that fails, if a step changed what is in `requests`.

    Artifacts and tensors that take the place of others count, and so do writes through NumPy or `.data`."""
    held = [artifact for _, artifact in _received(requests)]  # so that none of them gives its id to another
    before = _entries(requests)
    try:
        yield
    except Exception as error:
        if said := _difference(before, _entries(requests)):
            raise ReceivedChangedError(_message(step, said)) from error
        raise
    if said := _difference(before, _entries(requests)):
        raise ReceivedChangedError(_message(step, said))
    held.clear()


def own_state(state: State, request: StepRequest) -> State:
    """The state of a client with copies of the tensors that it shares with its request, which other clients share."""
    received = {
        value.untyped_storage().data_ptr()
        for _, artifact in _received({"": request})
        for value in artifact.tensors().values()
    }
    return {
        name: value.clone() if value.untyped_storage().data_ptr() in received else value
        for name, value in state.items()
    }


def _message(step: Step, said: str) -> str:
    return (
        f"the step {step!r} of the method wrote into {said} that its client received; other clients and the server "
        "hold the same. The method must copy a tensor before it writes into it."
    )


def _difference(before: list[_Entry], after: list[_Entry]) -> str:
    """The first entry that is another one, in words; empty where none is."""
    if before == after:
        return ""
    found = set(after)
    entry = next((entry for entry in before if entry not in found), None) or after[-1]
    return f"{entry.name!r} of the {entry.where}"


def _entries(requests: Mapping[str, StepRequest]) -> list[_Entry]:
    return [
        _Entry(where=where, name=name, form=f"{value.dtype} {tuple(value.shape)}", checksum=_checksum(value))
        for where, artifact in _received(requests)
        for name, value in artifact.tensors().items()
    ]


def _received(requests: Mapping[str, StepRequest]) -> Iterator[tuple[str, Artifact]]:
    """Every artifact in requests once, with the words for it in a message."""
    seen = set[int]()
    for request in requests.values():
        held: dict[str, Artifact] = {} if request.model is None else {"model": request.model.state}
        held |= {f"artifact {slot!r}": artifact.stored()[0] for slot, artifact in request.inbox.items()}
        for words, payload in held.items():  # a bank without a client's own rows is a view of one that all share
            if id(payload) not in seen:
                seen.add(id(payload))
                yield words, payload


def _checksum(value: Tensor) -> int:
    content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return zlib.crc32(content.numpy().data)

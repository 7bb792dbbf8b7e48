"""A check that clients of one process leave what they received as it was.

Clients in one process receive the same tensors: what one writes into them, the next would start from, and no
transcript would have it."""

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from fdgsec.federation.artifacts import Artifact
from fdgsec.federation.method import Step, StepRequest
from fdgsec.runtime.errors import UsageError


class ReceivedChangedError(UsageError):
    """A method that wrote into what a client received (exit 2)."""


@contextmanager
def unchanged(step: Step, requests: Mapping[str, StepRequest]) -> Iterator[None]:
    """Raise ReceivedChangedError after the block where a tensor of `requests` was written into.

    Checksums are of the bytes in memory, so that writes through NumPy or `.data` are found too."""
    received = [(words, *entry) for words, artifact in _received(requests) for entry in artifact.tensors().items()]
    before = [_checksum(value) for *_, value in received]
    yield
    for (words, name, value), checksum in zip(received, before, strict=True):
        if _checksum(value) != checksum:
            raise ReceivedChangedError(
                f"the step {step!r} of the method wrote into {name!r} of the {words} that its client received; other "
                "clients and the server hold the same tensors. The method must copy a tensor before it writes into it."
            )


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

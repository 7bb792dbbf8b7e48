"""Generators that a function draws from, and the same draws of theirs for a record, whatever came before it.

What is drawn for a record may be drawn in any order, as an augmentation is: it is independent of the other records as
long as it is a draw. Compared are gradients under the same draws."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import FunctionType, MethodType, ModuleType

import torch
from torch import Tensor

from fdgsec.nn.training.per_sample_gradients import PrivateTrainingError

MOST = 20_000
"""Objects that are looked into for generators."""
PLAIN = (Tensor, type, ModuleType, str, bytes, int, float, complex, range, slice)


def generators_of(function: object, device: torch.device) -> Sequence[torch.Generator]:
    """Find torch's own generators on the CPU and on `device`, and those that a function holds: in what it closes over,
    its object's attributes, and collections in these."""
    found = [torch.default_generator]
    if device.type == "cuda":
        found.append(torch.cuda.default_generators[device.index or 0])
    seen, left = dict[int, object](), [function]
    while left and len(seen) < MOST:
        one = left.pop()
        if one is None or id(one) in seen or isinstance(one, PLAIN):
            continue
        seen[id(one)] = one
        if isinstance(one, torch.Generator):
            found.append(one)
        else:
            left.extend(_parts(one))
    return found


def _parts(one: object) -> Sequence[object]:
    if isinstance(one, Mapping):
        return list(one.values())
    if isinstance(one, list | tuple | set | frozenset):
        return list(one)
    parts = list(vars(one).values()) if hasattr(one, "__dict__") else []
    if isinstance(one, FunctionType):
        return [*parts, *_closed_over(one), one.__defaults__, one.__kwdefaults__]
    if isinstance(one, MethodType):
        return [*parts, one.__self__, one.__func__]
    return [*parts, one.func, one.args, one.keywords] if isinstance(one, partial) else parts


def _closed_over(function: FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue


@contextmanager
def reseeded(generators: Sequence[torch.Generator], *numbers: int) -> Iterator[None]:
    """Within the block, have generators draw what follows from `numbers`; then they go on where they were.

    Raises PrivateTrainingError for a block that seeds one of them: what is drawn for later records follows from it."""
    states = [one.get_state() for one in generators]
    seeds = [hash((place, *numbers)) % 2**31 for place in range(len(generators))]
    for one, seed in zip(generators, seeds, strict=True):
        one.manual_seed(seed)
    try:
        yield
        if any(one.initial_seed() != seed for one, seed in zip(generators, seeds, strict=True)):
            raise PrivateTrainingError(
                "the gradient of a record seeds a generator, so that what others draw follows from that record; draw "
                "from a generator of its own."
            )
    finally:
        for one, state in zip(generators, states, strict=True):
            one.set_state(state)

"""Checks that all plug-ins share: frozen options, no state on the object, no draws from global generators."""

import dataclasses
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial

import numpy as np
import sklearn.preprocessing  # noqa: F401  what it imports draws a number from `random` when it is first imported
import torch
from torch import Tensor

UNTOUCHED = "steps leave what they are handed as it was"


class BrokenPromiseError(AssertionError):
    """A violated contract: `promise` in a few words, and the observed behavior."""

    def __init__(self, promise: str, came: str) -> None:
        super().__init__(f"{promise}: {came}")
        self.promise = promise


def expect(kept: bool, promise: str, came: str) -> None:
    """Raise BrokenPromiseError with `promise` and `came` unless `kept`."""
    if not kept:
        raise BrokenPromiseError(promise, came)


def check_frozen(thing: object) -> None:
    """Check that options are fields of a frozen dataclass, and that a copy with the same options is equal."""
    parameters = getattr(type(thing), "__dataclass_params__", None)
    frozen = parameters is not None and parameters.frozen
    expect(frozen, "options are frozen", f"{type(thing).__name__} is not a frozen dataclass")
    again = dataclasses.replace(thing)  # type: ignore[type-var]
    expect(again == thing, "options are frozen", "a copy with the same options is not equal")


@contextmanager
def nothing_kept(thing: object) -> Iterator[None]:
    """Check that the block leaves the object and the global generators of torch, numpy and random unchanged."""
    before, drawn = deepcopy(vars(thing)), _global_states()
    yield
    changed = [name for name, value in vars(thing).items() if name not in before or not same(before[name], value)]
    expect(not changed, "nothing is kept on self", f"{type(thing).__name__} changed {', '.join(changed)}")
    moved = [name for name, state in _global_states().items() if not same(drawn[name], state)]
    names = ", ".join(moved)
    said = f"{type(thing).__name__} moved the global state of {names}; draw from the generator that is handed in"
    expect(not moved, "no draws from global randomness", said)


def _global_states() -> dict[str, object]:
    return {"torch": torch.get_rng_state(), "numpy": np.random.get_state(legacy=False), "random": random.getstate()}


def same(one: object, other: object) -> bool:
    """Whether two values are bitwise equal, including tensors, arrays, dataclasses and partial functions of them."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, partial) and isinstance(other, partial):
        return all(same(getattr(one, name), getattr(other, name)) for name in ("func", "args", "keywords"))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, Sequence) and isinstance(other, Sequence) and not isinstance(one, str | bytes):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if dataclasses.is_dataclass(one) and not isinstance(one, type) and type(one) is type(other):
        parts = [spec.name for spec in dataclasses.fields(one)]
        return all(same(getattr(one, part), getattr(other, part)) for part in parts)
    return bool(one == other)

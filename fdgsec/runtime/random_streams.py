"""Named random streams: draws depend on a seed and names, never on the order of calls.

They are public: whoever has a run's seed can repeat them. torch's CPU generator keeps the low 32 bits of what it is
seeded with, so two names share a stream with probability 2^-32; that is enough to repeat and to vary a run, and no
secret may rest on it. What an adversary must not know comes from fdgsec.runtime.secret_streams."""

import hashlib
from typing import Literal, get_args

import torch

from fdgsec.runtime.secret_streams import SecretGenerator

Root = Literal["world", "attack"]


def stream(seed: int, root: Root, *names: str | int) -> torch.Generator:
    """Give the CPU generator for `seed`, `root` and `names`.

    `world` is for data and training, `attack` for the adversary's and an auditor's own randomness. Equal arguments give
    equal draws on every platform. Raises ValueError for an unknown root."""
    if root not in get_args(Root):
        raise ValueError(f"root must be 'world' or 'attack'; got {root!r}.")
    key = "\x1f".join([str(seed), root, *(f"{type(name).__name__}:{name}" for name in names)])
    digest = hashlib.sha256(key.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def child(rng: torch.Generator, *names: str | int) -> torch.Generator:
    """Derive a named stream from `rng` without advancing it, so that streams with different names are independent."""
    if isinstance(rng, SecretGenerator):
        return rng.source.child(*names).generator()
    key = "\x1f".join([str(rng.initial_seed()), *(f"{type(name).__name__}:{name}" for name in names)])
    digest = hashlib.sha256(key.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def derangement(count: int, rng: torch.Generator) -> torch.Tensor:
    """Draw a permutation of 0..count - 1 without a fixed point, as one cycle through all (1 alone stays)."""
    cycle = torch.randperm(count, generator=rng)
    order = torch.empty_like(cycle)
    order[cycle] = cycle.roll(1)
    return order


def integer_seed(rng: torch.Generator) -> int:
    """Draw a seed below 2**31 for a library that takes integers (scikit-learn, numpy)."""
    return int(torch.randint(0, 2**31 - 1, (1,), generator=rng))

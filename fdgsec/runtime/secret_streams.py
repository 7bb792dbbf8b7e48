"""Secret random streams: SHAKE-256 of a 256-bit key, so that draws tell nothing about each other or about the key.

`random_streams.stream` is for what anybody may repeat. Noise, samples and permutations that an adversary must not know
come from here: torch's CPU generator keeps 32 bits of its seed, which a search finds in minutes, and MT19937 can be
rolled back. A block of a stream is SHAKE-256(key, names, counter) (FIPS 202); names and counter are encoded so that no
two calls hash the same input.

A stream is as secret as its key. `new_key` draws one from the operating system. `simulated_key` derives one from the
seed of a run, so that a simulation repeats to the byte: whoever knows the seed knows the noise."""

import hashlib
import math
import secrets

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

KEY_BYTES = 32
STATE_WORDS = 624  # of 32 bits, each stored in 64, after a header of 24 bytes

Words = NDArray[np.uint64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


def new_key() -> bytes:
    """Draw a key of 256 bits from the operating system's generator."""
    return secrets.token_bytes(KEY_BYTES)


def simulated_key(seed: int) -> bytes:
    """Derive the key of a simulation from its public seed."""
    return hashlib.sha256(b"fdgsec simulated key\x00" + str(seed).encode()).digest()


class SecretStream:
    """Draws that depend on a key, on names and on the number of earlier draws, and on nothing else.

    Equal keys and names give equal draws on every platform. Raises ValueError for a key that is not 32 bytes long."""

    def __init__(self, key: bytes, *names: str | int) -> None:
        key = bytes(memoryview(key))  # a copy: what its owner changes later changes no draw
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes; got {len(key)}.")
        self._key, self._names, self._draws = key, names, 0
        self._named = key + b"".join(map(_encoded, names))  # what every hash of this stream begins with

    def __repr__(self) -> str:
        return f"SecretStream({', '.join(map(repr, self._names))}; key not shown)"

    def child(self, *names: str | int) -> "SecretStream":
        """The stream of further names, which does not depend on what this one has drawn."""
        return SecretStream(self._key, *self._names, *names)

    def random_bytes(self, count: int) -> bytes:
        """Draw `count` bytes."""
        hashed = hashlib.shake_256(self._named + _encoded(self._draws))
        self._draws += 1
        return hashed.digest(count)

    def words(self, count: int) -> Words:
        """Draw integers below 2^64 (count,) uint64."""
        return np.frombuffer(self.random_bytes(8 * count), dtype="<u8").astype(np.uint64)

    def uniform(self, *shape: int) -> Tensor:
        """Draw float64 numbers in [0, 1), multiples of 2^-53."""
        return _tensor((self.words(math.prod(shape)) >> np.uint64(11)) * 2.0**-53, shape)

    def exponential(self, *shape: int) -> Tensor:
        """Draw float64 numbers of the exponential distribution with mean 1."""
        return -torch.log1p(-self.uniform(*shape))

    def normal(self, *shape: int) -> Tensor:
        """Draw float64 numbers of N(0, 1) (Box & Muller 1958); the largest possible one is 8.57.

        They are rounded real numbers, whose last bits may tell what they were added to (Mironov, CCS 2012); a
        calibrated release has `privacy.discrete_gaussian` instead."""
        count = math.prod(shape)
        radii, turns = self.uniform(2, (count + 1) // 2)
        radius, angle = (-2 * torch.log1p(-radii)).sqrt(), 2 * math.pi * turns
        return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count].reshape(shape)

    def integers(self, below: int, *shape: int) -> Tensor:
        """Draw int64 numbers from 0 to `below` - 1, each exactly as likely as any other. Raises ValueError below 1."""
        return _tensor(self.integer_array(below, math.prod(shape)), shape)

    def permutation(self, count: int) -> Tensor:
        """Draw one of all orders of 0 to `count` - 1 (count,) int64."""
        keys = self.words(count)
        while len(np.unique(keys)) < count:
            keys = self.words(count)
        return torch.from_numpy(np.argsort(keys))

    def derangement(self, count: int) -> Tensor:
        """Draw a permutation without a fixed point, as one cycle through all (1 alone stays)."""
        cycle = self.permutation(count)
        order = torch.empty_like(cycle)
        order[cycle] = cycle.roll(1)
        return order

    def generator(self) -> "SecretGenerator":
        """A torch generator whose whole state comes from this stream, for augmentations and objectives.

        It is a Mersenne twister, which its outputs give away: not for noise that is released."""
        return SecretGenerator.of(self)

    def integer_array(self, below: int, count: int) -> Integers:
        """As `integers`, as an array (count,)."""
        if not 1 <= below < 2**63:
            raise ValueError(f"integers below {below} cannot be drawn; give a number from 1 to 2^63 - 1.")
        drawn = self.words(count)
        unfair = 2**64 % below  # the largest words, as many as these, would favor the small remainders
        if unfair:
            limit = np.uint64(2**64 - unfair - 1)
            while (larger := drawn > limit).any():
                drawn[larger] = self.words(int(larger.sum()))
        return (drawn % np.uint64(below)).view(np.int64)


class SecretGenerator(torch.Generator):
    """A torch generator with 19968 secret bits of state; `random_streams.child` derives further ones from `source`."""

    source: SecretStream

    @classmethod
    def of(cls, source: SecretStream) -> "SecretGenerator":
        """Fill the state of a new generator from `source`."""
        made = cls()
        made.source = source.child("torch generator")
        state = made.get_state()
        layout = state.numpy()
        words = np.frombuffer(source.random_bytes(4 * STATE_WORDS), dtype="<u4").astype(np.uint64)
        layout[:] = 0  # no cached normal numbers
        layout[8:16] = np.array([1, 1], dtype=np.int32).view(np.uint8)  # one word left: the next draw renews all
        layout[24 : 24 + 8 * STATE_WORDS] = words.view(np.uint8)
        made.set_state(state)
        return made


def _encoded(name: str | int) -> bytes:
    """A name with its type and, before both, their length, so that no two lists of names are encoded alike."""
    part = f"{type(name).__name__}:{name}".encode()
    return len(part).to_bytes(8, "big") + part


def _tensor(values: NDArray[np.generic], shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).reshape(shape)


def simulated_stream(seed: int, *names: str | int) -> SecretStream:
    """The stream of `names` under the key of a simulation with this seed."""
    return SecretStream(simulated_key(seed), *names)

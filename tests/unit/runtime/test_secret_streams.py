"""Secret streams: what is drawn depends on all bits of the key and on every name, and is distributed as it says."""

import hashlib
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from fdgsec.runtime.random_streams import child
from fdgsec.runtime.secret_streams import KEY_BYTES, SecretStream, new_key, simulated_key, simulated_stream

KEY = bytes(range(KEY_BYTES))


def test_a_block_is_shake_256_of_key_names_and_counter():
    first, second = (stream := SecretStream(KEY, "defense", 3)).random_bytes(16), stream.random_bytes(16)

    parts = [b"str:defense", b"int:3", b"int:0"]
    hashed = KEY + b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    assert first == hashlib.shake_256(hashed).digest(16)
    assert second != first


@pytest.mark.parametrize("of", [bytearray, memoryview, lambda key: np.frombuffer(key, dtype=np.uint8)])
def test_a_key_is_copied_whatever_holds_its_bytes(of: Any):
    held = bytearray(KEY)
    stream = SecretStream(of(held), "x")
    held[:] = bytes(KEY_BYTES)

    assert stream.child("y").uniform(2).tolist() == SecretStream(KEY, "x", "y").uniform(2).tolist()


def test_every_bit_of_the_key_changes_every_draw():
    draws = {SecretStream(KEY, "x").uniform(2)}
    for bit in range(8 * KEY_BYTES):
        other = bytearray(KEY)
        other[bit // 8] ^= 1 << bit % 8
        draws.add(SecretStream(bytes(other), "x").uniform(2))

    assert len({tuple(drawn.tolist()) for drawn in draws}) == 8 * KEY_BYTES + 1


@pytest.mark.parametrize(
    ("one", "other"),
    [(("a", "b"), ("ab",)), ((1,), ("1",)), (("a\x1fb",), ("a", "b")), ((), ("",)), ((0,), ())],
    ids=str,
)
def test_no_two_lists_of_names_are_one_stream(one: tuple[str | int, ...], other: tuple[str | int, ...]):
    assert SecretStream(KEY, *one).random_bytes(8) != SecretStream(KEY, *other).random_bytes(8)


@pytest.mark.slow
def test_a_million_named_streams_are_distinct():
    blocks = {SecretStream(KEY, "defense", number // 1000, number % 1000).random_bytes(16) for number in range(10**6)}

    assert len(blocks) == 10**6


def test_a_child_does_not_depend_on_what_was_drawn():
    parent = SecretStream(KEY, "x")
    before = parent.child("y").random_bytes(8)
    parent.uniform(5)

    assert parent.child("y").random_bytes(8) == before


def test_seeds_that_agree_in_their_low_32_bits_have_different_keys():
    assert simulated_key(5) != simulated_key(5 + (12345 << 32))
    assert simulated_key(5) == simulated_key(5)


def test_new_keys_are_never_the_same():
    assert len({new_key() for _ in range(100)}) == 100


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33)])
def test_a_key_of_another_length_is_refused(key: bytes):
    with pytest.raises(ValueError, match="a key has 32 bytes"):
        SecretStream(key)


def test_the_key_is_not_shown():
    assert KEY.hex() not in repr(SecretStream(KEY, "x"))
    assert repr(KEY) not in repr(SecretStream(KEY, "x"))


@pytest.mark.parametrize(
    ("kind", "law"), [("uniform", stats.uniform()), ("exponential", stats.expon()), ("normal", stats.norm())]
)
def test_draws_have_their_law(kind: str, law: stats.rv_continuous):
    drawn = getattr(simulated_stream(0, kind), kind)(200_000)

    assert drawn.dtype == torch.float64
    assert stats.kstest(drawn.numpy(), law.cdf).pvalue > 1e-3


def test_normal_draws_are_independent_of_each_other_in_pairs():
    drawn = simulated_stream(0, "pairs").normal(2, 100_000)

    assert abs(float(torch.corrcoef(drawn)[0, 1])) < 5 / math.sqrt(100_000)
    assert abs(float(torch.corrcoef(drawn.square())[0, 1])) < 5 / math.sqrt(100_000)


@pytest.mark.parametrize("below", [1, 2, 7, 2**40 + 1, 2**63 - 1])
def test_integers_are_uniform(below: int):
    drawn = simulated_stream(0, below).integers(below, 100_000).double() / below

    assert float(drawn.min()) >= 0
    assert float(drawn.max()) <= 1
    counts = np.histogram(drawn.numpy(), bins=min(below, 10), range=(0, 1))[0]
    if below > 7 or below == 2:
        assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("below", [0, -1, 2**63])
def test_integers_out_of_range_are_refused(below: int):
    with pytest.raises(ValueError, match="cannot be drawn"):
        SecretStream(KEY).integers(below, 3)


def test_every_order_is_as_likely_as_any_other():
    stream = simulated_stream(0, "orders")
    found = [tuple(stream.permutation(3).tolist()) for _ in range(6000)]
    _, counts = np.unique(found, axis=0, return_counts=True)

    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("count", [2, 5, 20])
def test_a_derangement_is_one_cycle(count: int):
    order, place = simulated_stream(0, "ring").derangement(count), 0
    visited = [place := int(order[place]) for _ in range(count)]

    assert sorted(visited) == list(range(count))


def test_a_generator_carries_more_than_32_bits_and_so_do_its_children():
    """torch keeps 32 bits of a seed: two generators whose initial seeds agree would draw the same."""
    one, other = (simulated_stream(0, name).generator() for name in "ab")

    assert one.initial_seed() == other.initial_seed()
    assert not torch.equal(torch.rand(9, generator=one), torch.rand(9, generator=other))
    assert not torch.equal(torch.rand(9, generator=child(one, "x")), torch.rand(9, generator=child(other, "x")))


def test_a_generator_draws_what_a_mersenne_twister_with_its_state_draws():
    drawn = torch.rand(5, generator=simulated_stream(0, "a").generator())

    twister = np.random.MT19937()
    state: Any = twister.state
    words = np.frombuffer(simulated_stream(0, "a").random_bytes(4 * 624), dtype="<u4")
    twister.state = state | {"state": {"key": words, "pos": 624}}
    assert drawn.tolist() == [int(word & 0xFFFFFF) / 2**24 for word in twister.random_raw(5)]

"""The search over seeds finds a seed of 32 bits, and nothing in a keyed stream."""

from benchmarks.brute_force_noise import both


def test_a_planted_seed_is_found_and_a_keyed_stream_is_not():
    found = both(12)

    assert found["planted"].found
    assert 0.95 < found["planted"].correlation < 1
    assert not found["keyed"].found
    assert {result.tried for result in found.values()} == {2**12}

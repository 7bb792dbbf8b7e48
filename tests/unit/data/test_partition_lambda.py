"""FISC's partition: lambda against a slow transcription of its rule, and what it means."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from fdgsec.data.partition import lambda_split
from tests.support.domain_sizes import domain_ids, table


def lambda_oracle(ids: Sequence[int], clients: int, lam: float, seed: int) -> list[list[int]]:
    """The rule of Bai et al. (ICLR 2024) image by image, with Python's numbers; at most as many domains as clients."""
    domains = sorted(set(ids))
    size = {d: list(ids).count(d) for d in domains}
    shards = dict.fromkeys(domains, 1)
    for _ in range(clients - len(domains)):
        shards[max(domains, key=lambda d: size[d] / shards[d])] += 1
    main = [d for d in domains for _ in range(shards[d])]
    draws = np.random.default_rng(seed)
    pile = {d: draws.permutation([i for i, x in enumerate(ids) if x == d]).tolist() for d in domains}
    quota = {
        (i, d): size[d] * ((1 / shards[d]) * (d == main[i]) * (1 - lam) + (1 / clients) * lam)
        for i in range(clients)
        for d in domains
    }
    whole = {key: math.floor(value) for key, value in quota.items()}
    for d in domains:
        for i in range(round(sum(quota[i, d] - whole[i, d] for i in range(clients)))):
            whole[i, d] += 1
    return [[pile[d].pop(0) for d in domains for _ in range(whole[i, d])] for i in range(clients)]


@pytest.mark.parametrize("lam", [0.0, 0.1, 0.3, 1 / 3, 0.5, 0.7, 0.9, 1.0])
@pytest.mark.parametrize(
    ("sizes", "clients"), [((101, 57, 83), 3), ((100, 60, 80), 3), ((101, 57, 83), 10), ((204, 234, 167), 30)]
)
def test_lambda_equals_its_slow_transcription(sizes: tuple[int, ...], clients: int, lam: float) -> None:
    ids = domain_ids(sizes)

    parts = lambda_split(ids, clients, lam=lam, seed=11)

    assert [part.tolist() for part in parts] == lambda_oracle(ids.tolist(), clients, lam, 11)


def test_lambda_with_fewer_clients_than_domains_fills_the_emptiest_with_the_largest_domain_left() -> None:
    ids = domain_ids((50, 30, 20, 40))

    apart = table(ids, lambda_split(ids, 2, lam=0.0, seed=0))
    halfway = table(ids, lambda_split(ids, 2, lam=0.5, seed=0))

    assert apart.tolist() == [[50, 0, 20, 0], [0, 30, 0, 40]]
    assert halfway.tolist() == [[38, 8, 15, 10], [12, 22, 5, 30]]  # 50/2 * .5 + 50 * .5 = 37.5: client 0 rounds up


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("clients", [2, 3, 8, 13])
def test_lambda_one_gives_every_client_the_same_mixture(clients: int, strict: bool) -> None:
    ids = domain_ids((101, 57, 83))

    found = table(ids, lambda_split(ids, clients, lam=1.0, seed=0, strict=strict))

    assert float((found - torch.tensor([101, 57, 83]) / clients).abs().max()) < 1.0


@pytest.mark.parametrize("clients", [3, 8, 13])
def test_lambda_zero_gives_each_client_one_domain_when_strict(clients: int) -> None:
    ids = domain_ids((101, 57, 83))

    strict = table(ids, lambda_split(ids, clients, lam=0.0, seed=0, strict=True))
    as_released = table(ids, lambda_split(ids, clients, lam=0.0, seed=0))

    assert (strict > 0).sum(dim=1).tolist() == [1] * clients
    assert int((strict - as_released).clamp(min=0).sum(dim=0).max()) < clients


@pytest.mark.parametrize("clients", [2, 3, 8])
def test_domains_mix_more_the_larger_lambda_is(clients: int) -> None:
    ids = domain_ids((500, 300, 400))

    def purity(lam: float) -> float:
        found = table(ids, lambda_split(ids, clients, lam=lam, seed=0)).double()
        return float((found.max(dim=1).values / found.sum(dim=1)).mean())

    purities = [purity(lam) for lam in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)]
    assert purities == sorted(purities, reverse=True)
    assert purities[0] - purities[-1] > 0.1


def test_a_domain_that_is_left_out_does_not_change_how_the_others_are_shared() -> None:
    left_out_first = lambda_split(domain_ids((0, 60, 40)), 4, lam=0.5, seed=2)
    never_there = lambda_split(domain_ids((60, 40)), 4, lam=0.5, seed=2)

    assert [part.tolist() for part in left_out_first] == [part.tolist() for part in never_there]

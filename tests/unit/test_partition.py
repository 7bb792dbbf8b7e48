"""Partitions: the six properties of every scheme, and lambda against a slow transcription of its rule."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.data.partition import (
    dirichlet_domain,
    lambda_split,
    lodo,
    ltdo,
    one_domain_per_client,
    partition,
    single_domain,
    split_validation,
    stablefdg_minimum,
)
from fdgsec.errors import DataError, UsageError
from fdgsec.rng import stream

Scheme = Callable[[Tensor, int], list[Tensor]]
SCHEMES: dict[str, Scheme] = {
    "domain": lambda ids, _: one_domain_per_client(ids),
    "single": lambda ids, seed: single_domain(ids, 3, rng=stream(seed, "world")),
    "dirichlet": lambda ids, seed: dirichlet_domain(ids, 6, rng=stream(seed, "world"), alpha=0.5, cap=False),
    "capped": lambda ids, seed: dirichlet_domain(ids, 6, rng=stream(seed, "world"), alpha=0.5, cap=True, min_samples=9),
    "lambda 0": lambda ids, seed: lambda_split(ids, 7, lam=0.0, seed=seed),
    "lambda .3": lambda ids, seed: lambda_split(ids, 7, lam=0.3, seed=seed),
    "lambda .3 strict": lambda ids, seed: lambda_split(ids, 7, lam=0.3, seed=seed, strict=True),
    "lambda 1": lambda ids, seed: lambda_split(ids, 7, lam=1.0, seed=seed),
    "fewer clients than domains": lambda ids, seed: lambda_split(ids, 2, lam=0.2, seed=seed),
}


def domain_ids(sizes: Sequence[int], *, seed: int = 0) -> Tensor:
    """Domain 0 `sizes[0]` times, and so on, in random order."""
    ids = torch.cat([torch.full((size,), domain) for domain, size in enumerate(sizes)])
    return ids[torch.randperm(len(ids), generator=stream(seed, "world", "ids"))]


def dataset(sizes: Sequence[int] = (40, 30, 20), *, classes: int = 4) -> DomainDataset:
    ids = domain_ids(sizes)
    return DomainDataset(
        name="made",
        store=torch.zeros((len(ids), 3, 1, 1), dtype=torch.uint8),
        rows=torch.arange(len(ids)),
        labels=torch.arange(len(ids)) % classes,
        domains=ids,
        ids=[f"image {i}" for i in range(len(ids))],
        class_names=[f"class {i}" for i in range(classes)],
        domain_names=[f"domain {i}" for i in range(len(sizes))],
    )


def table(ids: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """Images of each client (rows) and domain (columns)."""
    return torch.stack([ids[part].bincount(minlength=int(ids.max()) + 1) for part in parts])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("sizes", [(101, 57, 83), (50, 0, 61, 44)])
def test_clients_are_disjoint_and_hold_every_image(scheme: str, sizes: tuple[int, ...]) -> None:
    ids = domain_ids(sizes)

    parts = SCHEMES[scheme](ids, 3)

    assert torch.cat(parts).sort().values.tolist() == list(range(sum(sizes)))
    assert min(map(len, parts)) > 0


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name != "domain"])
def test_the_seed_decides_and_nothing_else_does(scheme: str) -> None:
    ids = domain_ids((101, 57, 83))

    first, again, other = (SCHEMES[scheme](ids, seed) for seed in (3, 3, 4))

    assert [part.tolist() for part in first] == [part.tolist() for part in again]
    assert [part.tolist() for part in first] != [part.tolist() for part in other]


def test_single_domain_clients_share_a_domain_equally_and_the_last_takes_the_rest() -> None:
    ids = domain_ids((32, 10))

    parts = single_domain(ids, 3, rng=stream(0, "world"))

    assert table(ids, parts).tolist() == [[10, 0], [10, 0], [12, 0], [0, 3], [0, 3], [0, 4]]


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


@pytest.mark.parametrize("cap", [True, False])
def test_a_client_that_holds_its_even_share_gets_no_more_only_when_capped(cap: bool) -> None:
    ids = domain_ids((300, 300, 300))
    given: list[int] = []

    for seed in range(20):
        found = table(ids, dirichlet_domain(ids, 3, rng=stream(seed, "world"), alpha=1.0, cap=cap))
        held_before = found.cumsum(dim=1) - found
        given += found[held_before >= 300].tolist()

    assert len(given) > 10
    assert (max(given) == 0) == cap


def test_the_smallest_client_has_at_least_min_samples() -> None:
    ids = domain_ids((400, 300, 200))

    parts = dirichlet_domain(ids, 10, rng=stream(0, "world"), alpha=0.5, cap=True, min_samples=31)

    assert min(map(len, parts)) >= 31


def test_a_small_alpha_concentrates_and_a_large_one_spreads() -> None:
    ids = domain_ids((2000,))

    def largest(alpha: float) -> float:
        draws = [dirichlet_domain(ids, 5, rng=stream(seed, "world"), alpha=alpha, cap=False) for seed in range(20)]
        return sum(max(map(len, parts)) for parts in draws) / (20 * 2000)

    assert largest(0.5) > 0.45  # the even share is .2; the mean of 10,000 such draws is .55, sd .15
    assert largest(1000.0) < 0.22


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda ids: dirichlet_domain(ids, 9, rng=stream(0, "world"), alpha=0.01, cap=False, min_samples=9),
            "the best",
        ),
        (
            lambda ids: dirichlet_domain(ids, 9, rng=stream(0, "world"), alpha=1.0, cap=False, min_samples=90),
            "need 810",
        ),
        (lambda ids: dirichlet_domain(ids, 9, rng=stream(0, "world"), alpha=0.0, cap=False), "alpha must be positive"),
        (lambda ids: lambda_split(ids, 4, lam=1.1, seed=0), "lambda must lie in"),
        (lambda ids: lambda_split(ids, 0, lam=0.1, seed=0), "at least 1 client; got 0"),
        (lambda ids: lambda_split(ids, 200, lam=1.0, seed=0), "client:60 would hold no image"),
        (lambda ids: single_domain(ids, 41, rng=stream(0, "world")), "client:41 would hold no image"),
    ],
)
def test_what_cannot_be_met_is_refused(call: Callable[[Tensor], list[Tensor]], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        call(domain_ids((60, 40)))

    assert "\n" not in str(caught.value)


def test_leaving_a_domain_out_keeps_it_from_training_and_validation() -> None:
    data = dataset()

    split = lodo(data, "domain 1")
    training, validation = split_validation(data.subset(split.train), rng=stream(0, "world"))

    assert data.domains[split.test].unique().tolist() == [1]
    assert sorted(torch.cat([split.train, split.test]).tolist()) == list(range(90))
    assert len(split.validation) == 0
    assert 1 not in training.domains.tolist() + validation.domains.tolist()


def test_leaving_two_domains_out_selects_on_one_and_tests_on_the_other() -> None:
    data = dataset()

    split = ltdo(data, validation="domain 2", test=0)

    assert data.domains[split.train].unique().tolist() == [1]
    assert data.domains[split.validation].unique().tolist() == [2]
    assert data.domains[split.test].unique().tolist() == [0]
    assert len(split.train) + len(split.validation) + len(split.test) == 90


def test_a_split_that_leaves_nothing_is_refused() -> None:
    data = dataset((40, 0))

    with pytest.raises(UsageError, match="no image for test"):
        lodo(data, "domain 1")
    with pytest.raises(UsageError, match="no image for train"):
        lodo(data, 0)
    with pytest.raises(UsageError, match="no image for validation"):
        ltdo(dataset((40, 30, 0)), validation=2, test=1)
    with pytest.raises(UsageError, match="no image for validation"):
        ltdo(dataset(), validation=1, test=1)
    with pytest.raises(DataError, match="no domain 'sea'"):
        lodo(data, "sea")


def test_validation_takes_its_fraction_of_every_class_and_domain() -> None:
    data = dataset((400, 200), classes=4)

    training, validation = split_validation(data, rng=stream(0, "world"), fraction=0.1)

    assert len(validation) == 60
    assert sorted([*training.ids, *validation.ids]) == sorted(data.ids)
    cells = (data.domains * 4 + data.labels).bincount()
    kept = (validation.domains * 4 + validation.labels).bincount()
    assert float((kept - 0.1 * cells).abs().max()) < 1.0


def test_validation_of_a_handful_may_be_empty_and_a_fraction_of_one_is_refused() -> None:
    training, validation = split_validation(dataset((4,)), rng=stream(0, "world"))

    assert (len(training), len(validation)) == (4, 0)
    with pytest.raises(UsageError, match="fraction must lie in"):
        split_validation(dataset(), rng=stream(0, "world"), fraction=1.0)


def test_every_scheme_by_name_gives_named_clients_that_share_the_pixels() -> None:
    data = dataset((90, 60, 0, 60))

    by_scheme = {
        "domain": partition(data, "domain", rng=stream(0, "world")),
        "single-domain": partition(data, "single-domain", rng=stream(0, "world"), clients=9),
        "dirichlet": partition(data, "dirichlet", rng=stream(0, "world")),
        "lambda": partition(data, "lambda", rng=stream(0, "world"), clients=4, lam=0.5),
    }

    assert {name: len(clients) for name, clients in by_scheme.items()} == {
        "domain": 3,
        "single-domain": 9,
        "dirichlet": 6,
        "lambda": 4,
    }
    for clients in by_scheme.values():
        assert [client.name for client in clients] == [f"client:{i}" for i in range(len(clients))]
        assert sorted(name for client in clients for name in client.data.ids) == sorted(data.ids)
        assert all(client.data.store is data.store for client in clients)


def test_a_scheme_refuses_a_number_of_clients_that_it_cannot_serve() -> None:
    data = dataset()

    with pytest.raises(UsageError, match="takes exactly 3 clients; got 4"):
        partition(data, "domain", rng=stream(0, "world"), clients=4)
    with pytest.raises(UsageError, match="takes a multiple of 3 clients; got 4"):
        partition(data, "single-domain", rng=stream(0, "world"), clients=4)
    with pytest.raises(UsageError, match="no image left"):
        partition(data.subset(torch.arange(0)), "domain", rng=stream(0, "world"))
    with pytest.raises(UsageError, match="unknown partition 'dirichelt'"):
        partition(data, "dirichelt", rng=stream(0, "world"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_the_minimum_of_stablefdg_shrinks_with_the_data() -> None:
    assert [stablefdg_minimum(images, 30) for images in (6062, 600, 10)] == [70, 7, 1]

"""Partitions: the six properties of every scheme, and the splits that come before them."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from scipy import stats
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
from fdgsec.runtime.errors import DataError, UsageError
from fdgsec.runtime.random_streams import child, integer_seed, stream
from tests.support.domain_sizes import domain_ids, table

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


@pytest.mark.parametrize("cap", [True, False])
def test_a_split_is_the_first_of_whole_tables_drawn_one_by_one_that_leaves_no_client_short(cap: bool) -> None:
    """Rejection sampling, which is the conditional law by definition: about one table in twenty is taken here."""
    sizes, clients, least = (60, 90, 30), 6, 12
    ids = domain_ids(sizes)

    for seed in range(40):
        found = table(
            ids, dirichlet_domain(ids, clients, rng=stream(seed, "world"), alpha=0.5, cap=cap, min_samples=least)
        )
        assert found.tolist() == drawn_one_by_one(sizes, clients, seed=seed, cap=cap, least=least)


def drawn_one_by_one(sizes: Sequence[int], clients: int, *, seed: int, cap: bool, least: int) -> list[list[int]]:
    draws = np.random.default_rng(integer_seed(child(stream(seed, "world"), "proportions")))
    while True:
        totals, columns = np.zeros(clients, dtype=int), []
        for size in sizes:
            proportions = draws.dirichlet([0.5] * clients)
            if cap:
                proportions[totals >= sum(sizes) / clients] = 0.0
            reached = np.cumsum(proportions)
            ends = np.floor(reached / reached[-1] * size).astype(int)
            columns.append([int(end) for end in np.diff(ends, prepend=0)])
            totals = totals + columns[-1]
        if totals.min() >= least:
            return [list(client) for client in zip(*columns, strict=True)]


def test_sizes_of_clients_follow_the_dirichlet_law_given_the_minimum() -> None:
    """Two clients of one domain at alpha = 1: the first has 0 to 9 of 10 images with equal probability, so that given 3
    images for each it has 3 to 7 with equal probability."""
    ids = domain_ids((10,))

    drawn = [
        len(dirichlet_domain(ids, 2, rng=stream(seed, "world"), alpha=1.0, cap=False, min_samples=3)[0])
        for seed in range(500)
    ]

    counts = [drawn.count(size) for size in range(3, 8)]
    assert sum(counts) == 500
    assert stats.chisquare(counts).pvalue > 0.001


@pytest.mark.parametrize("seed", [2, 6, 12, 29, 35, 36, 42, 45])
def test_stablefdgs_clients_of_pacs_without_sketch_are_found_for_every_seed(seed: int) -> None:
    """One table in 560 leaves each of 30 clients 70 images; the first 1,000 tables of these seeds do not."""
    ids = domain_ids((2048, 2344, 1670))

    parts = dirichlet_domain(ids, 30, rng=stream(seed, "world"), alpha=0.5, cap=True, min_samples=70)

    assert min(map(len, parts)) >= 70
    with pytest.raises(UsageError, match=r"in 1,000 draws"):
        dirichlet_domain(ids, 30, rng=stream(seed, "world"), alpha=0.5, cap=True, min_samples=70, attempts=1000)


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

"""Partitions: the seen and unseen domains, the spread of images over clients, and the validation split.

Each partition maps the domain of every image to one array of image indices per client:

- `one_domain_per_client`: CCST (Chen et al., WACV 2023) and FedDAG; every source domain is one client.
- `single_domain`: StableFDG's single-domain clients (Park et al., NeurIPS 2023) and FedAlign's uniform split.
- `dirichlet_domain`: StableFDG's multi-domain clients, `cap=True`; FedAlign with alpha > 0, `cap=False`.
- `lambda_split`: Bai et al., ICLR 2024, https://openreview.net/forum?id=wprSv7ichW, as their code; used by FISC.

Deviations: every function refuses to leave a client empty, and redrawing (Dirichlet) ends after 100,000 tables."""

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.data.sampling import apportion
from fdgsec.runtime.errors import UsageError, unknown_name
from fdgsec.runtime.random_streams import child, integer_seed

Scheme = Literal["domain", "single-domain", "dirichlet", "lambda"]
Division = Literal["stratified", "names", "independent"]
"""How images are divided into training and validation: `split_validation`."""
_Counts = npt.NDArray[np.int64]

TABLES_AT_ONCE = 512
"""Dirichlet tables that are drawn together."""


@dataclass(frozen=True, kw_only=True)
class ClientData:
    """One client's images; `name` is its party name in messages (`client:0`)."""

    name: str
    data: DomainDataset


@dataclass(frozen=True, kw_only=True)
class DomainSplit:
    """Positions of the images of the seen domains, of the domains for model selection, and of the unseen domain."""

    train: Tensor
    validation: Tensor
    test: Tensor


def lodo(dataset: DomainDataset, target: int | str) -> DomainSplit:
    """Leave one domain out: `target` is the test set, all others are seen, and no domain is kept for model selection.

    Raises UsageError where no image is left for training or testing, DataError for an unknown domain."""
    return _split(dataset, validation=None, test=dataset.domain_index(target))


def ltdo(dataset: DomainDataset, *, validation: int | str, test: int | str) -> DomainSplit:
    """Leave two domains out: models are selected on `validation` and tested on `test`; neither is used for training.

    Raises UsageError where the two are the same or no image is left, DataError for an unknown domain."""
    return _split(dataset, validation=dataset.domain_index(validation), test=dataset.domain_index(test))


def _split(dataset: DomainDataset, *, validation: int | None, test: int) -> DomainSplit:
    is_test = dataset.domains == test
    is_validation = torch.zeros_like(is_test) if validation is None else dataset.domains == validation
    split = DomainSplit(
        train=(~is_test & ~is_validation).nonzero().flatten(),
        validation=(is_validation & ~is_test).nonzero().flatten(),
        test=is_test.nonzero().flatten(),
    )
    parts = {"train": split.train, "test": split.test} if validation is None else vars(split)
    if empty := [part for part, positions in parts.items() if not len(positions)]:
        raise UsageError(f"{dataset.name} has no image for {' and '.join(empty)} when it is tested on domain {test}.")
    return split


def split_validation(
    dataset: DomainDataset, *, rng: torch.Generator, fraction: float = 0.1, division: Division = "stratified"
) -> tuple[DomainDataset, DomainDataset]:
    """Split images of one client, or of all clients, into (training, validation), before any augmentation.

    "stratified": each (domain, class) cell gives its share, rounded so that the total stays at `fraction`. One image's
    class then decides where others go, which no guarantee for single images allows: by "names" the split follows from
    the images' names alone, and "independent" decides for each image by its own name, so that the number held back
    varies. Validation may be empty for a handful of images. Raises UsageError where `fraction` is not in [0, 1)."""
    if not 0 <= fraction < 1:
        raise UsageError(f"the validation fraction must lie in [0, 1); got {fraction}.")
    chosen = torch.zeros(len(dataset), dtype=torch.bool)
    if division == "stratified":
        cells = dataset.domains * len(dataset.class_names) + dataset.labels
        found, counts = np.unique(cells.numpy(), return_counts=True)
        quotas = apportion(counts.tolist(), _share(fraction, len(dataset)))
        for cell, quota in zip(found.tolist(), quotas, strict=True):
            members = (cells == cell).nonzero().flatten()
            order = torch.randperm(len(members), generator=child(rng, "validation", int(cell)))
            chosen[members[order[:quota]]] = True
    else:
        alone = division == "independent"  # an image that leaves may not change another's name
        ranks = _ranks(dataset.ids if alone else record_names(dataset.ids), child(rng, "names"))
        held = ranks < fraction if alone else ranks.argsort()[: _share(fraction, len(dataset))]
        chosen[held] = True
    return dataset.subset(~chosen), dataset.subset(chosen)


def in_order_of_names(dataset: DomainDataset) -> DomainDataset:
    """The same images, ordered by their names: a folder's order tells their classes."""
    names = record_names(dataset.ids)
    return dataset.subset(torch.tensor(sorted(range(len(names)), key=names.__getitem__), dtype=torch.int64))


def record_names(ids: Sequence[str]) -> list[str]:
    """Name each image by its file alone, and by its folders as well where several files have one name."""
    files = [name.rpartition("/")[2] for name in ids]
    counts = Counter(files)
    return [file if counts[file] == 1 else name for file, name in zip(files, ids, strict=True)]


def _share(fraction: float, count: int) -> int:
    return math.floor(fraction * count + 0.5)


def _ranks(names: Sequence[str], rng: torch.Generator) -> Tensor:
    """A number in [0, 1) for each image, from its name and the stream alone, (N,) float64."""
    number = integer_seed(rng)
    hashes = [hashlib.sha256(f"{number} {name}".encode()).digest() for name in names]
    return torch.tensor([int.from_bytes(each[:6], "big") / 2**48 for each in hashes], dtype=torch.float64)


def one_domain_per_client(domain_ids: Tensor) -> list[Tensor]:
    """Give each domain that has images to its own client, in the order of the domains."""
    return [(domain_ids == domain).nonzero().flatten() for domain in _present(domain_ids)]


def single_domain(domain_ids: Tensor, clients_per_domain: int, *, rng: torch.Generator) -> list[Tensor]:
    """Shuffle each domain and cut it into `clients_per_domain` equal chunks; the last takes the remainder.

    Raises UsageError where a domain has fewer images than clients."""
    _require_clients(clients_per_domain)
    parts: list[Tensor] = []
    for shuffled in _shuffled(domain_ids, rng):
        size = len(shuffled) // clients_per_domain
        parts += shuffled.tensor_split([size * client for client in range(1, clients_per_domain)])
    return _occupied(parts)


def dirichlet_domain(
    domain_ids: Tensor,
    clients: int,
    *,
    rng: torch.Generator,
    alpha: float,
    cap: bool,
    min_samples: int = 1,
    attempts: int = 100_000,
) -> list[Tensor]:
    """Spread every domain over all clients in proportions drawn from Dir(alpha, ..., alpha), given that the smallest
    client has `min_samples`.

    With `cap` a client that already holds its even share of all images gets nothing of the next domain. The condition
    is met by drawing the whole table again: its exact conditional law. Repeating one domain, or raising small clients,
    would give another. Tables are drawn many at a time from one stream, as if one after the other, so that a condition
    that one in 560 meets (30 clients of 70 images of PACS without sketch) takes milliseconds. Raises UsageError after
    `attempts` draws."""
    _require_clients(clients)
    if not (alpha > 0 and math.isfinite(alpha)):
        raise UsageError(f"alpha must be positive and finite; got {alpha}.")
    if min_samples * clients > len(domain_ids):
        need = f"{clients} clients with at least {min_samples} images each need {clients * min_samples}"
        raise UsageError(f"{need}; there are {len(domain_ids)}: use fewer clients or a smaller min_samples.")
    draws = np.random.default_rng(integer_seed(child(rng, "proportions")))
    shuffled = _shuffled(domain_ids, rng)
    sizes = [len(part) for part in shuffled]
    best, drawn, several = 0, 0, 1
    while drawn < attempts:
        several = min(2 * several, TABLES_AT_ONCE, attempts - drawn)
        tables = _dirichlet_counts(draws.dirichlet(np.full(clients, alpha), size=(several, len(sizes))), sizes, cap=cap)
        smallest = tables.sum(axis=2).min(axis=1)
        if (smallest >= min_samples).any():
            return _occupied(_cut(shuffled, tables[np.argmax(smallest >= min_samples)]))
        best, drawn = max(best, int(smallest.max())), drawn + several
    raise UsageError(
        f"no Dirichlet split (alpha={alpha}) of {len(domain_ids)} images over {clients} clients left every client "
        f"{min_samples} images in {attempts:,} draws (the best left {best}); raise alpha or use fewer clients."
    )


def _dirichlet_counts(proportions: npt.NDArray[np.float64], sizes: Sequence[int], *, cap: bool) -> _Counts:
    """Turn proportions (tables, domains, clients) into image counts (tables, clients, domains)."""
    tables, _, clients = proportions.shape
    counts = np.zeros((tables, clients, len(sizes)), dtype=np.int64)
    impossible = np.zeros(tables, dtype=bool)
    for domain, size in enumerate(sizes):
        own = proportions[:, domain]
        if cap:
            own = np.where(counts.sum(axis=2) >= sum(sizes) / clients, 0.0, own)
        reached = np.cumsum(own, axis=1)
        whole = reached[:, -1:]
        impossible |= whole[:, 0] == 0.0  # every client that has room drew a proportion below the smallest float
        ends = (reached / np.where(whole == 0.0, 1.0, whole) * size).astype(np.int64)
        counts[:, :, domain] = np.diff(ends, prepend=0, axis=1)
    counts[impossible] = 0
    return counts


def lambda_split(domain_ids: Tensor, clients: int, *, lam: float, seed: int, strict: bool = False) -> list[Tensor]:
    """Mix domains over clients by `lam`: 0 keeps them apart, 1 gives every client the same mixture.

    Equals the authors' splitter index by index for the same `seed`. Theirs gives the images left over by rounding to
    clients 0, 1, ..., so that even at 0 a client may hold a few images of other domains; `strict` gives them to the
    domain's own clients first. Raises UsageError for `lam` outside [0, 1]."""
    _require_clients(clients)
    if not 0 <= lam <= 1:
        raise UsageError(f"lambda must lie in [0, 1]; got {lam}.")
    draws = np.random.default_rng(seed)
    sizes = np.bincount(domain_ids.numpy()).astype(np.int64)
    # an empty domain draws nothing: leaving out the unseen domain does not change the others
    shuffled = [torch.from_numpy(draws.permutation(np.flatnonzero(domain_ids.numpy() == d))) for d in range(len(sizes))]
    return _occupied(_cut(shuffled, _lambda_counts(sizes, clients, lam, strict)))


def _lambda_counts(sizes: _Counts, clients: int, lam: float, strict: bool) -> _Counts:
    """Tabulate how many images of each domain each client gets: (clients, domains)."""
    domains = len(sizes)
    if np.count_nonzero(sizes) <= clients:
        shards = _shards(sizes, clients)
        own = np.repeat(np.arange(domains), shards)[:, None] == np.arange(domains)
        inverse = np.divide(1.0, shards, out=np.zeros(domains), where=shards > 0)
        quotas = sizes * (inverse * own * (1 - lam) + 1 / clients * lam)  # this order: another rounds differently
    else:
        whole = _whole_domains(sizes, clients)
        own = whole > 0
        quotas = sizes / clients * lam + whole * (1 - lam)
    counts: _Counts = np.floor(quotas).astype(np.int64)
    for domain, leftover in enumerate(sizes - counts.sum(axis=0)):
        order = np.argsort(~own[:, domain], kind="stable") if strict else np.arange(clients)
        counts[order[:leftover], domain] += 1
    return counts


def _shards(sizes: _Counts, clients: int) -> _Counts:
    """Count the clients whose main domain each domain is: repeatedly one more for the one with most images a client."""
    shards: _Counts = (sizes > 0).astype(np.int64)
    while shards.sum() < clients:
        shards[np.argmax(sizes / np.maximum(shards, 1))] += 1
    return shards


def _whole_domains(sizes: _Counts, clients: int) -> npt.NDArray[np.float64]:
    """Assign whole domains, the largest first, each to the client with the fewest images so far."""
    whole = np.zeros((clients, len(sizes)))
    for domain in np.argsort(sizes)[::-1]:
        whole[np.argmin(whole.sum(axis=1)), domain] = sizes[domain]
    return whole


def partition(
    dataset: DomainDataset,
    scheme: Scheme,
    *,
    rng: torch.Generator,
    clients: int | None = None,
    alpha: float = 0.5,
    cap: bool = True,
    min_samples: int | None = None,
    lam: float = 0.0,
    strict: bool = False,
) -> list[ClientData]:
    """Spread the images of the seen domains over `client:0`, `client:1`, ... by the named scheme.

    The default of `clients` is one per domain for `domain`, else two (FedAlign's number). `alpha`, `cap` and
    `min_samples` belong to `dirichlet`; the default of `min_samples` is StableFDG's 70, less for small data. `lam` and
    `strict` belong to `lambda`. Raises UsageError for an unknown scheme, or a number of clients that it does not
    support."""
    ids = dataset.domains
    domains = len(_present(ids))
    if scheme not in get_args(Scheme):
        raise unknown_name("partition", scheme, get_args(Scheme))
    if not domains:
        raise UsageError(f"{dataset.name} has no image left to spread over clients.")
    number = _client_count(scheme, domains, clients)
    if scheme == "domain":
        parts = one_domain_per_client(ids)
    elif scheme == "single-domain":
        parts = single_domain(ids, number // domains, rng=rng)
    elif scheme == "dirichlet":
        least = stablefdg_minimum(len(ids), number) if min_samples is None else min_samples
        parts = dirichlet_domain(ids, number, rng=rng, alpha=alpha, cap=cap, min_samples=least)
    else:
        parts = lambda_split(ids, number, lam=lam, seed=integer_seed(child(rng, "lambda")), strict=strict)
    return [ClientData(name=f"client:{i}", data=dataset.subset(part)) for i, part in enumerate(parts)]


def _client_count(scheme: Scheme, domains: int, clients: int | None) -> int:
    """Give the number of clients of a scheme. Raises UsageError where it does not support `clients`."""
    if clients is None:
        return domains if scheme == "domain" else 2 * domains
    rule = {"domain": f"exactly {domains} clients", "single-domain": f"a multiple of {domains} clients"}
    if (scheme == "domain" and clients != domains) or (scheme == "single-domain" and clients % domains):
        raise UsageError(f"partition {scheme!r} of {domains} domains takes {rule[scheme]}; got {clients}.")
    return clients


def stablefdg_minimum(images: int, clients: int) -> int:
    """Give StableFDG's minimum of 70 images for the smallest client, or 35% of an even share if that is fewer."""
    return max(1, min(70, int(0.35 * images / clients)))


def _require_clients(clients: int) -> None:
    if clients < 1:
        raise UsageError(f"a partition needs at least 1 client; got {clients}.")


def _present(domain_ids: Tensor) -> list[int]:
    """List the domains that have images, in order."""
    return domain_ids.bincount().nonzero().flatten().tolist()


def _shuffled(domain_ids: Tensor, rng: torch.Generator) -> list[Tensor]:
    """Shuffle the positions of each domain's images, each domain by its own stream."""
    found = zip(_present(domain_ids), one_domain_per_client(domain_ids), strict=True)
    return [part[torch.randperm(len(part), generator=child(rng, "shuffle", domain))] for domain, part in found]


def _cut(shuffled: Sequence[Tensor], counts: _Counts) -> list[Tensor]:
    """Cut each domain's images in sequence, client after client, by a (clients, domains) table of counts."""
    ends = counts.cumsum(axis=0)
    return [
        torch.cat([images[stop - count : stop] for images, count, stop in zip(shuffled, row, last, strict=True)])
        for row, last in zip(counts.tolist(), ends.tolist(), strict=True)
    ]


def _occupied(parts: list[Tensor]) -> list[Tensor]:
    """Raise UsageError where a client would have no image."""
    for client, part in enumerate(parts):
        if not len(part):
            total = sum(map(len, parts))
            raise UsageError(
                f"client:{client} would hold no image: {total} images do not reach {len(parts)} clients this way; "
                "use fewer clients, or another partition."
            )
    return parts

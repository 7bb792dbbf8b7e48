"""Reference federations: further runs of the target's public method on random shares of images that the adversary
holds.

The behavior of a model that was, or was not, trained on a record is learned from models whose training images are known
(Shokri et al., S&P 2017, arXiv:1610.05820). A reference federation has one client for every victim. It draws from that
client's pool: half of the auxiliary images of its domain, and the candidates, which the adversary holds. The other half
of the auxiliary images is set aside: no reference model trains on it, nor did the target."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset, join
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.wire import SERVER
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import tracked
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import Knowledge, View
from fdgsec.threats.attack import Case

FEWEST = 4
"""Minimum number of reference federations for an estimate of the spread with and without a record."""


def check_sizes(*, references: int | None, candidates: int | None, largest: int | None) -> None:
    """Raise UsageError for numbers that are too small for a membership test; None is the attack's default."""
    for name, value, least in (
        ("references", references, FEWEST), ("candidates", candidates, 2), ("largest", largest, 2)
    ):  # fmt: skip
        if value is not None and value < least:
            raise UsageError(f"{name} must be {least} or more; got {value}.")


@dataclass(frozen=True, kw_only=True, eq=False)
class Pool:
    """The training pool of one kind of reference client: `images` (N), first `public` auxiliary ones, then candidates.

    `places` maps the number of each case to the positions of its candidates; `aside` is not used for training."""

    images: DomainDataset
    public: int
    places: Mapping[int, Tensor]
    aside: DomainDataset


@dataclass(frozen=True, kw_only=True, eq=False)
class Reference:
    """One simulated federation: its server's view, and by case the client's name and its training set, (N,)."""

    view: View
    clients: Mapping[int, str]
    members: Mapping[int, Tensor]

    def trained_on(self, pool: Pool) -> Tensor:
        """Which images of `pool` some client of the federation trained on, (N,) bool."""
        return torch.stack([self.members[number] for number in pool.places]).any(0)


def pools_of(
    numbers: Sequence[int], cases: Sequence[Case] | Mapping[int, Case], knowledge: Knowledge, rng: torch.Generator
) -> list[Pool]:
    """Make one pool per domain of the cases, as far as the adversary knows the domains (else one for all).

    Raises UsageError where a case has no candidates, or a domain fewer than 2 auxiliary images."""
    found: dict[str | None, list[int]] = {}
    for number in numbers:
        found.setdefault(cases[number].domain, []).append(number)
    return [_pool(domain, mine, cases, knowledge, child(rng, str(domain))) for domain, mine in found.items()]


def _pool(
    domain: str | None,
    numbers: Sequence[int],
    cases: Sequence[Case] | Mapping[int, Case],
    knowledge: Knowledge,
    rng: torch.Generator,
) -> Pool:
    images = knowledge.public_images()
    if domain in images.domain_names:
        images = images.of_domain(str(domain))
    if len(images) < 2:
        raise UsageError(f"reference models need 2 public images of {domain or 'any domain'}; there are {len(images)}.")
    order = torch.randperm(len(images), generator=rng)
    kept = (len(images) + 1) // 2
    rows: dict[str, int] = {}
    shown, places = list[DomainDataset](), dict[int, Tensor]()
    for number in numbers:
        candidates = cases[number].candidates
        if candidates is None:
            raise UsageError("membership in a model is asked of candidates; a case came without any.")
        new = torch.tensor([name not in rows for name in candidates.ids], dtype=torch.bool)
        shown.append(_without_attributes(candidates.subset(new)))
        for name in shown[-1].ids:
            rows[name] = kept + len(rows)
        places[number] = torch.tensor([rows[name] for name in candidates.ids], dtype=torch.int64)
    public = _without_attributes(images.subset(order[:kept]))
    return Pool(
        images=join([public, *shown]),
        public=kept,
        places=places,
        aside=_without_attributes(images.subset(order[kept:])),
    )


def _without_attributes(images: DomainDataset) -> DomainDataset:
    """Drop domains and attributes, because candidates have none and are joined with these."""
    return replace(images, domains=torch.zeros_like(images.domains), attributes={})


def assign_images(models: int, images: int, *, clients: int, share: float, rng: torch.Generator) -> Tensor:
    """Assign `images` to the `clients` of each of `models` federations, (clients, models, images) bool.

    Each image is in the same number of federations, the nearest to `share` (one at least, and one without it), with one
    client in each of them. Clients alternate."""
    count = max(1, min(models - 1, round(share * models)))
    rank = torch.rand(models, images, generator=rng).argsort(0)
    turn = (rank + torch.randint(clients, (images,), generator=rng)) % clients
    return torch.stack([(rank < count) & (turn == client) for client in range(clients)])


def reference_runs(
    pools: Sequence[Pool], knowledge: Knowledge, *, models: int, most: int | None, rounds: int, rng: torch.Generator
) -> Iterator[Reference]:
    """Train `models` reference federations for `rounds`; a pool's clients share half of it, about `most` images each.

    Federations are yielded one at a time, because their models are large and only their outputs are needed. Raises
    UsageError for fewer than FEWEST, and where the adversary cannot run the target."""
    if models < FEWEST:
        raise UsageError(f"reference models must be {FEWEST} or more to have a spread; got {models}.")
    dealt: dict[int, Tensor] = {}
    for place, pool in enumerate(pools):
        rows = assign_images(
            models,
            len(pool.images),
            clients=len(pool.places),
            share=_share(pool, most),
            rng=child(rng, "shares", place),
        )
        dealt |= dict(zip(pool.places, rows, strict=True))
    for model in tracked(range(models), "training reference federations"):
        members = {number: rows[model] for number, rows in dealt.items()}
        yield _train_federation(pools, members, knowledge, rounds, child(rng, model))


def auxiliary_run(
    pools: Sequence[Pool], knowledge: Knowledge, *, most: int | None, rounds: int, rng: torch.Generator
) -> Reference:
    """Train one federation on auxiliary images alone, for a control in the target's place."""
    members = {}
    for pool in pools:
        count = max(2, min(pool.public, round(_share(pool, most) * len(pool.images) / len(pool.places))))
        for number in pool.places:
            chosen = torch.zeros(len(pool.images), dtype=torch.bool)
            chosen[torch.randperm(pool.public, generator=child(rng, "disjoint", number))[:count]] = True
            members[number] = chosen
    return _train_federation(pools, members, knowledge, rounds, child(rng, "disjoint run"))


def _share(pool: Pool, most: int | None) -> float:
    return 0.5 if most is None else min(0.5, most * len(pool.places) / len(pool.images))


def _train_federation(
    pools: Sequence[Pool], members: Mapping[int, Tensor], knowledge: Knowledge, rounds: int, rng: torch.Generator
) -> Reference:
    if knowledge.simulate is None:
        raise UsageError("reference models need the target's public method; the adversary cannot run it.")
    numbered = {number: pool for pool in pools for number in pool.places}
    data = [pool.images.subset(members[number]) for number, pool in numbered.items()]
    view = knowledge.simulate(data, rng, rounds=rounds)
    clients = {number: f"client:{place}" for place, number in enumerate(numbered, 1)}
    return Reference(view=view, clients=clients, members=members)


def rounds_of(view: View) -> int:
    """The number of rounds in a view, by its last message."""
    return 1 + max((message.round for message in view.messages), default=-1)


def global_model(view: View) -> ModelState | None:
    """The global model that was sent at the start of the last round; None before it has been trained."""
    found = [m for m in view.messages if m.stage == "model" and m.sender == SERVER and m.round == rounds_of(view) - 1]
    state = next((m.artifact for m in found if isinstance(m.artifact, ModelState)), None)
    return state if rounds_of(view) > 1 else None


def peer_models(view: View) -> list[ModelState]:
    """The other clients' models that the server sent to one client for evaluation in the last round, without their
    owners.

    Empty for fewer than two, because a single one may be the new global model."""
    last = rounds_of(view) - 1
    shown = [m for m in view.messages if m.stage == "exhibit" and m.sender == SERVER and m.round == last]
    if len({m.receiver for m in shown}) != 1:
        return []
    states = [m.artifact for m in shown if isinstance(m.artifact, ModelState)]
    return states if len(states) > 1 else []

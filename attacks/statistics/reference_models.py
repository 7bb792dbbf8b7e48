"""Reference federations: the target's public method trained again, on random shares of images that the adversary holds.

What is normal for a model that did, or did not, train on a record is learned from models whose training images are known
(Shokri et al., S&P 2017, arXiv:1610.05820). A reference federation has a client for every client that is asked about. It
draws from that client's pool: half of the auxiliary images of its domain, and the candidates themselves, which the
adversary was shown. The other half of the auxiliary images is set aside: no reference model trains on it, nor did the target."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset, join
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.wire import SERVER
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import Knowledge, View
from fdgsec.threats.attack import Case

FEWEST = 4
"""Fewer reference federations than this leave no spread to speak of on either side."""


def check_sizes(*, references: int | None, candidates: int | None, largest: int | None) -> None:
    """Raise UsageError for numbers that no membership test can be made with; None is the attack's own choice."""
    for name, value, least in (
        ("references", references, FEWEST), ("candidates", candidates, 2), ("largest", largest, 2)
    ):  # fmt: skip
        if value is not None and value < least:
            raise UsageError(f"{name} must be {least} or more; got {value}.")


@dataclass(frozen=True, kw_only=True, eq=False)
class Pool:
    """What references of one kind of client may train on, `images` (N): `public` auxiliary ones, then candidates, once each.

    `places` maps the number of each case to where its candidates stand among them; `aside` is what nobody trains on."""

    images: DomainDataset
    public: int
    places: Mapping[int, Tensor]
    aside: DomainDataset


@dataclass(frozen=True, kw_only=True, eq=False)
class Reference:
    """One simulated federation: what its server saw, and by case the client in its place and what that trained on, (N,)."""

    view: View
    clients: Mapping[int, str]
    members: Mapping[int, Tensor]

    def trained_on(self, pool: Pool) -> Tensor:
        """Which images of `pool` some client of the federation trained on, (N,) bool."""
        return torch.stack([self.members[number] for number in pool.places]).any(0)


def pools_of(
    numbers: Sequence[int], cases: Sequence[Case] | Mapping[int, Case], knowledge: Knowledge, rng: torch.Generator
) -> list[Pool]:
    """Make one pool per domain that cases are of, as far as the adversary is told (else one for all).

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
        shown.append(_bare(candidates.subset(new)))
        for name in shown[-1].ids:
            rows[name] = kept + len(rows)
        places[number] = torch.tensor([rows[name] for name in candidates.ids], dtype=torch.int64)
    public = _bare(images.subset(order[:kept]))
    return Pool(images=join([public, *shown]), public=kept, places=places, aside=_bare(images.subset(order[kept:])))


def _bare(images: DomainDataset) -> DomainDataset:
    """Candidates come without domains and attributes; what joins them must, too."""
    return replace(images, domains=torch.zeros_like(images.domains), attributes={})


def shares(models: int, images: int, *, clients: int, share: float, rng: torch.Generator) -> Tensor:
    """Deal `images` to the `clients` of each of `models` federations, (clients, models, images) bool.

    Each image is in the same number of federations, the nearest to `share` (one at least, and one without it), with one
    client in each of them; the clients take turns."""
    count = max(1, min(models - 1, round(share * models)))
    rank = torch.rand(models, images, generator=rng).argsort(0)
    turn = (rank + torch.randint(clients, (images,), generator=rng)) % clients
    return torch.stack([(rank < count) & (turn == client) for client in range(clients)])


def reference_runs(
    pools: Sequence[Pool], knowledge: Knowledge, *, models: int, most: int | None, rounds: int, rng: torch.Generator
) -> Iterator[Reference]:
    """Train `models` reference federations for `rounds`; a pool's clients share half of it, about `most` images each.

    One after the other: a federation's models are large, and what they say of the images is all that is wanted.

    Raises UsageError for fewer than FEWEST, and where the adversary cannot run the target."""
    if models < FEWEST:
        raise UsageError(f"reference models must be {FEWEST} or more to have a spread; got {models}.")
    dealt: dict[int, Tensor] = {}
    for place, pool in enumerate(pools):
        rows = shares(
            models,
            len(pool.images),
            clients=len(pool.places),
            share=_share(pool, most),
            rng=child(rng, "shares", place),
        )
        dealt |= dict(zip(pool.places, rows, strict=True))
    for model in range(models):
        members = {number: rows[model] for number, rows in dealt.items()}
        yield _trained(pools, members, knowledge, rounds, child(rng, model))


def disjoint_run(
    pools: Sequence[Pool], knowledge: Knowledge, *, most: int | None, rounds: int, rng: torch.Generator
) -> Reference:
    """Train one federation on auxiliary images alone, which is what a control puts in the target's place."""
    members = {}
    for pool in pools:
        count = max(2, min(pool.public, round(_share(pool, most) * len(pool.images) / len(pool.places))))
        for number in pool.places:
            chosen = torch.zeros(len(pool.images), dtype=torch.bool)
            chosen[torch.randperm(pool.public, generator=child(rng, "disjoint", number))[:count]] = True
            members[number] = chosen
    return _trained(pools, members, knowledge, rounds, child(rng, "disjoint run"))


def _share(pool: Pool, most: int | None) -> float:
    return 0.5 if most is None else min(0.5, most * len(pool.places) / len(pool.images))


def _trained(
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
    """How many rounds a view is of, by the last message in it."""
    return 1 + max((message.round for message in view.messages), default=-1)


def global_model(view: View) -> ModelState | None:
    """The global model that was sent at the start of the last round; None before anybody has trained it."""
    found = [m for m in view.messages if m.stage == "model" and m.sender == SERVER and m.round == rounds_of(view) - 1]
    state = next((m.artifact for m in found if isinstance(m.artifact, ModelState)), None)
    return state if rounds_of(view) > 1 else None


def peer_models(view: View) -> list[ModelState]:
    """The other clients' models that the server passed on to one client for judging in the last round; nobody says whose.

    Fewer than two are none: a single exhibit may as well be the new global model."""
    last = rounds_of(view) - 1
    shown = [m for m in view.messages if m.stage == "exhibit" and m.sender == SERVER and m.round == last]
    if len({m.receiver for m in shown}) != 1:
        return []
    states = [m.artifact for m in shown if isinstance(m.artifact, ModelState)]
    return states if len(states) > 1 else []

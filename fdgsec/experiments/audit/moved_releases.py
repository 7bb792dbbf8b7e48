"""Whether what a mechanism sends moves further with one image than its cost says, where that image decides.

A canary among real images moves no median, no majority and no extreme. A clip about the client's own median, with noise
for a clip about a public center, is bounded along no canary's direction; between clients of which one has a black image
more than half, and one has not, its mean jumps. So what is sent of neighbors along chains of clients
(fdgsec.experiments.audit.chains_of_clients), and of statistics at the edge of what is clipped
(fdgsec.experiments.audit.planted_statistics), is compared, and so are planted updates and scores
(fdgsec.experiments.audit.planted_updates): a few draws show which neighbors lie furthest apart, by each
of several tests (fdgsec.experiments.audit.neighbor_tests), more draws of these whether any lie further than the cost
allows, and many whether they lie too far. Where clients are protected and not images, any two clients are neighbors."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

import torch

from fdgsec.data.domains import DomainDataset
from fdgsec.experiments.audit.chains_of_clients import chains_of, strangers
from fdgsec.experiments.audit.message_canaries import reference_of
from fdgsec.experiments.audit.neighbor_tests import FACTOR, SCREENED_BY, TESTS, Apart, Drawn, Test, drawn
from fdgsec.experiments.audit.neighboring_clients import Release, Site, late, shared_releases
from fdgsec.experiments.audit.planted_statistics import chains_of_statistics, is_pooled
from fdgsec.experiments.audit.planted_updates import buffers_of_updates, chain_of_updates, chains_of_scores
from fdgsec.experiments.audit.tensors_without_noise import sent_without_noise
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.runtime.errors import UsageError

SCREENED = 8
"""Draws of every client, which show the neighbors that lie furthest apart."""
CONFIRMED = 2
"""Pairs of neighbors of each release and test, of which fresh draws tell how far they are apart."""
DRAWS = 64
SURE = 1024
"""Draws of the pair that DRAWS put furthest beyond what its cost allows, by each test."""
FEW = 4
"""Images of a client of whom one less makes a difference."""
ROUNDS = 2
"""Rounds of which what is shared is compared: what is clipped otherwise from the second on is seen."""

Pair = tuple[Release, Release]


@dataclass(frozen=True, kw_only=True, eq=False)
class Moved:
    """A release that one image or client moves further than its cost allows; how far, in words.

    `by` is "one image", or "one client" where that is what all of its cost protects."""

    release: Release
    words: str
    by: str


def moved_too_far(site: Site, defense_stack: DefenseStack) -> list[Moved]:
    """The releases with a cost, of each slot in the first rounds, that one image or client moves further than it
    allows; where there are none, the update of a late round, or of the run's own network.

    Where what a client shares has no cost, it has none with other images: costs that depend on these are a fault of
    their own (fdgsec.experiments.audit.noise_of_records)."""
    site = replace(site, clocks=site.clocks[:ROUNDS])
    fresh = replace(defense_stack, name=f"{defense_stack.name}/confirmed")
    found = []
    paid = any(one.sent(defense_stack)[1] for one in _shared(site, site.client.data))
    less = _one_image_less(site, defense_stack) if paid else {}
    chains = chain(_chains(site, defense_stack), _planted(site, defense_stack))
    for key, pairs in _furthest_pairs(chains, defense_stack).items():
        moved = chain(_beyond(pairs, fresh), _beyond(less.get(key, ()), fresh))
        found += list(islice(moved, 1))
    return found or _moved_late(site, defense_stack) or tensors_moved(site, defense_stack)


def _moved_late(site: Site, defense_stack: DefenseStack) -> list[Moved]:
    """The update of a late round that moves further than its cost allows."""
    updates = chain_of_updates(site, late(site.clocks[0]), defense_stack, alone=False)
    pairs = _furthest_pairs([[[one] for one in updates]], defense_stack)
    fresh = replace(defense_stack, name=f"{defense_stack.name}/confirmed")
    return [moved for each in pairs.values() for moved in islice(_beyond(each, fresh), 1)]


def tensors_moved(site: Site, defense_stack: DefenseStack) -> list[Moved]:
    """The update of the first round in which a tensor of the run's own network has no noise."""
    return [
        _moved(release, f"in {tensor!r}, which has no noise", defense_stack)
        for release, tensor in sent_without_noise(site, site.clocks[0], defense_stack)
    ]


def _beyond(pairs: Sequence[Pair], defense_stack: DefenseStack) -> Iterator[Moved]:
    """What pairs, drawn anew, exceed: first what DRAWS are enough for, and then, of each test, the pair that is most
    suspicious."""
    suspected = dict[Test, tuple[float, Pair]]()
    for pair in pairs:
        for test, apart in _tested(pair, TESTS, defense_stack, DRAWS):
            if apart.too_far:
                yield _moved(pair[0], apart.words, defense_stack)
            if apart.times > max(FACTOR, suspected[test][0] if test in suspected else 0.0):
                suspected[test] = apart.times, pair
    sure = replace(defense_stack, name=f"{defense_stack.name}/sure")
    for pair in dict.fromkeys(pair for _, pair in suspected.values()):
        for _, apart in _tested(pair, [test for test in suspected if suspected[test][1] is pair], sure, SURE):
            if apart.too_far:
                yield _moved(pair[0], apart.words, defense_stack)


def _moved(release: Release, words: str, defense_stack: DefenseStack) -> Moved:
    units = {use.unit for use in release.sent(defense_stack)[1] or ()}
    return Moved(release=release, words=words, by="one client" if units == {"client"} else "one image")


def _tested(pair: Pair, tests: Sequence[Test], defense_stack: DefenseStack, draws: int) -> Iterator[tuple[Test, Apart]]:
    """What each test finds in so many draws of a pair."""
    one, other = (drawn(each, defense_stack, draws) for each in pair)
    if one is not None and other is not None:
        yield from ((test, test(one, other)) for test in tests)


def _furthest_pairs(
    chains: Iterable[Iterable[Sequence[Release]]], defense_stack: DefenseStack
) -> Mapping[tuple[str, int], Sequence[Pair]]:
    """Of each slot and round the neighbors that a few draws put furthest apart, CONFIRMED of them by each test."""
    found: dict[tuple[str, int], list[list[tuple[float, Pair]]]] = {}
    for clients in chains:
        before: Mapping[tuple[str, int], Drawn] = {}
        for releases in clients:
            now = _screened(releases, defense_stack)
            for key in now.keys() & before.keys():
                one, other = before[key], now[key]
                ranked = found.setdefault(key, [[] for _ in SCREENED_BY])
                for mine, test in zip(ranked, SCREENED_BY, strict=True):
                    mine.append((test(one, other).times, (one.release, other.release)))
                    mine.sort(key=lambda each: -each[0])
                    del mine[CONFIRMED:]
            before = now
    return {
        key: list(dict.fromkeys(pair for mine in ranked for times, pair in mine if times))
        for key, ranked in found.items()
    }


def _chains(site: Site, defense_stack: DefenseStack) -> Iterator[Iterable[Sequence[Release]]]:
    """Chains of what clients share, each of which is a neighbor of the one before."""
    data, own = site.client.data, _shared(site, site.client.data)
    units = {release: {use.unit for use in release.sent(defense_stack)[1] or ()} for release in own}
    if not any(units.values()):
        return
    for clients in chains_of(data):
        yield (_shared(site, images) for images in clients)
    if any("client" in unit for unit in units.values()):
        whole = {release.slot for release, unit in units.items() if unit == {"client"}}
        yield ([one for one in _shared(site, images) if one.slot in whole] for images in strangers(data))
    for release, unit in units.items():
        if "record" in unit and is_pooled(release, "record"):
            for releases in chains_of_statistics(release, reference_of(defense_stack)):
                yield ([one] for one in releases)


def _planted(site: Site, defense_stack: DefenseStack) -> Iterator[Sequence[Sequence[Release]]]:
    """Chains of model updates and scores of every round."""
    for clock in site.clocks:
        for updates in (chain_of_updates, buffers_of_updates):
            yield [[one] for one in updates(site, clock, defense_stack)]
        for scores in chains_of_scores(site, clock, defense_stack):
            yield [[one] for one in scores]


def _one_image_less(site: Site, defense_stack: DefenseStack) -> Mapping[tuple[str, int], Sequence[Pair]]:
    """The client and the same without one image, and so for a few of its images, where that is a neighbor.

    A method that needs more images than a few is compared with all of them alone."""
    data, found = site.client.data, dict[tuple[str, int], list[Pair]]()
    for count in dict.fromkeys((len(data), min(FEW, len(data)))):
        if count < 2 or not (count == len(data) or found):
            continue
        try:
            kept = [_shared(site, data.subset(torch.arange(first, count))) for first in (0, 1)]
        except UsageError:
            continue
        for one, other in zip(*kept, strict=True):
            uses = one.sent(defense_stack)[1]
            if uses and any("add-remove" in use.sensitivity for use in uses):
                found.setdefault((one.slot, one.sender.clock.round), []).append((one, other))
    return found


def _shared(site: Site, images: DomainDataset) -> list[Release]:
    """What the audited client would share with these images."""
    made = shared_releases(replace(site, client=replace(site.client, data=images)))
    return [one for releases in made.values() for one in releases]


def _screened(releases: Sequence[Release], defense_stack: DefenseStack) -> Mapping[tuple[str, int], Drawn]:
    """A few draws of what a client shares, by slot and round."""
    tried = [drawn(one, defense_stack, SCREENED) for one in releases]
    return {(one.release.slot, one.release.sender.clock.round): one for one in tried if one is not None}

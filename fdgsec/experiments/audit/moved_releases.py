"""Whether what a mechanism sends moves further with one image than its cost says, where that image decides.

A canary among real images moves no median, no majority and no extreme. A clip about the client's own median, with noise
for a clip about a public center, is bounded along no canary's direction; between clients of which one has a black image
more than half, and one has not, its mean jumps. So what is sent of neighbors along chains of clients
(fdgsec.experiments.audit.chains_of_clients) is compared: a few draws show which neighbors lie furthest apart, by each
of several tests (fdgsec.experiments.audit.neighbor_tests), and fresh draws of these whether they lie too far."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fdgsec.experiments.audit.chains_of_clients import chains_of
from fdgsec.experiments.audit.neighbor_tests import SCREENED_BY, TESTS, Drawn, drawn
from fdgsec.experiments.audit.neighboring_clients import Release, Site, shared_releases
from fdgsec.federation.defense_stack import DefenseStack

SCREENED = 8
"""Draws of every client, which show the neighbors that lie furthest apart."""
CONFIRMED = 2
"""Pairs of neighbors of each release and test, of which fresh draws tell how far they are apart."""
DRAWS = 64
ROUNDS = 2
"""Rounds of which what is shared is compared: what is clipped otherwise from the second on is seen."""

Pair = tuple[Release, Release]


@dataclass(frozen=True, kw_only=True, eq=False)
class Moved:
    """A release that one image moves further than its cost allows; how far, in words."""

    release: Release
    words: str


def moved_too_far(site: Site, defense_stack: DefenseStack) -> list[Moved]:
    """The releases with a cost, of each slot in the first rounds, that one image moves further than it allows.

    A client whose own releases have none has none with other images: costs that depend on these are a fault of their
    own (fdgsec.experiments.audit.noise_of_records)."""
    site = replace(site, clocks=site.clocks[:ROUNDS])
    if not any(one.sent(defense_stack)[1] for made in shared_releases(site).values() for one in made):
        return []
    fresh = replace(defense_stack, name=f"{defense_stack.name}/confirmed")
    found = []
    for pairs in _furthest_pairs(site, defense_stack).values():
        worst = max(_beyond(pairs, fresh), key=lambda one: one[0], default=None)
        if worst is not None:
            found.append(worst[1])
    return found


def _beyond(pairs: Sequence[Pair], defense_stack: DefenseStack) -> Iterator[tuple[float, Moved]]:
    """What each pair, drawn anew, exceeds by which test, and by how many times."""
    for pair in pairs:
        one, other = (drawn(each, defense_stack, DRAWS) for each in pair)
        if one is None or other is None:
            continue
        for test in TESTS:
            apart = test(one, other)
            if apart.too_far:
                yield apart.times, Moved(release=one.release, words=apart.words)


def _furthest_pairs(site: Site, defense_stack: DefenseStack) -> Mapping[tuple[str, int], Sequence[Pair]]:
    """Of each slot and round the neighbors that a few draws put furthest apart, CONFIRMED of them by each test."""
    found: dict[tuple[str, int], list[list[tuple[float, Pair]]]] = {}
    for chain in chains_of(site.client.data):
        before: Mapping[tuple[str, int], Drawn] = {}
        for data in chain:
            now = _screened(replace(site, client=replace(site.client, data=data)), defense_stack)
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


def _screened(site: Site, defense_stack: DefenseStack) -> Mapping[tuple[str, int], Drawn]:
    """A few draws of what the client shares, by slot and round."""
    tried = [drawn(one, defense_stack, SCREENED) for made in shared_releases(site).values() for one in made]
    return {(one.release.slot, one.release.sender.clock.round): one for one in tried if one is not None}

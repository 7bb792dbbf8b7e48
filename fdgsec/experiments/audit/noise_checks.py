"""Checks of the noise itself: distinct in every release, and unrelated between the releases of one run.

A test of one kind of release cannot tell 2^32 noise vectors from 2^256. Of R releases of the same records, drawn from M
equally likely noise vectors, no two are alike with probability at most exp(-R (R - 1) / 2M): the birthday bound.
R releases without a repetition thus show at confidence c that M exceeds R (R - 1) / (-2 ln(1 - c)), and 2^18 of them
repeat one of 2^32 with probability .9997. Releases are compared behind the audited defense alone, because
post-processing (rounding) may make different ones alike, and on a small artifact, because noise is drawn alike for any.

Noise of two releases of one run (two rounds, a style and a model, or the same release of two clients) is compared by
correlation: it is drawn anew for each of many runs, and differences between runs contain nothing but noise. Within a
release its numbers are compared in the same way (`noise_within`), their shape with the Gaussian one that the cost is
of, and directions with each other (`noise_shape`)."""

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import combinations
from types import FrameType

import torch
from torch import Tensor

from fdgsec.defenses.private_scores import BoundsLosses
from fdgsec.experiments.audit.free_numbers import told_for_free
from fdgsec.experiments.audit.message_canaries import DIRECTIONS, noise_coordinates
from fdgsec.experiments.audit.moved_releases import moved_too_far
from fdgsec.experiments.audit.neighboring_clients import Release, Site, numbers
from fdgsec.experiments.audit.noise_of_records import depend_on_records
from fdgsec.experiments.audit.noise_shape import DRAWS_A_NUMBER, SUSPECT, THIN, least_along, not_gaussian
from fdgsec.experiments.audit.noise_tails import without_tails
from fdgsec.experiments.audit.noise_within import (
    MOST_TENSORS,
    alike,
    draws_within,
    tensors_of,
    two_readings,
    update_repeats,
)
from fdgsec.experiments.audit.planted_statistics import is_pooled
from fdgsec.experiments.audit.small_networks import one_layer, small_model
from fdgsec.federation.artifacts import ModelState, Scores
from fdgsec.federation.defense_stack import DefenseStack

INPUTS = 12
"""Numbers in the small artifacts on which noise is compared."""
FEWEST_NUMBERS = 4
"""Fewer float32 numbers than this may agree in two of 2^18 releases by chance."""
DIRECTIONS_OF_MODELS = 64
"""Numbers of an artifact with more tensors than styles have, whose directions are compared."""
LEAST_TAILS, MOST_TAILS = 256, 4096
"""Draws of a release whose largest deviation is compared with that of Gaussian noise: of 256 numbers, 256 draws show a
cut at 3 deviations, and 4,096 one at 4."""
PAIRS = 32
DEVIATIONS = 6.0
"""Correlations of unrelated noise lie within this many standard deviations (two-sided probability 2e-9)."""
SEEDING = frozenset({"manual_seed", "manual_seed_all"})


@dataclass(frozen=True, kw_only=True)
class NoiseChecks:
    """The results of all checks; `states_bits` is log2 of the number of noise vectors that `releases` rule out.

    `alike` are the first two equal releases, `correlated` pairs of a run's releases with related noise, `within` are
    releases of which two numbers have the same noise, `shapes` those whose noise is not Gaussian, `of_records` those
    whose noise or cost depends on the records, `thin` those of which some direction has less noise than the numbers,
    and `left_out` those where that is sure. Whether it hides too little is for a canary to tell, which those `bounded`
    have: noise that was projected with the mean that it hides, onto public directions, is sound. `moved` are releases
    that one image or client moves further than their cost allows, each with both distances in words, or numbers beside
    an update that have none, and `trainings` says so of private training. `samples` says what is wrong with the samples
    of its steps, and `untested` what of a training could not be tried. `seeding` tells whether a release calls
    `manual_seed`, which keeps 32 bits."""

    releases: int = 0
    alike: tuple[int, int] | None = None
    confidence: float = 0.95
    correlated: Sequence[str] = ()
    within: Sequence[str] = ()
    shapes: Sequence[str] = ()
    thin: Sequence[str] = ()
    left_out: Sequence[str] = ()
    bounded: Sequence[str] = ()
    of_records: Sequence[str] = ()
    moved: Sequence[str] = ()
    trainings: Sequence[str] = ()
    samples: Sequence[str] = ()
    untested: Sequence[str] = ()
    seeding: bool = False

    @property
    def states_bits(self) -> float | None:
        """None where releases repeat, or too few were compared."""
        if self.alike is not None or self.releases < 2:
            return None
        return math.log2(self.releases * (self.releases - 1) / (-2 * math.log1p(-self.confidence)))

    @property
    def repeated(self) -> bool:
        """Whether noise comes again: in a release of the same records, in another one of its run, or within one."""
        return self.alike is not None or bool(self.correlated) or bool(self.within)

    @property
    def faults(self) -> Mapping[str, bool]:
        """Whether each fault of the noise was found, by its words."""
        return {
            "noise comes again": self.repeated,
            "noise is not Gaussian, as its cost says": bool(self.shapes),
            "noise leaves directions out": not set(self.left_out) <= set(self.bounded),
            "noise depends on the records that it hides": bool(self.of_records),
            "one image or client moves a release further than its cost allows": bool(self.moved)
            or bool(self.trainings),
            "steps of training do not draw their records as their cost says": bool(self.samples),
        }

    def line(self) -> str:
        """What was found, in one line."""
        said = [f"{pair} have correlated noise" for pair in self.correlated]
        said += [f"two numbers of {release} have the same noise" for release in self.within]
        said += [f"the noise of {release} is not Gaussian" for release in self.shapes]
        said += [
            f"some direction of {release} has less noise than its numbers"
            + (", and a canary" if release in self.bounded else "")
            for release in self.thin
        ]
        said += [f"the noise or cost of {release} changes where its records do" for release in self.of_records]
        said += [*self.moved, *self.trainings, *self.samples]
        if self.alike is not None:
            said.insert(0, "releases {} and {} of the same records are alike".format(*self.alike))
        elif self.states_bits is not None:
            said.append(
                f"no two of {self.releases} releases alike: more than 2^{self.states_bits:.1f} states "
                f"({self.confidence:.0%})"
            )
        else:
            said.append("releases were not compared")
        if self.seeding:
            said.append("a release calls manual_seed, which keeps 32 bits (--distinct-releases 262144 tests it)")
        return "; ".join(said)


def small(release: Release) -> Release:
    """A release with few numbers behind which a defense draws its noise as behind `release`."""
    if isinstance(release.artifact, Scores):
        method = release.sender.method
        middle = method.loss_bound / 2 if isinstance(method, BoundsLosses) else 0.0  # scores may be cut to [0, bound]
        return replace(release, artifact=Scores(values=torch.full((INPUTS,), middle).to(release.artifact.values)))
    if release.sender.model is None or type(release.artifact) is not ModelState:
        return release
    model = small_model(release.sender.model, one_layer(INPUTS))
    return replace(release, artifact=model.state, sender=replace(release.sender, model=model))


def check_messages(runs: Sequence[Release], site: Site, place: int, *, releases: int, confidence: float) -> NoiseChecks:
    """Check the noise of the defense at `place` in the releases of one run of a site.

    So many `releases` are compared (0: none)."""
    defense_stack = site.defense_stack
    alone = replace(defense_stack, defenses=(defense_stack.defenses[place],), name=f"{defense_stack.name}/noise")
    given = [small(one) for one in runs]
    first = given[0]

    def sent(name: str, release: Release) -> Tensor:
        return numbers(release.sent(replace(alone, name=f"{alone.name}/{name}"))[0])

    shared = [f"{named_release(first)} of two clients"] if _correlated([first, _of_another(first)], sent) else []
    within, shapes = _within(runs, alone)
    tails = without_tails(site, alone, draws=min(max(releases, LEAST_TAILS), MOST_TAILS))
    shapes = list(dict.fromkeys([*shapes, *map(named_release, tails)]))
    checks = NoiseChecks(
        confidence=confidence, correlated=[*_correlated(given, sent), *shared], within=within, shapes=shapes,
        of_records=[named_release(one) for one in depend_on_records(site, alone)],
        moved=[
            *(f"{one.by} moves {named_release(one.release)} {one.words}" for one in moved_too_far(site, alone)),
            *told_for_free(site, alone),
        ],
    )  # fmt: skip
    if not releases or len(sent("size", first)) < FEWEST_NUMBERS:
        return checks
    checks = replace(checks, seeding=seeds(lambda: sent("seed", first)))
    least = _least_along(runs, alone, draws=releases)
    thin, left_out = ([name for name, part in least.items() if part < limit] for limit in (SUSPECT, THIN))
    checks = replace(checks, thin=thin, left_out=left_out)
    return compared(checks, (sent(f"distinct/{number}", first) for number in range(releases)))


def compared(checks: NoiseChecks, found: Iterable[Tensor]) -> NoiseChecks:
    """Compare releases (D,) up to the first repetition."""
    seen = dict[bytes, int]()
    for number, release in enumerate(found):
        digest = blake2b(release.numpy().tobytes(), digest_size=16).digest()
        if digest in seen:
            return replace(checks, releases=number + 1, alike=(seen[digest], number))
        seen[digest] = number
    return replace(checks, releases=len(seen))


def _correlated(releases: Sequence[Release], sent: Callable[[str, Release], Tensor]) -> list[str]:
    if len(releases) < 2:
        return []
    runs = [[sent(f"correlation/{run}", release) for release in releases] for run in range(2 * PAIRS)]
    drawn = [torch.stack(list(one)) for one in zip(*runs, strict=True)]
    pairs = combinations(zip(releases, [one[:PAIRS] - one[PAIRS:] for one in drawn], strict=True), 2)
    return [f"{named_release(one)} and {named_release(other)}" for (one, a), (other, b) in pairs if _related(a, b)]


def _of_another(release: Release) -> Release:
    """The same release of a client of another name."""
    client, clock = release.sender.client, release.sender.clock
    name = next((name for name in clock.participants if name != client.name), f"client:{client.number + 1}")
    return replace(release, sender=replace(release.sender, client=replace(client, name=name)))


def _within(releases: Sequence[Release], defense_stack: DefenseStack) -> tuple[list[str], list[str]]:
    """The releases, the first one of each slot, of which two numbers have the same noise, and those whose noise is not
    Gaussian though all their costs are."""
    same, others = list[str](), list[str]()
    for release in _of_each_slot(releases):
        uses = release.sent(defense_stack)[1]
        assert uses
        read = noise_coordinates(defense_stack, release, uses[0].unit)
        both, valid = draws_within(release, defense_stack, two_readings(read))
        draws, sent = both.unbind(-1)
        if alike(draws, valid, sent=sent if is_pooled(release, uses[0].unit) else None) or update_repeats(
            release, defense_stack
        ):
            same.append(named_release(release))
        elif all(use.mechanism == "gaussian" for use in uses) and not_gaussian(draws, valid):
            others.append(named_release(release))
    return same, others


def _of_each_slot(releases: Sequence[Release]) -> Iterable[Release]:
    first = dict[tuple[str, str], Release]()
    for release in releases:
        first.setdefault((release.step, release.slot), release)
    return first.values()


def _least_along(releases: Sequence[Release], defense_stack: DefenseStack, *, draws: int) -> Mapping[str, float]:
    """The least noise along any direction of the first release of each slot, as a part of what independent noise has,
    by at most so many draws."""
    found = dict[str, float]()
    for release in _of_each_slot(releases):
        artifact, uses = release.sent(defense_stack)
        assert uses
        most = DIRECTIONS if tensors_of(artifact) <= MOST_TENSORS else DIRECTIONS_OF_MODELS
        runs = min(draws, DRAWS_A_NUMBER * min(most, len(numbers(artifact))))
        read = noise_coordinates(defense_stack, release, uses[0].unit)
        found[named_release(release)] = least_along(*draws_within(release, defense_stack, read, runs=runs, most=most))
    return found


def _related(one: Tensor, other: Tensor) -> bool:
    """Whether two sets of noise (PAIRS, D) and (PAIRS, E) agree number by number, as far as both go."""
    width = min(one.shape[1], other.shape[1])
    scaled = [(each / each.std(0).clamp_min(torch.finfo(torch.float64).tiny))[:, :width] for each in (one, other)]
    found = torch.corrcoef(torch.stack([each.flatten() for each in scaled]))[0, 1]
    return bool(found.abs() > DEVIATIONS / math.sqrt(PAIRS * width))


def named_release(release: Release) -> str:
    """What a release is called in a line about its noise."""
    return f"{release.step}/{release.slot} of round {release.sender.clock.round}"


def seeds(act: Callable[[], object]) -> bool:
    """Whether `act` seeds a torch generator when it is repeated (the first call may compute public values).

    Not seen where a profiler runs already."""
    act()
    called = set[str]()

    def watch(_frame: FrameType, event: str, argument: object) -> None:
        if event == "c_call":
            called.add(getattr(argument, "__name__", ""))

    if sys.getprofile() is None:
        sys.setprofile(watch)
        try:
            act()
        finally:
            sys.setprofile(None)
    return not SEEDING.isdisjoint(called)

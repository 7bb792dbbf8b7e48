"""Whether what a mechanism sends moves further with one image than its cost says, where that image decides.

A canary among real images moves no median, no majority and no extreme. A clip about the client's own median, with noise
for a clip about a public center, is bounded along no canary's direction; between clients of which one has a black image
more than half, and one has not, its mean jumps. So what is sent of neighbors along chains of clients
(fdgsec.experiments.audit.chains_of_clients) is compared: a few draws show which neighbors lie furthest apart, and fresh
draws of these how far, by the linear test that half of them suggest, on the other half. A number without noise that is
another one for a neighbor gives it away for certain."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scipy.special import expit, ndtri
from torch import Tensor

from fdgsec.experiments.audit.chains_of_clients import chains_of
from fdgsec.experiments.audit.message_canaries import noise_coordinates
from fdgsec.experiments.audit.neighboring_clients import Release, Site, shared_releases
from fdgsec.experiments.audit.noise_within import draws_within
from fdgsec.federation.artifacts import Artifact
from fdgsec.federation.defense import Uses
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.privacy.accounting import Relation, Use

SCREENED = 8
"""Draws of every client, which show the neighbors that lie furthest apart."""
CONFIRMED = 2
"""Pairs of neighbors of each slot, of which fresh draws tell how far they are apart."""
DRAWS = 64
FACTOR = 1.5
"""By which a distance must exceed what a cost allows: the size of the noise is estimated within a tenth."""
DEVIATIONS = 4.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Moved:
    """A release that one image moves by `distance` standard deviations of its noise, where its cost says `allowed`.

    The distance is infinite where something without noise tells the neighbors apart."""

    release: Release
    distance: float
    allowed: float

    @property
    def words(self) -> str:
        """How far it moves."""
        if math.isinf(self.distance):
            return f"in what has no noise, where {self.allowed:.1f} standard deviations of noise are allowed"
        return f"by {self.distance:.1f} standard deviations of its noise; {self.allowed:.1f} are allowed"


@dataclass(frozen=True, kw_only=True, eq=False)
class _Drawn:
    """A release drawn several times: the numbers (runs, D) of what is sent, in the mechanism's units, and which `whole`
    ones (D,) were never cut; `form` is what else there is of it: shapes, and numbers that are no fractions. Its cost
    lets one image move it by `allowed` deviations (`allowed_distance`)."""

    release: Release
    values: Tensor
    whole: Tensor
    form: tuple[object, ...]
    allowed: float


def moved_too_far(site: Site, defense_stack: DefenseStack) -> list[Moved]:
    """The releases with a cost, the first one of each slot, that one image moves further than it allows."""
    fresh = replace(defense_stack, name=f"{defense_stack.name}/confirmed")
    found: dict[str, Moved] = {}
    for slot, pairs in _furthest_pairs(site, defense_stack).items():
        for pair in pairs:
            one, other = (_drawn(each, fresh, DRAWS) for each in pair)
            if one is None or other is None:
                continue
            distance, error = _distance(one, other)
            too_far = distance - DEVIATIONS * error > FACTOR * one.allowed
            if too_far and (slot not in found or found[slot].distance < distance):
                found[slot] = Moved(release=one.release, distance=distance, allowed=one.allowed)
    return list(found.values())


def _furthest_pairs(site: Site, defense_stack: DefenseStack) -> Mapping[str, Sequence[tuple[Release, Release]]]:
    """Of each slot the CONFIRMED neighbors that a few draws put furthest apart, in units of what is allowed."""
    found: dict[str, list[tuple[float, tuple[Release, Release]]]] = {}
    for chain in chains_of(site.client.data):
        before: Mapping[str, _Drawn] = {}
        for data in chain:
            made = shared_releases(replace(site, client=replace(site.client, data=data)))
            tried = [_drawn(releases[0], defense_stack, SCREENED) for releases in made.values()]
            drawn = {one.release.slot: one for one in tried if one is not None}
            for slot in drawn.keys() & before.keys():
                one, other = before[slot], drawn[slot]
                ranked = [*found.get(slot, []), (_distance(one, other)[0] / one.allowed, (one.release, other.release))]
                found[slot] = sorted(ranked, key=lambda each: -each[0])[:CONFIRMED]
            before = drawn
    return {slot: [pair for _, pair in pairs] for slot, pairs in found.items()}


def _drawn(release: Release, defense_stack: DefenseStack, runs: int) -> _Drawn | None:
    """The release drawn so often; None where no cost is stated that bounds its distance from a neighbor."""
    sent, uses = release.sent(defense_stack)
    allowed = allowed_distance(uses)
    if not uses or not allowed:
        return None
    read = noise_coordinates(defense_stack, release, uses[0].unit)
    values, kept = draws_within(release, defense_stack, read, runs=runs)
    return _Drawn(release=release, values=values, whole=kept.all(0), form=_form(sent), allowed=allowed)


def _form(artifact: Artifact) -> tuple[object, ...]:
    """The shapes of an artifact's tensors, and the content of those that hold no fractions."""
    return tuple(
        (name, tuple(value.shape), None if value.is_floating_point() else value.cpu().numpy().tobytes())
        for name, value in artifact.tensors().items()
    )


def allowed_distance(uses: Uses) -> float | None:
    """By how many standard deviations of Gaussian noise a replaced record may move a release of this cost; None where
    no cost is stated, or one without noise.

    What protects clients protects their records. Laplace noise of epsilon e hides as well as Gaussian noise that is
    moved by -2 Phi^-1(1 / (1 + exp(e))) deviations, or better (Dong, Roth and Su, "Gaussian differential privacy", JRSS
    B 2022: its trade-off curve is made of two chords of that one). Sampling, which hides more, is not counted."""
    if not uses or not all(use.noise for use in uses):
        return None
    return math.sqrt(sum(use.count * _moved_by(use) ** 2 for use in uses))


def _moved_by(use: Use) -> float:
    moved = _replaced(use.sensitivity) / use.noise
    return moved if use.mechanism == "gaussian" else -2 * float(ndtri(expit(-moved)))


def _replaced(sensitivity: Mapping[Relation, float]) -> float:
    """The distance between clients of which one record is another one: a record less, and one more."""
    return sensitivity["replace-one"] if "replace-one" in sensitivity else 2 * max(sensitivity.values())


def _distance(first: _Drawn, second: _Drawn) -> tuple[float, float]:
    """The distance of the means of two releases along the direction that the first half of their draws shows, in
    standard deviations of the second half, and its standard error.

    Noise that both have in common cancels in their difference. Infinite where what has no noise is not the same."""
    if first.form != second.form:
        return math.inf, 0.0
    one, other = first.values, second.values
    fixed = (one.amax(0) == one.amin(0)) & (other.amax(0) == other.amin(0))
    if bool((fixed & (one[0] != other[0])).any()) and not bool(fixed.all()):  # all: the noise comes again, unknown
        return math.inf, 0.0
    whole = first.whole & second.whole
    if not bool(whole.any()):  # every number was cut, or comes again
        return 0.0, 0.0
    one, other, half = one[:, whole], other[:, whole], len(one) // 2
    spread = (one[:half].var(0) + other[:half].var(0)) / 2
    noisy = spread > 0
    if not bool(noisy.any()):
        return 0.0, 0.0
    along = (one[:half] - other[:half]).mean(0)[noisy] / spread[noisy]
    ones, others = one[half:, noisy] @ along, other[half:, noisy] @ along
    size = float(((ones.var() + others.var()) / 2).sqrt())
    if not size:
        return 0.0, 0.0
    apart = (ones - others) / size
    return float(apart.mean()), float(apart.std()) / math.sqrt(len(apart))

"""Composition of noisy releases to one epsilon: one unit, one neighboring relation at a time, by PLD or RDP.

The composition is dp-accounting's (https://github.com/google/differential-privacy): privacy loss distributions, whose
pessimistic rounding never makes an epsilon too small, and Renyi accounting as a looser check. Gaussian noise on all
records adds up exactly in mu^2 and goes in as one event; where nothing else was released, Theorem 8 of Balle & Wang
(`mechanisms.epsilon_of`) gives the exact result.

*Relations.* `sensitivity` already holds the distance between neighbors, so a use without sampling loses what
N(0, noise^2) against N(sensitivity, noise^2) loses, whatever the relation; the library always gets that distance as its
unit. (Its own REPLACE_ONE doubles the distance of a Gaussian event in the PLD accountant and not in the Renyi one,
google/differential-privacy#378; this code does not use it.) Under Poisson sampling an absent record and one that
contributes nothing give the same sums. Therefore the library's analysis of add-remove, (1 - q) N(0) + q N(1) against
N(0) in both directions, also holds for zero-out (the library treats its REPLACE_SPECIAL the same). For replace-one its
accountants disagree: the Renyi accountant refuses, the PLD accountant composes a pair without a proof that it is the
worst. Here that is an AdjacencyError."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from scipy import optimize

from fdgsec.privacy import mechanisms
from fdgsec.privacy.mechanisms import Mechanism, Step
from fdgsec.runtime.errors import UsageError

Relation = Literal["replace-one", "add-remove", "zero-out"]
Unit = Literal["record", "client"]
Accountant = Literal["pld", "rdp"]

CALIBRATED = 1e-4  # relative width to which a noise is calibrated; the end that meets epsilon is returned
LARGEST_NOISE = 2.0**40


class AdjacencyError(UsageError):
    """Releases that cannot be composed under one neighboring relation and unit (exit 2)."""


@dataclass(frozen=True, kw_only=True)
class Use:
    """One kind of noisy release: its mechanism, noise and sensitivity, and how often it was made.

    `noise` is a standard deviation (gaussian) or a scale (laplace). `sensitivity` is the largest L2 (gaussian) or L1
    (laplace) distance between neighbors, for each relation where it is known, and `unit` is what neighbors differ in.
    `sampling_rate` < 1 means Poisson sampling: every record took part independently with this probability, and the
    sample is secret. `count` equal releases may depend on each other's results. Raises UsageError out of range."""

    mechanism: Mechanism
    noise: float
    sensitivity: Mapping[Relation, float] = field(hash=False)
    sampling_rate: float = 1.0
    count: int = 1
    unit: Unit = "record"

    def __post_init__(self) -> None:
        if self.mechanism not in get_args(Mechanism):
            raise UsageError(f"mechanism must be 'gaussian' or 'laplace'; got {self.mechanism!r}.")
        if not self.noise >= 0:
            raise UsageError(f"noise must not be negative; got {self.noise}.")
        if not 0 < self.sampling_rate <= 1:
            raise UsageError(f"sampling_rate must lie in (0, 1]; got {self.sampling_rate}.")
        if self.count < 0:
            raise UsageError(f"count must not be negative; got {self.count}.")
        if self.unit not in get_args(Unit):
            raise UsageError(f"unit must be 'record' or 'client'; got {self.unit!r}.")
        for relation, distance in self.sensitivity.items():
            _check_relation(relation)
            if not (math.isfinite(distance) and distance >= 0):
                raise UsageError(f"sensitivity under {relation} must be finite and not negative; got {distance}.")


def epsilon(uses: Sequence[Use], *, delta: float, relation: Relation, accountant: Accountant = "pld") -> float:
    """Compose `uses` and compute their epsilon at `delta`: never below the true one, infinite without noise.

    "pld" comes within about 1e-3 of the exact value (1e-4 nats where that is more) and is exact for Gaussian noise
    without sampling; "rdp" is looser. Raises AdjacencyError for a use that does not know `relation`, for mixed units
    and for Poisson sampling under replace-one; UsageError for a delta outside (0, 1), or under 1e-12 where "pld" has to
    compose, and for sampled Laplace noise with "rdp", which the library cannot compose."""
    if not 0 < delta < 1:
        raise UsageError(f"delta must lie strictly between 0 and 1; got {delta}.")
    if accountant not in get_args(Accountant):
        raise UsageError(f"accountant must be 'pld' or 'rdp'; got {accountant!r}.")
    steps = _steps(uses, relation)
    if steps is None:
        return math.inf
    if not steps:
        return 0.0
    if accountant == "pld" and _only_gaussian(steps):
        return mechanisms.epsilon_of(steps[0].multiplier, delta)
    from fdgsec.privacy import composition  # the library takes a second to load, and most runs do not need it

    compose = composition.renyi_epsilon if accountant == "rdp" else composition.epsilon
    return compose(steps, delta)


def delta(uses: Sequence[Use], *, epsilon: float, relation: Relation) -> float:
    """Compose `uses` and compute their delta at `epsilon` by PLD: never below the true one, 1 without noise.

    Raises the errors of `epsilon`, and UsageError for a negative epsilon."""
    if not epsilon >= 0:
        raise UsageError(f"epsilon must not be negative; got {epsilon}.")
    steps = _steps(uses, relation)
    if steps is None:
        return 1.0
    if not steps or math.isinf(epsilon):
        return 0.0
    if _only_gaussian(steps):
        return mechanisms.delta_of(steps[0].multiplier, epsilon)
    from fdgsec.privacy import composition  # see `epsilon`

    return composition.delta(steps, epsilon)


def calibrated_noise(
    uses_at: Callable[[float], Sequence[Use]],
    *,
    epsilon: float,
    delta: float,
    relation: Relation,
    accountant: Accountant = "pld",
) -> float:
    """Find the least noise x for which `uses_at(x)` costs at most `epsilon`; the result is at most 1e-4 of it larger.

    `uses_at` builds the whole composition, fixed uses included; more noise must not cost more. Zero where epsilon is
    infinite. Raises UsageError where the fixed uses alone cost more than `epsilon`, and the errors of `epsilon()`."""
    if not epsilon > 0:
        raise UsageError(f"epsilon must be above 0 (infinite for no noise); got {epsilon}.")
    if math.isinf(epsilon):
        return 0.0

    def cost(noise: float) -> float:
        return _epsilon(uses_at(noise), delta=delta, relation=relation, accountant=accountant)

    def excess(log_noise: float) -> float:
        return math.log(min(max(cost(math.exp(log_noise)), 1e-300), 1e300) / epsilon)

    little, enough = _bracket(cost, epsilon)
    if little == enough:
        return enough
    # Cost is nearly a power of noise, so the search takes few steps; its end is moved until it meets epsilon.
    bounds = math.log(little), math.log(enough)
    found = math.exp(float(optimize.brentq(excess, *bounds, xtol=CALIBRATED / 4, rtol=1e-12)))
    while found < enough and cost(found) > epsilon:
        found *= 1 + CALIBRATED / 4
    return min(found, enough)


def _bracket(cost: Callable[[float], float], epsilon: float) -> tuple[float, float]:
    """Double or halve a noise of 1 until it brackets `epsilon`; both are equal where the least noise is enough."""
    enough = 1.0
    while cost(enough) > epsilon:
        if enough >= LARGEST_NOISE:
            raise UsageError(
                f"no noise reaches epsilon {epsilon:g}: the releases that do not depend on it cost {cost(enough):.4g}; "
                "allow a larger epsilon, or release less."
            )
        enough *= 2
    while enough > 1 / LARGEST_NOISE:
        little = enough / 2
        if cost(little) > epsilon:
            return little, enough
        enough = little
    return enough, enough


_epsilon = epsilon  # `calibrated_noise` has a parameter of the same name


def _steps(uses: Sequence[Use], relation: Relation) -> tuple[Step, ...] | None:
    """Check that `uses` compose under `relation` and merge equal ones; None where one has no noise at all."""
    _check_relation(relation)
    units = sorted({use.unit for use in uses})
    if len(units) > 1:
        raise AdjacencyError(
            f"releases with guarantees per {' and per '.join(units)} do not compose; account for each unit separately."
        )
    counts: Counter[tuple[Mechanism, float, float]] = Counter()
    squared_mu = 0.0
    for use in uses:
        distance = _distance(use, relation)
        if distance == 0 or use.count == 0 or math.isinf(use.noise):
            continue
        if use.noise == 0:
            return None
        if use.mechanism == "gaussian" and use.sampling_rate == 1:
            mu = distance / use.noise
            squared_mu += use.count * mu * mu
        else:
            counts[use.mechanism, use.noise / distance, use.sampling_rate] += use.count
    if math.isinf(squared_mu) or any(multiplier == 0 for _, multiplier, _ in counts):
        return None  # noise that is too small, next to its distance, for floating point
    steps = sorted(Step(*kind, count) for kind, count in counts.items())
    if squared_mu > 0:
        steps.insert(0, Step("gaussian", 1 / math.sqrt(squared_mu), 1.0, 1))
    return tuple(steps)


def _distance(use: Use, relation: Relation) -> float:
    if relation not in use.sensitivity:
        known = ", ".join(sorted(use.sensitivity)) or "none"
        raise AdjacencyError(
            f"a {use.mechanism} release has no known sensitivity under {relation} (known: {known}); account for the "
            f"run under a relation that all its releases know."
        )
    if use.sampling_rate < 1 and relation == "replace-one":
        raise AdjacencyError(
            "Poisson sampling has no sound analysis under replace-one here; account under zero-out or add-remove."
        )
    return use.sensitivity[relation]


def _check_relation(relation: str) -> None:
    if relation not in get_args(Relation):
        raise UsageError(f"relation must be one of {', '.join(get_args(Relation))}; got {relation!r}.")


def _only_gaussian(steps: tuple[Step, ...]) -> bool:
    return len(steps) == 1 and steps[0].mechanism == "gaussian" and steps[0].rate == 1

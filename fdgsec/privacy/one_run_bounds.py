"""A lower bound on epsilon from a single run with many canaries, each included at random.

Steinke, Nasr & Jagielski, NeurIPS 2023, https://arxiv.org/abs/2305.08846: each of m canaries is included with
probability 1/2, independently of everything else; the auditor guesses about r of them and abstains on the others. If
the run is (epsilon, delta)-private in adding or removing one canary (or in replacing it by a null record), the number
of right guesses is v or more with probability at most

    P[B >= v] + 2 m delta max_i P[v > B >= v - i] / i,    B ~ Binomial(r, e^epsilon / (1 + e^epsilon)).

The bound is the least epsilon at which that is 1 - confidence. The number of guesses is fixed in advance. If all are
right the bound is the ceiling, which is low for few guesses (3.46 for 102 guesses of 1,024 canaries at delta 1e-5)."""

import math

import torch
from scipy import optimize, special
from torch import Tensor

from fdgsec.metrics.roc import Numbers, as_vector
from fdgsec.privacy.accounting import Unit
from fdgsec.privacy.epsilon_bounds import AuditResult
from fdgsec.runtime.errors import UsageError

FINEST = 1e-9  # precision of the bound; the lower end is given


def p_value(m: int, guesses: int, correct: int, *, epsilon: float, delta: float) -> float:
    """Bound the probability of `correct` or more right of `guesses` under (`epsilon`, `delta`)-privacy of `m` canaries.

    Never above 1. Raises UsageError unless 0 <= correct <= guesses <= m, m >= 1, epsilon >= 0 and 0 <= delta < 1."""
    _check(m, guesses, correct, delta)
    if not epsilon >= 0:
        raise UsageError(f"epsilon must not be negative; got {epsilon}.")
    if correct == 0:
        return 1.0
    right = 1 / (1 + math.exp(-epsilon))
    least = torch.arange(correct, -1, -1, dtype=torch.float64).numpy()  # v, v - 1, ..., 0
    tails = special.betainc(least.clip(min=1), guesses - least.clip(min=1) + 1, right)
    tails[-1] = 1.0  # P[B >= 0]
    reached = float(tails[0])
    near = float(((tails[1:] - reached) / (correct - least[1:])).max())
    return min(1.0, reached + 2 * m * delta * max(0.0, near))


def one_run_lower_bound(m: int, guesses: int, correct: int, delta: float, confidence: float = 0.95) -> float:
    """Bound epsilon at `delta` from below with `correct` right of `guesses` about `m` canaries; 0 without evidence.

    Valid with probability `confidence`. Raises UsageError for arguments out of range (see `p_value`)."""
    _check(m, guesses, correct, delta)
    if not 0 < confidence < 1:
        raise UsageError(f"confidence must lie strictly between 0 and 1; got {confidence}.")

    def spare(epsilon: float) -> float:
        return p_value(m, guesses, correct, epsilon=epsilon, delta=delta) - (1 - confidence)

    if spare(0.0) >= 0:
        return 0.0
    high = 1.0
    while spare(high) < 0:
        high *= 2
    return max(0.0, float(optimize.brentq(spare, 0.0, high, xtol=FINEST)) - FINEST)


def ceiling(m: int, guesses: int, delta: float, confidence: float = 0.95) -> float:
    """Compute the lower bound if all `guesses` were right: the largest bound that the audit can prove."""
    return one_run_lower_bound(m, guesses, guesses, delta, confidence)


def right_guesses(scores: Numbers, included: Tensor, *, guesses: int) -> int:
    """Count the right guesses when the highest scores are guessed "in" and the lowest "out", half of `guesses` each.

    `scores` (m,) grow with the evidence for a canary; `included` (m,) bool is the truth. An odd guess goes to "in".
    Raises ValueError where the shapes differ or `guesses` is not between 1 and m."""
    values = as_vector(scores, "scores")
    if included.shape != values.shape or included.dtype != torch.bool:
        raise ValueError(f"included must be bool {tuple(values.shape)}; got {included.dtype} {tuple(included.shape)}.")
    if not 1 <= guesses <= len(values):
        raise ValueError(f"guesses must lie between 1 and {len(values)} canaries; got {guesses}.")
    ranked = included.cpu()[values.argsort(descending=True, stable=True)]
    called_in = guesses - guesses // 2
    called_out = ranked[len(ranked) - guesses // 2 :]
    return int(ranked[:called_in].sum()) + int((~called_out).sum())


def audit_one_run(
    scores: Numbers,
    included: Tensor,
    *,
    guesses: int,
    claimed_epsilon: float,
    delta: float,
    unit: Unit = "record",
    confidence: float = 0.95,
) -> AuditResult:
    """Audit a claim with the `scores` (m,) of all canaries in one run and the random choices `included` (m,).

    `guesses` is fixed before the scores are seen; see `right_guesses` for their use."""
    m, correct = len(included), right_guesses(scores, included, guesses=guesses)
    return AuditResult(
        lower_bound=one_run_lower_bound(m, guesses, correct, delta, confidence),
        ceiling=ceiling(m, guesses, delta, confidence),
        confidence=confidence,
        repeats=1,
        auditor="one-run",
        claimed_epsilon=claimed_epsilon,
        delta=delta,
        unit=unit,
    )


def _check(m: int, guesses: int, correct: int, delta: float) -> None:
    if not (m >= 1 and 0 <= correct <= guesses <= m):
        raise UsageError(f"an audit needs 0 <= right <= guesses <= canaries; got {correct}, {guesses} and {m}.")
    if not 0 <= delta < 1:
        raise UsageError(f"delta must lie in [0, 1); got {delta}.")

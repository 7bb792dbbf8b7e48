"""Empirical lower bounds on epsilon from many runs with and without one canary, and a test of a claimed epsilon.

For an (epsilon, delta)-private release no test of "the canary is in" can have rates with

    1 - FNR > e^epsilon FPR + delta    or    1 - FPR > e^epsilon FNR + delta

so Clopper-Pearson's upper bounds on both rates bound epsilon from below. A claim for Gaussian noise is about a whole
trade-off curve, not one point of it. Nasr et al., USENIX Security 2023
(https://www.usenix.org/conference/usenixsecurity23/presentation/nasr), audit that curve; the same two bounds then give

    mu >= Phi^-1(1 - FPR) - Phi^-1(FNR)

and mu gives epsilon at delta. That *gaussian* bound is nearly tight with thousands of runs; the *approximate* one needs
about e^epsilon of them. The threshold is chosen on the first half of the runs and evaluated on the second. Where a run
has several scores, the first half also chooses which of them is evaluated.

A bound is not "the privacy loss": an attack that finds little proves nothing. The *ceiling* is the bound that the same
runs would have given had the attack made no error; a bound near it is saturated."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from scipy import special
from torch import Tensor

from fdgsec.metrics.roc import Numbers, as_vector
from fdgsec.privacy import mechanisms
from fdgsec.privacy.accounting import Unit
from fdgsec.runtime.errors import UsageError

Auditor = Literal["gaussian", "approximate", "one-run", "one-run gaussian"]
Curve = Literal["gaussian", "approximate"]

FEWEST_RUNS = 4  # of each kind: two to choose the threshold, two to evaluate it
TIE = 1e-9  # keeps 1 - 0.95 from being "above" 0.05
CLEARLY = 0.5  # evidence (mu, or epsilon) by which another score must exceed the main one to be evaluated in its place


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """The result of one audit of a claim, with the field names of audit.json; it covers `repeats` audits.

    `lower_bound` is below the true epsilon at `delta` with probability `confidence`; `ceiling` is the largest bound
    possible with this number of runs or guesses. Repeats use fresh secrets."""

    lower_bound: float
    ceiling: float
    confidence: float
    repeats: int
    auditor: Auditor
    claimed_epsilon: float
    delta: float
    unit: Unit

    def __post_init__(self) -> None:
        if not 0 <= self.lower_bound <= self.ceiling:
            raise ValueError(f"a bound lies between 0 and its ceiling; got {self.lower_bound} of {self.ceiling}.")
        if self.repeats < 1:
            raise ValueError(f"repeats must be at least 1; got {self.repeats}.")

    @property
    def exceeded(self) -> bool:
        """Tell whether this bound is above the claim; a true claim allows it with probability 1 - `confidence`."""
        return self.lower_bound > self.claimed_epsilon


def exceeds(results: Sequence[AuditResult], alpha: float = 0.05) -> bool:
    """Tell whether bounds of independent audits lie above their claim more often than chance allows.

    Under a true claim each bound is above it with probability at most 1 - confidence. The claim is refuted where the
    binomial probability of that many or more is at most `alpha`. One result is judged at its own confidence. Raises
    ValueError unless all results audit one claim in one way."""
    claims = {(one.claimed_epsilon, one.delta, one.unit, one.confidence, one.auditor) for one in results}
    if len(claims) != 1:
        raise ValueError(f"one claim and auditor are judged at a time; got {len(claims)} in {len(results)} results.")
    if any(one.repeats != 1 for one in results):
        raise ValueError("repeats are judged one by one; got a summary of several.")
    above = sum(one.exceeded for one in results)
    return above > 0 and _at_least(above, len(results), 1 - results[0].confidence) <= alpha + TIE


def strongest(results: Sequence[AuditResult], *, confidence: float) -> AuditResult:
    """Join bounds on one claim that hold jointly with `confidence`: the largest bound, and the largest ceiling.

    Raises ValueError for no results, or for error probabilities whose sum exceeds 1 - `confidence`."""
    if not results:
        raise ValueError("the strongest of no bounds does not exist.")
    if sum(1 - one.confidence for one in results) > 1 - confidence + TIE:
        raise ValueError(f"{len(results)} bounds of these confidences do not hold jointly with {confidence}.")
    return replace(
        results[0],
        lower_bound=max(one.lower_bound for one in results),
        ceiling=max(one.ceiling for one in results),
        confidence=confidence,
    )


def summary(results: Sequence[AuditResult]) -> AuditResult:
    """Summarize repeats of one audit: their median bound and ceiling (the lower one of the middle two)."""
    if not results:
        raise ValueError("a summary needs at least one result.")
    middle = (len(results) - 1) // 2
    first = results[0]
    return AuditResult(
        lower_bound=sorted(one.lower_bound for one in results)[middle],
        ceiling=sorted(one.ceiling for one in results)[middle],
        confidence=first.confidence,
        repeats=sum(one.repeats for one in results),
        auditor=first.auditor,
        claimed_epsilon=first.claimed_epsilon,
        delta=first.delta,
        unit=first.unit,
    )


def audit_runs(
    absent: Numbers,
    present: Numbers,
    *,
    claimed_epsilon: float,
    delta: float,
    unit: Unit,
    curve: Curve = "gaussian",
    confidence: float = 0.95,
) -> AuditResult:
    """Audit a claim with the scores of runs without the canary (`absent`) and with it (`present`), with fresh noise.

    Scores are (runs,), or (runs, k) for k scores of each run, the main one first.
    `curve` is the claim: "gaussian" for Gaussian noise (any number of full releases), else "approximate"."""
    bound = multi_run_lower_bound(absent, present, delta=delta, curve=curve, confidence=confidence)
    fewest = min(len(absent), len(present))
    return AuditResult(
        lower_bound=bound,
        ceiling=max(bound, multi_run_ceiling(fewest, delta=delta, curve=curve, confidence=confidence)),
        confidence=confidence,
        repeats=1,
        auditor=curve,
        claimed_epsilon=claimed_epsilon,
        delta=delta,
        unit=unit,
    )


def multi_run_lower_bound(
    absent: Numbers,
    present: Numbers,
    *,
    delta: float,
    curve: Curve = "gaussian",
    confidence: float = 0.95,
    threshold: float | None = None,
) -> float:
    """Bound epsilon at `delta` from below by thresholding scores; valid with probability `confidence`.

    Scores (n,) and (m,), or (n, k) and (m, k), come from independent runs, in an order that carries no information. Of
    k > 1 scores the first one is evaluated, unless another has much more evidence in the first half of the runs
    (`CLEARLY`). Without a `threshold` fixed in advance ("score above it" guesses present), the first half of each
    chooses it, and whether present scores lie above or below; only the second half is evaluated. Zero where the attack
    proves nothing. Raises ValueError for fewer than 4 runs of a kind or scores that are not finite, UsageError for a
    `delta` or `confidence` out of range."""
    _check(delta, confidence, curve)
    out, into = _chosen(absent, present, delta=delta, curve=curve, confidence=confidence)
    if min(len(out), len(into)) < FEWEST_RUNS:
        raise ValueError(f"an audit needs {FEWEST_RUNS} runs of each kind; got {len(out)} and {len(into)}.")
    if threshold is None:
        _, sign, threshold = _oriented(out, into, delta=delta, curve=curve, confidence=confidence)
        out, into = sign * out[len(out) // 2 :], sign * into[len(into) // 2 :]
    wrong_out = (out > threshold).sum(dtype=torch.float64).reshape(1)
    wrong_in = (into <= threshold).sum(dtype=torch.float64).reshape(1)
    evidence = _evidence(wrong_out, len(out), wrong_in, len(into), delta=delta, curve=curve, confidence=confidence)
    return _as_epsilon(float(evidence[0]), delta=delta, curve=curve)


def multi_run_ceiling(runs: int, *, delta: float, curve: Curve = "gaussian", confidence: float = 0.95) -> float:
    """Compute the bound for `runs` runs of each kind if the attack made no error on the evaluated half."""
    _check(delta, confidence, curve)
    if runs < FEWEST_RUNS:
        raise ValueError(f"an audit needs {FEWEST_RUNS} runs of each kind; got {runs}.")
    judged = runs - runs // 2
    none = torch.zeros(1, dtype=torch.float64)
    evidence = _evidence(none, judged, none, judged, delta=delta, curve=curve, confidence=confidence)
    return _as_epsilon(float(evidence[0]), delta=delta, curve=curve)


def _chosen(
    absent: Numbers, present: Numbers, *, delta: float, curve: Curve, confidence: float
) -> tuple[Tensor, Tensor]:
    """Choose one score of each run by the evidence in the first halves: (n,) and (m,)."""
    if not (isinstance(absent, Tensor) and isinstance(present, Tensor) and absent.ndim == present.ndim == 2):
        return as_vector(absent, "absent"), as_vector(present, "present")
    columns = [(as_vector(a, "absent"), as_vector(b, "present")) for a, b in zip(absent.T, present.T, strict=True)]
    found = [_oriented(*column, delta=delta, curve=curve, confidence=confidence)[0] for column in columns]
    best = max(range(len(found)), key=found.__getitem__)
    return columns[best if found[best] > found[0] + CLEARLY else 0]


def _oriented(
    out: Tensor, into: Tensor, *, delta: float, curve: Curve, confidence: float
) -> tuple[float, float, float]:
    """Choose sign and threshold on the first halves; give their evidence, the sign that makes present scores high, and
    the threshold of signed scores."""
    chosen: list[tuple[float, float, float]] = []
    first_out, first_in = out[: len(out) // 2], into[: len(into) // 2]
    for sign in (1.0, -1.0):
        levels = torch.cat([sign * first_out, sign * first_in]).unique()
        # Midway between two scores, so that evaluated scores equal to either of them fall clearly on one side.
        cuts = torch.cat([(levels[1:] + levels[:-1]) / 2, levels.new_tensor([torch.inf])])
        wrong_out = len(first_out) - torch.searchsorted((sign * first_out).sort().values, cuts, right=True)
        wrong_in = torch.searchsorted((sign * first_in).sort().values, cuts, right=True)
        evidence = _evidence(
            wrong_out.to(torch.float64),
            len(first_out),
            wrong_in.to(torch.float64),
            len(first_in),
            delta=delta,
            curve=curve,
            confidence=confidence,
        )
        best = int(evidence.argmax())
        chosen.append((float(evidence[best]), sign, float(cuts[best])))
    return max(chosen)


def _evidence(
    wrong_out: Tensor, n_out: int, wrong_in: Tensor, n_in: int, *, delta: float, curve: Curve, confidence: float
) -> Tensor:
    """Compute the mu (gaussian) or epsilon (approximate) that errors (k,) of each kind prove; both hold jointly."""
    false_positives = _upper(wrong_out, n_out, confidence)
    false_negatives = _upper(wrong_in, n_in, confidence)
    if curve == "gaussian":
        total: Tensor = torch.special.ndtri(false_positives) + torch.special.ndtri(false_negatives)
        return -total
    above: Tensor = ((1 - delta - false_negatives).clamp_min(0) / false_positives).log()
    below: Tensor = ((1 - delta - false_positives).clamp_min(0) / false_negatives).log()
    return torch.maximum(above, below)


def _as_epsilon(evidence: float, *, delta: float, curve: Curve) -> float:
    if evidence <= 0:
        return 0.0
    return mechanisms.epsilon_of(1 / evidence, delta) if curve == "gaussian" else evidence


def _upper(wrong: Tensor, n: int, confidence: float) -> Tensor:
    """Compute Clopper-Pearson's upper bound on an error rate; two of them hold jointly with `confidence`."""
    level = 1 - (1 - confidence) / 2
    counts = wrong.numpy()
    bound = torch.from_numpy(special.betaincinv(counts + 1, (n - counts).clip(min=0.5), level))
    return torch.where(wrong >= n, torch.ones_like(wrong), bound)


def _at_least(hits: int, n: int, chance: float) -> float:
    """Compute P[Bin(n, chance) >= hits]."""
    return float(special.betainc(hits, n - hits + 1, chance))


def _check(delta: float, confidence: float, curve: str) -> None:
    if not 0 < delta < 1:
        raise UsageError(f"delta must lie strictly between 0 and 1; got {delta}.")
    if not 0 < confidence < 1:
        raise UsageError(f"confidence must lie strictly between 0 and 1; got {confidence}.")
    if curve not in get_args(Curve):
        raise UsageError(f"curve must be 'gaussian' or 'approximate'; got {curve!r}.")

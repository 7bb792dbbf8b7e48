"""LiRA, RMIA and two baselines: membership tests on a model's outputs for candidate records.

LiRA: Carlini et al., "Membership Inference Attacks From First Principles", IEEE S&P 2022, arXiv:2112.03570: section IV
and its Algorithm 1. RMIA: Zarifzadeh, Liu and Shokri, "Low-Cost High-Power Membership Inference Attacks", ICML 2024,
arXiv:2312.03262. Loss threshold: Yeom et al., CSF 2018, arXiv:1709.01604. Calibration: Watson et al., arXiv:2111.08440.

Reference models (IN or OUT, by candidate) give the null distribution of a record's outputs. A report must state how
many were used, so every table of their outputs declares their number. Larger scores mean member. float64 throughout."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fdgsec.runtime.errors import UsageError

Variance = Literal["per-example", "global"]
SMALLEST_SPREAD = 1e-3  # of the pooled spread: lower bound for saturated references that agree to the last bit
ROUNDING = 1e-12  # tolerance on log ratios: ties, as of saturated confidences, must not depend on the order of sums


@dataclass(frozen=True, kw_only=True, eq=False)
class References:
    """The outputs of `models` reference models for N candidates, and their training sets.

    `values` is (models, N) or (models, N, queries): scaled logits for LiRA, log-confidences for the rest. `members`
    (models, N) bool is True where a model was trained on the candidate. Raises UsageError where the number of models,
    the shapes, the type of `members` or a non-finite value contradict that."""

    models: int
    values: Tensor
    members: Tensor

    def __post_init__(self) -> None:
        _check_models(self.values, self.models, "references")
        shape = tuple(self.values.shape)
        if self.values.ndim not in (2, 3) or not self.values.numel():
            raise UsageError(f"references must be non-empty, (models, N) or (models, N, queries); got {shape}.")
        if self.members.dtype != torch.bool or self.members.shape != shape[:2]:
            given = f"{self.members.dtype} {tuple(self.members.shape)}"
            raise UsageError(f"members must be bool {shape[:2]}, as references are {shape}; got {given}.")
        _check_finite(self.values, "references")


@dataclass(frozen=True, kw_only=True, eq=False)
class Population:
    """The log-confidences of M records z of the population: `target` (M,), `references` (models, M).

    RMIA compares each candidate with them; the target must not have been trained on them. Raises UsageError where the
    number of models or the shapes contradict each other, or a value is not a log-confidence."""

    models: int
    target: Tensor
    references: Tensor

    def __post_init__(self) -> None:
        _check_models(self.references, self.models, "the population's references")
        if self.target.ndim != 1 or not len(self.target) or self.references.shape[1:] != self.target.shape:
            raise UsageError(
                f"a population needs target (M,) and references (models, M) with M >= 1; got "
                f"{tuple(self.target.shape)} and {tuple(self.references.shape)}."
            )
        _check_log_confidences(self.target, "the population's target")
        _check_log_confidences(self.references, "the population's references")

    @property
    def log_average(self) -> Tensor:
        """The log of the reference models' mean confidence, (M,) float64."""
        return self.references.to(torch.float64).logsumexp(0) - math.log(self.models)


def scaled_logit(logits: Tensor, labels: Tensor) -> Tensor:
    """phi = log(p_y / (1 - p_y)), nearly Gaussian over training sets (Carlini et al. 2022, section IV).

    Computed as z_y - logsumexp over the other classes, which neither overflows nor saturates. `logits` is (...,
    classes), `labels` int64 and broadcastable to (...), the result's shape.

    Raises UsageError for fewer than two classes, labels that do not fit, and logits that are not finite."""
    scores, index = _labeled(logits, labels)
    others = scores.scatter(-1, index, -torch.inf)
    return scores.gather(-1, index).squeeze(-1) - others.logsumexp(-1)


def log_confidence(logits: Tensor, labels: Tensor) -> Tensor:
    """log p_y, the negated cross-entropy; arguments, shape and errors as for `scaled_logit`."""
    scores, index = _labeled(logits, labels)
    return scores.log_softmax(-1).gather(-1, index).squeeze(-1)


def lira_online(target: Tensor, references: References, *, variance: Variance) -> Tensor:
    """The log likelihood ratio of IN to OUT, log N(phi; mu_in, s_in^2) - log N(phi; mu_out, s_out^2): (N,).

    Algorithm 1 of Carlini et al. 2022: means and variances per candidate from the reference models trained on it and
    those that were not. `target` holds the attacked model's phi, (N,) or (N, queries). Queries (augmentations) are
    treated as independent, each with its own Gaussians, and their log ratios are summed (a multivariate Gaussian of
    diagonal covariance; the authors' code takes the mean, which gives the same order). Augmentations of one image are
    not independent: the sum ranks candidates, but overstates the odds.

    "per-example" divides squares by the number of models, as the authors' code does (which centers by the median).
    "global" pools the squares around the candidates' own means, one variance per query and side, over their degrees of
    freedom: better with few models (section VI). Raises UsageError where a candidate has too few models of a side."""
    observed, values = _aligned(target, references)
    inside = _gaussians(values, references.members, "IN", variance)
    outside = _gaussians(values, ~references.members, "OUT", variance)
    return (_log_density(observed, *inside) - _log_density(observed, *outside)).sum(1)


def lira_offline(target: Tensor, references: References, *, variance: Variance) -> Tensor:
    """The distance of phi above the mean of its OUT Gaussian, in standard deviations: (N,).

    The offline, one-sided test of Carlini et al. 2022, section IV: Lambda = 1 - Pr[Z > phi], Z ~ N(mu_out, s_out^2), is
    the standard normal distribution function of this score, which unlike Lambda does not round to 1. Reference models
    trained on a candidate are left out. Independent queries are combined as sum z / sqrt(queries), again standard
    normal for a non-member where they are independent. Otherwise as `lira_online`."""
    observed, values = _aligned(target, references)
    mean, spread = _gaussians(values, ~references.members, "OUT", variance)
    return ((observed - mean) / spread).sum(1) / math.sqrt(observed.shape[1])


def rmia_online(target: Tensor, references: References, *, population: Population, gamma: float = 1.0) -> Tensor:
    """The share of the population that each candidate's likelihood ratio dominates: (N,) in [0, 1].

    Zarifzadeh et al. 2024: score(x) = Pr_z[LR(x, z) >= gamma] with the pairwise ratio LR(x, z) = (p(x|theta) / p(x)) /
    (p(z|theta) / p(z)). Here p(x) is the mean of the IN and the OUT models' average, so that their numbers may differ;
    p(z) is the average over all reference models. `target` (N,) and `references` (models, N) are log-confidences.
    `gamma` 1 is the value of the authors' code.

    Needs no (N, M) table: LR >= gamma means p(z|theta)/p(z) <= p(x|theta)/(gamma p(x)), a rank among sorted values.
    Scores are multiples of 1/M, and all candidates above the whole population tie: a small M hides the best ones.

    Raises UsageError for gamma <= 0, other numbers of models, or a candidate without an IN or OUT model."""
    observed, values = _rmia_inputs(target, references, population, gamma)
    inside = _log_mean(values, references.members, "IN")
    outside = _log_mean(values, ~references.members, "OUT")
    marginal = torch.logaddexp(inside, outside) - math.log(2)
    return _dominated(observed[:, 0] - marginal, population.target - population.log_average, gamma)


def rmia_offline(
    target: Tensor, references: References, *, population: Population, gamma: float = 1.0, offline_a: float = 0.3
) -> Tensor:
    """RMIA without IN models: p = ((1 + a) p_out + (1 - a)) / 2 stands for the average of IN and OUT.

    Zarifzadeh et al. 2024 take p_in = a p_out + 1 - a, a line through (1, 1); `offline_a` in [0, 1] is a (.3 in the
    authors' code), for candidates and population alike, all of whose references count as OUT.

    Models trained on a candidate are left out of its p_out. Otherwise as `rmia_online`."""
    if not 0 <= offline_a <= 1:
        raise UsageError(f"offline_a must lie in [0, 1]; got {offline_a}.")
    observed, values = _rmia_inputs(target, references, population, gamma)
    outside = _log_mean(values, ~references.members, "OUT")
    candidates = observed[:, 0] - _from_outside(outside, offline_a)
    return _dominated(candidates, population.target - _from_outside(population.log_average, offline_a), gamma)


def loss_score(target: Tensor) -> Tensor:
    """The log-confidence (N,) unchanged: a threshold on the loss (Yeom et al. 2018), not calibrated for hard records.

    Raises UsageError for another shape and for values above 0."""
    if target.ndim != 1 or not len(target):
        raise UsageError(f"target must be log-confidences (N,) with N >= 1; got {tuple(target.shape)}.")
    _check_log_confidences(target, "target")
    return target.to(torch.float64)


def calibrated_score(target: Tensor, references: References) -> Tensor:
    """The OUT models' mean loss minus the target's (Watson et al. 2022): (N,) from log-confidences.

    Several queries are averaged. Raises UsageError where a candidate has no OUT model."""
    observed, values = _log_confidences(target, references)
    weight = _shares(~references.members, "OUT", least=1)
    return (observed - torch.einsum("kn,knq->nq", weight, values)).mean(1)


def _labeled(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Check logits and labels; return float64 logits and labels as an index of their last dimension."""
    if logits.ndim < 1 or logits.shape[-1] < 2:
        raise UsageError(f"logits must be (..., classes) with two classes or more; got {tuple(logits.shape)}.")
    wanted = logits.shape[:-1]
    pairs = zip(reversed(labels.shape), reversed(wanted), strict=False)
    if labels.dtype != torch.int64 or labels.ndim > len(wanted) or any(own not in (1, size) for own, size in pairs):
        raise UsageError(f"labels must be int64 and fit {tuple(wanted)}; got {labels.dtype} {tuple(labels.shape)}.")
    index = labels.expand(wanted)
    if index.numel() and (int(index.min()) < 0 or int(index.max()) >= logits.shape[-1]):
        raise UsageError(f"labels must lie in 0..{logits.shape[-1] - 1}; got {int(index.min())}..{int(index.max())}.")
    _check_finite(logits, "logits")
    return logits.to(torch.float64), index.unsqueeze(-1)


def _check_models(values: Tensor, models: int, name: str) -> None:
    if models < 1 or values.ndim < 2 or values.shape[0] != models:
        raise UsageError(f"{models} reference models are declared, but {name} are {tuple(values.shape)}, models first.")


def _check_finite(values: Tensor, name: str) -> None:
    if not values.is_floating_point():
        raise UsageError(f"{name} must be floating point; got {values.dtype}.")
    wrong = int((~values.isfinite()).sum())
    if wrong:
        raise UsageError(f"{name} must be finite; {wrong} of {values.numel()} values are not.")


def _check_log_confidences(values: Tensor, name: str) -> None:
    _check_finite(values, name)
    highest = float(values.max())
    if highest > 0:
        raise UsageError(f"{name} must be log-confidences, at most 0; got {highest:.6g}: use log_confidence, not phi.")


def _rmia_inputs(target: Tensor, references: References, population: Population, gamma: float) -> tuple[Tensor, Tensor]:
    """As `_log_confidences`, after checking that target, references and population match and that there is one
    query."""
    if not (0 < gamma < math.inf):
        raise UsageError(f"gamma must be a ratio above 0; got {gamma}.")
    if references.models != population.models:
        counts = f"{references.models} for the candidates, {population.models} for the population"
        raise UsageError(f"candidates and population must have the same reference models; got {counts}.")
    if references.values.ndim != 2:
        raise UsageError(f"RMIA takes one query, references (models, N); got {tuple(references.values.shape)}.")
    return _log_confidences(target, references)


def _aligned(target: Tensor, references: References) -> tuple[Tensor, Tensor]:
    """The target's values (N, queries) and the references' (models, N, queries) in float64."""
    shape = tuple(references.values.shape)
    if target.shape != shape[1:]:
        raise UsageError(f"target must be {shape[1:]}, as references are {shape}; got {tuple(target.shape)}.")
    _check_finite(target, "target")
    values = references.values.to(torch.float64)
    return target.to(torch.float64).reshape(shape[1], -1), values.reshape(*shape[:2], -1)


def _log_confidences(target: Tensor, references: References) -> tuple[Tensor, Tensor]:
    """As `_aligned`, for values that must be logarithms of probabilities."""
    aligned = _aligned(target, references)
    for values, name in ((references.values, "references"), (target, "target")):
        _check_log_confidences(values, name)
    return aligned


def _shares(chosen: Tensor, side: str, *, least: int) -> Tensor:
    """Each chosen model's weight in its candidate's mean, (models, N); raises UsageError for fewer than `least` of
    them."""
    counts = chosen.sum(0)
    lacking = (counts < least).nonzero().flatten().tolist()
    if lacking:
        raise UsageError(
            f"{len(lacking)} of {len(counts)} candidates have fewer than {least} {side} of {len(chosen)} reference "
            f"models (first: {lacking[:5]}); train more, rebalance who sees what, or take a test that needs fewer."
        )
    return chosen.to(torch.float64) / counts


def _gaussians(values: Tensor, chosen: Tensor, side: str, variance: Variance) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the chosen models' values: (N, queries), and (N or 1, queries)."""
    if variance not in ("per-example", "global"):
        raise UsageError(f"variance must be 'per-example' or 'global'; got {variance!r}.")
    weight = _shares(chosen, side, least=2 if variance == "per-example" else 1)
    mean = torch.einsum("kn,knq->nq", weight, values)
    squares = (values - mean).square()
    freedom = int(chosen.sum()) - chosen.shape[1]
    if freedom < 1:
        raise UsageError(f"no candidate has two {side} of {len(chosen)} reference models: no spread to estimate.")
    pooled = torch.einsum("kn,knq->q", chosen.to(torch.float64), squares).div(freedom).sqrt().unsqueeze(0)
    if not bool((pooled > 0).all()):
        raise UsageError(f"the {side} reference models agree exactly on every candidate; nothing tells members apart.")
    if variance == "global":
        return mean, pooled
    return mean, torch.maximum(torch.einsum("kn,knq->nq", weight, squares).sqrt(), SMALLEST_SPREAD * pooled)


def _log_density(observed: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
    """The log density of a Gaussian, without the constant log sqrt(2 pi)."""
    return -((observed - mean) / spread).square() / 2 - spread.log()


def _log_mean(values: Tensor, chosen: Tensor, side: str) -> Tensor:
    """The log of the chosen models' mean confidence, (N,), from log-confidences (models, N, 1)."""
    return (values[..., 0] + _shares(chosen, side, least=1).log()).logsumexp(0)


def _from_outside(log_outside: Tensor, offline_a: float) -> Tensor:
    """log(((1 + a) p_out + (1 - a)) / 2) from log p_out."""
    kept = log_outside + math.log((1 + offline_a) / 2)
    constant = math.log((1 - offline_a) / 2) if offline_a < 1 else -math.inf
    return torch.logaddexp(kept, torch.full_like(kept, constant))


def _dominated(candidates: Tensor, population: Tensor, gamma: float) -> Tensor:
    """The share of log ratios `population` (M,) that lie at least log gamma below each of `candidates` (N,)."""
    ordered = population.to(torch.float64).sort().values
    found = torch.searchsorted(ordered, candidates - (math.log(gamma) - ROUNDING))
    return found.to(torch.float64) / len(ordered)

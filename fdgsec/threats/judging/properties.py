"""Answers about a whole client judged: what its images are of, in which shares, and of what it holds any.

Clients are the units: intervals resample clients or leave them out, permutations exchange the truths of clients."""

import math
from collections.abc import Sequence

import torch
from scipy import special
from torch import Tensor

from fdgsec.metrics.bootstrap import constant, unseen_bounds
from fdgsec.metrics.interval import Interval
from fdgsec.metrics.intervals import paired_bootstrap
from fdgsec.metrics.measurement import Measurement
from fdgsec.metrics.roc import placements
from fdgsec.threats.answers import Answer, Presence, Proportions
from fdgsec.threats.judging.groups import Entry, Group, Scale, finite, row, unavailable
from fdgsec.threats.judging.permutation_tests import PermutationTest, Scores


def _true_shares(entries: Sequence[Entry[Answer]], given: Sequence[Tensor]) -> Tensor | str:
    """Give what each client's images are of, (clients, K) float64, or why that is not known.

    `given` are the answers, whose shapes must fit."""
    found: list[Tensor] = []
    for entry, values in zip(entries, given, strict=True):
        subject, truth = entry.answer.subject, entry.truth
        true = truth.proportions if subject == "labels" else truth.domain_shares
        if true is None:
            return f"nobody knows the shares of {subject} of {entry.case.victim} in the {entry.case.question} run"
        if values.shape != true.shape:
            raise ValueError(f"an answer must be {tuple(true.shape)}, one number per kind; got {tuple(values.shape)}.")
        found.append(true.detach().cpu().to(torch.float64))
    return torch.stack(found)


def measure_proportions(group: Group, rng: torch.Generator, *, repeats: int) -> list[Measurement]:
    """Give the mean over clients and kinds of |estimate - share|; chance is what the guess without the release gives.

    The interval is that of the difference between the two, added to chance: both grow with how skewed a client is, so
    that their own intervals say little about which is smaller (paired bootstrap over clients)."""
    entries, name = group.of(Proportions), "mae"
    true = _true_shares(entries, [entry.answer.estimate for entry in entries])
    if isinstance(true, str):
        return unavailable([name], group.slice, true, n=len(entries))
    estimate = torch.stack([entry.answer.estimate.detach().cpu().to(torch.float64) for entry in entries])
    without = torch.stack([entry.answer.without.detach().cpu().to(torch.float64) for entry in entries])
    if without.shape != true.shape:
        raise ValueError(f"the guess without must be {tuple(true.shape[1:])}; got {tuple(without.shape[1:])}.")
    reason = finite({"estimated shares": estimate, "guess without": without})
    if reason:
        return unavailable([name], group.slice, reason, n=len(entries))
    errors, blind = (estimate - true).abs().mean(1), (without - true).abs().mean(1)
    value, chance = float(errors.mean()), float(blind.mean())
    interval = None
    if len(entries) > 1:
        most = max(2 / true.shape[1], float(torch.stack([errors, blind]).max()))  # shares differ by 2 in all at most
        apart = paired_bootstrap(errors, blind, rng=rng, repeats=repeats, bounds=(-most, most))
        interval = Interval.of(lambda tail: _around(chance, apart.ends(tail)), apart.method)
    scale = Scale(chance=chance, chance_kind="measured", higher_is="safe")
    return [row(name, group.slice, value, interval, len(entries), scale)]


def _around(chance: float, ends: tuple[float, float]) -> tuple[float, float]:
    return max(chance + ends[0], 0.0), chance + ends[1]


def measure_presence(group: Group) -> list[Measurement]:
    """Give the AUC of "holds any" over clients, averaged over the kinds that some of them hold and others do not."""
    entries, name = group.of(Presence), "auc"
    true = _true_shares(entries, [entry.answer.scores for entry in entries])
    if isinstance(true, str):
        return unavailable([name], group.slice, true, n=len(entries))
    scores = torch.stack([entry.answer.scores.detach().cpu().to(torch.float64) for entry in entries])
    if bool(scores.isnan().any()):
        return unavailable([name], group.slice, f"{int(scores.isnan().sum())} scores are NaN", n=len(entries))
    held = _varying(true)
    if held is None:
        reason = f"each kind is held by all {len(entries)} clients or by none of them: there is nothing to tell apart"
        return unavailable([name], group.slice, reason, n=len(entries))
    kinds, present = held
    value, interval = _area(scores[:, kinds], present)
    return [row(name, group.slice, value, interval, len(entries), Scale(chance=0.5))]


def _varying(true: Tensor) -> tuple[Tensor, Tensor] | None:
    """Give the kinds that some clients hold and others do not, (k,), and who holds them, (clients, k) bool."""
    present = true > 0
    kinds = (present.any(0) & ~present.all(0)).nonzero().flatten()
    return (kinds, present[:, kinds]) if len(kinds) else None


def _area(scores: Tensor, present: Tensor) -> tuple[float, Interval]:
    """Average the AUCs of the kinds (clients, k), with the jackknife's t interval of its logit over clients.

    The smaller side of a comparison limits how well the variance is known: the degrees of freedom are those of two
    samples of its size, averaged over kinds. Where leaving out a client never changes the average, unseen clients bound
    it (`unseen_bounds`)."""
    clients = len(scores)
    positive, negative = present.to(torch.float64).T, (~present).to(torch.float64).T
    ahead = scores.T.unsqueeze(2) - scores.T.unsqueeze(1)  # (k, clients, clients)
    wins = ((ahead > 0).to(torch.float64) + 0.5 * (ahead == 0).to(torch.float64)) * positive.unsqueeze(2)

    def area(counts: Tensor) -> Tensor:
        pairs = (counts @ positive.T) * (counts @ negative.T)
        won = torch.einsum("ri,kij,rj->rk", counts, wins * negative.unsqueeze(1), counts)
        usable = pairs > 0
        return (won / pairs.clamp_min(1) * usable).sum(1)[usable.any(1)] / usable.sum(1)[usable.any(1)]

    everyone = torch.ones(1, clients, dtype=torch.float64)
    estimate = float(area(everyone))
    without_one = area(everyone - torch.eye(clients, dtype=torch.float64))
    if len(without_one) < clients or constant(without_one) or not 0 < estimate < 1:
        units = int(min(present.any(1).sum(), (~present).any(1).sum()))  # clients on either side of any comparison
        return estimate, Interval.of(lambda tail: unseen_bounds(estimate, units, (0.0, 1.0), tail=tail), "jackknife")
    smaller = float(torch.minimum(present.sum(0), (~present).sum(0)).to(torch.float64).mean())
    deviation = math.sqrt((clients - 1) * float(without_one.var(correction=0))) / (estimate * (1 - estimate))

    def ends(tail: float) -> tuple[float, float]:
        reach, middle = -float(special.stdtrit(max(1.0, 2 * smaller - 2), tail)) * deviation, special.logit(estimate)
        return float(special.expit(middle - reach)), float(special.expit(middle + reach))

    return estimate, Interval.of(ends, "jackknife")


def _proportion_scores(group: Group) -> Scores | None:
    """How well each client's estimate fits every client's truth, one block (clients, clients); None where unknown."""
    entries = group.of(Proportions)
    true = _true_shares(entries, [entry.answer.estimate for entry in entries])
    estimate = torch.stack([entry.answer.estimate.detach().cpu().to(torch.float64) for entry in entries])
    if isinstance(true, str) or finite({"estimated shares": estimate}):
        return None
    return [-(estimate.unsqueeze(1) - true.unsqueeze(0)).abs().mean(2)]


def _presence_scores(group: Group) -> Scores | None:
    """What client i adds to the AUC where it holds what client j does; the mean of the diagonal is the AUC itself.

    Per kind the AUC is the mean placement of those who hold it among those who do not: linear in the ranks, because a
    permutation keeps how many hold it."""
    entries = group.of(Presence)
    true = _true_shares(entries, [entry.answer.scores for entry in entries])
    scores = torch.stack([entry.answer.scores.detach().cpu().to(torch.float64) for entry in entries])
    held = None if isinstance(true, str) or bool(scores.isnan().any()) else _varying(true)
    if held is None:
        return None
    kinds, present = held
    clients, hold = len(scores), present.sum(0).to(torch.float64)
    rank = (
        torch.stack([placements(column, column) for column in scores[:, kinds].T.contiguous()], dim=1) * clients + 0.5
    )
    pairs = hold * (clients - hold)
    block = (rank / pairs) @ present.to(torch.float64).T * clients / len(kinds)
    return [block - ((hold + 1) / (2 * (clients - hold))).mean()]


PROPORTION_TEST = PermutationTest(name="mae", scores=_proportion_scores, value=lambda mean: -mean)
PRESENCE_TEST = PermutationTest(name="auc", scores=_presence_scores)

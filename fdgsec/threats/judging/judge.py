"""The judge: a guess and the truth in, measurements with chance and interval out.

Answers are sorted into groups (`groups.grouped`): one type of answer about one population, the slice of the case merged
with that of the answer. Every group is judged on its own, with random streams named after it. What cannot be had is an
`unavailable` row with its reason, never a missing one."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fdgsec.metrics.bootstrap import unseen_bounds
from fdgsec.metrics.feature_extractors import Extractor
from fdgsec.metrics.image_similarity import PerceptualDistance
from fdgsec.metrics.intervals import Interval, balanced_accuracy_interval, cluster_auc_bootstrap, delong, wilson
from fdgsec.metrics.measurement import Measurement
from fdgsec.metrics.roc import accuracy, auc, balanced_accuracy, majority_share, roc_band, tpr_at_fpr
from fdgsec.runtime.random_streams import child
from fdgsec.threats.answers import Harmed, PoolAnswer
from fdgsec.threats.attack import (
    Answers,
    Case,
    GeneratedSets,
    Labels,
    Membership,
    Prediction,
    Presence,
    Proportions,
    Ranking,
    Reconstructions,
    Recovered,
    Truth,
)
from fdgsec.threats.judging.cluster_strata import cluster_size_rows
from fdgsec.threats.judging.galleries import Galleries, Lineup
from fdgsec.threats.judging.groups import Group, Scale, finite, grouped, median_row, row, unavailable
from fdgsec.threats.judging.harm import measure_harm
from fdgsec.threats.judging.image_sets import measure_sets
from fdgsec.threats.judging.permutation_tests import NullRow, null_row
from fdgsec.threats.judging.pools import measure_pool
from fdgsec.threats.judging.properties import measure_presence, measure_proportions
from fdgsec.threats.judging.rankings import measure_ranking
from fdgsec.threats.judging.reconstructions import measure_reconstructions

__all__ = ["Judge", "NullRow"]

LOW_RATES = {"tpr_at_1pct_fpr": 0.01, "tpr_at_01pct_fpr": 0.001}


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Measures guesses; `perceptual` are the image distances that reconstructions are judged by beside PSNR and SSIM.

    `extractors` are the feature networks that generated sets are judged by; one that lacks its weights says so in its
    rows."""

    perceptual: Sequence[PerceptualDistance] = ()
    extractors: Sequence[str | Extractor] = ("mini",)
    bootstrap_repeats: int = 2000
    lineup: Lineup = field(default_factory=Lineup)

    def measure(
        self, answers: Answers, cases: Sequence[Case], truths: Sequence[Truth], rng: torch.Generator
    ) -> list[Measurement]:
        """Judge every group of answers in the order of their first appearance; the tables of generated sets come last.

        Raises ValueError where an answer does not fit its case: that is a fault of the attack, not a finding."""
        galleries, groups = Galleries(), grouped(answers, cases, truths)
        sets = [group for group in groups if isinstance(group.entries[0].answer, GeneratedSets)]
        rows = [
            measured
            for group in groups
            if group not in sets
            for measured in self._measured(group, child(rng, group.name), galleries)
        ]
        return rows + measure_sets(sets, self.extractors, rng)

    def null(
        self,
        answers: Answers,
        cases: Sequence[Case],
        truths: Sequence[Truth],
        rng: torch.Generator,
        *,
        permutations: int = 999,
    ) -> list[NullRow]:
        """Test, per group, whether the guess has to do with the truth at all: for guesses that must not.

        Predictions, and groups without a truth, give no row."""
        rows = [
            null_row(group, child(rng, group.name), permutations=permutations)
            for group in grouped(answers, cases, truths)
        ]
        return [found for found in rows if found is not None]

    def _measured(self, group: Group, rng: torch.Generator, galleries: Galleries) -> list[Measurement]:
        answer, repeats = group.entries[0].answer, self.bootstrap_repeats
        if isinstance(answer, Ranking):
            return measure_ranking(group, rng, repeats=repeats)
        if isinstance(answer, Membership):
            return _membership(group, rng, repeats)
        if isinstance(answer, Labels):
            return _labels(group)
        if isinstance(answer, Proportions):
            return measure_proportions(group, rng, repeats=repeats)
        if isinstance(answer, Presence):
            return measure_presence(group)
        if isinstance(answer, Recovered):
            return _recovered(group)
        if isinstance(answer, Reconstructions):
            return measure_reconstructions(
                group, self.perceptual, rng, repeats=repeats, lineup=self.lineup, galleries=galleries
            )
        if isinstance(answer, Prediction):
            return _prediction(group)
        if isinstance(answer, Harmed):
            return measure_harm(group, rng, repeats=repeats)
        if isinstance(answer, PoolAnswer):
            return measure_pool(group, rng, repeats=repeats)
        raise TypeError(f"no rule judges a {type(answer).__name__}; give one of the answers in fdgsec.threats.attack.")


def _membership(group: Group, rng: torch.Generator, repeats: int) -> list[Measurement]:
    """Give the AUC averaged over clients, and the TPR at low FPR of all clients' scores under one threshold.

    Scores are likelihood ratios, whose threshold means the same for every client, so they are pooled as they are. With
    one client alone records are resampled, and the interval speaks about that client only."""
    entries, names = group.of(Membership), ["auc", *LOW_RATES]
    positive, negative = [], []
    for entry in entries:
        scores, members = entry.answer.scores.detach().cpu(), entry.truth.members
        if members is None:
            return unavailable(names, group.slice, f"nobody knows the members of {entry.case.victim}", n=len(entries))
        if scores.shape != members.shape:
            raise ValueError(f"scores must be {tuple(members.shape)}, one per candidate; got {tuple(scores.shape)}.")
        if bool(scores.isnan().any()):
            reason = f"{int(scores.isnan().sum())} of {len(scores)} scores of {entry.case.victim} are NaN"
            return unavailable(names, group.slice, reason, n=len(entries))
        if not 0 < int(members.sum()) < len(members):
            reason = (
                f"{entry.case.victim} was asked about {int(members.sum())} members and {int((~members).sum())} others"
            )
            return unavailable(names, group.slice, reason, n=len(entries))
        positive.append(scores[members])
        negative.append(scores[~members])
    n = sum(len(scores) for scores in (*positive, *negative))
    area = sum(auc(own, others) for own, others in zip(positive, negative, strict=True)) / len(entries)
    interval = _auc_interval(positive, negative, child(rng, "auc"), repeats)
    rows = [row("auc", group.slice, area, interval, n, Scale(chance=0.5))]
    rows += _low_rates(group, positive, negative, child(rng, "roc"), repeats)
    return rows + _cluster_sizes(group, child(rng, "clusters"), repeats)


def _cluster_sizes(group: Group, rng: torch.Generator, repeats: int) -> list[Measurement]:
    """Part the AUC by how many images share a member's cluster, where all clients' clusters are known."""
    entries = group.of(Membership)
    sizes = [entry.truth.cluster_sizes for entry in entries if entry.truth.cluster_sizes is not None]
    if len(sizes) < len(entries):
        return []
    scores, members = [entry.answer.scores.detach().cpu() for entry in entries], [size > 0 for size in sizes]
    return cluster_size_rows(scores, members, sizes, where=group.slice, rng=rng, repeats=repeats)


def _owners(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([torch.full((len(part),), number) for number, part in enumerate(parts)])


def _auc_interval(
    positive: Sequence[Tensor], negative: Sequence[Tensor], rng: torch.Generator, repeats: int
) -> Interval | None:
    if len(positive) == 1:
        enough = min(len(positive[0]), len(negative[0])) > 1
        return delong(positive[0], negative[0]) if enough else None
    return cluster_auc_bootstrap(
        torch.cat(list(positive)), torch.cat(list(negative)), pos_clusters=_owners(positive),
        neg_clusters=_owners(negative), rng=rng, repeats=repeats,
    )  # fmt: skip


def _low_rates(
    group: Group, positive: Sequence[Tensor], negative: Sequence[Tensor], rng: torch.Generator, repeats: int
) -> list[Measurement]:
    hits, others = torch.cat(list(positive)), torch.cat(list(negative))
    alone = len(positive) == 1
    own = torch.arange(len(hits)) if alone else _owners(positive)
    foreign = len(hits) + torch.arange(len(others)) if alone else _owners(negative)
    rows: list[Measurement] = []
    for name, rate in LOW_RATES.items():
        value = tpr_at_fpr(hits, others, fpr=rate)
        if value is None:
            reason = (
                f"unresolvable: {len(others)} non-members leave {len(others) * rate:g} false positives, 10 are needed"
            )
            rows += unavailable([name], group.slice, reason, n=len(others))
            continue
        low, high = value, value
        if min(len(hits), len(others)) > 1:
            band = roc_band(
                hits, others, pos_clusters=own, neg_clusters=foreign, fpr=[rate], rng=child(rng, name), repeats=repeats
            )
            low, high = float(band.low[0]), float(band.high[0])
        # a percentile band is too short where few clients, or none, differ: what they cannot have shown joins it
        floor, ceiling = unseen_bounds(value, len(hits) if alone else len(positive), (0.0, 1.0), level=0.95)
        shortest = value - (value - floor) * (low >= value), value + (ceiling - value) * (high <= value)
        interval = Interval(low=min(low, shortest[0]), high=max(high, shortest[1]), method="cluster-bootstrap")
        rows.append(row(name, group.slice, value, interval, len(hits) + len(others), Scale(chance=rate)))
    return rows


def _labels(group: Group) -> list[Measurement]:
    """Give balanced accuracy over the classes that occur, and accuracy.

    A guess that does not look spreads recalls that sum to 1 at most over the K classes *present in the truth*, so blind
    balanced accuracy is at most 1/K, not 1/classes; blind accuracy is at most the share of the commonest class."""
    entries, names = group.of(Labels), ["balanced_accuracy", "accuracy"]
    true, predicted = [], []
    for entry in entries:
        values = entry.truth.labels if entry.answer.of == "labels" else entry.truth.domains
        if values is None:
            reason = f"nobody knows the {entry.answer.of} of {entry.case.victim} in the {entry.case.question} run"
            return unavailable(names, group.slice, reason, n=len(entries))
        if values.shape != entry.answer.predicted.shape:
            raise ValueError(
                f"predicted must be {tuple(values.shape)}, one per row; got {tuple(entry.answer.predicted.shape)}."
            )
        true.append(values.cpu())
        predicted.append(entry.answer.predicted.detach().cpu())
    truth, guess = torch.cat(true), torch.cat(predicted)
    n, share = len(truth), majority_share(truth)
    right = accuracy(truth, guess)
    plain = row("accuracy", group.slice, right, wilson(right * n, n), n, Scale(chance=share))
    relabeled, guess, classes = present_classes(truth, guess)
    if classes < 2:
        return [*unavailable(names[:1], group.slice, "the truth holds a single class", n=n), plain]
    balanced = balanced_accuracy(relabeled, guess, classes=classes)
    interval = balanced_accuracy_interval(relabeled, guess, classes=classes)
    return [row("balanced_accuracy", group.slice, balanced, interval, n, Scale(chance=1 / classes)), plain]


def present_classes(true: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor, int]:
    """Renumber labels to the K classes present in `true`; a prediction of an absent class stays wrong."""
    present: Tensor
    renumbered: Tensor
    present, renumbered = torch.unique(true, return_inverse=True)
    place = torch.searchsorted(present, predicted).clamp(max=len(present) - 1)
    wrong = (renumbered + 1) % len(present)
    return renumbered, torch.where(present[place] == predicted, place, wrong), len(present)


def _recovered(group: Group) -> list[Measurement]:
    """Give the median over records of |estimate - true| / |true|; chance is what the guess without a release gives."""
    entries, name = group.of(Recovered), "relative_error"
    errors, without = [], []
    for entry in entries:
        true, answer = entry.truth.statistic, entry.answer
        if true is None:
            reason = f"nobody knows the statistic of {entry.case.victim} in the {entry.case.question} run"
            return unavailable([name], group.slice, reason, n=len(entries))
        if true.shape != answer.statistic.shape or answer.without.shape != true.shape[1:]:
            raise ValueError(
                f"statistic must be {tuple(true.shape)} and without {tuple(true.shape[1:])}; "
                f"got {tuple(answer.statistic.shape)} and {tuple(answer.without.shape)}."
            )
        reason = finite({"recovered statistic": answer.statistic, "guess without": answer.without})
        if reason:
            return unavailable([name], group.slice, reason, n=len(entries))
        errors.append(relative_error(answer.statistic, true))
        without.append(relative_error(answer.without.expand_as(true), true))
    blind = float(torch.cat(without).quantile(0.5))
    scale = Scale(chance=blind, chance_kind="measured", higher_is="safe")
    return [median_row(name, group.slice, torch.cat(errors), scale, bounds=(0.0, None))]


def relative_error(estimate: Tensor, true: Tensor) -> Tensor:
    """Give |estimate - true| / |true| per record, (R,) float64."""
    target = true.to(torch.float64)
    error: Tensor = (estimate.to(torch.float64) - target).norm(dim=1) / target.norm(dim=1)
    return error


def _prediction(group: Group) -> list[Measurement]:
    """Average what was predicted for the cases of one slice: descriptive, without chance or interval."""
    answers = [entry.answer for entry in group.of(Prediction)]
    values = torch.tensor([answer.value for answer in answers], dtype=torch.float64)
    reason = finite({answers[0].name: values})
    if reason:
        return unavailable([answers[0].name], group.slice, reason, n=len(answers))
    scale = Scale(chance=None, chance_kind="none", higher_is="descriptive", unit=answers[0].unit)
    return [row(answers[0].name, group.slice, float(values.mean()), None, len(values), scale)]

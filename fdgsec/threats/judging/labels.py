"""Judge labels: balanced accuracy over the classes that occur, and accuracy."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fdgsec.metrics.interval import Interval
from fdgsec.metrics.measurement import Measurement
from fdgsec.metrics.proportion_intervals import (
    balanced_accuracy_interval,
    clopper_pearson,
    clustered_proportion,
    matching_rate,
)
from fdgsec.metrics.roc import accuracy, balanced_accuracy, expected_agreement, majority_share
from fdgsec.threats.answers import Labels
from fdgsec.threats.judging.groups import Group, Scale, row, unavailable
from fdgsec.threats.judging.permutation_tests import PermutationTest, Scores, exchangeable


def measure_labels(group: Group) -> list[Measurement]:
    """Give balanced accuracy over the classes that occur, accuracy, and the share of the most frequent class.

    The recalls of a prediction made without the release sum to at most 1 over the K classes *present in the truth*, so
    its balanced accuracy is at most 1/K, not 1/classes. Accuracy stands against the mean accuracy of the same
    predictions in random order: the sum over classes of the share predicted times the true share (Cohen 1960). A guess
    that knows the shares of the classes, but no record, reaches this much, whatever the shares. Always to predict the
    most frequent class reaches its share, which is descriptive: accuracy may exceed chance and still be below it.

    The rows of a client are a cluster. Where each client is a class of its own, the clients are matched with the
    classes, and the number of trials is that of clients: three show nothing, whatever their rows. Rows of images that
    were drawn one by one (`as_if_released`) are independent."""
    entries, names = group.of(Labels), ["balanced_accuracy", "accuracy", "majority_share"]
    true, predicted = [], []
    for entry in entries:
        values = entry.truth.labels if entry.answer.of == "labels" else entry.truth.domains
        if values is None:
            reason = f"nobody knows the {entry.answer.of} of {entry.case.victim} in the {entry.case.question} run"
            return unavailable(names[:2], group.slice, reason, n=len(entries))
        if values.shape != entry.answer.predicted.shape:
            raise ValueError(
                f"predicted must be {tuple(values.shape)}, one per row; got {tuple(entry.answer.predicted.shape)}."
            )
        true.append(values.cpu())
        predicted.append(entry.answer.predicted.detach().cpu())
    truth, guess = torch.cat(true), torch.cat(predicted)
    n, right = len(truth), accuracy(truth, guess)
    chance = Scale(chance=expected_agreement(truth, guess))
    majority = Scale(chance=None, chance_kind="none", higher_is="descriptive")
    plain = [
        row("accuracy", group.slice, right, _accuracy_interval(group, true, predicted, right), n, chance),
        row("majority_share", group.slice, majority_share(truth), None, n, majority),
    ]
    relabeled, guess, classes = present_classes(truth, guess)
    if classes < 2:
        return [*unavailable(names[:1], group.slice, "the truth holds a single class", n=n), *plain]
    balanced = balanced_accuracy(relabeled, guess, classes=classes)
    interval = matching_rate(min(balanced * classes, float(classes)), classes)
    if not _matched(group, true):
        owners = torch.arange(len(true)).repeat_interleave(torch.tensor([len(own) for own in true]))
        clusters = None if _one_class_each(true) else owners
        interval = balanced_accuracy_interval(relabeled, guess, classes=classes, clusters=clusters)
    return [row("balanced_accuracy", group.slice, balanced, interval, n, Scale(chance=1 / classes)), *plain]


def _one_class_each(true: Sequence[Tensor]) -> bool:
    """Whether each case is of a single class, and no two cases are of the same."""
    classes = [int(own[0]) for own in true if len(own.unique()) == 1]
    return len(set(classes)) == len(true)


def _matched(group: Group, true: Sequence[Tensor]) -> bool:
    """Whether the classes are those of as many clients, so that a guess about a client decides all of its rows."""
    return group.question != "as_if_released" and len(true) > 1 and _one_class_each(true)


def _accuracy_interval(group: Group, true: Sequence[Tensor], predicted: Sequence[Tensor], rate: float) -> Interval:
    """Bound accuracy over cases: clusters of rows, except where each case is a class of its own.

    These are matched clients, or strata of independent rows, which vary less than a binomial sample of their size
    (Cochran 1977, section 5.3)."""
    if _matched(group, true):
        return matching_rate(min(rate * len(true), float(len(true))), len(true))
    hits = [float((own == said).sum()) for own, said in zip(true, predicted, strict=True)]
    if _one_class_each(true):
        return clopper_pearson(sum(hits), sum(map(len, true)))
    return clustered_proportion(hits, [len(own) for own in true])


def present_classes(true: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor, int]:
    """Renumber labels to the K classes present in `true`; a prediction of an absent class stays wrong."""
    present: Tensor
    renumbered: Tensor
    present, renumbered = torch.unique(true, return_inverse=True)
    place = torch.searchsorted(present, predicted).clamp(max=len(present) - 1)
    wrong = (renumbered + 1) % len(present)
    return renumbered, torch.where(present[place] == predicted, place, wrong), len(present)


def _label_scores(group: Group) -> Scores | None:
    true, predicted = [], []
    for entry in group.of(Labels):
        values = entry.truth.labels if entry.answer.of == "labels" else entry.truth.domains
        if values is None:
            return None
        true.append(values.cpu())
        predicted.append(entry.answer.predicted.detach().cpu())
    present: Tensor
    counts: Tensor
    present, counts = torch.unique(torch.cat(true), return_counts=True)
    n = sum(len(values) for values in true)
    across = group.of(Labels)[0].answer.of == "domains"  # within a case the domain is the same and nothing would move
    parts = [list(range(len(true)))] if across else exchangeable([len(values) for values in true], [None] * len(true))
    blocks = []
    for part in parts:
        own, guess = torch.cat([true[i] for i in part]), torch.cat([predicted[i] for i in part])
        worth = n / (len(present) * counts[torch.searchsorted(present, own)].to(torch.float64))
        blocks.append((guess.unsqueeze(1) == own).to(torch.float64) * worth)
    return blocks


LABEL_TEST = PermutationTest(name="balanced_accuracy", scores=_label_scores)

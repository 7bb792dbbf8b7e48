"""Judge the membership of sets of images: were those of one person, say, all used in training, or none of them?

The sets of a client are drawn at random from its candidates, disjoint, and half of them of members. A set of members
and one of others have the same number of images of each class."""

from dataclasses import replace

import torch
from torch import Tensor

from fdgsec.metrics.measurement import Measurement
from fdgsec.metrics.roc import auc
from fdgsec.runtime.random_streams import child
from fdgsec.threats.answers import Membership, SetMembership
from fdgsec.threats.judging.groups import Entry, Group, Scale, row, unavailable
from fdgsec.threats.judging.membership import auc_interval, membership_test
from fdgsec.threats.judging.permutation_tests import NullRow

LEAST = 2
"""Minimum number of sets of a client's members, and of others."""


def measure_set_membership(group: Group, rng: torch.Generator, *, repeats: int) -> list[Measurement]:
    """Give the AUC of the sets' scores, averaged over clients; n is the number of sets."""
    entries = group.of(SetMembership)
    positive, negative = [], []
    for place, entry in enumerate(entries):
        found, reason = _sets(entry, child(rng, "sets", place))
        if reason:
            return unavailable(["auc"], group.slice, reason, n=len(entries))
        scores, members = found
        positive.append(scores[members])
        negative.append(scores[~members])
    area = sum(auc(own, others) for own, others in zip(positive, negative, strict=True)) / len(entries)
    interval = auc_interval(positive, negative, child(rng, "auc"), repeats)
    n = sum(len(scores) for scores in (*positive, *negative))
    return [row("auc", group.slice, area, interval, n, Scale(chance=0.5))]


def set_membership_test(group: Group, rng: torch.Generator, permutations: int) -> NullRow | None:
    """Exchange which sets of a client are called members."""
    entries = list[Entry[Membership]]()
    for place, entry in enumerate(group.of(SetMembership)):
        (scores, members), reason = _sets(entry, child(rng, "sets", place))
        if reason:
            return None
        answer = Membership(case=entry.answer.case, slice=entry.answer.slice, scores=scores)
        case = replace(entry.case, groups=torch.arange(len(scores)))
        entries.append(Entry(answer=answer, case=case, truth=replace(entry.truth, members=members)))
    return membership_test(replace(group, entries=tuple(entries)), child(rng, "exchanged"), permutations)


def _sets(entry: Entry[SetMembership], rng: torch.Generator) -> tuple[tuple[Tensor, Tensor], str]:
    """The scores of the client's sets (S,) and which are of members (S,), or why there are none."""
    answer, victim, nothing = entry.answer, entry.case.victim, (torch.zeros(0), torch.zeros(0, dtype=torch.bool))
    scores, members = answer.scores.detach().cpu().to(torch.float64), entry.truth.members
    if members is None:
        return nothing, f"nobody knows the members of {victim}"
    if scores.ndim != 2 or scores.shape[1:] != members.shape:
        raise ValueError(f"scores must be (models, {len(members)}), one column per candidate; got {scores.shape}.")
    if bool(scores.isnan().any()):
        return nothing, f"{int(scores.isnan().sum())} of {scores.numel()} scores of {victim} are NaN"
    inside, outside = _paired(entry, members.cpu(), rng)
    count = len(inside) // answer.size
    if count < LEAST:
        reason = f"{len(inside)} members of {victim} make {count} sets of {answer.size}; {LEAST} are needed"
        return nothing, reason
    images = torch.stack([side[: count * answer.size].reshape(count, answer.size) for side in (inside, outside)])
    return (scores[:, images.flatten(0, 1)].mean(2).amax(0), torch.arange(2 * count) < count), ""


def _paired(entry: Entry[SetMembership], members: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Members and others of the same classes, (P,) each, in the same random order."""
    candidates = entry.case.candidates
    labels = torch.zeros(len(members), dtype=torch.int64) if candidates is None else candidates.labels
    inside, outside = list[Tensor](), list[Tensor]()
    for label in labels.unique():
        own, others = (
            rows[torch.randperm(len(rows), generator=rng)]
            for rows in (((labels == label) & flags).nonzero().flatten() for flags in (members, ~members))
        )
        pairs = min(len(own), len(others))
        inside.append(own[:pairs])
        outside.append(others[:pairs])
    both = torch.stack([torch.cat(inside), torch.cat(outside)])
    mixed = both[:, torch.randperm(both.shape[1], generator=rng)]
    return mixed[0], mixed[1]

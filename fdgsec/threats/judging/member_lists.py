"""Judge lists of members: how often a whole list is right, and how many of those listed are members."""

import math

from fdgsec.metrics.interval import averaged
from fdgsec.metrics.measurement import Measurement
from fdgsec.metrics.proportion_intervals import clopper_pearson, clustered_proportion
from fdgsec.threats.answers import MemberList
from fdgsec.threats.judging.groups import Group, Scale, row, unavailable


def measure_lists(group: Group) -> list[Measurement]:
    """Give the share of clients whose list is exact, and the precision: the share of members among those listed.

    Chance is that of as many candidates drawn at random: one of all such lists, and the share of members. A client's
    list is a cluster of the precision's interval; where these are a few given vectors, the interval is about their
    lists alone, and as wide as if the same images were wrong in all."""
    entries, names = group.of(MemberList), ["exact_list", "precision"]
    exact, hits, listed, by_chance, blind = 0, list[int](), list[int](), list[float](), list[float]()
    for entry in entries:
        said, members = entry.answer.believed.cpu(), entry.truth.members
        if members is None:
            return unavailable(names, group.slice, f"nobody knows the members of {entry.case.victim}", n=len(entries))
        if said.shape != members.shape or said.dtype != members.dtype:
            raise ValueError(f"believed must be bool {tuple(members.shape)}; got {said.dtype} {tuple(said.shape)}.")
        count, among, size = int(said.sum()), int(members.sum()), len(members)
        exact += bool((said == members).all())
        hits.append(int((said & members).sum()))
        listed.append(count)
        by_chance.append(math.exp(-_log_choices(size, among)) if count == among else 0.0)
        blind.append(among / size)
    chance = Scale(chance=sum(by_chance) / len(by_chance))
    rows = [
        row(names[0], group.slice, exact / len(entries), clopper_pearson(exact, len(entries)), len(entries), chance)
    ]
    if not all(listed):
        return [*rows, *unavailable(names[1:], group.slice, "some lists are empty", n=len(entries))]
    share = Scale(chance=sum(part * count for part, count in zip(blind, listed, strict=True)) / sum(listed))
    value = sum(hits) / sum(listed)
    interval = clustered_proportion(hits, listed)
    if group.few_given:
        each = [clopper_pearson(right, count) for right, count in zip(hits, listed, strict=True)]
        interval = averaged(each, listed, "clopper-pearson")
    return [*rows, row(names[1], group.slice, value, interval, sum(listed), share)]


def _log_choices(size: int, count: int) -> float:
    """The logarithm of the number of lists of `count` of `size` candidates."""
    return math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)

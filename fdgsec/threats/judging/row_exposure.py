"""Judge pools of per-image rows: whose rows were published, and how many images a client holds."""

import torch

from fdgsec.metrics.interval import union
from fdgsec.metrics.intervals import cluster_bootstrap
from fdgsec.metrics.measurement import Measurement
from fdgsec.metrics.proportion_intervals import clopper_pearson
from fdgsec.threats.answers import Exposure, InferredSize
from fdgsec.threats.judging.groups import Group, Scale, median_row, row, unavailable

SIZE = "n_per_client"
"""The entry of a case's slice that says how many images its client holds."""


def measure_exposure(group: Group, rng: torch.Generator, *, repeats: int) -> list[Measurement]:
    """Give the share of a client's images that were correctly identified as published, averaged over clients.

    Chance is the hit rate of as many candidates drawn at random. The interval is the union of a bootstrap over clients
    and the exact one over their images, since clients hardly differ where all draw the same share."""
    entries, name = group.of(Exposure), "exposed_fraction"
    rates, blind, right, total = [], [], 0, 0
    for entry in entries:
        said, members, images = entry.answer.published.cpu(), entry.truth.members, entry.answer.images
        if members is None:
            return unavailable([name], group.slice, f"nobody knows what {entry.case.victim} published", n=len(entries))
        if said.shape != members.shape or said.dtype != torch.bool or images < int(members.sum()):
            raise ValueError(
                f"published must be bool {tuple(members.shape)} and images at least {int(members.sum())}; "
                f"got {said.dtype} {tuple(said.shape)} and {images}."
            )
        hits = int((said & members).sum())
        rates.append(hits / images)
        blind.append(int(said.sum()) * int(members.sum()) / len(members) / images)
        right, total = right + hits, total + images
    interval = clopper_pearson(right, total)
    if len(rates) > 1:
        drawn = cluster_bootstrap(rates, list(range(len(rates))), rng=rng, repeats=repeats, bounds=(0.0, 1.0))
        interval = union(interval, drawn, drawn.method)
    return [row(name, group.slice, sum(rates) / len(rates), interval, total, Scale(chance=sum(blind) / len(blind)))]


def measure_size(group: Group) -> list[Measurement]:
    """Give the median over clients of |inferred - true| / true; chance is the guess without the client's release."""
    entries, name = group.of(InferredSize), "relative_error"
    errors, without = [], []
    for entry in entries:
        true = entry.case.slice.get(SIZE)
        if not isinstance(true, int) or true < 1:
            reason = f"nobody knows the size of {entry.case.victim} in the {entry.case.question} run"
            return unavailable([name], group.slice, reason, n=len(entries))
        errors.append(abs(entry.answer.images - true) / true)
        without.append(abs(entry.answer.without - true) / true)
    own, blind = torch.tensor(errors, dtype=torch.float64), torch.tensor(without, dtype=torch.float64)
    scale = Scale(chance=float(blind.quantile(0.5)), chance_kind="measured", higher_is="safe")
    return [median_row(name, group.slice, own, scale, bounds=(0.0, None), without=blind)]

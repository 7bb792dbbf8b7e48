"""Describe published medians: the clusters behind them, and how many of their numbers are somebody's own."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fdgsec.metrics.measurement import Measurement
from fdgsec.threats.answers import PublishedMedian
from fdgsec.threats.judging.groups import Group, Scale, row, unavailable

DESCRIPTIVE = Scale(chance=None, chance_kind="none", higher_is="descriptive")


def measure_medians(group: Group) -> list[Measurement]:
    """Give numbers and sizes of clusters, and the shares of coordinates that are copied; nothing to judge.

    Raises ValueError for two answers in one slice: shares of different federations are not averaged."""
    entries = group.of(PublishedMedian)
    if len(entries) > 1:
        raise ValueError(f"one published style a slice; {dict(group.slice)} has {len(entries)}.")
    answer = entries[0].answer
    sizes = torch.bincount(answer.labels)
    counted = {
        "clusters": len(sizes),
        "smallest_cluster": int(sizes.min()),
        "largest_cluster": int(sizes.max()),
        "singleton_clusters": int((sizes == 1).sum()),
    }
    rows = [
        row(name, _where(group, {"sizes": _listed(sizes)} if name == "clusters" else {}), value, None,
            len(answer.labels), DESCRIPTIVE)
        for name, value in counted.items()
    ]  # fmt: skip
    for owner, copied in {"clients": answer.of_clients, "cluster means": answer.of_clusters}.items():
        rows += _copied(group, owner, copied, answer.varies)
    return rows


def _copied(group: Group, owner: str, copied: Tensor, varies: Tensor) -> list[Measurement]:
    """Shares of all columns, and of those that vary, that equal some owner's number, and the largest single one's."""
    rows: list[Measurement] = []
    for columns, kept in {"all": torch.ones_like(varies), "varying": varies}.items():
        where = _where(group, {"copied_from": owner, "columns": columns})
        names = ["verbatim_fraction", "largest_source_fraction"]
        if not bool(kept.any()):
            rows += unavailable(names, where, "all clients have the same number in every column")
            continue
        shares = copied[:, kept].double()
        values = float(shares.amax(0).mean()), float(shares.mean(1).max())
        rows += [
            row(name, where, value, None, int(kept.sum()), DESCRIPTIVE)
            for name, value in zip(names, values, strict=True)
        ]
    return rows


def _where(group: Group, more: Mapping[str, str]) -> Mapping[str, str | int]:
    return {**group.slice, **more}


def _listed(sizes: Tensor) -> str:
    """How many clusters there are of each size, the largest first: "1 of 5, 3 of 2"."""
    found: Sequence[tuple[int, int]] = [(int(size), int((sizes == size).sum())) for size in sizes.unique().flip(0)]
    return ", ".join(f"{count} of {size}" for size, count in found)

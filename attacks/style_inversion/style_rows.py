"""Style rows, the inputs of inversion: of single images, released or from two pooled releases, and pooled ones.

Pooled are a client's style (CCST's overall one, FISC's), the center of StableFDG's distribution, and FISC's
interpolation style, which is the same for all clients. They have no single image behind them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fdgsec.attacks.style_inversion.inverter import style_features, style_from_linear
from fdgsec.federation.artifacts import InterpolationStyle, StyleDistribution, StyleStatistics
from fdgsec.federation.released_statistics import MeanStyles, StyleDistributions
from fdgsec.nn.styles.channel_statistics import EPS, Moments, linear_statistic, unbiased_to_biased
from fdgsec.runtime.errors import UsageError
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.attack import Case, QuestionKind

Kind = Literal["released", "as_if_released", "difference", "pooled", "interpolation"]
KINDS: Mapping[QuestionKind, tuple[Kind, ...]] = {
    "released": ("released",),
    "as_if_released": ("as_if_released",),
    "add_one_record": ("difference",),
    "resampled_clients": ("pooled", "interpolation"),
}
SINGLE_IMAGE_KINDS: frozenset[Kind] = frozenset({"released", "as_if_released"})
"""Kinds with many rows per case; of the others every case has one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Style rows of one population: `features` (R, 2C), and how many of them belong to each of `cases`.

    `domain` is the victim's: "mixed" where its images are of several, None where the adversary does not know it.
    `averaged` says that pooled rows average their images' styles (StableFDG), not their pixels."""

    kind: Kind
    domain: str | None
    cases: tuple[int, ...]
    sizes: tuple[int, ...]
    features: Tensor
    averaged: bool = False

    @property
    def pooled(self) -> bool:
        """Whether the rows have no single image behind them."""
        return self.kind in ("pooled", "interpolation")


def populations(cases: Sequence[Case], knowledge: Knowledge) -> list[Rows]:
    """Rows that are answered together: those of one case, or, where each case has one row, all of one domain.

    Cases whose pooled release was not seen have no rows."""
    groups: dict[tuple[Kind, str | None, int], list[int]] = {}
    for number, case in enumerate(cases):
        for kind in KINDS.get(case.question, ()):
            groups.setdefault((kind, case.domain, number if kind in SINGLE_IMAGE_KINDS else -1), []).append(number)
    result = []
    for (kind, domain, _), numbers in groups.items():
        read = {number: READERS[kind](cases[number], knowledge) for number in numbers}
        parts = {number: part for number, part in read.items() if part is not None}
        if parts:
            averaged = isinstance(knowledge.released_statistic, StyleDistributions | MeanStyles)
            sizes = tuple(len(part) for part in parts.values())
            features = torch.cat(list(parts.values()))
            result.append(
                Rows(kind=kind, domain=domain, cases=tuple(parts), sizes=sizes, features=features, averaged=averaged)
            )
    return result


def _released(case: Case, knowledge: Knowledge) -> Tensor:
    """Rows of single images, whose released std is unbiased, (R, 2C)."""
    mean, std = case.released()
    pixels = _pixels(case, mean.shape[1], knowledge)
    return style_features(mean, unbiased_to_biased(std, pixels=pixels))


def _difference(case: Case, knowledge: Knowledge) -> Tensor:
    """The added record's own style, from two pooled releases (1, 2C); both kinds are means over images."""
    if case.records is None:
        raise UsageError(
            f"the difference of two releases needs the number of records of {case.victim}; it is not known."
        )
    n = case.records
    before, after = (_center(case, run, knowledge) for run in (0, 1))
    if before is None or after is None:
        before, after = (linear_statistic(*case.released(run)) for run in (0, 1))
        return style_features(*style_from_linear((n + 1) * after - n * before))
    return style_features(*_biased_style(case, (n + 1) * after - n * before, knowledge))


def _pooled(case: Case, knowledge: Knowledge) -> Tensor | None:
    """A client's one style, (1, 2C)."""
    center = _center(case, 0, knowledge)
    if center is not None:
        return style_features(*_biased_style(case, center, knowledge))
    seen = case.views[0].styles(case.victim)
    return None if seen is None or len(seen[0]) != 1 else style_features(seen[0].double(), seen[1].double())


def _interpolation(case: Case) -> Tensor | None:
    """The interpolation style that all clients received, (1, 2C)."""
    sent = case.views[0].latest(InterpolationStyle)
    return None if sent is None else style_features(sent.mean.double()[None], sent.std.double()[None])


def _center(case: Case, run: int, knowledge: Knowledge) -> Tensor | None:
    """The mean (mu, sigma) of the victim's images, (1, 2C), where it sent that: the center of a distribution, or a mean
    of styles."""
    sent = case.views[run].artifact(case.victim)
    if isinstance(sent, StyleStatistics) and not isinstance(knowledge.released_statistic, MeanStyles):
        return None  # its std is that of all pixels
    if isinstance(sent, StyleDistribution | StyleStatistics):
        return torch.cat([sent.mean, sent.std]).double()[None]
    return None


def _biased_style(case: Case, statistic: Tensor, knowledge: Knowledge) -> tuple[Tensor, Tensor]:
    """Mean and std, (1, C) each, of a center: the std that divides by the number of pixels and includes our epsilon."""
    mean, std = statistic.chunk(2, dim=1)
    released_statistic = knowledge.released_statistic
    eps, unbiased = EPS, True
    if isinstance(released_statistic, StyleDistributions | MeanStyles):
        eps = released_statistic.eps
        unbiased = isinstance(released_statistic, StyleDistributions) and released_statistic.unbiased
    pixels = _pixels(case, mean.shape[1], knowledge)
    variance = (std.clamp_min(0).square() - eps).clamp_min(0) * ((pixels - 1) / pixels if unbiased else 1.0)
    return mean, (variance + EPS).sqrt()


def _pixels(case: Case, channels: int, knowledge: Knowledge) -> int:
    """The number of cells of a feature map. Raises UsageError where `channels` are not the encoder's."""
    sample = _sample(knowledge)
    if sample.channels != channels:
        raise UsageError(
            f"{case.victim} released {channels} channels; encoder {knowledge.encoder} has {sample.channels}."
        )
    return int(sample.count[0])


def _sample(knowledge: Knowledge) -> Moments:
    known = next((d for d in (knowledge.auxiliary, knowledge.unseen, knowledge.own) if d is not None and len(d)), None)
    if known is None:
        raise UsageError("style-inversion needs images to learn from; the adversary knows none (see --adversary).")
    return knowledge.statistics(known.subset(torch.arange(1)))


READERS: Mapping[Kind, Callable[[Case, Knowledge], Tensor | None]] = {
    "released": _released,
    "as_if_released": _released,
    "difference": _difference,
    "pooled": _pooled,
    "interpolation": lambda case, _: _interpolation(case),
}

"""The style rows that inversion is shown: released as such, or recovered as the difference of two pooled releases."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fdgsec.adversaries import Knowledge
from fdgsec.errors import UsageError
from fdgsec.inversion import style_features, style_from_linear
from fdgsec.styles import linear_statistic, unbiased_to_biased
from fdgsec.threats import Case, RequestKind

Kind = Literal["released", "as_if_released", "difference"]
KINDS: dict[RequestKind, Kind] = {
    "released": "released",
    "as_if_released": "as_if_released",
    "add_one_record": "difference",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Style rows of one population: `features` (R, 2C), and how many of them belong to each of `cases`.

    `domain` is the victim's: "mixed" where its images are of several, None where the adversary does not know."""

    kind: Kind
    domain: str | None
    cases: tuple[int, ...]
    sizes: tuple[int, ...]
    features: Tensor


def populations(cases: Sequence[Case], knowledge: Knowledge) -> list[Rows]:
    """Rows that are answered together: those of one case, or, for differences, all of one domain."""
    groups: dict[tuple[RequestKind, str | None, int], list[int]] = {}
    for number, case in enumerate(cases):
        if case.request in KINDS:
            alone = -1 if case.request == "add_one_record" else number
            groups.setdefault((case.request, case.domain, alone), []).append(number)
    result = []
    for (request, domain, _), numbers in groups.items():
        read = _difference if request == "add_one_record" else _released
        parts = [read(cases[number], knowledge) for number in numbers]
        sizes = tuple(len(part) for part in parts)
        features = torch.cat(parts)
        result.append(Rows(kind=KINDS[request], domain=domain, cases=tuple(numbers), sizes=sizes, features=features))
    return result


def _difference(case: Case, knowledge: Knowledge) -> Tensor:
    """The added record's own style, from two pooled releases (1, 2C)."""
    if case.records is None:
        raise UsageError(
            f"the difference of two releases needs the number of records of {case.victim}; it is not known."
        )
    n = case.records
    before, after = (linear_statistic(*case.released(run)) for run in (0, 1))
    return style_features(*style_from_linear((n + 1) * after - n * before))


def _released(case: Case, knowledge: Knowledge) -> Tensor:
    """Rows of single images, whose released std is unbiased, (R, 2C)."""
    mean, std = case.released()
    known = next((d for d in (knowledge.auxiliary, knowledge.unseen, knowledge.own) if d is not None and len(d)), None)
    if known is None:
        raise UsageError("style-inversion needs images to learn from; the adversary knows none (see --adversary).")
    sample = knowledge.statistics(known.subset(torch.arange(1)))
    if sample.channels != mean.shape[1]:
        raise UsageError(
            f"{case.victim} released {mean.shape[1]} channels; encoder {knowledge.encoder} has {sample.channels}."
        )
    return style_features(mean, unbiased_to_biased(std, pixels=int(sample.count[0])))

"""Membership in rows of single images: the candidate whose style comes nearest to one of them (fdgsec.privacy.row_matching)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fdgsec.adversaries import Knowledge
from fdgsec.data.domains import DomainDataset
from fdgsec.errors import UsageError
from fdgsec.privacy.blur import blur_of_styles, styles_made, styles_read
from fdgsec.privacy.populations import different
from fdgsec.privacy.row_matching import ROUNDING, nearest_row, random_crops
from fdgsec.privacy.tracing import fit_whitening
from fdgsec.rng import child, stream
from fdgsec.styles import Moments
from fdgsec.threats import Case, Membership, Prediction

_Look = Callable[[Moments, Tensor], Tensor]
RELEASED = {"test": "look-up", "question": "released image"}
CLIENTS = {"test": "look-up", "question": "client's image"}


@dataclass(frozen=True, kw_only=True)
class Crops:
    """What k-crop matching looks at: `count` random crops of `least` of the area at least, of up to `most` candidates.

    Each look is an encoder pass over all candidates of a question."""

    count: int
    least: float
    most: int


def row_answers(
    numbers: Sequence[int],
    cases: Sequence[Case],
    knowledge: Knowledge,
    *,
    crops: Crops | None = None,
    rng: torch.Generator | None = None,
) -> list[Membership]:
    """Score each candidate by how near its style comes to a released row.

    Where all of a client's images are among the candidates and yet none has the style of any row, styles were not taken
    of whole images: with `crops` a second answer is the nearest of the whole image and of its crops."""
    answers, unmatched = [], dict[int, Tensor]()
    looks = _Looks(knowledge=knowledge, crops=crops)
    for number in numbers:
        case = cases[number]
        near = looks.at(case)(knowledge.statistics(_candidates(case)), _rows(case))
        where = {**RELEASED, "look": "whole image"} if case.request == "rounds" else CLIENTS
        answers.append(Membership(case=number, slice=where, scores=-near))
        if case.request == "rounds" and bool((near > ROUNDING).all()) and bool(near.isfinite().all()):
            unmatched[number] = near
    if crops is None or rng is None:
        return answers
    few = {number: near for number, near in unmatched.items() if len(near) <= crops.most}
    return answers + _cropped_answers(few, cases, knowledge, looks=looks, crops=crops, rng=rng)


def _look(knowledge: Knowledge, least: float | None) -> _Look:
    """How near an image's style comes to the nearest row: with a defense, in units of what that does to rows.

    Rows of random crops (of at least `least` of the area) differ from the whole image by more than noise: the units are
    then those of both, as the adversary's own images and their crops show them."""
    if knowledge.defended is None or (knowledge.auxiliary is None and knowledge.own is None):
        return nearest_row
    images, coins = knowledge.public_images(), stream(0, "attack", "blur of rows")  # says what noise is like, no secret
    blur = blur_of_styles(knowledge, images)
    assert blur is not None
    rows, off = styles_read(styles_made(knowledge)(images)), torch.zeros(())
    if least is None:
        for domain in images.domains.unique():
            rows[images.domains == domain] -= rows[images.domains == domain].mean(0)
        whiten = blur.whitening(fit_whitening(rows))
    else:
        cut = random_crops(images, least=least, rng=child(coins, "crops"))
        gaps = styles_read(styles_made(knowledge)(cut)) - rows
        off, whiten = gaps.mean(0), fit_whitening(gaps).blurred(blur.variance)

    def nearest(found: Moments, seen: Tensor) -> Tensor:
        placed = whiten(blur.placed(torch.cat(found.style(unbiased=True), dim=1)) + off)
        apart = torch.cdist(placed, whiten(seen), compute_mode="donot_use_mm_for_euclid_dist")
        return apart.min(1).values if len(seen) else torch.full((len(placed),), torch.inf, dtype=torch.float64)

    return nearest


@dataclass(kw_only=True)
class _Looks:
    """The look for each kind of rows, made when it is first asked for."""

    knowledge: Knowledge
    crops: Crops | None
    made: dict[float | None, _Look] = field(default_factory=dict)

    def at(self, case: Case) -> _Look:
        """How to look at the rows of `case`: how its method cuts images before it takes styles is public."""
        cut = self.crops is not None and case.slice.get("extraction") == "random crop"
        least = self.crops.least if self.crops is not None and cut else None
        if least not in self.made:
            self.made[least] = _look(self.knowledge, least)
        return self.made[least]


def _cropped_answers(
    nearest: Mapping[int, Tensor],
    cases: Sequence[Case],
    knowledge: Knowledge,
    *,
    looks: _Looks,
    crops: Crops,
    rng: torch.Generator,
) -> list[Membership]:
    """Score by the nearest of each whole image, whose distances are given per case, and of its crops."""
    if not nearest or not crops.count:
        return []
    found = dict(nearest)
    images, places = different([_candidates(cases[n]) for n in found])
    for turn in range(crops.count):
        seen = knowledge.statistics(random_crops(images, least=crops.least, rng=child(rng, turn)))
        for number, mine in zip(nearest, places, strict=True):
            found[number] = torch.minimum(found[number], looks.at(cases[number])(seen.rows(mine), _rows(cases[number])))
    where = {**RELEASED, "look": f"{crops.count} crops"}
    return [Membership(case=number, slice=where, scores=-near) for number, near in found.items()]


def _candidates(case: Case) -> DomainDataset:
    if case.candidates is None:
        raise UsageError("membership tests candidates; a case came without any.")
    return case.candidates


def _rows(case: Case) -> Tensor:
    """All rows that were seen of the victim, (R, 2C)."""
    return torch.cat([torch.cat(case.released(run), dim=1) for run in range(len(case.views))])


def exposures(numbers: Sequence[int], cases: Sequence[Case]) -> list[Prediction]:
    """Of each client's images the share r that was released, and the AUC (1 + r)/2 of whoever finds just these."""
    answers = []
    for number in numbers:
        case = cases[number]
        if case.request != "resampled_clients" or not case.records:
            continue
        share = min(len(_rows(case)) / case.records, 1.0)
        answers += [
            Prediction(case=number, name="exposed_fraction", value=share, slice=CLIENTS),
            Prediction(case=number, name="theory_auc", value=(1 + share) / 2, slice=CLIENTS),
        ]
    return answers

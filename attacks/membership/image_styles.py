"""Membership by look-up: whether a candidate's style is among the released rows of single images.

Such a style is a fixed function of its image, so the two agree up to the rounding of the release. Conventions that
differ between methods (division by HW or HW - 1, the epsilon inside the root) are public, and all are tried. Where
images were cropped at random before their styles were taken, the adversary compares several crops of its own with every
row, and uses the nearest, whose distance falls with the number of crops."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from fdgsec.attacks.statistics.defense_noise import (
    defended_alike,
    defended_rows,
    defense_noise_of_styles,
    read_style_rows,
    style_rows_of,
)
from fdgsec.attacks.statistics.domain_populations import distinct_images
from fdgsec.attacks.statistics.style_conventions import CONVENTIONS
from fdgsec.attacks.statistics.tracing import fit_whitening
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.nn.training.batches import augment
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child, stream
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Membership, Prediction
from fdgsec.threats.attack import Case

_RowDistance = Callable[[Moments, Tensor], Tensor]
RELEASED = {"test": "look-up", "question": "released image"}
CLIENTS = {"test": "look-up", "question": "client's image"}


@dataclass(frozen=True, kw_only=True)
class Crops:
    """Options of k-crop matching: `count` random crops of at least `least` of the area, for up to `most` candidates.

    Each crop is an encoder pass over all candidates of a question."""

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
    """Score each candidate by the distance of its style from the nearest released row.

    Where all of a client's images are among the candidates and none has the style of any row, styles were not taken of
    whole images. With `crops` a second answer is the nearest of the whole image and of its crops."""
    answers, unmatched = [], dict[int, Tensor]()
    looks = _RowDistances(knowledge=knowledge, crops=crops)
    for number in numbers:
        case = cases[number]
        near = looks.at(case)(knowledge.statistics(_candidates(case)), _rows(case))
        where = {**RELEASED, "look": "whole image"} if case.question == "rounds" else CLIENTS
        answers.append(Membership(case=number, slice=where, scores=-near))
        if case.question == "rounds" and bool((near > ROUNDING).all()) and bool(near.isfinite().all()):
            unmatched[number] = near
    if crops is None or rng is None:
        return answers
    few = {number: near for number, near in unmatched.items() if len(near) <= crops.most}
    return answers + _cropped_answers(few, cases, knowledge, looks=looks, crops=crops, rng=rng)


def _row_distance(knowledge: Knowledge, least: float | None) -> _RowDistance:
    """The distance of an image's style from the nearest row; under a defense, in units of the defense's noise.

    Where the defense draws nothing and acts row by row, images pass through it and are compared exactly.

    Rows of random crops (of at least `least` of the area) differ from the whole image by more than noise. The units are
    then those of both, estimated from crops of the adversary's own images."""
    if knowledge.defended is None or (knowledge.auxiliary is None and knowledge.own is None):
        return nearest_row_distance
    if least is None and defended_alike(knowledge, made=style_rows_of(knowledge), read=read_style_rows):
        return partial(nearest_row_distance, sent=partial(defended_rows, knowledge))
    images, rng = knowledge.public_images(), stream(0, "attack", "blur of rows")  # public: describes the noise only
    defense_noise = defense_noise_of_styles(knowledge, images)
    assert defense_noise is not None
    rows, off = read_style_rows(style_rows_of(knowledge)(images)), torch.zeros(())
    if least is None:
        for domain in images.domains.unique():
            rows[images.domains == domain] -= rows[images.domains == domain].mean(0)
        whiten = defense_noise.whitening(fit_whitening(rows))
    else:
        cut = random_crops(images, least=least, rng=child(rng, "crops"))
        gaps = read_style_rows(style_rows_of(knowledge)(cut)) - rows
        off, whiten = gaps.mean(0), fit_whitening(gaps).blurred(defense_noise.variance)

    def nearest(found: Moments, seen: Tensor) -> Tensor:
        placed = whiten(defense_noise.placed(torch.cat(found.style(unbiased=True), dim=1)) + off)
        apart = torch.cdist(placed, whiten(seen), compute_mode="donot_use_mm_for_euclid_dist")
        return apart.min(1).values if len(seen) else torch.full((len(placed),), torch.inf, dtype=torch.float64)

    return nearest


@dataclass(kw_only=True)
class _RowDistances:
    """The distance function for each kind of rows, made when it is first needed."""

    knowledge: Knowledge
    crops: Crops | None
    made: dict[float | None, _RowDistance] = field(default_factory=dict)

    def at(self, case: Case) -> _RowDistance:
        """The distance function for the rows of `case`; how its method crops images before it takes styles is
        public."""
        cut = self.crops is not None and case.slice.get("extraction") == "random crop"
        least = self.crops.least if self.crops is not None and cut else None
        if least not in self.made:
            self.made[least] = _row_distance(self.knowledge, least)
        return self.made[least]


def _cropped_answers(
    nearest: Mapping[int, Tensor],
    cases: Sequence[Case],
    knowledge: Knowledge,
    *,
    looks: _RowDistances,
    crops: Crops,
    rng: torch.Generator,
) -> list[Membership]:
    """Score by the nearest of each whole image, whose distances are given per case, and of its crops."""
    if not nearest or not crops.count:
        return []
    found = dict(nearest)
    images, places = distinct_images([_candidates(cases[n]) for n in found])
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
    """For each client, the share r of its images that was released, and the AUC (1 + r)/2 of finding exactly these."""
    answers = []
    for number in numbers:
        case = cases[number]
        if case.question != "resampled_clients" or not case.records:
            continue
        share = min(len(_rows(case)) / case.records, 1.0)
        answers += [
            Prediction(case=number, name="exposed_fraction", value=share, slice=CLIENTS),
            Prediction(case=number, name="one_candidate_auc", value=(1 + share) / 2, slice=CLIENTS),
        ]
    return answers


ROUNDING = 2.0**-21
"""Relative distances below this count as equality: a few units in the last place of float32, whose rounding is
2^-24."""
AT_ONCE = 64


def nearest_row_distance(
    found: Moments, rows: Tensor, sent: Callable[[Tensor], Tensor] = lambda style: style
) -> Tensor:
    """Each image's distance to the nearest of `rows` (R, 2C), relative to the row's length, (n,), at least ROUNDING.

    `sent` makes rows of styles (n, 2C) what would be received of them. Infinite where there are no rows. Holds (n, R)
    distances at a time, never those between images."""
    if not len(rows):
        return torch.full((len(found),), torch.inf, dtype=torch.float64)
    released = rows.to(torch.float64)
    length = released.norm(dim=1).clamp_min(torch.finfo(torch.float64).tiny)
    nearest = torch.full((len(found),), torch.inf, dtype=torch.float64)
    for unbiased, eps in CONVENTIONS:
        own = sent(torch.cat(found.style(unbiased=unbiased, eps=eps), dim=1).float()).double()
        apart = torch.cdist(own, released, compute_mode="donot_use_mm_for_euclid_dist") / length
        nearest = torch.minimum(nearest, apart.min(1).values)
    return nearest.clamp_min(ROUNDING)


def random_crops(images: DomainDataset, *, least: float, rng: torch.Generator) -> DomainDataset:
    """One random resized crop (`least` to all of the area, sides 3:4 to 4:3) of each image, as in training.

    A dataset of new pixels under the old names. Raises UsageError unless 0 < least <= 1."""
    plan = TrainingPlan(crop=(least, 1.0), flip=0.0)
    parts = [
        (augment(as_float(images.pixels(rows)), plan, rng) * 255).round().clamp(0, 255).to(torch.uint8)
        for rows in torch.arange(len(images)).split(AT_ONCE)
    ]
    store = torch.cat(parts) if parts else torch.zeros(1, 3, *images.image_size, dtype=torch.uint8)
    return replace(images, name=f"{images.name} (crops)", store=store, rows=torch.arange(len(images)))

"""Canaries for audits of messages: values far outside the clipping region, scored along one direction.

A statistic has two: along one number (or along the means of colors), where noise leaves most evidence, and along all
other numbers, where a clip that leaves a part of them out shows. Where a few releases show a number with far less noise
than most, a third one lies along it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from fdgsec.experiments.audit.neighboring_clients import Canary, Release, Site, judged, numbers
from fdgsec.experiments.audit.noise_shape import DRAWS_A_NUMBER, thinnest_direction
from fdgsec.experiments.audit.planted_statistics import PlantedStatisticSource, is_pooled
from fdgsec.federation.artifacts import Amplitudes, Artifact, ModelState, Scores
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.public_clip_bounds import (
    Reference,
    client_region,
    pooled_frame,
    row_region,
    rows_of,
    shared_rows,
    with_rows,
)
from fdgsec.privacy.accounting import Unit, Use
from fdgsec.privacy.clipping import HalfDiscs
from fdgsec.runtime.random_streams import stream

FAR = 10.0
"""The distance of a canary from the center, in clipping radii."""
QUIET_DRAWS = 24
"""Releases by which the number with the least noise is found."""
EACH_ONCE = 2
"""Draws that are a number's smallest or largest, where none was cut."""
QUIET = 0.25
"""It has a canary of its own where its standard deviation is no more than this part of the median one."""
THINNEST = "the direction with the least noise"
DIRECTIONS = 512
"""Numbers among whose directions it is sought: a draw takes milliseconds."""
FARTHER = 1e6
"""The distance of one along all other numbers, so that a single number that is not clipped shows."""


@runtime_checkable
class ClipsAboutPublic(Protocol):
    """The public options of a defense that clips around the statistics of public images."""

    @property
    def clip(self) -> float | str:
        """The clipping bound, or "auto"."""
        ...

    @property
    def quantile(self) -> float:
        """The quantile of public distances that "auto" uses as bound."""
        ...

    @property
    def center(self) -> str:
        """ "public" or "zero"."""
        ...

    @property
    def scale(self) -> str:
        """ "public" or "none"."""
        ...


def canaries_of(
    site: Site, release: Release, uses: Sequence[Use], unit: Unit, *, thin: bool = False
) -> Sequence[Canary]:
    """Choose the canaries for a kind of release, each of them for an audit of its own. Raises UsageError for none.

    With `thin`, statistics have one along the direction with the least noise too, which takes many draws to find."""
    if release.step == "fit":
        return [_learned(release, max(bound for use in uses for bound in use.sensitivity.values()))]
    if release.step == "review":
        return [_mislabeled(site)]
    reference = reference_of(site.defense_stack)
    if is_pooled(release, unit):
        return _pooled(site, release, reference, thin=thin)
    return _rows(release, reference, site.defense_stack, every=unit == "client", thin=thin)


def noise_coordinates(defense_stack: DefenseStack, release: Release, unit: Unit) -> Callable[[Artifact], Tensor]:
    """How to read the numbers (D,) to which a mechanism adds its noise: those of an artifact, or of a pooled statistic.

    They are in the order of the artifact's tensors."""
    if not is_pooled(release, unit):
        return numbers
    frame, images = (
        pooled_frame(release.sender, release.slot, reference_of(defense_stack)),
        len(release.sender.client.data),
    )

    def coordinates(artifact: Artifact) -> Tensor:
        released = frame.released_statistic.release(artifact, images=images)[0]
        return frame.released_statistic.about(released, frame.about)

    return coordinates


def reference_of(defense_stack: DefenseStack) -> Reference:
    """The public options by which a stack's defense clips."""
    for defense in defense_stack.defenses:
        if isinstance(defense, ClipsAboutPublic):
            return Reference(
                bound=None if isinstance(defense.clip, str) else defense.clip, quantile=defense.quantile,
                centered=defense.center == "public", scaled=defense.scale == "public",
            )  # fmt: skip
    return Reference()


def _pooled(site: Site, release: Release, reference: Reference, *, thin: bool) -> Sequence[Canary]:
    """An image whose first channel mean, or every other number, is far out; only its statistic is replaced."""
    frame, statistic_source = pooled_frame(release.sender, release.slot, reference), release.sender.statistic_source
    assert statistic_source is not None
    data, center = site.client.data, frame.region.values(torch.zeros_like(frame.about))
    scale = frame.region.values(torch.ones_like(center)) - center
    without_first = replace(site.client, data=data.subset(torch.arange(1, len(data))))

    def coordinates(artifact: Artifact) -> Tensor:
        released = frame.released_statistic.release(artifact, images=len(data))[0]
        return (frame.released_statistic.about(released, frame.about) - center) / scale

    def canary(direction: Tensor, distance: float, where: str, *, upward: bool = False) -> Canary:
        looks: Mapping[int, PlantedStatisticSource] = {
            side: PlantedStatisticSource(
                statistic_source=statistic_source, client=data,
                statistics=frame.released_statistic.from_about(
                    frame.region.values(side * distance * frame.region.radius * direction), frame.about
                ).unsqueeze(0),
            )
            for side in (-1, 0, 1)
        }  # fmt: skip

        return Canary(
            words=f"an image that is {distance:g} clipping radii from the center in {where}",
            plant=lambda given, side: replace(given, sender=replace(given.sender, statistic_source=looks[side])),
            score=lambda artifact: float(coordinates(artifact) @ direction),
            beside=[lambda artifact: float(coordinates(artifact) @ _first_half(direction))] if upward else (),
            without=lambda given: replace(given, sender=replace(given.sender, client=without_first)),
            upward=upward,
        )

    first, others = _first_and_others(torch.arange(len(center)) == 0)
    found = [canary(first, FAR, "its first channel mean")]
    found += [canary(others, FARTHER, "all else", upward=True)] if others.any() else []
    quiet = _quietest(release, site.defense_stack, coordinates)
    found += [] if quiet is None else [canary(quiet.double(), FAR, "the number with the least noise")]
    thinnest = _thinnest(release, site.defense_stack, coordinates) if thin else None
    return found if thinnest is None else [*found, canary(thinnest, FAR, THINNEST)]


def _quietest(
    release: Release,
    defense_stack: DefenseStack,
    read: Callable[[Artifact], Tensor],
    raw: Callable[[Artifact], Tensor] = numbers,
) -> Tensor | None:
    """Flags (D,) of the one number with far less noise than most; None where there is none.

    `read` gives an artifact's numbers (D,) in units of the mechanism, `raw` the same ones as they are sent: those that
    were cut, to one value in several draws, are left out."""
    names = [f"{defense_stack.name}/quiet/{run}" for run in range(QUIET_DRAWS)]
    sent = [release.sent(replace(defense_stack, name=name))[0] for name in names]
    drawn = torch.stack([raw(artifact) for artifact in sent])
    whole = ((drawn == drawn.amin(0)) | (drawn == drawn.amax(0))).sum(0) <= EACH_ONCE
    size = torch.where(whole, torch.stack([read(artifact) for artifact in sent]).std(0), torch.inf)
    known = size[whole]
    if len(known) < EACH_ONCE or float(known.min()) > QUIET * float(known.median()):
        return None
    return torch.arange(len(size)) == size.argmin()


def _thinnest(
    release: Release,
    defense_stack: DefenseStack,
    read: Callable[[Artifact], Tensor],
    raw: Callable[[Artifact], Tensor] = numbers,
) -> Tensor | None:
    """The direction (D,) with the least noise; None where too few numbers are not cut. `read` and `raw` as above."""
    size = len(read(release.sent(defense_stack)[0]))
    names = [f"{defense_stack.name}/thin/{run}" for run in range(DRAWS_A_NUMBER * min(size, DIRECTIONS))]
    sent = [release.sent(replace(defense_stack, name=name))[0] for name in names]
    drawn = torch.stack([raw(artifact) for artifact in sent])
    whole = ((drawn == drawn.amin(0)) | (drawn == drawn.amax(0))).sum(0) <= EACH_ONCE
    return thinnest_direction(torch.stack([read(artifact) for artifact in sent]), whole.expand(len(names), -1))


def _first_and_others(first: Tensor) -> tuple[Tensor, Tensor]:
    """Directions (D,) of length 1 along the `first` numbers (D,), and along all others (0 where there are none)."""
    one, other = first.double(), (~first).double()
    return one / one.norm(), other / other.norm().clamp_min(1)


def _first_half(direction: Tensor) -> Tensor:
    """The part of a direction (D,) along means, whose noise is never cut at 0."""
    return torch.where(torch.arange(len(direction)) < len(direction) // 2, direction, 0.0)


def _rows(
    release: Release, reference: Reference, defense_stack: DefenseStack, *, every: bool, thin: bool
) -> Sequence[Canary]:
    """A row, or all rows of the client, far from the center in the widest direction of the region, or in all others."""
    single = shared_rows(release.sender.state, release.slot) is not None
    region = (row_region if single else client_region)(release.sender, release.slot, reference)
    zeros = torch.zeros_like(rows_of(release.artifact)[0])
    center = region.values(zeros)
    scale = region.values(zeros + 1) - center
    place = torch.arange(len(zeros))
    first = place == 0
    if isinstance(region, HalfDiscs):
        first = place < len(place) // 2
    elif isinstance(release.artifact, Amplitudes):  # nonnegative values can move farthest where they are largest
        first = place == (center / scale).argmax()
    planted = slice(None) if every else slice(0, 1)
    whose = "every row of the client" if every else "the row of one image"

    def canary(numbers: Tensor, distance: float, where: str, *, upward: bool = False) -> Canary:
        direction = distance * region.radius * numbers.double()
        toward = region.inside(region.values(direction)) / scale

        def plant(given: Release, side: int) -> Release:
            values = rows_of(given.artifact).clone()
            values[planted] = region.values(side * direction)
            return replace(given, artifact=with_rows(given.artifact, values))

        def along(part: Tensor) -> Callable[[Artifact], float]:
            return lambda artifact: float(((rows_of(artifact)[planted] - center) @ part).sum())

        return Canary(
            words=f"{whose}, {distance:g} clipping radii from the center in {where}",
            plant=plant,
            score=along(toward),
            beside=[along(_first_half(toward))] if upward else (),
            upward=upward,
        )

    found = [canary(first, FAR, "one direction")]
    found += [] if first.all() else [canary(~first, FARTHER, "all else", upward=True)]

    def row(artifact: Artifact) -> Tensor:
        return rows_of(artifact)[planted].mean(0)

    def coordinates(artifact: Artifact) -> Tensor:
        return (row(artifact) - center) / scale

    quiet = _quietest(release, defense_stack, coordinates, row)
    found += [] if quiet is None else [canary(quiet, FAR, "the number with the least noise")]
    thinnest = _thinnest(release, defense_stack, coordinates, row) if thin else None
    return found if thinnest is None else [*found, canary(thinnest, FAR, THINNEST)]


def _learned(release: Release, bound: float) -> Canary:
    """A model update that is as large in every tensor, so that a clip of each by itself shows.

    A third of its numbers are zero, so that what is done to numbers that do not change shows as well."""
    assert release.sender.model is not None
    parameters = dict(release.sender.model.module().named_parameters())
    toward = dict(zip(parameters, spread_out(list(parameters.values()), zeros=True), strict=True))
    length = FAR * bound * math.sqrt(len(toward))

    def plant(given: Release, side: int) -> Release:
        state = given.artifact.tensors()
        for name, part in toward.items():
            state[name] = state[name] + (side * length * part).to(state[name])
        return replace(given, artifact=ModelState(state=state))

    def score(artifact: Artifact) -> float:
        state = artifact.tensors()
        return float(sum((state[name].double().cpu() * part).sum() for name, part in toward.items()))

    return Canary(words=f"a model update of {FAR:g} sensitivities in every tensor", plant=plant, score=score)


def spread_out(tensors: Sequence[Tensor], *, zeros: bool = False) -> list[Tensor]:
    """A direction of length 1 in float64 with the same length in each of `tensors`, of public random signs.

    With `zeros` a third of the numbers of each are zero."""
    rng = stream(0, "world", "direction of a canary")
    signs = [2 * torch.randint(2, each.shape, generator=rng).double() - 1 for each in tensors]
    if zeros:
        kept = [torch.randint(3, each.shape, generator=rng) > 0 for each in tensors]
        signs = [sign * keep if bool(keep.any()) else sign for sign, keep in zip(signs, kept, strict=True)]
    return [sign / math.sqrt(float(sign.abs().sum()) * len(signs)) for sign in signs]


def _mislabeled(site: Site) -> Canary:
    """A validation image with a wrong label, evaluated by models that are certain of the right one."""
    validation = site.client.validation
    assert validation is not None
    labels = validation.labels.clone()
    labels[0] = (labels[0] + 1) % len(validation.class_names)
    wrong = replace(validation, labels=labels)

    def score(artifact: Artifact) -> float:
        assert isinstance(artifact, Scores)
        return float(artifact.values.double().mean())

    return Canary(
        words="a validation image with a wrong label, evaluated by models that are certain of the right one",
        plant=lambda given, side: judged(site, wrong if side == 1 else validation, given.sender.clock),
        score=score,
    )

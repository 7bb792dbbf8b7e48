"""Judge sets of images beside real ones: FISC's Table 9 and Figure 6c (arXiv 2410.22622, appendix B.5), per case.

Real images are those behind the released rows, or the candidates where a release has no rows. Generated sets are
compared with them at one size and, in rows `images: equal`, at one n for all columns; column `real` is the floor: two
halves of the real images. Whose image a picture shows does not matter here: the same pictures in another order, or
generated from another client's style, score the same. All rows are descriptive."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset, downsample
from fdgsec.metrics.feature_extractors import INCEPTION, Extractor, extractor_named
from fdgsec.metrics.inception_score import CUSTOMARY_SPLIT
from fdgsec.metrics.measurement import Measurement, Slice
from fdgsec.runtime.errors import UsageError, WeightsUnavailableError
from fdgsec.runtime.random_streams import child
from fdgsec.threats.answers import GeneratedSets
from fdgsec.threats.judging.groups import Entry, Group, finite, unavailable
from fdgsec.threats.judging.realism_tables import FEW, REAL, SCORE, distribution_distance

LOG_SCORE = f"log_{SCORE}"
BIASED: Mapping[str, tuple[int, str]] = {
    "fid": (FEW, "upwards"), "frechet": (FEW, "upwards"), SCORE: (CUSTOMARY_SPLIT, "downwards"),
    LOG_SCORE: (CUSTOMARY_SPLIT, "downwards"),
}  # fmt: skip
"""Below how many images which statistic is called biased, and in which direction; kernel distances are not."""


def measure_sets(
    groups: Sequence[Group], extractors: Sequence[str | Extractor], rng: torch.Generator, *,
    limits: Mapping[str, int] | None = None,
) -> list[Measurement]:  # fmt: skip
    """Judge all generated sets; those about the same cases at the same size make one table.

    A set's slice gains `column`, its name; `side` in pixels; `images`, `all` or `equal`; and `bias` where n biases the
    statistic. An extractor in `limits` sees so many pictures of a set at most, and twice as many real images as of the
    largest set, drawn at random: `images` is `drawn` there in place of `all`. Raises ValueError for images that are not
    (N, 3, h, w) and for a set that is called `real`."""
    rows: list[Measurement] = []
    for choice in extractors if groups else ():
        try:
            extractor = extractor_named(choice) if isinstance(choice, str) else choice
        except WeightsUnavailableError as error:
            rows += unavailable([*_names(str(choice))], {}, str(error))
            continue
        for table in _tables(groups):
            limit = (limits or {}).get(str(choice) if isinstance(choice, str) else choice.name)
            rows += _table_rows(table, extractor, child(rng, extractor.name, table[0].name), limit)
    return rows


def _tables(groups: Sequence[Group]) -> list[list[Group]]:
    """Put together what is about the same cases, at one size."""
    found: dict[tuple[int, ...], list[Group]] = {}
    for group in groups:
        entries = group.of(GeneratedSets)
        for entry in entries:
            if entry.answer.images.ndim != 4 or entry.answer.images.shape[1] != 3 or entry.answer.name == REAL:
                raise ValueError(
                    f"a generated set is (N, 3, h, w) and not called {REAL!r}; got {tuple(entry.answer.images.shape)} "
                    f"called {entry.answer.name!r}."
                )
        size = tuple(int(side) for side in entries[0].answer.images.shape[2:])
        found.setdefault((*size, *(id(entry.case) for entry in entries)), []).append(group)
    return list(found.values())


def _table_rows(
    table: Sequence[Group], extractor: Extractor, rng: torch.Generator, limit: int | None
) -> list[Measurement]:
    """Judge the sets of one table by the same real images, brought to the sets' size."""
    made = {group.name: torch.cat([entry.answer.images for entry in group.of(GeneratedSets)]) for group in table}
    height, width = (int(side) for side in next(iter(made.values())).shape[2:])
    column: dict[str, Slice] = {
        group.name: {**group.slice, "column": group.of(GeneratedSets)[0].answer.name, "side": height} for group in table
    }
    first = next(iter(column.values()))
    shared = {key: value for key, value in first.items() if all(where.get(key) == value for where in column.values())}
    named: Mapping[str, Slice] = {**column, REAL: {**shared, "column": REAL}}
    real = _real(table[0].of(GeneratedSets), (height, width))
    problem = finite({f"set {name}": images for name, images in made.items()})
    if real is None:
        problem = f"there are no real images of {table[0].entries[0].case.victim} to judge by"
    rows: Sequence[Measurement] = ()
    cut = False
    if real is not None and not problem:
        sets = {name: _drawn(images, limit, child(rng, "limit", name)).float() for name, images in made.items()}
        shown = _drawn(real, None if limit is None else 2 * max(map(len, sets.values())), child(rng, "limit", REAL))
        cut = len(shown) < len(real) or any(len(sets[name]) < len(images) for name, images in made.items())
        try:
            rows = distribution_distance(shown, sets, extractor=extractor, rng=rng).measurements
        except UsageError as error:  # images too small for this extractor
            problem = str(error)
    extent = {"all": "drawn" if cut else "all", "equal": "equal"}
    if problem:
        return [row for where in column.values() for row in unavailable(_names(extractor.name), where, problem)]
    return [
        noted
        for row in rows
        for noted in _with_log_score(
            replace(row, slice={**named[str(row.slice["column"])], "images": extent[str(row.slice["images"])]})
        )
    ]


def _drawn(images: Tensor, limit: int | None, rng: torch.Generator) -> Tensor:
    """At most `limit` images, drawn at random, in their order."""
    if limit is None or len(images) <= limit:
        return images
    return images[torch.randperm(len(images), generator=rng)[:limit].sort().values]


def _real(entries: Sequence[Entry[GeneratedSets]], size: tuple[int, int]) -> Tensor | None:
    """The images behind the rows of all cases, else all their candidates, each once: (n, 3, h, w), or None."""
    behind = [entry.truth.images for entry in entries]
    known = [images for images in behind if images is not None]
    if len(known) == len(entries):
        return downsample(torch.cat(known), size)
    shown: dict[str, tuple[DomainDataset, int]] = {}
    for entry in entries:
        if entry.case.candidates is None:
            return None
        for place, name in enumerate(entry.case.candidates.ids):
            shown.setdefault(name, (entry.case.candidates, place))
    pixels = [candidates.pixels(torch.tensor([place])) for candidates, place in shown.values()]
    return downsample(torch.cat(pixels), size)


def _with_log_score(row: Measurement) -> list[Measurement]:
    """Note how n biases a row, and add the logarithm of an inception score, which is at least 1 by definition."""
    rows = [row]
    if row.name == SCORE:
        if row.value is not None:
            assert row.value >= 1 - 1e-9, "an inception score is the exponential of a mean divergence"
        value, low, high = (None if end is None else math.log(max(1.0, end)) for end in (row.value, row.low, row.high))
        rows.append(replace(row, name=LOG_SCORE, value=value, low=low, high=high))
    return [_with_bias(each) for each in rows]


def _with_bias(row: Measurement) -> Measurement:
    limit, direction = BIASED.get(row.name, BIASED.get(row.name.split("_")[0], (0, "")))
    if row.value is None or row.n >= limit:
        return row
    return replace(row, slice={**row.slice, "bias": f"{direction}, n < {limit}"})


def _names(extractor: str) -> list[str]:
    if extractor == INCEPTION:
        return ["fid", "kid", SCORE, LOG_SCORE]
    return [f"frechet_{extractor}", f"kernel_{extractor}"]

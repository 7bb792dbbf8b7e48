"""How real a set of images looks beside real ones: FISC's Table 9 and Figure 6c (arXiv 2410.22622, appendix B.5).

Realism is not identity: a blurred copy of the victim's image scores badly, another person's sharp photograph well.
These rows are descriptive and enter no verdict. `fid`, `kid` and `inception_score` mean the published Inception
weights; any other extractor gives `frechet_<extractor>` and `kernel_<extractor>`.

Differs from the paper: a kernel distance, which needs no equal n, stands beside FID; each distance is repeated at equal
n beside two halves of the real images. The paper's inception scores of 0.18 to 0.29 for reconstructions cannot be
scores as defined, which are at least 1."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from fdgsec.metrics.feature_extraction import BATCH, Images, extract_features
from fdgsec.metrics.feature_extractors import INCEPTION, ExtractedFeatures, Extractor, extractor_named
from fdgsec.metrics.frechet_distance import Band, frechet_interval, frechet_of
from fdgsec.metrics.inception_score import CUSTOMARY_SPLIT, inception_score, score_interval
from fdgsec.metrics.kernel_distance import kernel_estimate
from fdgsec.metrics.measurement import Measurement, Slice
from fdgsec.runtime.errors import UsageError, WeightsUnavailableError
from fdgsec.runtime.random_streams import child
from fdgsec.threats.judging.groups import unavailable

REAL = "real"
FEW = 2048  # images: below it a Frechet distance is called biased
SCORE = "inception_score"


@dataclass(frozen=True, kw_only=True)
class Realism:
    """Rows, and what must be said beside them.

    Slices: `domain`; `column`, what was judged, `real` for the control; `images`, `all` that were given or `equal`:
    as many on either side in every column, the control's two halves of the real images included. A row's n is the
    smaller side's."""

    measurements: tuple[Measurement, ...]
    warnings: tuple[str, ...]

    def layout(self) -> list[tuple[str, ...]]:
        """Table 9: a line per metric, column and `images`, a cell per domain; the first line names the domains."""
        domains = list(dict.fromkeys(str(row.slice["domain"]) for row in self.measurements if "domain" in row.slice))
        lines = list(dict.fromkeys(_line(row) for row in self.measurements))
        cells = {(*_line(row), str(row.slice.get("domain", ""))): _cell(row) for row in self.measurements}
        body = [(*line, *(cells.get((*line, name), cells.get((*line, ""), "")) for name in domains)) for line in lines]
        return [("metric", "column", "images", *domains), *body]


def realism_table(
    real: Mapping[str, Images],
    made: Mapping[str, Mapping[str, Images]],
    *,
    extractors: Sequence[str | Extractor] = (INCEPTION, "mini"),
    rng: torch.Generator,
    batch_size: int = BATCH,
) -> Realism:
    """Judge `made` (column -> domain -> images: "MSE", "LPIPS", "Baseline GAN"; or "FISC", "CCST") by `real` (domain ->
    images), per domain.

    Extractors whose weights are not stored give one row per metric that says so. Raises UsageError for a column called
    `real`, a domain without real images, or an extractor twice."""
    _check(real, made, extractors)
    rows: list[Measurement] = []
    warnings: list[str] = []
    for choice in extractors:
        try:
            extractor = extractor_named(choice) if isinstance(choice, str) else choice
        except WeightsUnavailableError as error:
            rows += unavailable(_names(str(choice)), {}, str(error))
            continue
        own: list[Measurement] = []
        for domain, images in real.items():
            sets = {column: images_of[domain] for column, images_of in made.items() if domain in images_of}
            own += distribution_distance(
                images, sets, extractor=extractor, rng=child(rng, domain), where={"domain": domain},
                batch_size=batch_size,
            ).measurements  # fmt: skip
            for column in (name for name in made if name not in sets):
                at: Slice = {"domain": domain, "column": column, "images": "all"}
                own += unavailable(_names(extractor.name), at, f"no images were given for {column}, {domain}")
        rows += own
        warnings += _warnings(own, extractor)
    return Realism(measurements=tuple(rows), warnings=tuple(warnings))


def distribution_distance(
    real: Images,
    made: Mapping[str, Images],
    *,
    extractor: Extractor,
    rng: torch.Generator,
    where: Slice | None = None,
    batch_size: int = BATCH,
) -> Realism:
    """Judge sets of images by one real set: distances of each, the control, and with Inception the scores.

    All columns of one call have the same equal n: the smallest set's, or half the real images. A set too small for a
    statistic gives a row that says so. A real dataset's features come from the cache."""
    place: Slice = where or {}
    truth = extract_features(extractor, real, batch_size=batch_size)
    found = _extracted(extractor, made, batch_size=batch_size)
    table = _Table(names=tuple(_names(extractor.name)))
    rows = table.score(truth, {**place, "column": REAL, "images": "all"}, child(rng, REAL, "all"))
    for name, images in found.items():
        rows += table.rows(truth, images, {**place, "column": name, "images": "all"}, child(rng, name, "all"))
    size = min([len(images.features) for images in found.values()] + [len(truth.features) // 2])
    order = torch.randperm(len(truth.features), generator=child(rng, "halves"))
    half, other = _rows(truth, order[:size]), _rows(truth, order[size : 2 * size])
    for name, images in {REAL: other, **found}.items():
        drawn = _rows(images, torch.randperm(len(images.features), generator=child(rng, "draw", name))[:size])
        rows += table.rows(half, drawn, {**place, "column": name, "images": "equal"}, child(rng, name, "equal"))
    return Realism(measurements=tuple(rows), warnings=tuple(_warnings(rows, extractor)))


def _extracted(extractor: Extractor, made: Mapping[str, Images], *, batch_size: int) -> dict[str, ExtractedFeatures]:
    """The features of every set; sets of the same pictures in another order, as control B3 is one, are extracted once.

    Features of datasets are cached."""
    known: dict[frozenset[bytes], tuple[list[bytes], ExtractedFeatures]] = {}
    found: dict[str, ExtractedFeatures] = {}
    for name, images in made.items():
        if not isinstance(images, torch.Tensor):
            found[name] = extract_features(extractor, images, batch_size=batch_size)
            continue
        keys = [hashlib.sha256(image.contiguous().numpy(force=True).data).digest() for image in images]
        if frozenset(keys) not in known:
            known[frozenset(keys)] = keys, extract_features(extractor, images, batch_size=batch_size)
        first, features = known[frozenset(keys)]
        place = {key: number for number, key in enumerate(first)}
        found[name] = _rows(features, torch.tensor([place[key] for key in keys]))
    return found


@dataclass(frozen=True, kw_only=True)
class _Table:
    """Under which names things are measured (`_names`)."""

    names: tuple[str, ...]

    def rows(
        self, real: ExtractedFeatures, made: ExtractedFeatures, at: Slice, rng: torch.Generator
    ) -> list[Measurement]:
        """The distances of `made` from `real`, and the score of `made`."""
        return [*self.distances(real, made, at, rng), *self.score(made, at, child(rng, SCORE))]

    def distances(
        self, real: ExtractedFeatures, made: ExtractedFeatures, at: Slice, rng: torch.Generator
    ) -> list[Measurement]:
        """Frechet and kernel distance."""
        one, other = real.features, made.features
        frechet, kernel, n = self.names[0], self.names[1], min(len(one), len(other))
        if n < 2:
            reason = f"a distance needs at least 2 images a side; there are {len(one)} real and {len(other)} to judge"
            return unavailable([frechet, kernel], at, reason, n=n)
        value = frechet_of(one, other)
        band = frechet_interval(one, other, value=value)
        squared, spread = kernel_estimate(one, other, rng=child(rng, "kernel"))
        return [
            _row(frechet, at, value, band, n, method="infinitesimal jackknife"),
            _row(kernel, at, squared, spread, n, method="subsampling"),
        ]

    def score(self, found: ExtractedFeatures, at: Slice, rng: torch.Generator) -> list[Measurement]:
        """The inception score, where it is one of the names."""
        if SCORE not in self.names:
            return []
        n = len(found.features)
        if found.logits is None or n < 2:
            return unavailable([SCORE], at, f"an inception score needs logits of at least 2 images; there are {n}", n=n)
        value = inception_score(found.logits)
        band = score_interval(found.logits, value=value, rng=rng)
        return [_row(SCORE, at, value, band, n, method="bootstrap")]


def _warnings(rows: Sequence[Measurement], extractor: Extractor) -> list[str]:
    """Say in words which of the rows of one extractor rest on few images, and what that does to them."""
    frechet, kernel, *_ = _names(extractor.name)
    said = []
    for name, limit, effect in (
        (frechet, FEW, f"biased upwards; compare at equal n beside column {REAL}, or by {kernel}"),
        (frechet, extractor.dimension + 1, f"covariances are singular, as they have {extractor.dimension} dimensions"),
        (SCORE, CUSTOMARY_SPLIT, "biased downwards; compare at equal n"),
    ):
        counts = [row.n for row in rows if row.name == name and row.value is not None]
        few = [n for n in counts if n < limit]
        if few:
            extent = f"{min(few)}" if min(few) == max(few) else f"{min(few)} to {max(few)}"
            said.append(f"{name}: {len(few)} of {len(counts)} rows have {extent} images, under {limit}: {effect}.")
    return said


def _rows(found: ExtractedFeatures, positions: torch.Tensor) -> ExtractedFeatures:
    logits = None if found.logits is None else found.logits[positions]
    return ExtractedFeatures(features=found.features[positions], logits=logits)


def _row(name: str, at: Slice, value: float, band: Band | None, n: int, *, method: str) -> Measurement:
    return Measurement(
        name=name, value=value, low=band.low if band else None, high=band.high if band else None, chance=None,
        chance_kind="none", n=n, higher_is="descriptive", method=method if band else "", slice=at,
    )  # fmt: skip


def _names(extractor: str) -> list[str]:
    """The rows that an extractor gives: the two distances, and the score where it is Inception."""
    return ["fid", "kid", SCORE] if extractor == INCEPTION else [f"frechet_{extractor}", f"kernel_{extractor}"]


def _line(row: Measurement) -> tuple[str, str, str]:
    return row.name, str(row.slice.get("column", "")), str(row.slice.get("images", ""))


def _cell(row: Measurement) -> str:
    if row.value is None:
        return f"unavailable: {row.unavailable}"
    interval = "" if row.low is None or row.high is None else f" [{row.low:.4g}, {row.high:.4g}]"
    return f"{row.value:.4g}{interval}"


def _check(
    real: Mapping[str, Images], made: Mapping[str, Mapping[str, Images]], extractors: Sequence[str | Extractor]
) -> None:
    names = [choice if isinstance(choice, str) else choice.name for choice in extractors]
    if len(set(names)) != len(names):
        raise UsageError(f"each extractor can be used once; got {', '.join(names)}.")
    if REAL in made:
        raise UsageError(f"a column cannot be called {REAL!r}, which names the control; rename it.")
    for column, images_of in made.items():
        for domain in images_of:
            if domain not in real:
                raise UsageError(f"{column} has images of {domain!r}, but no real ones; real: {', '.join(real)}.")

"""Limits as the command line takes them: `membership.auc=.55`, `linkage.top1[domain=photo]=0.2`."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from fdgsec.experiments.report.glossary import MEASUREMENTS, SLICES, meaning
from fdgsec.experiments.report.schema import AttackReport
from fdgsec.privacy.accounting import Relation
from fdgsec.runtime.errors import UsageError, unknown_name
from fdgsec.runtime.registry import names

Side = Literal["max", "min"]
ACCURACY = "accuracy"
GUARANTEE = "guarantee"
DELTA = 1e-5
"""The largest delta of a guarantee whose epsilon a limit is about, where it names no other: that of runs by default."""
ASKED = {"unit": ("record", "client"), "relation": get_args(Relation)}
"""What brackets can ask of a guarantee beside `delta`, and their values."""
_FORM = re.compile(
    r"(?P<attack>[^.\[\]=\s]+)\.(?P<measurement>[^.\[\]=\s]+)(\[(?P<where>[^\[\]]*)\])?=(?P<limit>[^=_\[\]]+)"
)
SHARES = (
    "auc", "exposed_auc", "one_candidate_auc", "tpr_at_1pct_fpr", "tpr_at_01pct_fpr", "exposed_tpr_at_1pct_fpr", "top1",
    "top5", "gallery_top1", "gallery_top5", "exact_list", "precision", "balanced_accuracy", "accuracy",
    "majority_share", "reference_accuracy", "recognized_public", "exposed_fraction", "expected_exposed_fraction",
    "verbatim_fraction", "largest_source_fraction", "converged_fraction", "lag1_p_value",
    "refused", "ended", "not_finite", "picked_share", "picked_in_cluster", "rank_percentile", "differing_runs",
)  # fmt: skip
"""Measurements from 0 to 1: rates, shares and areas."""
ERRORS = ("relative_error", "mae", "palette_emd", "lpips_alex", "perceptual_mini", "style_residual")
RANGES: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(SHARES, (0.0, 1.0)),
    **dict.fromkeys(("ssim", "honest_accuracy_drop"), (-1.0, 1.0)),
    **dict.fromkeys(ERRORS, (0.0, math.inf)),
    "median_rank": (1.0, math.inf),
}
"""What a measurement can be. Beyond it a limit would keep everything or nothing."""


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """A limit on the rows of one measurement of one attack whose slices have the entries `where`.

    `attack` may be "accuracy" (its measurements are "unseen" and the clients' domains) or "guarantee" ("epsilon", of
    which `where` asks for a largest delta, a unit and a relation).
    Raises UsageError for a limit that is not finite or beyond what the measurement can be."""

    side: Side
    attack: str
    measurement: str
    where: Mapping[str, str]
    limit: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.limit):
            raise UsageError(f"{self.text}: a limit must be finite.")
        least, most = self._range
        if not least <= self.limit <= most:
            expected = f"from {least:g} to {most:g}" if math.isfinite(most) else f"at least {least:g}"
            raise UsageError(f"{self.text}: {self.attack}.{self.measurement} is {expected}; give a limit there.")

    @property
    def _range(self) -> tuple[float, float]:
        if self.attack == ACCURACY:
            return 0.0, 1.0
        if self.attack == GUARANTEE:
            return 0.0, math.inf
        return RANGES.get(self.measurement, (-math.inf, math.inf))

    def can_be(self, value: float | None) -> bool:
        """Whether the measurement can have this value; None is no value."""
        least, most = self._range
        return value is None or least <= value <= most

    @property
    def text(self) -> str:
        """As it was given: `--max membership.auc=0.55`."""
        where = ",".join(f"{key}={value}" for key, value in self.where.items())
        return f"--{self.side} {self.attack}.{self.measurement}{f'[{where}]' if where else ''}={self.limit:.12g}"


def thresholds_of(most: Sequence[str], least: Sequence[str]) -> list[Threshold]:
    """Read what --max and --min were given. Raises UsageError for none, or one that is none or given twice."""
    given: list[tuple[Side, str]] = [*(("max", text) for text in most), *(("min", text) for text in least)]
    found = [_threshold(side, text) for side, text in given]
    if not found:
        raise UsageError("a gate needs limits: --max ATTACK.MEASUREMENT=LIMIT, e.g. --max membership.auc=.55.")
    names_given = [threshold.text.rpartition("=")[0] for threshold in found]
    if twice := next((name for name in names_given if names_given.count(name) > 1), None):
        raise UsageError(f"{twice} is given twice; give one limit.")
    return found


def _threshold(side: Side, text: str) -> Threshold:
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"--{side} {text!r} is no limit; expected ATTACK.MEASUREMENT=LIMIT or "
            "ATTACK.MEASUREMENT[KEY=VALUE,...]=LIMIT, e.g. membership.auc=.55."
        )
    try:
        limit = float(match["limit"])
    except ValueError as error:
        raise UsageError(f"--{side} {text!r}: {match['limit']!r} is no number.") from error
    pairs = [part.partition("=") for part in (match["where"] or "").split(",") if part.strip()]
    if any(not (key.strip() and equals and value.strip()) for key, equals, value in pairs):
        raise UsageError(f"--{side} {text!r}: expected [KEY=VALUE,...] between the brackets, e.g. [domain=photo].")
    where = {key.strip(): value.strip() for key, _, value in pairs}
    if len(where) < len(pairs):
        raise UsageError(f"--{side} {text!r}: a key is given twice; give a limit for each of its values.")
    return Threshold(side=side, attack=match["attack"], measurement=match["measurement"], where=where, limit=limit)


def check_names(threshold: Threshold, report: AttackReport) -> None:
    """Raise UsageError, with the nearest name, for an attack, measurement or slice entry that nothing has.

    What fdgsec knows and the report lacks is no usage error: then the gate fails."""
    attacks = dict.fromkeys([*names("attacks"), *(each.name for each in report.attacks), ACCURACY, GUARANTEE])
    if threshold.attack not in attacks:
        raise unknown_name("attack", threshold.attack, attacks)
    if threshold.attack == GUARANTEE:
        _known("measurement of a guarantee", threshold.measurement, ["epsilon"])
        _check_asked(threshold)
    elif threshold.attack == ACCURACY:
        _known("accuracy", threshold.measurement, ["unseen", *_domains(report)])
        if threshold.where:
            raise UsageError(f"{threshold.text}: an accuracy has no slices; leave the brackets out.")
    else:
        rows = [row for each in report.attacks for row in each.measurements]
        measured = dict.fromkeys([*(row.name for row in rows if row.name), *MEASUREMENTS])
        if not meaning(threshold.measurement):
            _known("measurement", threshold.measurement, measured)
        keys = dict.fromkeys([*(key for row in rows for key in row.slice), *SLICES])
        for key in threshold.where:
            _known("slice entry", key, keys)


def _check_asked(threshold: Threshold) -> None:
    """Raise UsageError for brackets that ask of a guarantee what none has."""
    for key, said in threshold.where.items():
        _known("property of a guarantee", key, ["delta", *ASKED])
        if key != "delta":
            _known(key, said, ASKED[key])
        elif not _is_share(said):
            raise UsageError(f"{threshold.text}: delta is a number from 0 to 1; got {said!r}.")


def _is_share(text: str) -> bool:
    try:
        return 0 <= float(text) < 1
    except ValueError:
        return False


def _domains(report: AttackReport) -> list[str]:
    domains = report.dataset.get("domains", ())
    return list(map(str, domains)) if isinstance(domains, Sequence) else []


def _known(kind: str, name: str, known: Iterable[str]) -> None:
    if name not in (names_known := list(known)):
        raise unknown_name(kind, name, names_known)

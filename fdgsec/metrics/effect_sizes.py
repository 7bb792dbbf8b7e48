"""How far beyond chance a leak must lie to be called more than slight, or strong, by the measurement's name."""

from collections.abc import Mapping
from typing import Literal

Margin = float | Literal["twice", "tenth"]

HIT_RATES = (
    "top1", "top5", "gallery_top1", "gallery_top5", "tpr_at_1pct_fpr", "tpr_at_01pct_fpr", "exposed_fraction",
    "exposed_tpr_at_1pct_fpr", "exact_list",
)  # fmt: skip
ACCURACIES = ("auc", "exposed_auc", "balanced_accuracy", "accuracy", "honest_accuracy_drop", "precision")
ERRORS = ("relative_error", "mae", "palette_emd", "median_rank")
BEST: Mapping[str, float] = {
    **dict.fromkeys((*HIT_RATES, *ACCURACIES, "median_rank", "ssim"), 1.0),
    **dict.fromkeys(("relative_error", "mae", "palette_emd"), 0.0),
}
"""The value of a perfect attack. Other gains, and PSNR, have none."""


def margin_of(measurement: str) -> Margin:
    """What a leak must exceed chance by: .05 for AUC and accuracies, chance again ("twice") for hit rates.

    Errors and ranks must be below chance by a tenth of it; gains have no margin."""
    if measurement in HIT_RATES:
        return "twice"
    if measurement in ERRORS:
        return "tenth"
    return 0.05 if measurement in ACCURACIES else 0.0


def beyond(chance: float, margin: Margin, *, higher: bool = True) -> float:
    """The value that a leak must exceed, or where lower values are a leak fall below: chance and the margin."""
    width = {"twice": chance, "tenth": 0.1 * chance}.get(margin, 0.0) if isinstance(margin, str) else margin
    return chance + width if higher else chance - width


def half_way(measurement: str, chance: float) -> float | None:
    """The value half way from chance to that of a perfect attack; None where there is none."""
    best = BEST.get(measurement)
    return None if best is None else (chance + best) / 2

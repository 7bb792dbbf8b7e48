"""The table of benchmarks/dp_runs.py: one line per method, plain against private."""

from collections.abc import Mapping, Sequence
from typing import cast

from fdgsec.privacy.ledger import guarantee_line

Row = Mapping[str, object]


def table(rows: Sequence[Row]) -> str:
    """A Markdown table with a line per method and seed with two finished runs, followed by the guarantees."""
    names = ["method", "seed"]
    figures = ("accuracy", "held-out accuracy", "style AUC", "model AUC", "CPU s/step")
    names += [f"{what} {arm}" for what in figures for arm in ("plain", "private")]
    lines = [f"| {' | '.join([*names, 'ratio'])} |", "|---" * (len(names) + 1) + "|"]
    said = []
    plain = {(row["method"], row["seed"]): row for row in rows if not row["private"]}
    for row in rows:
        before = plain.get((row["method"], row["seed"]))
        if not row["private"] or before is None:
            continue
        slow, quick = (float(str(one["cpu_seconds_per_step"])) for one in (row, before))
        cells = [
            str(row["method"]), str(row["seed"]), _accuracy(before), _accuracy(row), learned(before), learned(row),
            _styles(before), _styles(row), _model(before), _model(row),
            f"{quick:.3f}", f"{slow:.3f}", f"{slow / quick:.1f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
        promises = cast(Sequence[Mapping[str, object]], row["guarantees"])
        said += [f"{row['method']}, seed {row['seed']}: {guarantee_line(one)}" for one in promises]
    return "\n".join([*lines, "", *said])


def learned(row: Row) -> str:
    """The accuracy on held-out images of the clients' own domains, pooled over images; a dash where not measured."""
    accuracy = cast(Mapping[str, object], row["accuracy"])
    domains = list(cast(Mapping[str, Mapping[str, float]], accuracy["per_domain"]).values())
    n = sum(one["n"] for one in domains)
    return f"{sum(one['value'] * one['n'] for one in domains) / n:.3f}" if n else "-"


def style_auc(row: Row) -> tuple[float, float, float, int] | None:
    """The mean AUC of style membership over domains, its lowest and highest bound of one domain, and the number of
    domains.

    None where nothing is released. For pooled styles the test of the release as it is; for rows whether an image was
    released."""
    found = [
        one
        for one in cast(Sequence[Mapping[str, object]], row["style_membership"])
        if one["auc"] is not None and _headline(cast(Mapping[str, object], one["slice"]))
    ]
    if not found:
        return None
    values, lows, highs = ([float(str(one[key])) for one in found] for key in ("auc", "low", "high"))
    return sum(values) / len(values), min(lows), max(highs), len(found)


def _headline(where: Mapping[str, object]) -> bool:
    """Whether a row is the headline result: the release as it is, or for rows the released image, by the whole image
    as it was released (no crop)."""
    return (
        where.get("question", "released image") == "released image"
        and where.get("look", "whole image") == "whole image"
        and "extraction" not in where
    )


def _accuracy(row: Row) -> str:
    found = cast(Mapping[str, object], row["accuracy"])
    low, high = float(str(found["low"])), float(str(found["high"]))
    return f"{float(str(found['value'])):.3f} [{low:.3f}, {high:.3f}]"


def _styles(row: Row) -> str:
    found = style_auc(row)
    return "-" if found is None else f"{found[0]:.3f} [{found[1]:.3f}, {found[2]:.3f}]"


def _model(row: Row) -> str:
    found = cast(Mapping[str, float], row["model_membership"])
    return f"{found['auc']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"

"""Figures for the report: ROC curves, AUC against client size, and reconstructions beside the true images."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from scipy.stats import t as student
from torch import Tensor
from torch.nn import functional

from fdgsec.data.domains import as_float
from fdgsec.experiments.report.schema import Figure
from fdgsec.experiments.report.series_plots import PREDICTED, plot_auc_by_size, plot_roc
from fdgsec.metrics.image_similarity import psnr
from fdgsec.metrics.roc import auc, roc_curve
from fdgsec.threats.answers import Membership, Prediction, Reconstructions
from fdgsec.threats.attack import Answers, Case, Truth
from fdgsec.threats.judging.reconstructions import in_matched_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

OF_PUBLIC_IMAGES = ("retrieved", "class-guided")
"""Variants whose pictures begin at public images."""
PLACES = ("best", "median", "worst")
"""The reconstructions of each domain that are shown."""

CONTROLS = {
    "B0": "mean\nauxiliary",
    "B2": "nearest\nauxiliary",
    "B3": "result of\nanother",
}
"""Controls that are drawn beside each reconstruction, as titles of columns."""
CELL = (1.15, 1.28)
"""The width and height of a picture with its text, in inches."""
WIDE, TALL = 0.92, 0.92 * CELL[0] / CELL[1]
"""The picture's own shares of them."""
MARGIN, HEAD = 0.5, 0.42
"""The room for the names of lines and of columns, in inches."""
OTHER_B3 = {"perturbations": "untrained\ngenerator"}
"""The title of control B3 if it is not the reconstruction from another row."""


def _canvas(**given: Any) -> "Canvas":
    from matplotlib.figure import Figure as Drawn  # half a second, which attacks without pictures do not need

    return Drawn(**given)


def png(canvas: "Canvas") -> bytes:
    """Render without a date or a version, so that equal numbers give equal bytes."""
    buffer = io.BytesIO()
    canvas.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()


def membership_figures(answers: Answers, cases: Sequence[Case], truths: Sequence[Truth]) -> list[Figure]:
    """Draw the ROC curves of membership answers, and their AUC against client size with the predicted AUC.

    Answers about galleries, whose candidates are judged together, have tables only."""
    members: dict[tuple[str, int], list[Tensor]] = {}
    others: dict[tuple[str, int], list[Tensor]] = {}
    within: dict[tuple[str, int], list[float]] = {}
    expected: dict[tuple[str, int], float] = {}
    law: dict[tuple[str, int], float] = {}
    for answer in answers:
        merged = {**cases[answer.case].slice, **answer.slice}
        if "auxiliary" in answer.slice:  # the same test by an adversary with fewer images
            continue
        key = (str(merged.get("domain", "all")), int(merged.get("n_per_client", 0)))
        if isinstance(answer, Prediction) and answer.name == "one_candidate_auc":
            lines = {"rehearsal": expected, "auxiliary images alone": law}
            lines.get(str(answer.slice.get("line")), {})[key] = answer.value
        asked = truths[answer.case].members
        apart = "test" in answer.slice or "gallery" in merged
        if isinstance(answer, Membership) and asked is not None and not apart:
            members.setdefault(key, []).append(answer.scores[asked])
            others.setdefault(key, []).append(answer.scores[~asked])
            within.setdefault(key, []).append(float(auc(answer.scores[asked].numpy(), answer.scores[~asked].numpy())))
    if not members:
        return []
    return [_roc_figure(members, others), _auc_by_size(within, expected, law)]


def _roc_figure(
    members: Mapping[tuple[str, int], list[Tensor]], others: Mapping[tuple[str, int], list[Tensor]]
) -> Figure:
    domains = sorted({domain for domain, _ in members})
    data: dict[str, Sequence[float]] = {}
    for domain, number in sorted(members):
        positive, negative = torch.cat(members[domain, number]), torch.cat(others[domain, number])
        curve = roc_curve(positive.numpy(), negative.numpy())
        grid = np.logspace(-3.5, 0, 60)
        height = np.interp(grid, np.asarray(curve.fpr), np.asarray(curve.tpr))
        data[f"{domain} n={number} tpr"] = [round(float(value), 6) for value in height]
        data["fpr"] = [round(float(value), 6) for value in grid]
    canvas = _canvas(figsize=(3.4 * len(domains), 3.4), layout="constrained")
    axes = np.atleast_1d(canvas.subplots(1, len(domains), sharey=True))
    for axis, domain in zip(axes, domains, strict=True):
        plot_roc(axis, data, domain=domain)
    axes[-1].legend(loc="lower right", fontsize=8)
    axes[0].set_ylabel("true positive rate")
    caption = "Pooled over re-drawn clients; likelihood-ratio scores, whitened on images that the adversary holds."
    return Figure(name="roc", title="Membership: ROC on log axes", caption=caption, png=png(canvas), data=data)


def _auc_by_size(
    within: Mapping[tuple[str, int], list[float]],
    expected: Mapping[tuple[str, int], float],
    law: Mapping[tuple[str, int], float],
) -> Figure:
    data: dict[str, Sequence[float]] = {}
    for domain in sorted({domain for domain, _ in within}):
        sizes = sorted(n for d, n in within if d == domain)
        data[f"{domain} n"] = sizes
        data[f"{domain} auc"] = [round(float(np.mean(within[domain, n])), 6) for n in sizes]
        data[f"{domain} half width"] = [round(half_width(within[domain, n]), 6) for n in sizes]
        for name, lines in zip(PREDICTED, (expected, law), strict=True):
            if all((domain, n) in lines for n in sizes):
                data[f"{domain} {name}"] = [round(lines[domain, n], 6) for n in sizes]
    canvas = _canvas(figsize=(7.4, 3.8), layout="constrained")
    plot_auc_by_size(canvas.subplots(), data)
    caption = (
        "The larger a client, the less its average says about one image. Bars: 95% intervals over clients (Student)."
    )
    if expected or law:
        caption += (
            " Dotted: the adversary's AUC in rehearsals with all its images; dashed: what a test whitened on "
            "auxiliary images alone can reach, by their effective dimension."
        )
    return Figure(name="auc-by-n", title="Membership against client size", caption=caption, png=png(canvas), data=data)


def half_width(values: Sequence[float]) -> float:
    """Half of Student's 95% interval of a mean; 0 of one value."""
    if len(values) < 2:
        return 0.0
    return float(student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5)


def reconstruction_grids(answers: Answers, cases: Sequence[Case], truths: Sequence[Truth]) -> list[Figure]:
    """Draw true images and reconstructions side by side: the best, median and worst of each domain by PSNR.

    One figure for each prior and kind of rows; beside each reconstruction are its controls."""
    groups: dict[tuple[str, str], dict[str, dict[str, list[_Pairs]]]] = {}
    for answer in answers:
        images = truths[answer.case].images
        if isinstance(answer, Reconstructions) and images is not None:
            key = (str(answer.slice.get("prior", "")), str(answer.slice.get("rows", "")))
            domain = str(cases[answer.case].slice.get("domain", ""))
            loss = str(answer.slice.get("loss", ""))
            pairs = _pairs(in_matched_order(answer, images), images)
            groups.setdefault(key, {}).setdefault(domain, {}).setdefault(loss, []).append(pairs)
    return [_grid(prior, rows, domains) for (prior, rows), domains in groups.items()]


@dataclass(frozen=True, kw_only=True)
class _Pairs:
    """True images (N, 3, h, w) in [0, 1] at the reconstructions' size, reconstructions, and controls by name."""

    true: Tensor
    drawn: Tensor
    controls: Mapping[str, Tensor]


def _pairs(answer: Reconstructions, images: Tensor) -> _Pairs:
    size = (answer.images.shape[-2], answer.images.shape[-1])
    true = functional.interpolate(as_float(images), size=size, mode="area")
    return _Pairs(true=true, drawn=answer.images, controls=answer.controls)


def _joined(parts: Sequence[_Pairs]) -> _Pairs:
    names = [name for name in CONTROLS if all(name in part.controls for part in parts)]
    return _Pairs(
        true=torch.cat([part.true for part in parts]), drawn=torch.cat([part.drawn for part in parts]),
        controls={name: torch.cat([part.controls[name] for part in parts]) for name in names},
    )  # fmt: skip


def ranks_of(drawn: Tensor, true: Tensor) -> Tensor:
    """The rank (N,) of each true image among all of them by pixel distance to its reconstruction; 1 is the nearest."""
    apart = torch.cdist(drawn.flatten(1).double(), true.flatten(1).double())
    return (apart < apart.diagonal().unsqueeze(1)).sum(1) + 1


def chosen_places(scores: Tensor) -> dict[str, int]:
    """The places of the best, the median and the worst of N scores."""
    order = scores.argsort(descending=True, stable=True)
    places = {"best": order[0], "median": order[(len(order) - 1) // 2], "worst": order[-1]}
    return {name: int(place) for name, place in places.items()}


def _grid(prior: str, rows: str, domains: Mapping[str, Mapping[str, list[_Pairs]]]) -> Figure:
    losses = list(dict.fromkeys(loss for by_loss in domains.values() for loss in by_loss))  # the attack's order
    labels = {**CONTROLS, "B3": OTHER_B3.get(rows, CONTROLS["B3"])}
    columns = ["true image", *(f"result\n{loss}" for loss in losses), *labels.values()]
    canvas, axes = _mosaic(len(PLACES) * len(domains), columns)
    nearest, total = 0, 0
    for block, (domain, by_loss) in enumerate(domains.items()):
        found = [_joined(by_loss[loss]) if loss in by_loss else None for loss in losses]
        first = next(pairs for pairs in found if pairs is not None)
        ranks = ranks_of(first.drawn, first.true)
        nearest, total = nearest + int((ranks == 1).sum()), total + len(ranks)
        for line, (name, place) in enumerate(chosen_places(psnr(first.drawn, first.true)).items(), block * len(PLACES)):
            results = [_tile(one, place, rank=int(ranks[place]) if one is first else 0) for one in found]
            tiles = [(first.true[place], ""), *results, *(_control_tile(first, control, place) for control in CONTROLS)]
            for column, (image, text) in enumerate(tiles):
                _show(axes, line, column, image, text)
            axes.text(
                MARGIN - 0.06, HEAD + (line + TALL / 2) * CELL[1], f"{domain}\n{name}", fontsize=8, rotation=90,
                ha="right", va="center", ma="center",
            )  # fmt: skip
    led = f" of {losses[0]}" if len(losses) > 1 else ""
    caption = (
        f"Prior {prior or 'none'}; rows {rows or 'all'}. Best, median and worst of each domain by the PSNR{led}. It "
        f"stands under each picture{', there' if led else ''} with the rank of the true image. Of {total} "
        f"reconstructions{led}, {nearest} are nearest to their own image among those of its domain (guessing: about "
        f"{len(domains)})."
    )
    if made := [loss for loss in losses if loss in OF_PUBLIC_IMAGES]:
        caption += (
            f" Pictures of {' and '.join(made)} begin at public images: what is sharp in them is not the client's."
        )
    name, title = f"grid-{prior}-{rows}".replace("_", "-"), f"Reconstructions, {prior} prior, {rows} rows"
    return Figure(name=name, title=title, caption=caption, png=in_few_colors(png(canvas)))


def _tile(pairs: _Pairs | None, place: int, *, rank: int) -> tuple[Tensor | None, str]:
    if pairs is None:
        return None, ""
    value = float(psnr(pairs.drawn[place : place + 1], pairs.true[place : place + 1]))
    return pairs.drawn[place], f"{value:.1f} dB" + (f", rank {rank} of {len(pairs.true)}" if rank else "")


def _control_tile(pairs: _Pairs, control: str, place: int) -> tuple[Tensor | None, str]:
    if control not in pairs.controls:
        return None, ""
    image = pairs.controls[control][place]
    return image, f"{float(psnr(image.unsqueeze(0), pairs.true[place : place + 1])):.1f} dB"


def _mosaic(lines: int, columns: Sequence[str]) -> "tuple[Canvas, Axes]":
    """A canvas with axes in inches from its upper left corner, and the titles of columns.

    All pictures stand on one pair of axes: a hundred pairs take seconds to lay out."""
    width, height = MARGIN + CELL[0] * len(columns), HEAD + CELL[1] * lines
    canvas = _canvas(figsize=(width, height))
    axes = canvas.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    axes.set_autoscale_on(False)
    for column, label in enumerate(columns):
        middle = MARGIN + (column + WIDE / 2) * CELL[0]
        axes.text(middle, HEAD - 0.06, label, fontsize=8, ha="center", va="bottom")
    return canvas, axes


def _show(axes: "Axes", line: int, column: int, image: Tensor | None, text: str) -> None:
    if image is None:
        return
    x, y = MARGIN + (column + WIDE / 2) * CELL[0], HEAD + (line + TALL / 2) * CELL[1]
    side = WIDE * CELL[0]
    height, width = (size / max(image.shape[1:]) * side / 2 for size in image.shape[1:])
    pixels = image.permute(1, 2, 0).clamp(0, 1).numpy()
    axes.imshow(pixels, extent=(x - width, x + width, y + height, y - height), aspect="auto")
    from matplotlib.patches import Rectangle

    frame = Rectangle((x - width, y - height), 2 * width, 2 * height, fill=False, linewidth=0.6)
    axes.add_patch(frame)  # line drawings are white
    axes.text(x, y + side / 2 + 0.05, text, fontsize=7, ha="center", va="top")


def in_few_colors(content: bytes) -> bytes:
    """A PNG with a palette of 256 colors: a quarter of its size."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(content)).convert("RGB").quantize(256).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()

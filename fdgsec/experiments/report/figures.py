"""Figures for the report: ROC curves, AUC against client size, and reconstructions beside their controls."""

import io
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure as Canvas
from torch import Tensor
from torch.nn import functional

from fdgsec.data.domains import as_float
from fdgsec.experiments.report.schema import Figure
from fdgsec.metrics.roc import auc, roc_curve
from fdgsec.threats.answers import Membership, Prediction, Reconstructions
from fdgsec.threats.attack import Answers, Case, Truth
from fdgsec.threats.judging.reconstructions import in_matched_order

SHOWN = 8
"""Number of images of each domain in a reconstruction grid."""

CONTROLS = {
    "B0": "B0 mean of prior",
    "B2": "B2 nearest public",
    "B3": "B3 of another",
}
OTHER_B3 = {"perturbations": "B3 untrained\ngenerator"}
"""The name of control B3 if it is not the reconstruction from another row."""


def png(canvas: Canvas) -> bytes:
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
    canvas = Canvas(figsize=(4.2 * len(domains), 4.0), layout="constrained")
    axes = np.atleast_1d(canvas.subplots(1, len(domains), sharey=True))
    data: dict[str, Sequence[float]] = {}
    for axis, domain in zip(axes, domains, strict=True):
        for number in sorted(n for d, n in members if d == domain):
            positive, negative = torch.cat(members[domain, number]), torch.cat(others[domain, number])
            curve = roc_curve(positive.numpy(), negative.numpy())
            grid = np.logspace(-3.5, 0, 60)
            height = np.interp(grid, np.asarray(curve.fpr), np.asarray(curve.tpr))
            axis.plot(grid, height, label=f"n = {number}")
            data[f"{domain} n={number} tpr"] = [round(float(value), 6) for value in height]
            data["fpr"] = [round(float(value), 6) for value in grid]
        axis.plot([1e-4, 1], [1e-4, 1], color="gray", linestyle="--", linewidth=1, label="chance")
        axis.set(
            xscale="log", yscale="log", xlim=(3e-4, 1), ylim=(3e-4, 1.05), title=domain, xlabel="false positive rate"
        )
        axis.legend(loc="lower right", fontsize=8)
    axes[0].set_ylabel("true positive rate")
    caption = "Pooled over re-drawn clients; likelihood-ratio scores, whitened on images that the adversary holds."
    return Figure(name="roc", title="Membership: ROC on log axes", caption=caption, png=png(canvas), data=data)


def _auc_by_size(
    within: Mapping[tuple[str, int], list[float]],
    expected: Mapping[tuple[str, int], float],
    law: Mapping[tuple[str, int], float],
) -> Figure:
    canvas = Canvas(figsize=(8.4, 4.0), layout="constrained")
    axis = canvas.subplots()
    data: dict[str, Sequence[float]] = {}
    for index, domain in enumerate(sorted({domain for domain, _ in within})):
        sizes = sorted(n for d, n in within if d == domain)
        values = [float(np.mean(within[domain, n])) for n in sizes]
        axis.plot(sizes, values, "o-", color=f"C{index}", label=f"{domain}, measured")
        data[f"{domain} n"], data[f"{domain} auc"] = sizes, [round(value, 6) for value in values]
        for lines, mark, name in ((expected, ":", "rehearsals"), (law, "--", "auxiliary images alone")):
            if all((domain, n) in lines for n in sizes):
                line = [lines[domain, n] for n in sizes]
                axis.plot(sizes, line, mark, color=f"C{index}", linewidth=1, label=f"{domain}, {name}")
                data[f"{domain} {name}"] = [round(value, 6) for value in line]
    axis.axhline(0.5, color="gray", linestyle="--", linewidth=1, label="chance")
    axis.set(xscale="log", xlabel="images per client", ylabel="AUC, mean over clients", ylim=(0.45, 1.02))
    sizes = sorted({n for _, n in within})
    axis.set_xticks(sizes, labels=[str(n) for n in sizes])
    axis.minorticks_off()
    canvas.legend(loc="outside right upper", fontsize=8)
    caption = "The larger a client, the less its average says about one image."
    if expected or law:
        caption += (
            " Dotted: the adversary's AUC in rehearsals with all its images; dashed: what a test whitened on "
            "auxiliary images alone can reach, by their effective dimension."
        )
    return Figure(name="auc-by-n", title="Membership against client size", caption=caption, png=png(canvas), data=data)


def reconstruction_grids(answers: Answers, cases: Sequence[Case], truths: Sequence[Truth]) -> list[Figure]:
    """Draw reconstructions beside the true images and their controls, one grid per prior and kind of rows."""
    groups: dict[tuple[str, str], dict[str, dict[str, list[tuple[int, Reconstructions]]]]] = {}
    for answer in answers:
        images = truths[answer.case].images
        if isinstance(answer, Reconstructions) and images is not None:
            key = (str(answer.slice.get("prior", "")), str(answer.slice.get("rows", "")))
            domain = str(cases[answer.case].slice.get("domain", ""))
            loss = str(answer.slice.get("loss", ""))
            strip = (answer.case, in_matched_order(answer, images))
            groups.setdefault(key, {}).setdefault(domain, {}).setdefault(loss, []).append(strip)
    return [_grid(prior, rows, domains, truths) for (prior, rows), domains in groups.items()]


def _grid(
    prior: str,
    rows: str,
    domains: Mapping[str, Mapping[str, list[tuple[int, Reconstructions]]]],
    truths: Sequence[Truth],
) -> Figure:
    losses = sorted({loss for by_loss in domains.values() for loss in by_loss})
    lines = [
        "true image",
        *(f"reconstruction\n{loss}" for loss in losses),
        *(CONTROLS | {"B3": OTHER_B3.get(rows, CONTROLS["B3"])}).values(),
    ]
    canvas = Canvas(figsize=(1.6 + 0.95 * SHOWN, 0.95 * len(lines) * len(domains) + 0.3), layout="constrained")
    axes = canvas.subplots(len(lines) * len(domains), 1, squeeze=False)
    for block, (domain, by_loss) in enumerate(domains.items()):
        strips = _strips(by_loss, losses, truths)
        for line, (label, strip) in enumerate(zip(lines, strips, strict=True)):
            axis = axes[block * len(lines) + line, 0]
            axis.imshow(strip.permute(1, 2, 0).clamp(0, 1).numpy())
            axis.set_xticks([])
            axis.set_yticks([])
            axis.set_ylabel(
                f"{domain}\n{label}" if line == 0 else label, rotation=0, ha="right", va="center", fontsize=7
            )
    caption = f"Prior {prior}; rows {rows}. The first images of each domain, not chosen."
    name = f"grid-{prior}-{rows}".replace("_", "-")
    return Figure(name=name, title=f"Reconstructions, {prior} prior, {rows} rows", caption=caption, png=png(canvas))


def _strips(
    by_loss: Mapping[str, list[tuple[int, Reconstructions]]], losses: Sequence[str], truths: Sequence[Truth]
) -> list[Tensor]:
    first = by_loss[losses[0]] if losses[0] in by_loss else next(iter(by_loss.values()))
    size = first[0][1].images.shape[-1]
    true = torch.cat([images for case, _ in first if (images := truths[case].images) is not None])[:SHOWN]
    strips = [_strip(functional.interpolate(as_float(true), size=(size, size), mode="area"))]
    for loss in losses:
        answers = by_loss.get(loss, first)
        strips.append(_strip(torch.cat([answer.images for _, answer in answers])[:SHOWN]))
    for name in CONTROLS:
        controls = [answer.controls.get(name, torch.zeros_like(answer.images)) for _, answer in first]
        strips.append(_strip(torch.cat(controls)[:SHOWN]))
    return strips


def _strip(images: Tensor) -> Tensor:
    padded = functional.pad(images, (1, 1, 1, 1), value=1.0)
    return torch.cat(list(padded), dim=2)

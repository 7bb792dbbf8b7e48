"""Which lists of members can be reconstructed: by candidates per equation, and by noise.

    python -m benchmarks.list_phase_diagram    # some minutes on one core; goes on where it stopped

Statistics are Gaussian, 96 independent numbers of each image, and half of the candidates are members. A cell is 20
releases, the mean over the members, in float64 or with noise. Each is read as the attack reads it
(fdgsec.attacks.set_reconstruction.list_solver). Noise is given as the standard deviation of n times the error, in units
of one number's spread over images: 1 blurs as much as one absent image. Cells are appended to
benchmarks/results/list-phase-diagram.jsonl, and drawn into list-phase-diagram.png beside it with two lines of theory:

* Dashed: without noise a 0/1 solution of D random equations is the only one within [0, 1] up to 2 D candidates (Donoho
  & Tanner, "Counting the faces of randomly-projected hypercubes and orthants", 2010).
* Solid: with fewer candidates than equations least squares has an error of variance e^2 / (D - G) in each of G weights.
  All are on the right side of 1/2 where the largest of G such errors is below it: e < sqrt(D - G) / (2 sqrt(2 ln G)).
"""

import argparse
import json
import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from fdgsec.attacks.set_reconstruction.box_least_squares import Array
from fdgsec.attacks.set_reconstruction.list_equations import ListEquations
from fdgsec.attacks.set_reconstruction.list_solver import list_solver
from fdgsec.runtime.random_streams import stream

RESULTS = Path(__file__).parent / "results" / "list-phase-diagram.jsonl"
NUMBERS, RELEASES = 96, 20
RATIOS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0)
"""Candidates per equation."""
NOISE = (0.0, 0.01, 0.03, 0.1, 0.2, 0.4, 0.7, 1.0, 1.4, 2.0, 4.0)
LEAST_NOISE = 1e-9


def cell(ratio: float, noise: float) -> dict[str, float]:
    """The share of exact lists, and the share of members on lists, of `RELEASES` releases."""
    drawn = [_released(ratio, noise, number) for number in range(RELEASES)]
    solver = list_solver(drawn[0][0], stream(0, "world", "phase solver", str(ratio), str(noise)))
    right = [int(solver.solved(known).believed()[inside].sum()) for known, inside in drawn]
    members = drawn[0][0].images
    return {
        "candidates": len(drawn[0][0].candidates), "ratio": ratio, "noise": noise,
        "exact": sum(count == members for count in right) / RELEASES, "precision": sum(right) / (members * RELEASES),
    }  # fmt: skip


def _released(ratio: float, noise: float, number: int) -> tuple[ListEquations, torch.Tensor]:
    """The equations of one release, and the numbers of its members among the candidates."""
    candidates = round(ratio * NUMBERS)
    members = candidates // 2
    rng = stream(number, "world", "phase", str(ratio), str(noise))
    table = torch.randn(candidates, NUMBERS, generator=rng, dtype=torch.float64)
    inside = torch.randperm(candidates, generator=rng)[:members]
    error = noise / members * torch.randn(NUMBERS, generator=rng, dtype=torch.float64)
    known = ListEquations(
        candidates=table.numpy(), release=(table[inside].mean(0) + error).numpy(),
        noise=np.full(NUMBERS, max(noise, LEAST_NOISE) / members), spread=np.ones(NUMBERS), images=members,
    )  # fmt: skip
    return known, inside


def rows() -> list[dict[str, float]]:
    """All cells so far."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.is_file() else []


def limit(ratio: float) -> float:
    """The noise up to which least squares finds every member; 0 with no more equations than candidates."""
    candidates = ratio * NUMBERS
    return math.sqrt(max(NUMBERS - candidates, 0.0)) / (2 * math.sqrt(2 * math.log(candidates)))


def drawn() -> Figure:
    """Exact lists and their precision over candidates per equation and noise."""
    found = {(row["ratio"], row["noise"]): row for row in rows()}
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, name, words in zip(
        panels, ("exact", "precision"), ("exact lists", "members among those listed"), strict=True
    ):
        values = [[found[ratio, noise][name] for ratio in RATIOS] for noise in NOISE]
        shown = axes.pcolormesh(
            range(len(RATIOS) + 1), range(len(NOISE) + 1), values, vmin=0 if name == "exact" else 0.5, vmax=1
        )
        axes.set_xticks([place + 0.5 for place in range(len(RATIOS))], [f"{ratio:g}" for ratio in RATIOS])
        axes.set_yticks([place + 0.5 for place in range(len(NOISE))], [f"{noise:g}" for noise in NOISE])
        axes.set(title=words, xlabel="candidates per equation (G / D)")
        figure.colorbar(shown, ax=axes)
        determined = np.linspace(RATIOS[0], 1.0, 300)
        axes.plot(
            _placed(determined, RATIOS), _placed([limit(ratio) for ratio in determined], NOISE), "w-", linewidth=2
        )
        axes.plot(_placed([2.0, 2.0], RATIOS), [0, 1], "w--", linewidth=2)
    panels[0].set_ylabel("noise of the sum (spread of one image)")
    return figure


def _placed(values: ArrayLike, ticks: Sequence[float]) -> Array:
    """Where values lie on an axis whose cells are equally wide."""
    return np.interp(values, ticks, [place + 0.5 for place in range(len(ticks))])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run every cell that is not stored, and draw them."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args(arguments)
    torch.set_num_threads(1)
    done = {(row["ratio"], row["noise"]) for row in rows()}
    for ratio, noise in product(RATIOS, NOISE):
        if (ratio, noise) not in done:
            with RESULTS.open("a") as file:
                file.write(json.dumps(cell(ratio, noise)) + "\n")
    drawn().savefig(RESULTS.with_suffix(".png"), dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()

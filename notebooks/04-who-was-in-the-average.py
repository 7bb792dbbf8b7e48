# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Who was in the average?
#
# A pooled style is an average over a client's images. This notebook asks which images are in it, all at once: with $D$
# numbers of every candidate known, an average is $D$ linear equations in a list of zeros and ones.
#
# Everything runs on the bundled `shapes`. **Shapes proves that the mechanics work; nothing here is a finding about a
# method.** Results on real images are in `docs/attacks/set-reconstruction.md`.

# %% tags=["imports"]
import csv
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import fdgsec

# %% [markdown]
# ## A target of fdgsec
#
# CCST's clients send one pooled style each. The attack gets it, candidate images (half of them members), and the number
# of members. `exact_list` is the share of clients all of whose members are named without an error.

# %%
SMALL = [f"attacks.set-reconstruction.{one}" for one in (
    "sizes=[10,40]", "clients=5", "held=[1.0]", "sums=[]", "added=[]", "grown=20",
)]  # fmt: skip
report = fdgsec.attack("ccst-overall", attacks=["set-reconstruction"], per_domain=140, image_size=32, assignments=SMALL)
report

# %%
table = report["set-reconstruction"].to_frame()
table[table["measurement"] == "exact_list"][["slice.domain", "slice.n_per_client", "slice.gallery", "value", "chance"]]

# %% [markdown]
# ## The phase diagram
#
# How many candidates are too many? Below, every image has $D = 12$ independent numbers, half of the candidates are
# members, and the sender adds noise to the average. Every cell is one call of `attack_vectors` about two clients: only
# vectors and a table of candidates, as somebody else's federation would give them. The noise is in units of what one
# image contributes.

# %%
D, CLIENTS = 12, 2
RATIOS, NOISE = (0.5, 1.0, 2.0, 3.0), (0.0, 0.3, 1.0)


def styles(statistic: torch.Tensor) -> torch.Tensor:
    """Means and stds whose pooled style is the mean of `statistic` (N, D), up to a constant in every second half."""
    mean, rest = statistic.chunk(2, dim=1)
    return torch.cat([mean, (rest + 40 - mean.square()).sqrt()], dim=1)


def exposed(ratio: float, noise: float) -> float:
    """The AUC of telling members from other candidates."""
    count = int(ratio * D)
    rng = fdgsec.stream(0, "world", "phase", count, str(noise))
    numbers = torch.randn(count, D, generator=rng, dtype=torch.float64)
    owner = torch.zeros(count, dtype=torch.int64)
    members = torch.randperm(count, generator=rng)[: count // 2]
    for number in range(CLIENTS):
        owner[members[number::CLIENTS]] = number + 1
    sent = {}
    for number in range(1, CLIENTS + 1):
        own = numbers[owner == number]
        blur = noise / len(own) * torch.randn(1, D, generator=rng, dtype=torch.float64)
        sent[f"client {number}"] = styles(own.mean(0, keepdim=True) + blur)[0]
    found = fdgsec.attack_vectors(sent, candidates=styles(numbers), truth=owner, attacks=["set-reconstruction"])
    rows = found["set-reconstruction"].to_frame().set_index("measurement")
    return float(rows.loc["auc", "value"])


cells = [[exposed(ratio, noise) for ratio in RATIOS] for noise in NOISE]

# %%
figure, axis = plt.subplots(figsize=(5.6, 3.2), layout="constrained")
shown = axis.imshow(cells, vmin=0.5, vmax=1.0, cmap="cividis", origin="lower", aspect="auto")
for row, line in enumerate(cells):
    for column, value in enumerate(line):
        axis.text(column, row, f"{value:.2f}", ha="center", va="center", color="black" if value > 0.8 else "white")
axis.set_xticks(range(len(RATIOS)), [f"{ratio:g}" for ratio in RATIOS])
axis.set_yticks(range(len(NOISE)), [f"{noise:g}" for noise in NOISE])
axis.set(xlabel="candidates per number (G / D)", ylabel="noise / one image")
figure.colorbar(shown, label="AUC: members against others")

# %% [markdown]
# With few candidates and no noise the list is read off. More candidates than equations, or noise of the size of one
# image, and it fades. Two clients a cell say where the edge is about; `python -m benchmarks.list_phase_diagram` draws
# it with 96 numbers and twenty releases a cell.
#
# ## On real images
#
# PACS, 128 px, seed 0: an adversary whose gallery lacks a part of a client's images. With all members in the gallery
# every list of these sizes is exact (`docs/attacks/set-reconstruction.md`); here a tenth or half of them are missing,
# and the gallery has twice as many images as the client (of 500: 850, the domain). Five clients a point. Dots are the
# three source domains, `mini` sends 512 numbers and `vgg16-hed` 1,024.

# %% tags=["from-pacs"]
root = next(folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / "benchmarks").is_dir())
TABLES = {"mini": "partial-galleries/mini.csv", "vgg16-hed": "partial-galleries/vgg16-hed.csv"}
SIZES, PAIRED = (40, 130, 500), {"40": ("80",), "130": ("260",), "500": ("850", "851")}
figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
for axis, (encoder, path) in zip(axes, TABLES.items(), strict=True):
    with (root / "benchmarks" / "results" / path).open() as file:
        table = [row | dict(part.split("=") for part in row["slice"].split(";")) for row in csv.DictReader(file)]
    rows = [row for row in table if row["measurement"] == "auc" and row["gallery"] in PAIRED[row["n_per_client"]]]
    for held, shift, color in (("90%", -0.15, "#0072b2"), ("50%", 0.15, "#d55e00")):
        mine = [row for row in rows if row["held"] == held]
        domains = sorted({row["domain"] for row in mine})
        places = [
            SIZES.index(int(row["n_per_client"])) + shift + 0.06 * (domains.index(row["domain"]) - 1) for row in mine
        ]
        values = [float(row["value"]) for row in mine]
        bounds = [[value - float(row["low"]) for value, row in zip(values, mine, strict=True)],
                  [float(row["high"]) - value for value, row in zip(values, mine, strict=True)]]  # fmt: skip
        axis.errorbar(places, values, yerr=bounds, fmt="o", color=color, capsize=2, label=f"{held} of members known")
    axis.axhline(0.5, color="black", linestyle=":", linewidth=1)
    axis.set_xticks(range(len(SIZES)), map(str, SIZES))
    axis.set(title=encoder, xlabel="images behind the average")
axes[0].set_ylabel("AUC: members against others")
axes[0].set_ylim(0.4, 1.02)
figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, ncols=2, loc="outside lower center")

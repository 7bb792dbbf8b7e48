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
# # Which defense, and at what price?
#
# Five methods send something beside the model: CCST and FISC pooled styles, StableFDG style statistics, FedAlign
# statistics of single images, FedDAG generators. This notebook attacks what they send, switches defenses on, and asks
# what is left to read, what the accuracy is afterwards, and what to choose.
#
# It runs on the bundled `shapes`. **Shapes proves that the mechanics work; nothing here is a finding about a method.**
# The section "On real images" draws what was measured on PACS, from the tables of this repository.

# %% tags=["imports"]
import json
from pathlib import Path

import matplotlib.pyplot as plt

import fdgsec

SMALL = {"per_domain": 84, "image_size": 32, "progress": False}
COLORS = {"leaks strongly": "#d55e00", "leaks": "#d55e00", "leaks slightly": "#d55e00", "no leak shown": "#009e73"}

# %% [markdown]
# ## What is read without a defense

# %%
ATTACKS = {
    "ccst-overall": "membership",
    "stablefdg": "membership",
    "fisc": "linkage",
    "fedalign": "reidentification",
}
bare = {target: fdgsec.attack(target, attacks=[attack], **SMALL) for target, attack in ATTACKS.items()}
for report in bare.values():
    print(report.sentence, "\n")

# %% [markdown]
# FedDAG's generators are read by `generator-leakage` (`fdgsec.attack("feddag", rounds=1,
# attacks=["generator-leakage"])`), which takes minutes.
#
# ## Noise without a guarantee
#
# FISC lets clients add noise to the style that they send: every number $v$ becomes $(1 - p)\,v + e$, where $e$ has
# standard deviation $s$. `sweep` attacks the method at several $s$. Linkage asks: a client's style is seen today and
# again next week, with new noise; which of thirty clients sent it? The adversary knows $s$ and $p$, divides by $1 - p$,
# and compares styles in the directions in which clients differ by more than the noise.

# %%
QUICK = (  # fewer settings than `fdgsec sweep` uses, so that a cell takes seconds
    'attacks.linkage.schemes=["dirichlet"]', 'attacks.linkage.sessions=["iid"]', "attacks.linkage.noise=[]",
    "attacks.linkage.noise_in_sds=[]", "attacks.membership.sizes=[40]", "attacks.membership.clients=20",
)  # fmt: skip
noise = fdgsec.sweep(
    "fisc", defenses=["style-noise:p=0.1"], option="scale", values=[0.05, 10.0], attacks=["linkage"],
    assignments=QUICK, **SMALL,
)  # fmt: skip

# %% [markdown]
# ## Noise with a guarantee
#
# `private-styles` clips the part of one image in a style, and adds the noise that $(\varepsilon, \delta)$ requires.

# %%
calibrated = fdgsec.sweep(
    "ccst-overall", defenses=["private-styles"], option="epsilon", values=[8.0],
    attacks=["linkage", "membership"], assignments=QUICK, **SMALL,
)  # fmt: skip


def draw(swept, axis, *, label):
    """Each attack's value with its interval, from no defense at the left edge to the strongest at the right."""
    bare, *points = swept["privacy"]
    points = [bare, *sorted(points, key=lambda point: point["value"], reverse=swept["option"] == "epsilon")]
    names = ["none" if point["value"] is None else f"{point['value']:g}" for point in points]
    for number, attack in enumerate(points[0]["rows"]):
        rows = [point["rows"][attack] for point in points]
        axis.errorbar(
            range(len(rows)), [row["value"] for row in rows], fmt="os"[number] + "-", capsize=3, label=attack,
            yerr=[[row["value"] - row["low"] for row in rows], [row["high"] - row["value"] for row in rows]],
            color=f"C{number}",
        )  # fmt: skip
        axis.axhline(rows[0]["chance"], color=f"C{number}", linestyle=":", linewidth=1)
    axis.set_xticks(range(len(names)), names)
    axis.set_xlabel(label)
    axis.set_ylim(-0.03, 1.05)
    axis.legend(frameon=False)


figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
draw(noise, axes[0], label="FISC: size s of style-noise")
draw(calibrated, axes[1], label="CCST: epsilon of private-styles")
axes[0].set_ylabel("rate, or AUC; dotted: baseline")

# %% [markdown]
# Noise of FISC's own size (.05) hides nobody. The guarantee on the right holds against attacks that nobody has written
# yet, and noise of a chosen size has none. It is about one image; hiding *which client* sent a style takes more noise
# (`private-styles:unit=client`).
#
# ## What a method refuses
#
# A defense that would be without effect, or without its guarantee, is refused before anything runs.

# %%
for target in ("fisc", "fedavg"):
    try:
        fdgsec.attack(target, rounds=1, defenses=["private-styles:epsilon=8"], **SMALL)
    except fdgsec.UsageError as error:
        print(f"{target}: {error}\n")

# %% [markdown]
# ## And the accuracy?
#
# Accuracies are compared at equal optimizer steps, with the accuracy on the clients' own domains beside: a model that
# has not learned those says nothing about an unseen one. Here: two rounds of four steps, a second each.

# %%
STEPS = ["method.plan.steps=4", "method.plan.batch_size=16", "method.plan.learning_rate=0.05"]
ARMS = {
    "fedavg": ("fedavg", ()),
    "ccst": ("ccst", ()),
    "ccst, private styles": ("ccst", ("private-styles:epsilon=8",)),
}
for name, (method, defenses) in ARMS.items():
    report = fdgsec.train(method, rounds=2, defenses=defenses, assignments=STEPS, **SMALL)
    score, own = report.accuracy, report.accuracy["per_domain"].values()
    print(
        f"{name:<21} unseen {score['value']:.2f} [{score['low']:.2f}, {score['high']:.2f}]  own domains "
        f"{sum(row['value'] for row in own) / len(own):.2f}  steps {score['steps']['total']:.0f}"
    )

# %% [markdown]
# ## On real images
#
# PACS, 128 px, sketch unseen, encoder `mini` (StableFDG: the first stage of the untrained backbone; FedAlign: pixels),
# seed 0: what each attack still reads without a defense, under `private-styles` at epsilon 8 (FISC: of all images, not
# of clusters), and under the size of noise that reports offer. The table is written by
# `python -m benchmarks.what_is_left`. The row of an attack is the one that its report chooses, and may be another
# measurement behind a defense.

# %% tags=["from-pacs"]
root = next(folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / "benchmarks").is_dir())
rows = json.loads((root / "benchmarks" / "results" / "what-is-left.json").read_text())["rows"]
for row in rows:
    value = "" if row.get("value") is None else f"{row['measurement']} {row['value']:.3g}"
    bounds = "" if row.get("low") is None else f"[{row['low']:.3g}, {row['high']:.3g}], baseline {row['baseline']:.3g}"
    asked = f"{row['method']:<29} {row['defense'] or 'no defense':<30} {row['attack']:<19}"
    print(asked, value, bounds, row["verdict"])

# %% tags=["from-pacs"]
ASKED = ("set-reconstruction", "reidentification", "membership")
shown = [row for row in rows if row["attack"] in ASKED and row.get("low") is not None and row["high"] <= 1]
methods = list(dict.fromkeys(row["method"] for row in shown))
figure, axes = plt.subplots(
    1, len(methods), figsize=(2.6 * len(methods), 3.4), sharey=True, squeeze=False, layout="constrained"
)
for axis, method in zip(axes[0], methods, strict=True):
    mine = [row for row in shown if row["method"] == method]
    for place, row in enumerate(mine):
        bounds = [[row["value"] - row["low"]], [row["high"] - row["value"]]]
        color = COLORS.get(row["verdict"].partition(":")[0], "#777777")
        axis.errorbar(place, row["value"], yerr=bounds, fmt="o", capsize=3, color=color)
        axis.plot([place - 0.3, place + 0.3], [row["baseline"]] * 2, color="black", linestyle=":")
    names = [f"{row['attack'].partition('-')[0]}, {row['defense'].partition(':')[0] or 'none'}" for row in mine]
    axis.set_xticks(range(len(mine)), names, rotation=90, fontsize=8)
    axis.set_title(method.replace(", ", ",\n"), fontsize=10)
axes[0, 0].set_ylabel("rate, or AUC; dotted: baseline")

# %% [markdown]
# What private styles cost in accuracy was measured on the pretrained network: `fdgsec bench --ablation
# cpu-private-styles` (`docs/results.md` has the whole command), EfficientNet-Lite0 of ImageNet with its first
# stages frozen, one client for each of three domains of PACS, the fourth unseen, 40 steps a client and round in every
# arm, three seeds. Bars are intervals over seeds; each domain was the unseen one in turn.

# %% tags=["from-pacs"]
found = json.loads((root / "benchmarks" / "results" / "cpu-private-styles/bench.json").read_text())
COMPARED = {"fedavg": "FedAvg, no styles", "ccst": "CCST, public styles", "private-8": "CCST, epsilon 8"}
figure, axis = plt.subplots(figsize=(7, 3.4), layout="constrained")
for number, (name, label) in enumerate(COMPARED.items()):
    arm = found["arms"][name]
    rows = [*(arm["accuracy"][domain] for domain in found["domains"]), arm["accuracy"]["average"], arm["own_domains"]]
    bounds = [[row["value"] - row["low"] for row in rows], [row["high"] - row["value"] for row in rows]]
    places = [place + 0.18 * (number - 1) for place in range(len(rows))]
    axis.errorbar(places, [row["value"] for row in rows], yerr=bounds, fmt="osD"[number], capsize=3, label=label)
axis.set_xticks(
    range(len(rows)), [*(f"{name},\nunseen" for name in found["domains"]), "mean of\nunseen", "own\ndomains"]
)
axis.set_ylim(0, 1)
axis.set_ylabel("accuracy (95% interval)")
axis.legend(frameon=False, loc="lower left")
for name in ("ccst", "private-8"):
    change = found["arms"][name]["difference"]["average"]
    print(
        f"{COMPARED[name]:<20} minus FedAvg: {100 * change['value']:+.1f} points [{100 * change['low']:+.1f}, "
        f"{100 * change['high']:+.1f}], paired over {change['n']} seeds"
    )

# %% [markdown]
# CCST's styles gain nothing over FedAvg that three seeds show, with public styles or private ones, so that there was no
# gain for privacy to cost. The guarantee is that of the styles; the models of the same runs have none.
#
# ## What to choose
#
# * **Pooled styles, spectra and rows of single images: `private-styles`.** It is the only one of these defenses whose
#   protection does not depend on which attack is tried. Choose the epsilon by `fdgsec sweep` with `accuracy_at`.
# * **FISC**: `private-styles` takes it only with the pooled style of all images, or per client (`unit=client`).
# * **Noise without a guarantee** protects against the attacks that were measured, with those candidates.
# * **The models are sent too**: DP-SGD, in [the next notebook](03-dp-sgd.ipynb).
# * **Secure aggregation hides who sent a style, and not whose images are in it**: whoever holds the candidates reads a
#   sum over ten clients as well ([notebook 04](04-who-was-in-the-average.ipynb)).
# * The price in accuracy has to be measured where there is accuracy to lose: on a network that has learned its clients'
#   own domains, at equal steps, over several seeds.

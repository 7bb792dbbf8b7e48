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
# # What DP-SGD costs each method, and which methods it refuses
#
# DP-SGD bounds what a model tells about any single image: each image's gradient is clipped to a length of at most $C$,
# and every step adds Gaussian noise with standard deviation $zC$ to their sum. How much noise an $\varepsilon$ needs
# follows from a formula, which applies only if each image's gradient depends on no other image. Half of the methods for
# domain generalization compare images with each other, and most send more than a model.
#
# Everything runs on the bundled `shapes`. **Shapes proves that the mechanics work; nothing here is a finding about a
# method.** What was measured on real images stands at the end.

# %% tags=["imports"]
import json
import time
from pathlib import Path

import matplotlib.pyplot as plt

import fdgsec

SMALL = {"per_domain": 42, "image_size": 32, "norm": "group"}
PLAN = ["method.plan.batch_size=16", "method.plan.steps=2", "method.plan.learning_rate=0.05"]


def trained(method, *defenses, more=(), plan=PLAN, **changed):
    """Train for a round on shapes; give the report and the CPU seconds."""
    started = time.process_time()
    settings = {"rounds": 1, **SMALL, **changed}
    report = fdgsec.train(method, defenses=defenses, assignments=[*plan, *more], progress=False, **settings)
    return report, time.process_time() - started


def guaranteed(report):
    """The guarantee of the whole run, and why there is none."""
    run = report.guarantees[0]
    if run["epsilon"] is None:
        return f"none; sent without protection: {', '.join(run['uncovered'])}"
    return f"epsilon {run['epsilon']:.3g} at delta {run['delta']:g} per {run['unit']}"


# %% [markdown]
# ## How much noise is enough
#
# A step samples each of a client's $n$ images with probability 16 / $n$: the more images, the less often each one is
# sampled, and the smaller $\varepsilon$ at the same noise.

# %%
multipliers = [0.6, 4.0]
figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
for images in (28, 112):
    runs = [trained("fedavg", f"dp-sgd:noise_multiplier={z}", per_domain=images)[0] for z in multipliers]
    axis.loglog(multipliers, [run.guarantees[0]["epsilon"] for run in runs], marker="o", label=f"{images} per domain")
axis.set_xticks(multipliers, [f"{z:g}" for z in multipliers])
axis.minorticks_off()
axis.set_xlabel("noise multiplier z")
axis.set_ylabel("$\\varepsilon$ of the run at $\\delta$ = 1e-5")
axis.legend(frameon=False)

# %% [markdown]
# ## Which methods it refuses
#
# `dp-sgd` asks every method whether its clients use their images through the trainer alone, one record at a time. The
# others are refused before anything runs, and the message names the variant to use instead.
#
# Methods that send more than a model need a second defense: noise on what they share (`private-styles`), or on the
# scores that FedDAG's clients give each other (`private-scores`). Then there is one number for the run, and its parts.

# %%
for method in ("stablefdg", "fisc", "fedalign", "feddag"):
    try:
        trained(method, "dp-sgd:epsilon=8")
    except fdgsec.UsageError as error:
        print(f"{method}: {error}\n")

# %%
STYLES = "private-styles:epsilon=4,neighbors=zero-out"
BESIDE = {
    "fedavg": ((), ()),
    "ccst": ((STYLES,), ()),
    "stablefdg-dp": ((STYLES,), ()),
    "fisc-dp": ((STYLES,), ("method.local_clustering=false", "method.sigma=mixture")),
    "fedalign-dp": ((STYLES,), ("method.discriminator=off",)),
    "feddag-dp": (("private-scores:epsilon=4",), ("method.warm_up=1", "rounds=2")),
}
private = {name: trained(name, "dp-sgd:epsilon=8", *beside, more=more) for name, (beside, more) in BESIDE.items()}
for name, (report, _) in private.items():
    print(f"{name:<13} {guaranteed(report)}")

# %%
COLORS = {"model": "#0072b2", "styles or scores": "#d55e00"}
figure, axis = plt.subplots(figsize=(7, 3.4), layout="constrained")
for row, (report, _) in enumerate(private.values()):
    run, *parts = report.guarantees
    left = 0.0
    for part in parts or [run]:
        kind = "model" if "model" in part["part"] or part is run else "styles or scores"
        axis.barh(row, part["epsilon"], left=left, height=0.55, color=COLORS[kind])
        left += part["epsilon"]
    axis.plot([run["epsilon"]] * 2, [row - 0.4, row + 0.4], color="black")
axis.set_yticks(range(len(private)), list(private))
axis.invert_yaxis()
axis.set_xlabel("$\\varepsilon$ of the parts (bars) and of the run (line)")
handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color in COLORS.values()]
axis.legend(
    [*handles, plt.Line2D([], [], color="black")], [*COLORS, "run"], frameon=False, ncols=3, loc="lower center",
    bbox_to_anchor=(0.5, 1.0),
)  # fmt: skip

# %% [markdown]
# The parts are not added: composition by privacy loss distributions is tighter than the sum. An $\varepsilon$ of 9 is a
# weak guarantee. It bounds the success of *any* attacker, even one who knows all images but one.
#
# ## One unprotected message, and there is no guarantee
#
# CCST's training is compatible with DP-SGD, but CCST also sends a style, and noise on gradients does not protect it.
# FISC's interpolation style is made of all clients' styles and comes back to each of them: if it is not protected,
# neither is the model that is trained with it.

# %%
for name in ("ccst", "fisc-dp", "stablefdg-dp"):
    report, _ = trained(name, "dp-sgd:noise_multiplier=2", more=BESIDE[name][1])
    print(f"{name:<13} {guaranteed(report)}")

# %% [markdown]
# ## Is the guarantee kept?
#
# An accountant proves an upper bound for the mechanism that was meant. `fdgsec.audit` plants canaries into the
# mechanism that runs, and gives a lower bound on its $\varepsilon$: a bound above the claim would refute it.

# %%
audited = fdgsec.audit(
    "ccst-overall", defenses=["private-styles:epsilon=4"], runs=200, distinct_releases=256, encoder="pixels",
    **{**SMALL, "per_domain": 20},
)  # fmt: skip
print(f"claimed: epsilon {audited['claimed_epsilon']:.3g}; audited: at least {audited['lower_bound']:.3g}")
print("faults:", "; ".join(audited["faults"]) or "none found")

# %% [markdown]
# ## The cost in time
#
# DP-SGD computes one gradient per record and several views of a record. Before every client step it also tests that
# records do not influence each other (some dozens of passes over eight records: in two steps this is most of the cost,
# over a real epoch it is little).

# %%
plain = {name: trained(name, more=more) for name, (_, more) in BESIDE.items()}
figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
rows = range(len(BESIDE))
for shift, label, runs, color in ((-0.2, "plain", plain, "#999999"), (0.2, "private", private, "#0072b2")):
    axis.barh([row + shift for row in rows], [runs[name][1] for name in BESIDE], height=0.36, label=label, color=color)
axis.set_yticks(rows, list(BESIDE))
axis.invert_yaxis()
axis.set_xlabel("CPU seconds of a whole run: 3 clients, 1 round (FedDAG: 2), 2 steps")
axis.legend(frameon=False)

# %% [markdown]
# ## The cost in accuracy
#
# The noise on each of $d$ parameters does not depend on $d$, while the clipped gradient has length $C$ over all of them
# together. The noise of a step has length $zC\sqrt{d}/(qn)$. For this network of 105,535 parameters and batches of 32,
# that is ten times $C$ and more, and the signal is at most $C$. A small client therefore learns slowly, if at all. The
# figure shows the accuracy on images of the clients' domains that no client trained on, after equally many steps:

# %%
LONGER = ["method.plan.batch_size=32", 'method.plan.optimizer="adam"', "method.plan.learning_rate=0.005",
          "method.plan.epochs=3", "method.plan.crop=none", "method.plan.steps=none"]  # fmt: skip
figure, axis = plt.subplots(figsize=(5, 3.2), layout="constrained")
for place, defenses in enumerate([(), ("dp-sgd:epsilon=8",)]):
    report, _ = trained("fedavg", *defenses, plan=LONGER, rounds=3, per_domain=140)
    for offset, (domain, row) in enumerate(report.accuracy["per_domain"].items()):
        bounds = [[row["value"] - row["low"]], [row["high"] - row["value"]]]
        axis.errorbar(
            place + 0.1 * (offset - 1), row["value"], yerr=bounds, fmt="osD"[offset], color=f"C{offset}", capsize=3,
            label=None if place else domain,
        )  # fmt: skip
axis.axhline(1 / 7, color="gray", linestyle="--", linewidth=0.8)
axis.set_xticks([0, 1], ["plain", "$\\varepsilon$ = 8"])
axis.set_xlim(-0.5, 1.5)
axis.set_ylim(0, 1)
axis.set_ylabel("accuracy (95% interval)")
axis.legend(frameon=False, fontsize=9)
axis.set_title("14 images of each source domain; dashed: baseline", fontsize=9)

# %% [markdown]
# With 14 images per point, the intervals are wide; this is why they are shown.
#
# ## On real images
#
# What is left where a federation does not start from nothing: PACS at 128 px, one client for each of three domains, the
# fourth unseen, EfficientNet-Lite0 of ImageNet, of which the head alone trains: 10 rounds of 10 steps of 512 images, in
# every arm. The learning rate of each arm and column was chosen on validation images of the clients' own domains, by
# the same five tries. Epsilon is for each image, over all rounds, at delta 1e-5. `fdgsec bench --ablation cpu-dp-head`
# measured it; `docs/results.md` has the table, "What DP-SGD costs a pretrained head".

# %% tags=["from-pacs"]
root = next(folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / "benchmarks").is_dir())
found = json.loads((root / "benchmarks" / "results" / "cpu-dp-head/bench.json").read_text())
arms = [name for name in ("dp-1", "dp-2", "dp-4", "dp-8", "dp-16", "fedavg") if name in found["arms"]]
figure, axis = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
for number, domain in enumerate(["average", *found["domains"]]):
    rows = [found["arms"][name]["accuracy"][domain] for name in arms]
    bounds = [[row["value"] - row["low"] for row in rows], [row["high"] - row["value"] for row in rows]]
    places = [place + 0.06 * (number - 2) for place in range(len(arms))]
    axis.errorbar(
        places, [row["value"] for row in rows], yerr=bounds, fmt="o-", capsize=2, color="black" if not number else None,
        linewidth=2 if not number else 1, label=f"{domain}, unseen" if number else "mean of the four",
    )  # fmt: skip
axis.plot([found["arms"][name]["own_domains"]["value"] for name in arms], color="gray", linestyle="--",
          label="own domains")  # fmt: skip
axis.set_xticks(range(len(arms)), [f"$\\varepsilon$ = {name[3:]}" if "-" in name else "not private" for name in arms])
axis.set_ylim(0, 1)
axis.set_ylabel("accuracy (95% interval over seeds)")
axis.legend(frameon=False, fontsize=8, ncols=2)

# %% [markdown]
# Three conclusions:
#
# * *Check which records interact* before you trust an epsilon.
# * *Read the guarantee of the run*: that of the model alone is none if something else is sent.
# * *Few images per client make privacy expensive*: compare 14 images and a whole network from nothing with
#   thousands of images and a pretrained head; much differs between the two beside the images.

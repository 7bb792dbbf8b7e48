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
# This notebook shows how much noise DP-SGD needs, which methods it can train, and what it costs in time and accuracy.
#
# DP-SGD trains so that no single image can be recovered from a model: each image's gradient is clipped to a length of
# at most $C$, and every step adds Gaussian noise with standard deviation $zC$ to their sum. The amount of noise follows
# from a formula. The formula applies only if each image's gradient depends on no other image. Half of the methods for
# domain generalization compare images with each other, and send more than a model.
#
# Everything runs on the bundled `shapes`. **Results on shapes test the software; they say nothing about real data.**

# %%
import time

import matplotlib.pyplot as plt
import torch

import fdgsec
from fdgsec.data.domains import as_float
from fdgsec.data.shapes import shapes
from fdgsec.defenses.dp_sgd import DPSGD
from fdgsec.experiments.run_config import build
from fdgsec.nn.networks.classifiers import build_classifier
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.privacy.accounting import epsilon
from fdgsec.privacy.dp_sgd import uses_of
from fdgsec.privacy.ledger import guarantee_line
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.registry import METHODS, resolve

torch.set_num_threads(1)  # more threads do not help such small networks

# %% [markdown]
# ## How much noise is enough
#
# A client with $n$ images takes part in five rounds of one epoch, with an expected batch size of 64. A step samples an
# image with probability $64/n$: the more images, the less often each one is sampled, and the smaller $\varepsilon$ at
# the same noise. With a hundred images, sampling hardly helps.

# %%
plan = TrainingPlan(batch_size=64)
multipliers = [0.6, 1.0, 2.0, 4.0, 8.0]
figure, axis = plt.subplots(figsize=(6, 3.6))
for images in (100, 400, 1600):
    costs = [
        epsilon(
            [uses_of(images, plan, noise_multiplier=z, max_grad_norm=1.0)] * 5, delta=1e-5, relation="zero-out"
        )
        for z in multipliers
    ]  # fmt: skip
    axis.loglog(multipliers, costs, marker="o", label=f"n = {images}")
axis.axhline(8, color="gray", linewidth=0.8, linestyle="--")
axis.annotate("$\\varepsilon$ = 8", (6.6, 8.6), color="gray")
axis.set_xticks(multipliers, [f"{z:g}" for z in multipliers])
axis.minorticks_off()
axis.set_xlabel("noise multiplier z")
axis.set_ylabel("$\\varepsilon$ at $\\delta$ = 1e-5")
axis.legend(frameon=False)
figure.tight_layout()

# %% [markdown]
# ## Which methods it refuses
#
# `dp-sgd` asks every method whether its clients use their images only through the trainer, one record at a time. Few
# methods do. The others are refused before anything runs, and the message names the variant to use instead.

# %%
defense = DPSGD(epsilon=8.0)
refusals = {}
for name in METHODS:
    try:
        defense.check(build(resolve("methods", name), {}, where=name))
    except UsageError as error:
        refusals[name] = str(error)
print("taken:  ", ", ".join(name for name in METHODS if name not in refusals))
print("refused:", ", ".join(refusals))
print()
print(refusals["stablefdg"])

# %% [markdown]
# The method's declaration is not sufficient. Before each training, the objective is *tested*: some records of a batch
# are replaced, and the losses and gradients of the others must not change. Here is a small loss that looks harmless:
# cross-entropy of logits minus their mean over the batch. Opacus checks layers and finds nothing; with its hooks this
# loss trains, and its $\varepsilon$ is wrong.

# %%
from opacus.validators import ModuleValidator

from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import Batch
from fdgsec.privacy.record_independence import BatchCouplingError, check_independence


class Centered:
    """Cross-entropy of logits minus the batch's mean logits."""

    couples_records = False  # a false declaration

    def __call__(self, batch: Batch, model: Classifier) -> torch.Tensor:
        """Give the losses, (B,)."""
        logits = model(batch.images)
        return torch.nn.functional.cross_entropy(logits - logits.mean(0), batch.labels, reduction="none")


network = build_classifier("tiny", 7, norm="group", rng=stream(0, "world", "notebook"))
data = shapes(image_size=32, per_domain=14)
batch = Batch(images=as_float(data.pixels(torch.arange(8))), labels=data.labels[:8], records=torch.arange(8))
print("Opacus finds an error:", bool(ModuleValidator.validate(network)))
try:
    check_independence(Centered(), network, batch, stream(0, "world", "check"), method="Centered")
except BatchCouplingError as error:
    print("fdgsec finds an error:", error)

# %% [markdown]
# ## The guarantee of a run
#
# CCST's training is compatible: an image is stylized with other clients' styles, and its versions count as one record,
# so DP-SGD accepts it. But CCST also sends a style, and noise on gradients does not protect it. The ledger composes
# everything that a client released, and a run with one unprotected release has no guarantee, however small the other
# numbers are.

# %%
SMALL = {"per_domain": 42, "image_size": 32, "norm": "group"}
PLAN = ["method.plan.batch_size=16", "method.plan.steps=2", "method.plan.learning_rate=0.05"]


def trained(method: str, *defenses: str, more: tuple[str, ...] = ()):
    """Train for two rounds on shapes; give the report and the CPU seconds."""
    started = time.process_time()
    assignments = [*PLAN, *more]
    report = fdgsec.train(method, rounds=2, defenses=defenses, **SMALL, assignments=assignments)
    return report, time.process_time() - started


alone, _ = trained("ccst", "dp-sgd:epsilon=8")
for guarantee in alone.guarantees:
    print(guarantee_line(guarantee))

# %% [markdown]
# The first line is the guarantee: none, and the reason. The second line gives the cost of the model alone. It is not a
# guarantee for the run, because whoever sees the style learns from the style.
#
# Methods that send more than a model need a second defense: noise on what they share (`private-styles`), or on the
# scores that FedDAG's clients give each other (`private-scores`). Then there is one number for the run, and its parts.

# %%
STYLES = "private-styles:epsilon=4,neighbors=zero-out"
PRIVATE = {
    "fedavg": ((), ()),
    "ccst": ((STYLES,), ()),
    "stablefdg-dp": ((STYLES,), ()),
    "fisc-dp": ((STYLES,), ("method.local_clustering=false", "method.sigma=mixture")),
    "fedalign-dp": ((STYLES,), ("method.discriminator=off",)),
    "feddag-dp": (("private-scores:epsilon=4",), ("method.warm_up=1",)),
}
private = {name: trained(name, "dp-sgd:epsilon=8", *beside, more=more) for name, (beside, more) in PRIVATE.items()}
for name, (report, _) in private.items():
    print(f"{name:<13} {guarantee_line(report.guarantees[0])}")

# %%
figure, axis = plt.subplots(figsize=(7, 3.4))
for row, (report, _) in enumerate(private.values()):
    run, *parts = report.guarantees
    left = 0.0
    for part in parts or [run]:
        value = float(str(part["epsilon"]))
        kind = "model" if "model" in str(part["part"]) or part is run else "styles or scores"
        axis.barh(row, value, left=left, height=0.55, color={"model": "#4477aa", "styles or scores": "#ccbb44"}[kind])
        left += value
    axis.plot([float(str(run["epsilon"]))] * 2, [row - 0.4, row + 0.4], color="black")
axis.set_yticks(range(len(private)), list(private))
axis.invert_yaxis()
axis.set_xlabel("$\\varepsilon$ of the parts (bars) and of the run (line)")
handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color in ("#4477aa", "#ccbb44")]
axis.legend([*handles, plt.Line2D([], [], color="black")], ["model", "styles or scores", "run"], frameon=False, ncols=3,
            loc="lower center", bbox_to_anchor=(0.5, 1.0))  # fmt: skip
figure.tight_layout()

# %% [markdown]
# The parts are not added: composition by privacy loss distributions is tighter than the sum. An $\varepsilon$ of 9 is a
# weak guarantee. It bounds the success of *any* attacker, even one who knows all images but one.
#
# ## Indirect dependence on other images
#
# FISC's interpolation style is computed from all clients' styles and returned to each of them. An image is therefore
# trained on in a style that depends on its own client's images. If that style is not protected, neither is the model.
# The same holds for StableFDG's center. The guarantee names both.

# %%
for name in ("fisc-dp", "stablefdg-dp"):
    report, _ = trained(name, "dp-sgd:noise_multiplier=2", more=(*PRIVATE[name][1], "rounds=1"))
    print(f"{name:<13} {guarantee_line(report.guarantees[0])}")

# %% [markdown]
# ## The cost in time
#
# DP-SGD computes one gradient per record and several views of a record. Before every call it also tests independence
# (some dozens of passes over eight records; in two steps this is most of the cost, over a real epoch it is little).

# %%
plain = {name: trained(name, more=more) for name, (_, more) in PRIVATE.items()}
figure, axis = plt.subplots(figsize=(7, 3.2))
rows = torch.arange(len(PRIVATE)).tolist()
axis.barh(
    [row - 0.2 for row in rows], [plain[name][1] for name in PRIVATE], height=0.36, label="plain", color="#bbbbbb"
)
axis.barh(
    [row + 0.2 for row in rows], [private[name][1] for name in PRIVATE], height=0.36, label="private", color="#4477aa"
)
axis.set_yticks(rows, list(PRIVATE))
axis.invert_yaxis()
axis.set_xlabel("CPU seconds of a whole run: 3 clients, 2 rounds, 2 steps")
axis.legend(frameon=False)
figure.tight_layout()

# %% [markdown]
# ## The cost in accuracy
#
# The noise on each of $d$ parameters does not depend on $d$, while the clipped gradient has length $C$ over all of them
# together. The noise of a step has length $zC\sqrt{d}/(qn)$. For this network of 105,535 parameters and batches of 32,
# that is ten times $C$ and more, and the signal is at most $C$. A small client therefore learns slowly, if at all. The
# figure shows the accuracy on images of the clients' domains that no client trained on:

# %%
longer = ["method.plan.batch_size=32", 'method.plan.optimizer="adam"', "method.plan.learning_rate=0.005",
          "method.plan.epochs=3", "method.plan.crop=none"]  # fmt: skip
figure, axis = plt.subplots(figsize=(5, 3.2))
for place, defenses in enumerate([(), ("dp-sgd:epsilon=8",)]):
    report = fdgsec.train("fedavg", rounds=3, assignments=longer, defenses=defenses, **{**SMALL, "per_domain": 140})
    for offset, (domain, row) in enumerate(report.accuracy["per_domain"].items()):
        bounds = [[row["value"] - row["low"]], [row["high"] - row["value"]]]
        axis.errorbar(place + 0.1 * (offset - 1), row["value"], yerr=bounds, fmt="o", color=f"C{offset}", capsize=3,
                      label=None if place else domain)  # fmt: skip
axis.axhline(1 / 7, color="gray", linestyle="--", linewidth=0.8)
axis.set_xticks([0, 1], ["plain", "$\\varepsilon$ = 8"])
axis.set_xlim(-0.5, 1.5)
axis.set_ylim(0, 1)
axis.set_ylabel("accuracy (95% interval)")
axis.legend(frameon=False, fontsize=9)
axis.set_title("14 images of each source domain; dashed: chance", fontsize=9)
figure.tight_layout()

# %% [markdown]
# With 14 images per point, the intervals are wide; this is why they are shown.
# `python -m benchmarks.dp_runs --dataset pacs` measures the same on real images: six methods, without and with privacy,
# accuracy, $\varepsilon$ and its parts, seconds per step, and two attacks.
#
# Three conclusions:
#
# * *Check which records interact* before you trust an epsilon.
# * *Read the `run` line*: "model only" is not a guarantee.
# * *Few images per client make privacy expensive*: with a hundred images, no choice of $z$ gives both privacy and
#   accuracy.

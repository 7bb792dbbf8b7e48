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
# # What CCST sends, and what it says
#
# CCST trains one classifier on several clients whose images look different: photographs here, paintings there. So that each
# client can practice on the others' looks, every client sends a *style*: for each channel of a public image encoder, the
# mean and the standard deviation over its pixels. The paper argues that so few numbers cannot give images away.
#
# This notebook asks what they do give away. It runs on `shapes`, a procedural data set that is bundled, so it needs no data
# and no network. **Shapes prove that the machinery works; they are never a finding.** For findings, set `DATASET` to `"pacs"`
# and point `$FDGSEC_DATA` to your copy.

# %%
import matplotlib.pyplot as plt
import torch

import fdgsec
from fdgsec.data.domains import as_float
from fdgsec.data.shapes import shapes
from fdgsec.experiments.report.schema import AttackReport

DATASET = "shapes"
SETTINGS = {"per_domain": 210}

# %% [markdown]
# ## Four domains, seven classes

# %%
images = shapes(image_size=64, per_domain=7)
figure, axes = plt.subplots(4, 7, figsize=(9, 5.4))
for axis, picture in zip(axes.flat, as_float(images.pixels()), strict=True):
    axis.imshow(picture.permute(1, 2, 0))
    axis.set_axis_off()
for row, name in enumerate(images.domain_names):
    axes[row, 0].set_title(name, loc="left", fontsize=9)

# %% [markdown]
# ## What crosses the wire
#
# One client per domain; `sketch` is the domain that nobody has. Each client sends one style, the server sends all of them
# to everybody. That is the whole transcript.

# %%
overall = fdgsec.attack("ccst-overall", dataset=DATASET, attacks=["differencing", "membership"], settings=SETTINGS)
for row in overall.artifacts:
    print(f"{row['sender']:>9} -> {row['receiver']:<9} {row['kind']:<16} {row['bytes']:>6} bytes")

# %% [markdown]
# ## Two averages give one image's style
#
# A pooled style is exactly an average, once written as $(\mu, \sigma^2 + \mu^2)$. Whoever sees it before and after one image
# joins can subtract. No learning is involved, only arithmetic, and the error is that of 32-bit numbers.


# %%
def show(report: AttackReport, attack: str, *names: str) -> None:
    """Print the rows of one attack: value, interval, chance."""
    for result in report.attacks:
        for row in result.measurements if result.name == attack else ():
            if row.name in names and row.value is not None:
                where = ", ".join(f"{key} {value}" for key, value in row.slice.items())
                low, high = row.low or row.value, row.high or row.value
                chance = "" if row.chance is None else f"chance {row.chance:.3f}"
                print(f"{row.name:>18}  {row.value:8.4f}  [{low:.4f}, {high:.4f}]  {chance:<13}  {where}")


show(overall, "differencing", "relative_error", "top1")

# %% [markdown]
# ## Was this image in the average?
#
# The likelihood-ratio test asks, for one candidate image, whether the release looks more like an average with it or without it.
# Clients are drawn anew many times, members and non-members come from the same domain, and half of the candidates are never
# in. The smaller the client, the clearer the answer.

# %%
show(overall, "membership", "auc", "theory_auc")

# %% [markdown]
# ## Single styles say more
#
# In its other mode CCST sends the styles of single images. Then each released row can be matched to an image, and its class
# and domain can be read.

# %%
attacks = ["reidentification", "label-inference", "domain-inference"]
single = fdgsec.attack("ccst-single", dataset=DATASET, attacks=attacks, settings=SETTINGS)
show(single, "reidentification", "top1")
show(single, "label-inference", "balanced_accuracy")
show(single, "domain-inference", "balanced_accuracy")

# %% [markdown]
# ## How sure are we?
#
# Each attack ran twice more: on planted information, which it had to find, and on exchanged artifacts, on which it had to
# find nothing. Without both, no number above means anything.

# %%
for report in (overall, single):
    for result in report.attacks:
        planted = all(control.passed for control in result.positive)
        silent = all(control.passed for control in result.negative)
        print(f"{report.target:>13} {result.name:<18} planted found: {planted}   shuffled silent: {silent}")

# %% [markdown]
# ## What a client sees
#
# The server is not the only one who can look. Client 0 receives the bank with everybody's styles. It has no auxiliary images of
# the other domains, so it can ask fewer questions; the report says which, and why.

# %%
client = fdgsec.attack(
    "ccst-overall", dataset=DATASET, adversary="client", attacks=["differencing", "membership"], settings=SETTINGS
)
for result in client.attacks:
    print(f"{result.name:<14} {result.status}  {result.reason}")

# %% [markdown]
# The whole report, with pictures and every row, is one HTML page:
# `fdgsec attack --target ccst-single --dataset pacs --out runs/single`.

# %%
torch.get_num_threads(), overall.environment["torch"]

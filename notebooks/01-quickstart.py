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
# # What CCST sends, and what it reveals
#
# This notebook measures how much the style statistics that CCST sends reveal about private images.
#
# CCST trains one classifier across several clients whose images look different, for example photographs and paintings.
# So that each client can train on the others' styles, every client sends a *style*: for each channel of a public image
# encoder, the mean and the standard deviation over its pixels. The paper argues that one "can hardly
# reconstruct" images from so few numbers.
#
# The notebook uses `shapes`, a bundled procedural dataset, so it needs no data and no network. **Shapes proves that the
# mechanics work; nothing here is a finding about a method.** For results on real images, set `DATASET` to `"pacs"` and
# point `$FDGSEC_DATA` to your copy.

# %%
import matplotlib.pyplot as plt

import fdgsec

DATASET = "shapes"
SETTINGS = {"per_domain": 210}

# %% [markdown]
# ## Four domains, seven classes

# %%
images = fdgsec.load_dataset("shapes", image_size=64, per_domain=7)
figure, axes = plt.subplots(4, 7, figsize=(9, 5.4))
for axis, picture in zip(axes.flat, images.pixels(), strict=True):
    axis.imshow(picture.permute(1, 2, 0))
    axis.set_axis_off()
for row, name in enumerate(images.domain_names):
    axes[row, 0].set_title(name, loc="left", fontsize=9)

# %% [markdown]
# ## The answer first
#
# One call runs the method, records what is sent, attacks it, and returns a report. A report shows its answer: one
# sentence, and a row for each question.

# %%
overall = fdgsec.attack("ccst-overall", dataset=DATASET, attacks=["differencing", "membership"], **SETTINGS)
overall

# %% [markdown]
# ## What is sent
#
# There is one client per domain; `sketch` is the domain that no client has seen. Each client sends one style, and the
# server sends all of them to every client. This is the whole transcript.

# %%
for row in overall.artifacts:
    print(f"{row['sender']:>9} -> {row['receiver']:<9} {row['kind']:<16} {row['bytes']:>6} bytes")

# %% [markdown]
# ## The difference of two averages is one image's style
#
# A pooled style is exactly an average, if it is written as $(\mu, \sigma^2 + \mu^2)$. Anyone who sees it before and
# after one image is added can subtract. This needs no learning, only arithmetic, and the error is that of 32-bit
# numbers. `to_frame` gives a pandas table of every number with interval and baseline (`chance`).

# %%
columns = ["measurement", "slice", "value", "low", "high", "chance", "verdict"]
rows = overall["differencing"].to_frame()
rows.loc[rows["measurement"].isin(["relative_error", "top1"]), columns]

# %% [markdown]
# ## Was this image in the average?
#
# For one candidate image, the likelihood-ratio test asks whether the release looks more like an average with it or
# without it. Clients are resampled many times, members and non-members come from the same domain, and half of the
# candidates are never included. The smaller the client, the stronger the attack.

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
overall.plot("roc", ax=axes[0]).legend(fontsize=7)
overall.plot("auc-by-n", ax=axes[1])

# %% [markdown]
# ## Single styles reveal more
#
# In its other mode, CCST sends the styles of single images. Then each released row can be matched to an image, and its
# class and domain can be inferred.

# %%
attacks = ["reidentification", "label-inference", "domain-inference"]
single = fdgsec.attack("ccst-single", dataset=DATASET, attacks=attacks, **SETTINGS)
single

# %% [markdown]
# ## Are the attacks valid?
#
# Each attack ran twice more: on an artificial leak, which it must detect (the positive control), and on exchanged
# artifacts, in which it must detect nothing (the negative control). Without both, the numbers above cannot be
# interpreted.

# %%
for report in (overall, single):
    for result in report.attacks:
        positive = all(control.passed for control in result.positive)
        negative = all(control.passed for control in result.negative)
        print(f"{report.target:>13} {result.name:<18} positive controls passed: {positive}   negative: {negative}")

# %% [markdown]
# ## What a client sees
#
# Clients can also attack. Client 0 receives the bank with all styles. It has no auxiliary images of the other domains,
# so fewer attacks apply; the report lists the skipped ones and the reasons.

# %%
client = fdgsec.attack(
    "ccst-overall", dataset=DATASET, adversary="client", attacks=["differencing", "membership"], **SETTINGS
)
for result in client.attacks:
    print(f"{result.name:<14} {result.verdict}  {result.reason}")

# %% [markdown]
# ## The report
#
# `report.save("folder")` writes one HTML page with every row, the document and the table; `out="folder"` also keeps the
# transcript. On the command line: `fdgsec attack ccst-single --dataset pacs --out runs/single`.

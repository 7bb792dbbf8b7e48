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
# # What does a style show?
#
# A style is a few hundred averages of an image. This notebook reconstructs pictures from styles, and asks what of them
# comes from the style: every reconstruction stands beside *controls* that get the same adversary without the victim's
# style.
#
# Everything runs on the bundled `shapes`. **Shapes proves that the mechanics work; nothing here is a finding about a
# method.**

# %%
import matplotlib.pyplot as plt

import fdgsec

report = fdgsec.attack("ccst-single", attacks=["style-inversion"], per_domain=98, image_size=32)
report

# %% [markdown]
# ## Pictures
#
# The best, the median and the worst of each domain by PSNR, not the prettiest. The columns to the right are controls:
# the mean of the adversary's own (auxiliary) images, the one with the nearest style, and the reconstruction that was
# made from somebody else's style.

# %%
inversion = report["style-inversion"]
grids = [figure for figure in inversion.figures if figure.name.startswith("grid")]
figure, axis = plt.subplots(figsize=(8, 10), layout="constrained")
inversion.plot(grids[0].name, ax=axis).set_title(grids[0].title)
print(grids[0].caption)

# %% [markdown]
# ## Numbers
#
# A small error proves nothing where all images are alike. What counts is the gain over each control, and whether the
# reconstruction finds its own image in a gallery more often than chance (`gallery_top1`).

# %%
table = inversion.to_frame()
gains = table[(table["measurement"] == "psnr_gain") & table["value"].notna()]
gains.groupby(["slice.prior", "slice.over"])[["value", "low", "high"]].median().round(2)

# %%
gallery = table[(table["measurement"] == "gallery_top1") & table["value"].notna()]
gallery[["slice.domain", "slice.prior", "value", "low", "high", "chance", "verdict"]].head(8)

# %% [markdown]
# ## The verdict
#
# The row that stands for an attack is named before anything is measured (`finding`), and it is flagged only after
# Holm's correction over all rows of the report. Where a control of the attack failed, its rows count for nothing.

# %%
print(inversion.verdict)
print(
    "; ".join(
        f"{kind}: {sum(one.passed for one in found)} of {len(found)}" for kind, found in inversion.controls.items()
    )
)

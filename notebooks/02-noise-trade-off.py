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
# # How much noise prevents linkage, and what does it cost?
#
# This notebook measures attack success under two kinds of noise: noise as FISC adds it, and noise calibrated to a
# privacy guarantee.
#
# FISC sends one style per client and lets clients add noise to it: every number $v$ becomes $(1 - p)\,v + e$, where $e$
# has standard deviation $s$. Its Table 10 shows that accuracy hardly decreases at $s = 0.02$ or $0.05$, $p = 0.1$. That
# is one side of the trade-off. The other side is what an adversary can still do.
#
# The notebook uses the bundled `shapes`. **Results on shapes test the software; they say nothing about real data.** For
# results on real images, set `DATASET` to `"pacs"` and point `$FDGSEC_DATA` to your copy.

# %%
import tempfile
from pathlib import Path

import torch
from IPython.display import Image

from fdgsec.experiments.run_config import defense_of
from fdgsec.experiments.sweep.plots import figures
from fdgsec.experiments.sweep.run_sweep import SweepRequest, sweep
from fdgsec.experiments.sweep.tables import named, shown, verdict
from fdgsec.runtime.progress import NoProgress

DATASET = "shapes"
SMALL = {"per_domain": 84, "image_size": 32}
QUICK = (  # fewer settings than `fdgsec sweep` uses, so that a cell takes seconds
    'attacks.linkage.schemes=["dirichlet"]', 'attacks.linkage.sessions=["iid"]', "attacks.linkage.noise=[]",
    "attacks.linkage.noise_in_sds=[]", "attacks.membership.sizes=[40]", "attacks.membership.clients=20",
)  # fmt: skip
OUT = Path(tempfile.mkdtemp())
torch.set_num_threads(1)  # more threads are slower with so few images

# %% [markdown]
# ## FISC under its own noise
#
# Linkage asks: a client's style is seen today and again next week, with new noise. Which client sent it? There are
# thirty clients, so a random guess is correct one time in thirty. The adversary knows $s$ and $p$ from the paper. It
# divides by $1 - p$ and compares styles in the directions in which clients differ by more than the noise.

# %%
fisc = sweep(
    SweepRequest(
        target="fisc", dataset=DATASET, defenses=(defense_of("style-noise:p=0.1"),), option="scale",
        values=(0.05, 0.5, 2.0, 10.0), accuracy_at=(), attacks=("linkage",), given=SMALL, assignments=QUICK,
    ),
    data_root=None, out=OUT / "fisc", progress=NoProgress(),
)  # fmt: skip
Image(figures(fisc)["noise"])

# %% [markdown]
# The dash-dotted line is the paper's setting s = .05. The upper axis shows why it has little effect: it gives the noise
# in units of the standard deviation between clients. Noise that is small compared with this difference cannot hide a
# client.

# %%
for point in fisc["privacy"]:
    print(f"{named(point['value']):>10}  linkage {shown(point['rows']['linkage'])}")
print(verdict(fisc))

# %% [markdown]
# ## The adversary must account for the noise
#
# A defense looks better than it is if the attack ignores it. Undefended styles are best compared after *whitening*,
# which gives the largest weight to directions in which images hardly differ. Noise of the same size in all directions
# dominates exactly there. Every attack here therefore passes styles of its own images through the defense, measures the
# effect, and weights each direction by the remaining signal. The defense's options are public; its randomness is
# secret.

# %%
followed = fisc["followed"]["linkage"]["slice"]
print("followed without the defense:", ", ".join(f"{key} {value}" for key, value in followed.items()))
print("failed controls:", fisc["controls"]["failed"], "of", fisc["controls"]["points"], "points")

# %% [markdown]
# ## Noise with a guarantee
#
# `private-styles` first clips the influence of one image on a style, and then adds the noise that
# $(\varepsilon, \delta)$ requires. FISC's clusters cannot be protected in this way (one image can change all of them),
# but CCST's pooled style can. There are now two attacks: linkage as before, and membership inference: was this image in
# the average? The dotted line is what the adversary can expect of membership under this noise, from rehearsals.

# %%
calibrated = sweep(
    SweepRequest(
        target="ccst-overall", dataset=DATASET, defenses=(defense_of("private-styles"),), option="epsilon",
        values=(1000.0, 100.0, 8.0), accuracy_at=(), attacks=("linkage", "membership"), given=SMALL,
        assignments=QUICK,
    ),
    data_root=None, out=OUT / "private", progress=NoProgress(),
)  # fmt: skip
Image(figures(calibrated)["noise"])

# %%
for point in calibrated["privacy"]:
    cells = "  ".join(f"{name} {shown(row)}" for name, row in point["rows"].items())
    print(f"epsilon {named(point['value']):>10}  {cells}")
print(verdict(calibrated))

# %% [markdown]
# This guarantee is about one image. A client has many images, so hiding *which client* sent a style requires more noise
# than hiding one image: `--defense private-styles:unit=client` is calibrated for that.
#
# ## And the accuracy?
#
# The same sweep trains at the values that you name, seed by seed, and plots accuracy below attack success and against
# it. That takes minutes per point, so it is a command rather than a cell:
#
# ```sh
# fdgsec sweep --target fisc --dataset pacs --defense style-noise:p=0.1 --over scale=log:0.01:100:13 \
#     --accuracy-at 0.05,1,20 --seeds 3 --out runs/fisc-noise
# ```
#
# It can be stopped at any time; the same command resumes. `docs/sweep.md` explains how to read the figures.

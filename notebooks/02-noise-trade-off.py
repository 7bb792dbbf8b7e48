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
# # How much noise hides a client, and what does it cost?
#
# FISC sends one style per client and lets clients add noise to it: every number $v$ becomes $(1 - p)\,v + e$ with $e$ of
# standard deviation $s$, and its Table 10 shows that accuracy hardly suffers at $s = 0.02$ or $0.05$, $p = 0.1$. That
# is one half of a trade-off. The other half is what an adversary can still do, and this notebook draws both ends of that:
# noise as the paper adds it, and noise that is calibrated to a promise.
#
# It runs on the bundled `shapes`. **Shapes prove that the machinery works; they are never a finding.** For findings, set
# `DATASET` to `"pacs"` and point `$FDGSEC_DATA` to your copy.

# %%
import tempfile
from pathlib import Path

import torch
from IPython.display import Image

from fdgsec.experiments.sweep.plots import figures
from fdgsec.experiments.sweep.tables import named, shown, verdict
from fdgsec.experiments.sweep.verb import SweepRequest, sweep
from fdgsec.runtime.progress import NoProgress

DATASET = "shapes"
SMALL = {"per_domain": 84, "image_size": 32}
QUICK = (  # fewer questions than `fdgsec sweep` asks, so that a cell takes seconds
    'attacks.linkage.schemes=["dirichlet"]', 'attacks.linkage.sessions=["iid"]', "attacks.linkage.noise=[]",
    "attacks.linkage.noise_in_sds=[]", "attacks.membership.sizes=[40]", "attacks.membership.clients=20",
)  # fmt: skip
OUT = Path(tempfile.mkdtemp())
torch.set_num_threads(1)  # on so few images more threads only wait for each other

# %% [markdown]
# ## FISC under its own noise
#
# The question of linkage: a client's style is seen today and again next week, with fresh noise. Whose was it? Thirty
# clients, so a guess is right one time in thirty. The adversary knows $s$ and $p$, as anybody does who read the paper: it
# divides $1 - p$ out, and compares styles in the directions in which clients differ by more than the noise.

# %%
fisc = sweep(
    SweepRequest(
        target="fisc", dataset=DATASET, defenses=("style-noise:p=0.1",), option="scale",
        values=(0.05, 0.5, 2.0, 10.0), accuracy_at=(), attacks=("linkage",), given=SMALL, assignments=QUICK,
    ),
    data_root=None, out=OUT / "fisc", progress=NoProgress(),
)  # fmt: skip
Image(figures(fisc)["noise"])

# %% [markdown]
# The dash-dotted line is the paper's setting s = .05. The axis above says why it does little: it gives the noise in units of
# how much clients differ anyway. Noise that is small beside that difference cannot hide which client it is.

# %%
for point in fisc["privacy"]:
    print(f"{named(point['value']):>10}  linkage {shown(point['rows']['linkage'])}")
print(verdict(fisc))

# %% [markdown]
# ## The adversary has to know of the noise
#
# A defense looks better than it is when the attack ignores it. Undefended styles are best compared after *whitening*:
# directions in which images hardly differ count most, because there small differences mean something. Noise of one size in
# all directions drowns exactly these. So every attack here passes styles of its own images through the defense, looks at
# what that does to them, and weighs each direction by what is left in it. The defense's options are public; its coins are not.

# %%
followed = fisc["followed"]["linkage"]["slice"]
print("followed without the defense:", ", ".join(f"{key} {value}" for key, value in followed.items()))
print("failed controls:", fisc["controls"]["failed"], "of", fisc["controls"]["points"], "points")

# %% [markdown]
# ## Noise with a promise
#
# `private-styles` first clips what one image can do to a style, and then adds as much noise as $(\varepsilon, \delta)$ asks
# for. FISC's clusters cannot be protected so (one image can regroup them all), CCST's pooled style can. Now there are two
# questions: linkage as before, and membership: was this image in the average? The dotted line is what theory predicts for
# membership under so much noise.

# %%
calibrated = sweep(
    SweepRequest(
        target="ccst-overall", dataset=DATASET, defenses=("private-styles",), option="epsilon",
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
# The promise is about one image. A client holds many, so to hide *which client* it is takes more than hiding which image is
# in: `--defense private-styles:unit=client` is calibrated for that.
#
# ## And the accuracy?
#
# The same sweep trains at the values that you name, seed by seed, and draws accuracy below success and against it. That
# takes minutes per point, so it is a command rather than a cell:
#
# ```sh
# fdgsec sweep --target fisc --dataset pacs --defense style-noise:p=0.1 --over scale=log:0.01:100:13 \
#     --accuracy-at 0.05,1,20 --seeds 3 --out runs/fisc-noise
# ```
#
# It can be stopped at any time; the same command goes on where it was. How to read the figures is in `docs/sweep.md`.

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
# # Your own method and its artifacts
#
# You have a federation that is not fdgsec's, with a training loop of its own. Two lines record what it sends, and one
# attacks the recording. The method below is a stand-in for yours: FedAvg whose clients also share a style, namely mean
# and standard deviation of products of color channels.
#
# Everything runs on the bundled `shapes`. **Shapes proves that the mechanics work; nothing here is a finding about a
# method.**

# %%
import tempfile
from pathlib import Path

import torch
from torch import nn

import fdgsec

FOLDER = Path(tempfile.mkdtemp())
images = fdgsec.load_dataset("shapes", per_domain=70, image_size=32)
pixels, labels = images.pixels().float() / 255, images.labels
order = torch.randperm(len(images), generator=fdgsec.stream(0, "world", "clients"))
clients = {f"hospital {number}": part for number, part in enumerate(order.split(len(order) // 10))}

# %% [markdown]
# ## What is sent
#
# `rows` gives the style of each image, all means, then all standard deviations. `pooled` is the style over all pixels
# of all images of a client.


# %%
def rows(images: torch.Tensor) -> torch.Tensor:
    """The style of each image (N, 3, H, W): (N, 48)."""
    colors = nn.functional.avg_pool2d(images, 2).double()
    features = torch.cat([colors.roll((a, b), (1, 2)) * colors for a in range(2) for b in range(0, 16, 4)], 1)
    return torch.cat([features.mean((2, 3)), (features.var((2, 3), correction=0) + 1e-5).sqrt()], 1)


def pooled(images: torch.Tensor) -> torch.Tensor:
    """The style over all pixels of all images, (48,)."""
    mean, std = rows(images).chunk(2, dim=1)
    center = mean.mean(0)
    return torch.cat([center, ((std.square() + mean.square()).mean(0) - center.square()).sqrt()])


# %% [markdown]
# ## Your loop, recorded
#
# Each client trains on half of its images per round, and sends an update and a style.

# %%
model = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 7))
with fdgsec.record(FOLDER / "wire") as wire:
    for number in range(2):
        updates = []
        for name, mine in clients.items():
            own = mine[number::2]
            wire.send("style", pooled(pixels[own]), sender=name, round=number)
            local = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 7))
            local.load_state_dict(model.state_dict())
            optimizer = torch.optim.SGD(local.parameters(), lr=0.1)
            for _ in range(5):
                optimizer.zero_grad()
                nn.functional.cross_entropy(local(pixels[own]), labels[own]).backward()
                optimizer.step()
            wire.send("update", local.state_dict(), sender=name, round=number)
            updates.append(local.state_dict())
        model.load_state_dict({key: torch.stack([one[key] for one in updates]).mean(0) for key in updates[0]})

# %% [markdown]
# ## The recording, attacked
#
# The adversary sees what the server sees. Two releases of a client from different images are linked; `unread_kinds`
# says what was seen and no attack read: attacks on updates need the method that made them, which a recording has not.

# %%
report = fdgsec.attack_run(FOLDER / "wire")
report

# %%
print("not read:", report.unread_kinds)
report.plot()

# %% [markdown]
# ## With candidates
#
# An adversary that holds candidate images, and your function, asks which of them were in the average of two hospitals.

# %%
owner = torch.zeros(len(images), dtype=torch.int64)
asked = {}
for number, name in enumerate(list(clients)[:2], 1):
    members = clients[name][:10]
    owner[members] = number
    asked[name] = pooled(pixels[members])
some = torch.cat([order[: 2 * len(clients["hospital 0"])], order[-10:]])
found = fdgsec.attack_vectors(
    asked, statistics=rows, candidates=pixels[some], truth=owner[some], attacks=["set-reconstruction"]
)
found

# %%
found.to_frame()[["measurement", "value", "low", "high", "chance", "verdict"]]

# %% [markdown]
# Kinds, shapes and Flower apps (`fdgsec.record_mod`): `docs/attack-existing.md`. To attack updates too, make your
# method one that fdgsec can run: `docs/extending.md`.

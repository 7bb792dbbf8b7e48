"""The early layers of a public model as a style encoder: what StableFDG's statistics are statistics of."""

import hashlib

import torch
from torch import Tensor

from fdgsec.encoders import StyleEncoder
from fdgsec.federation import GlobalModel
from fdgsec.restyling import early_maps


class ModelEncoder(StyleEncoder):
    """A global model's body up to the end of `stage`, in evaluation mode; it has no decoder.

    `name` carries the model's hash, since another round's model is another encoder."""

    def __init__(self, model: GlobalModel, *, stage: str) -> None:
        super().__init__()
        network = model.module().eval().requires_grad_(False)
        self.network = network
        self.stage = stage
        self.has_decoder = False
        self.fingerprint = hashlib.sha256(f"{model.state.sha256} {stage}".encode()).hexdigest()
        self.name = f"{network.backbone}:{stage}:{self.fingerprint[:12]}"
        side = 64
        with torch.inference_mode():
            maps = early_maps(network, torch.zeros(1, 3, side, side, device=self.device), stage)
        self.channels, self.stride = int(maps.shape[1]), max(round(side / maps.shape[2]), 1)

    def _features(self, images: Tensor) -> Tensor:
        return early_maps(self.network, images, self.stage)

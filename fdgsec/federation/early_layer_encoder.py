"""The early layers of a public model as a style encoder: StableFDG's statistics are computed on their features."""

import hashlib

import torch
from torch import Tensor

from fdgsec.federation.global_model import GlobalModel
from fdgsec.nn.styles.encoders import StyleEncoder
from fdgsec.nn.styles.feature_styles import early_maps
from fdgsec.nn.styles.image_styles import is_registered


class ModelEncoder(StyleEncoder):
    """A global model's body up to the end of `stage`, in evaluation mode; it has no decoder.

    `name` contains the model's hash, because the model of another round is another encoder."""

    reentrant = True

    def __init__(self, model: GlobalModel, *, stage: str) -> None:
        super().__init__()
        network = model.module().eval().requires_grad_(False)
        self.network = network
        self.stage = stage
        self.has_decoder = False
        self.fingerprint = _fingerprint(model, stage)
        self.name = _name(model, stage)
        side = 64
        with torch.inference_mode():
            maps = early_maps(network, torch.zeros(1, 3, side, side, device=self.device), stage)
        self.channels, self.stride = int(maps.shape[1]), max(round(side / maps.shape[2]), 1)

    def _features(self, images: Tensor) -> Tensor:
        return early_maps(self.network, images, self.stage)


def introduced_layers(model: GlobalModel, *, stage: str) -> str | None:
    """Give the name of the registered encoder of this model's early layers, so that clients share its cached styles."""
    name = _name(model, stage)
    return name if is_registered(name) else None


def _name(model: GlobalModel, stage: str) -> str:
    return f"{model.blueprint.backbone}:{stage}:{_fingerprint(model, stage)[:12]}"


def _fingerprint(model: GlobalModel, stage: str) -> str:
    return hashlib.sha256(f"{model.state.sha256} {stage}".encode()).hexdigest()

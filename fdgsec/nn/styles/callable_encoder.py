"""A style encoder of one's own: any function from images to feature maps."""

from collections.abc import Callable
from typing import Literal
from uuid import uuid4

import torch
from torch import Tensor

from fdgsec.nn.styles.encoders import StyleEncoder
from fdgsec.runtime.errors import UsageError

PROBED_SIDE = 64
"""Side in pixels of the blank image by which channels and stride are found."""


class CallableEncoder(StyleEncoder):
    """The features (N, C, h, w) that `function` gives for images (N, 3, H, W): statistics only, nothing is decoded.

    `pixels` says what it takes: "float" in [0, 1], or "uint8". It must be deterministic, treat every image on its own,
    and take any N; gradients are not needed. `side` is a side of square images that it takes."""

    name: str
    has_decoder = False
    blank: Tensor

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        *,
        pixels: Literal["float", "uint8"] = "float",
        side: int = PROBED_SIDE,
        name: str = "",
    ) -> None:
        """Call the function once, on a blank image.

        Raises UsageError for an unknown kind of pixels, and where the result is not one float feature map."""
        super().__init__()
        if pixels not in ("float", "uint8"):
            raise UsageError(f"pixels must be 'float' or 'uint8'; got {pixels!r}.")
        self.name = f"own:{name or getattr(function, '__name__', type(function).__name__)}"
        self.register_buffer("blank", torch.zeros(1, 3, side, side), persistent=True)
        self._function = (function,)  # in a tuple: a module's weights stay its owner's, and in its mode
        self._kind = pixels
        probed = self._features(self.blank)
        self.channels, self.stride = int(probed.shape[1]), max(1, round(side / probed.shape[2]))
        self.fingerprint = uuid4().hex  # a function has no weights to hash: nothing is shared between two encoders

    def _features(self, images: Tensor) -> Tensor:
        shown = images if self._kind == "float" else (images * 255).round().to(torch.uint8)
        features = self._function[0](shown)
        if not isinstance(features, Tensor) or features.ndim != 4 or len(features) != len(images):
            came = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise UsageError(f"{self.name} must give features ({len(images)}, C, h, w); got {came}.")
        if not features.is_floating_point() or not features.numel():
            raise UsageError(f"{self.name} must give float features; got {features.dtype} {tuple(features.shape)}.")
        return features

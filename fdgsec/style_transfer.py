"""Images in another style: AdaIN between an encoder and its decoder, and pictures of what comes out.

The method is Huang & Belongie's (ICCV 2017, https://arxiv.org/abs/1703.06868); CCST (its eq. 5) and FISC (its eq. 4)
make their training images by it."""

import torch
from torch import Tensor

from fdgsec.encoders import StyleEncoder
from fdgsec.features import resized
from fdgsec.styles import EPS, adain


def style_transfer(
    encoder: StyleEncoder, images: Tensor, mean: Tensor, std: Tensor, *, eps: float = EPS, alpha: float = 1.0
) -> Tensor:
    """Encode, AdaIN to the style (`mean`, `std`), decode, and cut off what the encoder's stride added.

    `images` are float (N, 3, H, W), the result too; `mean` and `std` are (C,) or (N, C). The decoder sees
    `alpha` parts of the restyled features and 1 - `alpha` of the content's own."""
    content = encoder.encode(images)
    styled = adain(content, mean.to(content), std.to(content), eps=eps)
    features = styled if alpha == 1 else torch.lerp(content, styled, alpha)
    return encoder.decode(features)[..., : images.shape[2], : images.shape[3]]


def pictures(images: Tensor, *, size: int | None) -> Tensor:
    """Round float images (N, 3, H, W) to 8 bits, what lies outside [0, 1] clamped, and bring them to `size` (None: as is)."""
    return resized((images.clamp(0, 1) * 255).round().to(torch.uint8), size)

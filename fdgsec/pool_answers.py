"""What an attack on pools of per-image rows may answer beside fdgsec.threats; fdgsec.metrics.pools judges it."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fdgsec.threats import Answer


@dataclass(frozen=True, kw_only=True)
class Exposure(Answer):
    """Which candidates had a row published, as the adversary says, (G,) bool, of the `images` that the client holds."""

    kind: ClassVar[str] = "exposure"
    published: Tensor
    images: int


@dataclass(frozen=True, kw_only=True)
class InferredSize(Answer):
    """How many images a client holds, and what the adversary would guess without that client's release."""

    kind: ClassVar[str] = "inferred size"
    images: float
    without: float


@dataclass(frozen=True, kw_only=True)
class Palettes(Answer):
    """For each released row the image's colours, (R, 3, Q) in [0, 1], and the guess without a release, (3, Q).

    A palette is three quantile functions: the value of red, green and blue at Q evenly spaced shares of the pixels."""

    kind: ClassVar[str] = "palettes"
    palettes: Tensor
    without: Tensor


PoolAnswer = Exposure | InferredSize | Palettes

"""Styles rounded to few levels of a public range: less is sent, and no guarantee is given.

A style of 2C numbers in float32 is as good as a name for its image: the look-up attacks match it bit by bit. Rounding to
2^bits levels takes the low digits away. How far that goes is measured, not promised: rounding is no mechanism of
differential privacy (a number next to a boundary is one record away from another level)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fdgsec.federation.artifacts import Amplitudes, ImageStyles, StyleDistribution, StyleStatistics, renumbered
from fdgsec.federation.defense import Outgoing, Protected
from fdgsec.federation.method import Method
from fdgsec.runtime.errors import UsageError

Quantized = StyleStatistics | StyleDistribution | ImageStyles | Amplitudes


@dataclass(frozen=True, kw_only=True)
class Quantize:
    """Round every number of a style to one of 2^bits levels of a public range; no (epsilon, delta).

    Means lie in [`low`, `high`], stds and spreads in [0, `high`], amplitudes in [0, H W] (pixels lie in [0, 1]), and what
    lies outside is cut off. The default range holds the styles of the bundled encoder, of VGG relu4_1 and of normalized pixels;
    for pixels alone take low=-3, high=3. `rounding` "stochastic" rounds up as often as a number is far on its way to the next
    level, so that its mean is right; "nearest" draws nothing."""

    bits: int = 8
    low: float = -4.0
    high: float = 156.0
    rounding: Literal["nearest", "stochastic"] = "nearest"

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 23:  # as many digits as float32 sends
            raise UsageError(f"quantize needs bits in 1..23; got {self.bits}.")
        if not self.low < self.high or self.high <= 0:
            raise UsageError(f"quantize needs low < high and high > 0; got low = {self.low}, high = {self.high}.")

    @property
    def assumptions(self) -> Sequence[str]:
        """What it does not promise."""
        return ("quantize: no (epsilon, delta): rounding hides digits, not records",)

    def check(self, method: Method) -> None:
        """Works with every method; those that share no style are left as they are."""

    def on_message(self, outgoing: Outgoing, rng: torch.Generator) -> Protected | None:
        """Give the rounded style, and no guarantee."""
        artifact = outgoing.artifact
        if not isinstance(artifact, Quantized):
            return None
        return Protected(artifact=renumbered(artifact, lambda name, value: self._level(name, value, rng)), uses=None)

    def _level(self, name: str, value: Tensor, rng: torch.Generator) -> Tensor:
        low, high = self._range(name, value)
        return self.rounded(value, low=low, high=high, rng=rng)

    def _range(self, name: str, value: Tensor) -> tuple[float, float]:
        if name == "values":  # |F| of an image in [0, 1] is at most its number of pixels; an even width is assumed
            return 0.0, float(value.shape[-2] * 2 * max(value.shape[-1] - 1, 1))
        return (self.low if name == "mean" else 0.0), self.high

    def rounded(self, value: Tensor, *, low: float, high: float, rng: torch.Generator) -> Tensor:
        """Give low + step k, step = (high - low) / (2^bits - 1), k a whole number, in the dtype of `value`."""
        step = (high - low) / (2**self.bits - 1)
        place = (value.double().clamp(low, high) - low) / step
        if self.rounding == "nearest":
            whole = place.round()
        else:
            whole = (place + torch.rand(place.shape, generator=rng, dtype=torch.float64)).floor()
        levels: Tensor = (low + step * whole).clamp(low, high)
        return levels.to(value)

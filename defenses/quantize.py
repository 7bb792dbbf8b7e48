"""Quantization: styles rounded to few levels of a public range; it gives no guarantee.

A style of 2C numbers in float32 identifies its image: the look-up attacks match it bit by bit. Rounding to 2^bits
levels removes the low digits. Its effect is measured, not guaranteed: rounding is not a mechanism of differential
privacy (one record can move a number across a boundary to another level)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from torch import Tensor

from fdgsec.federation.artifact_checks import LARGEST
from fdgsec.federation.artifacts import Amplitudes, ImageStyles, StyleDistribution, StyleStatistics, renumbered
from fdgsec.federation.defense import Outgoing, Protected
from fdgsec.federation.method import Method
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.secret_streams import SecretStream

Quantized = StyleStatistics | StyleDistribution | ImageStyles | Amplitudes


@dataclass(frozen=True, kw_only=True)
class Quantize:
    """Round every number of a style to one of 2^bits levels of a public range; no (epsilon, delta).

    Means lie in [`low`, `high`], stds and spreads in [0, `high`], amplitudes in [0, H W] (pixels lie in [0, 1]); values
    outside are clipped. The default range covers the styles of the bundled encoder, of VGG relu4_1 and of normalized
    pixels; for pixels alone take low=-3, high=3. `rounding` "stochastic" rounds up with the probability of a number's
    relative distance to the next level, which is unbiased; "nearest" is deterministic."""

    changes: ClassVar[frozenset[str]] = frozenset(kind.__name__ for kind in get_args(Quantized))

    bits: int = 8
    low: float = -4.0
    high: float = 156.0
    rounding: Literal["nearest", "stochastic"] = "nearest"

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 23:  # the mantissa of float32
            raise UsageError(f"quantize needs bits in 1..23; got {self.bits}.")
        if not (-LARGEST <= self.low < self.high <= LARGEST and self.high > 0):
            raise UsageError(
                f"quantize needs low < high and high > 0, both up to {LARGEST:g} in size; got low = {self.low}, "
                f"high = {self.high}."
            )

    @property
    def assumptions(self) -> Sequence[str]:
        """What it does not guarantee."""
        return (f"quantize: no (epsilon, delta): {self.rounding} rounding of what is sent hides digits, not records",)

    def check(self, method: Method) -> None:
        """Works with every method; those that share no style are unchanged."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        """Round the style; no guarantee."""
        artifact = outgoing.artifact
        if not isinstance(artifact, Quantized):
            return None
        return Protected(artifact=renumbered(artifact, lambda name, value: self._level(name, value, rng)), uses=None)

    def _level(self, name: str, value: Tensor, rng: SecretStream) -> Tensor:
        low, high = self._range(name, value)
        return self.rounded(value, low=low, high=high, rng=rng)

    def _range(self, name: str, value: Tensor) -> tuple[float, float]:
        if name == "values":  # |F| of an image in [0, 1] is at most its number of pixels; an even width is assumed
            return 0.0, float(value.shape[-2] * 2 * max(value.shape[-1] - 1, 1))
        return (self.low if name == "mean" else 0.0), self.high

    def rounded(self, value: Tensor, *, low: float, high: float, rng: SecretStream) -> Tensor:
        """low + step k, step = (high - low) / (2^bits - 1), k an integer, in the dtype of `value`."""
        step = (high - low) / (2**self.bits - 1)
        place = (value.double().clamp(low, high) - low) / step
        whole = place.round() if self.rounding == "nearest" else (place + rng.uniform(*place.shape)).floor()
        levels: Tensor = (low + step * whole).clamp(low, high)
        return levels.to(value)

"""Noise on styles as FISC adds it (Nguyen et al. 2024, https://arxiv.org/abs/2410.22622, appendix B.5, Table 10).

The paper names a scale s and a coefficient p and refers to FedPCL (Tan et al. 2022), whose released code computes
v' = (1 - p) v + e with e drawn at scale s (`add_noise_proto` in lib/utils.py): p multiplies no noise. It is a public factor that
whoever reads v' divides out again, and that is done here for every adversary (`undone`): what is left is noise of scale
s / (1 - p). Mode "coefficient" is what the words say instead, v' = v + p e.

Differs from the code: stds (and amplitudes, which are not negative either) are kept at `least` or above."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fdgsec.federation.artifacts import (
    Amplitudes,
    Artifact,
    ImageStyles,
    InterpolationStyle,
    StyleBank,
    StyleDistribution,
    StyleStatistics,
    renumbered,
)
from fdgsec.federation.defense import Outgoing, Protected
from fdgsec.federation.method import Method
from fdgsec.runtime.errors import UsageError

Noised = StyleStatistics | StyleDistribution | ImageStyles | Amplitudes
Derived = Noised | StyleBank | InterpolationStyle
"""What clients send with noise on it, and what servers make of that."""


@dataclass(frozen=True, kw_only=True)
class StyleNoise:
    """Noise on styles, spectra included, as FISC's Table 10 adds it; no (epsilon, delta), since nothing is clipped.

    `p` and `scale` are the table's p and s; `mode` "fedpcl" is (1 - p) v + e, "coefficient" v + p e. `distribution` of e, as in
    FedPCL's code: gaussian of sd s, laplace of scale s (sd sqrt(2) s), or exponential of mean s, which is one-sided: it
    moves every number up by s on average. No std comes out below `least`."""

    p: float = 0.1
    scale: float = 0.05
    mode: Literal["fedpcl", "coefficient"] = "fedpcl"
    distribution: Literal["gaussian", "laplace", "exponential"] = "gaussian"
    least: float = 1e-6

    def __post_init__(self) -> None:
        if not 0 <= self.p < 1 or self.scale < 0 or self.least < 0:
            raise UsageError(
                "style-noise needs p in [0, 1), scale and least at least 0; got "
                f"p = {self.p}, scale = {self.scale}, least = {self.least}."
            )

    @property
    def assumptions(self) -> Sequence[str]:
        """What it does not promise."""
        return (
            "style-noise: no (epsilon, delta): styles are not clipped, so that no noise bounds what one image changes",
        )

    def check(self, method: Method) -> None:
        """Works with every method; those that share no style are left as they are."""

    def on_message(self, outgoing: Outgoing, rng: torch.Generator) -> Protected | None:
        """Give the style with noise on every number, and no guarantee."""
        artifact = outgoing.artifact
        if not isinstance(artifact, Noised):
            return None
        return Protected(artifact=renumbered(artifact, lambda name, value: self._noised(name, value, rng)), uses=None)

    def undone(self, artifact: Artifact) -> Artifact:
        """Take the noise's mean off and divide 1 - p out, as whoever knows the options does."""
        return renumbered(artifact, self._restored) if isinstance(artifact, Derived) else artifact

    def _noised(self, name: str, value: Tensor, rng: torch.Generator) -> Tensor:
        return _legal(name, self._shrink * value.double() + self._gain * self._drawn(value, rng), self.least).to(value)

    def _restored(self, name: str, value: Tensor) -> Tensor:
        bias = self._gain * self.scale if self.distribution == "exponential" else 0.0
        return _legal(name, (value.double() - bias) / self._shrink, self.least).to(value)

    @property
    def _shrink(self) -> float:
        return 1 - self.p if self.mode == "fedpcl" else 1.0

    @property
    def _gain(self) -> float:
        return 1.0 if self.mode == "fedpcl" else self.p

    def _drawn(self, value: Tensor, rng: torch.Generator) -> Tensor:
        """Give e, float64, in the shape of `value`; Laplace's is the difference of two exponentials."""
        if self.distribution == "gaussian":
            return self.scale * torch.randn(value.shape, generator=rng, dtype=torch.float64)
        first = torch.empty(value.shape, dtype=torch.float64).exponential_(generator=rng)
        if self.distribution == "exponential":
            return self.scale * first
        return self.scale * (first - torch.empty(value.shape, dtype=torch.float64).exponential_(generator=rng))


def _legal(name: str, value: Tensor, least: float) -> Tensor:
    """Means may have any sign; every other number of a style is at least `least`."""
    return value if name == "mean" else value.clamp_min(least)

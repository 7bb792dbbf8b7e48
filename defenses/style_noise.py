"""Noise on styles as in FISC (Nguyen et al. 2024, https://arxiv.org/abs/2410.22622, appendix B.5, Table 10).

The paper names a scale s and a coefficient p and refers to FedPCL (Tan et al. 2022), whose released code computes v' =
(1 - p) v + e with e drawn at scale s (`add_noise_proto` in lib/utils.py): p does not multiply the noise. It is a public
factor that any reader of v' can divide by, and every adversary does so here (`undone`): what remains is noise of scale
s / (1 - p). Mode "coefficient" follows the paper's words instead, v' = v + p e.

Differs from the code: stds (and amplitudes, which are not negative either) are clamped to at least `least`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from torch import Tensor

from fdgsec.federation.artifact_checks import LARGEST
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
from fdgsec.runtime.secret_streams import SecretStream

Noised = StyleStatistics | StyleDistribution | ImageStyles | Amplitudes
Derived = Noised | StyleBank | InterpolationStyle
"""Artifacts that clients send with noise, and those that servers compute from them."""


@dataclass(frozen=True, kw_only=True)
class StyleNoise:
    """Noise on styles and spectra as in FISC's Table 10; no (epsilon, delta), because nothing is clipped.

    `p` and `scale` are the table's p and s; `mode` "fedpcl" is (1 - p) v + e, "coefficient" v + p e. `distribution` of
    e, as in FedPCL's code: gaussian of sd s, laplace of scale s (sd sqrt(2) s), or exponential of mean s, which is
    one-sided and increases every number by s on average. Stds are clamped to at least `least`."""

    changes: ClassVar[frozenset[str]] = frozenset(kind.__name__ for kind in get_args(Noised))

    p: float = 0.1
    scale: float = 0.05
    mode: Literal["fedpcl", "coefficient"] = "fedpcl"
    distribution: Literal["gaussian", "laplace", "exponential"] = "gaussian"
    least: float = 1e-6

    def __post_init__(self) -> None:
        if not (0 <= self.p < 1 and 0 <= self.scale <= LARGEST and 0 <= self.least <= LARGEST):
            raise UsageError(
                f"style-noise needs p in [0, 1), scale and least from 0 to {LARGEST:g}; got "
                f"p = {self.p}, scale = {self.scale}, least = {self.least}."
            )

    @property
    def assumptions(self) -> Sequence[str]:
        """What it does not guarantee."""
        return (
            "style-noise: no (epsilon, delta): styles are not clipped, so that no noise bounds what one image changes",
        )

    def check(self, method: Method) -> None:
        """Works with every method; those that share no style are unchanged."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        """Add noise to every number of a style; no guarantee."""
        artifact = outgoing.artifact
        if not isinstance(artifact, Noised):
            return None
        return Protected(
            artifact=renumbered(artifact, lambda name, value: self._add_noise(name, value, rng)), uses=None
        )

    def undone(self, artifact: Artifact) -> Artifact:
        """Subtract the noise's mean and divide by 1 - p, as any party that knows the options can."""
        return renumbered(artifact, self._undo) if isinstance(artifact, Derived) else artifact

    def _add_noise(self, name: str, value: Tensor, rng: SecretStream) -> Tensor:
        return _clamp(name, self._shrink * value.double() + self._gain * self._draw(value, rng), self.least).to(value)

    def _undo(self, name: str, value: Tensor) -> Tensor:
        bias = self._gain * self.scale if self.distribution == "exponential" else 0.0
        return _clamp(name, (value.double() - bias) / self._shrink, self.least).to(value)

    @property
    def _shrink(self) -> float:
        return 1 - self.p if self.mode == "fedpcl" else 1.0

    @property
    def _gain(self) -> float:
        return 1.0 if self.mode == "fedpcl" else self.p

    def _draw(self, value: Tensor, rng: SecretStream) -> Tensor:
        """Draw e, float64, in the shape of `value`; Laplace noise is the difference of two exponentials."""
        if self.distribution == "gaussian":
            return self.scale * rng.normal(*value.shape)
        first = rng.exponential(*value.shape)
        if self.distribution == "exponential":
            return self.scale * first
        return self.scale * (first - rng.exponential(*value.shape))


def _clamp(name: str, value: Tensor, least: float) -> Tensor:
    """Means may have any sign; every other number of a style is at least `least`."""
    return value if name == "mean" else value.clamp_min(least)

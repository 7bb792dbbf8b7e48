"""Linkage under noise: how often a noisy style is still linked to its client, with the noise of FISC's appendix B.5.

Appendix B.5 (Table 10) adds noise to styles. The released code that this setting was taken from computes v' = (1 - p) v
+ N(0, s^2): p does not multiply the noise. It is a public factor that an adversary divides by, which leaves v + N(0, (s
/ (1 - p))^2). The protection of s depends on the distance between clients, so every s is also given in units of the
standard deviation of one coordinate between clients."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fdgsec.metrics.interval import Interval
from fdgsec.metrics.proportion_intervals import clopper_pearson
from fdgsec.metrics.roc import topk_credit


@dataclass(frozen=True, kw_only=True)
class NoiseLinkage:
    """How often the nearest clean style is the noisy style's own: `top1` over `trials`, with chance 1/n.

    `noise` is s and `noise_in_sds` the same in units of `between_client_sd`. The interval is exact, over clients and
    repeats. It holds for these clients under fresh noise."""

    top1: float
    interval: Interval
    chance: float
    noise: float
    noise_in_sds: float
    trials: int


def add_noise(values: Tensor, *, shrink: float, noise: float, rng: torch.Generator) -> Tensor:
    """Return (1 - p) v + N(0, s^2), p = `shrink`, s = `noise`, in the dtype of `values`.

    Stds may become negative, as in the code that FISC's setting is from. Raises ValueError unless 0 <= p < 1, s >=
    0."""
    if not 0 <= shrink < 1 or noise < 0:
        raise ValueError(f"shrink must lie in [0, 1) and noise be at least 0; got {shrink} and {noise}.")
    drawn = torch.randn(values.shape, generator=rng, dtype=torch.float64)
    return (1 - shrink) * values + (noise * drawn).to(values)


def between_client_sd(styles: Tensor) -> float:
    """The median over coordinates of the standard deviation between clients, `styles` (n, D).

    Raises ValueError for fewer than two clients."""
    if styles.ndim != 2 or len(styles) < 2:
        raise ValueError(f"a spread between clients needs styles (n, D) of two or more; got {tuple(styles.shape)}.")
    return float(styles.to(torch.float64).std(0, correction=1).quantile(0.5))


def noise_levels(noise: Sequence[float], noise_in_sds: Sequence[float], *, spread: float) -> dict[str, float]:
    """Standard deviations s by name: "0.02" for one in raw units, "3 sd" for one in units of `spread`.

    Where `spread` is 0 there are no levels in its units."""
    in_sds = {f"{level:g} sd": level * spread for level in noise_in_sds} if spread else {}
    return {**{f"{level:g}": level for level in noise}, **in_sds}


def noise_linkage(
    styles: Tensor,
    *,
    shrink: float = 0.1,
    noise: float,
    repeats: int = 10,
    rng: torch.Generator,
    undo_shrink: bool = True,
) -> NoiseLinkage:
    """Link each client's noisy style to the nearest of the clean ones (n, D), by Euclidean distance, `repeats` times.

    The nearest is the most likely, because the noise is isotropic. With `undo_shrink` the public 1 - p is divided out
    first; otherwise it biases every distance. Raises ValueError for fewer than two clients or no repeats."""
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1; got {repeats}.")
    spread = between_client_sd(styles)
    clean = styles.to(torch.float64)
    truth = torch.arange(len(clean))
    hits = 0.0
    for _ in range(repeats):
        seen = add_noise(clean, shrink=shrink, noise=noise, rng=rng) / (1 - shrink if undo_shrink else 1.0)
        hits += float(topk_credit(torch.cdist(seen, clean), truth, k=1).sum())
    trials = repeats * len(clean)
    return NoiseLinkage(
        top1=hits / trials, interval=clopper_pearson(min(hits, float(trials)), trials), chance=1 / len(clean),
        noise=noise, noise_in_sds=noise / spread if spread else float("inf"), trials=trials,
    )  # fmt: skip

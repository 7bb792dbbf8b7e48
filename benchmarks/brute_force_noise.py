"""Can a search over seeds find the noise of a release? Planted 32-bit seeds, and keyed streams as they are used.

    python -m benchmarks.brute_force_noise                  # 2^18 seeds each, about a minute
    python -m benchmarks.brute_force_noise --bits 24        # an hour

A release is a clipped mean of 256 numbers plus noise. The adversary knows the mechanism, and guesses the mean only
roughly: its guess is off by a twentieth of the noise. For every seed it computes the correlation of release minus
guess with that seed's noise; the true seed's is near 1, and those of wrong seeds are near N(0, 1 / 256). A seed is
found where its correlation exceeds that of the best of the others by 6 standard deviations. The planted release draws
by `torch.Generator().manual_seed(seed)`, whose seed has 63 bits of which the generator keeps 32; its low bits lie in
the space that is searched, which a real search would reach after hours. The keyed release is `lattice_gaussian`'s,
for a key derived from the same seed."""

import argparse
import json
import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from fdgsec.privacy.discrete_gaussian import lattice_gaussian
from fdgsec.runtime.secret_streams import simulated_stream

NUMBERS = 256
SEPARATION = 6.0
"""Standard deviations by which a found seed exceeds all others."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """The result of one search: seeds tried, the best one, its correlation, and the best of the others."""

    tried: int
    best: int
    correlation: float
    runner_up: float
    seconds: float

    @property
    def found(self) -> bool:
        """Whether one seed stands out."""
        return self.correlation - self.runner_up > SEPARATION / math.sqrt(NUMBERS)


def from_torch(seed: int) -> Tensor:
    """Noise as it was drawn before: by a generator with this seed."""
    return torch.randn(NUMBERS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def planted_release(mean: Tensor, seed: int) -> Tensor:
    """A mean with noise of one of 2^32 seeds."""
    return mean + from_torch(seed)


def keyed_release(mean: Tensor, seed: int) -> Tensor:
    """A mean with noise of a keyed stream."""
    return lattice_gaussian(mean, 1.0, distance=1.0, rng=simulated_stream(seed, "defense", "release"))


def search(residual: Tensor, seeds: range) -> Search:
    """Correlate `residual` (NUMBERS,) with the noise of every seed."""
    begun = time.perf_counter()
    generator, length = torch.Generator(), float(residual.norm())
    best, correlation, runner_up = -1, -math.inf, -math.inf
    for seed in seeds:
        noise = torch.randn(NUMBERS, generator=generator.manual_seed(seed), dtype=torch.float64)
        found = float(noise @ residual) / (length * float(noise.norm()))
        if found > correlation:
            best, correlation, runner_up = seed, found, correlation
        else:
            runner_up = max(runner_up, found)
    return Search(
        tried=len(seeds), best=best, correlation=correlation, runner_up=runner_up, seconds=time.perf_counter() - begun
    )


def both(bits: int, *, seed: int = 0) -> dict[str, Search]:
    """Search 2^`bits` seeds for the noise of a planted and of a keyed release."""
    rng = torch.Generator().manual_seed(seed)
    mean = torch.rand(NUMBERS, generator=rng, dtype=torch.float64)
    guess = mean + torch.randn(NUMBERS, generator=rng, dtype=torch.float64) / 20
    low = int(torch.randint(2**bits, (1,), generator=rng))
    secret = (int(torch.randint(2**31, (1,), generator=rng)) << 32) + low
    return {
        "planted": search(planted_release(mean, secret) - guess, range(2**bits)),
        "keyed": search(keyed_release(mean, secret) - guess, range(2**bits)),
    }


def main() -> None:
    """Print both searches as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bits", type=int, default=18, choices=range(4, 25), metavar="4..24")
    parser.add_argument("--seed", type=int, default=0)
    told = parser.parse_args()
    for name, result in both(told.bits, seed=told.seed).items():
        print(json.dumps({"release": name, "found": result.found, **vars(result)}))


if __name__ == "__main__":
    main()

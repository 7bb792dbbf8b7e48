"""What reference models said, made up: random values, sides of unequal size, and a Gaussian world of known separation."""

import torch
from torch import Tensor

from fdgsec.attacks.statistics.lira_rmia import References
from fdgsec.runtime.random_streams import stream

MODELS, CANDIDATES, POPULATION = 9, 14, 23
TWO_IN_TWO_OUT = torch.tensor([[True], [True], [False], [False]])


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=stream(seed, "world", "numbers"), dtype=torch.float64)


def memberships(models: int, candidates: int) -> Tensor:
    """Model k saw candidate n where (k + n * n) is divisible by 2 or 5: sides of unequal, varying size."""
    return torch.tensor(
        [[(k + n * n) % 2 == 0 or (k + n * n) % 5 == 0 for n in range(candidates)] for k in range(models)]
    )


def references(values: Tensor) -> References:
    return References(models=values.shape[0], values=values, members=memberships(values.shape[0], values.shape[1]))


def confidences(*shape: int, seed: int) -> Tensor:
    """Probabilities in (0, 1)."""
    return numbers(*shape, seed=seed).mul(2).sigmoid()


def gaussian_world(
    *, separation: float, candidates: int, models: int, queries: int
) -> tuple[Tensor, Tensor, References]:
    """Phi of hard and easy records (difficulty sd 3), 1 apart inside and outside in units of noise, times `separation`.

    Gives the target's phi, who is a member (the first half), and reference models of which every other saw each."""
    rng = stream(21, "world", "gaussians", queries)
    members = torch.arange(candidates) < candidates // 2
    difficulty = 3 * torch.randn(candidates, 1, generator=rng, dtype=torch.float64)
    saw = (torch.arange(models).unsqueeze(1) + torch.arange(candidates)) % 2 == 0
    noise = torch.randn(models + 1, candidates, queries, generator=rng, dtype=torch.float64)
    values = difficulty + separation * saw.unsqueeze(2) + noise[1:]
    return difficulty + separation * members.unsqueeze(1) + noise[0], members, References(
        models=models, values=values, members=saw
    )  # fmt: skip

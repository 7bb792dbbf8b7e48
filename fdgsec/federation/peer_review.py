"""Peer review of models: scores, the weights that follow from them, and the server's memory of past models.

The formulas are those of FedDAG (Che et al. 2025, https://arxiv.org/abs/2501.13967) section III-C;
methods/feddag_aggregation.py explains them in order."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fdgsec.federation.method import State

LEAST_LOSS = 1e-12
"""Least value of a sum of losses, so that a perfect model has a finite score."""
KEPT = "evaluation/"
"""Prefix of this file's entries in the server's memory."""
HISTORY = KEPT + "history/"
SCORE = "/score"


def evaluations(names: Iterable[str], evaluators: int | None, round: int) -> dict[str, tuple[str, ...]]:
    """Assign the models that each reviewer evaluates in this round: reviewer -> names, sorted. None evaluates its own.

    Each model has `evaluators` reviewers (None: all others; never more) and each reviewer as many models. The choice
    rotates: in n - 1 rounds every client reviews every other one equally often."""
    order = sorted(names)
    others = len(order) - 1
    count = others if evaluators is None else min(evaluators, others)
    shifts = [1 + (round * count + turn) % others for turn in range(count)]
    return {
        reviewer: tuple(sorted(order[(place + shift) % len(order)] for shift in shifts))
        for place, reviewer in enumerate(order)
    }


def score_of(losses: Sequence[float]) -> float:
    """Compute s_i = 1 / sum_j E[L_cls] (eq. 5) from one model's mean validation losses, one per reviewer."""
    return 1 / max(sum(losses), LEAST_LOSS)


def weights_of(scores: Sequence[float], beta: float) -> list[float]:
    """Compute w_i = s_i^beta / sum_j s_j^beta (eq. 6), by logarithms, so that a large beta gives the best model all."""
    powers = beta * torch.tensor(scores, dtype=torch.float64).log()
    return [float(weight) for weight in torch.softmax(powers, 0)]


def recalled(history: Sequence[float], score: float, k: int) -> list[int]:
    """Give the positions in `history` (oldest first) of the latest `k` scores that exceed `score` (section III-C3)."""
    better = [place for place, past in enumerate(history) if past > score]
    return better[len(better) - k :] if len(better) > k else better


def worth_keeping(history: Sequence[float], k: int) -> list[int]:
    """Give the positions of models that `recalled` can still return: fewer than `k` later ones are at least as good.

    The others can never be returned, whatever scores follow."""
    return [place for place, past in enumerate(history) if sum(later >= past for later in history[place + 1 :]) < k]


@dataclass(frozen=True, kw_only=True, eq=False)
class PastModel:
    """A client's model of an earlier round in the server's memory, with its score."""

    round: int
    score: float
    state: Mapping[str, Tensor]


History = Mapping[str, Sequence[PastModel]]


def histories(server: State) -> dict[str, list[PastModel]]:
    """Read each client's past models, oldest first, from the server's memory."""
    parts: dict[str, dict[int, dict[str, Tensor]]] = {}
    for key, value in server.items():
        if key.startswith(HISTORY):
            client, round, name = key.removeprefix(HISTORY).split("/", 2)
            parts.setdefault(client, {}).setdefault(int(round), {})[name] = value
    return {
        client: [
            PastModel(round=round, score=float(entries.pop(SCORE)), state=entries)
            for round, entries in sorted(rounds.items())
        ]
        for client, rounds in parts.items()
    }


def memory_of(history: History) -> dict[str, Tensor]:
    """Write past models as named tensors, for `histories`."""
    memory: dict[str, Tensor] = {}
    for client, models in history.items():
        for past in models:
            prefix = f"{HISTORY}{client}/{past.round}/"
            memory[prefix + SCORE] = torch.tensor(past.score, dtype=torch.float64)
            memory |= {prefix + name: value for name, value in past.state.items()}
    return memory

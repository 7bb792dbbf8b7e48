"""FedAlign's equations written out slowly, one loop per sum, in Python floats."""

import math

from torch import Tensor


def slow_statistics(channel: list[float]) -> tuple[float, float]:
    """Eqs. (7) and (8) of one channel's pixels, with the divisor and eps that every released code has."""
    mu = sum(channel) / len(channel)
    return mu, math.sqrt(sum((x - mu) ** 2 for x in channel) / (len(channel) - 1) + 1e-6)


def slow_softmax(logits: list[float]) -> list[float]:
    """Probabilities of one record."""
    top = max(logits)
    powers = [math.exp(x - top) for x in logits]
    return [power / sum(powers) for power in powers]


def cosine(first: list[float], second: list[float]) -> float:
    """The angle's cosine, sim of eq. (17)."""
    dot = sum(a * b for a, b in zip(first, second, strict=True))
    return dot / math.sqrt(sum(a * a for a in first) * sum(b * b for b in second))


def slow_contrast(features: list[list[float]], labels: list[int], tau: float, *, include_self: bool) -> list[float]:
    """The terms of eq. (17), anchor by anchor."""
    indices = range(len(features))
    losses = []
    for i in indices:
        others = [a for a in indices if a != i]
        positives = [p for p in (indices if include_self else others) if labels[p] == labels[i]]
        below = sum(math.exp(cosine(features[i], features[a]) / tau) for a in others)
        logs = [math.log(math.exp(cosine(features[i], features[p]) / tau) / below) for p in positives]
        losses.append(-sum(logs) / len(positives) if positives else 0.0)
    return losses


def slow_jensen_shannon(predictions: list[list[float]]) -> float:
    """Eq. (23) for one record."""
    middle = [sum(column) / len(predictions) for column in zip(*predictions, strict=True)]
    divergences = [sum(p * math.log(p / m) for p, m in zip(each, middle, strict=True)) for each in predictions]
    return sum(divergences) / len(predictions)


def slow_cross_entropy(logits: list[float], label: int) -> float:
    """-log p(label) of one record."""
    return -math.log(slow_softmax(logits)[label])


def rows_of(tensor: Tensor) -> list[list[float]]:
    """A matrix as lists."""
    return [[float(x) for x in row] for row in tensor.detach().double()]

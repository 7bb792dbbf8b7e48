"""The inception score: confidence and variety of a classifier on a set of images (Salimans et al. 2016, section 4).

exp(mean_i KL(p(y|x_i) || p(y))), between 1 and the number of classes, and never above the number of images: a set of a
few hundred images scores low whatever it contains. Its logarithm is the mutual information of image and class. It does
not compare with real images and says nothing about identity. float64 on the CPU."""

import math

import torch
from torch import Tensor

from fdgsec.metrics.frechet_distance import Band, check_features, student

REPEATS = 200
CUSTOMARY_SPLIT = 5000  # images in a split in the paper: 50,000 in 10


def inception_scores(logits: Tensor, *, splits: int, rng: torch.Generator) -> Tensor:
    """Shuffle the images, cut them into at most `splits` parts and score each: (parts,).

    As in torchmetrics, parts have ceil(N / splits) images and the last one the remainder. Papers usually report mean
    and standard deviation over parts. Raises ValueError for no split, or more than images."""
    values = check_features(logits, "logits").to("cpu", torch.float64)
    if not 1 <= splits <= len(values):
        raise ValueError(f"splits must lie in 1..{len(values)} (the images); got {splits}.")
    shuffled = values[torch.randperm(len(values), generator=rng)]
    return torch.stack([_log_score(*_terms(part)).exp() for part in shuffled.chunk(splits)])


def inception_score(logits: Tensor) -> float:
    """Score all images at once. `logits` is (N, K)."""
    return math.exp(float(_log_score(*_terms(check_features(logits, "logits").to("cpu", torch.float64)))))


def score_interval(
    logits: Tensor, *, value: float, rng: torch.Generator, repeats: int = REPEATS, level: float = 0.95
) -> Band | None:
    """Bound the expectation of the score `value` at this N, by resampling the images, on the log scale.

    Resampling lowers the score a second time, because repeated images vary less. Therefore only the spread of the
    bootstrap is used, around `value` (see `frechet_distance.frechet_interval`). Clipped to 1..K; None where nothing
    varies."""
    probabilities, information = _terms(check_features(logits, "logits").to("cpu", torch.float64))
    count, classes = probabilities.shape
    drawn = torch.randint(count, (repeats, count), generator=rng)
    weights = torch.zeros(repeats, count, dtype=torch.float64).scatter_add_(
        1, drawn, torch.full((repeats, count), 1 / count, dtype=torch.float64)
    )
    resampled = _entropy(weights @ probabilities) + weights @ information
    bounds = student(
        math.log(value), float(resampled.std()), repeats, level=level, least=0.0, greatest=math.log(classes)
    )
    return None if bounds is None else Band(low=math.exp(bounds.low), high=math.exp(bounds.high))


def _terms(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Compute p(y|x), (N, K), and sum_y p(y|x) log p(y|x), (N,)."""
    logs = logits.log_softmax(1)
    probabilities = logs.exp()
    return probabilities, (probabilities * logs).sum(1)


def _entropy(marginal: Tensor) -> Tensor:
    surprises: Tensor = torch.special.entr(marginal)
    return surprises.sum(-1)


def _log_score(probabilities: Tensor, information: Tensor) -> Tensor:
    """Mean KL to the marginal = entropy of the marginal minus mean entropy; never below 0."""
    return (_entropy(probabilities.mean(0)) + information.mean()).clamp_min(0)

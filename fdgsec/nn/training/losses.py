"""Alignment losses, each per record: supervised contrastive, feature consistency, agreement of predictions.

The supervised contrastive loss is Khosla et al., NeurIPS 2020, https://arxiv.org/abs/2004.11362 (FedAlign's eq. 17),
consistency its eq. (21), the Jensen-Shannon divergence its eq. (23)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def supervised_contrastive(
    features: Tensor, labels: Tensor, *, temperature: float, include_self: bool = False
) -> Tensor:
    """Compute every anchor's loss (eq. 17, one term of its sum over I), (N,), for features (N, V) with `labels` (N,).

    sim is the cosine, A(i) all other rows, P(i) those of A(i) with i's label; an anchor without any has loss 0.
    `include_self` counts the anchor among its positives, never in the denominator, as the codes of FedCCRL and FedAlign
    do. Raises ValueError where there are fewer than two rows or temperature is not above 0."""
    if features.ndim != 2 or len(features) < 2 or labels.shape != features.shape[:1] or temperature <= 0:
        raise ValueError(
            f"contrast needs features (N >= 2, V), labels (N,) and a temperature above 0; got {tuple(features.shape)}, "
            f"{tuple(labels.shape)} and {temperature}."
        )
    directions = functional.normalize(features, dim=1)
    with torch.autocast(features.device.type, enabled=False):  # a cosine in bfloat16 is too coarse to divide by .1
        similarity = directions @ directions.T / temperature
    own = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    positive = labels.unsqueeze(1) == labels
    if not include_self:
        positive = positive & ~own
    logarithms = similarity - similarity.masked_fill(own, -math.inf).logsumexp(1, keepdim=True)
    return -logarithms.masked_fill(~positive, 0.0).sum(1) / positive.sum(1).clamp_min(1)


def inconsistency(features: Tensor, views: Sequence[Tensor], *, summed: bool = False) -> Tensor:
    """Compute each record's squared distance to its views' features, averaged over the views (eq. 21), (N,).

    The average is also over the V coordinates, as in the released code; `summed` sums them, as in eq. (21)."""
    squares = torch.stack([(features - view).square() for view in views])
    return squares.sum(2).mean(0) if summed else squares.mean((0, 2))


def jensen_shannon(logits: Sequence[Tensor]) -> Tensor:
    """Compute each record's Jensen-Shannon divergence between its predictions, softmax of each of `logits`, (N,).

    This is the mean over predictions of KL(prediction || their mixture) (eq. 23 for three), in nats, between 0 and the
    logarithm of their number. Finite for any logits: the mixture is computed in logarithms, without a lower bound."""
    each = torch.stack([given.log_softmax(1) for given in logits])
    mixture = each.logsumexp(0) - math.log(len(logits))
    return (each.exp() * (each - mixture)).sum(2).mean(0)

"""Pictures from the gradient of a classifier's head: the features of each class, and images that have them.

A linear head's gradient over a batch of B is sum_i (p_i - onehot(y_i)) (f_i, 1)^T / B, with features f and predictions
p. Maui (Dabholkar et al., arXiv:2509.11451) first reads features from such gradients and then inverts these. It reads
heads of several layers; from one linear layer of K classes no more than K - 1 features can be read, one of each class
that occurs, and where all occur, all but one combination of them. One record's are exact; of several records of a class
they are about a mean where the head is not yet trained, and nothing separates them (`set-reconstruction` finds whose
they are).

Features are inverted as Mahendran and Vedaldi do (CVPR 2015, arXiv:1412.0035): |f(x) - f|^2 / |f|^2 and total
variation over pixels."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.attacks.gradient_inversion.gradient_matching import Match, Matching, batch_gradient, gradient_distance
from fdgsec.attacks.gradient_inversion.picture_search import search_pictures, starting_point
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.nn.networks.classifiers import Classifier

HEAD = frozenset({"head.weight", "head.bias"})
"""The parameters of a classifier's head."""
REFINEMENTS = 8
EXPECTED = 32


def is_head(gradient: Mapping[str, Tensor]) -> bool:
    """Whether a gradient is that of the head alone."""
    return gradient.keys() == HEAD


def class_features(model: Classifier, gradient: Mapping[str, Tensor], labels: Tensor, *, expected: Tensor) -> Tensor:
    """The features (B, d) float64 of a batch with these labels (B,); images of one class share one estimate.

    With n_c images of class c, of features f_c and prediction p(f_c), the gradient is sum_c (n_c / B) (p(f_c) -
    onehot(c)) (f_c, 1)^T. Least squares gives all f_c for given p, and p follows from f: repeated from the mean
    prediction. Exact where images of one class have the same prediction, and then their mean; under a confident head it
    may be farther from that mean than the batch's mean is. A single image's needs no p at all. A batch
    with all classes leaves one combination open, because every p - onehot sums to 0: there features are the nearest
    ones to those `expected` (K, d) of each class."""
    slopes, pulls = (gradient[name].detach().to("cpu", torch.float64) for name in ("head.weight", "head.bias"))
    weight, bias = (model.head.state_dict()[name].to("cpu", torch.float64) for name in ("weight", "bias"))
    held, counts = labels.cpu().unique(return_counts=True)
    share = (counts / len(labels)).double().unsqueeze(1)
    one = torch.eye(len(pulls), dtype=torch.float64)[held]
    if len(held) == 1:
        return (pulls @ slopes / pulls.square().sum()).expand(len(labels), -1)
    features = nearest = expected.to("cpu", torch.float64)[held]
    errors = (pulls + share.T @ one).clamp_min(0) - one  # the mean prediction, of every class
    for _ in range(REFINEMENTS):
        matrix = (share * errors).T
        features = nearest + torch.linalg.lstsq(matrix, slopes - matrix @ nearest, rcond=1e-9, driver="gelsd").solution
        errors = functional.linear(features, weight, bias).softmax(1) - one
    found: Tensor = features[torch.searchsorted(held, labels.cpu())]
    return found


def expected_features(model: Classifier, images: DomainDataset) -> Tensor:
    """The mean features (K, d) float64 of each class of the adversary's `images`; of all where it has none of a class.

    At most EXPECTED images of each class are read."""
    device, found = next(model.parameters()).device, list[Tensor]()
    rows = [(images.labels == label).nonzero().flatten()[:EXPECTED] for label in range(model.classes)]
    for mine in rows:
        if len(mine):
            with torch.no_grad():
                found.append(model.eval().features(as_float(images.pixels(mine)).to(device)).mean(0).double().cpu())
    overall = torch.stack(found).mean(0)
    named = iter(found)
    return torch.stack([next(named) if len(mine) else overall for mine in rows])


def match_features(
    model: Classifier, gradient: Mapping[str, Tensor], labels: Tensor, *, expected: Tensor, size: tuple[int, int],
    matching: Matching, rng: torch.Generator,
) -> Match:  # fmt: skip
    """Search for images (B, 3, H, W) with the features that a head's gradient shows; the best restart is kept.

    `distance` and `start` of the result are between gradients, as in `match_gradient`."""
    features = class_features(model, gradient, labels, expected=expected)
    device = next(model.parameters()).device
    goal, network = features.float().to(device), model.eval()
    fits = []
    for _ in range(matching.restarts):
        start, pictures = starting_point(matching.prior, len(labels), size, rng)
        found = search_pictures(
            lambda images: _apart(network, images, goal), start.to(device), prior=matching.prior,
            steps=matching.steps, rate=matching.learning_rate, variation=matching.total_variation,
        )  # fmt: skip
        with torch.no_grad():
            fits.append((found, float(_apart(network, found, goal)), pictures.to(device)))
    images, _, first = min(fits, key=lambda fit: fit[1])
    start_distance, distance = (_gradient_distance(model, gradient, labels, shown) for shown in (first, images))
    return Match(images=images, labels=labels, start=start_distance, distance=distance, distances=(distance,))


def _apart(network: Classifier, images: Tensor, goal: Tensor) -> Tensor:
    """The mean over images of the squared distance of features, relative to the squared length of the goal."""
    off = (network.features(images) - goal).square().sum(1)
    return (off / goal.square().sum(1).clamp_min(1e-12)).mean()


def _gradient_distance(model: Classifier, gradient: Mapping[str, Tensor], labels: Tensor, images: Tensor) -> float:
    made = batch_gradient(model, images, labels.to(images.device), statistics="running")
    return float(
        gradient_distance([made[name] for name in gradient], [gradient[name].to(made[name]) for name in gradient])
    )

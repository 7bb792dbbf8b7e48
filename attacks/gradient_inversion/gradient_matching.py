"""Images and labels from one gradient: label recovery from the head, and gradient matching.

Labels are read from the head: Zhao et al., "iDLG", arXiv:2001.02610, for one record; for more, the greedy counts of LLG
(Wainakh et al., PoPETs 2022, arXiv:2105.09369). Images are fitted until they give the same gradient: Geiping et al.,
"Inverting Gradients", NeurIPS 2020, arXiv:2003.14053, section 4: cosine distance and total variation, Adam on the sign
of the gradient, pixels clamped to [0, 1].

Batch norm matters. A client in training mode normalizes by its batch's own statistics, for which the attack must use
those of its current images (`statistics="batch"`). This constrains the images little, unless the batch statistics that
come with the update are matched as well (fdgsec.attacks.gradient_inversion.batch_norm_leakage). A client in evaluation
mode uses the statistics that the server sent ("running")."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.attacks.gradient_inversion.batch_norm_leakage import Statistic, batch_norm_distance
from fdgsec.attacks.gradient_inversion.image_prior import ImagePrior
from fdgsec.attacks.gradient_inversion.picture_search import search_pictures, starting_point
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.runtime.errors import UsageError

Statistics = Literal["running", "batch"]
REFINEMENTS = 4
MOST_RECORDS = 8  # largest batch that is attempted (Geiping et al. show single images out of larger batches)


def feasible(batch: int, steps: int, *, optimizer: Literal["sgd", "adam"] = "sgd", momentum: float = 0.0) -> str:
    """The reason why an update after `steps` local steps on batches of `batch` cannot be inverted; "" if it can."""
    reasons = []
    if batch > MOST_RECORDS:
        reasons.append(
            f"one gradient is shared by a batch of {batch} records, and at most {MOST_RECORDS} are attempted"
        )
    if steps > 1:
        reasons.append(f"{steps} local steps add up gradients at models that only the client has seen")
    if optimizer == "adam":
        reasons.append(
            "Adam rescales every coordinate by its own size, so that the update is no multiple of a gradient"
        )
    if momentum:
        reasons.append(f"momentum {momentum:g} mixes earlier gradients into the step")
    return "; ".join(reasons)


@dataclass(frozen=True, kw_only=True)
class Matching:
    """Options of the fit: `steps` of signed Adam, from each of `restarts` random starts.

    `learning_rate` is in pixel values of [0, 1] and falls to a tenth after 3/8, 5/8 and 7/8 of the steps.
    `total_variation` is the weight of total variation, `norms` that of the distance in batch-norm statistics. With a
    `prior`, its latents and weights are searched first, for 7/10 of the steps
    (fdgsec.attacks.gradient_inversion.picture_search).
    `statistics` is what batch norms normalize by.

    Raises UsageError for counts below 1, a rate that is not above 0, or a negative weight."""

    steps: int = 1000
    restarts: int = 1
    learning_rate: float = 0.05
    total_variation: float = 0.05
    norms: float = 0.3
    statistics: Statistics = "running"
    prior: ImagePrior | None = None

    def __post_init__(self) -> None:
        weights = (self.total_variation, self.norms)
        if min(self.steps, self.restarts) < 1 or not self.learning_rate > 0 or not all(w >= 0 for w in weights):
            raise UsageError(f"matching needs steps, restarts >= 1, learning_rate > 0, weights >= 0; got {self}.")
        if self.statistics not in ("running", "batch"):
            raise UsageError(f"statistics must be 'running' or 'batch'; got {self.statistics!r}.")


@dataclass(frozen=True, kw_only=True, eq=False)
class Match:
    """The best restart's `images` (B, 3, H, W) in [0, 1], in the order of their `labels` (B,), and its fit.

    `distance` is 1 - cosine between their gradient and the given one, `start` the same before the first step,
    `distances` those of every restart."""

    images: Tensor
    labels: Tensor
    distance: float
    start: float
    distances: tuple[float, ...]


def batch_gradient(model: Classifier, images: Tensor, labels: Tensor, *, statistics: Statistics) -> dict[str, Tensor]:
    """The gradient of the batch's mean cross-entropy, by parameter name; `model` and its running statistics are
    unchanged."""
    network, parameters = _copy_model(model, None, statistics)
    parts = _gradient(network, list(parameters.values()), images, labels, differentiable=False)
    return dict(zip(parameters, parts, strict=True))


def step_gradient(
    model: Classifier, after: Mapping[str, Tensor], *, learning_rate: float, weight_decay: float = 0.0
) -> dict[str, Tensor]:
    """Invert one plain SGD step from `model` to the state `after`: (before - after) / rate - decay * before, by
    parameter.

    Rounding to float32 costs about 1e-7 |before| / rate. Raises UsageError for a rate that is not above 0, for a
    parameter that is missing or shaped differently, and where no parameter changed."""
    if not learning_rate > 0:
        raise UsageError(f"learning_rate must be above 0; got {learning_rate}.")
    made: dict[str, Tensor] = {}
    moved = False
    for name, parameter in model.named_parameters():
        if name not in after or after[name].shape != parameter.shape:
            given = tuple(after[name].shape) if name in after else "nothing"
            raise UsageError(f"the state after the step needs {name} {tuple(parameter.shape)}; got {given}.")
        before = parameter.detach().to(torch.float64)
        change = before - after[name].to(before)
        moved = moved or bool(change.any())
        made[name] = (change / learning_rate - weight_decay * before).to(parameter.dtype)
    if not moved:
        raise UsageError("the state after the step equals the one before it: no gradient to read.")
    return made


def recover_labels(model: Classifier, gradient: Mapping[str, Tensor], *, batch: int) -> Tensor:
    """Recover the labels of a batch from the head's gradient: (batch,) int64, sorted, with repetitions.

    The bias gradient of the mean cross-entropy is b_i = pbar_i - n_i / B: the mean prediction minus the label's share.
    Only a present label can make it negative, which for one record determines the label (iDLG). For more, LLG's greedy
    rule: take every class with negative b, then the class with most left, until B are found. LLG's impact of a label on
    b is exactly -1/B here. Its offset, pbar, is the head's prediction at the records' mean features: W_i's gradient
    over b_i, summed over the classes of positive b (the division of iLRG, Ma et al., ICLR 2023); then `_refine_counts`
    improves it.

    `model` is the one before the step. Exact where predictions hardly differ between records, as in networks early in
    training. A gradient scaled by clipping keeps its signs, but not the counts. Raises UsageError for a batch below 1,
    and for a gradient without the head, of other shapes, or whose bias entries have only one sign."""
    if batch < 1:
        raise UsageError(f"batch must be at least 1; got {batch}.")
    _check_gradient(model, gradient, needed=("head.weight", "head.bias"))
    slopes, pulls = (gradient[name].detach().to("cpu", torch.float64) for name in ("head.weight", "head.bias"))
    if not bool((pulls > 0).any()) or not bool((pulls < 0).any()):
        raise UsageError("the head's bias gradient has no two signs, as a cross-entropy's has: no label to read.")
    rising = pulls > 0
    features = slopes[rising].sum(0) / pulls[rising].sum()
    head = copy.deepcopy(model.head).to("cpu", torch.float64).requires_grad_(False)
    counts = _greedy_counts(head(features).softmax(0), pulls, batch=batch)
    if batch > 1:
        counts = _refine_counts(head, features.expand(len(pulls), -1), counts, slopes, pulls)
    return torch.arange(len(counts)).repeat_interleave(counts.to(torch.int64))


def match_gradient(
    model: Classifier,
    gradient: Mapping[str, Tensor],
    labels: Tensor,
    *,
    size: tuple[int, int],
    matching: Matching,
    rng: torch.Generator,
    norms: Mapping[str, Statistic] | None = None,
) -> Match:
    """Search for images of `labels` (B,) and `size` (H, W) whose gradient has the direction of the given one.

    Minimizes 1 - <g(x), g> / (|g(x)| |g|) + alpha TV(x), plus beta times `batch_norm_distance` where `norms` are given,
    over x in
    [0, 1], g over the parameters that `gradient` names (all, or some), and keeps the restart of the smallest distance
    (Geiping et al. 2020, section 4). `model` is the one before the step and is unchanged. Starts are noise of
    ImageNet's mean and spread, or latents of `matching.prior`, drawn from `rng`.

    Raises UsageError for labels out of range or too many, and for a gradient that does not fit or vanishes."""
    _check_gradient(model, gradient, needed=())
    if labels.ndim != 1 or not len(labels) or labels.dtype != torch.int64 or feasible(len(labels), 1):
        raise UsageError(f"labels must be int64 (B,), 1 to {MOST_RECORDS}; got {labels.dtype} {tuple(labels.shape)}.")
    if int(labels.min()) < 0 or int(labels.max()) >= model.classes:
        raise UsageError(f"labels must lie in 0..{model.classes - 1}; got {labels.tolist()}.")
    network, parameters = _copy_model(model, gradient, matching.statistics)
    device = next(network.parameters()).device
    goal = [gradient[name].to(parameters[name]) for name in parameters]
    told, fits = labels.to(device), []
    for _ in range(matching.restarts):
        start, pictures = starting_point(matching.prior, len(labels), size, rng)
        made = _gradient(network, list(parameters.values()), pictures.to(device), told, differentiable=False)
        fit = _fit(network, list(parameters.values()), goal, start.to(device), told, matching, norms or {})
        fits.append((*fit, float(gradient_distance(made, goal))))
    best = min(fits, key=lambda fit: fit[1])
    return Match(
        images=best[0], labels=labels, start=best[2], distance=best[1], distances=tuple(fit[1] for fit in fits)
    )


def _greedy_counts(offset: Tensor, pulls: Tensor, *, batch: int) -> Tensor:
    """The count of each class, from b_i = offset_i - n_i / B by LLG's rule: (classes,) float64 that sum to `batch`."""
    left = batch * (offset - pulls)
    counts = torch.zeros_like(left)
    for _ in range(batch):
        sure = (pulls < 0) & (counts == 0)
        pick = left.masked_fill(~sure, -torch.inf).argmax() if bool(sure.any()) else left.argmax()
        counts[pick] += 1
        left[pick] -= 1
    return counts


def _refine_counts(head: torch.nn.Linear, features: Tensor, counts: Tensor, slopes: Tensor, pulls: Tensor) -> Tensor:
    """Refine `counts` with one feature vector (classes, d) for each class: our own method, `REFINEMENTS` times.

    With p_j the prediction at class j's features f_j, W's gradient is sum_j (n_j / B) (p_j - e_j) f_j. Its least
    squares solution gives the f of the classes that occur, and sum_j (n_j / B) p_j the next offset."""
    batch = int(counts.sum())
    for _ in range(REFINEMENTS):
        share, present = counts / batch, counts > 0
        errors = share.unsqueeze(1) * (head(features).softmax(1) - torch.eye(len(counts), dtype=torch.float64))
        features = features.clone()
        features[present] = torch.linalg.lstsq(errors[present].T, slopes, driver="gelsd").solution
        counts = _greedy_counts(share @ head(features).softmax(1), pulls, batch=batch)
    return counts


def _fit(
    network: Classifier,
    parameters: Sequence[Tensor],
    goal: Sequence[Tensor],
    start: Tensor,
    labels: Tensor,
    matching: Matching,
    norms: Mapping[str, Statistic],
) -> tuple[Tensor, float]:
    """One restart: the images, and their distance at the end."""
    with batch_norm_distance(network, norms) as gap:

        def distance(images: Tensor) -> Tensor:
            made = _gradient(network, parameters, images, labels, differentiable=True)
            return gradient_distance(made, goal) + matching.norms * gap()

        found = search_pictures(
            distance, start, prior=matching.prior, steps=matching.steps, rate=matching.learning_rate,
            variation=matching.total_variation,
        )  # fmt: skip
    return found, float(gradient_distance(_gradient(network, parameters, found, labels, differentiable=False), goal))


def gradient_distance(made: Sequence[Tensor], goal: Sequence[Tensor]) -> Tensor:
    """1 - cosine of two gradients as flat vectors."""
    product = torch.stack([(one * other).sum() for one, other in zip(made, goal, strict=True)]).sum()
    lengths = [torch.stack([part.square().sum() for part in parts]).sum().sqrt() for parts in (made, goal)]
    return 1 - product / (lengths[0] * lengths[1]).clamp_min(torch.finfo(product.dtype).tiny)


def _gradient(
    network: Classifier, parameters: Sequence[Tensor], images: Tensor, labels: Tensor, *, differentiable: bool
) -> tuple[Tensor, ...]:
    """The gradients; zeros for a parameter that cross-entropy does not reach (JiGen's second head, say)."""
    loss = functional.cross_entropy(network(images), labels)
    return torch.autograd.grad(loss, list(parameters), create_graph=differentiable, materialize_grads=True)


def _copy_model(
    model: Classifier, names: Mapping[str, Tensor] | None, statistics: Statistics
) -> tuple[Classifier, dict[str, Tensor]]:
    """A copy of `model` in the mode that `statistics` requires, and its parameters that are in `names`."""
    network = copy.deepcopy(model).requires_grad_(True)
    network.train(statistics == "batch")
    return network, {name: value for name, value in network.named_parameters() if names is None or name in names}


def _check_gradient(model: Classifier, gradient: Mapping[str, Tensor], *, needed: Sequence[str]) -> None:
    """Raise UsageError unless `gradient` fits parameters of `model`, contains those in `needed`, and is not zero."""
    known = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    wrong = [name for name in gradient if known.get(name) != tuple(gradient[name].shape)]
    if wrong or not gradient:
        given = f"{wrong[0]} {tuple(gradient[wrong[0]].shape)}" if wrong else "nothing"
        raise UsageError(f"a gradient must fit the {len(known)} parameters of {model.backbone}; got {given}.")
    missing = [name for name in needed if name not in gradient]
    if missing:
        raise UsageError(f"the gradient lacks {', '.join(missing)}, from which labels are read.")
    if not all(bool(part.isfinite().all()) for part in gradient.values()):
        raise UsageError("the gradient holds values that are not finite.")
    if not any(bool(part.any()) for part in gradient.values()):
        raise UsageError("the gradient is zero everywhere: nothing to match.")

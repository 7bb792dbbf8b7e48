"""Membership tests by regression: of which images' gradients is the movement of a model made up?

Between the model that a client is sent and the one that it returns lie sums of its images' gradients. A single
gradient's cosine with the update is FedMIA's second measure, and gradients of large networks are said to be nearly
independent and isotropic (Li, Li and Ribeiro, 2023, abstract, https://openreview.net/forum?id=QsCSLPP55Ku); but
gradients of one class and domain share most of their direction, which hides what single images add. Here the gradients
of all candidates, and of auxiliary images beside them, explain the update together: a coefficient tells what an image
adds that the others do not. What a client's other images add is noise, whose directions are those in which gradients of
such images differ; each layer's gradients are matrices that differ along outputs and along inputs, and are whitened on
both sides (`whitened`). Three tests:

- "update regression": gradients of all parameters that moved, halfway between both models, averaged over the views
  that the public plan of training shows. An approximation: a client's steps were taken at other points, from views
  that it drew, and Adam scales each number of a gradient by itself.
- "plain update regression": the same of gradients as they are, for updates with noise that is alike in all directions
  and larger than what other images add, as that of DP-SGD.
- "head regression": of a linear head, what steps add to the weights of one class is a sum of the images' features, with
  coefficients that may change from step to step; so is the sum of all steps, exactly under gradient descent without
  weight decay, with or without momentum, of images that are not augmented and whose features do not move, and by their
  cross-entropy alone. The coefficient of an image is that in the weights of its own class.

Neither statistic needs a reference federation or other clients' updates."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fdgsec.attacks.model_membership.image_gradients import (
    as_matrices,
    cut,
    image_gradients,
    parameters_named,
    side_of,
    views,
)
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.federation.artifacts import ModelState
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import child

RIDGE = 1e-3
"""Added to the diagonal of the matrix of inner products, as a share of its mean."""
SHRUNK = 1e-2
"""Added to the eigenvalues of a covariance before its root is inverted, as a share of their mean."""
BLOCK = 64
COLUMNS = 2**14
"""Numbers of each row that are multiplied in float64 at a time."""

Networks = Callable[[Mapping[str, Tensor]], Classifier]


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """A model before and after training: as a client was sent it and returned it, or the global one of two rounds."""

    before: ModelState
    after: ModelState

    @property
    def changed(self) -> frozenset[str]:
        """The names of what moved, among them running statistics of batch norms that trained."""
        before, after = self.before.state, self.after.state
        return frozenset(name for name in before.keys() & after.keys() if not torch.equal(before[name], after[name]))

    def halfway(self) -> dict[str, Tensor]:
        """The mean of both states; integers are those after."""
        before, after = self.before.state, self.after.state
        return {
            name: (before[name] + value) / 2 if value.is_floating_point() else value for name, value in after.items()
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """Whom a step is asked about: labeled `images`, beside `others`, which show how gradients of such images differ.

    Training shows their images under `plan`, of which `count` draws are taken."""

    images: DomainDataset
    others: DomainDataset
    plan: TrainingPlan
    count: int


def regression_scores(step: Step, asked: Candidates, networks: Networks, rng: torch.Generator) -> dict[str, Tensor]:
    """Score the images asked about by each test, larger means member: (N,) float64 by test.

    A test is left out where nothing moved that it reads. `networks` builds a model from its state."""
    network = networks(step.halfway())
    changed = step.changed
    renew_statistics(network, asked.others, changed)
    found = dict[str, Tensor]()
    if parameters := parameters_named(network, changed):
        found |= _update_scores(step, asked, network, parameters, rng)
    if "head.weight" in changed:
        found["head regression"] = _head_scores(step, asked, network, rng)
    return found


def _update_scores(
    step: Step, asked: Candidates, network: Classifier, parameters: Mapping[str, nn.Parameter], rng: torch.Generator
) -> dict[str, Tensor]:
    """The coefficient of each image's descent in the movement of `parameters`: of gradients whitened by layer, and of
    gradients as they are."""
    trained = list(parameters.values())
    gradients = [
        image_gradients(network, trained, images, plan=asked.plan, count=asked.count, rng=child(rng, place))
        for place, images in enumerate((asked.images, asked.others))
        if len(images)
    ]
    side = side_of(trained)
    alike, plain = (torch.zeros(()), torch.zeros(())), (torch.zeros(()), torch.zeros(()))
    for place, name in enumerate(parameters):
        descent = (step.before.state[name] - step.after.state[name]).unsqueeze(0).float()
        moved, rows = cut(as_matrices(descent), side)[0].cpu(), torch.cat([each[place] for each in gradients])
        alike = _sums(alike, inner_products(*whitened(rows, moved)))
        plain = _sums(plain, inner_products(rows.flatten(1), moved.flatten()))
    return {
        "update regression": coefficients(*alike)[: len(asked.images)],
        "plain update regression": coefficients(*plain)[: len(asked.images)],
    }


def whitened(matrices: Tensor, movement: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of a layer (n, out, inputs), and a movement (out, inputs) in the same coordinates, with what images
    differ in made alike in all directions: (n, numbers) and (numbers,).

    With deviations c_i from the mean, L = sum of c_i c_i', and R = sum of L^-1/2 c_i (L^-1/2 c_i)', L^-1/2 g R^-1/2 for
    each matrix g: the covariance of matrices whose rows and columns are correlated separately. Of a vector each entry
    is divided by its own deviation. Layers are brought to one scale. Zeros where images do not differ."""
    size = float((matrices - matrices.mean(0)).abs().max())
    if not size > 0:  # NaN, too
        return matrices.flatten(1) * 0, movement.flatten() * 0
    scaled, moved = matrices / size, movement / size
    mean = scaled.mean(0)
    spread = scaled - mean
    if len(movement) == 1:
        variance = spread.square().mean(0)
        weights = (variance + SHRUNK * variance.mean()).rsqrt()
        spread, mean, moved = spread * weights, mean * weights, moved * weights
    else:
        left = _inverse_root(torch.einsum("nai,nbi->ab", spread, spread))
        spread, mean, moved = left @ spread, left @ mean, left @ moved
        right = _inverse_root(torch.einsum("noa,nob->ab", spread, spread))
        spread, mean, moved = spread @ right, mean @ right, moved @ right
    deviation = spread.square().mean().sqrt()
    return (spread + mean).flatten(1) / deviation, moved.flatten() / deviation


def _inverse_root(covariance: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(covariance.to(torch.float64))
    root: Tensor = (vectors * (values.clamp_min(0) + SHRUNK * values.mean()).rsqrt()) @ vectors.T
    return root.to(covariance)


def _head_scores(step: Step, asked: Candidates, network: Classifier, rng: torch.Generator) -> Tensor:
    """The coefficient of each image's features in the movement of its own class's weights, the bias among them."""
    weight, bias = (step.after.state[name] - step.before.state[name] for name in ("head.weight", "head.bias"))
    features = torch.cat(
        [
            _features(network, images, asked, child(rng, "features", place))
            for place, images in enumerate((asked.images, asked.others))
        ]
    )
    rows = torch.cat([features, torch.ones(len(features), 1)], 1)
    found = coefficients(*inner_products(rows, torch.cat([weight, bias.unsqueeze(1)], 1).T.cpu()))
    return found.gather(1, torch.cat([asked.images.labels, asked.others.labels]).unsqueeze(1))[: len(asked.images), 0]


@torch.no_grad()
def _features(network: Classifier, images: DomainDataset, asked: Candidates, rng: torch.Generator) -> Tensor:
    """The input of the head for each image, (N, features), averaged over its views."""
    device, found = next(network.parameters()).device, []
    for place, rows in enumerate(torch.arange(len(images)).split(BLOCK)):
        shown = views(images.subset(rows), asked.plan, asked.count, child(rng, place))
        found.append(torch.stack([network.features(view.to(device)).float().cpu() for view in shown]).mean(0))
    return torch.cat(found)


def inner_products(rows: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Those of `rows` (n, d) with each other, (n, n), and with `target` (d,) or (d, k), (n,) or (n, k); float64."""
    products = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    wanted = torch.zeros(len(rows), *target.shape[1:], dtype=torch.float64)
    for some, aims in zip(rows.split(COLUMNS, 1), target.split(COLUMNS), strict=True):
        exact = some.to(torch.float64)
        products += exact @ exact.T
        wanted += exact @ aims.to(torch.float64)
    return products, wanted


def _sums(ones: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The sums of inner products with each other, and with targets, over two layers."""
    return ones[0] + others[0], ones[1] + others[1]


def coefficients(products: Tensor, wanted: Tensor) -> Tensor:
    """The coefficients of ridge regression from inner products of rows, (n, n), and of rows with targets, (n,) or
    (n, k), in units of their standard errors but for one factor: the same shape as `wanted`.

    a = K^-1 X t with K = X X' + r I; the covariance of a is about K^-1 where the errors of t are alike in all
    directions, and r is small. Zeros where all rows are zero, NaN where some number is not finite."""
    if not (bool(products.isfinite().all()) and bool(wanted.isfinite().all())):  # of a run that diverged
        return torch.full_like(wanted, torch.nan)
    scale = products.diagonal().mean()
    if not float(scale) > 0:
        return torch.zeros_like(wanted)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(products + RIDGE * scale * torch.eye(len(products))))
    errors = inverse.diagonal().sqrt()
    return (inverse @ wanted) / (errors if wanted.ndim == 1 else errors.unsqueeze(1))


@torch.no_grad()
def renew_statistics(network: Classifier, images: DomainDataset, changed: frozenset[str]) -> None:
    """Give the batch norms that trained the statistics of `images`, in place of the mean of the clients', and put the
    network in evaluation mode.

    A client's images meet the statistics of its own batches, and so of its domain."""
    network.eval()
    norms = [
        module
        for name, module in network.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and f"{name}.running_mean" in changed
    ]
    if not norms or len(images) < 2:
        return
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over the blocks
        norm.train()
    device = next(network.parameters()).device
    for rows in torch.arange(len(images)).tensor_split((len(images) + BLOCK - 1) // BLOCK):
        network(as_float(images.subset(rows).pixels().to(device)))
    network.eval()

"""Membership tests by regression: of which images' gradients is the movement of a model made up?

Between the model that a client is sent and the one that it returns lie sums of its images' gradients. That a gradient
points along the update is the test of Li, Li and Ribeiro (2023, https://openreview.net/forum?id=QsCSLPP55Ku: cosines;
FedMIA's second measure is one); but gradients of one class and domain share most of their direction, which hides what
single images add. Here all candidates' gradients explain the update together, beside those of auxiliary images, which
no client has: a coefficient tells what an image adds that the others do not. Gradients of as many images as are asked
about are nearly independent in a network of many more parameters, so that little is hidden in the sum of a client's
whole data. Two tests:

- "update regression": gradients of all parameters that moved, halfway between both models, averaged over the views
  that the public plan of training shows. An approximation: a client's steps were taken at other points, from views
  that it drew, and Adam scales each number of a gradient by itself.
- "head regression": of a linear head, what steps add to the weights of one class is a sum of the images' features, with
  coefficients that may change from step to step; so is the sum of all steps, exactly under gradient descent, with or
  without momentum, of images that are not augmented and whose features do not move. The coefficient of an image is that
  in the weights of its own class.

Neither needs a reference federation or other clients' updates."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fdgsec.attacks.model_membership.image_gradients import image_gradients, parameters_named, shortened, views
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.federation.artifacts import ModelState
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import child

RIDGE = 1e-3
"""Added to the diagonal of the matrix of inner products, as a share of its mean."""
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
    """Whom a step is asked about: labeled `images`, beside `others` of the same population that no client has.

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
    named = dict(network.named_parameters())
    if parameters := parameters_named(network, changed & named.keys()):
        names = {id(parameter): name for name, parameter in named.items()}
        movement = _movement(step, [names[id(parameter)] for parameter in parameters])
        gradients = torch.cat(
            [
                image_gradients(network, parameters, images, plan=asked.plan, count=asked.count, rng=child(rng, place))
                for place, images in enumerate((asked.images, asked.others))
            ]
        )
        towards = shortened(movement.unsqueeze(0))[0]
        found["update regression"] = standardized_coefficients(gradients, -towards)[: len(asked.images)]
    if "head.weight" in changed:
        found["head regression"] = _head_scores(step, asked, network, rng)
    return found


def _movement(step: Step, names: list[str]) -> Tensor:
    return torch.cat([(step.after.state[name] - step.before.state[name]).flatten() for name in names]).cpu()


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
    found = standardized_coefficients(rows, torch.cat([weight, bias.unsqueeze(1)], 1).T.cpu())
    return found.gather(1, torch.cat([asked.images.labels, asked.others.labels]).unsqueeze(1))[: len(asked.images), 0]


@torch.no_grad()
def _features(network: Classifier, images: DomainDataset, asked: Candidates, rng: torch.Generator) -> Tensor:
    """The input of the head for each image, (N, features), averaged over its views."""
    device, found = next(network.parameters()).device, []
    for place, rows in enumerate(torch.arange(len(images)).split(BLOCK)):
        shown = views(images.subset(rows), asked.plan, asked.count, child(rng, place))
        found.append(torch.stack([network.features(view.to(device)).float().cpu() for view in shown]).mean(0))
    return torch.cat(found)


def standardized_coefficients(rows: Tensor, target: Tensor) -> Tensor:
    """The coefficients of `rows` (n, d) in ridge regression of `target` (d,) or (d, k), in units of their standard
    errors but for one factor: (n,) or (n, k) float64.

    a = K^-1 X t with K = X X' + r I; the covariance of a under independent errors of t is about K^-1 where r is small.
    Zeros where all rows are zero, NaN where some number is not finite."""
    if not (bool(rows.isfinite().all()) and bool(target.isfinite().all())):  # of a run that diverged
        return torch.full((len(rows), *target.shape[1:]), torch.nan, dtype=torch.float64)
    wanted = torch.zeros(len(rows), *target.shape[1:], dtype=torch.float64)
    products = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for some, aims in zip(rows.split(COLUMNS, 1), target.split(COLUMNS), strict=True):
        exact = some.to(torch.float64)
        products += exact @ exact.T
        wanted += exact @ aims.to(torch.float64)
    scale = products.diagonal().mean()
    if not float(scale) > 0:
        return torch.zeros_like(wanted)
    products.diagonal().add_(RIDGE * scale)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(products))
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

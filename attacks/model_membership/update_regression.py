"""Membership tests by regression: of which images' gradients is the movement of a model made up?

Between the model that a client is sent and the one that it returns lie sums of its images' gradients. A single
gradient's cosine with the update is FedMIA's second measure, and gradients of large networks are said to be nearly
independent and isotropic (Li, Li and Ribeiro, 2023, abstract, https://openreview.net/forum?id=QsCSLPP55Ku); but
gradients of one class and domain share most of their direction, which hides what single images add. Here the gradients
of all candidates, and of auxiliary images beside them, explain the update together: a coefficient tells what an image
adds that the others do not. What a client's other images add is noise, whose directions are those in which gradients of
such images differ; each layer's gradients are matrices that differ along outputs and along inputs. A defense may add
noise that is alike in all directions. How much of either there is the movement itself tells (`whitened`). Two tests:

- "update regression": gradients of all parameters that moved, the mean of those at both models, averaged over the views
  that the public plan of training shows, of the public objective where each image has a loss of its own, else of
  cross-entropy. An approximation: a client's steps were taken at other points, from views
  that it drew, and Adam scales each number of a gradient by itself.
- "head regression": of a linear head, what steps add to the weights of one class is a sum of the images' features, with
  coefficients that may change from step to step; so is the sum of all steps, exactly under gradient descent without
  weight decay, with or without momentum, of images that are not augmented and whose features do not move, and by their
  cross-entropy alone. The coefficient of an image is that in the weights of its own class.

Neither statistic needs a reference federation or other clients' updates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

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
from fdgsec.threats.adversary import MakesObjective

RIDGE = 1e-3
"""Added to the diagonal of the matrix of inner products, as a share of its mean."""
SHRUNK = 1e-2
"""Added to the eigenvalues of a covariance, as a share of their mean."""
NOISE = tuple(10 ** (exponent / 8) for exponent in range(-48, 49))
"""Ratios of noise that is alike in all directions to what images add, on average, that are tried."""
LEAST = 32
"""Parameters of fewer numbers are left out where others moved: too few to tell noise from what is to be found. Of two
classes the bias moves along one direction only, in which its noise would seem to be none."""
BLOCK = 64
COLUMNS = 2**14
"""Numbers of each row that are multiplied in float64 at a time."""

HEAD = "head."
"""How the names of the head's parameters begin."""

Networks = Callable[[Mapping[str, Tensor]], Classifier]


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """A model before and after training: as a client was sent it and returned it, or the global one of two rounds.

    What the client returned no value of, it `kept`: it is after as it was before."""

    before: ModelState
    after: ModelState
    kept: frozenset[str] = frozenset()

    @property
    def changed(self) -> frozenset[str]:
        """The names of what moved, among them running statistics of batch norms that trained."""
        before, after = self.before.state, self.after.state
        return frozenset(name for name in before.keys() & after.keys() if not torch.equal(before[name], after[name]))


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """Whom a step is asked about: labeled `images`, beside `others`, which show how gradients of such images differ.

    Training shows their images under `plan`, of which `count` draws are taken, for an `objective`. `known` remembers
    the features of the body that computed them last, where the plan draws nothing: those of a frozen body are the same
    in every round."""

    images: DomainDataset
    others: DomainDataset
    plan: TrainingPlan
    count: int
    objective: MakesObjective | None = None
    known: list[tuple[Mapping[str, Tensor], Tensor]] = field(default_factory=list)

    @property
    def labels(self) -> Tensor:
        """Those of the images, then of the others."""
        return torch.cat([self.images.labels, self.others.labels])

    @torch.no_grad()
    def features(self, network: Classifier, rng: torch.Generator) -> Tensor:
        """The input of the head for each view of the images, then of the others: (views, N, features) on the CPU."""
        body = {name: value for name, value in network.state_dict().items() if not name.startswith(HEAD)}
        for state, found in self.known:
            if state.keys() == body.keys() and all(torch.equal(state[name], value) for name, value in body.items()):
                return found
        device, blocks = next(network.parameters()).device, list[Tensor]()
        for images in (self.images, self.others):
            for rows in torch.arange(len(images)).split(BLOCK):
                shown = views(images.subset(rows), self.plan, self.count, child(rng, len(blocks)))
                blocks.append(torch.stack([network.features(view.to(device)).float().cpu() for view in shown]))
        found = torch.cat(blocks, 1)
        if self.plan.crop is None and not self.plan.translate:
            self.known[:] = [({name: value.clone() for name, value in body.items()}, found)]
        return found


def regression_scores(step: Step, asked: Candidates, networks: Networks, rng: torch.Generator) -> dict[str, Tensor]:
    """Score the images asked about by each test, larger means member: (N,) float64 by test.

    A test is left out where nothing moved that it reads. `networks` builds a model from its state."""
    changed = step.changed
    both = [networks(model.state) for model in (step.before, step.after)]
    for network in both:
        renew_statistics(network, asked.others, changed | step.kept)
    found = dict[str, Tensor]()
    if parameters_named(both[0], changed):
        found["update regression"] = _update_scores(step, asked, both, rng)
    if "head.weight" in changed:
        found["head regression"] = _head_scores(step, asked, both, rng)
    return found


def _update_scores(step: Step, asked: Candidates, both: Sequence[Classifier], rng: torch.Generator) -> Tensor:
    """The coefficient of each image's descent, the mean of those at the models before and after, in what moved."""
    moved = parameters_named(both[0], step.changed)
    parameters = {name: one for name, one in moved.items() if one.numel() >= LEAST} or moved
    side, products, wanted = side_of(list(parameters.values())), torch.zeros(()), torch.zeros(())
    gradients = _mean_gradients(both, asked, list(parameters), rng)
    for name, rows in zip(parameters, gradients, strict=True):
        before = step.before.state[name].float()
        descent = before - step.after.state[name].float()
        if asked.plan.weight_decay > 0 and descent.ndim > 1:
            descent = descent - _decayed(descent, before)
        added = inner_products(*whitened(rows, cut(as_matrices(descent.unsqueeze(0)), side)[0].cpu()))
        products, wanted = products + added[0], wanted + added[1]
    return coefficients(products, wanted)[: len(asked.images)]


def _decayed(descent: Tensor, before: Tensor) -> Tensor:
    """What weight decay may have taken off a layer's weights, of which it is a multiple: the projection on them."""
    share: Tensor = (descent * before).sum() / before.square().sum().clamp_min(torch.finfo(before.dtype).tiny)
    return share * before


def _mean_gradients(
    both: Sequence[Classifier], asked: Candidates, names: Sequence[str], rng: torch.Generator
) -> list[Tensor]:
    """Gradients of the images, then of the others, in each of the parameters `names`: (N, out, inputs), the mean of
    those at both models."""
    if all(name.startswith(HEAD) for name in names):
        shown = asked.features(both[0], child(rng, "features"))
        found = [_head_gradients(network, shown, asked.labels, names) for network in both]
        return [torch.stack(parts).mean(0) for parts in zip(*found, strict=True)]
    found = [
        image_gradients(
            both, names, images, plan=asked.plan, count=asked.count, rng=child(rng, place), objective=asked.objective
        )
        for place, images in enumerate((asked.images, asked.others))
        if len(images)
    ]
    return [torch.cat(parts) for parts in zip(*found, strict=True)]


@torch.no_grad()
def _head_gradients(network: Classifier, shown: Tensor, labels: Tensor, names: Sequence[str]) -> list[Tensor]:
    """Those of the head alone, from its inputs (views, N, features)."""
    known = (network.head.weight.float().cpu(), network.head.bias.float().cpu())
    wrong = functional.linear(shown, *known).softmax(-1) - functional.one_hot(labels, len(known[1]))
    weight, bias = torch.einsum("vno,vnf->nof", wrong, shown) / len(shown), wrong.mean(0).unsqueeze(1)
    side = side_of(list(parameters_named(network, names).values()))
    return [cut(bias if name == f"{HEAD}bias" else weight, side) for name in names]


def whitened(matrices: Tensor, movement: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of a layer (n, out, inputs), and a movement (out, inputs), in coordinates in which what the movement
    does not owe to single images is noise of variance 1: (n, numbers) and (numbers,).

    With deviations c_i from the mean, L = sum of c_i c_i', and R = sum of (L^-1/2 c_i)' L^-1/2 c_i, the coordinates are
    the eigenvectors of L and R, in which matrices whose rows and columns are correlated separately have variances that
    are products of eigenvalues. Those of a vector are its own. What other images add is in proportion to these, and a
    defense may have added noise that is alike in all directions: `noise_variances`. Zeros where images do not differ,
    or nothing moved."""
    size = float((matrices - matrices.mean(0)).abs().max())
    if not size > 0 or not bool(movement.any()):  # NaN, too
        return matrices.flatten(1) * 0, movement.flatten() * 0
    scaled, moved = matrices / size, movement / size
    spread = scaled - scaled.mean(0)
    if len(movement) == 1:
        variances = _shrunk(spread.square().mean(0))
    else:
        left_values, left = _directions(torch.einsum("nai,nbi->ab", spread, spread))
        alike = left_values.rsqrt().unsqueeze(1) * (left.T @ spread)
        right_values, right = _directions(torch.einsum("noa,nob->ab", alike, alike))
        scaled, moved = left.T @ scaled @ right, left.T @ moved @ right
        variances = left_values.outer(right_values)
    mean = scaled.mean(0)
    shared = (moved * mean).sum() / mean.square().sum().clamp_min(torch.finfo(mean.dtype).tiny)
    weights = noise_variances(moved - shared * mean, variances).rsqrt()
    return (scaled * weights).flatten(1), (moved * weights).flatten()


def noise_variances(movement: Tensor, variances: Tensor) -> Tensor:
    """The variances of the numbers of a `movement`, any shape: a `variances` + b, with a and b such that the movement
    is most likely, if it is Gaussian with mean 0.

    What images add varies as their gradients do, `variances`; b is noise alike in all directions, as that of DP-SGD.
    Their ratio is one of NOISE, and the scale follows from it."""
    squares, own = movement.to(torch.float64).square(), variances.to(torch.float64) / variances.mean()
    shapes = (own + ratio for ratio in NOISE)
    _, place = min((float((squares / one).mean().log() + one.log().mean()), place) for place, one in enumerate(shapes))
    shape = own + NOISE[place]
    scale = (squares / shape).mean()
    return (shape * scale).clamp_min(torch.finfo(movement.dtype).tiny).to(movement)


def _directions(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """The eigenvalues of a covariance, shrunk, and its eigenvectors as columns."""
    values, vectors = torch.linalg.eigh(covariance.to(torch.float64))
    return _shrunk(values.clamp_min(0)).to(covariance), vectors.to(covariance)


def _shrunk(variances: Tensor) -> Tensor:
    return variances + SHRUNK * variances.mean()


def _head_scores(step: Step, asked: Candidates, both: Sequence[Classifier], rng: torch.Generator) -> Tensor:
    """The coefficient of each image's features in the movement of its own class's weights, the bias among them."""
    weight, bias = (step.after.state[name] - step.before.state[name] for name in ("head.weight", "head.bias"))
    features = torch.stack([asked.features(network, child(rng, "features")).mean(0) for network in both]).mean(0)
    rows = torch.cat([features, torch.ones(len(features), 1)], 1)
    found = coefficients(*inner_products(rows, torch.cat([weight, bias.unsqueeze(1)], 1).T.cpu()))
    return found.gather(1, asked.labels.unsqueeze(1))[: len(asked.images), 0]


def inner_products(rows: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Those of `rows` (n, d) with each other, (n, n), and with `target` (d,) or (d, k), (n,) or (n, k); float64."""
    products = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    wanted = torch.zeros(len(rows), *target.shape[1:], dtype=torch.float64)
    for some, aims in zip(rows.split(COLUMNS, 1), target.split(COLUMNS), strict=True):
        exact = some.to(torch.float64)
        products += exact @ exact.T
        wanted += exact @ aims.to(torch.float64)
    return products, wanted


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
    """Give the batch norms that trained, or were kept, the statistics of `images`, in place of the mean of the
    clients', and put the network in evaluation mode.

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

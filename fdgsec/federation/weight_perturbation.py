"""Perturbation of a model along its gradient, and its effect on weights and losses.

Sharpness-aware minimization (Foret et al., ICLR 2021, https://arxiv.org/abs/2010.01412, eq. 2 with p = 2) moves
weights by rho g / ||g||_2 and evaluates the loss there; in FedDAG (Che et al. 2025, section III-C1) peers evaluate
it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from fdgsec.federation.global_model import GlobalModel
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import TrainingSet, epoch_of_batches
from fdgsec.nn.training.precision import autocast
from fdgsec.nn.training.training_loop import Objective, logits, prepare_training
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError

STATISTICS = ("running_mean", "running_var")
"""Suffixes of entries that have no gradient."""


def gradient_of(network: nn.Module) -> dict[str, Tensor]:
    """Read the gradients of the last backward pass at the parameters of `network`, on the CPU, in float32."""
    found = {name: parameter.grad for name, parameter in network.named_parameters()}
    return {name: grad.detach().float().cpu() for name, grad in found.items() if grad is not None}


def batch_gradient(
    network: Classifier, data: TrainingSet, objective: Objective, plan: TrainingPlan, rng: torch.Generator
) -> dict[str, Tensor]:
    """Compute the gradient of the mean loss of one batch of `data`, by parameter, on the CPU.

    `network` takes no step, but its running statistics include the batch. Raises UsageError for an empty set."""
    device, precision = prepare_training(network, plan, rng)
    network.zero_grad(set_to_none=True)
    batch = next(epoch_of_batches(data, plan, rng, device=device, layout=precision.layout))
    with autocast(device, precision):
        losses = objective(batch, network)
    losses.mean().backward()
    return gradient_of(network)


def perturb_weights(state: Mapping[str, Tensor], gradient: Mapping[str, Tensor], rho: float) -> dict[str, Tensor]:
    """Compute theta_hat = theta + rho g / ||g||_2, one norm over all entries of `state` that have a gradient.

    The others (buffers, frozen parameters) are unchanged, and so is everything where the gradient is 0."""
    moved = {name: gradient[name] for name in state if name in gradient}
    norm = math.sqrt(sum(float(part.double().square().sum()) for part in moved.values()))
    scale = rho / norm if norm > 0 else 0.0
    return {name: value + scale * moved[name] if name in moved else value for name, value in state.items()}


def validation_losses(network: Classifier, data: TrainingSet) -> Tensor:
    """Compute the cross-entropy of each of `data`'s images, (n,) float64 on the CPU, in evaluation mode."""
    return functional.cross_entropy(logits(network, data.images).double(), data.labels, reduction="none")


def losses_with(network: Classifier, state: Mapping[str, Tensor], data: TrainingSet) -> Tensor:
    """Load `state` into `network` and compute its `validation_losses`, (n,)."""
    network.load_state_dict(dict(state))
    return validation_losses(network, data)


@dataclass(frozen=True, kw_only=True)
class PerturbationEffect:
    """The effect of a perturbation: how many of how many coordinates changed, and how losses changed.

    `mean_move` is the mean loss after minus before, `largest_move` the largest absolute change of one image's loss."""

    coordinates: int
    changed: int
    mean_move: float
    largest_move: float

    @property
    def share(self) -> float:
        """Compute the share of coordinates that changed, 0 where there are none."""
        return self.changed / max(self.coordinates, 1)

    @classmethod
    def between(
        cls, before: Mapping[str, Tensor], after: Mapping[str, Tensor], *, old: Tensor, new: Tensor
    ) -> "PerturbationEffect":
        """Compare two states, running statistics aside, and the losses (n,) that they gave."""
        names = [n for n, v in before.items() if v.is_floating_point() and n.rpartition(".")[2] not in STATISTICS]
        return cls(
            coordinates=sum(before[name].numel() for name in names),
            changed=sum(int((before[name] != after[name]).sum()) for name in names),
            mean_move=float((new - old).mean()),
            largest_move=float((new - old).abs().max()),
        )


def perturbation_effect(
    model: GlobalModel, before: Mapping[str, Tensor], after: Mapping[str, Tensor], data: TrainingSet
) -> PerturbationEffect:
    """Compare two states of `model`'s network by their coordinates and by their losses on `data`.

    With rho = 1e-7, FedDAG's, a coordinate moves by about 1e-7 / sqrt(coordinates): less than float32 resolves for
    all but the smallest weights. Raises UsageError without images."""
    if not len(data):
        raise UsageError("the effect of a perturbation needs at least one image; got none.")
    network = model.module()
    old, new = (losses_with(network, state, data) for state in (before, after))
    return PerturbationEffect.between(before, after, old=old, new=new)

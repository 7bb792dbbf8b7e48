"""FedSR: a simple and effective domain generalization method for federated learning.

Nguyen, Torr & Lim, NeurIPS 2022, https://openreview.net/forum?id=mrt90D00aQX. A record's representation z is drawn from
N(mu(x), sigma(x)^2); a client minimizes cross-entropy + alpha_L2R E||z|| + alpha_CMI KL(p(z|x) || r(z|y)), where the
reference r(z|y) = N(r_mu[y], r_sigma[y]^2) is learned. Extends methods/fedavg.py.

Shares: what FedAvg shares. The reference and the scalar C, which carry class-conditional means of features, stay with
their client (`reference="local"`, the authors' code) or are averaged with the model (`reference="averaged"`, FedCCRL's
code).
Differs from the paper: as in the authors' code the L2 norm is plain (`norm="squared"` is the variant of
FedDG-Benchmark), C scales mu and sigma before the KL, and one sample per record and step is drawn. C enters the KL by
its square, so that it may become negative, where the authors' logarithm would give NaN. At test time the probabilities
of `samples` representations are averaged; their noise is drawn once from a fixed seed and is the same for every image,
so that a prediction depends only on its image."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, State
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.networks.group_norm_linear import drawn_linear
from fdgsec.nn.training.batches import Batch, to_device
from fdgsec.nn.training.training_loop import Objective
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream

REFERENCE = ("reference_mean", "reference_spread", "scale")
"""The entries r_mu, r_sigma (before softplus) and C of the network's state."""


class StochasticClassifier(Classifier):
    """A classifier on random features: `encoder` computes their mean and spread, `head` classifies a sample.

    The test-time noise, (samples, width), is a buffer outside the state dict: it is never sent."""

    noise: Tensor

    def __init__(self, plain: Classifier, *, width: int, samples: int, rng: torch.Generator) -> None:
        inputs, classes = plain.features_width, plain.classes
        head = drawn_linear(width, classes, rng)
        super().__init__(backbone=plain.backbone, norm=plain.norm, body=plain.body, neck=plain.neck, head=head)
        self.encoder = drawn_linear(inputs, 2 * width, rng)
        self.reference_mean = nn.Parameter(torch.zeros(classes, width))
        self.reference_spread = nn.Parameter(torch.ones(classes, width))
        self.scale = nn.Parameter(torch.ones(()))
        noise = torch.randn(samples, width, generator=stream(0, "world", "fedsr", "noise"))
        self.register_buffer("noise", noise, persistent=False)

    def distribution(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return mu(x) and sigma(x), each (B, width) float32, sigma above 0."""
        mean, spread = self.encoder(super().features(images)).float().chunk(2, dim=1)
        return mean, functional.softplus(spread)

    def features(self, images: Tensor) -> Tensor:
        """Return the mean representation, (B, width)."""
        return self.distribution(images)[0]

    def forward(self, images: Tensor) -> Tensor:
        """The logarithm of the probabilities averaged over the fixed noise samples, (B, classes)."""
        mean, std = self.distribution(images)
        draws = mean.unsqueeze(1) + std.unsqueeze(1) * self.noise
        summed: Tensor = self.head(draws).float().log_softmax(2).logsumexp(1)
        return summed - math.log(len(self.noise))


def divergence(mean: Tensor, std: Tensor, other_mean: Tensor, other_std: Tensor) -> Tensor:
    """Return KL(N(mean, std^2) || N(other_mean, other_std^2)) summed over the last axis; a std may be negative."""
    log_ratio = torch.log(other_std.abs()) - torch.log(std.abs())
    squares = (std.square() + (mean - other_mean).square()) / (2 * other_std.square())
    return (log_ratio + squares - 0.5).sum(-1)


@dataclass(frozen=True)
class SimpleRepresentation:
    """Cross-entropy of one sample of z, plus the two regularizers."""

    l2r: float
    cmi: float
    norm: Literal["plain", "squared"]
    rng: torch.Generator
    couples_records: bool = False

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """Return the losses, (B,)."""
        if not isinstance(model, StochasticClassifier):
            raise TypeError(f"fedsr trains a StochasticClassifier; got a {type(model).__name__}.")
        mean, std = model.distribution(batch.images)
        z = mean + std * to_device(torch.randn(mean.shape, generator=self.rng), mean.device)
        loss = functional.cross_entropy(model.head(z).float(), batch.labels, reduction="none")
        length = z.square().sum(1) if self.norm == "squared" else torch.linalg.vector_norm(z, dim=1)
        reference = model.reference_mean[batch.labels], functional.softplus(model.reference_spread)[batch.labels]
        return loss + self.l2r * length + self.cmi * divergence(model.scale * mean, model.scale * std, *reference)


@dataclass(frozen=True, kw_only=True)
class FedSR(FedAvg):
    """FedSR; `l2r` and `cmi` are the two weights (the authors' for PACS), `width` that of z (None: the backbone's)."""

    l2r: float = 0.01
    cmi: float = 0.001
    norm: Literal["plain", "squared"] = "plain"
    reference: Literal["local", "averaged"] = "local"
    width: int | None = None
    samples: int = 20

    def __post_init__(self) -> None:
        if self.l2r < 0 or self.cmi < 0 or self.samples < 1 or (self.width is not None and self.width < 1):
            raise UsageError(
                f"fedsr needs l2r and cmi >= 0, samples and width >= 1; got {self.l2r}, {self.cmi}, {self.samples} "
                f"and {self.width}."
            )

    def remodel(self, network: Classifier, rng: torch.Generator) -> Classifier:
        """The classifier on random features."""
        plain = super().remodel(network, rng)
        return StochasticClassifier(plain, width=self.width or plain.features_width, samples=self.samples, rng=rng)

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        """The regularized loss."""
        return SimpleRepresentation(self.l2r, self.cmi, self.norm, rng)

    def kept_entries(self, network: Classifier) -> frozenset[str]:
        """The reference, if it is local; the global model keeps its initial one, which tests do not use."""
        return frozenset(REFERENCE if self.reference == "local" else ())

"""FedDG: federated domain generalization by episodic learning in continuous frequency space (ELCFS).

Liu, Chen, Qin, Dou & Heng, CVPR 2021, https://arxiv.org/abs/2103.06030; as CCST (WACV 2023, section 4.2) and StableFDG
use it for classification. Amplitude spectra go into a bank that all clients receive; a client mixes those of other
clients into its images (continuous frequency space interpolation, fdgsec/nn/styles/amplitude_spectra.py), takes one
gradient step on the originals, and requires the model after that step to fit the mixed images too (episodic learning).
Extends methods/fedavg.py.

Shares, once, before round 0: per client the amplitude spectra of an eighth of its images (3 x H x (W // 2 + 1) numbers
each); the server sends all of them to every client, with their owners.
Differs from the paper: cross-entropy takes the place of the Dice loss, and the contrastive term at organ boundaries is
left out, because it needs segmentation masks; the window holds at least frequency 1 (L = .003 is meant for 384 px and
gives b = 0 below 334 px). The released codes differ in turn: FedDG's takes first-order gradients ("first-order") and
replaces the mean color alone (`low_frequency=0, least_window=0, ratios=(0,)`), CCST's evaluates the outer loss on a
copy, so that it reaches no parameter ("unconnected", preset `feddg-released`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from fdgsec.data.domains import as_float
from fdgsec.federation.artifacts import Amplitudes
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import SHARED_ROWS, Client, Clock, Inbox, ServerNeeds, State
from fdgsec.federation.release_declarations import Release
from fdgsec.federation.style_banks import artifact_in, stack_spectra
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.styles.amplitude_spectra import amplitudes, exchange_amplitudes, window
from fdgsec.nn.training.batches import Batch
from fdgsec.nn.training.training_loop import Objective
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.secret_streams import SecretStream

SLOT = "amplitudes"
"""The slot of spectra, up and down."""
NO_SECOND_DERIVATIVE = ("mobilenet_v3_large",)
MetaGradient = Literal["second-order", "first-order", "unconnected"]


@dataclass(frozen=True, kw_only=True)
class Episode:
    """Inner loss on the batch, outer loss on its mixed version after one clamped gradient step.

    `foreign` (J,) are the rows of `bank` that belong to other clients, client by client."""

    bank: Amplitudes
    foreign: Tensor
    low_frequency: float
    least_window: int
    ratios: tuple[float, ...]
    meta_step: float
    clip_value: float
    meta_gradient: MetaGradient
    rng: torch.Generator
    couples_records: bool = True  # the step is taken for the whole batch

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """Return inner plus outer loss per record, (B,)."""
        inner = _cross_entropy(model(batch.images), batch.labels)
        weights = {name: value for name, value in model.named_parameters() if value.requires_grad}
        with torch.autocast(batch.images.device.type, enabled=False):
            second = self.meta_gradient == "second-order"
            gradients = torch.autograd.grad(
                inner.mean(), list(weights.values()), create_graph=second, retain_graph=second, allow_unused=True
            )
            found = {name: g for name, g in zip(weights, gradients, strict=True) if g is not None}
            fast = self.stepped(weights, found)
        mixed = self.mixed(batch.images)
        if self.meta_gradient == "unconnected":  # a deep copy: neither gradients nor batch statistics come back
            with torch.no_grad():
                copied = {name: value.clone() for name, value in model.named_buffers()}
                outer = _cross_entropy(functional_call(model, {**fast, **copied}, (mixed,)), batch.labels)
        else:
            outer = _cross_entropy(functional_call(model, fast, (mixed,)), batch.labels)
        return (inner if second else _with_gradient(inner, weights, found)) + outer

    def stepped(self, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the fast weights theta - beta clamp(g, -c, c), elementwise."""
        bound = self.clip_value
        return {name: weights[name] - self.meta_step * g.clamp(-bound, bound) for name, g in gradients.items()}

    def mixed(self, images: Tensor) -> Tensor:
        """Mix low frequencies of another client's image into each image; client, image and ratio are uniform."""
        count = len(images)
        clients, sizes = torch.unique_consecutive(self.bank.owner[self.foreign], return_counts=True)
        chosen = torch.randint(len(clients), (count,), generator=self.rng)
        within = (torch.rand(count, generator=self.rng, dtype=torch.float64) * sizes[chosen]).long()
        others = self.bank.values[self.foreign[(sizes.cumsum(0) - sizes)[chosen] + within]].to(images)
        ratio = torch.tensor(self.ratios)[torch.randint(len(self.ratios), (count,), generator=self.rng)]
        b = max(window(self.low_frequency, (images.shape[2], images.shape[3])), self.least_window)
        return exchange_amplitudes(images, others, b=b, ratio=ratio.to(images)).clamp(0, 1)


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits.float(), labels, reduction="none")


def _with_gradient(losses: Tensor, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> Tensor:
    """Attach the known gradient to `losses` (B,), which saves a second backward pass."""
    zeros = [((weights[name] - weights[name].detach()) * g.detach()).sum() for name, g in gradients.items()]
    return losses.detach() + torch.stack(zeros).sum()


@dataclass(frozen=True, kw_only=True)
class FedDG(FedAvg):
    """FedDG with its options; on top of another method (fdgsec.federation.stacked_methods) it also shares spectra.

    `share_of_images` go into the bank (at least one per client). `low_frequency` is L of b = floor(L min(h, w)), which
    is at least `least_window`; lambda is drawn from `ratios` (A' = lambda A + (1 - lambda) A_other). `meta_step` and
    `clip_value` define the inner step; `meta_gradient` selects the gradient of the outer loss through that step."""

    share_of_images: float = 1 / 8
    low_frequency: float = 0.003
    least_window: int = 1
    ratios: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    meta_step: float = 1e-3
    clip_value: float = 100.0
    meta_gradient: MetaGradient = "second-order"

    def __post_init__(self) -> None:
        if not 0 < self.share_of_images <= 1 or not 0 <= self.low_frequency <= 1 or self.least_window < 0:
            raise UsageError(
                f"feddg needs share_of_images in (0, 1], low_frequency in [0, 1] and least_window >= 0; got "
                f"{self.share_of_images}, {self.low_frequency} and {self.least_window}."
            )
        if not self.ratios or not all(0 <= ratio <= 1 for ratio in self.ratios):
            raise UsageError(f"feddg draws lambda from ratios in [0, 1], at least one; got {list(self.ratios)}.")
        if self.meta_step <= 0 or self.clip_value <= 0:
            raise UsageError(
                f"feddg needs meta_step and clip_value above 0; got {self.meta_step} and {self.clip_value}."
            )

    @property
    def shares(self) -> Literal["never", "once", "every"]:
        """Spectra, once, before round 0."""
        return "once"

    @property
    def releases(self) -> Sequence[Release]:
        """Besides the model: spectra of single images up, those of all clients down."""
        up = Release(stage="share", slot=SLOT, kind=Amplitudes)
        return (*super().releases, up, Release(stage="combine", slot=SLOT, kind=Amplitudes))

    @property
    def server_needs(self) -> ServerNeeds:
        """The owner of each spectrum."""
        return ServerNeeds(uploads="named", because="each client mixes with the other clients' spectra, never its own")

    def check(self, clients: int) -> None:
        """Raise UsageError for a local method, whose objective would be ignored."""
        super().check(clients)
        if self.local is not None:
            raise UsageError("feddg trains its own objective; put it on top of the other method (ccst --with feddg).")

    def releasing_all(self) -> Self | None:
        """The same method with the spectra of all images."""
        return replace(self, share_of_images=1.0)

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        """Send the amplitude spectra of random images; phases are not sent.

        Raises UsageError for a client without images."""
        count = len(client.data)
        if not count:
            raise UsageError(f"{client.name} has no images; feddg needs at least one. Use fewer clients or more data.")
        rows = torch.randperm(count, generator=rng)[: max(int(count * self.share_of_images + 1e-9), 1)]
        values = torch.cat([amplitudes(as_float(client.data.pixels(part))) for part in rows.split(128)])
        spectra = Amplitudes(values=values, owner=torch.full((len(rows),), client.number))
        return {SLOT: spectra}, {**state, SHARED_ROWS: rows}

    def combine(
        self, shared: Mapping[str, Inbox], *, server: State, clock: Clock, rng: SecretStream
    ) -> tuple[Mapping[str, Inbox], State]:
        """Join all spectra into the distribution bank and send it to every client."""
        bank = stack_spectra(shared, SLOT)
        return {name: {SLOT: bank} for name in shared}, server

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        """The episode, with the spectra of the other clients.

        Raises TypeError without received spectra, UsageError if all of them are the client's own or if the network
        cannot be differentiated twice."""
        if self.meta_gradient == "second-order" and model.blueprint.backbone in NO_SECOND_DERIVATIVE:
            raise UsageError(
                f"torch has no second derivative of {model.blueprint.backbone}'s hard sigmoid; use "
                f"meta_gradient=first-order (--set method.meta_gradient=first-order) or another backbone."
            )
        bank = artifact_in(inbox, SLOT, Amplitudes, of=client.name)
        foreign = (bank.owner != client.number).nonzero().flatten()
        if not len(foreign):
            raise UsageError(f"{client.name} received spectra of no other client; feddg trains with at least two.")
        return Episode(
            bank=bank, foreign=foreign[torch.argsort(bank.owner[foreign], stable=True)],
            low_frequency=self.low_frequency, least_window=self.least_window, ratios=self.ratios,
            meta_step=self.meta_step, clip_value=self.clip_value, meta_gradient=self.meta_gradient, rng=rng,
        )  # fmt: skip

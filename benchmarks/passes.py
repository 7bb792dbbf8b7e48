"""Bare network passes of each method's equations, on float batches in memory.

Counted from the papers' equations, not from the code that is measured against them. Each function runs the passes of
one local epoch and nothing else: no reading, no augmentation, no building of networks, no sending."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fdgsec.nn.networks.attention import HighlightedClassifier
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.networks.perturbation_generator import PerturbationNetwork, perturbation_network
from fdgsec.nn.training.precision import Precision, autocast
from fdgsec.nn.training.training_loop import prepare_training
from fdgsec.nn.training.training_plan import TrainingPlan, optimizer_of
from fdgsec.runtime.random_streams import stream

INTENSITY, MARGIN, FOLLOWS, META_STEP = 0.3, 0.1, 0.99, 1e-3  # of FedDAG's eqs. (1) and (2), its teacher, and FedDG


@dataclass(frozen=True, kw_only=True)
class Passage:
    """The number of records of a forward pass, and how many more join behind `place`, if any."""

    records: int
    place: str | None = None
    joined: int = 0


def passage_of(sizes: Mapping[str, int]) -> Passage:
    """The passage for the number of records that reach each part of the network, in order (stem, ..., neck).

    Raises ValueError where records leave on the way, or join in two places."""
    changes = [(earlier, sizes[later] - sizes[earlier]) for earlier, later in pairwise(sizes)]
    grown = [(place, more) for place, more in changes if more]
    if len(grown) > 1 or any(more < 0 for _, more in grown):
        raise ValueError(f"records may join in one place only; got {dict(sizes)}.")
    place, joined = grown[0] if grown else (None, 0)
    return Passage(records=next(iter(sizes.values())), place=place, joined=joined)


def exploration_shares(places: Sequence[str], probability: float) -> dict[str | None, float]:
    """How often StableFDG's oversampling happens behind each of `places`, and (None) behind none.

    Each place fires with `probability`; the first that does enlarges the batch (steps 3 to 5, once per pass)."""
    shares: dict[str | None, float] = {}
    left = 1.0
    for place in places:
        shares[place] = left * probability
        left *= 1 - probability
    return {**shares, None: left}


@dataclass(frozen=True, kw_only=True, eq=False)
class Bare:
    """A network in training mode, its optimizer, and one batch (B, 3, S, S) in the layout that training uses."""

    network: Classifier
    images: Tensor
    labels: Tensor
    optimizer: torch.optim.Optimizer
    precision: Precision

    @classmethod
    def of(
        cls, network: Classifier, plan: TrainingPlan, *, image_size: int, precision: Precision | None = None
    ) -> "Bare":
        """Draw a batch of `plan.batch_size` random images, with labels in turn.

        A `precision` replaces the one in which the plan would train this network."""
        _, usual = prepare_training(network, plan)
        precision = precision or usual
        network.to(memory_format=precision.layout)
        images = torch.rand(plan.batch_size, 3, image_size, image_size, generator=stream(0, "world", "batch"))
        return cls(
            network=network, images=images.contiguous(memory_format=precision.layout),
            labels=torch.arange(plan.batch_size) % network.classes,
            optimizer=optimizer_of(network.parameters(), plan), precision=precision,
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        """One forward pass, and the mean cross-entropy in float32."""
        with autocast(images.device, self.precision):
            return functional.cross_entropy(self.network(images).float(), self.labels)

    def step(self, loss: Tensor) -> None:
        """One backward pass and one step."""
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward(inputs=list(self.network.parameters()))
        self.optimizer.step()


def views(bare: Bare, *, count: int, steps: int) -> None:
    """Optimize the losses of `count` forward passes, each with its own batch statistics.

    One: FedAvg, CCST, MixStyle, DSU, FPL. Two: FISC, for an image and its transferred version (eqs. 5 to 7). Three:
    FedCCRL and FedAlign, for an image and its two views (FedAlign's eqs. 3 and 5)."""
    for _ in range(steps):
        bare.step(torch.stack([bare.forward(bare.images) for _ in range(count)]).sum())


def enlarged(bare: Bare, *, passages: Sequence[Passage]) -> None:
    """StableFDG: one step for each passage, with its enlarged batch, under attention (eq. 7)."""
    network = cast(HighlightedClassifier, bare.network)
    for passage in passages:
        rows = torch.arange(passage.records) % len(bare.images)
        images = bare.images if passage.records == len(bare.images) else bare.images[rows]
        labels = bare.labels[torch.cat([rows, rows[: passage.joined]])]
        between = {} if passage.place is None else {passage.place: partial(_joined, passage.joined)}
        with autocast(images.device, bare.precision):
            maps = network.maps(images, between=between)
            logits = network.head(network.highlighted(maps, network.highlighter.queries(maps)))
            loss = functional.cross_entropy(logits.float(), labels)
        bare.step(loss)


def _joined(count: int, maps: Tensor) -> Tensor:
    return torch.cat([maps, maps[:count]])


@dataclass(frozen=True, kw_only=True, eq=False)
class Adversary:
    """FedDAG's two other networks, and the optimizer of the generator."""

    teacher: Classifier
    generator: PerturbationNetwork
    optimizer: torch.optim.Optimizer

    @classmethod
    def of(cls, student: Classifier, plan: TrainingPlan) -> "Adversary":
        """Copy the student and make a generator."""
        generator = perturbation_network("fcn32", rng=stream(0, "world", "generator"))
        optimizer = optimizer_of(generator.parameters(), plan)
        return cls(teacher=deepcopy(student).requires_grad_(False), generator=generator, optimizer=optimizer)


def adversarial(bare: Bare, adversary: Adversary, *, steps: int, validation: Tensor) -> None:
    """FedDAG's Algorithm 1 and eq. (5).

    Per step: the teacher forward on x; the generator forward and backward; the student forward on x_hat, backward to
    x_hat alone (for the generator, another loss than its own), forward on x, and backward from both. Per epoch: the
    student forward on the `validation` images, as perturbed and as it was."""
    student = bare.network
    for _ in range(steps):
        with autocast(bare.images.device, bare.precision):
            with torch.no_grad():
                target = functional.normalize(adversary.teacher.features(bare.images).float(), dim=1)
            made = bare.images + INTENSITY * student.normalize.std * adversary.generator(student.normalize(bare.images))
            seen = made.detach().requires_grad_()
            features = student.features(seen)
            answered = functional.cross_entropy(student.head(features).float(), bare.labels)
        apart = (functional.normalize(features.float(), dim=1) - target).square().sum(1)
        (slope,) = torch.autograd.grad(answered - apart.clamp_max(MARGIN).mean(), seen, retain_graph=True)
        adversary.optimizer.zero_grad(set_to_none=True)
        made.backward(slope)
        adversary.optimizer.step()
        bare.step(answered + apart.mean() + bare.forward(bare.images))
        with torch.no_grad():
            for kept, new in zip(adversary.teacher.parameters(), student.parameters(), strict=True):
                kept.lerp_(new, 1 - FOLLOWS)
    student.eval()
    with torch.inference_mode(), autocast(validation.device, bare.precision):
        for _ in range(2):
            student(validation)
    student.train()


def episodes(bare: Bare, *, steps: int) -> None:
    """FedDG with first-order gradients: forward and backward, and both again with the weights after an inner step."""
    network = bare.network
    weights = dict(network.named_parameters())
    for _ in range(steps):
        slopes = torch.autograd.grad(bare.forward(bare.images), list(weights.values()))
        fast = {name: w.detach() - META_STEP * g for (name, w), g in zip(weights.items(), slopes, strict=True)}
        fast = {name: value.requires_grad_() for name, value in fast.items()}
        with autocast(bare.images.device, bare.precision):
            logits = cast(Tensor, functional_call(network, fast, (bare.images,)))
            outer = functional.cross_entropy(logits.float(), bare.labels)
        for weight, inner, other in zip(
            weights.values(), slopes, torch.autograd.grad(outer, list(fast.values())), strict=True
        ):
            weight.grad = inner + other
        bare.optimizer.step()


def watch(network: nn.Module, seen: list[dict[str, int]]) -> None:
    """Register hooks that record, for each forward pass in training mode, how many records reach each part."""
    body = network.get_submodule("body")
    first, *others = [(name, part) for name, part in body.named_children()] + [("neck", network.get_submodule("neck"))]

    def begins(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        if module.training:
            seen.append({first[0]: len(given[0])})

    first[1].register_forward_pre_hook(begins)
    for name, part in others:

        def reaches(module: nn.Module, given: tuple[Tensor, ...], name: str = name) -> None:
            if module.training:
                seen[-1][name] = len(given[0])

        part.register_forward_pre_hook(reaches)

"""Positive control of model membership: linear classifiers that interpolate random labels of noise images.

They interpolate augmented copies, too, for label-only tests to find."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fdgsec.attacks.model_membership.label_only import QUERIES, augmented_copies
from fdgsec.attacks.statistics.noise_image_classifiers import SIDE, linear_classifier, noise_images
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.wire import SERVER, Message
from fdgsec.nn.networks.classifiers import Normalization
from fdgsec.threats.adversary import Knowledge, View
from fdgsec.threats.attack import Case, PositiveControl, Truth

CLASSES, CLIENTS, SIZE, AUXILIARY = 16, 2, 24, 96
ROUNDS = 2
RIDGE, SCALE = 1e2, 8.0


def fit_interpolating_classifier(images: DomainDataset) -> dict[str, Tensor]:
    """Fit the linear classifier with output SCALE for the label of each image and 0 on average: ridge regression.

    Clients train on augmented copies, so that it gives their labels, too. In closed form."""
    copies = torch.cat(list(augmented_copies(images.pixels())))
    inputs = Normalization()(as_float(copies)).flatten(1).to(torch.float64)
    classes = len(images.class_names)
    labels = images.labels.repeat(QUERIES)
    wanted = SCALE * (torch.nn.functional.one_hot(labels, classes).to(torch.float64) - 1 / classes)
    kernel = inputs @ inputs.T + RIDGE * torch.eye(len(inputs), dtype=torch.float64)
    weight = torch.linalg.solve(kernel, wanted).T @ inputs
    return {"head.weight": weight.float(), "head.bias": torch.zeros(classes)}


@dataclass(frozen=True, kw_only=True)
class Interpolators:
    """A federation whose clients each send, in every round, the classifier that interpolates their images.

    The global model is zero at first, then the mean of the clients' models."""

    def __call__(self, data: Sequence[DomainDataset], rng: torch.Generator, *, rounds: int = ROUNDS) -> View:
        """The view of a server of "client:1", "client:2", ... that hold `data`."""
        states = {f"client:{place}": fit_interpolating_classifier(images) for place, images in enumerate(data, 1)}
        mean = {
            key: torch.stack([state[key] for state in states.values()]).mean(0) for key in ("head.weight", "head.bias")
        }
        messages = list[Message]()
        for number in range(rounds):
            sent = mean if number else {key: torch.zeros_like(value) for key, value in mean.items()}
            messages += [_message(number, "model", SERVER, name, sent) for name in states]
            messages += [_message(number, "update", name, SERVER, own) for name, own in states.items()]
        return View(messages=tuple(messages))


def _message(round: int, stage: str, sender: str, receiver: str, state: Mapping[str, Tensor]) -> Message:
    return Message(round=round, stage=stage, sender=sender, receiver=receiver, artifact=ModelState(state=state))


def _as_peer_review(view: View) -> View:
    """The same models as an evaluating client receives them: without their owners' names."""
    return View(
        messages=tuple(
            message
            if message.stage == "model"
            else replace(message, stage="exhibit", sender=SERVER, receiver="client:0")
            for message in view.messages
        )
    )


def planted_models(knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
    """Two clients of 24 noise images of 768 numbers each, whose weights contain their labels.

    A client adversary with images of its own alone receives the models without their owners' names."""
    images = noise_images(AUXILIARY + CLIENTS * 2 * SIZE, side=SIDE, classes=CLASSES, rng=rng)
    starts = [AUXILIARY + number * 2 * SIZE for number in range(CLIENTS)]
    labels = images.labels.clone()
    for start in starts:  # others are of the classes that members are of, as in the question
        labels[start + SIZE : start + 2 * SIZE] = labels[start : start + SIZE]
    images = replace(images, labels=labels)
    simulate = Interpolators()
    view = simulate([images.subset(torch.arange(start, start + SIZE)) for start in starts], rng)
    if knowledge.own is not None and knowledge.auxiliary is None:
        view = _as_peer_review(view)
    cases, truths = [], []
    for number, start in enumerate(starts, 1):
        order = torch.randperm(2 * SIZE, generator=rng)
        cases.append(
            Case(
                question="trained", views=(view,), victim=f"client:{number}", records=SIZE, domain="planted",
                slice={"domain": "planted"}, candidates=images.subset(start + order),
            )
        )  # fmt: skip
        truths.append(Truth(members=order < SIZE))
    planted = replace(
        knowledge, auxiliary=images.subset(torch.arange(AUXILIARY)), own=None, unseen=None, simulate=simulate,
        network=linear_classifier, class_names=images.class_names, domain_names=images.domain_names,
    )  # fmt: skip
    return PositiveControl(cases=cases, truths=truths, knowledge=planted, measurement="auc", at_least=0.85)

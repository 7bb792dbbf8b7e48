"""Class means: FPL's prototypes as equations for the list of a client's images.

The prototype p_c of class c is the mean feature of the client's n_c images of it, as training saw them: augmented,
under weights on their way from the model that the server sent to the one that came back. Features f of candidates are
computed under both and under random augmentations, and averaged; batch norm is by the batches of training, which the
running statistics that came back tell (fdgsec.attacks.set_reconstruction.batch_statistics). With w_i in {0, 1} for
candidates, whose classes are seen,

    sum of w_i (f_i - p_c) over candidates i of class c = an error of n_c images, for every class c that was sent,

which holds whatever n_c is, and sum_i w_i = n. What the error is like the adversary learns from clients of its own
images, whom it has trained by the target's method: its mean, and its covariance for one image."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fdgsec.attacks.set_reconstruction.batch_statistics import normalized_as_in_training
from fdgsec.attacks.set_reconstruction.list_equations import ListEquations
from fdgsec.attacks.statistics.domain_populations import images_of
from fdgsec.attacks.statistics.pooled_questions import domain_of, size_of
from fdgsec.attacks.statistics.tracing import Whitening, fit_whitening
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.federation.artifacts import ModelState, Prototypes
from fdgsec.nn.training.batches import augment
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.cached_values import computed_once
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child, stream
from fdgsec.threats.adversary import Knowledge, View
from fdgsec.threats.attack import Case

SIMULATED = 6
"""Clients that the adversary trains on its own images of a domain, to learn the error of prototypes: of as many images
as the victim has, or all that the adversary has of the domain."""
UNRELATED = 4
"""Clients of its images that it shows itself in the negative control."""
ABSENT_CLASS = 1e-6
"""Error of the share of members whose class was not sent: there are none."""
AUGMENTED = 4
"""Random augmentations of each image, where training augments."""
AT_ONCE = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class PrototypeReader:
    """Reads the prototypes of clients of `size` images of one domain, all trained from one model."""

    knowledge: Knowledge
    domain: str
    size: int
    rng: torch.Generator

    def _trained(self, name: str, count: int) -> tuple[View, Sequence[DomainDataset]]:
        """What the server sees of the adversary's clients, "client:1" and so on, and their images."""
        if self.knowledge.simulate is None:
            raise UsageError("prototypes are read by training clients of one's own; the adversary cannot.")
        images, held = images_of(self.knowledge, self.domain), list[DomainDataset]()
        for number in range(count):
            order = torch.randperm(len(images), generator=child(self.rng, name, number))
            held.append(images.subset(order[: self.size]))
        return self.knowledge.simulate(held, child(self.rng, name, "training"), rounds=1), held

    @computed_once
    def others(self) -> View:
        """What the server sees of UNRELATED clients of the adversary's images, behind whom no candidate is."""
        return self._trained("unrelated", UNRELATED)[0]

    @computed_once
    def error(self) -> tuple[Tensor, Whitening]:
        """The mean error (d,) of a prototype, and the whitening of what one image adds to it."""
        view, held = self._trained("simulated", SIMULATED)
        differences, counts = list[Tensor](), list[int]()
        for number, images in enumerate(held, 1):
            sent = prototypes_of(view, f"client:{number}")
            features = self.features(images, view, f"client:{number}", size=len(images))
            for label, prototype in zip(sent.classes.tolist(), sent.features.double(), strict=True):
                mine = images.labels == label
                differences.append(prototype - features[mine].mean(0))
                counts.append(int(mine.sum()))
        weight, rows = torch.tensor(counts, dtype=torch.float64).unsqueeze(1), torch.stack(differences)
        mean = (weight * rows).sum(0) / weight.sum()
        return mean, fit_whitening((rows - mean) * weight.sqrt())

    def features(self, images: DomainDataset, view: View, sender: str, *, size: int) -> Tensor:
        """Mean features (n, d) float64 of `images` under the model that `sender` got and the one it sent back.

        `size` is the number of images that it trained on."""
        if self.knowledge.network is None:
            raise UsageError("prototypes are features of the target's network; the adversary does not know it.")
        plan, rng = self.knowledge.plan or TrainingPlan(), stream(0, "attack", "augmented features")
        fixed = plan.crop is None and plan.flip == 0 and plan.translate == 0
        way, found = way_to_update(plan, size), list[Tensor]()
        sent, returned = received_by(view, sender), updated_by(view, sender)
        one, batch = as_float(images.pixels(torch.arange(1))), min(plan.batch_size, size)
        for state, weight in ((sent, 1 - way), (returned, way)):
            network, passes = self.knowledge.network(state.state), list[Tensor]()
            normalized_as_in_training(network, sent=sent, returned=returned, pixels=one, batch=batch)
            for copy in range(1 if fixed else AUGMENTED):
                for number, rows in enumerate(torch.arange(len(images)).split(AT_ONCE)):
                    pixels = augment(as_float(images.pixels(rows)), plan, child(rng, copy, number))
                    with torch.no_grad():
                        passes.append(network.features(pixels).double())
            found.append(weight * torch.cat(passes).reshape(-1, len(images), passes[0].shape[1]).mean(0))
        return torch.stack(found).sum(0)

    def equations(self, case: Case, seen: Case) -> ListEquations:
        """The equations of the prototypes in `seen`: d of each class, and one that no other class has members."""
        assert case.candidates is not None  # `reader_of_prototypes` has looked
        sent, (bias, whiten) = prototypes_of(seen.views[0], seen.victim), self.error
        labels, size = case.candidates.labels, size_of(case)
        features = self.features(case.candidates, seen.views[0], seen.victim, size=size)
        held = torch.isin(labels, sent.classes)
        blocks, noise = [(~held).double().unsqueeze(1)], [np.full(1, ABSENT_CLASS)]
        for label, prototype in zip(sent.classes.tolist(), sent.features.double(), strict=True):
            mine = (labels == label).double().unsqueeze(1)
            blocks.append(mine * whiten(features - prototype + bias + whiten.center))
            count = size * float(mine.sum()) / max(int(held.sum()), 1)  # of the client's images, as of candidates
            noise.append(np.full(features.shape[1], math.sqrt(max(count, 1.0)) / size))
        rows = torch.cat(blocks, dim=1).numpy()
        return ListEquations(
            candidates=rows, release=np.zeros(rows.shape[1]), noise=np.concatenate(noise), spread=rows.std(0),
            images=min(size, len(rows)),
        )  # fmt: skip

    def independent(self, case: Case, rng: torch.Generator) -> Case:
        """The same question about the prototypes of a client of the adversary's images."""
        drawn = int(torch.randint(UNRELATED, (), generator=rng))
        return replace(case, views=(self.others,), victim=f"client:{drawn + 1}")


def reader_of_prototypes(cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> PrototypeReader:
    """The reader of the prototypes of `cases`, which are of one domain and size.

    Raises UsageError for one without candidates."""
    alone = next((case for case in cases if case.candidates is None), None)
    if alone is not None:
        raise UsageError(f"set-reconstruction looks for members among candidates; {alone.victim} came without any.")
    domain, size = domain_of(cases[0]), size_of(cases[0])
    return PrototypeReader(knowledge=knowledge, domain=domain, size=size, rng=child(rng, "prototypes", domain, size))


def way_to_update(plan: TrainingPlan, size: int) -> float:
    """How far the weights of the last pass are on the way from the first model to the last, on average: 0 to 1.

    Each step is taken for as long as any other. The features of one single step are those of the first model."""
    batches = -(-size // plan.batch_size)
    steps = plan.epochs * batches if plan.steps is None else plan.steps
    first = (steps - 1) // batches * batches
    return (first + steps - 1) / 2 / steps


def prototypes_of(view: View, sender: str) -> Prototypes:
    """The prototypes that `sender` sent last. Raises UsageError where none were seen."""
    found = view.sent(sender, Prototypes)
    if found is None:
        raise UsageError(f"the adversary saw no prototypes of {sender}.")
    return found


def updated_by(view: View, sender: str) -> ModelState:
    """The model that `sender` sent back last. Raises UsageError where none was kept."""
    found = view.sent(sender, ModelState)
    if found is None:
        raise UsageError(f"the adversary saw no model of {sender}.")
    return found


def received_by(view: View, receiver: str) -> ModelState:
    """The model that the server sent to `receiver` last. Raises UsageError where none was kept."""
    found = view.given(receiver)
    if found is None:
        raise UsageError(f"the adversary saw no model that was sent to {receiver}.")
    return found

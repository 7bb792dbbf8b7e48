"""Head gradients: FedIIR's upload as equations for the list of a client's images.

A client sends the mean over its images of the gradient of the cross-entropy in a linear head of K classes, under the
model that it received (Guo et al., ICML 2023): for an image with features f, prediction p and class y,

    t = (p - onehot(y)) (f, 1)^T,    K (d + 1) numbers,

each a public function of the image, of its class and of that model. (K - 1) (d + 1) of them differ, 3,078 for 7 classes
and 512 features. A client computes in evaluation mode, on images as they are, so the equations hold to rounding. The
mean is over batches: where the last one is shorter, its images have larger weights, and nobody else knows which they
are (fdgsec.attacks.set_reconstruction.unequal_weights)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.attacks.set_reconstruction.expectation_propagation import propagated
from fdgsec.attacks.set_reconstruction.list_equations import LEAST_NOISE, ListEquations, MemberPosterior, best_prior
from fdgsec.attacks.set_reconstruction.list_solver import COUNTED
from fdgsec.attacks.set_reconstruction.unequal_weights import listed_weights, ranked_weights, refitted_weights
from fdgsec.attacks.statistics.domain_populations import images_of
from fdgsec.attacks.statistics.pooled_questions import domain_of, size_of
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.federation.artifacts import HeadGradient, ModelState
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.cached_values import computed_once
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import Knowledge, View
from fdgsec.threats.attack import Case

SIMULATED = 6
"""Clients of the adversary's own images whose gradients it computes twice: as they send them, and as it reads them."""
UNRELATED = 15
"""Clients of its images that it shows itself in the negative control."""
AT_ONCE = 64
BLURRED = (0.1, 0.01)
"""Least errors of a sum over members that are allowed for, tried in turn, in units of a number's spread over images."""
LEAST_VALUE = 1e-6
"""Of the largest singular value: with smaller ones numbers depend on others."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GradientReader:
    """Reads the head gradients of clients of `size` images of one domain, all under the model in `start`.

    `read` keeps the features and logits of images by their names: cases of one domain share candidates."""

    knowledge: Knowledge
    domain: str
    size: int
    start: ModelState
    rng: torch.Generator
    read: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def _shared(self, name: str, count: int) -> tuple[View, Sequence[DomainDataset]]:
        """What the server sees of the adversary's clients, "client:1" and so on, and their images."""
        if self.knowledge.simulate is None:
            raise UsageError("head gradients are read beside those of clients of one's own; the adversary has none.")
        images, held = images_of(self.knowledge, self.domain), list[DomainDataset]()
        for number in range(count):
            order = torch.randperm(len(images), generator=child(self.rng, name, number))
            held.append(images.subset(order[: self.size]))
        return self.knowledge.simulate(held, child(self.rng, name, "exchange")), held

    @computed_once
    def others(self) -> View:
        """What the server sees of UNRELATED clients of the adversary's images, behind whom no candidate is."""
        return self._shared("unrelated", UNRELATED)[0]

    @computed_once
    def batch(self) -> int:
        """The number of images in a batch."""
        return (self.knowledge.plan or TrainingPlan()).batch_size

    @computed_once
    def error(self) -> float:
        """The root mean square error of a gradient's numbers, as a share of their spread over images."""
        view, held = self._shared("simulated", SIMULATED)
        rows = [self.gradients(images) for images in held]
        spread = torch.cat(rows).std(0).clamp_min(torch.finfo(torch.float64).tiny)
        varies = spread > LEAST_NOISE * spread.max()
        off = [
            (gradient_of(view, f"client:{number}") - mean_of_batches(mine, self.batch)) / spread
            for number, mine in enumerate(rows, 1)
        ]
        return float(torch.stack(off)[:, varies].square().mean().sqrt())

    def gradients(self, images: DomainDataset) -> Tensor:
        """The gradient (n, K (d + 1)) float64 of each of `images`, under the model that clients received."""
        if self.knowledge.network is None:
            raise UsageError("head gradients are those of the target's network; the adversary does not know it.")
        new = torch.tensor([row for row, name in enumerate(images.ids) if name not in self.read], dtype=torch.int64)
        network = self.knowledge.network(self.start.state).eval()
        for rows in new.split(AT_ONCE):
            with torch.no_grad():
                features = network.features(as_float(images.pixels(rows)))
                logits = network.head(features)
            for row, of_features, of_logits in zip(rows, features, logits, strict=True):
                self.read[images.ids[int(row)]] = (of_features, of_logits)
        features, logits = (torch.stack([self.read[name][part] for name in images.ids]).double() for part in (0, 1))
        return head_gradients(features, logits, images.labels)

    def equations(self, case: Case, seen: Case) -> ListEquations:
        """The equations of the head gradient in `seen`."""
        assert case.candidates is not None  # `reader_of_gradients` has looked
        rows, sent = self.gradients(case.candidates), gradient_of(seen.views[0], seen.victim)
        scale, center = rows.std(0), rows.mean(0)
        varies = scale > LEAST_NOISE * scale.max()
        placed = ((rows - center) / scale)[:, varies].numpy()
        error = max(self.error, LEAST_NOISE)
        return ListEquations(
            candidates=placed, release=((sent - center) / scale)[varies].numpy(),
            noise=np.full(placed.shape[1], error), spread=placed.std(0), images=min(self.size, len(placed)),
        )  # fmt: skip

    def solved(self, case: Case, seen: Case) -> MemberPosterior:
        """The weights of the candidates of `case` behind the gradient in `seen`."""
        known = self.equations(case, seen)
        if self.size > self.batch and self.size % self.batch:
            batches = -(-self.size // self.batch)
            largest = 1 / (batches * (self.size % self.batch))
            return listed_weights(known) or self.propagated(known) or ranked_weights(known, largest=largest)
        return known.solved(best_prior(known, child(self.rng, "prior")))

    def propagated(self, known: ListEquations) -> MemberPosterior | None:
        """The weights, if as many candidates as are members explain the gradient; None if they do not.

        Which images are in the last batch nobody knows, but what they weigh: n times 1 / (batches * its length). Sums
        that are almost exact are taken for less so, by BLURRED, until memberships are decided."""
        count, last = len(known.candidates), self.size % self.batch
        if self.size >= count:
            return None
        batches = -(-self.size // self.batch)
        levels = known.images / batches * np.array([0.0, 1 / self.batch, 1 / last])
        shares = np.array([count - self.size, self.size - last, last]) / count
        left, values, turned = np.linalg.svd(known.candidates, full_matrices=False)
        kept = values > LEAST_VALUE * values[0]
        rows, target = (left * values)[:, kept].T, known.images * (turned[kept] @ known.release)
        for least in BLURRED:
            error = max(least, known.images * float(known.noise.max()))
            matrix = np.concatenate([rows / error, np.full((1, count), 1 / COUNTED)])
            found = propagated(matrix, np.append(target / error, known.images / COUNTED), levels=levels, shares=shares)
            listed = refitted_weights(known, found.members)
            if listed is not None:
                return listed
        return None

    def independent(self, case: Case, rng: torch.Generator) -> Case:
        """The same question about the gradient of a client of the adversary's images."""
        drawn = int(torch.randint(UNRELATED, (), generator=rng))
        return replace(case, views=(self.others,), victim=f"client:{drawn + 1}")


def reader_of_gradients(cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> GradientReader:
    """The reader of the head gradients of `cases`, which are of one domain, size and model.

    Raises UsageError for one without candidates, and where the model was not seen."""
    alone = next((case for case in cases if case.candidates is None), None)
    if alone is not None:
        raise UsageError(f"set-reconstruction looks for members among candidates; {alone.victim} came without any.")
    domain, size, start = domain_of(cases[0]), size_of(cases[0]), model_given(cases[0])
    mine = child(rng, "head gradients", domain, size)
    return GradientReader(knowledge=knowledge, domain=domain, size=size, start=start, rng=mine)


def head_gradients(features: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """The gradient of each image's cross-entropy in a linear head, (n, K (d + 1)): of its weight, row by row, and bias.

    `features` are (n, d), `logits` (n, K), `labels` (n,)."""
    error = functional.softmax(logits, 1) - functional.one_hot(labels, logits.shape[1]).to(logits)
    weight = error.unsqueeze(2) * features.unsqueeze(1)
    return torch.cat([weight.flatten(1), error], dim=1)


def mean_of_batches(rows: Tensor, batch: int) -> Tensor:
    """The mean of the means of batches of rows (n, D) in their order: (D,). The last batch counts like the others."""
    return torch.stack([part.mean(0) for part in rows.split(batch)]).mean(0)


def gradient_of(view: View, sender: str) -> Tensor:
    """The head gradient that `sender` sent last, (K (d + 1),) float64. Raises UsageError where none was seen."""
    found = view.sent(sender, HeadGradient)
    if found is None:
        raise UsageError(f"the adversary saw no head gradient of {sender}.")
    return torch.cat([found.weight.flatten(), found.bias]).double()


def model_given(case: Case) -> ModelState:
    """The model that the server sent to the case's victim. Raises UsageError where none was seen."""
    found = case.views[0].given(case.victim)
    if found is None:
        raise UsageError(f"the adversary saw no model that was sent to {case.victim}.")
    return found

"""Membership inference on generators: the change of a generator's response and loss during a client's training.

FedDAG (Che et al. 2025, arXiv:2501.13967) trains a generator G of perturbations x_hat = x + a G(x) (eq. 2) by
L_cls(x_hat, y) - min(|f - f_hat|^2, m) (Algorithm 1, line 3; eq. 1), and sends it every round. Two test statistics per
image: the size of G(x), and that loss. Each is the difference between the generator that the client returned and the
one that it received, which cancels what all generators have in common."""

from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.attacks.statistics.lira_rmia import References, lira_offline
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.federation.artifacts import GeneratorState
from fdgsec.nn.networks.classifiers import Classifier, Normalization
from fdgsec.nn.networks.perturbation_generator import PerturbationNetwork
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import View

AT_ONCE = 16
"""Images per forward pass: more exceed the processor's caches and take longer per image."""
TINY = 1e-12
STEM = "stem.weight"


def perturbation_generator(artifact: GeneratorState) -> PerturbationNetwork:
    """Rebuild FedDAG's generator. Raises UsageError for the state of another network."""
    state = artifact.tensors()
    stem = state.get(STEM)
    if stem is None or stem.ndim != 4 or stem.shape[1] != 3:
        raise UsageError(
            f"a perturbation generator has a {STEM} (width, 3, 3, 3); this state holds {', '.join(sorted(state)[:4])}."
        )
    network = PerturbationNetwork(stem.shape[0], rng=stream(0, "world", "blueprint"))
    fits = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    given = {name: tuple(value.shape) for name, value in state.items()}
    if fits != given:
        wrong = min({*fits.items()} ^ {*given.items()})[0]
        raise UsageError(
            f"a perturbation generator of width {stem.shape[0]} does not fit this state: {wrong} is another."
        )
    network.load_state_dict(state)
    return network.eval().requires_grad_(False)


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The public constants of the generator's loss: `a` of eq. (2), `margin` m of eq. (1). Raises UsageError out of
    range."""

    a: float = 0.3
    margin: float = 0.1

    def __post_init__(self) -> None:
        if not (0 <= self.a <= 1 and self.margin >= 0):
            raise UsageError(
                f"a must lie in [0, 1] and margin be 0 or more, as the target's; got {self.a}, {self.margin}."
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class GeneratorUpdate:
    """A client's generator in the last round that was seen: as it was `given`, and as it was `returned`."""

    given: GeneratorState
    returned: GeneratorState

    @classmethod
    def of(cls, view: View, client: str) -> Self | None:
        """Find both in a view, None where one of them was not seen.

        Raises UsageError for another architecture, and where the generator was returned unchanged."""
        returned = view.sent(client, GeneratorState)
        down = [
            (message.round, message.artifact)
            for message in view.messages
            if message.receiver == client and isinstance(message.artifact, GeneratorState)
        ]
        if returned is None or not down:
            return None
        _, given = max(down, key=lambda pair: pair[0])
        for artifact in (given, returned):
            perturbation_generator(artifact)
        if given.sha256 == returned.sha256:
            raise UsageError(f"{client} returned the generator unchanged (a warm-up round): it carries no information.")
        return cls(given=given, returned=returned)


@dataclass(frozen=True, kw_only=True, eq=False)
class GeneratorProbe:
    """The queries to generators about `images`, with the cached outputs of each given generator by content.

    `model` is used as both student and teacher."""

    images: DomainDataset
    model: Classifier
    objective: Objective
    before: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def changes(self, training: GeneratorUpdate) -> dict[str, Tensor]:
        """Both statistics of the returned generator minus those of the given one: (N,) float64 each."""
        given = training.given
        if given.sha256 not in self.before:  # a server sends the same generator to all clients, also in simulations
            self.before[given.sha256] = self._test_statistics(given)
        before, after = self.before[given.sha256], self._test_statistics(training.returned)
        return {name: after[name] - before[name] for name in after}

    def _test_statistics(self, artifact: GeneratorState) -> dict[str, Tensor]:
        drawn = perturbations(perturbation_generator(artifact), self.images)
        loss = generator_loss(drawn, self.images, self.model, self.objective)
        return {"response": response_size(drawn), "loss": loss}


@torch.no_grad()
def perturbations(generator: PerturbationNetwork, images: DomainDataset) -> Tensor:
    """G(x) of every image, x in the classifier's normalized space: (N, 3, H, W)."""
    normalize = Normalization()
    return torch.cat([
        generator(normalize(as_float(images.pixels(rows)))) for rows in torch.arange(len(images)).split(AT_ONCE)
    ])  # fmt: skip


def response_size(drawn: Tensor) -> Tensor:
    """The log of the root mean square of perturbations (N, 3, H, W): (N,) float64."""
    return drawn.double().square().mean((1, 2, 3)).clamp_min(TINY).log() / 2


@torch.no_grad()
def generator_loss(drawn: Tensor, images: DomainDataset, model: Classifier, objective: Objective) -> Tensor:
    """L_cls(x_hat, y) - min(|f/|f| - f_hat/|f_hat||^2, m) of Algorithm 1, line 3: (N,) float64, from G(x) = `drawn`.

    One model is used as both the student S and the teacher T, in evaluation mode."""
    model.eval()
    device, found = next(model.parameters()).device, []
    for rows in torch.arange(len(images)).split(AT_ONCE):
        pixels, labels = as_float(images.pixels(rows)).to(device), images.labels[rows].to(device)
        features = model.features(pixels + objective.a * model.normalize.std * drawn[rows].to(device))
        apart = (functional.normalize(model.features(pixels)) - functional.normalize(features)).square().sum(1)
        loss = functional.cross_entropy(model.head(features), labels, reduction="none")
        found.append((loss - apart.clamp_max(objective.margin)).double().cpu())
    return torch.cat(found)


def membership_by_change(target: Tensor, changes: Tensor, members: Tensor) -> Tensor:
    """Score n images by the distance of the target's change `target` (n,) from that of references without the image.

    `changes` and `members` are (models, n). Every network's changes are standardized over the images, because the
    length of a client's training carries no information. The score is LiRA's offline test, (n,), in the direction in
    which the references trained on an image differ from the others.

    Raises UsageError where an image has no reference without it."""
    seen, profile = _standardize(changes), _standardize(target.unsqueeze(0))[0]
    outside = (~members).to(torch.float64)
    mean = (seen * outside).sum(0) / outside.sum(0).clamp_min(1)
    shift = (seen - mean)[members].mean() if bool(members.any()) else torch.tensor(1.0)
    references = References(models=len(seen), values=seen, members=members)
    scores = lira_offline(profile, references, variance="global")
    return -scores if float(shift) < 0 else scores


def _standardize(values: Tensor) -> Tensor:
    centered = values.to(torch.float64) - values.to(torch.float64).mean(1, keepdim=True)
    return centered / centered.square().mean(1, keepdim=True).sqrt().clamp_min(TINY)

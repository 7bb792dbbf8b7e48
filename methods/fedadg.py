"""FedADG: federated learning with domain generalization by adversarial alignment to a generated reference distribution.

Zhang, Lei, Shi, Huang & Chen, 2021, https://arxiv.org/abs/2111.10487. A distribution generator turns noise and a class
into a reference feature; a discriminator on a random projection of (feature, class) tells references (1) from features
(0); the feature extractor learns to fool it, class by class. Phase 1 trains E0 epochs of
cross-entropy, phase 2 E1 epochs of a CE + (1 - a) (1 - D(f, y))^2, with one step of discriminator and generator per
batch. Extends methods/fedavg.py.

Shares, every round: the model and the generator's state, both averaged with the same weights; the global generator
comes back at the start of the next round. Discriminators stay with their clients (`discriminators="averaged"`:
FedCCRL's code).
Differs from the paper: the losses are those of the codes that could be read (the benchmark's and FedCCRL's), with two
changes. There the generator's output is detached in the generator's own update, so that its weights never change
(`released=True`; here it learns), and the random projection, there a trained layer of norm 1, is a fixed Gaussian
matrix that preserves lengths on average. The codes' generator seeks D = 1 like the extractor;
`generator_seeks="features"` makes it adversarial to the discriminator instead. In round 0 all clients draw the same
generator, seeded by the hash of the received model, so that it need not be sent. Features are those of the extractor's
own forward pass (training mode)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional, init

from fdgsec.federation.artifacts import Artifact, GeneratorState, ModelState, Scores
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, ServerNeeds, State, Update
from fdgsec.federation.release_declarations import Release
from fdgsec.methods.fedavg import FedAvg, averaged, detached
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import Batch, to_device
from fdgsec.nn.training.training_loop import Objective, optimizer_step
from fdgsec.nn.training.training_plan import TrainingPlan, optimizer_memory, optimizer_of, remember
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child, stream
from fdgsec.runtime.secret_streams import SecretStream

GENERATOR = "generator"
DISCRIMINATOR = "discriminator"
DISCRIMINATOR_WIDTH = 1024


def _linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer with undefined parameters, to be drawn or loaded."""
    with torch.device("meta"):
        layer = nn.Linear(inputs, outputs)
    return layer.to_empty(device="cpu")


class Generator(nn.Module):
    """The distribution generator: noise (B, noise) and condition (B, classes) to a reference feature (B, width) >= 0.

    Its parameters are undefined until they are drawn or loaded."""

    def __init__(self, *, noise: int, classes: int, hidden: int, width: int) -> None:
        super().__init__()
        self.noise = noise
        self.first, self.second = _linear(noise + classes, hidden), _linear(hidden, width)

    def draw(self, rng: torch.Generator) -> None:
        """Initialize the parameters as the codes do: Xavier uniform with gain 1/2."""
        for layer in (self.first, self.second):
            init.xavier_uniform_(layer.weight, 0.5, generator=rng)
            init.zeros_(layer.bias)

    def forward(self, noise: Tensor, condition: Tensor) -> Tensor:
        """Generate reference features, (B, width)."""
        hidden = functional.leaky_relu(self.first(torch.cat([noise, condition], 1)))
        return functional.relu(self.second(hidden))


class Discriminator(nn.Module):
    """D(f, y) in (0, 1), (B,): the probability that a feature is a reference, on a fixed random projection of (f, y).

    Its parameters are undefined until they are drawn or loaded."""

    projection: Tensor

    def __init__(self, *, width: int, classes: int, projected: int) -> None:
        super().__init__()
        self.register_buffer("projection", torch.zeros(width + classes, projected))
        self.first, self.second = _linear(projected, DISCRIMINATOR_WIDTH), _linear(DISCRIMINATOR_WIDTH, 1)

    def draw(self, rng: torch.Generator) -> None:
        """Draw the projection from N(0, 1 / projected), and initialize the layers as nn.Linear does."""
        self.projection.normal_(0, self.projection.shape[1] ** -0.5, generator=rng)
        for layer in (self.first, self.second):
            bound = layer.in_features**-0.5
            init.uniform_(layer.weight, -bound, bound, generator=rng)
            init.uniform_(layer.bias, -bound, bound, generator=rng)

    def forward(self, features: Tensor, condition: Tensor) -> Tensor:
        """Classify features (B, width) under their condition (B, classes)."""
        projected = torch.cat([features, condition], 1) @ self.projection
        return cast(Tensor, self.second(functional.leaky_relu(self.first(projected)))).sigmoid().squeeze(1)


@dataclass(frozen=True)
class SmoothedCrossEntropy:
    """Cross-entropy with label smoothing: L_err of phase 1."""

    smoothing: float
    couples_records: bool = False

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """Return the losses, (B,)."""
        return self.of(model(batch.images), batch.labels)

    def of(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the losses of logits (B, C)."""
        return functional.cross_entropy(logits.float(), labels, reduction="none", label_smoothing=self.smoothing)


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """Phase 2: first the discriminator's step on this batch, then the extractor's losses and the generator's step.

    `players` are trained in place by `optimizers`, generator first in both."""

    error: SmoothedCrossEntropy
    players: tuple[Generator, Discriminator]
    optimizers: tuple[torch.optim.Optimizer, torch.optim.Optimizer]
    method: "FedADG"
    rng: torch.Generator
    couples_records: bool = True  # the discriminator steps on the whole batch

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """Return a CE + (1 - a) (1 - D(f, y))^2, (B,)."""
        generator, discriminator = self.players
        features = model.features(batch.images)
        errors = self.error.of(model.head(features), batch.labels)
        with torch.autocast(features.device.type, enabled=False):
            condition = functional.one_hot(batch.labels, model.classes).float() * self.method.label_value
            noise = to_device(torch.rand(len(condition), generator.noise, generator=self.rng), condition.device)
            reference = generator(noise, condition)
            judged = discriminator_loss(discriminator, reference.detach(), features.detach().float(), condition)
            optimizer_step(self.optimizers[1], judged, self.method.game)
            if not self.method.released:
                sought = generator_loss(discriminator, reference, condition, seeks=self.method.generator_seeks)
                optimizer_step(self.optimizers[0], sought, self.method.game)
            fooled: Tensor = (1 - discriminator(features.float(), condition)).square()
        return self.method.alpha * errors + (1 - self.method.alpha) * fooled


def discriminator_loss(discriminator: Discriminator, reference: Tensor, features: Tensor, condition: Tensor) -> Tensor:
    """Return L_advd = -mean(D(reference)^2 + (1 - D(f))^2): least where references are 1 and features 0."""
    on_reference: Tensor = discriminator(reference, condition)
    on_features: Tensor = discriminator(features, condition)
    return -(on_reference.square() + (1 - on_features).square()).mean()


def generator_loss(discriminator: Discriminator, reference: Tensor, condition: Tensor, *, seeks: str) -> Tensor:
    """Return L_advg = mean (1 - D(reference))^2; for seeks "features" mean D(reference)^2."""
    given: Tensor = discriminator(reference, condition)
    return given.square().mean() if seeks == "features" else (1 - given).square().mean()


@dataclass(frozen=True, kw_only=True)
class FedADG(FedAvg):
    """FedADG; `plan` is phase 1 (E0 epochs), `adversarial_epochs` E1, `game` the optimizer of generator and
    discriminator.

    `alpha` weighs cross-entropy in phase 2 (.45 in FedCCRL's code), `label_value` stands for the 1 of a one-hot label.
    `noise` is the generator's input width (None: the features'), `hidden` its hidden width, `projected` the
    projection's."""

    alpha: float = 0.45
    adversarial_epochs: int = 3
    label_smoothing: float = 0.2
    label_value: float = 0.6
    noise: int | None = None
    hidden: int = 4096
    projected: int = 1024
    game: TrainingPlan = field(
        default_factory=lambda: TrainingPlan(learning_rate=7e-4, momentum=0.9, weight_decay=1e-5)
    )
    discriminators: Literal["local", "averaged"] = "local"
    generator_seeks: Literal["reference", "features"] = "reference"
    released: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1 or not 0 <= self.label_smoothing < 1 or self.adversarial_epochs < 0:
            raise UsageError(
                f"fedadg needs alpha in [0, 1], label_smoothing in [0, 1) and adversarial_epochs >= 0; got "
                f"{self.alpha}, {self.label_smoothing} and {self.adversarial_epochs}."
            )
        widths = (self.hidden, self.projected, 1 if self.noise is None else self.noise)
        if min(widths) < 1:
            raise UsageError(f"fedadg needs hidden, projected and noise of at least 1; got {widths}.")

    @property
    def shares(self) -> Literal["never", "once", "every"]:
        """Every round: the global generator comes down before training."""
        return "every"

    @property
    def asks_for_shares(self) -> bool:
        """False: generators go up only with the update."""
        return False

    @property
    def releases(self) -> Sequence[Release]:
        """The model and the generator up, the averaged generator down; likewise the discriminator if averaged."""
        sent: dict[str, type[ModelState]] = {GENERATOR: GeneratorState}
        if self.discriminators == "averaged":
            sent[DISCRIMINATOR] = ModelState
        up = [Release(stage="update", slot=slot, kind=kind) for slot, kind in sent.items()]
        down = [Release(stage="combine", slot=slot, kind=kind) for slot, kind in sent.items()]
        return (*super().releases, *up, *down)

    @property
    def server_needs(self) -> ServerNeeds:
        """The means of models and of generators."""
        return super().server_needs

    def check(self, clients: int) -> None:
        """Raise UsageError for a local method, whose objective would be ignored."""
        super().check(clients)
        if self.local is not None:
            raise UsageError("fedadg trains its own objective; it takes no local method (drop --with).")

    def combine(
        self, shared: Mapping[str, Inbox], *, server: State, clock: Clock, rng: SecretStream
    ) -> tuple[Mapping[str, Inbox], State]:
        """Send the averaged generator of the previous round to every participant."""
        kinds: Mapping[str, type[ModelState]] = {GENERATOR: GeneratorState, DISCRIMINATOR: ModelState}
        states = {slot: _entries_of(slot, server) for slot in kinds}
        handed = {slot: kinds[slot](state=state) for slot, state in states.items() if state}
        return {name: handed for name in shared} if handed else {}, server

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        """The objective at the end of training: phase 2's, or phase 1's if there is no phase 2."""
        error = SmoothedCrossEntropy(self.label_smoothing)
        if not self.adversarial_epochs:
            return error
        players = self.players(model.module(), model=model, inbox=inbox, state=state, rng=rng)
        return self.alignment(players, error=error, rng=rng)

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        """Phase 1, then phase 2, with one optimizer for the classifier; send model and generator."""
        data, state = self.training_set(client, inbox=inbox, state=state, rng=rng)
        network = self.start(client, model=model, state=state)
        optimizer = optimizer_of(network.parameters(), self.plan)
        if self.keep_optimizer:
            remember(optimizer, state)
        error = SmoothedCrossEntropy(self.label_smoothing)
        metrics = client.trainer(
            network, data, error, self.plan, rng, round=clock.round, rounds=clock.rounds, optimizer=optimizer
        )
        players = self.players(network, model=model, inbox=inbox, state=state, rng=rng)
        if self.adversarial_epochs:
            aligned = self.alignment(players, error=error, rng=rng)
            second = replace(self.plan, epochs=self.adversarial_epochs, steps=None)
            more = client.trainer(
                network, data, aligned, second, rng, round=clock.round, rounds=clock.rounds, optimizer=optimizer
            )
            metrics = {"loss": more["loss"], "steps": metrics["steps"] + more["steps"]}
        if self.keep_optimizer:
            state = {**state, **optimizer_memory(optimizer)}
        artifacts, state = self.trained_artifacts(network, players, state=state)
        weight = 1.0 if self.weights == "uniform" else float(len(client.data))
        return Update(artifacts=artifacts, weight=weight, metrics=metrics), state

    def alignment(
        self, players: tuple[Generator, Discriminator], *, error: SmoothedCrossEntropy, rng: torch.Generator
    ) -> Alignment:
        """The objective of phase 2, with fresh optimizers for generator and discriminator."""
        generator, discriminator = (optimizer_of(player.parameters(), self.game) for player in players)
        return Alignment(error=error, players=players, optimizers=(generator, discriminator), method=self, rng=rng)

    def trained_artifacts(
        self, network: Classifier, players: tuple[Generator, Discriminator], *, state: State
    ) -> tuple[Inbox, State]:
        """The model and the generator; the discriminator is stored, or also sent if it is averaged."""
        generator, discriminator = (detached(player) for player in players)
        sent: dict[str, Artifact] = {"model": ModelState(state=detached(network))}
        sent[GENERATOR] = GeneratorState(state=generator)
        if self.discriminators == "averaged":
            return {**sent, DISCRIMINATOR: ModelState(state=discriminator)}, state
        return sent, {**state, **{f"{DISCRIMINATOR}.{name}": value for name, value in discriminator.items()}}

    def players(
        self, network: Classifier, *, model: GlobalModel, inbox: Inbox, state: State, rng: torch.Generator
    ) -> tuple[Generator, Discriminator]:
        """The received generator and the stored or received discriminator; new ones if there are none."""
        width, classes = network.features_width, network.classes
        noise = width if self.noise is None else self.noise
        generator = Generator(noise=noise, classes=classes, hidden=self.hidden, width=width)
        discriminator = Discriminator(width=width, classes=classes, projected=self.projected)
        if GENERATOR in inbox:
            generator.load_state_dict(inbox[GENERATOR].tensors())
        else:
            generator.draw(child(_shared_stream(model), GENERATOR))
        remembered = inbox[DISCRIMINATOR].tensors() if DISCRIMINATOR in inbox else _entries_of(DISCRIMINATOR, state)
        if remembered:
            discriminator.load_state_dict(remembered)
        else:
            discriminator.draw(child(rng if self.discriminators == "local" else _shared_stream(model), DISCRIMINATOR))
        device = model.blueprint.device
        return generator.to(device), discriminator.to(device)

    def aggregate(
        self, updates: Mapping[str, Update], *, scores: Mapping[str, Scores], model: GlobalModel, server: State
    ) -> tuple[GlobalModel, State]:
        """Average the models, and with the same weights the generators."""
        made, server = super().aggregate(updates, scores=scores, model=model, server=server)
        total = sum(update.weight for update in updates.values())
        weights = [update.weight / total for update in updates.values()]
        for slot in (GENERATOR, DISCRIMINATOR) if self.discriminators == "averaged" else (GENERATOR,):
            mean = averaged([update.artifacts[slot].tensors() for update in updates.values()], weights)
            server = {**server, **{f"{slot}.{name}": value for name, value in mean.items()}}
        return made, server


def _shared_stream(model: GlobalModel) -> torch.Generator:
    """The random stream that all receivers of `model` share."""
    return stream(int(model.state.sha256[:15], 16), "world", "fedadg")


def _entries_of(slot: str, memory: State) -> dict[str, Tensor]:
    """The entries "slot.name" of `memory`, by name."""
    prefix = f"{slot}."
    return {name.removeprefix(prefix): value for name, value in memory.items() if name.startswith(prefix)}

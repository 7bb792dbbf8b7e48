"""Sharpness-aware hierarchical aggregation, and cross-evaluation on top of other methods: FedAvg++ and FedAvg+.

Che, Wu, Jin, Xia & Chen, "FedDAG: Federated Domain Adversarial Generation Towards Generalizable Medical Image
Analysis", 2025, https://arxiv.org/abs/2501.13967, section III-C: peers evaluate perturbed models (eq. 5), scores
weigh clients (eq. 6), Algorithm 2 averages each client's model with better ones of its own past. Section IV-C4 puts
the same on other methods: with perturbation ("++") and without ("+", cross-client evaluation-based aggregation).
Extends methods/fedavg.py; methods/feddag.py extends this file.

Shares: the model and, for rho > 0, its perturbed copy, which the server passes on, unaggregated, to every other
client (n (n - 1) models a round, or n c with c `evaluators`); each answers with one mean validation loss per model,
in the sorted order of their owners' names. A client's loss on its own images travels with its update ("own_loss"),
as do the share of coordinates that the perturbation changed and by how much its own validation loss moved.
Differs from the paper: there clients compute the scores and upload them; here the server does, from the losses,
because it passes the models on. The server keeps the history (k models from the clients would be k times the traffic).
With `evaluators` below n - 1, the assignment rotates over the rounds, so that the server can recompute it at
aggregation; the paper does not say how evaluators are chosen. A client without validation images cannot evaluate
models and is refused."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from fdgsec.federation.artifacts import Artifact, ModelState, Scores
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, ServerNeeds, State, Update
from fdgsec.federation.peer_review import (
    KEPT,
    PastModel,
    evaluations,
    histories,
    memory_of,
    recalled,
    score_of,
    weights_of,
    worth_keeping,
)
from fdgsec.federation.release_declarations import Release
from fdgsec.federation.weight_perturbation import (
    PerturbationEffect,
    batch_gradient,
    gradient_of,
    losses_with,
    perturb_weights,
)
from fdgsec.methods.fedavg import FedAvg, averaged
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import TrainingSet
from fdgsec.runtime.errors import ArtifactError, UsageError
from fdgsec.runtime.secret_streams import SecretStream


def within_client(current: PastModel, past: Sequence[PastModel], k: int) -> PastModel:
    """Algorithm 2, lines 3 and 4: the mean of a client's model and its latest `k` better ones, and of their scores.

    Returns the model itself if no past one is better."""
    chosen = [current, *(past[place] for place in recalled([model.score for model in past], current.score, k))]
    if len(chosen) == 1:
        return current
    share = 1 / len(chosen)
    state = averaged([model.state for model in chosen], [share] * len(chosen))
    return PastModel(round=current.round, score=share * sum(model.score for model in chosen), state=state)


@dataclass(frozen=True, kw_only=True)
class SharpnessAware(FedAvg):
    """FedAvg whose clients evaluate each other's perturbed models before aggregation (section III-C): FedAvg++.

    `rho` is the length of the perturbation (1e-7 is the paper's, almost nothing in float32; 0.05 is SAM's; 0 gives
    plain cross-evaluation, FedAvg+), `beta` the exponent of eq. 6, `k` the number of better past models in a client's
    average. `evaluators` is the number of other clients that evaluate a model (None: all). `include_self` adds the
    owner's loss, as in eq. 5, though the text says "other clients". With beta = 0 and k = 0 nothing depends on scores:
    there are no reviews, and the mean is uniform (the paper's "w/o SHA"). Eq. 6 ignores update weights (`weights`)."""

    own_weights: ClassVar[bool] = True
    rho: float = 1e-7
    beta: float = 0.3
    k: int = 4
    evaluators: int | None = None
    include_self: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.rho <= 1 or self.beta < 0 or self.k < 0:
            raise UsageError(
                f"sharpness-aware aggregation needs rho in [0, 1] and beta and k at least 0; got rho = {self.rho}, "
                f"beta = {self.beta}, k = {self.k}."
            )

    @property
    def needs_scores(self) -> bool:
        """Whether anything depends on scores."""
        return self.beta > 0 or self.k > 0

    @property
    def reviews(self) -> Literal["none", "before", "after"]:
        """Before aggregation, if anything depends on scores."""
        return "before" if self.needs_scores else "none"

    @property
    def releases(self) -> Sequence[Release]:
        """The model; if it is evaluated, also its perturbed copy, the models sent to peers, and their losses."""
        return (*super().releases, *self.cross_evaluation_releases)

    @property
    def cross_evaluation_releases(self) -> Sequence[Release]:
        """The releases that cross-evaluation adds."""
        if not self.needs_scores:
            return ()
        perturbed = () if self.rho == 0 else (Release(stage="update", slot="perturbed", kind=ModelState),)
        shown = Release(stage="exhibit", slot="client:*", kind=ModelState)
        return (*perturbed, shown, Release(stage="review", slot="scores", kind=Scores))

    @property
    def server_needs(self) -> ServerNeeds:
        """The owner of each model."""
        return ServerNeeds(uploads="named", because="models are judged by other clients one by one")

    def check(self, clients: int) -> None:
        """Raise UsageError for too few evaluators per model, or for `select="validation"`."""
        super().check(clients)
        if self.select != "last":
            raise UsageError(
                'clients review once a round: with peers judging models, select = "validation" has no place; '
                'use select = "last" (--set method.select=last).'
            )
        if clients == 1 and not self.include_self:
            raise UsageError("a single client has no peers to judge its model; set include_self, or use more clients.")
        if self.evaluators is not None and not 1 <= self.evaluators <= max(clients - 1, 1):
            raise UsageError(
                f"evaluators = {self.evaluators}, but each of {clients} clients has {clients - 1} others; it must lie "
                f"in 1..{max(clients - 1, 1)} (--set method.evaluators={max(clients - 1, 1)})."
            )

    def fitting(self, clients: int) -> Self:
        """At most as many evaluators as there are other clients; a single client evaluates itself."""
        evaluators = None if self.evaluators is None else max(1, min(self.evaluators, clients - 1))
        return replace(self, evaluators=evaluators, include_self=self.include_self or clients == 1)

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        """Train, then evaluate the perturbed model locally. Raises UsageError without validation images."""
        if self.needs_scores:
            self._validation_images(client, state)
        update, state = self.train(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        if not self.needs_scores:
            return update, state
        return replace(
            update, metrics={**update.metrics, **self._perturbation_metrics(client, model, update, state)}
        ), state

    def train(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        """FedAvg's local training; subclasses override it."""
        return super().fit(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)

    def results(
        self,
        client: Client,
        network: Classifier,
        data: TrainingSet,
        *,
        inbox: Inbox,
        state: State,
        clock: Clock,
        rng: torch.Generator,
    ) -> tuple[Inbox, State]:
        """The model, and its copy perturbed along the last batch's gradient."""
        sent, state = super().results(client, network, data, inbox=inbox, state=state, clock=clock, rng=rng)
        return {**sent, **self.perturbed_copy(sent["model"].tensors(), gradient_of(network))}, state

    def perturbed_copy(self, state: Mapping[str, Tensor], gradient: Mapping[str, Tensor]) -> Inbox:
        """The perturbed copy for peers to evaluate; empty if rho = 0 or without reviews."""
        if not self.needs_scores or self.rho == 0:
            return {}
        return {"perturbed": ModelState(state=perturb_weights(state, gradient, self.rho))}

    def _perturbation_metrics(
        self, client: Client, model: GlobalModel, update: Update, state: State
    ) -> dict[str, float]:
        """Metrics: the owner's loss, and the effect of the perturbation on the weights and on that loss."""
        if not self.include_self and "perturbed" not in update.artifacts:
            return {}
        data, network = self._validation_images(client, state), model.module()
        base = model.state.state
        sent, shown = update.artifacts["model"].tensors(), _evaluated_model(update).tensors()
        new = losses_with(network, {**base, **shown}, data)
        own = {"own_loss": float(new.mean())} if self.include_self else {}
        if "perturbed" not in update.artifacts:
            return own
        effect = PerturbationEffect.between(sent, shown, old=losses_with(network, {**base, **sent}, data), new=new)
        moved = {"loss_moved": effect.mean_move, "loss_moved_most": effect.largest_move}
        return {**own, "perturbed_share": effect.share, **moved}

    def _validation_images(self, client: Client, state: State) -> TrainingSet:
        data = self.validation_set(client, state)
        if data is None or not len(data):
            raise UsageError(
                f"{client.name} has no validation images to judge models on; use fewer clients or more data."
            )
        return data

    def exhibits(
        self, updates: Mapping[str, Update], *, model: GlobalModel, server: State, rng: SecretStream
    ) -> Mapping[str, Inbox]:
        """Send each perturbed model to its evaluators, under its owner's name."""
        judged = evaluations(updates, self.evaluators, _current_round(server))
        return {
            reviewer: {peer: _evaluated_model(updates[peer]) for peer in peers}
            for reviewer, peers in judged.items()
            if peers
        }

    def review(self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, rng: torch.Generator) -> Scores:
        """E[L_cls] of each received model on the client's validation images (eq. 5), in the order of the sorted names.

        Entries that a method does not send come from the global model. Raises UsageError without images."""
        data, network = self._validation_images(client, state), model.module()
        states = [{**model.state.state, **inbox[peer].tensors()} for peer in sorted(inbox)]
        return Scores(values=torch.stack([losses_with(network, peer, data).mean() for peer in states]))

    def aggregate(
        self, updates: Mapping[str, Update], *, scores: Mapping[str, Scores], model: GlobalModel, server: State
    ) -> tuple[GlobalModel, State]:
        """Algorithm 2: score models, average each with better ones of its client's past, then average across clients.

        Raises ArtifactError for a review with a wrong number of losses."""
        round, history = _current_round(server), histories(server)
        found = self._scores(updates, scores, round) if self.needs_scores else dict.fromkeys(updates, 1.0)
        within: dict[str, PastModel] = {}
        for name, update in updates.items():
            past = history.get(name, [])
            current = PastModel(round=round, score=found[name], state=update.artifacts["model"].tensors())
            within[name] = within_client(current, past, self.k)
            known = [*past, current]
            history[name] = [known[place] for place in worth_keeping([one.score for one in known], self.k)]
        weights = dict(zip(within, weights_of([one.score for one in within.values()], self.beta), strict=True))
        weighed = {
            name: replace(
                update,
                artifacts={**update.artifacts, "model": ModelState(state=within[name].state)},
                weight=weights[name],
            )
            for name, update in updates.items()
        }
        rest: State = {name: value for name, value in server.items() if not name.startswith(KEPT)}
        model, rest = self.merge(weighed, model=model, server=rest)
        numbers = {f"weight/{name}": weight for name, weight in weights.items()}
        numbers |= {f"score/{name}": one.score for name, one in within.items()}
        reported = {KEPT + name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}
        return model, {**rest, **memory_of(history), **reported, KEPT + "round": torch.tensor(round + 1)}

    def merge(self, updates: Mapping[str, Update], *, model: GlobalModel, server: State) -> tuple[GlobalModel, State]:
        """theta = sum_i w_i theta_i (eq. 6): FedAvg's mean, with the weights of `updates`."""
        return super().aggregate(updates, scores={}, model=model, server=server)

    def _scores(self, updates: Mapping[str, Update], scores: Mapping[str, Scores], round: int) -> dict[str, float]:
        """Group the losses of reviews by model, and score each model (eq. 5)."""
        losses: dict[str, list[float]] = {name: [] for name in updates}
        for reviewer, peers in evaluations(updates, self.evaluators, round).items():
            if self.include_self:
                losses[reviewer].append(_checked_loss(reviewer, updates[reviewer].metrics.get("own_loss")))
            given = scores[reviewer].values.flatten().tolist() if peers else []
            if len(given) != len(peers):
                raise ArtifactError(
                    f"{reviewer} was shown {len(peers)} models, but its review has {len(given)} losses."
                )
            for peer, loss in zip(peers, given, strict=True):
                losses[peer].append(_checked_loss(reviewer, loss))
        alone = [name for name, found in losses.items() if not found]
        if alone:
            raise UsageError(
                f"{alone[0]} took part alone and nobody judged its model; set include_self, or raise the participation."
            )
        return {name: score_of(found) for name, found in losses.items()}


def _evaluated_model(update: Update) -> Artifact:
    """The model that peers evaluate: the perturbed copy, or the model itself if there is none."""
    return update.artifacts.get("perturbed", update.artifacts["model"])


def _current_round(server: State) -> int:
    return int(server.get(KEPT + "round", torch.tensor(0)))


def _checked_loss(sender: str, loss: float | None) -> float:
    if loss is None or loss < 0:
        raise ArtifactError(f"{sender} must report mean validation losses of at least 0; got {loss}.")
    return loss


@dataclass(frozen=True, kw_only=True)
class CrossEvaluation(SharpnessAware):
    """Sharpness-aware aggregation on top of another method: with `base` CCST this is CCST++, at rho = 0 CCST+.

    `base` shares, combines, trains and remodels unchanged; its aggregation uses the weights of eq. 6 in place of its
    own. Without a `base` this is FedAvg++ (or MixStyle++ and the like, by `local`). With a `base`, options of training
    (`plan`, `weights`, `keep_optimizer`, `local`) must be set there. The last gradient of the base's training is not
    accessible; the perturbation therefore follows the gradient of its objective on one new batch at the trained
    weights, where the paper takes the last step's. This costs one more step per client and round."""

    base: FedAvg | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        plain = FedAvg()
        own = [spec.name for spec in fields(FedAvg) if getattr(self, spec.name) != getattr(plain, spec.name)]
        if self.base is not None and own:
            raise UsageError(f"cross-evaluation trains by its base; give {', '.join(own)} to the base instead.")

    @property
    def shares(self) -> Literal["never", "once", "every"]:
        """As the base."""
        return "never" if self.base is None else self.base.shares

    @property
    def asks_for_shares(self) -> bool:
        """As the base."""
        return self.base is not None and self.base.asks_for_shares

    @property
    def releases(self) -> Sequence[Release]:
        """The releases of the base, and those of cross-evaluation."""
        return super().releases if self.base is None else (*self.base.releases, *self.cross_evaluation_releases)

    @property
    def needs_training(self) -> bool:
        """As the base; models are evaluated in any case only after they have been trained."""
        return super().needs_training if self.base is None else self.base.needs_training

    @property
    def server_needs(self) -> ServerNeeds:
        """The owner of each model."""
        return super().server_needs

    def check(self, clients: int) -> None:
        """Check the base too; it must have no reviews and no rule of its own for the clients' weights."""
        super().check(clients)
        if self.base is not None:
            self.base.check(clients)
            if self.base.reviews == "none" and getattr(self.base, "own_weights", False):
                raise UsageError(
                    f"cross-evaluation weighs clients by their scores, but its base {type(self.base).__name__} weighs "
                    "clients by a rule of its own; use another base."
                )
            if self.base.reviews != "none":
                raise UsageError(
                    f"cross-evaluation takes the one review of a round, but its base {type(self.base).__name__} asks "
                    'for one too; use another base, or its select = "last" where that is what asks.'
                )

    def fitting(self, clients: int) -> Self:
        """The same method with a fitting base."""
        fitted = super().fitting(clients)
        return fitted if self.base is None else replace(fitted, base=self.base.fitting(clients))

    def releasing_all(self) -> Self | None:
        """The same method on the base's variant, if the base has one."""
        base = None if self.base is None else self.base.releasing_all()
        return None if base is None else replace(self, base=base)

    def remodel(self, network: Classifier, rng: torch.Generator) -> Classifier:
        """The base's network."""
        return super().remodel(network, rng) if self.base is None else self.base.remodel(network, rng)

    def kept_entries(self, network: Classifier) -> frozenset[str]:
        """The entries that the base keeps."""
        return super().kept_entries(network) if self.base is None else self.base.kept_entries(network)

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        """Share what the base shares."""
        if self.base is None:
            return super().share(client, model=model, state=state, clock=clock, rng=rng)
        return self.base.share(client, model=model, state=state, clock=clock, rng=rng)

    def combine(
        self, shared: Mapping[str, Inbox], *, server: State, clock: Clock, rng: SecretStream
    ) -> tuple[Mapping[str, Inbox], State]:
        """Combine as the base does."""
        if self.base is None:
            return super().combine(shared, server=server, clock=clock, rng=rng)
        return self.base.combine(shared, server=server, clock=clock, rng=rng)

    def validation_set(self, client: Client, state: State) -> TrainingSet | None:
        """The base's validation images."""
        return super().validation_set(client, state) if self.base is None else self.base.validation_set(client, state)

    def train(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        """Train as the base does, then perturb the trained model."""
        if self.base is None:
            return super().train(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        update, state = self.base.fit(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        if not self.needs_scores or self.rho == 0:
            return update, state
        sent = update.artifacts["model"].tensors()
        made = model.with_state({**model.state.state, **sent})
        data, _ = self.base.training_set(client, inbox=inbox, state=state, rng=rng)
        objective = self.base.objective(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        network = self.base.start(client, model=made, state=state)
        gradient = batch_gradient(network, data, objective, self.base.plan, rng)
        return replace(update, artifacts={**update.artifacts, **self.perturbed_copy(sent, gradient)}), state

    def merge(self, updates: Mapping[str, Update], *, model: GlobalModel, server: State) -> tuple[GlobalModel, State]:
        """The base's aggregation, with the weights of `updates`."""
        if self.base is None:
            return super().merge(updates, model=model, server=server)
        return self.base.aggregate(updates, scores={}, model=model, server=server)

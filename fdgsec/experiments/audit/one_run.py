"""The audit of private training in one run with randomly included canaries: Steinke, Nasr & Jagielski (2023).

Where every step is Gaussian and takes all records, the same guesses also bound mu of the whole trade-off curve
(Mahloujifar, Melis & Chaudhuri 2025; fdgsec.privacy.gaussian_one_run_bounds). That bound then decides.

*Gradient* canaries are the strongest known (Nasr et al., USENIX Security 2023): records whose gradients are orthogonal
and far above the clipping bound, each in weights of its own (fdgsec.experiments.audit.gradient_canaries). The trainer
is the defense's own: its sampling, clipping, noise, divisor and accounting are tested, step by step. What each tensor
of the network tells counts the more, the less noise it has in a run without canaries.
*Mislabeled* canaries are a client's images with wrong labels, on which the run's network trains. The observer sees the
decrease of each loss.

A reference run has no canaries: noise that is drawn identically in both runs cancels in their difference. Guesses are
made from the run and from the difference, each with half the allowed error. Half of the guesses are "in" and half
"out"; if steps subsample, all are "in"."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from fdgsec.experiments.audit.gradient_canaries import lit_pixels, moves, networks_of
from fdgsec.experiments.audit.neighboring_clients import Site
from fdgsec.experiments.audit.small_networks import one_layer
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.defense import PrivateTrainer, Uses
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.method import Client, Clock, Reply, StepRequest
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import Batch, TrainingSet
from fdgsec.nn.training.training_loop import logits
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.privacy.accounting import Use
from fdgsec.privacy.epsilon_bounds import AuditResult
from fdgsec.privacy.gaussian_one_run_bounds import gaussian_ceiling, one_run_gaussian_lower_bound
from fdgsec.privacy.ledger import Guarantee
from fdgsec.privacy.one_run_bounds import ceiling, one_run_lower_bound, right_guesses
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream

REPLACED = "training audits test guarantees under zero-out or add-remove; this guarantee is under replace-one."
LEAST_VARIANCE = 1e-12
"""Of a tensor's noise, as a part of the largest one: smaller ones count as much as this one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Observed:
    """The observations of one run: per step, the evidence of T tensors for each canary (k, T, m), rates and noise.

    In a step with sampling rate q, an included canary adds 1 / sqrt(T) in each with probability q; the noise has the
    standard deviation `spreads` (k,)."""

    evidence: Tensor
    rates: Tensor
    spreads: Tensor
    uses: Sequence[Uses]

    def shares(self) -> Tensor:
        """How much each tensor (T,) is to count, by the noise of this run, which has no canaries: by inverse variances.

        Of their sum so weighted, an included canary adds 1."""
        inverse = inverse_variances(self.evidence.square().mean((0, 2)))
        return math.sqrt(len(inverse)) * inverse / inverse.sum()

    def scores(self, shares: Tensor, beside: "Observed | None" = None) -> Tensor:
        """Each canary's summed log likelihood ratio, (m,), of this run or of its difference from the run `beside`.

        A broken trainer may take fewer steps in one of them; then the others are left out."""
        seen, spreads, rates = self.evidence, self.spreads, self.rates.unsqueeze(1)
        if beside is not None:
            steps = min(len(seen), len(beside.evidence))
            seen, rates = seen[:steps] - beside.evidence[:steps], rates[:steps]
            spreads = spreads[:steps] * math.sqrt(2)
        seen = torch.einsum("ktm,t->km", seen, shares)
        drawn = rates.log() + (seen - 0.5) / spreads.square().unsqueeze(1)
        return torch.logaddexp(torch.log1p(-rates), drawn).sum(0)


def inverse_variances(variances: Tensor) -> Tensor:
    """One over the variances of tensors' noise (T,), of which those next to none count as LEAST_VARIANCE."""
    least = max(LEAST_VARIANCE * float(variances.max()), torch.finfo(variances.dtype).tiny)
    return 1 / variances.clamp_min(least)


@dataclass(frozen=True, kw_only=True)
class OneRunBounds:
    """The bound of one audit at (epsilon, delta), and that of the Gaussian trade-off curve where the claim is one."""

    result: AuditResult
    gaussian: AuditResult | None = None


class Canaries(Protocol):
    """Records of which a random subset is included, and the observations of a run with that subset."""

    @property
    def words(self) -> str:
        """A description of the canaries."""
        ...

    def __len__(self) -> int: ...

    def observed(self, included: Tensor, defense_stack: DefenseStack) -> Observed:
        """Train with `defense_stack` on the `included` canaries, (m,) bool; the others contribute nothing."""
        ...


def audited(
    canaries: Canaries,
    defense_stack: DefenseStack,
    guarantee: Guarantee,
    *,
    guesses: int,
    confidence: float,
    seed: int,
    repeat: int,
) -> OneRunBounds:
    """Run with and without canaries, guess, and return the better bounds. Raises UsageError if they cannot apply."""
    if guarantee.relation == "replace-one":
        raise UsageError(REPLACED)
    if guesses > len(canaries):
        raise UsageError(f"--guesses is {guesses}, more than the {len(canaries)} canaries; lower it.")
    assert guarantee.epsilon is not None
    coins = torch.rand(len(canaries), generator=stream(seed, "attack", "audit coins", defense_stack.name, repeat)) < 0.5
    run = canaries.observed(coins, replace(defense_stack, name=f"{defense_stack.name}/{repeat}/run"))
    beside = canaries.observed(
        torch.zeros_like(coins), replace(defense_stack, name=f"{defense_stack.name}/{repeat}/reference")
    )
    sampled = bool((run.rates < 1).any())
    error = (1 - confidence) / 2
    shares = beside.shares()
    found = (run.scores(shares), run.scores(shares, beside))
    right = max(_right(scores, coins, guesses, sampled=sampled) for scores in found)
    m, delta = len(canaries), guarantee.delta
    result = AuditResult(
        lower_bound=one_run_lower_bound(m, guesses, right, delta, 1 - error),
        ceiling=ceiling(m, guesses, delta, 1 - error), confidence=confidence, repeats=1, auditor="one-run",
        claimed_epsilon=guarantee.epsilon, delta=delta, unit=guarantee.unit,
    )  # fmt: skip
    if not smooth([use for uses in run.uses for use in uses or ()]):
        return OneRunBounds(result=result)
    bound = one_run_gaussian_lower_bound(m, guesses, right, delta, 1 - error)
    most = gaussian_ceiling(m, guesses, delta, 1 - error)
    gaussian = replace(result, lower_bound=bound, ceiling=most, auditor="one-run gaussian")
    return OneRunBounds(result=result, gaussian=gaussian)


def smooth(uses: Sequence[Use]) -> bool:
    """Whether the claim is a Gaussian trade-off curve: all noise is Gaussian, and every release uses all records."""
    return bool(uses) and all(use.mechanism == "gaussian" and use.sampling_rate == 1 for use in uses)


def _right(scores: Tensor, coins: Tensor, guesses: int, *, sampled: bool) -> int:
    """Count correct guesses; with subsampling, an included canary may never be drawn, so no guess is "out"."""
    if not sampled:
        return right_guesses(scores, coins, guesses=guesses)
    return int(coins[scores.argsort(descending=True, stable=True)][:guesses].sum())


def trainings(
    site: Site, defense_stack: DefenseStack, client: Client, train: Callable[[Client, Clock], None]
) -> Sequence[PrivateTrainer]:
    """Run `train` with the client's private trainer of every round; return the trainers."""
    used = []
    for clock in site.clocks:
        with_trainer, trainer = defense_stack.with_trainer(client, site.method, clock)
        if trainer is None:
            raise UsageError("this audit needs a defense that trains.")
        train(with_trainer, clock)
        used.append(trainer)
    return used


def costs(
    site: Site, defense_stack: DefenseStack, client: Client, trainers: Sequence[PrivateTrainer], sent: nn.Module
) -> list[Uses]:
    """The privacy cost that the defense states for each round's model."""
    found = []
    for clock, trainer in zip(site.clocks, trainers, strict=True):
        request = StepRequest(clock=clock, model=site.model, inbox={})
        sender = defense_stack.sender(client, site.method, request, {}, trainer)
        state = {name: value.detach().clone() for name, value in sent.state_dict().items()}
        reply = defense_stack.sent("fit", Reply(artifacts={"model": ModelState(state=state)}), sender)
        found.append(reply.uses["model"])
    return found


def plan_of(site: Site) -> TrainingPlan:
    """The training plan of the method's clients. Raises UsageError if there is none."""
    if site.method.client_plan is None:
        raise UsageError(f"an audit of training needs a plan; {type(site.method).__name__} has none.")
    return site.method.client_plan


def canary_plan(site: Site) -> TrainingPlan:
    """The clients' plan with plain steps of rate 1, so that updates are the noisy means; small networks have no parts
    to freeze."""
    return replace(
        plan_of(site), optimizer="sgd", learning_rate=1.0, momentum=0.0, weight_decay=0.0, schedule="constant",
        crop=None, translate=0.0, flip=0.0, clip_norm=None, freeze_norm=False, frozen="none",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class GradientCanaries:
    """`count` images with one lit pixel each; an excluded one is black."""

    site: Site
    count: int

    @property
    def words(self) -> str:
        """A description, with the largest number of networks that step jointly."""
        together = max(networks_of(self.site.method, clock) for clock in self.site.clocks)
        where = "a small network" if together == 1 else f"each of {together} small networks that step together"
        return f"canaries of orthogonal gradients far longer than the bound, in all tensors of {where}, every step seen"

    def __len__(self) -> int:
        return self.count

    def observed(self, included: Tensor, defense_stack: DefenseStack) -> Observed:
        """Read the noisy sum of every step from the weights, in units of the bound."""
        side = math.ceil(math.sqrt(self.count / 3))
        client = Client(name=self.site.client.name, data=lit_pixels(self.count, side))
        images = client.data.pixels() * included.view(-1, 1, 1, 1)
        given = TrainingSet(images=images, labels=client.data.labels)
        plan = canary_plan(self.site)
        seen: list[list[Tensor]] = []

        def train(with_trainer: Client, clock: Clock) -> None:
            sign = (-1.0) ** len(seen)  # alternates between rounds, as in fdgsec.experiments.audit.neighboring_clients
            seen.append(moves(with_trainer, self.site.method, given, plan, clock=clock, sign=sign, seed=self.site.seed))

        trainers = trainings(self.site, defense_stack, client, train)
        evidence, rates, spreads = [], [], []
        for trainer, moved in zip(trainers, seen, strict=True):
            use = _only(trainer.uses)
            bound = _bound(use)
            expected = use.sampling_rate * self.count
            evidence += [one.double()[:, : self.count] * expected / bound for one in moved]
            rates += [use.sampling_rate] * len(moved)
            spreads += [max(use.noise / bound, 1e-9)] * len(moved)
        sent = one_layer(3 * side * side)  # only its cost is used
        return Observed(
            evidence=torch.stack(evidence), rates=torch.tensor(rates, dtype=torch.float64),
            spreads=torch.tensor(spreads, dtype=torch.float64),
            uses=costs(self.site, defense_stack, client, trainers, sent),
        )  # fmt: skip


def _bound(use: Use) -> float:
    """The distance between neighbors of whom one lacks an image; canaries that are left out are black."""
    for relation in ("zero-out", "add-remove"):
        if relation in use.sensitivity:
            return use.sensitivity[relation]
    raise UsageError(REPLACED)


def _only(uses: Sequence[Use]) -> Use:
    if len(uses) != 1:
        raise UsageError(f"an audit of training reads one use per call; this trainer states {len(uses)}.")
    return uses[0]


@dataclass(frozen=True, kw_only=True, eq=False)
class Included:
    """Cross-entropy of the included records, (n,) bool by position; the loss of the others is 0."""

    included: Tensor
    couples_records: bool = False

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        """The losses, (B,)."""
        losses = functional.cross_entropy(model(batch.images).float(), batch.labels, reduction="none")
        return losses * self.included[batch.records].to(losses)


@dataclass(frozen=True, kw_only=True, eq=False)
class MislabelledCanaries:
    """The client's images with wrong labels; the evidence is the decrease of each loss."""

    site: Site
    words: str = "images of the client with wrong labels, the last model seen"

    def __len__(self) -> int:
        return len(self.site.client.data)

    def observed(self, included: Tensor, defense_stack: DefenseStack) -> Observed:
        """Train the run's network, and compare the losses before and after."""
        site, data = self.site, self.site.client.data
        if site.model is None:
            raise UsageError("mislabeled canaries need a network to train.")
        classes = len(data.class_names)
        shift = torch.randint(1, classes, (len(data),), generator=stream(site.seed, "attack", "audit labels"))
        given = TrainingSet(images=data.pixels(), labels=(data.labels + shift) % classes)
        model, plan = site.model.module(), plan_of(site)
        before = _losses(model, given)

        def train(with_trainer: Client, clock: Clock) -> None:
            with_trainer.trainer(
                model, given, Included(included=included), plan, stream(site.seed, "world", "audit", clock.round),
                round=clock.round, rounds=clock.rounds,
            )  # fmt: skip

        trainers = trainings(site, defense_stack, site.client, train)
        one = torch.ones(1, dtype=torch.float64)
        return Observed(
            evidence=(before - _losses(model, given)).view(1, 1, -1), rates=one, spreads=one,
            uses=costs(site, defense_stack, site.client, trainers, model),
        )  # fmt: skip


def _losses(model: Classifier, given: TrainingSet) -> Tensor:
    found = functional.cross_entropy(logits(model, given.images), given.labels, reduction="none").double()
    model.train()
    return found

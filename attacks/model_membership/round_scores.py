"""Membership tests of a client's updates of all rounds together, with the other clients' updates as the null (FedMIA).

Zhu et al., CVPR 2025, arXiv:2402.06289: clients hold disjoint images, so the others' updates of the same round, which
start from the same model, show how an update measures on a candidate that it was not trained on. In every round the
victim's measure is tested, one-sided, against a Gaussian of theirs, and the rounds are averaged. No reference
federation is needed. The measures are the two of the paper, how well the updated model predicts the candidate and how
well the update agrees with the candidate's gradient. Differs from the authors' code
(github.com/Liar-Mask/FedMIA, mia_attack_auto.py): z-scores are averaged, and not their normal distribution function,
which rounds to 1; few clients share one variance over all candidates; and the first measure is phi in place of the
margin between the largest two logits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.attacks.model_membership.update_regression import Step
from fdgsec.attacks.statistics.lira_rmia import References, Variance, lira_offline, log_confidence, scaled_logit
from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.wire import ANONYMOUS, CLIENTS, SERVER
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.training_loop import logits
from fdgsec.threats.adversary import View

Round = TypeVar("Round")

MIN_CLIENTS_PER_EXAMPLE = 64
"""Minimum number of other clients for a variance per candidate, as for reference models (Carlini et al. 2022)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundModels:
    """One round of a client: the model that it was sent (None where unseen), its update, and the other clients'."""

    sent: ModelState | None
    own: ModelState
    others: tuple[ModelState, ...]


def round_models(view: View, victim: str) -> list[RoundModels]:
    """The rounds, in order, of which the updates of `victim` and of another client are in the view."""
    sent, updates = _exchanged(view, victim)
    return [
        RoundModels(
            sent=sent.get(number), own=found[victim],
            others=tuple(state for sender, state in found.items() if sender != victim),
        )
        for number, found in sorted(updates.items())
        if victim in found and len(found) > 1
    ]  # fmt: skip


def last_update(view: View, victim: str) -> ModelState | None:
    """What `victim` returned last of the model, in one message or several; None where that was not seen."""
    _, updates = _exchanged(view, victim)
    return next((found[victim] for _, found in sorted(updates.items(), reverse=True) if victim in found), None)


def client_steps(view: View, victim: str) -> list[Step]:
    """The rounds, in order, of which the model that `victim` was sent and the one it returned are in the view.

    What it kept of its model stays as it was sent."""
    sent, updates = _exchanged(view, victim)
    return [
        _completed(sent[number], found[victim])
        for number, found in sorted(updates.items())
        if victim in found and number in sent
    ]


def _completed(sent: ModelState, returned: ModelState) -> Step:
    kept = frozenset(sent.state.keys() - returned.state.keys())
    after = ModelState(state={**sent.state, **returned.state}) if kept else returned
    return Step(before=sent, after=after, kept=kept)


def global_steps(view: View, victim: str) -> list[Step]:
    """The global models of one round and the next, in order, where both were sent to somebody in the view.

    In place of a next one that was not sent, the mean over clients that the server saw instead of their updates. Where
    the round's updates are in the view, `victim` must have sent one."""
    models: dict[int, ModelState] = {}
    senders: dict[int, set[str]] = {}
    for message in view.messages:
        if type(message.artifact) is not ModelState:
            continue
        if message.sender == SERVER and message.stage == "model":
            models.setdefault(message.round, message.artifact)
        elif message.receiver == SERVER:
            senders.setdefault(message.round, set()).add(message.sender)
    _, updates = _exchanged(view, victim)
    steps = list[Step]()
    for number, before in sorted(models.items()):
        sent = senders.get(number, {victim})
        if victim not in sent and all(map(_is_named, sent)):
            continue
        after, mean = models.get(number + 1), updates.get(number, {}).get(CLIENTS)
        if after is not None and before.state.keys() == after.state.keys():
            steps.append(Step(before=before, after=after))
        elif after is None and mean is not None:
            steps.append(_completed(before, mean))
    return steps


def senders_of_models(view: View) -> set[str]:
    """The names of all clients whose updates are in the view."""
    found = {
        message.sender
        for message in view.messages
        if message.receiver == SERVER and type(message.artifact) is ModelState
    }
    return set(filter(_is_named, found))


def _is_named(sender: str) -> bool:
    """Whether a sender is a client by name, and no sum over clients or anonymous one."""
    return sender != CLIENTS and not sender.startswith(ANONYMOUS)


def _exchanged(view: View, victim: str) -> tuple[dict[int, ModelState], dict[int, dict[str, ModelState]]]:
    """By round, the model that `victim` was sent, and all clients' updates, by sender.

    An update is what a sender returned of the entries of that model, in one message or several; of a client that was
    seen to receive none, it is its last model and those of others with the same entries."""
    states = [(message, message.artifact) for message in view.messages if type(message.artifact) is ModelState]
    sent = {
        message.round: state
        for message, state in states
        if (message.sender, message.receiver, message.stage) == (SERVER, victim, "model")
    }
    last = view.sent(victim, ModelState)
    whole = {name for state in sent.values() for name in state.state} or (set() if last is None else set(last.state))
    updates: dict[int, dict[str, ModelState]] = {}
    for message, state in states:
        if message.receiver == SERVER and state.state.keys() <= whole:
            found = updates.setdefault(message.round, {})
            known = found.get(message.sender)
            found[message.sender] = state if known is None else ModelState(state={**state.state, **known.state})
    return sent, updates


def evenly_spaced(rounds: Sequence[Round], count: int) -> list[Round]:
    """At most `count` of the rounds, the last one among them and, of several, the first: a model that has not learned
    yet has the largest gradients."""
    if len(rounds) <= count:
        return list(rounds)
    if count == 1:
        return [rounds[-1]]
    return [rounds[step * (len(rounds) - 1) // (count - 1)] for step in range(count)]


def against_other_clients(own: Tensor, others: Tensor) -> Tensor:
    """Standardize one round's measures of the victim, (N,), by those of the other clients, (clients, N): (N,) float64.

    z = (own - mean of the others) / their standard deviation, which all candidates share where the clients are fewer
    than MIN_CLIENTS_PER_EXAMPLE. One other client has no spread: then by that of the difference over the candidates.
    Zeros where all agree."""
    if len(others) == 1:
        gap = (own - others[0]).to(torch.float64)
        spread = gap.std() if len(gap) > 1 else gap.new_zeros(())
        return gap / spread if float(spread) > 0 else gap
    if bool((others == others[0]).all()):
        return (own - others[0]).to(torch.float64)
    variance: Variance = "per-example" if len(others) >= MIN_CLIENTS_PER_EXAMPLE else "global"
    null = References(models=len(others), values=others, members=torch.zeros(others.shape, dtype=torch.bool))
    return lira_offline(own, null, variance=variance)


def update_alignments(sent: Classifier, updates: Sequence[Classifier], images: DomainDataset) -> Tensor:
    """The cosine of each image's direction of descent at the model `sent` with each update, (updates, N) float64.

    Over all parameters that some update moved; an update is the returned model less the sent one. All models are in
    evaluation mode, so that an image's gradient depends on no other image. A zero gradient or update has cosine 0."""
    returned = [dict(update.named_parameters()) for update in updates]
    named = {
        name: value
        for name, value in sent.named_parameters()
        if any(not torch.equal(one[name], value) for one in returned)
    }
    if not named:
        return torch.zeros(len(updates), len(images), dtype=torch.float64)
    for name, value in sent.named_parameters():
        value.requires_grad_(name in named)
    parameters, device = list(named.values()), next(iter(named.values())).device
    moved = torch.stack([_difference(one, named) for one in returned])
    moved = functional.normalize(moved, dim=1)
    sent.eval()
    found = []
    for image, label in zip(images.pixels().split(1), images.labels.split(1), strict=True):
        loss = functional.cross_entropy(sent(as_float(image.to(device))).float(), label.to(device))
        parts = torch.autograd.grad(loss, parameters, materialize_grads=True)
        slope = functional.normalize(torch.cat([part.flatten() for part in parts]), dim=0)
        found.append(-(moved @ slope).cpu().to(torch.float64))
    return torch.stack(found, dim=1)


def _difference(updated: dict[str, torch.nn.Parameter], sent: dict[str, torch.nn.Parameter]) -> Tensor:
    return torch.cat([(updated[name].detach() - value.detach()).flatten() for name, value in sent.items()])


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundScores:
    """Scores of candidates (N,), larger means member, and the number of rounds that they were averaged over."""

    scores: Tensor
    rounds: int


def score_rounds(
    rounds: Sequence[RoundModels],
    images: DomainDataset,
    network: Callable[[Mapping[str, Tensor]], Classifier],
    *,
    gradient_rounds: int,
) -> dict[str, RoundScores]:
    """Score labeled images by the updates of all `rounds`, by test; `network` builds a model from its state.

    "fedmia loss" measures phi of the updated models. "fedmia gradient" measures `update_alignments`, in at most
    `gradient_rounds` of those whose sent model was seen. "loss" is the mean log-confidence of the victim's models of
    the same rounds, without a null; left out for one round, whose loss needs no mean."""
    found: dict[str, RoundScores] = {}
    plain, tested = list[Tensor](), list[Tensor]()
    for models in rounds:
        answers = [logits(network(state.state), images.pixels()) for state in (models.own, *models.others)]
        phi = torch.stack([scaled_logit(answer, images.labels) for answer in answers])
        plain.append(log_confidence(answers[0], images.labels))
        tested.append(against_other_clients(phi[0], phi[1:]))
    if tested:
        found["fedmia loss"] = RoundScores(scores=torch.stack(tested).mean(0), rounds=len(tested))
    aligned = [
        _by_gradient(models, models.sent, images, network)
        for models in evenly_spaced([models for models in rounds if models.sent is not None], gradient_rounds)
        if models.sent is not None
    ]
    if aligned:
        found["fedmia gradient"] = RoundScores(scores=torch.stack(aligned).mean(0), rounds=len(aligned))
    if len(plain) > 1:
        found["loss"] = RoundScores(scores=torch.stack(plain).mean(0), rounds=len(plain))
    return found


def _by_gradient(
    models: RoundModels,
    sent: ModelState,
    images: DomainDataset,
    network: Callable[[Mapping[str, Tensor]], Classifier],
) -> Tensor:
    updates = [network(state.state) for state in (models.own, *models.others)]
    cosines = update_alignments(network(sent.state), updates, images)
    return against_other_clients(cosines[0], cosines[1:])

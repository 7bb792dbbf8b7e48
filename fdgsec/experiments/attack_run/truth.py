"""The truth of a recorded run: which images each client's release contains, and the questions that it answers.

The transcript does not contain this client state. It is reproduced by repeating the share step with the run's settings
and random streams. It is used only if the repeated release equals the recorded one byte for byte; another machine,
another library version or noise from a node's own key leaves the truth unknown."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import get_args

import torch

from fdgsec.data.domains import DomainDataset
from fdgsec.experiments.attack_run.read_finished_run import MODELS, Recorded
from fdgsec.experiments.run_config import Keep
from fdgsec.experiments.simulated_runs.challenger import Challenger
from fdgsec.experiments.simulated_runs.released_style_cases import released
from fdgsec.experiments.simulated_runs.simulator import Cases
from fdgsec.experiments.simulated_runs.trained_model_cases import trained
from fdgsec.federation.artifacts import Artifact, ModelState
from fdgsec.federation.client_step import run_client_step
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import SHARED_ROWS, Client, Clock, State, StepRequest
from fdgsec.federation.wire import Row
from fdgsec.runtime.errors import UsageError
from fdgsec.threats.attack import Attack, Question, ReadsModels

UNKNOWN = (
    "cannot be reproduced here byte for byte (another machine, library or version, or noise from its own key), so "
    "the images that it contains are unknown"
)
ELSEWHERE = "clients held their own images elsewhere and shared no release to reproduce, so their images are unknown"


@dataclass(frozen=True, kw_only=True, eq=False)
class ReproducedStates:
    """Each client's reproduced state, and the reason why it is unknown; the reason is empty if the state is known."""

    states: Mapping[str, State]
    reasons: Mapping[str, str]


def reproduce_states(recorded: Recorded, defense_stack: DefenseStack) -> ReproducedStates:
    """Repeat the share step of every client, and compare the releases with the recorded ones."""
    found = {client.name: _shared_again(recorded, client, defense_stack) for client in recorded.clients}
    return ReproducedStates(
        states={name: state for name, (state, _) in found.items()},
        reasons={name: reason for name, (_, reason) in found.items()},
    )


def _shared_again(recorded: Recorded, client: Client, defense_stack: DefenseStack) -> tuple[State, str]:
    """The state after the last round in which `client` shared, or after the first if that names no images."""
    rows = [row for row in recorded.record.transcript.rows if row.stage == "share"]
    mine = [row for row in rows if row.sender == client.name]
    if not rows:
        return {}, ELSEWHERE if recorded.remote_data else ""
    if not mine:
        hidden = any(not row.sender.startswith("client:") for row in rows)
        why = "has a name that a policy replaced in the transcript" if hidden else "took part in no round"
        return {}, f"{client.name} {why}"
    last, first = max(row.round for row in mine), min(row.round for row in mine)
    state, reason = _again(recorded, client, defense_stack, [row for row in mine if row.round == last])
    if not reason or first == last:
        return state, reason
    early, other = _again(recorded, client, defense_stack, [row for row in mine if row.round == first])
    return (early, "") if not other and SHARED_ROWS not in early else (state, reason)


def _again(recorded: Recorded, client: Client, defense_stack: DefenseStack, rows: list[Row]) -> tuple[State, str]:
    """Repeat the share step in the round of `rows`, which are all that `client` shared in it."""
    number, config = rows[0].round, recorded.config
    names = tuple(other.name for other in recorded.clients)
    asked = StepRequest(
        clock=Clock(round=number, rounds=config.rounds, participants=names), inbox={},
        model=_model_of(recorded, client.name, number) if recorded.method.shares == "every" else None,
    )  # fmt: skip
    try:
        reply, state = run_client_step(recorded.method, client, "share", asked, {}, config.seed, defense_stack)
    except UsageError as error:
        lacking = recorded.method.shares == "every" and asked.model is None
        kept = "" if not lacking else f" (the model of round {number} was not kept; --keep models=all keeps it)"
        return {}, f"what {client.name} released cannot be reproduced: {error}{kept}"
    if _hashes(reply.artifacts) != sorted(row.sha256 for row in rows):
        return {}, f"what {client.name} released {UNKNOWN}"
    return state, ""


def _hashes(artifacts: Mapping[str, Artifact]) -> list[str]:
    return sorted(artifact.sha256 for artifact in artifacts.values())


def _model_of(recorded: Recorded, client: str, number: int) -> GlobalModel | None:
    """The model that `client` received in a round, from the transcript or the initial model; None if it is unknown."""
    transcript = recorded.record.transcript
    for row in transcript.rows:
        if (row.stage, row.receiver, row.round) == ("model", client, number) and recorded.model is not None:
            kept = transcript.payloads.get(row.sha256)
            if isinstance(kept, ModelState):
                return recorded.model.with_state(kept.tensors())
            if row.sha256 == recorded.model.state.sha256:
                return recorded.model
    return None


def models_not_kept(attack: Attack, keep: Keep) -> str:
    """Return that an attack reads models that the run did not keep; empty if it reads none or they were kept."""
    levels = get_args(Keep)
    if not isinstance(attack, ReadsModels) or levels.index(keep) >= levels.index(attack.keeps):
        return ""
    return f"this run kept no models; train it again with --keep {attack.keeps}"


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedQuestions:
    """A question source for a recorded run: transcript for `released` and `trained`, simulation for all others."""

    recorded: Recorded
    challenger: Challenger
    reproduced: ReproducedStates

    def cases(self, question: Question, attack: Attack) -> Cases:  # noqa: ARG002 - an argument of the protocol
        """Return the cases of `question` whose truth is known."""
        challenger = self.challenger
        if question.kind not in ("released", "trained"):
            return challenger.cases(question)
        if question not in challenger.memo:
            pairs = self._released(question) if question.kind == "released" else self._trained(question)
            challenger.memo[question] = [(challenger.without_unknowns(case), truth) for case, truth in pairs]
        return challenger.memo[question]

    def gap(self, question: Question, attack: Attack) -> str:
        """Return why a question is not, or only partly, answered: payloads, truth or images are missing."""
        recorded, roles = self.recorded, self.recorded.roles
        read = question.kind in ("released", "trained") or (question.kind, question.scheme) == ("single_step", "last")
        if read and (reason := models_not_kept(attack, recorded.config.keep)):
            return reason
        if question.kind == "released":
            reasons = [self.reproduced.reasons[name] for name in self._victims()]
            return "; ".join(dict.fromkeys(filter(None, reasons)))
        if question.kind == "trained" and recorded.remote_data and any(self.reproduced.reasons.values()):
            return "; ".join(dict.fromkeys(filter(None, self.reproduced.reasons.values())))
        if question.kind == "trained" and not recorded.random_split:
            return "images were split by an official list, not at random: members and non-members differ anyway"
        if question.kind == "as_if_released" and recorded.method.releasing_all() is None:
            return ""  # the method cannot release one row per image
        if not self.cases(question, attack):
            return f"too few images: {len(roles.federation)} of clients, {len(roles.held_out)} non-members"
        return ""

    def _victims(self) -> list[str]:
        parties = self.challenger.adversary.parties
        return [client.name for client in self.recorded.clients if client.name not in parties]

    def _released(self, question: Question) -> Cases:
        return released(replace(self.challenger, clients=self._known()), question)

    def _known(self) -> list[Client]:
        return [client for client in self.recorded.clients if not self.reproduced.reasons[client.name]]

    def _trained(self, question: Question) -> Cases:
        """Members and non-members without near-duplicates, which were split at random."""
        challenger, recorded = self.challenger, self.recorded
        models = any(message.artifact.kind in MODELS for message in recorded.record.transcript.messages())
        if not (models and recorded.random_split):
            return []
        clients = self._known() if recorded.remote_data else challenger.clients
        alone = replace(
            challenger, roles=replace(challenger.roles, held_out=_without(challenger.roles.held_out, recorded.copied)),
            clients=[replace(client, data=_without(client.data, recorded.copied)) for client in clients],
        )  # fmt: skip
        sizes = {client.name: len(client.data) for client in clients}
        return [(replace(case, records=sizes[case.victim]), truth) for case, truth in trained(alone, question)]


def _without(images: DomainDataset, names: frozenset[str]) -> DomainDataset:
    return images.subset(torch.tensor([name not in names for name in images.ids], dtype=torch.bool))

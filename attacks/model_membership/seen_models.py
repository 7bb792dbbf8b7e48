"""The models in an adversary's view that a victim has trained, or may have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fdgsec.attacks.model_membership.round_scores import (
    RoundModels,
    client_steps,
    global_steps,
    last_update,
    round_models,
)
from fdgsec.attacks.model_membership.update_regression import Step
from fdgsec.attacks.statistics.reference_federations import Reference, global_model, peer_models
from fdgsec.federation.artifacts import ModelState
from fdgsec.threats.attack import Case

Owner = Literal["client", "peer", "global"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """What was seen of one victim: models that it has trained, or may have, by owner, its updates by round, and the
    models before and after training, its own or the global one."""

    models: Mapping[Owner, Sequence[ModelState]]
    rounds: Sequence[RoundModels]
    steps: Mapping[Owner, Sequence[Step]]


def seen_models(case: Case) -> Seen:
    """The models in a view that the victim has trained, or may have."""
    view = case.views[0]
    own, shared = last_update(view, case.victim), global_model(view)
    peers = [] if own is not None else peer_models(view)
    found: dict[Owner, list[ModelState]] = {
        "client": [] if own is None else [own], "peer": peers, "global": [] if shared is None else [shared],
    }  # fmt: skip
    models: dict[Owner, list[ModelState]] = {owner: states for owner, states in found.items() if states}
    moved: dict[Owner, Sequence[Step]] = {
        "client": client_steps(view, case.victim),
        "global": global_steps(view, case.victim),
    }
    steps: dict[Owner, Sequence[Step]] = {owner: found for owner, found in moved.items() if found}
    return Seen(models=models, rounds=round_models(view, case.victim), steps=steps)


def seen_of_other_run(case: Case, other: Reference, number: int) -> Seen:
    """The models of another federation in place of those that were seen."""
    seen, theirs = seen_models(case), seen_models(replace(case, views=(other.view,), victim=other.clients[number]))
    models = dict(theirs.models)
    if "peer" in seen.models and "client" in models:
        models["peer"] = models["client"]
    return Seen(
        models={owner: models[owner] for owner in seen.models if owner in models},
        rounds=theirs.rounds if seen.rounds else (),
        steps={owner: theirs.steps[owner] for owner in seen.steps if owner in theirs.steps},
    )

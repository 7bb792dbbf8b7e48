"""Checks of a client's reply before it is used: names, shapes, dtypes and finite numbers.

The checks need no knowledge of the method: the model must come back in the form in which it was sent, numbers must be
finite, and weights must be legal. Where the server does not know the form, replies are compared with each other.
Whether the numbers are *true* cannot be checked here (fdgsec/defenses/guards.py bounds the influence of false
ones)."""

import math
from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

from fdgsec.federation.artifacts import Artifact, ModelState, Scores
from fdgsec.federation.method import NUMBERS, Inbox, Reply, Step, StepRequest
from fdgsec.federation.reply_slots import ROWS

HEAVIEST = 1e9
"""The largest weight that is accepted; no client has that many images."""
MODEL = "model"
SCORES = "scores"

Form = Mapping[str, str]
"""Descriptions of the parts of a reply or an artifact (kind, shape, dtype), without values."""


def objection(step: Step, request: StepRequest, reply: Reply, *, kept: frozenset[str] = frozenset()) -> str | None:
    """Describe in one line what is wrong with a reply; None if it is usable.

    `kept` are the model entries that stay with clients: the reply to "fit" holds all others and none of these."""
    found = _check_numbers(step, reply)
    if found is None and step == "fit":
        found = _check_networks(request, reply, kept)
    if found is None and step == "review" and not isinstance(reply.artifacts.get(SCORES), Scores):
        found = _missing(SCORES, Scores.kind, reply.artifacts)
    return found or _first_not_finite(reply.artifacts)


def _check_numbers(step: Step, reply: Reply) -> str | None:
    """Check weight and metrics; an update's weight must be above 0, because models are averaged by weight."""
    weight = reply.weight
    if not (0 <= weight <= HEAVIEST) or (step == "fit" and weight == 0):
        least = "above 0" if step == "fit" else "at least 0"
        return f"its weight is {weight:g}; it must be {least} and at most {HEAVIEST:g}"
    bad = [name for name, value in sorted(reply.metrics.items()) if not math.isfinite(value)]
    return f"its metric {bad[0]} is {reply.metrics[bad[0]]:g}; it must be finite" if bad else None


def _check_networks(request: StepRequest, reply: Reply, kept: frozenset[str]) -> str | None:
    """Check an update's networks: each must have the form in which the client received it."""
    if NUMBERS in reply.artifacts:
        return f"it holds an artifact {NUMBERS!r}, which is where weight and metrics go"
    model = reply.artifacts.get(MODEL)
    if type(model) is not ModelState:
        return _missing(MODEL, ModelState.kind, reply.artifacts)
    for slot, artifact in reply.artifacts.items():
        received = request.inbox.get(slot)
        if slot != MODEL and isinstance(received, ModelState) and type(artifact) is not type(received):
            return _missing(slot, received.kind, reply.artifacts)
        expected = _expected_form(slot, artifact, request, kept)
        found = None if expected is None else _difference(_tensor_forms(slot, artifact), expected, "it was sent out as")
        if found is not None:
            return found
    return None


def _expected_form(slot: str, artifact: Artifact, request: StepRequest, kept: frozenset[str]) -> Form | None:
    """The form that a network must have; None if the client received no such network."""
    known = {} if request.model is None else dict(request.model.state.state)
    received = request.inbox.get(slot)
    if slot == MODEL and known:
        known = {name: value for name, value in known.items() if name not in kept}
    elif slot != MODEL and isinstance(received, ModelState):
        known = dict(received.state)
    elif (
        type(artifact) is ModelState and artifact.state.keys() <= known.keys()
    ):  # a perturbed copy, or a part of the model
        known = {name: known[name] for name in artifact.state}
    else:
        return None
    return {f"{slot}.{name}": _describe_tensor(value) for name, value in known.items()}


def _missing(slot: str, kind: str, artifacts: Inbox) -> str:
    came = artifacts.get(slot)
    return f"{slot} is missing" if came is None else f"{slot} is a {came.kind}; a {kind} was expected"


def _difference(found: Form, usual: Form, origin: str) -> str | None:
    """Describe the first part in which `found` differs from `usual`; `origin` says where `usual` comes from."""
    for part, form in usual.items():
        if part not in found:
            return f"{part} is missing"
        if found[part] != form:
            return f"{part} is {found[part]}; {origin} {form}"
    extra = sorted(found.keys() - usual.keys())
    return f"{extra[0]} is not expected" if extra else None


def _first_not_finite(artifacts: Inbox) -> str | None:
    """Describe the first tensor that is not all finite, in one pass over each."""
    for slot, artifact in artifacts.items():
        for name, value in artifact.tensors().items():
            if not value.is_floating_point() or value.numel() == 0:
                continue
            if not bool(torch.isfinite(torch.stack(torch.aminmax(value))).all()):  # NaN and infinities propagate
                count = int((~torch.isfinite(value)).sum())
                return f"{slot}.{name} has {count} of {value.numel()} values that are not finite"
    return None


def differing_replies(requests: Mapping[str, StepRequest], replies: Mapping[str, Reply]) -> Mapping[str, str]:
    """Describe, by client, how replies to one step differ from the most frequent form.

    Compares slots, kinds, entries, dtypes, shapes and metric names, but not the number of rows of kinds with one row
    per image or class. If two forms are equally frequent, neither can be preferred, and all these replies are
    reported."""
    forms = {name: _reply_form(requests[name], reply) for name, reply in replies.items()}
    counts = Counter(tuple(sorted(form.items())) for form in forms.values())
    usual = [dict(form) for form, count in counts.items() if count == max(counts.values())]
    origin = "more clients sent" if len(usual) == 1 else "as many clients sent"
    found: dict[str, str] = {}
    for name, form in forms.items():
        other = next((one for one in usual if one != form), None)
        difference = None if other is None else _difference(form, other, origin)
        if difference is not None:
            found[name] = difference
    return found


def _reply_form(request: StepRequest, reply: Reply) -> Form:
    parts = {"the list of metrics": ", ".join(sorted(reply.metrics)) or "empty"}
    for slot, artifact in sorted(reply.artifacts.items()):
        parts[slot] = f"a {artifact.kind}"
        if slot == SCORES and isinstance(artifact, Scores):  # reviewers may receive different numbers of models
            more = artifact.values.numel() - len(request.inbox)
            parts["the number of scores"] = f"that of models shown {more:+d}"
        else:
            parts |= _tensor_forms(slot, artifact)
    return parts


def _tensor_forms(slot: str, artifact: Artifact) -> dict[str, str]:
    free = 1 if isinstance(artifact, ROWS) else 0
    return {f"{slot}.{name}": _describe_tensor(value, free) for name, value in artifact.tensors().items()}


def _describe_tensor(value: Tensor, free: int = 0) -> str:
    sizes = ", ".join(["rows"] * free + [str(size) for size in value.shape[free:]])
    return f"({sizes}{',' * (value.ndim == 1)}) {str(value.dtype).removeprefix('torch.')}"


def select_scores(
    scores: Mapping[str, Scores], *, shown: Mapping[str, Inbox], again: Mapping[str, Inbox]
) -> dict[str, Scores]:
    """Select, of each reviewer's scores (one per model, in the sorted order of slots), those for models in `again`.

    Raises ValueError for a reviewer that was not `shown` all of these, or that returned another number of scores."""
    chosen: dict[str, Scores] = {}
    for name, score in scores.items():
        judged, wanted = shown.get(name, {}), again.get(name, {})
        values = score.values.flatten()
        same = all(slot in judged and _same_content(judged[slot], wanted[slot]) for slot in wanted)
        if not same or len(values) != len(judged):
            raise ValueError(f"what {name} judged is not what it would have been shown without them")
        places = [place for place, slot in enumerate(sorted(judged)) if slot in wanted]
        chosen[name] = Scores(values=values[places])
    return chosen


def _same_content(one: Artifact, other: Artifact) -> bool:
    return one is other or one.sha256 == other.sha256

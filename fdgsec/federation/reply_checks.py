"""What is wrong with a client's reply, before anything of it is used: names, shapes, dtypes, numbers.

Only what can be seen without knowing the method: the model must come back as it was sent, every number must be finite, a
weight must be one; and what only clients can know the form of is compared between them. Whether numbers are *true* nobody
can see here (fdgsec/defenses/guards.py outvotes)."""

import math
from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

from fdgsec.federation.artifacts import Artifact, ModelState, Scores
from fdgsec.federation.method import NUMBERS, Inbox, Reply, Step, StepRequest
from fdgsec.federation.reply_slots import ROWS

HEAVIEST = 1e9
"""The largest weight that is believed: more images than any client has."""
MODEL = "model"
SCORES = "scores"

Form = Mapping[str, str]
"""What a reply or an artifact looks like, part by part, without its numbers."""


def objection(step: Step, request: StepRequest, reply: Reply, *, kept: frozenset[str] = frozenset()) -> str | None:
    """Say in one line what is wrong with the reply to a request, None where it can be used.

    `kept` are the entries of the model that stay with clients, so that a fit's answer holds all others and none of these."""
    found = _weighed(step, reply)
    if found is None and step == "fit":
        found = _trained(request, reply, kept)
    if found is None and step == "review" and not isinstance(reply.artifacts.get(SCORES), Scores):
        found = _missing(SCORES, Scores.kind, reply.artifacts)
    return found or _infinite(reply.artifacts)


def _weighed(step: Step, reply: Reply) -> str | None:
    """What is wrong with the numbers: only an update's weight must be above 0, for a mean is taken by it."""
    weight = reply.weight
    if not (0 <= weight <= HEAVIEST) or (step == "fit" and weight == 0):
        least = "above 0" if step == "fit" else "at least 0"
        return f"its weight is {weight:g}; it must be {least} and at most {HEAVIEST:g}"
    bad = [name for name, value in sorted(reply.metrics.items()) if not math.isfinite(value)]
    return f"its metric {bad[0]} is {reply.metrics[bad[0]]:g}; it must be finite" if bad else None


def _trained(request: StepRequest, reply: Reply, kept: frozenset[str]) -> str | None:
    """What is wrong with an update's networks: those whose form the client was told must come back in it."""
    if NUMBERS in reply.artifacts:
        return f"it holds an artifact {NUMBERS!r}, which is where weight and metrics go"
    model = reply.artifacts.get(MODEL)
    if type(model) is not ModelState:
        return _missing(MODEL, ModelState.kind, reply.artifacts)
    for slot, artifact in reply.artifacts.items():
        received = request.inbox.get(slot)
        if slot != MODEL and isinstance(received, ModelState) and type(artifact) is not type(received):
            return _missing(slot, received.kind, reply.artifacts)
        expected = _expected(slot, artifact, request, kept)
        found = None if expected is None else _difference(_entries(slot, artifact), expected, "it was sent out as")
        if found is not None:
            return found
    return None


def _expected(slot: str, artifact: Artifact, request: StepRequest, kept: frozenset[str]) -> Form | None:
    """The form that a network must come back in, None where the client was sent none like it."""
    known = {} if request.model is None else dict(request.model.state.state)
    received = request.inbox.get(slot)
    if slot == MODEL and known:
        known = {name: value for name, value in known.items() if name not in kept}
    elif slot != MODEL and isinstance(received, ModelState):
        known = dict(received.state)
    elif type(artifact) is ModelState and artifact.state.keys() <= known.keys():  # perturbed, or a part of the model
        known = {name: known[name] for name in artifact.state}
    else:
        return None
    return {f"{slot}.{name}": _shaped(value) for name, value in known.items()}


def _missing(slot: str, kind: str, artifacts: Inbox) -> str:
    came = artifacts.get(slot)
    return f"{slot} is missing" if came is None else f"{slot} is a {came.kind}; a {kind} was expected"


def _difference(found: Form, usual: Form, origin: str) -> str | None:
    """Name the first part in which `found` is not as `usual`, which has the `origin`."""
    for part, form in usual.items():
        if part not in found:
            return f"{part} is missing"
        if found[part] != form:
            return f"{part} is {found[part]}; {origin} {form}"
    extra = sorted(found.keys() - usual.keys())
    return f"{extra[0]} is not expected" if extra else None


def _infinite(artifacts: Inbox) -> str | None:
    """Name the first tensor that is not all finite; one pass over each."""
    for slot, artifact in artifacts.items():
        for name, value in artifact.tensors().items():
            if not value.is_floating_point() or value.numel() == 0:
                continue
            if not bool(torch.isfinite(torch.stack(torch.aminmax(value))).all()):  # they carry a NaN and an infinity
                count = int((~torch.isfinite(value)).sum())
                return f"{slot}.{name} has {count} of {value.numel()} values that are not finite"
    return None


def differing(requests: Mapping[str, StepRequest], replies: Mapping[str, Reply]) -> Mapping[str, str]:
    """Say by name which replies to one step are not formed as the most frequent are, and where.

    Slots, kinds, entries, dtypes, shapes and names of metrics are compared; how many rows there are, where a kind has one
    per image or class, is the sender's business. Where two forms are equally frequent nobody can say who is right, and all
    are named."""
    forms = {name: _form(requests[name], reply) for name, reply in replies.items()}
    counts = Counter(tuple(sorted(form.items())) for form in forms.values())
    usual = [dict(form) for form, count in counts.items() if count == max(counts.values())]
    origin = "more clients sent" if len(usual) == 1 else "as many clients sent"
    found: dict[str, str] = {}
    for name, form in forms.items():
        other = next((one for one in usual if one != form), None)
        said = None if other is None else _difference(form, other, origin)
        if said is not None:
            found[name] = said
    return found


def _form(request: StepRequest, reply: Reply) -> Form:
    parts = {"the list of metrics": ", ".join(sorted(reply.metrics)) or "empty"}
    for slot, artifact in sorted(reply.artifacts.items()):
        parts[slot] = f"a {artifact.kind}"
        if slot == SCORES and isinstance(artifact, Scores):  # reviewers may be shown different numbers of models
            more = artifact.values.numel() - len(request.inbox)
            parts["the number of scores"] = f"that of models shown {more:+d}"
        else:
            parts |= _entries(slot, artifact)
    return parts


def _entries(slot: str, artifact: Artifact) -> dict[str, str]:
    free = 1 if isinstance(artifact, ROWS) else 0
    return {f"{slot}.{name}": _shaped(value, free) for name, value in artifact.tensors().items()}


def _shaped(value: Tensor, free: int = 0) -> str:
    sizes = ", ".join(["rows"] * free + [str(size) for size in value.shape[free:]])
    return f"({sizes}{',' * (value.ndim == 1)}) {str(value.dtype).removeprefix('torch.')}"


def narrowed(
    scores: Mapping[str, Scores], *, shown: Mapping[str, Inbox], again: Mapping[str, Inbox]
) -> dict[str, Scores]:
    """Of each reviewer's scores, one for each exhibit in the order of the slots' names, give those of exhibits in `again`.

    Raises ValueError for a reviewer that was not `shown` all of these, or gave another number of scores."""
    chosen: dict[str, Scores] = {}
    for name, score in scores.items():
        judged, wanted = shown.get(name, {}), again.get(name, {})
        values = score.values.flatten()
        same = all(slot in judged and _same(judged[slot], wanted[slot]) for slot in wanted)
        if not same or len(values) != len(judged):
            raise ValueError(f"what {name} judged is not what it would have been shown without them")
        places = [place for place, slot in enumerate(sorted(judged)) if slot in wanted]
        chosen[name] = Scores(values=values[places])
    return chosen


def _same(one: Artifact, other: Artifact) -> bool:
    return one is other or one.sha256 == other.sha256

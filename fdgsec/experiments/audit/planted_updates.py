"""Model updates and scores in the place of a client's own, and chains of them.

An update may be any direction and length: training on another image decides both. So a clip that measures the length
without some tensors, noise that vectors do not get or whose size follows the update, and a bound that is the update's
own are seen between updates that lie in one tensor alone, in all but one, or in all, at the bound, far beyond it, next
to nothing and about as long as a message may hold, where the squares of float32 numbers are infinite. An update that is
not finite fails a client's step before any defense (fdgsec.federation.artifact_checks). Scores are the means over
validation images, of which each label is wrong or right."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fdgsec.experiments.audit.chains_of_clients import counts_of
from fdgsec.experiments.audit.message_canaries import FAR, spread_out
from fdgsec.experiments.audit.neighboring_clients import Release, Site, judged
from fdgsec.experiments.audit.small_networks import layered, small_model
from fdgsec.federation.artifact_checks import LARGEST_WEIGHT
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.method import Clock

INPUTS = 12
"""Numbers in each tensor of the network whose updates are compared."""
FAINT = 1e-6
"""Of the bound: the length of an update that is next to none."""


def chain_of_updates(site: Site, clock: Clock, defense_stack: DefenseStack, *, alone: bool = True) -> Sequence[Release]:
    """Updates of a small network in a round, any two of which are neighbors; none where no cost bounds them.

    With `alone` there are updates in some tensors too, beside those in all."""
    if site.model is None or not clock.rounds:
        return ()
    model = small_model(site.model, layered(INPUTS))
    sender = replace(site, model=model).sender(clock, {})
    received = Release(step="fit", slot="model", artifact=model.state, sender=sender)
    uses = received.sent(defense_stack)[1]
    if not uses:
        return ()
    bound = max(length for use in uses for length in use.sensitivity.values())
    return [received, *(_moved(received, change) for change in _changes(model.state.state, bound, alone=alone))]


def buffers_of_updates(site: Site, clock: Clock, defense_stack: DefenseStack) -> Sequence[Release]:
    """The received model and the same with other buffers, averages over a client's images; none where it has none, or
    no cost bounds them."""
    if site.model is None or not clock.rounds:
        return ()
    state, parameters = site.model.state.state, site.model.parameter_names()
    buffers = {name for name, value in state.items() if name not in parameters and value.is_floating_point()}
    received = Release(step="fit", slot="model", artifact=site.model.state, sender=site.sender(clock, {}))
    if not buffers or not received.sent(defense_stack)[1]:
        return ()
    return [received, _moved(received, {name: torch.ones_like(state[name]).double() for name in buffers})]


def _changes(state: Mapping[str, Tensor], bound: float, *, alone: bool) -> Iterator[Mapping[str, Tensor]]:
    """What updates change, by tensor: two of each kind, one against the other."""
    parts = dict(zip(state, spread_out(list(state.values())), strict=True))
    names = list(parts)
    matrices = [name for name in names if state[name].ndim > 1]
    groups = [matrices, [name for name in names if name not in matrices]]
    groups += [[name] for name in names] + [[other for other in names if other != name] for name in names]
    for length in (FAINT * bound, bound, FAR * bound, LARGEST_WEIGHT / 2):
        yield from _two_of(parts, names, length)
    for group in groups if alone else ():
        yield from _two_of(parts, group, FAR * bound)


def _two_of(parts: Mapping[str, Tensor], names: Sequence[str], length: float) -> Iterator[Mapping[str, Tensor]]:
    whole = torch.cat([parts[name].flatten() for name in names]).norm()
    for side in (-length, length):
        yield {name: side * parts[name] / whole for name in names}


def _moved(received: Release, change: Mapping[str, Tensor]) -> Release:
    state = received.artifact.tensors()
    state |= {name: (state[name].double() + part).to(state[name]) for name, part in change.items()}
    return replace(received, artifact=ModelState(state=state))


def chains_of_scores(site: Site, clock: Clock, defense_stack: DefenseStack) -> Iterator[Sequence[Release]]:
    """Scores by clients whose validation labels become wrong one by one, or near certain shares; none where no cost
    bounds them."""
    validation = site.client.validation
    if site.model is None or site.method.reviews == "none" or validation is None or not len(validation):
        return
    if not judged(site, validation, clock).sent(defense_stack)[1]:
        return
    right = torch.full_like(validation.labels, int(validation.labels[0]))
    wrong = (right + 1) % len(validation.class_names)
    first = torch.arange(len(validation))
    for counts in counts_of(len(validation)):
        labels = [torch.where(first < len(validation) - count, right, wrong) for count in counts]
        yield [judged(site, replace(validation, labels=each), clock) for each in labels]

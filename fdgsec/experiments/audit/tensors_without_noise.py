"""Whether a tensor of the run's own network leaves without noise: in a training, or in an update.

Small networks stand for large ones elsewhere in the audit. A defense may treat layers by names and types that these do
not have, so that the run's own network is trained, and sent, a few times as well. Noise differs from draw to draw: a
tensor that does not, and that one image changes, tells of it for certain. A buffer, such as an average of batch norm,
may differ between draws because the noisy weights before it do: in a training of next to no rate by next to nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fdgsec.experiments.audit.message_canaries import FAR, spread_out
from fdgsec.experiments.audit.neighboring_clients import Release, Site
from fdgsec.experiments.audit.one_run import Included, canary_plan, trainings
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.method import Client, Clock
from fdgsec.nn.training.batches import TrainingSet
from fdgsec.nn.training.per_sample_gradients import PrivateTrainingError

DRAWS = 2
"""Draws on each side: of noise, no two are equal in all numbers of a tensor."""
RATE = 1e-6
"""Learning rate of the trainings in which buffers are read."""
CLEAR = 100.0
"""How many times further than two draws of either side are apart those of a buffer of both sides must be."""
IMAGES = 2
"""Images of the client on which its network takes a step, one of which is left out on the other side."""

State = Mapping[str, Tensor]


def trained_without_noise(site: Site, defense_stack: DefenseStack) -> str | None:
    """A tensor of the run's network that one image changes in a step of training, and noise does not; None if there is
    none, or the trainer refuses the network.

    An image is replaced by one that does nothing (its loss is 0), and, for buffers, by its negative."""
    data = site.client.data
    if site.model is None or len(data) < IMAGES:
        return None
    model, usual = site.model, replace(canary_plan(site), epochs=1, steps=None, batch_size=IMAGES)
    client = replace(site.client, data=data.subset(torch.arange(IMAGES)), validation=None)
    pixels = client.data.pixels()
    exchanged = torch.cat([255 - pixels[:1], pixels[1:]])

    def trained(side: bool, draw: int, *, buffers: bool = False) -> State:
        network, included = model.module(), torch.tensor([side or buffers, *[True] * (IMAGES - 1)])
        images = pixels if side or not buffers else exchanged
        given, plan = TrainingSet(images=images, labels=client.data.labels), usual
        if buffers:
            plan = replace(usual, learning_rate=RATE)

        def train(with_trainer: Client, clock: Clock) -> None:
            rng = torch.Generator().manual_seed(clock.round)
            with_trainer.trainer(
                network, given, Included(included=included), plan, rng, round=clock.round, rounds=clock.rounds
            )

        named = replace(defense_stack, name=f"{defense_stack.name}/own network/{side}/{draw}/{buffers}")
        trainings(replace(site, clocks=site.clocks[:1]), named, client, train)
        state, own = network.state_dict(), dict(network.named_parameters())
        return {name: value for name, value in state.items() if (name in own) != buffers}

    try:
        found = _without_noise(*([trained(side, draw) for draw in range(DRAWS)] for side in (True, False)))
        if found is None and len(model.state.tensors()) > len(list(model.module().parameters())):
            sides = ([trained(side, draw, buffers=True) for draw in range(DRAWS)] for side in (True, False))
            return _clearly_apart(*sides)
        return found
    except PrivateTrainingError:  # what it refuses here it refuses in the run
        return None


def sent_without_noise(site: Site, clock: Clock, defense_stack: DefenseStack) -> list[tuple[Release, str]]:
    """The update in which a tensor of the run's network, or a buffer, has no noise, and the tensor; nothing if there is
    none, or no cost bounds it."""
    if site.model is None or not clock.rounds:
        return []
    received = Release(step="fit", slot="model", artifact=site.model.state, sender=site.sender(clock, {}))
    uses = received.sent(defense_stack)[1]
    if not uses or not all(use.noise for use in uses):
        return []
    parameters = dict(site.model.module().named_parameters())
    state, toward = site.model.state.tensors(), spread_out(list(parameters.values()))
    length = FAR * max(bound for use in uses for bound in use.sensitivity.values())
    moved = {name: value + 1 for name, value in state.items() if value.is_floating_point()}
    moved |= {
        name: (state[name].double() + length * part).to(state[name])
        for name, part in zip(parameters, toward, strict=True)
    }
    other = replace(received, artifact=ModelState(state=state | moved))
    found = _without_noise(*([_sent(one, defense_stack, draw) for draw in range(DRAWS)] for one in (received, other)))
    return [] if found is None else [(received, found)]


def _sent(release: Release, defense_stack: DefenseStack, draw: int) -> State:
    return release.sent(replace(defense_stack, name=f"{defense_stack.name}/own network/{draw}"))[0].tensors()


def _clearly_apart(first: Sequence[State], second: Sequence[State]) -> str | None:
    """The first buffer whose draws on both sides are further apart than those of either by far."""
    for name, value in first[0].items():
        if not value.is_floating_point():
            continue
        between = float((value - second[0][name]).abs().max())
        within = max(float((side[0][name] - one[name]).abs().max()) for side in (first, second) for one in side[1:])
        if between > CLEAR * within:
            return name
    return None


def _without_noise(first: Sequence[State], second: Sequence[State]) -> str | None:
    """The first tensor that is the same in all draws of either side, and another one on the other side."""
    for name, value in first[0].items():
        same = all(torch.equal(side[0][name], one[name]) for side in (first, second) for one in side[1:])
        if same and not torch.equal(value, second[0][name]):
            return name
    return None

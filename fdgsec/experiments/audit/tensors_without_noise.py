"""Whether a tensor of the run's own network leaves without noise: in a training, or in an update.

Small networks stand for large ones elsewhere in the audit. A defense may treat layers by names and types that these do
not have, so that the run's own network is trained, and sent, a few times as well. Noise differs from draw to draw: a
tensor that does not, and that one image changes, tells of it for certain. A buffer, such as an average of batch norm,
may differ between draws because the noisy weights before it do: in a training of next to no rate by next to nothing.
A parameter may not differ further then either: a trainer that sets biases from the labels first, or takes a plain step
on validation images last, moves it further."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.experiments.audit.message_canaries import FAR, spread_out
from fdgsec.experiments.audit.neighboring_clients import Release, Site
from fdgsec.experiments.audit.one_run import Included, canary_plan, trainings
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock
from fdgsec.nn.training.batches import TrainingSet
from fdgsec.nn.training.per_sample_gradients import PrivateTrainingError

DRAWS = 2
"""Draws on each side: of noise, no two are equal in all numbers of a tensor."""
MORE_DRAWS = 4
"""Draws whose distances are compared: of a tensor of one number, those of two may be next to nothing."""
RATE = 1e-6
"""Learning rate of the trainings after which a network is next to what it was."""
CLEAR = 100.0
"""How many times further than two draws of either side are apart those of both sides must be."""
EPSILON = torch.finfo(torch.float32).eps
"""Rounding of a number, relative to it."""
IMAGES = 2
"""Images of the client on which its network takes a step, one of which is left out on the other side."""

State = Mapping[str, Tensor]


def trained_without_noise(site: Site, defense_stack: DefenseStack) -> str | None:
    """A tensor of the run's network that one image changes in a step of training, and noise does not; None if there is
    none, or the trainer refuses the network.

    An image is replaced by one that does nothing (its loss is 0). In trainings of next to no rate it is replaced by its
    negative with another label, and so are the client's validation images."""
    if site.model is None or len(site.client.data) < IMAGES:
        return None
    trained = _OwnNetwork(site=replace(site, clocks=site.clocks[:1]), model=site.model, defense_stack=defense_stack)
    try:
        found = _without_noise(*([trained.left_out(side, draw) for draw in range(DRAWS)] for side in (True, False)))
        return found or _clearly_apart(
            *([trained.exchanged(side, draw) for draw in range(MORE_DRAWS)] for side in (True, False))
        )
    except PrivateTrainingError:  # what it refuses here it refuses in the run
        return None


@dataclass(frozen=True, kw_only=True, eq=False)
class _OwnNetwork:
    """Trainings of the run's own network on IMAGES images, in one step of one round."""

    site: Site
    model: GlobalModel
    defense_stack: DefenseStack

    def left_out(self, side: bool, draw: int) -> State:
        """The parameters after a step with all images, or with one that does nothing in place of the first."""
        data = self._images()
        included = torch.tensor([side, *[True] * (IMAGES - 1)])
        state = self._trained(data, None, included, f"{side}/{draw}")
        own = dict(self.model.module().named_parameters())
        return {name: value for name, value in state.items() if name in own}

    def exchanged(self, side: bool, draw: int) -> State:
        """The whole state after a step of next to no rate on some images, or on their negatives of other labels."""
        data = held = self._images()
        if not side:
            held = _negative(data, IMAGES)
            data = _negative(data, 1)
        every = torch.ones(IMAGES, dtype=torch.bool)
        return self._trained(data, held, every, f"{side}/{draw}/exchanged", rate=RATE)

    def _images(self) -> DomainDataset:
        own = self.site.client.data.subset(torch.arange(IMAGES))
        return replace(own, store=own.pixels(), rows=torch.arange(IMAGES))

    def _trained(
        self,
        data: DomainDataset,
        validation: DomainDataset | None,
        included: Tensor,
        name: str,
        *,
        rate: float = 1.0,
    ) -> State:
        network = self.model.module()
        plan = replace(canary_plan(self.site), learning_rate=rate, epochs=1, steps=None, batch_size=IMAGES)

        def train(with_trainer: Client, clock: Clock) -> None:
            rng = torch.Generator().manual_seed(clock.round)
            with_trainer.trainer(
                network, TrainingSet.of(data), Included(included=included), plan, rng, round=clock.round,
                rounds=clock.rounds,
            )  # fmt: skip

        named = replace(self.defense_stack, name=f"{self.defense_stack.name}/own network/{name}")
        trainings(self.site, named, replace(self.site.client, data=data, validation=validation), train)
        return network.state_dict()


def _negative(data: DomainDataset, count: int) -> DomainDataset:
    """The images, of which the first `count` are negatives, and of the next label."""
    store, labels = data.pixels().clone(), data.labels.clone()
    store[:count] = 255 - store[:count]
    labels[:count] = (labels[:count] + 1) % len(data.class_names)
    return replace(data, store=store, rows=torch.arange(len(data)), labels=labels)


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
    """The first tensor whose draws on both sides are further apart than those of either by far."""
    for name, value in first[0].items():
        if not value.is_floating_point():
            continue
        between, rounding = float((value - second[0][name]).abs().max()), float(value.abs().max()) * EPSILON
        within = max(float((side[0][name] - one[name]).abs().max()) for side in (first, second) for one in side[1:])
        if between > CLEAR * max(within, rounding):
            return name
    return None


def _without_noise(first: Sequence[State], second: Sequence[State]) -> str | None:
    """The first tensor that is the same in all draws of either side, and another one on the other side."""
    for name, value in first[0].items():
        same = all(torch.equal(side[0][name], one[name]) for side in (first, second) for one in side[1:])
        if same and not torch.equal(value, second[0][name]):
            return name
    return None

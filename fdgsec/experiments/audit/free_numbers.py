"""Whether numbers that leave beside an update at no cost of their own tell of the images.

A cost of () says that a release tells nothing but what was paid for: it is public, or made of the noisy model. Whatever
is made of a release tells two neighbors apart no better than it does. The loss of a training does, and so may any other
number that a training loop returns. So a client is trained many times on some images, and on the same with another one
in one's place, and the numbers that leave at no cost are compared like a release that costs what the model does. The
steps are next to none: the loss of a noisy model would hide behind noise that whoever has the model knows. A number
that is the same in all trainings of a client is made of no noise. If it is another one for any other client, however
far from the first, it changes with one image somewhere on the way: so very different clients, with labels that a
network gives and others, are trained as well.

Of a defense without a trainer the numbers of an update are not noisy at all: what it sends of them at no cost must be
the same whatever they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.experiments.audit.neighbor_tests import (
    Drawn,
    allowed_distance,
    along_a_direction,
    by_what_has_no_noise,
)
from fdgsec.experiments.audit.neighboring_clients import Release, Site
from fdgsec.experiments.audit.one_run import canary_plan
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.defense import PrivateTrainer
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import NUMBERS, Client, Clock, Reply, StepRequest
from fdgsec.nn.training.batches import TrainingSet
from fdgsec.nn.training.training_loop import CrossEntropy
from fdgsec.runtime.random_streams import stream

DRAWS = 32
FIRST = 3
"""Draws of either client, after which numbers that are all the same count as public."""
IMAGES = 4
RATE = 1e-6
"""Learning rate of the trainings."""
SURE = 30.0
"""Times its last layer, a network is sure of what it predicts."""
AGAIN = 16
"""Trainings of each client, in all of which a number must be the same to count as made of no noise."""
EPOCHS = 3
"""Of trainings whose numbers are to be public."""
FREE = "numbers that leave beside the model at no cost tell of its images"


def told_for_free(site: Site, defense_stack: DefenseStack) -> list[str]:
    """Say so if numbers beside an update tell of its images and have no cost; nothing where the model has none, or
    where the numbers are stated to be unprotected."""
    clock = next((one for one in site.clocks if one.rounds), None)
    if site.model is None or clock is None:
        return []
    images = site.client.data.subset(torch.arange(min(IMAGES, len(site.client.data))))
    updates = _Updates(site=site, defense_stack=defense_stack, clock=clock, model=_small(site))
    if not updates.trains:
        return [FREE] if updates.passed_on(images) or updates.tells_size(images) else []
    models = (_small(site, sure=sure) for sure in (1.0, SURE))
    fixed = any(replace(updates, model=model).fixed_apart(images) for model in models)
    return [FREE] if fixed or updates.trained_apart(images) or updates.tells_size(images) else []


def _small(site: Site, *, sure: float = 1.0) -> GlobalModel:
    """A small network in place of the run's: numbers beside a model do not depend on its size.

    Its last layer is so many times as large as it is drawn."""
    plan = Blueprint(
        backbone="tiny", classes=len(site.client.data.class_names), norm="group", remodel=site.method.remodel
    )
    state = plan.network(stream(site.seed, "world", "free numbers")).state_dict()
    larger = {name: value * (sure if name.startswith("head.") else 1) for name, value in state.items()}
    return GlobalModel(blueprint=plan, state=ModelState(state=larger))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Updates:
    """Updates of a client of few images in one round, behind a defense stack."""

    site: Site
    defense_stack: DefenseStack
    clock: Clock
    model: GlobalModel

    @property
    def trains(self) -> bool:
        """Whether a defense trains."""
        return self.defense_stack.with_trainer(self.site.client, self.site.method, self.clock)[1] is not None

    def trained_apart(self, images: DomainDataset) -> bool:
        """Whether the numbers of trainings with one image and with another one in its place are too far apart."""
        given = TrainingSet.of(images)
        pixels, labels = given.images.clone(), given.labels.clone()
        pixels[0] = 255 - pixels[0]
        labels[0] = (labels[0] + 1) % len(images.class_names)
        sides = given, replace(given, images=pixels, labels=labels)
        sent: tuple[list[Reply], list[Reply]] = ([], [])
        for run in range(DRAWS):
            for side, one in enumerate(sides):
                sent[side].append(self._trained(images, one, f"{side}/{run}"))
            if run + 1 == FIRST and len({_told(reply) for replies in sent for reply in replies}) == 1:
                return False
        first, second = map(self._drawn, sent)
        if first is None or second is None:
            return False
        return any(test(first, second).too_far for test in (by_what_has_no_noise, along_a_direction))

    def fixed_apart(self, images: DomainDataset) -> bool:
        """Whether a number is the same in all trainings of each of several clients, and not the same in all of them.

        Two trainings of each tell where to look: a rounded number may be the same in these by chance."""
        return self._fixed_apart(images, 2) and self._fixed_apart(images, AGAIN)

    def _fixed_apart(self, images: DomainDataset, runs: int) -> bool:
        known = list[Mapping[str, float]]()
        for number, given in enumerate(self._clients(images)):
            sent = [self._trained(images, given, f"fixed/{number}/{run}", epochs=EPOCHS) for run in range(runs)]
            if not all(map(_free, sent)):
                return False
            names = set.intersection(*(set(reply.metrics) for reply in sent))
            values = {name: {reply.metrics[name] for reply in sent} for name in names}
            known.append({name: one.pop() for name, one in values.items() if len(one) == 1})
        names = {name for numbers in known for name in numbers}
        return any(len({numbers[name] for numbers in known if name in numbers}) > 1 for name in names)

    def _clients(self, images: DomainDataset) -> list[TrainingSet]:
        """Clients of as many images: with the labels that the network gives, with none of these, black, and noise."""
        given, classes = TrainingSet.of(images), len(images.class_names)
        with torch.no_grad():
            likely = self.model.module().eval()(as_float(given.images)).argmax(1)
        noise = torch.randint(256, given.images.shape, generator=stream(self.site.seed, "world", "noise"))
        return [
            given,
            replace(given, labels=likely),
            replace(given, labels=(likely + 1) % classes),
            replace(given, images=torch.zeros_like(given.images)),
            replace(given, images=noise.to(given.images)),
        ]

    def passed_on(self, images: DomainDataset) -> bool:
        """Whether the numbers of plain training leave at no cost, and differ where they do."""
        sent = [self._sent(images, {"loss": loss}) for loss in (1.0, 2.0)]
        return all(map(_free, sent)) and sent[0].metrics != sent[1].metrics

    def tells_size(self, images: DomainDataset) -> bool:
        """Whether the number of images leaves at no cost, where neighbors have one less, or any other."""
        if len(images) < 2:
            return False
        sent = []
        for held in (images, images.subset(torch.arange(len(images) - 1))):
            reply = self._trained(held, TrainingSet.of(held), "size") if self.trains else self._sent(held, {})
            private = any("add-remove" in use.sensitivity or use.unit == "client" for use in reply.uses["model"] or ())
            sent.append(reply.weight if private and _free(reply) else None)
        return sent[0] != sent[1]

    def _drawn(self, replies: Sequence[Reply]) -> Drawn | None:
        """The numbers of updates, one draw each; None where they have a cost, or are stated to be unprotected."""
        uses = replies[0].uses["model"]
        allowed = allowed_distance(uses)
        if not uses or not allowed or not all(map(_free, replies)):
            return None
        values = torch.stack([reply.numbers().values for reply in replies])
        release = Release(
            step="fit", slot=NUMBERS, artifact=replies[0].numbers(), sender=self.site.sender(self.clock, {})
        )
        return Drawn(
            release=release, sent=values, values=values, whole=torch.ones(values.shape[1], dtype=torch.bool),
            form=tuple(sorted(replies[0].metrics)), uses=uses, allowed=allowed,
        )  # fmt: skip

    def _trained(self, images: DomainDataset, given: TrainingSet, name: str, *, epochs: int = 1) -> Reply:
        """What a client sends after a training of one step, or of so many `epochs`."""
        stack = replace(self.defense_stack, name=f"{self.defense_stack.name}/free/{name}")
        client = replace(self.site.client, data=images, validation=None)
        with_trainer, trainer = stack.with_trainer(client, self.site.method, self.clock)
        plan = replace(canary_plan(self.site), learning_rate=RATE, epochs=epochs, steps=None, batch_size=len(given))
        network = self.model.module()
        metrics = with_trainer.trainer(
            network, given, CrossEntropy(), plan, stream(self.site.seed, "world", "audit", self.clock.round),
            round=self.clock.round, rounds=self.clock.rounds,
        )  # fmt: skip
        state = ModelState(state={key: value.detach().clone() for key, value in network.state_dict().items()})
        return self._replied(stack, client, Reply(artifacts={"model": state}, metrics=metrics), trainer)

    def _sent(self, images: DomainDataset, metrics: Mapping[str, float]) -> Reply:
        """What a client sends whose training gave these metrics, and the received model."""
        client = replace(self.site.client, data=images)
        reply = Reply(artifacts={"model": self.model.state}, metrics=metrics)
        return self._replied(self.defense_stack, client, reply, None)

    def _replied(self, stack: DefenseStack, client: Client, reply: Reply, trainer: PrivateTrainer | None) -> Reply:
        request = StepRequest(clock=self.clock, model=self.model, inbox={})
        sender = stack.sender(client, self.site.method, request, {}, trainer)
        return stack.sent("fit", replace(reply, weight=float(len(client.data))), sender)


def _told(reply: Reply) -> tuple[object, ...]:
    """The numbers of an update, and whether they have a cost."""
    return _free(reply), reply.weight, *sorted(reply.metrics.items())


def _free(reply: Reply) -> bool:
    """Whether the numbers of an update leave at no cost beside a model that has one."""
    return reply.uses[NUMBERS] == () and bool(reply.uses["model"])

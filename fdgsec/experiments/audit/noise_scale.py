"""The audit of a private trainer's divisor: does the size of the noise tell how many records there are?

DP-SGD divides the noisy sum by an expected batch. Where that number depends on private records, the noise itself tells
them apart, the better the more numbers a network has (pytorch/opacus issues 571 and 819). Guesses about single canaries
do not see this, and among a thousand records one changes the divisor too little. So a client of `RECORDS` images is
trained many times, with all of them and without one of them, and the score is the size of the updates of weights that
no record touches."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fdgsec.experiments.audit.gradient_canaries import lit_pixels, moves
from fdgsec.experiments.audit.neighboring_clients import LEAST, Site
from fdgsec.experiments.audit.one_run import canary_plan, costs, trainings
from fdgsec.experiments.audit.small_networks import one_layer
from fdgsec.federation.defense import Uses
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.method import Client, Clock
from fdgsec.nn.training.batches import TrainingSet
from fdgsec.privacy.accounting import Relation

RECORDS = 8
SIDE = 8
"""Images have 3 x 8 x 8 pixels, and the network 17 weights for each; one of 8 records changes the divisor by 1/8."""
RUNS = 40
CONFIDENCE = 0.99
LARGEST = 1e300
"""The size of what is no number: weights that an image makes so tell of it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SmallTraining:
    """Trainings of a client of `records` lit pixels through the defense's own trainer, in all rounds."""

    site: Site
    records: int = RECORDS
    side: int = SIDE

    def updates(
        self, defense_stack: DefenseStack, *, without: Relation | None = None
    ) -> tuple[list[Tensor], Sequence[Uses]]:
        """Every step's update of all weights, (T, inputs), and what each round cost.

        `without` takes one record away: by an image that contributes nothing, or (add-remove) altogether."""
        data = lit_pixels(self.records, self.side)
        if without == "add-remove":
            data = data.subset(torch.arange(1, self.records))
        images = data.pixels()
        if without == "zero-out":
            images[0] = 0
        client = Client(name=self.site.client.name, data=data)
        given, plan, found = TrainingSet(images=images, labels=data.labels), canary_plan(self.site), list[Tensor]()

        def train(with_trainer: Client, clock: Clock) -> None:
            found.extend(moves(with_trainer, self.site.method, given, plan, clock=clock, sign=1.0, seed=self.site.seed))

        trainers = trainings(self.site, defense_stack, client, train)
        return found, costs(self.site, defense_stack, client, trainers, one_layer(3 * self.side**2))

    def scores(self, defense_stack: DefenseStack, *, without: Relation | None = None) -> list[float]:
        """The log size of the noise in each of `RUNS` trainings."""
        found = []
        for run in range(RUNS):
            name = f"{defense_stack.name}/scale/{without}/{run}"
            steps, _ = self.updates(replace(defense_stack, name=name), without=without)
            size = torch.cat(steps)[:, self.records :].double().square().mean(1)
            found.append(float(size.nan_to_num(nan=LARGEST).clamp_max(LARGEST).log().clamp_min(LEAST).sum()))
        return found

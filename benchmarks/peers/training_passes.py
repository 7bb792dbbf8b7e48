"""The bare passes of a local epoch, in the format that fdgsec uses and in the fastest one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from benchmarks.passes import Bare, views
from benchmarks.peers.formats import PART, fastest
from benchmarks.training_speed import Job, Setting
from fdgsec.federation.method import GlobalModel
from fdgsec.nn.training.precision import Precision
from fdgsec.nn.training.training_plan import TrainingPlan


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingPasses:
    """What a network runs in an epoch, and in the single step by which formats are compared."""

    model: GlobalModel
    plan: TrainingPlan
    image_size: int
    epoch: Callable[[Bare], Job]
    step: Callable[[Bare], Job]

    @classmethod
    def of_views(cls, model: GlobalModel, plan: TrainingPlan, setting: Setting, *, count: int) -> Self:
        """`count` forward passes per step and their backward pass."""
        return cls(
            model=model, plan=plan, image_size=setting.image_size,
            epoch=lambda bare: partial(views, bare, count=count, steps=setting.steps),
            step=lambda bare: partial(views, bare, count=count, steps=1),
        )  # fmt: skip

    def job(self, precision: Precision | None = None) -> Job:
        """An epoch in this format; None: in the one in which fdgsec would train this network."""
        return self.epoch(self._bare(self.plan, precision))

    def fastest(self) -> str:
        """The name of the fastest format for a step on a part of a batch."""
        shorter = replace(self.plan, batch_size=max(1, self.plan.batch_size // PART))
        return fastest(lambda precision: self.step(self._bare(shorter, precision)))

    def _bare(self, plan: TrainingPlan, precision: Precision | None) -> Bare:
        return Bare.of(self.model.module(), plan, image_size=self.image_size, precision=precision)

"""The methods of benchmarks/method_speed.py, each with the network passes that its equations need per step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.passes import Adversary, Bare, Passage, adversarial, enlarged, episodes, views
from benchmarks.training_speed import Job
from fdgsec.methods.ccst import CCST
from fdgsec.methods.dsu import DSU
from fdgsec.methods.fedalign import FedAlign
from fdgsec.methods.fedavg import FedAvg
from fdgsec.methods.fedccrl import FedCCRL
from fdgsec.methods.feddag import FedDAG
from fdgsec.methods.feddg import FedDG
from fdgsec.methods.fisc import FISC
from fdgsec.methods.fpl import FPL
from fdgsec.methods.mixstyle import MixStyle
from fdgsec.methods.stablefdg import StableFDG
from fdgsec.nn.training.augmix import AugMix
from fdgsec.nn.training.training_plan import TrainingPlan

PLAN = TrainingPlan(batch_size=32, learning_rate=1e-4, momentum=0.9)


@dataclass(frozen=True, kw_only=True, eq=False)
class Observed:
    """What a bare epoch may depend on: the steps of `fit`, their passages, and the validation images."""

    steps: int
    passages: Sequence[Passage]
    validation: int


Bareness = Callable[[Bare, Observed], Job]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A method, its passes per step in words and as a job, and the method without its other operations."""

    method: FedAvg
    needs: str
    bare: Bareness
    plainer: FedAvg | None = None


def several(count: int) -> Bareness:
    """`count` forward passes and their backward pass."""
    return lambda bare, seen: partial(views, bare, count=count, steps=seen.steps)


def exploring(bare: Bare, seen: Observed) -> Job:
    """Passes whose batch grows as it did in `fit`."""
    return partial(enlarged, bare, passages=seen.passages)


def generating(bare: Bare, seen: Observed) -> Job:
    """Passes of FedDAG's three networks."""
    validation = bare.images[torch.arange(seen.validation) % len(bare.images)]
    return partial(adversarial, bare, Adversary.of(bare.network, PLAN), steps=seen.steps, validation=validation)


def episodic(bare: Bare, seen: Observed) -> Job:
    """Inner and outer passes of FedDG."""
    return partial(episodes, bare, steps=seen.steps)


ONE = "1 forward, backward"
CASES: Mapping[str, Case] = {
    "fedavg": Case(method=FedAvg(plan=PLAN), needs=ONE, bare=several(1)),
    "mixstyle": Case(
        method=MixStyle(plan=PLAN), needs=ONE, bare=several(1), plainer=MixStyle(plan=PLAN, probability=0.0)
    ),
    "dsu": Case(method=DSU(plan=PLAN), needs=ONE, bare=several(1), plainer=DSU(plan=PLAN, probability=0.0)),
    "fpl": Case(method=FPL(plan=PLAN), needs=ONE, bare=several(1)),
    "ccst": Case(method=CCST(plan=PLAN, k=2), needs=ONE + ", of K = 2 times the images", bare=several(1)),
    "stablefdg": Case(method=StableFDG(plan=PLAN), needs=ONE + ", growing as drawn", bare=exploring),
    "fisc": Case(method=FISC(plan=PLAN), needs="2 forward, backward", bare=several(2)),
    "fedccrl": Case(
        method=FedCCRL(plan=PLAN), needs="3 forward, backward", bare=several(3),
        plainer=FedCCRL(plan=PLAN, mixing=False, perturbing=False),
    ),
    "fedalign": Case(
        method=FedAlign(plan=PLAN), needs="3 forward, backward", bare=several(3),
        plainer=FedAlign(plan=PLAN, mixing=False, perturbing=False),
    ),
    "fedalign-paper": Case(  # the preset: chains of its own for every image, and a discriminator
        method=FedAlign(
            plan=PLAN, augmix=AugMix(width=-1, per_image=True), augmix_difficulty=True, discriminator="reversed"
        ),
        needs="3 forward, backward", bare=several(3),
        plainer=FedAlign(plan=PLAN, mixing=False, perturbing=False, discriminator="reversed"),
    ),
    "feddg": Case(
        method=FedDG(plan=PLAN, meta_gradient="first-order"), needs="2 forward, backward, the second behind a step",
        bare=episodic,
    ),
    "feddag": Case(
        method=FedDAG(plan=PLAN, warm_up=0),
        needs="teacher forward; generator forward, backward; student 2 forward, backward, 1 backward to the image",
        bare=generating,
    ),
}  # fmt: skip

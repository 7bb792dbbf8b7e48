"""What keyed noise costs: a private-styles release and a DP-SGD step, over the same with torch's own generator.

    python -m benchmarks.noise_cost

Prints one JSON line per case: seconds with either sampler (medians of `--repeats` alternating runs in this process) and
their ratio; and the same for numbers of the discrete Gaussian over as many normal numbers, both keyed. The release is
CCST's pooled style of 100 images under `private-styles`; the step is one of dp-sgd on 16 images of 32 px, with a
network of `--backbone` and group norm."""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import torch
from torch import Tensor

from fdgsec.data.shapes import shapes
from fdgsec.defenses import private_styles
from fdgsec.defenses.private_styles import PrivateStyles
from fdgsec.experiments.run_config import RunConfig
from fdgsec.experiments.setup.defenses import statistic_source_of
from fdgsec.federation.defense import Sender
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.global_model import Blueprint
from fdgsec.federation.method import Client, Clock, Reply
from fdgsec.methods.ccst import CCST
from fdgsec.nn.training.batches import TrainingSet
from fdgsec.nn.training.training_loop import CrossEntropy
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.privacy import dp_sgd
from fdgsec.privacy.discrete_gaussian import GRID_BITS, discrete_gaussian
from fdgsec.privacy.dp_sgd import PrivateTrainer
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import SecretStream, simulated_stream

NUMBERS = 10**6
GENERATOR = torch.Generator().manual_seed(0)


def torch_lattice(values: Tensor, sd: float, **_unused: object) -> Tensor:
    """The noise of a release as it was before."""
    return values + sd * torch.randn(values.shape, generator=GENERATOR, dtype=torch.float64)


def torch_noisy(totals: Sequence[Tensor], noise: float, _secret: SecretStream) -> list[Tensor]:
    """The noise of a step as it was before."""
    return [total + noise * torch.randn(total.shape, generator=GENERATOR) for total in totals]


@contextmanager
def as_before() -> Iterator[None]:
    """Draw all noise from torch's generator inside the block."""
    with (
        mock.patch.object(private_styles, "lattice_gaussian", torch_lattice),
        mock.patch.object(dp_sgd, "noisy", torch_noisy),
    ):
        yield


def release() -> Callable[[], object]:
    """One message of a client under private-styles; what is public is computed beforehand."""
    method, images = CCST(), shapes(image_size=64, per_domain=100).of_domain(0)
    stack = DefenseStack(
        defenses=(PrivateStyles(),), statistic_source=statistic_source_of(RunConfig(method="ccst"), method)
    )
    clock = Clock(round=0, rounds=0, participants=("client:0",))
    client = Client(name="client:0", data=images)
    sent, state = method.share(client, model=None, state={}, clock=clock, rng=stream(0, "world", "share"))
    sender = Sender(
        client=client, method=method, clock=clock, model=None, state=state, statistic_source=stack.statistic_source
    )
    _ = sender.records

    def act() -> object:
        return stack.sent("share", Reply(artifacts=sent), sender)

    act()
    return act


def step(backbone: str) -> Callable[[], object]:
    """One private step of a network."""
    plan = TrainingPlan(batch_size=16, steps=1, crop=None, flip=0.0)
    network = Blueprint(backbone=backbone, classes=7, norm="group").network(stream(0, "world", "network"))
    data = TrainingSet.of(shapes(image_size=32, per_domain=64).of_domain(0))

    def act() -> object:
        trainer = PrivateTrainer(noise_multiplier=1.0, max_grad_norm=1.0, secret=simulated_stream(0, "steps"), probes=0)
        return trainer(network, data, CrossEntropy(), replace(plan, steps=1), stream(0, "world", "fit"))

    act()
    return act


def with_torch(act: Callable[[], object]) -> Callable[[], object]:
    """The same with noise of torch's generator."""

    def before() -> object:
        with as_before():
            return act()

    return before


def seconds(both: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Median seconds of each, in turns."""
    found: list[list[float]] = [[] for _ in both]
    for _ in range(repeats):
        for act, own in zip(both, found, strict=True):
            begun = time.perf_counter()
            act()
            own.append(time.perf_counter() - begun)
    return [statistics.median(own) for own in found]


def main() -> None:
    """Time all cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--backbone", default="resnet18")
    told = parser.parse_args()
    secret, released, stepped = simulated_stream(0, "numbers"), release(), step(told.backbone)
    cases = {
        "private-styles release": (with_torch(released), released),
        f"dp-sgd step, {told.backbone}": (with_torch(stepped), stepped),
        "a million discrete numbers over normal ones": (
            lambda: secret.normal(NUMBERS), lambda: discrete_gaussian(2**GRID_BITS, NUMBERS, secret)
        ),
    }  # fmt: skip
    for name, both in cases.items():
        before, now = seconds(both, told.repeats)
        print(
            json.dumps(
                {"case": name, "before": round(before, 5), "now": round(now, 5), "ratio": round(now / before, 3)}
            )
        )


if __name__ == "__main__":
    main()

"""Training on a device: the numbers of the CPU, and no transfer in any step."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from fdgsec.nn.networks.classifiers import Classifier, build_classifier
from fdgsec.nn.training.batches import Batch, TrainingSet
from fdgsec.nn.training.training_loop import CrossEntropy, epochs
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import stream
from tests.support.counting_device import DEVICE, Kind, counting_device

AUGMENTED = TrainingPlan(batch_size=4, learning_rate=0.01, momentum=0.9, translate=0.5)
"""Crops, translations and flips."""
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FDGSEC_PRECISION", "float32")


def pictures(records: int, *, partners: bool = False) -> TrainingSet:
    rng = stream(0, "world", "pictures")
    images, others = (torch.randint(0, 256, (records, 3, 32, 32), generator=rng, dtype=torch.uint8) for _ in range(2))
    return TrainingSet(images=images, labels=torch.arange(records) % 2, partners=others if partners else None)


@dataclass(frozen=True)
class DrawsToo:
    """Cross-entropy that draws from the stream of the batches, as MixStyle does."""

    rng: torch.Generator
    couples_records: bool = False

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        factor = float(torch.rand((), generator=self.rng))
        return factor * CrossEntropy()(batch, model)


def trained(
    device: torch.device, plan: TrainingPlan, *, data: TrainingSet, shared: bool = False
) -> tuple[Mapping[str, Tensor], Tensor]:
    """The trained state and the state of the generator afterwards, both on the CPU."""
    rng = stream(0, "world", "training")
    network = build_classifier("tiny", 2, rng=stream(0, "world", "network")).to(device)
    epochs(network, data, DrawsToo(rng) if shared else CrossEntropy(), plan, rng)
    return {name: value.cpu() for name, value in network.state_dict().items()}, rng.get_state()


def per_step(plan: TrainingPlan, *kinds: Kind, data: TrainingSet) -> float:
    """Transfers of the fourth to sixth step of training, per step."""
    found = []
    for steps in (3, 6):
        with counting_device() as transfers:
            trained(DEVICE, replace(plan, steps=steps), data=data)
        found.append(transfers.count(*kinds))
    return (found[1] - found[0]) / 3


@pytest.mark.parametrize("plan", [AUGMENTED, replace(AUGMENTED, crop=None, translate=0.0), replace(AUGMENTED, flip=0)])
@pytest.mark.parametrize("partners", [False, True])
def test_a_step_of_cross_entropy_transfers_nothing(plan: TrainingPlan, partners: bool):
    assert per_step(plan, "up", "down", "read", data=pictures(27, partners=partners)) == 0


def test_an_epoch_moves_its_order_its_labels_and_its_draws_at_once():
    def moved(rounds: int) -> int:
        with counting_device() as transfers:
            trained(DEVICE, replace(AUGMENTED, epochs=rounds), data=pictures(27))
        return transfers.count("up")

    assert moved(3) - moved(2) == 3


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_on_a_device_gives_the_numbers_of_the_cpu(shared: bool, optimizer: str):
    plan = replace(AUGMENTED, steps=9, optimizer=optimizer)
    data = pictures(13, partners=True)
    state, generator = trained(CPU, plan, data=data, shared=shared)
    with counting_device():
        on_device, left = trained(DEVICE, plan, data=data, shared=shared)
    assert all(torch.equal(on_device[name], value) for name, value in state.items())
    assert torch.equal(left, generator)

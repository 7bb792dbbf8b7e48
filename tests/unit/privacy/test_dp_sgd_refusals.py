"""What DP-SGD cannot bound is refused before the first step, with what would help."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fdgsec.methods.fedprox import FedProx
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import Batch
from fdgsec.nn.training.per_sample_gradients import PrivateTrainingError
from fdgsec.nn.training.training_loop import CrossEntropy, Objective
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.privacy.record_independence import BatchCouplingError
from fdgsec.runtime.errors import UsageError
from tests.support.private_setting import PLAN, Made, data, network, trained, trainer, world
from tests.support.single_records import prepared, three_clients


def refused(objective: Objective, model: Classifier | None = None, plan: TrainingPlan = PLAN) -> str:
    how = trainer(noise=1.0, bound=1.0)
    with pytest.raises(PrivateTrainingError) as found:
        how(model or network(), data(), objective, plan, world())
    assert how.uses == ()
    return str(found.value)


def test_batch_norm_is_refused_with_the_option_that_helps():
    assert "--norm group" in refused(CrossEntropy(), network("batch"))


def test_operations_in_place_are_refused():
    model = network()
    model.neck = nn.Sequential(model.neck, nn.ReLU(inplace=True))

    assert "in place" in refused(CrossEntropy(), model)


def test_freeze_norm_is_refused():
    assert "freeze_norm" in refused(CrossEntropy(), plan=replace(PLAN, freeze_norm=True))


def test_parameters_beside_the_network_are_refused():
    extra = nn.Parameter(torch.zeros(2))
    model = network()

    with pytest.raises(PrivateTrainingError, match="beside"):
        trainer()(model, data(), CrossEntropy(), PLAN, world(), beside=[extra])
    with pytest.raises(PrivateTrainingError, match="no others"):
        trainer()(model, data(), CrossEntropy(), PLAN, world(), optimizer=torch.optim.SGD([extra], lr=0.1))


def test_a_term_in_the_weights_themselves_is_refused_although_it_is_zero_at_first():
    held = prepared(FedProx(plan=PLAN), three_clients())

    assert "outside its layer" in refused(held.objective(), held.network())


def test_records_in_other_rows_of_a_second_pass_are_refused():
    def turned(batch: Batch, model: Classifier) -> Tensor:
        back = functional.cross_entropy(model(batch.images.flip(0)), batch.labels.flip(0), reduction="none").flip(0)
        return back + functional.cross_entropy(model(batch.images), batch.labels, reduction="none")

    assert "other rows" in refused(Made(turned))


def test_views_joined_into_one_pass_are_refused():
    def joined(batch: Batch, model: Classifier) -> Tensor:
        both = functional.cross_entropy(
            model(torch.cat([batch.images, batch.images])), batch.labels.repeat(2), reduction="none"
        )
        return both.view(2, -1).sum(0)

    assert "saw 16 rows for 8 losses" in refused(Made(joined))


def test_coupled_records_are_refused_measured_or_declared():
    def centered(batch: Batch, model: Classifier) -> Tensor:
        losses = functional.cross_entropy(model(batch.images), batch.labels, reduction="none")
        return losses - losses.mean()

    for objective in (Made(centered), CrossEntropy(couples_records=True)):
        with pytest.raises(BatchCouplingError):
            trainer(probes=8)(network(), data(), objective, PLAN, world())


def test_numbers_that_promise_nothing_are_refused():
    with pytest.raises(UsageError, match="no training images"):
        trainer()(network(), data(0), CrossEntropy(), PLAN, world())
    with pytest.raises(UsageError, match="multiplier of at least 0"):
        trainer(noise=-1.0, bound=1.0)
    with pytest.raises(UsageError, match="finite gradient norm"):
        trainer(noise=1.0)
    with pytest.raises(UsageError, match="physical batch"):
        trainer(most=0)


def test_one_record_trains_too():
    assert trained(trainer(noise=1.0, bound=1.0), data(1)).isfinite().all()


def test_a_buffer_that_learns_from_the_images_is_refused():
    """Instance norm with running statistics keeps records apart in the loss, and would send their averages."""
    model = network()
    model.neck.add_module("kept", RunningMean())

    with pytest.raises(PrivateTrainingError, match=r"buffer neck\.kept\.mean changed"):
        trainer()(model, data(), CrossEntropy(), PLAN, world())


class RunningMean(nn.Module):
    """Passes maps on, and keeps their mean."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, maps: Tensor) -> Tensor:
        self.mean = self.mean + maps.detach().mean()
        return maps

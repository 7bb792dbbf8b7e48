"""Steps that several networks take together: what a record adds to them has a bound, and noise belongs to that bound."""

import math
from collections.abc import Iterable, Iterator

import pytest
import torch
from torch import Tensor, nn

from fdgsec.federation import dp_sgd_joint
from fdgsec.federation.dp_sgd_joint import Gradients, joint_step, joint_training, single_records, trained
from fdgsec.nn.training.batches import Batch, TrainingSet
from fdgsec.nn.training.per_sample_gradients import PrivateTrainingError
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.privacy.dp_sgd import PrivateTrainer
from fdgsec.runtime.secret_streams import SecretStream, simulated_stream


def drawn(name: str = "joint") -> SecretStream:
    return simulated_stream(0, name)


def optimizers(*sizes: int) -> list[torch.optim.Optimizer]:
    """Plain descent with rate 1 of one vector of zeros each."""
    return [torch.optim.SGD([nn.Parameter(torch.zeros(size))], lr=1.0) for size in sizes]


def moved(found: list[torch.optim.Optimizer]) -> list[Tensor]:
    return [-trained(each)[0].detach() for each in found]


def records(count: int, *sizes: int, scale: float = 1.0) -> list[Gradients]:
    draws = drawn("records")
    return [[[scale * draws.normal(size).float()] for size in sizes] for _ in range(count)]


def step(found: list[torch.optim.Optimizer], given: Iterable[Gradients], **options: float) -> None:
    """A step with bound 1 and expected size 1 and without noise, unless told otherwise."""
    joint_step(found, given, secret=drawn(), **{"bound": 1.0, "expected": 1.0, "noise": 0.0, **options})


def test_a_step_is_the_sum_of_clipped_gradients_over_the_expected_size():
    found, given = optimizers(5, 3), records(6, 5, 3)

    step(found, given, expected=4.0)

    for network, size in enumerate((5, 3)):
        total = torch.zeros(size, dtype=torch.float64)  # slow transcription
        for one in given:
            vector = one[network][0].double()
            total += vector * min(1.0, math.sqrt(0.5) / float(vector.norm())) / 4
        assert torch.allclose(moved(found)[network].double(), total, atol=1e-6)


def test_short_gradients_are_added_as_they_are():
    found, given = optimizers(5), records(3, 5, scale=0.01)

    step(found, given)

    assert torch.allclose(moved(found)[0], torch.stack([one[0][0] for one in given]).sum(0), atol=1e-7)


@pytest.mark.parametrize("networks", [1, 2, 3])
@pytest.mark.parametrize("scale", [0.1, 1.0, 1e6])
def test_one_record_more_moves_all_networks_together_by_at_most_the_bound(networks: int, scale: float):
    sizes = (5, 3, 7)[:networks]
    given = records(6, *sizes, scale=scale)
    with_, without = optimizers(*sizes), optimizers(*sizes)

    step(with_, given, bound=0.7)
    step(without, given[:-1], bound=0.7)

    gap = torch.cat([one.double() - other.double() for one, other in zip(moved(with_), moved(without), strict=True)])
    assert float(gap.norm()) <= 0.7 + 1e-6
    if scale == 1e6:  # every part is as long as it may be
        assert float(gap.norm()) == pytest.approx(0.7, abs=1e-5)


def test_noise_is_the_same_in_every_network_and_comes_without_records_too():
    found = optimizers(20_000, 20_000)

    step(found, [], noise=1.0, bound=0.5, expected=10.0)

    first, second = moved(found)
    for noise in (first, second):
        assert float(noise.std()) == pytest.approx(1.0 / 10.0, rel=0.03)  # six standard deviations
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.05


def test_the_noise_is_the_secret_generators():
    found, again = optimizers(8), optimizers(8)

    step(found, [], noise=1.0)
    step(again, [], noise=1.0)

    assert torch.equal(moved(found)[0], moved(again)[0])
    assert torch.equal(-moved(found)[0], torch.zeros(8) - drawn().normal(8).float())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_adds_nothing(value: float):
    found, alone = optimizers(5), optimizers(5)
    given = records(3, 5)

    step(found, [*given, [[torch.full((5,), value)]]])
    step(alone, given)

    torch.testing.assert_close(moved(found)[0], moved(alone)[0])  # other sums of as many records round otherwise


@pytest.mark.parametrize("stacked", [1, 24, 40, 1000])  # one record of 8 numbers at a time, three, five and all
def test_however_many_records_are_clipped_together_the_step_is_the_same(stacked: int, monkeypatch: pytest.MonkeyPatch):
    given = [*records(6, 5, 3, scale=3.0), [[torch.full((5,), math.nan)], [torch.full((3,), 0.1)]]]
    alone, found = optimizers(5, 3), optimizers(5, 3)
    step(alone, given)

    monkeypatch.setattr(dp_sgd_joint, "STACKED", stacked)
    step(found, (one for one in given))

    for one, other in zip(moved(found), moved(alone), strict=True):
        torch.testing.assert_close(one, other)


def test_a_record_s_gradients_may_lie_in_the_memory_of_the_last_one_s():
    given = records(6, 5, 3)
    alone, found = optimizers(5, 3), optimizers(5, 3)
    memory = [[torch.zeros(5)], [torch.zeros(3)]]

    def in_place() -> Iterator[Gradients]:
        for one in given:
            for (into,), (value,) in zip(memory, one, strict=True):
                into.copy_(value)
            yield memory

    step(alone, given)
    step(found, in_place())

    for one, other in zip(moved(found), moved(alone), strict=True):
        assert torch.equal(one, other)


def test_the_noisy_gradient_stays_for_who_reads_it():
    found = optimizers(5)

    step(found, records(2, 5), noise=1.0)

    gradient = trained(found[0])[0].grad
    assert gradient is not None
    assert torch.equal(gradient, moved(found)[0])


def test_a_gradient_that_something_else_left_on_a_frozen_parameter_moves_nothing():
    found = optimizers(5)
    frozen = nn.Parameter(torch.zeros(3), requires_grad=False)
    frozen.grad = torch.full((3,), 100.0)
    found[0].add_param_group({"params": [frozen]})

    step(found, records(2, 5))

    assert torch.equal(frozen, torch.zeros(3))


def test_parameters_of_no_axes_and_of_two_precisions_are_stepped():
    single, double = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(2, dtype=torch.float64))
    found: list[torch.optim.Optimizer] = [torch.optim.SGD([single, double], lr=1.0)]

    step(found, [[[torch.tensor(3.0), torch.tensor([0.0, 4.0], dtype=torch.float64)]]])

    torch.testing.assert_close(-torch.cat([single.detach().view(1), double.detach()]).double(),
                               torch.tensor([0.6, 0.0, 0.8], dtype=torch.float64), rtol=2e-5, atol=1e-7)  # fmt: skip


@pytest.mark.parametrize("given", [[], records(1, 5, 3)])
def test_an_optimizer_that_trains_nothing_is_refused_whatever_was_drawn(given: list[Gradients]):
    found = optimizers(5, 3)
    trained(found[1])[0].requires_grad_(False)

    with pytest.raises(ValueError, match="each optimizer must train a parameter"):
        step(found, given)


def test_a_shared_sample_costs_more_than_two_of_its_own():
    """E over a step of (dP / dQ)^2 at q = .01 by integration over both releases on a grid."""
    q, z = 0.01, 1.0
    axis = torch.linspace(-12, 14, 2601, dtype=torch.float64)
    width = float(axis[1] - axis[0])
    base = torch.exp(-(axis**2) / 2) / math.sqrt(2 * math.pi)
    tilt = torch.exp((axis - 0.5) / z**2)  # N(1, z) over N(0, z) at z = 1

    single = float((base * (1 - q + q * tilt).square()).sum()) * width
    shared = float((base[:, None] * base * (1 - q + q * tilt[:, None] * tilt).square()).sum()) * width**2

    assert single == pytest.approx(1 + q**2 * (math.e - 1), rel=1e-6)
    assert shared == pytest.approx(1 + q**2 * (math.e**2 - 1), rel=1e-6)
    assert shared - 1 > 1.8 * (single**2 - 1)


def test_a_batch_is_cut_into_single_records():
    pictures = torch.rand(3, 3, 4, 4)
    batch = Batch(
        images=pictures, labels=torch.tensor([4, 5, 6]), records=torch.tensor([9, 8, 7]), partners=1 - pictures
    )

    found = list(single_records(batch))

    assert [(int(one.labels), int(one.records)) for one in found] == [(4, 9), (5, 8), (6, 7)]
    assert all(one.images.shape == (1, 3, 4, 4) for one in found)
    assert found[1].partners is not None
    assert torch.equal(found[1].partners[0], 1 - pictures[1])
    assert not list(single_records(Batch(images=pictures[:0], labels=batch.labels[:0], records=batch.records[:0])))


@pytest.mark.parametrize("options", [{"bound": 0.0}, {"expected": 0.0}, {"noise": -1.0}])
def test_values_out_of_range_are_refused(options: dict[str, float]):
    with pytest.raises(ValueError, match="bound and expected must be above 0"):
        step(optimizers(2), [], **options)


def test_records_of_several_versions_are_refused_because_each_version_would_be_clipped_alone():
    network = nn.Linear(3, 2)
    data = TrainingSet(
        images=torch.zeros(4, 3, 4, 4, dtype=torch.uint8), labels=torch.zeros(4, dtype=torch.int64),
        owners=torch.tensor([0, 0, 1, 1]),
    )  # fmt: skip

    with pytest.raises(PrivateTrainingError, match="several versions"):
        joint_training(
            PrivateTrainer(noise_multiplier=1.0, max_grad_norm=1.0, secret=drawn()), [network],
            [torch.optim.SGD(network.parameters(), lr=1.0)], data, lambda batch: [], TrainingPlan(steps=1, crop=None),
            device=torch.device("cpu"), layout=torch.contiguous_format, after=lambda: None,
        )  # fmt: skip


class _Counting(nn.Linear):
    """Counts the records that it was shown, in a buffer, which is sent."""

    shown: Tensor

    def __init__(self) -> None:
        super().__init__(48, 2)
        self.register_buffer("shown", torch.zeros(()))


@pytest.mark.parametrize("counting", [True, False])
def test_a_buffer_that_changes_with_the_records_is_refused(counting: bool):
    network = _Counting()
    data = TrainingSet(images=torch.zeros(4, 3, 4, 4, dtype=torch.uint8), labels=torch.zeros(4, dtype=torch.int64))

    def gradients(record: Batch) -> Gradients:
        if counting:
            network.shown += 1
        return [list(torch.autograd.grad(network(record.images.flatten(1)).sum(), list(network.parameters())))]

    def trained_jointly() -> dict[str, float]:
        return joint_training(
            PrivateTrainer(noise_multiplier=1.0, max_grad_norm=1.0, secret=drawn()), [network],
            [torch.optim.SGD(network.parameters(), lr=1.0)], data, gradients, TrainingPlan(steps=4, crop=None),
            device=torch.device("cpu"), layout=torch.contiguous_format, after=lambda: None,
        )  # fmt: skip

    if counting:
        with pytest.raises(PrivateTrainingError, match="the buffer shown changed in training"):
            trained_jointly()
    else:
        assert trained_jointly() == {"steps": 4.0}


def test_joint_steps_without_an_optimizer_are_refused():
    network = nn.Linear(48, 2)
    data = TrainingSet(images=torch.zeros(4, 3, 4, 4, dtype=torch.uint8), labels=torch.zeros(4, dtype=torch.int64))

    with pytest.raises(PrivateTrainingError, match="at least one optimizer"):
        joint_training(
            PrivateTrainer(noise_multiplier=1.0, max_grad_norm=1.0, secret=drawn()), [network], [], data,
            lambda batch: [], TrainingPlan(steps=1, crop=None), device=torch.device("cpu"),
            layout=torch.contiguous_format, after=lambda: None,
        )  # fmt: skip


def test_one_optimizer_may_train_several_networks():
    networks = [nn.Linear(48, 2), nn.Linear(48, 3)]
    optimizer = torch.optim.SGD([*networks[0].parameters(), *networks[1].parameters()], lr=1.0)
    data = TrainingSet(images=torch.zeros(4, 3, 4, 4, dtype=torch.uint8), labels=torch.zeros(4, dtype=torch.int64))

    def gradients(record: Batch) -> Gradients:
        answered = torch.stack([network(record.images.flatten(1)).sum() for network in networks]).sum()
        return [list(torch.autograd.grad(answered, trained(optimizer)))]

    found = joint_training(
        PrivateTrainer(noise_multiplier=1.0, max_grad_norm=1.0, secret=drawn()), networks, [optimizer], data, gradients,
        TrainingPlan(steps=2, crop=None), device=torch.device("cpu"), layout=torch.contiguous_format,
        after=lambda: None,
    )  # fmt: skip

    assert found == {"steps": 2.0}

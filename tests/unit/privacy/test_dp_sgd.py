"""DP-SGD's loop: whose gradients are clipped to what, how much noise comes on top, and what of it leaves."""

import math
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fdgsec.nn.networks.classifiers import Classifier, build_classifier
from fdgsec.nn.training.batches import Batch
from fdgsec.nn.training.per_sample_gradients import PrivateTrainingError
from fdgsec.nn.training.training_loop import CrossEntropy, epochs
from fdgsec.nn.training.training_plan import optimizer_of
from fdgsec.privacy.dp_sgd import private_steps, sampling_rate, uses_of
from fdgsec.runtime.random_streams import stream
from tests.support.private_setting import PLAN, WHOLE, Made, data, network, trained, trainer, weights, world


def test_without_noise_and_bound_and_sampling_it_is_full_batch_gradient_descent():
    plain = network()
    epochs(plain, data(), CrossEntropy(), WHOLE, world())

    private = trained(trainer(), data(), WHOLE)

    assert (private - weights(network())).norm() > 0.1
    torch.testing.assert_close(private, weights(plain), rtol=1e-4, atol=2e-6)  # sums in another order


def test_an_optimizer_goes_on_from_its_moments():
    plan = replace(WHOLE, momentum=0.9, epochs=1)
    plain, private = network(), network()
    plain_optimizer, private_optimizer = (
        optimizer_of(plain.parameters(), plan),
        optimizer_of(private.parameters(), plan),
    )
    for _ in range(2):
        epochs(plain, data(), CrossEntropy(), plan, world(), optimizer=plain_optimizer)
        trainer()(private, data(), CrossEntropy(), plan, world(), optimizer=private_optimizer)

    torch.testing.assert_close(weights(private), weights(plain), rtol=1e-4, atol=2e-6)


def test_only_the_number_of_steps_leaves():
    heard: list[tuple[int, float]] = []

    told = trainer(noise=1.0, bound=1.0)(
        network(), data(), CrossEntropy(), PLAN, world(), on_step=lambda step, loss: heard.append((step, loss))
    )

    assert told == {"steps": 2.0}
    assert [step for step, _ in heard] == [1, 2]
    assert all(math.isnan(loss) for _, loss in heard)


def test_a_seed_fixes_the_run_and_another_changes_it():
    first, again, other = (trained(trainer(noise=1.0, bound=1.0, number=n), data()) for n in (0, 0, 1))

    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_two_calls_of_one_trainer_never_draw_the_same_noise():
    how = trainer(noise=1.0, bound=1e-6)
    start = weights(network())

    moves = [trained(how, data(), replace(PLAN, steps=1)) - start for _ in range(2)]

    cosine = functional.cosine_similarity(moves[0], moves[1], dim=0)
    assert abs(float(cosine)) < 0.02  # six standard errors of 105k coordinates


def test_secrets_come_from_their_own_stream_alone():
    rng, globally = world(), torch.get_rng_state()
    before = rng.get_state()

    trainer(noise=1.0, bound=1.0)(network(), data(), CrossEntropy(), replace(PLAN, crop=(0.8, 1.0), flip=0.5), rng)

    assert torch.equal(rng.get_state(), before)
    assert torch.equal(torch.get_rng_state(), globally)


@pytest.mark.medium
def test_noise_has_the_promised_spread_in_every_coordinate():
    start = weights(network())
    plan = replace(PLAN, steps=1, learning_rate=1.0)
    draws = torch.stack(
        [trained(trainer(noise=2.0, bound=0.5, number=n), data(), plan) - start for n in range(6)]
    )  # each record adds at most .5 to the sum, over all 105k coordinates: nothing beside the noise

    expected = 2.0 * 0.5 / 8
    assert float(draws.std()) == pytest.approx(expected, rel=0.01)  # 6 x 105k draws: standard error .1%
    assert float(draws.mean()) == pytest.approx(0.0, abs=expected * 0.006)  # four standard errors


@pytest.mark.medium
def test_the_divisor_is_the_expected_batch_whatever_was_drawn():
    sums = [
        (trained(trainer(bound=1e-3, number=n), data(), replace(PLAN, steps=1)) - weights(network())).norm()
        for n in range(8)
    ]

    lengths = torch.stack(sums)  # .1 x (number drawn) x 1e-3 / 8 at most, where gradients agree
    assert len(torch.unique(lengths.round(decimals=9))) > 3
    assert float(lengths.max()) <= 0.1 * 16 * 1e-3 / 8


@pytest.mark.medium
def test_an_empty_draw_makes_a_step_of_noise_alone():
    plan = replace(PLAN, batch_size=1, steps=30)
    given = data(40)  # q = 1/40: a step is empty with probability .36

    moved = trained(trainer(noise=1.0, bound=1.0), given, plan) - weights(network())
    still = trained(trainer(), data(40), replace(plan, steps=2, learning_rate=1e-9))

    assert moved.isfinite().all()
    assert float(moved.std()) > 0.5 * 0.1 * math.sqrt(30)
    assert still.isfinite().all()


@pytest.mark.medium
def test_every_record_is_drawn_at_the_rate_that_is_paid_for():
    seen: list[Tensor] = []

    def listening(batch: Batch, model: Classifier) -> Tensor:
        seen.append(batch.records)
        return CrossEntropy()(batch, model)

    plan = replace(PLAN, batch_size=4, steps=100, learning_rate=1e-9)
    how = trainer(most=64)
    how(network(), data(), Made(listening), plan, world())

    taken = torch.cat(seen)
    assert how.uses[0].sampling_rate == 0.25
    counts = torch.bincount(taken, minlength=16).double()
    assert counts.mean() == pytest.approx(25, abs=4.5)  # 1600 coins: standard error 1.1
    assert counts.min() > 5  # four and a half standard deviations
    sizes = torch.tensor([float(len(batch)) for batch in seen])
    assert float(sizes.std()) == pytest.approx(math.sqrt(16 * 0.25 * 0.75), rel=0.3)  # binomial, not fixed


def test_the_physical_batch_changes_nothing_but_rounding():
    whole, cut = (trained(trainer(bound=0.5, most=most), data(), PLAN) for most in (64, 3))

    torch.testing.assert_close(cut, whole, rtol=1e-4, atol=1e-6)


def test_the_learning_rate_follows_the_plans_epochs():
    plan = replace(PLAN, epochs=2, schedule="cosine-epoch")
    rates: list[float] = []
    model = network()
    optimizer = optimizer_of(model.parameters(), plan)

    trainer()(
        model, data(), CrossEntropy(), plan, world(), round=1, rounds=2, optimizer=optimizer,
        on_step=lambda step, loss: rates.append(optimizer.param_groups[0]["lr"]),
    )  # fmt: skip

    expected = [plan.rate(round=1, rounds=2, epoch=epoch) for epoch in (0, 0, 1, 1)]
    assert rates == expected


def test_frozen_parameters_stay_and_the_others_move():
    model = network()
    before = weights(model.body)
    model.body.requires_grad_(False)

    trainer(noise=1.0, bound=1.0)(model, data(), CrossEntropy(), PLAN, world())

    assert torch.equal(weights(model.body), before)
    assert not torch.equal(model.head.weight, network().head.weight)


def leave_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 100.0)


@dataclass(frozen=True)
class LeavesGradients:
    """Cross-entropy that sees, and may leave, gradients on the network."""

    leaves: bool
    seen: list[bool] = field(default_factory=list)
    couples_records: bool = False

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        self.seen.append(any(parameter.grad is not None for parameter in model.parameters()))
        if self.leaves:
            leave_gradients(model)
        return CrossEntropy()(batch, model)


@pytest.mark.parametrize("while_training", [False, True])
def test_gradients_that_something_else_left_move_nothing_and_nobody_sees_them(while_training: bool):
    plan = replace(PLAN, frozen="stem")
    moved = []
    for left in (False, True):
        model = network()
        optimizer = optimizer_of(model.parameters(), plan)  # of the stem too, which is frozen only when training begins
        if left and not while_training:
            leave_gradients(model)
        objective = LeavesGradients(leaves=left and while_training)

        trainer(noise=1.0, bound=1.0)(model, data(), objective, plan, world(), optimizer=optimizer)

        assert while_training or not any(objective.seen)
        moved.append(weights(model))

    assert torch.equal(*moved)


def test_a_network_in_which_lengths_are_rounded_too_much_is_refused():
    with pytest.raises(PrivateTrainingError, match=r"is of torch\.bfloat16.*train it in float32"):
        trainer(bound=1.0)(network().to(torch.bfloat16), data(), CrossEntropy(), PLAN, world())


def test_a_call_states_no_cost_between_neighbors_of_different_size():
    """Its rate, steps and divisor follow from the number of records."""
    how = trainer(noise=1.5, bound=2.0)

    trained(how, data(), PLAN)

    assert all(set(use.sensitivity) == {"zero-out"} for use in how.uses)


def test_a_call_is_paid_for_by_public_numbers():
    how = trainer(noise=1.5, bound=2.0)

    trained(how, data(), replace(PLAN, epochs=3))
    trained(how, data(), replace(PLAN, steps=5))

    first, second = how.uses
    assert first == uses_of(16, replace(PLAN, epochs=3), noise_multiplier=1.5, max_grad_norm=2.0)
    assert (first.noise, first.sampling_rate, first.count, first.unit) == (3.0, 0.5, 6, "record")
    assert dict(first.sensitivity) == {"zero-out": 2.0}
    assert second.count == 5
    assert (sampling_rate(3, PLAN), private_steps(3, PLAN), private_steps(20, PLAN)) == (1.0, 1, 2)


def test_frozen_parts_compute_in_float32_as_the_others_do(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FDGSEC_PRECISION", "bfloat16")
    model, seen = build_classifier("tiny", 3, norm="frozen", rng=stream(0, "world", "network")), list[torch.dtype]()
    model.place("conv").register_forward_hook(lambda _module, _given, made: seen.append(made.dtype))

    trainer(noise=1.0, bound=1.0)(model, data(), CrossEntropy(), replace(PLAN, frozen="stage3"), world())

    assert set(seen) == {torch.float32}


def test_a_network_with_frozen_norm_and_parts_trains_the_rest_privately():
    model = build_classifier("tiny", 3, norm="frozen", rng=stream(0, "world", "network"))
    before = {name: value.clone() for name, value in model.state_dict().items()}

    trainer(noise=1.0, bound=1.0)(model, data(), CrossEntropy(), replace(PLAN, frozen="stage3"), world())

    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"body.stage4.0.weight", "head.weight", "head.bias"}

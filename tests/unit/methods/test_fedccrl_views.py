"""FedCCRL's views of a batch, and what its objective makes of them."""

import pytest
import torch
from torch import Tensor

from fdgsec.data.domains import as_float
from fdgsec.experiments.run_config import build
from fdgsec.federation.artifacts import StyleBank
from fdgsec.methods.fedavg import FedAvg
from fdgsec.methods.fedccrl import FedCCRL, Pool, denormalized, eight_bits, interpolate_statistics, normalized
from fdgsec.nn.styles.feature_styles import instance_statistics
from fdgsec.nn.training.augmix import dirichlet
from fdgsec.nn.training.batches import TrainingSet, epoch_of_batches
from fdgsec.nn.training.training_loop import CrossEntropy
from fdgsec.runtime.random_streams import stream
from tests.support.three_clients import CLOCK, PLAN, batch, clients, pixels, start


def test_pool_rows_are_drawn_without_replacement_where_there_are_enough():
    pool = Pool(mean=torch.zeros(9, 3), std=torch.ones(9, 3))

    few, many = (pool.rows(count, stream(0, "world", "t")) for count in (9, 40))

    assert sorted(few.tolist()) == list(range(9))
    assert many.shape == (40,)
    assert set(many.tolist()) <= set(range(9))


def test_keeping_all_of_ones_own_statistics_gives_the_image_back():
    source = pixels(5)
    inputs = normalized(as_float(source))
    other = torch.randn(2, 5, 3, 1, 1, generator=stream(0, "world", "other")).abs()

    made = interpolate_statistics(inputs, instance_statistics(inputs), (other[0], other[1]), torch.ones(5))

    assert torch.equal(eight_bits(denormalized(made)), source)


def test_keeping_none_of_ones_own_statistics_gives_those_of_the_sampled_row():
    inputs = normalized(as_float(pixels(5)))
    mean, std = torch.randn(2, 5, 3, 1, 1, generator=stream(0, "world", "other")).abs()

    made = interpolate_statistics(inputs, instance_statistics(inputs), (mean, std), torch.zeros(5))

    assert torch.allclose(made.mean((2, 3)), mean.flatten(1), atol=1e-5)
    assert torch.allclose(
        made.flatten(2).std(2), std.flatten(1), rtol=1e-4
    )  # the eps of 1e-6 against a variance near 1


def test_a_constant_image_takes_the_sampled_mean_and_no_spread():
    inputs = torch.full((1, 3, 4, 4), 0.7)
    other = (torch.full((1, 3, 1, 1), -0.2), torch.full((1, 3, 1, 1), 2.0))

    made = interpolate_statistics(inputs, instance_statistics(inputs), other, torch.zeros(1))

    assert torch.allclose(made, torch.full_like(made, -0.2), atol=1e-3)


def test_values_outside_the_range_are_clamped_or_wrap_around():
    values = torch.tensor([-0.1, 0.0, 0.5, 1.0, 1.1])

    assert eight_bits(values).tolist() == [0, 0, 128, 255, 255]
    assert eight_bits(values, wrapped=True).tolist() == [
        231,
        0,
        127,
        255,
        24,
    ]  # -25, 127.5 and 280.5 cut off, modulo 256


def test_views_keep_memory_layout_and_range_and_leave_their_source_alone():
    source = as_float(pixels(6)).contiguous(memory_format=torch.channels_last)
    before = source.clone()
    pool = Pool(mean=torch.zeros(9, 3), std=torch.ones(9, 3))

    view = FedCCRL().augmented_view(source, pool, stream(0, "world", "t"))

    assert view.is_contiguous(memory_format=torch.channels_last)
    assert 0.0 <= float(view.min()) < float(view.max()) <= 1.0
    assert torch.equal(source, before)
    assert not torch.equal(view, source)


def test_without_mixing_and_perturbing_both_views_are_the_image():
    method = FedCCRL(mixing=False, perturbing=False)
    source = as_float(pixels(4))

    assert torch.equal(method.augmented_view(source, None, stream(0, "world", "t")), source)


def test_without_views_and_alignment_the_loss_is_cross_entropy():
    method = FedCCRL(mixing=False, perturbing=False, contrast=0.0, agreement=0.0, classification="mean")
    objective = method.objective(
        clients()[0], model=start(), inbox={}, state={}, clock=CLOCK, rng=stream(0, "world", "t")
    )

    made = objective(batch(6), start().module().train())

    assert torch.allclose(made, CrossEntropy()(batch(6), start().module().train()), rtol=1e-5)


@pytest.mark.parametrize("option", ["contrast", "agreement"])
def test_a_weight_of_zero_leaves_its_term_out(option: str):
    features = [torch.randn(4, 5, generator=stream(i, "world", "z")) for i in range(3)]
    logits = [torch.randn(4, 3, generator=stream(i, "world", "y")) for i in range(3)]
    labels = torch.tensor([0, 1, 2, 0])
    off = {"contrast": 0.0, "agreement": 0.0}

    def loss(**weights: float) -> Tensor:
        return build(FedCCRL, {**off, **weights}, where="method").losses(features, logits, labels)

    once, twice = loss(**{option: 0.1}), loss(**{option: 0.2})

    assert float((once - loss()).abs().min()) > 1e-4
    assert torch.allclose(twice - once, once - loss(), rtol=1e-3, atol=1e-6)


def test_batches_come_as_in_fedavg_for_the_same_seed():
    client, pool = clients()[0], StyleBank(mean=torch.zeros(4, 3), std=torch.ones(4, 3), owner=torch.ones(4).long())
    seen: list[list[int]] = []

    for method in (FedCCRL(plan=PLAN), FedAvg(plan=PLAN)):
        rng, records = stream(0, "world", "t"), []
        objective = method.objective(client, model=start(), inbox={"pool": pool}, state={}, clock=CLOCK, rng=rng)
        network = start().module().train()
        for given in epoch_of_batches(
            TrainingSet.of(client.data), PLAN, rng, device=torch.device("cpu"), layout=torch.contiguous_format
        ):
            objective(given, network)
            records += given.records.tolist()
        seen.append(records)

    assert seen[0] == seen[1]


def test_without_a_pool_images_lend_each_other_their_statistics():
    inputs = normalized(as_float(pixels(6)))
    mean, std = instance_statistics(inputs)

    made = FedCCRL(ignore_pool=True).mix_statistics(inputs, None, stream(0, "world", "t"))

    rng = stream(0, "world", "t")
    order, lam = torch.randperm(6, generator=rng), dirichlet(6, 2, 0.1, rng)[:, 0]
    assert order.tolist() != list(range(6))
    assert torch.equal(made, interpolate_statistics(inputs, (mean, std), (mean[order], std[order]), lam))

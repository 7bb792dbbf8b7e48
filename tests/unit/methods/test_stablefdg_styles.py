"""StableFDG's style half on a batch of maps: selection and shifting (step 2), exploration and mixing (steps 3 to 5)."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fdgsec.experiments.run_config import build
from fdgsec.federation.artifacts import ArtifactError, ImageStyles, StyleDistribution
from fdgsec.methods.stablefdg import StableFDG
from fdgsec.nn.styles.feature_styles import instance_statistics
from tests.support.stablefdg_setting import CHANNELS, CLOCK, drawn, learning, maps, phi, start, three_clients


def shifted(method: StableFDG, given: Tensor, *received: StyleDistribution) -> Tensor:
    laws = method.new_styles({f"distribution.{i}": artifact for i, artifact in enumerate(received)}, {})
    assert laws is not None
    return method.shift_styles(given, laws, drawn("shift"))


@pytest.mark.parametrize("selection", ["k-means++", "random"])
def test_half_the_batch_keeps_its_bits_and_the_rest_takes_the_received_center(selection: str):
    method = build(StableFDG, {"selection": selection}, where="method")

    made = shifted(method, maps(), phi(2.5))

    kept = (made == maps()).flatten(1).all(1)
    mean, std = instance_statistics(made[~kept])
    assert int(kept.sum()) == 4
    assert torch.allclose(mean, torch.full_like(mean, 2.5), atol=1e-4)
    assert torch.allclose(std, torch.full_like(std, 2.5), atol=1e-4)


def test_of_an_odd_batch_the_larger_half_keeps_its_style():
    assert int((shifted(StableFDG(), maps(5), phi(2.5)) == maps(5)).flatten(1).all(1).sum()) == 3
    assert torch.equal(shifted(StableFDG(), maps(1), phi(2.5)), maps(1))


def test_kmeans_keeps_one_of_each_pair_of_like_styles():
    pairs = maps(4).repeat_interleave(2, 0) * torch.tensor([1.0, 1.0001]).repeat(4).view(-1, 1, 1, 1)

    kept = (shifted(StableFDG(), pairs, phi(2.5)) == pairs).flatten(1).all(1)

    assert kept.view(4, 2).sum(1).tolist() == [1, 1, 1, 1]


def test_released_selection_puts_cluster_centers_on_the_first_half():
    pairs = maps(4).repeat_interleave(2, 0)

    made = shifted(StableFDG(selection="centroids"), pairs, phi(2.5))

    own = {tuple(style.round(decimals=3).tolist()) for style in instance_statistics(maps(4))[0].flatten(1)}
    first = {tuple(style.round(decimals=3).tolist()) for style in instance_statistics(made[:4])[0].flatten(1)}
    rest = instance_statistics(made[4:])[0]
    assert first == own
    assert torch.allclose(rest, torch.full_like(rest, 2.5), atol=1e-4)


@pytest.mark.parametrize("selection", ["k-means++", "centroids"])
def test_shifting_passes_no_gradient_through_the_statistics_it_replaces(selection: str):
    method, given = build(StableFDG, {"selection": selection}, where="method"), maps().requires_grad_()

    shifted(method, given, phi(2.5))[:, :, 0, 0].sum().backward()

    assert given.grad is not None
    assert float(given.grad[:, :, 1:, 1:].abs().sum()) == 0.0  # a statistic would carry it to every place
    assert float(given.grad[:, :, 0, 0].abs().min()) > 0.0


def test_with_several_received_styles_each_sample_takes_one_of_them():
    made = shifted(StableFDG(received=3), maps(64), phi(20.0), phi(40.0), phi(60.0))

    means = instance_statistics(made)[0].flatten(1).mean(1).round()
    assert {20.0, 40.0, 60.0} <= set(means.tolist())


@pytest.mark.parametrize("spread", ["variance", "std"])
def test_what_is_sent_as_spread_is_drawn_as_such(spread: str):
    method = build(StableFDG, {"spread": spread}, where="method")

    laws = method.new_styles({"distribution.0": phi(1.0, spread=0.25)}, {})

    assert laws is not None
    assert float(laws.mean_scale[0, 0]) == (0.5 if spread == "variance" else 0.25)


def test_the_printed_law_multiplies_the_givers_variance_by_the_receivers_noise():
    method = StableFDG(shift_law="printed")
    found, state = method.share(three_clients()[0], model=start(method), state={}, clock=CLOCK, rng=drawn("share"))
    own = found["distribution"].tensors()

    laws = method.new_styles({"distribution.0": phi(1.0, spread=0.25)}, state)

    assert laws is not None
    assert torch.allclose(laws.mean_scale[0], own["mean_spread"].sqrt() * 0.25, rtol=1e-5)
    assert torch.allclose(laws.std_scale[0], own["std_spread"].sqrt() * 0.25, rtol=1e-5)


def test_no_style_is_shifted_before_its_round():
    inbox = {"distribution.0": phi(1.0)}

    early, _ = learning(StableFDG(shift_from=1), three_clients()[0], inbox=inbox, round=0)
    later, _ = learning(StableFDG(shift_from=1), three_clients()[0], inbox=inbox, round=1)

    assert early.styles is None
    assert later.styles is not None


def test_foreign_artifacts_and_foreign_channels_are_refused():
    rows = ImageStyles(mean=torch.ones(2, CHANNELS), std=torch.ones(2, CHANNELS))

    with pytest.raises(TypeError, match="shifts to a StyleDistribution; received ImageStyles"):
        StableFDG().new_styles({"distribution.0": rows}, {})
    with pytest.raises(ArtifactError, match=r"32 channels is expected at stage1; got 7"):
        shifted(StableFDG(), maps(), phi(1.0, channels=7))


def test_exploration_by_nothing_appends_samples_as_they_are():
    method = StableFDG(exploration=0.0, mix_alpha=None)
    labels = torch.tensor([0, 0, 0, 1])

    made, found, _ = method.explore_styles(maps(4), labels, drawn("rows"), size=2)

    assert found.tolist() == [0, 0, 0, 1, 1, 1]
    assert torch.allclose(made, maps(4)[[0, 1, 2, 3, 3, 3]], atol=1e-6)


def test_explored_samples_lie_farther_from_the_center_by_alpha():
    method = StableFDG(exploration=2.0, mix_alpha=None)
    labels = torch.tensor([0, 0, 0, 1])
    mean, _ = instance_statistics(maps(4))

    made, _, _ = method.explore_styles(maps(4), labels, drawn("rows"), size=2)

    expected = mean[3] + 2 * (mean[3] - mean.mean(0))
    assert torch.allclose(instance_statistics(made[4:])[0], expected.expand(2, CHANNELS, 1, 1), atol=1e-5)
    assert torch.allclose(made[:4], maps(4), atol=1e-6)


def test_the_center_may_be_that_of_the_oversampled_batch():
    method = StableFDG(exploration=2.0, mix_alpha=None, explore_center="concatenated")
    mean, _ = instance_statistics(maps(4))

    made, _, _ = method.explore_styles(maps(4), torch.tensor([0, 0, 0, 1]), drawn("rows"), size=2)

    center = (mean.sum(0) + 2 * mean[3]) / 6
    assert torch.allclose(instance_statistics(made[4:])[0][0], mean[3] + 2 * (mean[3] - center), atol=1e-5)


def test_a_negative_explored_std_turns_content_over_unless_it_is_clamped():
    free = StableFDG(exploration=20.0, mix_alpha=None)
    clamped = replace(free, clamp_explored=True)
    labels = torch.tensor([0, 0, 0, 1])

    made, _, stds = free.explore_styles(maps(4), labels, drawn("rows"), size=2)
    flat, _, again = clamped.explore_styles(maps(4), labels, drawn("rows"), size=2)

    negative = (stds < 0).flatten(1)
    assert torch.equal(stds, again)
    assert 0 < int(negative.sum()) < negative.numel()
    original = maps(4)[[3, 3]].flatten(2)
    agreement = (made[4:].flatten(2) * (original - original.mean(2, keepdim=True))).mean(2)
    assert torch.equal(agreement < 0, negative)
    assert float(flat[4:].flatten(2).std(2)[negative].max()) == 0.0


def test_without_mixing_and_without_oversampling_maps_pass_as_they_are():
    made, labels, _ = StableFDG(mix_alpha=None).explore_styles(maps(4), torch.arange(4), drawn("rows"), size=0)

    assert torch.equal(made, maps(4))
    assert labels.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("gradient", "reach"), [("none", False), ("normalization", True), ("all", True)])
def test_gradients_flow_through_the_statistics_that_the_option_names(gradient: str, reach: bool):
    method, given = build(StableFDG, {"gradient": gradient}, where="method"), maps(4).requires_grad_()

    method.explore_styles(given, torch.arange(4), drawn("rows"), size=4)[0][:, :, 0, 0].sum().backward()

    assert given.grad is not None
    assert bool(given.grad[:, :, 1:, 1:].abs().sum() > 0) == reach


def test_gradients_of_new_styles_are_kept_only_by_all():
    def gradient_of_means(option: str) -> float:
        method, given = build(StableFDG, {"gradient": option}, where="method"), maps(4).double().requires_grad_()
        method.explore_styles(given, torch.arange(4), drawn("rows"), size=4)[0].sum().backward()
        assert given.grad is not None
        return float(given.grad.abs().max())

    assert gradient_of_means("normalization") < 1e-10  # a map's sum is its new mean alone
    assert gradient_of_means("all") > 0.1

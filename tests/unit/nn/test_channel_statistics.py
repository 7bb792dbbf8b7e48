import pytest
import torch

from fdgsec.nn.styles.channel_statistics import (
    adain,
    concatenated,
    linear_statistic,
    moments,
    recentered,
    style_of,
    unbiased_to_biased,
)
from fdgsec.runtime.random_streams import stream


def features(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=stream(0, "world", "test"), dtype=torch.float64) * 3 + 1


def test_pooling_equals_the_style_of_all_pixels_stacked():
    maps = features(5, 4, 6, 7)
    stacked = maps.permute(1, 0, 2, 3).flatten(1)

    mean, std = moments(maps).pooled().style(unbiased=False, eps=1e-5)

    assert torch.allclose(mean[0], stacked.mean(1), rtol=1e-12)
    assert torch.allclose(std[0], (stacked.var(1, correction=0) + 1e-5).sqrt(), rtol=1e-12)


def test_pooled_sigma_is_not_the_mean_of_the_images_sigmas():
    dark, bright = torch.zeros(1, 2, 4, 4), torch.ones(1, 2, 4, 4)
    both = torch.cat([dark, bright])

    _, per_image = moments(both).style(unbiased=False, eps=0.0)
    _, overall = moments(both).pooled().style(unbiased=False, eps=0.0)

    assert float(per_image.max()) == 0.0
    assert torch.allclose(overall, torch.full((1, 2), 0.5, dtype=torch.float64))


@pytest.mark.parametrize("batch", [1, 3, 8, 64])
def test_pooling_depends_on_neither_batch_size_nor_order(batch: int):
    maps = features(64, 8, 5, 5).float() * 1000
    order = torch.randperm(64, generator=stream(1, "world", "order"))
    once = moments(maps).pooled()

    parts = concatenated([moments(chunk) for chunk in maps[order].split(batch)]).pooled()

    assert torch.allclose(parts.mean, once.mean, rtol=1e-12)
    assert torch.allclose(parts.m2, once.m2, rtol=1e-10)


def test_statistics_of_images_of_different_size_pool_by_pixels():
    small, large = features(2, 3, 2, 2), features(3, 3, 8, 8)
    stacked = torch.cat([small.permute(1, 0, 2, 3).flatten(1), large.permute(1, 0, 2, 3).flatten(1)], 1)

    pooled = concatenated([moments(small), moments(large)]).pooled()

    assert torch.allclose(pooled.mean[0], stacked.mean(1), rtol=1e-12)


def test_adain_output_has_the_target_statistics():
    content = features(3, 4, 16, 16)
    mean, std = torch.tensor([5.0, -2.0, 0.0, 100.0]).double(), torch.tensor([1.0, 3.0, 0.5, 20.0]).double()

    out_mean, out_std = style_of(adain(content, mean, std), eps=0.0)

    assert torch.allclose(out_mean, mean.expand(3, 4), atol=1e-9)
    assert torch.allclose(out_std, std.expand(3, 4), rtol=1e-5)  # std(out) = t sqrt(v / (v + eps)) with v about 9


def test_adain_turns_a_constant_channel_into_the_mean():
    content = torch.full((1, 2, 4, 4), 7.0)

    result = adain(content, torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))

    assert torch.equal(result[0, 0], torch.full((4, 4), 1.0))
    assert torch.equal(result[0, 1], torch.full((4, 4), 2.0))


def test_adain_refuses_other_channels():
    with pytest.raises(ValueError, match="C = 2"):
        adain(torch.zeros(1, 2, 4, 4), torch.zeros(3), torch.zeros(3))


def test_groups_are_pooled_as_each_alone_whatever_their_labels():
    maps = [torch.randn(1, 3, side, 5, generator=stream(side, "world", "maps")) for side in (2, 3, 4, 5, 6)]
    images, labels = concatenated([moments(each) for each in maps]), torch.tensor([7, 2, 7, 2, 4])

    groups = images.pooled_within(labels)

    for number, label in enumerate((2, 4, 7)):
        alone = images.rows((labels == label).nonzero().flatten()).pooled()
        for name in ("count", "mean", "m2"):
            assert torch.allclose(getattr(groups, name)[number], getattr(alone, name)[0], rtol=1e-12)


def test_a_pooled_release_is_the_mean_of_the_images_linear_statistics():
    maps = features(6, 4, 5, 5)
    each = linear_statistic(*moments(maps).style(unbiased=False))

    pooled = linear_statistic(*moments(maps).pooled().style(unbiased=False))

    assert torch.allclose(pooled[0], each.mean(0), rtol=1e-10, atol=1e-12)


def test_an_unbiased_std_turns_into_the_biased_one():
    maps = features(2, 3, 4, 4)
    _, biased = moments(maps).style(unbiased=False)
    _, unbiased = moments(maps).style(unbiased=True)

    assert torch.allclose(unbiased_to_biased(unbiased, pixels=16), biased, rtol=1e-12)


def test_nothing_cannot_be_pooled():
    with pytest.raises(ValueError, match="no images"):
        moments(torch.zeros(0, 3, 2, 2)).pooled()


def test_the_linear_statistic_of_moments_is_that_of_their_biased_style():
    found = moments(features(6, 4, 5, 5))

    assert torch.allclose(found.linear(), linear_statistic(*found.style(unbiased=False)), rtol=1e-12)


def test_a_recentered_statistic_is_that_of_shifted_features():
    maps, center = features(6, 4, 5, 5), torch.tensor([3.0, -1.0, 0.5, 7.0], dtype=torch.float64)
    shifted = moments(maps - center.view(1, 4, 1, 1)).linear()

    found = recentered(moments(maps).linear(), center)

    assert torch.allclose(found[:, :4] - center, shifted[:, :4])
    assert torch.allclose(found[:, 4:], shifted[:, 4:])

"""Styles of feature maps: AdaIN between them, MixStyle, exploration, k-means++ selection, water-filling oversampling."""

import pytest
import torch
from torch import Tensor

from fdgsec.nn.networks.classifiers import build_classifier
from fdgsec.nn.styles.feature_styles import (
    StyleLaws,
    apply_style,
    balancing_additions,
    early_maps,
    explored,
    greedy_seeds,
    instance_statistics,
    kmeans_step,
    mixed_statistics,
    mixed_styles,
    oversampled_rows,
)
from fdgsec.runtime.random_streams import stream


def drawn(name: str) -> torch.Generator:
    return stream(0, "world", name)


def maps(count: int = 6, channels: int = 3, side: int = 5) -> Tensor:
    scale = 1 + torch.rand(count, channels, 1, 1, generator=drawn("scale"))
    return torch.randn(count, channels, side, side, generator=drawn("maps")) * scale + scale


@pytest.mark.parametrize("unbiased", [True, False])
def test_statistics_are_torchs_mean_and_std_over_places(unbiased: bool):
    mean, std = instance_statistics(maps(), eps=1e-6, unbiased=unbiased)

    flat = maps().double().flatten(2)
    assert torch.allclose(mean.flatten(1).double(), flat.mean(2), atol=1e-6)
    assert torch.allclose(
        std.flatten(1).double(), (flat.var(2, correction=int(unbiased)) + 1e-6).sqrt(), rtol=1e-5, atol=0
    )


def test_statistics_of_low_precision_maps_are_taken_in_float32():
    mean, std = instance_statistics(maps().bfloat16())

    assert (mean.dtype, std.dtype) == (torch.float32, torch.float32)


def test_a_map_of_one_pixel_has_no_variance_and_gives_no_nan():
    _, std = instance_statistics(torch.ones(2, 3, 1, 1), eps=1e-6)

    assert torch.allclose(std, torch.full((2, 3, 1, 1), 1e-3))


def test_restyled_maps_have_the_new_statistics():
    new_mean, new_std = torch.randn(6, 3, 1, 1, generator=drawn("m")), torch.rand(6, 3, 1, 1, generator=drawn("s")) + 1

    mean, std = instance_statistics(
        apply_style(maps(), *instance_statistics(maps()), new_mean=new_mean, new_std=new_std)
    )

    assert torch.allclose(mean, new_mean, atol=1e-5)
    assert torch.allclose(std, new_std, rtol=1e-5)  # the content's variance is about 1, eps 1e-6


def test_a_constant_channel_becomes_the_new_mean():
    flat = torch.full((2, 3, 4, 4), 7.0)

    made = apply_style(
        flat, *instance_statistics(flat), new_mean=torch.full((2, 3, 1, 1), -1.0), new_std=torch.ones(2, 3, 1, 1)
    )

    assert torch.equal(made, torch.full((2, 3, 4, 4), -1.0))


def test_mixing_keeps_content_and_puts_every_statistic_between_two_of_the_batch():
    before, made = maps(), mixed_styles(maps(), drawn("mix"))

    mean, std = instance_statistics(before)
    new_mean, new_std = instance_statistics(made)
    assert torch.allclose((made - new_mean) / new_std, (before - mean) / std, atol=1e-4)
    assert bool((new_mean <= mean.amax(0) + 1e-5).all() and (new_mean >= mean.amin(0) - 1e-5).all())
    assert bool((new_std <= std.amax(0) + 1e-5).all() and (new_std >= std.amin(0) - 1e-5).all())


def test_mixing_moves_mean_and_std_of_all_channels_by_one_weight_per_map():
    mean = torch.arange(4.0).view(4, 1, 1, 1).expand(4, 2, 1, 1)

    mixed, same = mixed_statistics(mean, mean, drawn("mix"))

    assert torch.equal(mixed, same)
    assert torch.equal(mixed[:, 0], mixed[:, 1])


def test_the_mixing_weight_follows_the_beta_law():
    ends = torch.arange(20000.0).view(-1, 1, 1, 1)  # every row has its own value, so that the weight can be read off
    rng = drawn("beta")
    order = torch.randperm(20000, generator=drawn("beta")).view(-1, 1, 1, 1)

    mixed, _ = mixed_statistics(ends, ends, rng, alpha=0.1)

    moved = order.flatten() != torch.arange(20000)
    weight = ((mixed - order) / (ends - order)).flatten()[moved]
    assert float(weight.mean()) == pytest.approx(0.5, abs=0.02)  # six standard errors
    assert float(weight.var()) == pytest.approx(0.25 / 1.2, abs=0.01)  # Beta(a, a): 1 / (4 (2a + 1))


@pytest.mark.parametrize(("detach", "passes"), [(True, False), (False, True)])
def test_detached_mixing_scales_the_gradient_and_nothing_else(detach: bool, passes: bool):
    given = maps().requires_grad_()

    mixed_styles(given, drawn("mix"), detach=detach)[:, :, 0, 0].sum().backward()

    assert given.grad is not None
    assert bool(given.grad[:, :, 1:, 1:].abs().sum() > 0) == passes  # a statistic would carry it to every place


def test_exploring_by_nothing_gives_the_same_bits():
    statistic = maps()[..., :1, :1]

    assert torch.equal(explored(statistic, statistic.mean(0, keepdim=True), level=0.0), statistic)


@pytest.mark.parametrize("level", [0.5, 3.0, 100.0])
def test_identical_styles_have_nowhere_to_be_explored_to(level: float):
    statistic = torch.tensor([0.3, -1.7]).view(1, 2, 1, 1).expand(8, 2, 1, 1)  # a mean of 8 equal numbers is exact

    assert torch.equal(explored(statistic, statistic.mean(0, keepdim=True), level=level), statistic)


def test_seeding_takes_one_point_of_each_distant_group():
    groups = torch.arange(5).repeat_interleave(4)
    points = torch.nn.functional.one_hot(groups).float() * 100 + torch.rand(20, 5, generator=drawn("p")) * 1e-3

    for trial in range(20):
        chosen = greedy_seeds(points, 5, stream(trial, "world", "seeds"))
        assert sorted(groups[chosen].tolist()) == [0, 1, 2, 3, 4]


def test_seeding_leaves_close_neighbors_of_what_it_chose():
    pairs = torch.arange(8.0).repeat_interleave(2).unsqueeze(1) * 10 + torch.tensor([0.0, 0.01]).repeat(8).unsqueeze(1)

    chosen = greedy_seeds(pairs, 8, drawn("seeds"))

    assert sorted((chosen // 2).tolist()) == list(range(8))  # one of each pair: B/2 styles like the other B/2


def test_seeding_gives_distinct_points_even_where_all_coincide():
    chosen = greedy_seeds(torch.ones(6, 3), 4, drawn("seeds"))

    assert len(set(chosen.tolist())) == 4


@pytest.mark.medium
def test_seeding_follows_d_squared():
    points = torch.tensor([[0.0], [1.0], [3.0]])  # from 0, D^2 is 1 and 9; one trial draws by it, two keep the better
    seconds = torch.zeros(3)
    for trial in range(4000):
        first, second = greedy_seeds(points, 2, stream(trial, "world", "seeds")).tolist()
        if first == 0:
            seconds[second] += 1

    # Two draws, each 1 with probability .1; the potential left by 1 is 4, by 3 it is 1: 1 wins only if drawn twice.
    assert float(seconds[1] / seconds.sum()) == pytest.approx(0.01, abs=0.012)  # n about 1,333
    assert float(seconds.sum()) == pytest.approx(4000 / 3, abs=150)


@pytest.mark.parametrize("count", [-1, 4])
def test_seeding_more_points_than_there_are_is_refused(count: int):
    with pytest.raises(ValueError, match=r"count must lie in 0\.\.3"):
        greedy_seeds(torch.zeros(3, 1), count, drawn("seeds"))


def test_one_step_of_clustering_moves_centers_to_the_mean_of_their_points():
    points = torch.tensor([[0.0], [1.0], [2.0], [10.0], [14.0]])

    assert kmeans_step(points, torch.tensor([1, 3])).tolist() == [[1.0], [12.0]]


def test_centers_keep_their_digits_where_forward_passes_run_in_bfloat16():
    points = torch.tensor([[1.001], [1.003], [9.0]])

    with torch.autocast("cpu", torch.bfloat16):
        made = kmeans_step(points, torch.tensor([0, 2]))

    assert torch.allclose(made, torch.tensor([[1.002], [9.0]]), rtol=0, atol=1e-6)


def test_a_center_without_points_stays():
    points = torch.tensor([[5.0], [5.0], [9.0]])

    assert kmeans_step(points, torch.tensor([0, 1, 2])).tolist() == [[5.0], [5.0], [9.0]]


@pytest.mark.parametrize(("size", "expected"), [(1, [0, 0, 1]), (3, [0, 1, 2]), (6, [1, 2, 3]), (0, [0, 0, 0])])
def test_classes_of_three_two_and_one_are_filled_like_the_papers_toy(size: int, expected: list[int]):
    assert balancing_additions(torch.tensor([3, 2, 1]), size, drawn("fill")).tolist() == expected


def test_what_is_left_of_the_budget_goes_to_random_classes_among_the_lowest():
    found = [balancing_additions(torch.tensor([1, 1, 1]), 1, stream(i, "world", "fill")).tolist() for i in range(60)]

    assert sorted({tuple(additions) for additions in found}) == [(0, 0, 1), (0, 1, 0), (1, 0, 0)]


def test_oversampled_rows_belong_to_the_classes_that_were_filled():
    labels = torch.tensor([4, 4, 4, 9, 9, 2])

    rows = oversampled_rows(labels, 6, drawn("rows"))

    assert torch.bincount(labels[rows], minlength=10).tolist() == [0, 0, 3, 0, 1, 0, 0, 0, 0, 2]


def test_rows_of_a_class_are_drawn_from_all_its_members_with_replacement():
    rows = oversampled_rows(torch.tensor([0, 0, 0, 1]), 402, drawn("rows"))

    counts = torch.bincount(rows, minlength=4)
    assert int(counts[3]) == 202
    assert counts[:3].min() > 40  # 200 draws over three members


def test_unbalanced_oversampling_ignores_classes():
    rows = oversampled_rows(torch.tensor([0, 0, 0, 1]), 400, drawn("rows"), balanced=False)

    assert torch.bincount(rows, minlength=4).min() > 60


def test_nothing_can_be_drawn_from_an_empty_batch():
    with pytest.raises(ValueError, match="empty batch"):
        oversampled_rows(torch.empty(0, dtype=torch.int64), 3, drawn("rows"))


def test_style_laws_draw_each_channel_of_each_style_by_itself():
    laws = StyleLaws(
        mean=torch.tensor([[1.0, -2.0]]),
        std=torch.tensor([[5.0, 0.0]]),
        mean_scale=torch.tensor([[0.5, 2.0]]),
        std_scale=torch.tensor([[1.0, 1.0]]),
    )

    mean, std = (values.flatten(1) for values in laws.drawn(20000, drawn("laws")))

    assert torch.allclose(mean.mean(0), laws.mean[0], atol=0.1)  # seven standard errors of the wider one
    assert torch.allclose(mean.std(0), laws.mean_scale[0], rtol=0.05)
    assert torch.allclose(std[:, 0].mean(), torch.tensor(5.0), atol=0.05)
    assert float(std[:, 1].min()) == 0.0  # half of them would be below 0
    assert float((std[:, 1] == 0).float().mean()) == pytest.approx(0.5, abs=0.02)
    correlation = torch.corrcoef(torch.stack([mean[:, 0], mean[:, 1], std[:, 0]]))
    assert float((correlation - torch.eye(3)).abs().max()) < 0.05


def test_style_laws_use_every_row():
    rows = torch.tensor([[0.0], [10.0], [20.0]])
    laws = StyleLaws(mean=rows, std=rows, mean_scale=torch.zeros(3, 1), std_scale=torch.zeros(3, 1))

    mean, std = laws.drawn(60, drawn("laws"))

    assert torch.equal(mean, std)
    assert sorted(set(mean.flatten().tolist())) == [0.0, 10.0, 20.0]


def test_early_maps_are_what_the_network_makes_there():
    network = build_classifier("tiny", 3, rng=drawn("network")).eval()
    images = torch.rand(2, 3, 32, 32, generator=drawn("images"))
    seen: list[Tensor] = []

    def see(made: Tensor) -> Tensor:
        seen.append(made)
        return made

    network.maps(images, between={"stage1": see})

    assert torch.equal(early_maps(network, images, "stage1"), seen[0])


def test_an_unknown_stage_is_refused():
    network = build_classifier("tiny", 3, rng=drawn("network"))

    with pytest.raises(ValueError, match="tiny has no stage 'stage9'"):
        early_maps(network, torch.rand(1, 3, 32, 32), "stage9")

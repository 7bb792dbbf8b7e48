"""Roles: disjoint, exhaustive, in proportion, and no near-duplicate on two sides."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.data.roles import Roles, duplicate_groups, split_roles
from fdgsec.data.sampling import apportion
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream


def noise(count: int, *, side: int = 16, seed: int = 0) -> Tensor:
    """Images no two of which are alike: 16-px rmse about .4."""
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=stream(seed, "world", "noise"))


def dataset(pixels: Tensor, labels: Sequence[int], domains: Sequence[int]) -> DomainDataset:
    return DomainDataset(
        name="made",
        store=pixels,
        rows=torch.arange(len(pixels)),
        labels=torch.tensor(labels, dtype=torch.int64),
        domains=torch.tensor(domains, dtype=torch.int64),
        ids=[f"image {i:04}" for i in range(len(pixels))],
        class_names=["dog", "cat"],
        domain_names=["photo", "sketch"],
    )


def several(count: int = 200) -> DomainDataset:
    return dataset(noise(count), [i // 2 % 2 for i in range(count)], [i % 2 for i in range(count)])


def parts(roles: Roles) -> list[DomainDataset]:
    return [roles.federation, roles.held_out, roles.auxiliary]


def slow_groups(data: DomainDataset, threshold: float) -> set[frozenset[str]]:
    """Merge, pair by pair, the groups of images whose 16 x 16 averages are close."""
    small = data.pixels().double().div(255).view(len(data), 3, 16, -1, 16, data.image_size[1] // 16).mean(dim=(3, 5))
    groups = [{i} for i in range(len(data))]
    for i in range(len(data)):
        for j in range(i):
            close = float((small[i] - small[j]).square().mean().sqrt()) < threshold
            if close and data.domains[i] == data.domains[j]:
                merged = groups[i] | groups[j]
                for k in merged:
                    groups[k] = merged
    return {frozenset(data.ids[i] for i in group) for group in groups}


def fast_groups(data: DomainDataset, threshold: float) -> set[frozenset[str]]:
    found = duplicate_groups(data, threshold=threshold).tolist()
    return {frozenset(data.ids[i] for i, g in enumerate(found) if g == group) for group in set(found)}


def with_copies(count: int, *, copies: int) -> DomainDataset:
    """`count` images, each `copies` times: every copy a little lighter than the one before."""
    original = noise(count, side=32).div(2, rounding_mode="floor")
    pixels = torch.cat([original + 4 * step for step in range(copies)])  # 4 / 255 = .016 apart
    return dataset(pixels, [i % 2 for i in range(count * copies)], [i % count % 2 for i in range(count * copies)])


def test_groups_equal_those_of_the_slow_search() -> None:
    data = with_copies(12, copies=3)

    assert fast_groups(data, 0.02) == slow_groups(data, 0.02)
    assert {len(group) for group in fast_groups(data, 0.02)} == {3}  # through the middle copy: the ends are .03 apart
    assert fast_groups(data, 0.01) == slow_groups(data, 0.01)
    assert {len(group) for group in fast_groups(data, 0.01)} == {1}


@pytest.mark.parametrize("side", [8, 16, 20, 48])
def test_any_image_size_is_compared_on_sixteen_pixels(side: int) -> None:
    pixels = noise(3, side=side)
    data = dataset(torch.cat([pixels, pixels]), [0] * 6, [0] * 6)

    assert duplicate_groups(data).tolist() == [0, 1, 2, 0, 1, 2]


def test_more_images_than_one_block_are_compared_across_blocks() -> None:
    pixels = noise(1500)
    pixels[1400] = pixels[3]
    pixels[1499] = pixels[1100]
    data = dataset(pixels, [0] * 1500, [0] * 1500)

    groups = duplicate_groups(data)

    assert groups[1400] == groups[3]
    assert groups[1499] == groups[1100]
    assert len(groups.unique()) == 1498


def test_the_same_image_in_two_domains_is_no_duplicate() -> None:
    pixels = noise(1)

    assert duplicate_groups(dataset(torch.cat([pixels, pixels]), [0, 0], [0, 1])).tolist() == [0, 1]


def test_roles_are_disjoint_and_hold_every_image() -> None:
    data = several()

    roles = split_roles(data, rng=stream(0, "world"))

    assert sorted(name for part in parts(roles) for name in part.ids) == sorted(data.ids)
    assert roles.summary() == {
        "federation": {"photo": 70, "sketch": 70},
        "held_out": {"photo": 16, "sketch": 16},
        "auxiliary": {"photo": 14, "sketch": 14},
    }


@pytest.mark.parametrize("threshold", [0.02, 0.0])
def test_no_near_duplicates_have_two_roles(threshold: float) -> None:
    data = with_copies(60, copies=3)  # copies of one image alternate between the classes

    roles = split_roles(data, rng=stream(0, "world"), threshold=threshold)

    shared = [
        group for group in slow_groups(data, 0.02) if sum(not group.isdisjoint(part.ids) for part in parts(roles)) > 1
    ]
    assert (len(shared) == 0) == (threshold == 0.02)  # threshold 0 shows that the claim can fail


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.tuples(*[st.integers(0, 40)] * 4),
    fractions=st.sampled_from([(0.7, 0.15, 0.15), (0.5, 0.5, 0.0), (0.34, 0.33, 0.33), (1.0, 0.0, 0.0)]),
    copies=st.integers(0, 5),
)
def test_every_cell_meets_its_fractions_to_within_one_image_or_one_group(
    sizes: tuple[int, int, int, int], fractions: tuple[float, float, float], copies: int
) -> None:
    cells = [
        (domain, label)
        for (domain, label), n in zip([(0, 0), (0, 1), (1, 0), (1, 1)], sizes, strict=True)
        for _ in range(n)
    ]
    pixels = noise(len(cells))
    pixels[1 : 1 + copies] = pixels[:1]  # one group, which may reach into the next cells
    data = dataset(pixels, [label for _, label in cells], [domain for domain, _ in cells])
    largest = max([1, *duplicate_groups(data).bincount().tolist()])

    roles = split_roles(data, rng=stream(0, "world"), fractions=fractions)

    for (domain, label), size in zip([(0, 0), (0, 1), (1, 0), (1, 1)], sizes, strict=True):
        for part, fraction in zip(parts(roles), fractions, strict=True):
            found = int(((part.domains == domain) & (part.labels == label)).sum())
            assert abs(found - fraction * size) < max(largest, 1) + 1e-6
            assert fraction > 0 or found == 0


def test_many_groups_keep_their_fractions() -> None:
    data = with_copies(120, copies=2)

    roles = split_roles(data, rng=stream(0, "world"))

    found = {role: sum(counts.values()) / 240 for role, counts in roles.summary().items()}
    assert found == pytest.approx({"federation": 0.70, "held_out": 0.15, "auxiliary": 0.15}, abs=0.02)


def test_a_cell_of_one_image_goes_to_the_federation() -> None:
    roles = split_roles(dataset(noise(1), [1], [1]), rng=stream(0, "world"))

    assert [len(part) for part in parts(roles)] == [1, 0, 0]


def test_roles_depend_on_the_seed_and_not_on_the_order_of_the_images() -> None:
    data = with_copies(40, copies=2)
    shuffled = data.subset(torch.randperm(len(data), generator=stream(9, "world")))

    def members(of: DomainDataset, seed: int) -> list[list[str]]:
        return [sorted(part.ids) for part in parts(split_roles(of, rng=stream(seed, "world")))]

    assert members(data, 0) == members(shuffled, 0)
    assert members(data, 0) != members(data, 1)


def test_a_domain_that_is_dropped_does_not_change_the_roles_of_another() -> None:
    data = several()

    alone = split_roles(data.of_domain("sketch"), rng=stream(0, "world"))
    together = split_roles(data, rng=stream(0, "world"))

    assert list(alone.held_out.ids) == list(together.held_out.of_domain("sketch").ids)


@pytest.mark.parametrize("asked", [0, 1, 33, 59, 80])
def test_as_many_images_are_auxiliary_as_asked_for_and_the_rest_keep_their_ratio(asked: int) -> None:
    data = several(200)  # fifty images of either class in either domain

    roles = split_roles(data, rng=stream(0, "world"), auxiliary={"photo": asked})

    held = roles.auxiliary.of_domain("photo")
    found = {role: counts["photo"] for role, counts in roles.summary().items()}
    assert found["auxiliary"] == len(held) == asked
    assert abs(int((held.labels == 0).sum()) - asked / 2) <= 0.5
    assert found["federation"] == pytest.approx(0.7 / 0.85 * (100 - asked), abs=1)
    assert sorted(name for part in parts(roles) for name in part.ids) == sorted(data.ids)
    usual = split_roles(data, rng=stream(0, "world"))
    assert all(
        one.of_domain("sketch").ids == other.of_domain("sketch").ids
        for one, other in zip(parts(roles), parts(usual), strict=True)
    )


def test_near_duplicates_stay_together_among_many_auxiliary_images() -> None:
    data = with_copies(60, copies=3)
    sizes = data.domains.bincount().tolist()

    roles = split_roles(data, rng=stream(0, "world"), auxiliary={"photo": 60, "sketch": 45})

    assert all(sum(not group.isdisjoint(part.ids) for part in parts(roles)) == 1 for group in slow_groups(data, 0.02))
    found = roles.summary()["auxiliary"]
    assert sizes == [90, 90]
    assert abs(found["photo"] - 60) < 3  # a group of three fills or overfills
    assert abs(found["sketch"] - 45) < 3


@pytest.mark.parametrize("asked", [-1, 5])
def test_more_auxiliary_images_than_a_domain_has_are_refused(asked: int) -> None:
    with pytest.raises(UsageError, match=f"photo has 4 images; {asked} of them"):
        split_roles(several(8), rng=stream(0, "world"), auxiliary={"photo": asked})


@pytest.mark.parametrize("fractions", [(0.7, 0.2, 0.2), (1.2, -0.1, -0.1), (0.0, 0.5, 0.5)])
def test_fractions_that_make_no_whole_are_refused(fractions: tuple[float, float, float]) -> None:
    with pytest.raises(UsageError, match="role fractions must be"):
        split_roles(several(8), rng=stream(0, "world"), fractions=fractions)


def test_a_negative_threshold_is_refused() -> None:
    with pytest.raises(UsageError, match="duplicate threshold"):
        duplicate_groups(several(8), threshold=-0.1)


@pytest.mark.parametrize(
    ("weights", "total", "expected"),
    [((1, 1, 1), 4, [2, 1, 1]), ((379, 255), 10, [6, 4]), ((0.7, 0.15, 0.15), 1, [1, 0, 0]), ((0, 0), 0, [0, 0])],
)
def test_whole_shares_go_to_the_largest_remainders(weights: Sequence[float], total: int, expected: list[int]) -> None:
    assert apportion(weights, total) == expected

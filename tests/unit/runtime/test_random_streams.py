import pytest
import torch

from fdgsec.runtime.random_streams import child, derangement, stream


def draw(rng: torch.Generator) -> list[float]:
    return torch.rand(3, generator=rng).tolist()


def test_equal_names_draw_equal_numbers():
    assert draw(stream(0, "world", "fit", 3)) == draw(stream(0, "world", "fit", 3))


@pytest.mark.parametrize("other", [(1, "world", "fit"), (0, "attack", "fit"), (0, "world", "share")])
def test_seed_root_and_name_each_change_the_draw(other: tuple[int, str, str]):
    assert draw(stream(0, "world", "fit")) != draw(stream(*other))  # type: ignore[arg-type]


def test_a_number_and_its_text_are_different_names():
    assert draw(stream(0, "world", 1)) != draw(stream(0, "world", "1"))


def test_children_do_not_disturb_their_parent():
    rng = stream(0, "world", "parent")
    child(rng, "a")

    assert draw(rng) == draw(stream(0, "world", "parent"))


def test_the_global_generator_is_never_touched():
    before = torch.random.get_rng_state()
    draw(child(stream(0, "attack", "x"), "y"))

    assert torch.equal(before, torch.random.get_rng_state())


def test_an_unknown_root_is_refused():
    with pytest.raises(ValueError, match="root"):
        stream(0, "chaos")  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [2, 3, 17])
def test_a_derangement_is_one_cycle_that_leaves_nothing_in_place(count: int):
    order = derangement(count, stream(0, "attack", "ring"))
    place, visited = 0, []
    for _ in range(count):
        place = int(order[place])
        visited.append(place)

    assert sorted(visited) == list(range(count))


def test_one_alone_stays_where_it_is():
    assert derangement(1, stream(0, "attack", "ring")).tolist() == [0]

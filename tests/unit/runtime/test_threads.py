"""Computations run on the number of threads that was stated, and leave the process's own number as it was."""

import pytest
import torch
from threadpoolctl import threadpool_info

from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.threads import limited_threads


def numbers() -> set[int]:
    return {torch.get_num_threads(), *(int(library["num_threads"]) for library in threadpool_info())}


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_torch_and_every_loaded_library_are_limited_inside_and_as_before_afterwards():
    before = {library["filepath"]: library["num_threads"] for library in threadpool_info()}

    with limited_threads(1):
        assert numbers() == {1}

    assert torch.get_num_threads() == 2
    assert {library["filepath"]: library["num_threads"] for library in threadpool_info()} == before


@limited_threads(3)
def fail_on_three():
    assert torch.get_num_threads() == 3
    raise KeyError


def test_an_inner_number_holds_inside_and_the_outer_one_after_it_even_after_an_error():
    with limited_threads(1):
        with pytest.raises(KeyError):
            fail_on_three()
        assert torch.get_num_threads() == 1
        with limited_threads(1):
            assert numbers() == {1}
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_a_number_that_code_inside_changed_is_set_again_by_the_next_call():
    with limited_threads(1):
        torch.set_num_threads(2)
        with limited_threads(1):
            assert torch.get_num_threads() == 1


@pytest.mark.parametrize("count", [0, -1, 257, True])
def test_impossible_numbers_are_refused(count: int):
    with pytest.raises(UsageError, match="threads must be 1 to 256"), limited_threads(count):
        pass

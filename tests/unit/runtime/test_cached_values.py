"""Values that are computed once: two objects at the same time, one object by one thread."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Barrier

import pytest

from fdgsec.runtime.cached_values import computed_once


@dataclass(frozen=True, kw_only=True, eq=False)
class Square:
    side: float
    met: Barrier
    computed: list[float] = field(default_factory=list)

    @computed_once
    def area(self) -> float:
        self.met.wait(timeout=10)
        self.computed.append(self.side)
        return self.side**2

    @computed_once
    def volume(self) -> float:
        return self.area * self.side

    @computed_once
    def broken(self) -> float:
        self.computed.append(self.side)
        raise ValueError("not today")


def test_two_threads_compute_it_of_two_objects_at_once():
    both = Barrier(2)  # broken, and the test with it, where one waits until the other one is done
    squares = [Square(side=side, met=both) for side in (2.0, 3.0)]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda square: square.volume, squares)) == [8, 27]


def test_threads_that_ask_of_one_object_compute_it_once():
    square = Square(side=2.0, met=Barrier(1))
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: square.area, range(50))) == {4}
    assert square.computed == [2]


def test_a_copy_computes_its_own():
    square = Square(side=2.0, met=Barrier(1))
    assert square.area == 4
    assert replace(square, side=5.0).area == 25


def test_an_error_is_not_kept():
    square = Square(side=2.0, met=Barrier(1))
    for _ in range(2):
        with pytest.raises(ValueError, match="not today"):
            _ = square.broken
    assert len(square.computed) == 2


def test_the_class_has_the_description():
    assert isinstance(Square.__dict__["area"], computed_once)
    assert Square.area is Square.__dict__["area"]

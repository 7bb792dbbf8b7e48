"""Style statistics are computed on all cores, a block of images on each, and are those of one core to the bit."""

import threading
import time
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.nn.styles import image_styles
from fdgsec.nn.styles.encoders import StyleEncoder
from fdgsec.nn.styles.image_styles import register_encoder, statistics
from fdgsec.runtime import threads
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.threads import limited_threads

COUNT = 200


def images() -> DomainDataset:
    pixels = torch.randint(0, 256, (COUNT, 3, 32, 32), dtype=torch.uint8, generator=stream(0, "world", "images"))
    nothing = torch.zeros(COUNT, dtype=torch.int64)
    return DomainDataset(
        name="noise", store=pixels, rows=torch.arange(COUNT), labels=nothing, domains=nothing,
        ids=tuple(str(number) for number in range(COUNT)), class_names=("any",), domain_names=("noise",),
    )  # fmt: skip


class Watched(StyleEncoder):
    """The colors of images, with the threads that asked for them, and how many computed."""

    channels, stride, has_decoder = 3, 1, False
    unit: Tensor

    def __init__(self, name: str, *, reentrant: bool, broken: int | None = None) -> None:
        super().__init__()
        self.register_buffer("unit", torch.ones(1))
        self.name = self.fingerprint = name
        self.reentrant, self.broken = reentrant, broken
        self.asked: list[str] = []
        self.computing: set[int] = set()

    def _features(self, images: Tensor) -> Tensor:
        self.asked.append(threading.current_thread().name)
        self.computing.add(torch.get_num_threads())
        if self.broken is not None and len(self.asked) > self.broken:
            time.sleep(0.1)  # the others are not begun meanwhile
            raise RuntimeError("out of paint")
        return images * self.unit


@pytest.fixture
def three_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _process: {0, 1, 2}, raising=False)
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 3)


@pytest.mark.parametrize("name", ["mini", "pixels"])
@pytest.mark.usefixtures("three_cores")
def test_rows_are_those_of_one_core_to_the_bit(name: str, monkeypatch: pytest.MonkeyPatch):
    with limited_threads(1):
        beside = statistics(name, images())
        monkeypatch.setattr(image_styles, "MOST_AT_ONCE", 1)
        alone = statistics(name, images())

    assert torch.equal(beside.mean, alone.mean)
    assert torch.equal(beside.m2, alone.m2)
    assert torch.equal(beside.count, alone.count)


@pytest.mark.usefixtures("three_cores")
def test_blocks_are_encoded_by_threads_that_compute_on_the_stated_number():
    encoder = Watched("watched", reentrant=True)

    with limited_threads(1):
        statistics(register_encoder(encoder), images())

    assert all(name.startswith("side-by-side") for name in encoder.asked)
    assert encoder.computing == {1}


@pytest.mark.usefixtures("three_cores")
@pytest.mark.parametrize("why", ["not reentrant", "a worker process", "all cores are stated"])
def test_one_thread_encodes_where_several_must_not(why: str, monkeypatch: pytest.MonkeyPatch):
    encoder = Watched(why, reentrant=why != "not reentrant")
    if why == "a worker process":
        monkeypatch.setattr(threads, "parent_process", SimpleNamespace)

    with limited_threads(3 if why == "all cores are stated" else 1):
        statistics(register_encoder(encoder), images())

    assert set(encoder.asked) == {threading.current_thread().name}


@pytest.mark.usefixtures("three_cores")
def test_progress_counts_every_image_in_order():
    told: list[tuple[int, int]] = []

    statistics(register_encoder(Watched("counted", reentrant=True)), images(), progress=lambda *now: told.append(now))

    assert told == sorted(told)
    assert told[-1] == (COUNT, COUNT)


@pytest.mark.usefixtures("three_cores")
def test_an_error_ends_it_and_nothing_more_is_begun():
    encoder = Watched("broken", reentrant=True, broken=2)
    known = images()

    with limited_threads(1):
        with pytest.raises(RuntimeError, match="out of paint"):
            statistics(register_encoder(encoder), known)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("side-by-side")]
        assert len(encoder.asked) < COUNT / image_styles.BLOCK
        encoder.broken = None
        found = statistics(encoder.name, known)

    assert torch.isfinite(found.mean).all()

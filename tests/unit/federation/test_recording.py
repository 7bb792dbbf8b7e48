"""What a recorder is given and cannot record is refused with an error of fdgsec's own, and nothing of it is recorded."""

import json
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import fdgsec
from fdgsec.federation import recording
from fdgsec.federation.artifacts import ModelState
from fdgsec.runtime.errors import ArtifactError, FdgsecError, UsageError


@contextmanager
def without_warnings() -> Iterator[None]:
    """Torch warns about forms of tensors that it is about to change; a user may hold one nevertheless."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@without_warnings()
def quantized() -> Tensor:
    return torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)


@without_warnings()
def sparse_rows() -> dict[str, Tensor]:
    return {"w": torch.eye(3).to_sparse_csr()}


ODD: dict[str, tuple[object, Callable[[], object], str]] = {
    "meta": ("style", lambda: torch.ones(4, device="meta"), "has no numbers"),
    "sparse": ("style", lambda: torch.ones(4).to_sparse(), "dense tensor; got a sparse_coo"),
    "sparse rows": ("update", sparse_rows, "dense tensor; got a sparse_csr"),
    "quantized": ("style", quantized, "quantized"),
    "complex": ("style", lambda: torch.ones(4, dtype=torch.complex64), "real numbers"),
    "float8": ("style", lambda: torch.ones(4).to(torch.float8_e4m3fn), "real numbers"),
    "lists of other lengths": ("style", lambda: [torch.ones(2), torch.ones(3), torch.ones(2)], "must hold numbers"),
    "number of 71 bits": ("style", lambda: [2**70] * 4, "must hold numbers"),
    "objects": ("scores", lambda: [object()], "must hold numbers"),
    "class of 71 bits": ("prototypes", lambda: {2**70: torch.ones(3)}, "number of their class"),
    "class below 0": ("prototypes", lambda: {-1: torch.ones(3)}, "number of their class"),
    "class that is a truth value": ("prototypes", lambda: {True: torch.ones(3)}, "number of their class"),
    "kind of a list": (["style"], lambda: torch.ones(4), "unknown kind"),
    "no kind": (None, lambda: torch.ones(4), "unknown kind"),
    "reserved name": ("update", lambda: {"__metadata__": torch.ones(3)}, "__metadata__"),
    "name in no encoding": ("update", lambda: {"\ud800": torch.ones(3)}, "not text"),
    "one name twice": ("update", lambda: {1: torch.ones(3), "1": torch.ones(3)}, "two entries of one name"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_content_is_refused_with_a_typed_error_and_nothing_is_recorded(name: str, tmp_path: Path):
    kind, content, said = ODD[name]

    with fdgsec.record(tmp_path / "wire") as wire, pytest.raises(FdgsecError, match=said):
        wire.send(kind, content(), sender="A")  # type: ignore[arg-type]

    assert not (tmp_path / "wire" / "transcript.jsonl").exists()
    assert json.loads((tmp_path / "wire" / "recording.json").read_text())["names"] == {}


@pytest.mark.parametrize("sender", [["A"], None, 3, {"a": 1}])
def test_a_party_whose_name_is_no_text_is_refused(sender: object, tmp_path: Path):
    with fdgsec.record(tmp_path / "wire") as wire, pytest.raises(UsageError, match="must have a name"):
        wire.send("style", torch.ones(4), sender=sender)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [2**70, -1, True, 1.0])
def test_a_round_that_no_transcript_holds_is_refused(number: object, tmp_path: Path):
    with fdgsec.record(tmp_path / "wire") as wire, pytest.raises(UsageError, match="round must be"):
        wire.send("style", torch.ones(4), sender="A", round=number)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "content",
    [
        torch.ones(4, requires_grad=True),
        [torch.ones((), requires_grad=True)] * 4,
        (torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)),
        np.ones(8, dtype=np.float32)[::-2],
        torch.nn.Parameter(torch.ones(4)),
    ],
)
def test_tensors_that_require_gradients_and_views_are_recorded_as_their_numbers(content: object, tmp_path: Path):
    with fdgsec.record(tmp_path / "wire") as wire:
        wire.send("style", content, sender="A")

    (line,) = (tmp_path / "wire" / "transcript.jsonl").read_text().splitlines()
    assert json.loads(line)["bytes"] == 16


def test_a_model_whose_names_no_file_holds_is_refused_where_it_is_made():
    with pytest.raises(ArtifactError, match="__metadata__"):
        ModelState(state={"__metadata__": torch.ones(2)})


def test_a_process_waits_for_another_that_is_beginning_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    halfway, go_on = threading.Event(), threading.Event()

    def begin_slowly(path: Path, text: str) -> None:
        (path.parent / "recording.json.half").write_text(text[:9])
        halfway.set()
        assert go_on.wait(20)
        (path.parent / "recording.json.half").rename(path)
        path.write_text(text)

    monkeypatch.setattr(recording, "write_atomic", begin_slowly)
    with ThreadPoolExecutor(2) as clients:
        first = clients.submit(recording.open_recording, tmp_path / "wire", run="7", afresh=False)
        assert halfway.wait(20)
        second = clients.submit(recording.open_recording, tmp_path / "wire", run="7", afresh=False)
        _, unfinished = wait([second], timeout=0.3)
        go_on.set()

        assert unfinished == {second}
        assert first.result().folder == second.result().folder == tmp_path / "wire"

"""Client-held state never goes back: marks, refusals, and what is left when a write is broken off."""

import hashlib
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from fdgsec.federation.engines.state import NEVER, FileStates, MemoryStates, StateMark, StateMismatchError, StateStore

NAME = "client:0"


@pytest.fixture(params=["files", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> StateStore:
    return FileStates(folder=tmp_path) if request.param == "files" else MemoryStates()


@pytest.fixture
def files(tmp_path: Path) -> FileStates:
    return FileStates(folder=tmp_path)


def state(value: float) -> dict[str, Tensor]:
    return {"w": torch.full((3,), value)}


def file_of(store: FileStates, version: int) -> Path:
    return store.folder / f"client-0.{version}.safetensors"


def test_a_mark_counts_writes_and_hashes_the_last_one(store: StateStore):
    marks = [store.mark(NAME)]
    for value in (1.0, 2.0, 1.0):
        store.write(NAME, state(value))
        marks.append(store.mark(NAME))

    assert marks[0] == NEVER == StateMark(version=0, sha256="")
    assert [mark.version for mark in marks] == [0, 1, 2, 3]
    assert marks[1].sha256 == marks[3].sha256 != marks[2].sha256


def test_a_state_in_memory_has_the_mark_of_the_same_state_in_files(files: FileStates):
    memory = MemoryStates()
    for one in (files, memory):
        one.write(NAME, {"b": torch.arange(3, dtype=torch.uint8), "a": torch.ones(2, 2), "n": torch.tensor(7)})

    assert memory.mark(NAME) == files.mark(NAME)
    assert files.mark(NAME).sha256 == hashlib.sha256(file_of(files, 1).read_bytes()).hexdigest()


def test_the_hash_does_not_depend_on_the_order_of_entries(store: StateStore):
    store.write(NAME, {"a": torch.ones(1), "b": torch.zeros(2)})
    first = store.mark(NAME).sha256
    store.write(NAME, {"b": torch.zeros(2), "a": torch.ones(1)})

    assert store.mark(NAME).sha256 == first


def test_a_state_is_read_where_it_is_the_expected_one_or_a_later_one(store: StateStore):
    store.write(NAME, state(1.0))
    seen = store.mark(NAME)
    assert store.read(NAME, expected=seen)["w"].tolist() == [1.0] * 3

    store.write(NAME, state(2.0))  # by a reply that the server never got

    assert store.read(NAME, expected=seen)["w"].tolist() == [2.0] * 3
    assert store.read(NAME, expected=NEVER)["w"].tolist() == [2.0] * 3


def test_a_state_older_than_expected_is_refused(store: StateStore):
    store.write(NAME, state(1.0))

    with pytest.raises(
        StateMismatchError,
        match=r"^client:0 holds version 1 of its state, but the run goes on from version 4: .* was lost or set back; restore it",
    ):
        store.read(NAME, expected=StateMark(version=4, sha256="00"))


def test_a_state_that_is_gone_altogether_is_refused(store: StateStore):
    with pytest.raises(StateMismatchError, match="holds version 0 of its state, but the run goes on from version 1"):
        store.read(NAME, expected=StateMark(version=1, sha256="00"))


def test_another_state_of_the_same_version_is_refused(store: StateStore):
    store.write(NAME, state(1.0))

    with pytest.raises(StateMismatchError, match=r"another version 1 of its state \(\w{12}\) than .* \(000000000000\)"):
        store.read(NAME, expected=StateMark(version=1, sha256="0" * 64))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        lambda content: content[:-4],
        lambda content: b"",
        lambda content: save({"w": torch.zeros(3)}),
    ],
    ids=["one bit", "cut short", "empty", "another state"],
)
def test_a_file_with_another_content_than_was_written_is_refused(files: FileStates, spoil: Callable[[bytes], bytes]):
    files.write(NAME, state(1.0))
    file_of(files, 1).write_bytes(spoil(file_of(files, 1).read_bytes()))

    with pytest.raises(
        StateMismatchError, match=r"another content than was written as version 1; .* altered or cut short"
    ):
        files.read(NAME)


@pytest.mark.parametrize("index", ["", "{", "[]", '{"version": 1}', '{"version": "x", "sha256": ""}'])
def test_an_index_that_cannot_be_read_is_an_error_and_not_an_empty_state(files: FileStates, index: str):
    files.write(NAME, state(1.0))
    (files.folder / "client-0.json").write_text(index)

    with pytest.raises(StateMismatchError, match="which state client:0 holds cannot be read from"):
        files.read(NAME)


def test_a_crash_between_file_and_index_leaves_the_old_version_in_force(files: FileStates):
    index = files.folder / "client-0.json"
    files.write(NAME, state(1.0))
    before, mark = index.read_bytes(), files.mark(NAME)
    files.write(NAME, state(2.0))
    index.write_bytes(before)  # as it is where the index was not reached

    assert files.mark(NAME) == mark
    assert files.read(NAME, expected=mark)["w"].tolist() == [1.0] * 3
    files.write(NAME, state(3.0))
    assert files.mark(NAME).version == 2
    assert files.read(NAME)["w"].tolist() == [3.0] * 3


def test_what_killed_writes_left_behind_goes_with_the_next_one_and_others_files_stay(files: FileStates):
    files.write(NAME, state(1.0))
    files.write("client:01", state(1.0))
    half = files.folder / ".client-0.2.safetensors.abcd.safetensors"
    other = files.folder / ".client-01.2.safetensors.abcd.safetensors"
    half.write_bytes(b"half")
    other.write_bytes(b"half")

    for value in (2.0, 3.0, 4.0):
        files.write(NAME, state(value))

    left = sorted(path.name for path in files.folder.iterdir())
    assert left == [
        ".client-01.2.safetensors.abcd.safetensors", "client-0.3.safetensors", "client-0.4.safetensors", "client-0.json",
        "client-01.1.safetensors", "client-01.json",
    ]  # fmt: skip


DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
]  # fmt: skip


def test_every_dtype_and_shape_comes_back_as_it_was(store: StateStore):
    kept = {
        f"{dtype} {shape}": torch.ones(shape).to(dtype) for dtype in DTYPES for shape in ((), (3,), (0, 2), (1, 2, 3))
    }
    kept["turned"] = torch.arange(12).reshape(3, 4).T
    kept["part"] = torch.arange(12)[2:7]
    kept["trained"] = torch.nn.Parameter(torch.ones(2))

    store.write(NAME, kept)

    found = store.read(NAME)
    assert found.keys() == kept.keys()
    for name, value in kept.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)


def test_a_file_holds_what_the_formats_own_writer_would_write(files: FileStates):
    kept = {
        "b": torch.arange(5, dtype=torch.uint8),
        "a": torch.randn(2, 3, generator=torch.Generator()),
        "n": torch.tensor(1),
    }

    files.write(NAME, kept)

    ours, theirs = load(file_of(files, 1).read_bytes()), load(save(kept))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_an_unknown_dtype_is_refused_by_name_and_nothing_is_written(files: FileStates):
    with pytest.raises(TypeError, match=r"the state 'spectrum' is of torch.complex64; a file holds torch.float64"):
        files.write(NAME, {"spectrum": torch.zeros(2, dtype=torch.complex64)})

    assert list(files.folder.iterdir()) == []


def test_writing_holds_no_second_copy(files: FileStates):
    large = {f"w{i}": torch.zeros(1024, 1024) for i in range(8)}  # 32 MiB

    tracemalloc.start()
    files.write(NAME, large)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 2**20

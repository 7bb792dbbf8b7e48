"""The local engine and the two places where clients keep what they must remember."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.data.shapes import shapes
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.engines.state import FileStates, MemoryStates, StateMismatchError, StateStore
from fdgsec.federation.engines.unchanged_requests import ReceivedChangedError
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, Method, State, StepRequest, Update
from fdgsec.federation.round_loop import RoundLoop
from fdgsec.federation.wire import Wire
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.networks.classifiers import build_classifier
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import simulated_key, simulated_stream

CLOCK = Clock(round=0, rounds=1, participants=("client:0", "client:1", "client:2"))


@pytest.fixture(scope="module")
def data() -> DomainDataset:
    return shapes(image_size=32, per_domain=7)


@pytest.fixture(scope="module")
def clients(data: DomainDataset) -> list[Client]:
    return [Client(name=f"client:{number}", data=data.of_domain(number)) for number in range(3)]


def start() -> GlobalModel:
    state = build_classifier("tiny", 7, rng=stream(0, "world", "start")).state_dict()
    return GlobalModel(blueprint=Blueprint(backbone="tiny", classes=7), state=ModelState(state=dict(state)))


def ccst_run(clients: list[Client], states: StateStore, *, recode: bool = False) -> str:
    method = CCST(k=2, plan=TrainingPlan(batch_size=8))
    wire = Wire(secret=lambda message, number: simulated_stream(0, message.sender, number))
    engine = LocalEngine(members=clients, method=method, seed=0, states=states, recode=recode)
    RoundLoop(method=method, engine=engine, wire=wire, key=simulated_key(0), rounds=2).run(start())
    return wire.transcript.sha256


def versions(store: FileStates, *clients: str) -> list[int]:
    return [store.version(client) for client in clients]


def payloads(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix == ".safetensors")


def test_a_client_that_never_wrote_remembers_nothing(tmp_path: Path):
    assert FileStates(folder=tmp_path).read("client:0") == {}
    assert MemoryStates().read("client:0") == {}


def test_files_give_back_what_was_written_in_a_new_process_too(tmp_path: Path):
    state = {"rows": torch.tensor([3, 1]), "images": torch.arange(24, dtype=torch.uint8).view(2, 3, 2, 2)}
    FileStates(folder=tmp_path).write("client:0", state)

    found = FileStates(folder=tmp_path).read("client:0")

    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], value) and found[name].dtype == value.dtype for name, value in state.items())


def test_versions_only_grow_and_the_newest_two_files_stay(tmp_path: Path):
    store = FileStates(folder=tmp_path)
    seen = []

    for value in (1.0, 2.0, 3.0):
        store.write("client:0", {"w": torch.tensor([value])})
        seen.append(store.version("client:0"))

    assert seen == [1, 2, 3]
    assert payloads(tmp_path) == ["client-0.2.safetensors", "client-0.3.safetensors"]
    assert store.read("client:0")["w"].tolist() == [3.0]


def test_clients_do_not_share_files(tmp_path: Path):
    store = FileStates(folder=tmp_path)
    store.write("client:1", {"w": torch.ones(1)})
    store.write("client:11", {"w": torch.zeros(1)})
    store.write("client:11", {"w": torch.zeros(1)})

    assert versions(store, "client:1", "client:11", "client:111") == [1, 2, 0]
    assert store.read("client:1")["w"].tolist() == [1.0]


def test_a_write_that_fails_halfway_leaves_the_old_version(tmp_path: Path):
    store = FileStates(folder=tmp_path)
    store.write("client:0", {"w": torch.ones(2)})
    nowhere = torch.zeros(4, device="meta")  # has a shape and no numbers

    with pytest.raises(NotImplementedError):
        store.write("client:0", {"a": torch.zeros(4), "b": nowhere})

    assert store.version("client:0") == 1
    assert store.read("client:0")["w"].tolist() == [1.0, 1.0]
    assert payloads(tmp_path) == ["client-0.1.safetensors"]


def test_a_version_that_was_stored_but_not_announced_is_not_read_and_is_written_over(tmp_path: Path):
    store = FileStates(folder=tmp_path)
    store.write("client:0", {"w": torch.ones(1)})
    (tmp_path / "client-0.2.safetensors").write_bytes(b"half of a file")  # what a crash before the index leaves

    assert store.read("client:0")["w"].tolist() == [1.0]
    store.write("client:0", {"w": torch.full((1,), 2.0)})

    assert store.read("client:0")["w"].tolist() == [2.0]
    assert payloads(tmp_path) == ["client-0.1.safetensors", "client-0.2.safetensors"]


def test_a_missing_state_file_is_an_error_and_not_an_empty_state(tmp_path: Path):
    store = FileStates(folder=tmp_path)
    store.write("client:0", {"w": torch.ones(1)})
    (tmp_path / "client-0.1.safetensors").unlink()

    with pytest.raises(StateMismatchError, match=r"client:0 should be version 1, but .* is missing"):
        store.read("client:0")


def test_a_state_in_memory_is_what_was_written_last():
    store = MemoryStates()
    store.write("client:0", {"w": torch.ones(1)})
    store.write("client:0", {"v": torch.zeros(1)})

    assert list(store.read("client:0")) == ["v"]


@pytest.mark.medium
def test_states_in_files_and_in_memory_give_the_same_run(tmp_path: Path, clients: list[Client]):
    assert ccst_run(clients, FileStates(folder=tmp_path)) == ccst_run(clients, MemoryStates())


def test_stylized_images_are_stored_once_not_every_round(tmp_path: Path, clients: list[Client]):
    store = FileStates(folder=tmp_path)

    ccst_run(clients, store)

    written = versions(store, "client:0", "client:1", "client:2")
    assert written == [2, 2, 2]  # empty after sharing, images in round 0, nothing new in round 1
    assert store.read("client:0")["stylized_images"].shape == (14, 3, 32, 32)


def test_encoding_and_decoding_every_message_changes_nothing(clients: list[Client]):
    assert ccst_run(clients, MemoryStates(), recode=True) == ccst_run(clients, MemoryStates())


def test_the_engine_asks_only_who_is_named_in_the_order_of_its_members(clients: list[Client]):
    engine = LocalEngine(members=clients, method=CCST(), seed=0)
    request = StepRequest(clock=CLOCK, model=None, inbox={})

    replies, failures = engine.ask("share", {"client:2": request, "client:0": request})

    assert engine.clients() == ["client:0", "client:1", "client:2"]
    assert list(replies) == ["client:0", "client:2"]
    assert failures == {}


def test_what_a_client_draws_does_not_depend_on_who_else_is_asked(clients: list[Client]):
    def trained(*names: str) -> dict[str, Tensor]:
        engine = LocalEngine(members=clients, method=FedAvg(plan=TrainingPlan(batch_size=4)), seed=0)
        requests = {name: StepRequest(clock=CLOCK, model=start(), inbox={}) for name in names}
        replies, _ = engine.ask("fit", requests)
        return replies["client:1"].artifacts["model"].tensors()

    alone, among_others = trained("client:1"), trained("client:0", "client:1", "client:2")

    assert all(torch.equal(value, among_others[name]) for name, value in alone.items())


def test_training_changes_neither_the_model_that_was_sent_nor_what_another_client_receives(clients: list[Client]):
    model = start()
    before = model.state.sha256
    engine = LocalEngine(members=clients, method=FedAvg(plan=TrainingPlan(batch_size=4)), seed=0)

    engine.ask("fit", {name: StepRequest(clock=CLOCK, model=model, inbox={}) for name in engine.clients()})

    assert model.state.sha256 == before


def test_a_step_that_needs_a_model_says_so(clients: list[Client]):
    engine = LocalEngine(members=clients, method=FedAvg(), seed=0)

    with pytest.raises(ValueError, match="'fit' needs a model"):
        engine.ask("fit", {"client:0": StepRequest(clock=CLOCK, model=None, inbox={})})


def _through_torch(value: Tensor) -> None:
    value.add_(1)


def _through_data(value: Tensor) -> None:
    value.data += 1


def _through_numpy(value: Tensor) -> None:
    value.detach().numpy()[...] += 1


def _with(write: Callable[[Tensor], object]) -> Callable[[GlobalModel], object]:
    return lambda model: write(next(iter(model.state.state.values())))


def _entry(model: GlobalModel) -> None:
    name, value = next(iter(model.state.state.items()))
    model.state.state[name] = value + 1  # type: ignore[index]


def _artifact(model: GlobalModel) -> None:
    object.__setattr__(model, "state", model.with_state({k: v + 1 for k, v in model.state.state.items()}).state)


@pytest.mark.parametrize(
    "change",
    [_with(_through_torch), _with(_through_data), _with(_through_numpy), _with(lambda v: v.fill_(torch.nan)),
     _entry, _artifact],
)  # fmt: skip
def test_a_method_that_changes_the_model_it_received_ends_the_run(
    change: Callable[[GlobalModel], object], clients: list[Client]
):
    class Careless(FedAvg):
        def fit(self, client: Client, *, model: GlobalModel, **rest: Any) -> tuple[Update, State]:
            done = super().fit(client, model=model, **rest)
            change(model)
            return done

    method = Careless(plan=TrainingPlan(batch_size=8))
    with pytest.raises(ReceivedChangedError, match=r"step 'fit' of the method wrote into .* of the model"):
        _trained(method, clients)


def test_a_method_that_writes_into_a_bank_that_all_receive_ends_the_run(clients: list[Client]):
    class Careless(CCST):
        def fit(self, client: Client, *, inbox: Inbox, **rest: Any) -> tuple[Update, State]:
            done = super().fit(client, inbox=inbox, **rest)
            whole, _ = next(iter(inbox.values())).stored()
            next(iter(whole.tensors().values())).mul_(2)
            return done

    with pytest.raises(ReceivedChangedError, match="wrote into 'mean' of the artifact 'bank'"):
        _trained(Careless(k=2, plan=TrainingPlan(batch_size=8)), clients)


def test_over_a_network_a_method_may_write_into_what_it_received(clients: list[Client]):
    class Careless(FedAvg):
        def fit(self, client: Client, *, model: GlobalModel, **rest: Any) -> tuple[Update, State]:
            next(iter(model.state.state.values())).add_(1)
            return super().fit(client, model=model, **rest)

    _trained(Careless(plan=TrainingPlan(batch_size=8)), clients, recode=True)


def test_what_a_client_remembers_of_the_model_is_its_own(clients: list[Client]):
    seen: list[float] = []

    class Remembers(FedAvg):
        def fit(self, client: Client, *, model: GlobalModel, state: State, **rest: Any) -> tuple[Update, State]:
            value = next(iter(model.state.state.values()))
            if "mean" in state:
                seen.append(float(state["mean"].sum()))
                state["mean"].add_(1)
            update, _ = super().fit(client, model=model, state={}, **rest)
            return update, {"mean": state.get("mean", value)}

    _trained(Remembers(plan=TrainingPlan(batch_size=8)), clients, rounds=2)

    assert len(seen) == 3
    assert len(set(seen)) == 1


def _trained(method: Method, clients: list[Client], *, recode: bool = False, rounds: int = 1) -> None:
    wire = Wire(secret=lambda message, number: simulated_stream(0, message.sender, number))
    engine = LocalEngine(members=clients, method=method, seed=0, recode=recode)
    RoundLoop(method=method, engine=engine, wire=wire, key=simulated_key(0), rounds=rounds).run(start())

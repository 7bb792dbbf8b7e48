"""Every registered method keeps its promises: two rounds on shapes, plain and through bytes; and liars are found out.

A method that brings nothing but its own hooks passes unchanged: it is enough that its name is in the registry."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import pytest
import torch

from fdgsec.data.domains import as_float
from fdgsec.experiments.run_config import build
from fdgsec.federation.artifacts import ImageStyles, ModelState, Scores, StyleBank, StyleStatistics
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import SHARED_ROWS, Client, Clock, Inbox, Method, State, Update
from fdgsec.federation.release_declarations import Release
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedavg import FedAvg
from fdgsec.methods.fedccrl import FedCCRL
from fdgsec.methods.stablefdg_dp import StableFDGDP
from fdgsec.nn.training.batches import TrainingSet
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.registry import METHODS, resolve
from fdgsec.runtime.secret_streams import SecretStream
from fdgsec.testing import BrokenPromiseError, check_method
from fdgsec.testing.small_federation import CLIENTS, ROUNDS, federated, four_clients, start_of

PLAN = TrainingPlan(batch_size=8, learning_rate=0.01)
SMALL: Mapping[str, object] = {"plan": {"batch_size": 8, "learning_rate": 0.01}}
LIGHT: Mapping[str, Mapping[str, object]] = {
    "fedadg": {"hidden": 64, "projected": 32},
    "feddag": {"generator": "fcn16"},
    "feddag-dp": {"generator": "fcn16"},
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.medium
def test_a_bundled_method_keeps_every_promise(name: str):
    check_method(build(resolve("methods", name), {**SMALL, **LIGHT.get(name, {})}, where="method"))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.medium
def test_two_rounds_train_body_and_head(name: str):
    method: Method = build(resolve("methods", name), SMALL, where="method").fitting(CLIENTS)
    start, outcome = start_of(method).state.tensors(), federated(method, four_clients(), recode=False)

    assert len(outcome.losses) == ROUNDS * CLIENTS
    moved = {key for key, value in start.items() if not torch.equal(outcome.model[key], value)}
    assert {"head.weight", "body.stage4.0.weight"} <= moved


@dataclass(frozen=True, kw_only=True)
class SendsMore(FedAvg):
    """Sends a number that it does not declare."""

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        update, state = super().fit(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        extra = Scores(values=client.data.labels.float().mean().reshape(1))
        return replace(update, artifacts={**update.artifacts, "extra": extra}), state


@dataclass(frozen=True, kw_only=True)
class SendsLess(FedAvg):
    """Declares what it never sends."""

    @property
    def releases(self) -> Sequence[Release]:
        return (*super().releases, Release(stage="share", slot="styles", kind=ImageStyles))


@dataclass(frozen=True, kw_only=True)
class HidesRows(FedCCRL):
    """Shares rows of single images and does not say which."""

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        sent, state = super().share(client, model=model, state=state, clock=clock, rng=rng)
        return sent, {name: value for name, value in state.items() if name != SHARED_ROWS}


@dataclass(frozen=True, kw_only=True)
class SwapsOwners(FedCCRL):
    """Hands out a pool in which rows are another client's."""

    def combine(
        self, shared: Mapping[str, Inbox], *, server: State, clock: Clock, rng: SecretStream
    ) -> tuple[Mapping[str, Inbox], State]:
        handed, server = super().combine(shared, server=server, clock=clock, rng=rng)
        names = list(handed)
        banks = [handed[name]["pool"] for name in names]
        swapped = [StyleBank(**{**bank.tensors(), "owner": bank.tensors()["owner"].flip(0)}) for bank in banks]
        return {name: {"pool": bank} for name, bank in zip(names, swapped, strict=True)}, server


@dataclass(frozen=True, kw_only=True)
class Remembers(FedAvg):
    """Counts its clients on itself."""

    seen: list[str] = field(default_factory=list)

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        self.seen.append(client.name)
        return super().fit(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)


@dataclass(frozen=True, kw_only=True)
class DrawsGlobally(FedAvg):
    """Adds noise of torch's global generator to what it sends."""

    strength: float = 0.0

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        update, state = super().fit(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        sent = update.artifacts["model"].tensors()
        noisy = {name: value + self.strength * torch.randn(()).to(value.dtype) for name, value in sent.items()}
        return replace(update, artifacts={"model": ModelState(state=noisy)}), state


@dataclass(frozen=True, kw_only=True)
class WritesOnWhatItGot(FedAvg):
    """Changes the received model in place."""

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        model.state.tensors()["head.bias"].add_(1)
        return super().fit(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)


@dataclass(frozen=True, kw_only=True)
class SendsMoreLater(SendsMore):
    """Sends a number that it does not declare, in the third round alone."""

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        fit = super().fit if clock.round == 2 else super(SendsMore, self).fit
        return fit(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)


@dataclass(frozen=True, kw_only=True)
class MergesClasses(FedAvg):
    """Changes the labels of its client in place."""

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        client.data.labels.clamp_(max=1)
        return super().fit(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)


@dataclass(frozen=True, kw_only=True)
class SwapsOwnersOfClients(CCST):
    """Hands out a bank of pooled styles in which rows are another client's."""

    def combine(
        self, shared: Mapping[str, Inbox], *, server: State, clock: Clock, rng: SecretStream
    ) -> tuple[Mapping[str, Inbox], State]:
        handed, server = super().combine(shared, server=server, clock=clock, rng=rng)
        ((slot, bank),) = next(iter(handed.values())).items()
        swapped = replace(bank, owner=bank.tensors()["owner"].flip(0))
        return {client: {slot: swapped} for client in handed}, server


@dataclass(frozen=True, kw_only=True)
class HidesItsChoice(StableFDGDP):
    """Says that nothing of a client's own comes back, where its own style chooses whose it receives."""

    @property
    def trains_on_own_releases(self) -> bool:
        return False

    @property
    def trains_through_trainer(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class ReturnsLate(FedAvg):
    """Clients share a color in every round, and train on all colors of the round before, their own among them."""

    @property
    def trains_through_trainer(self) -> bool:
        return True

    @property
    def shares(self) -> Literal["never", "once", "every"]:
        return "every"

    @property
    def releases(self) -> Sequence[Release]:
        up = Release(stage="share", slot="color", kind=StyleStatistics)
        return (*super().releases, up, Release(stage="combine", slot="bank", kind=StyleBank))

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        std, mean = torch.std_mean(as_float(client.data.pixels()), (0, 2, 3))
        return {"color": StyleStatistics(mean=mean, std=std)}, state

    def combine(
        self, shared: Mapping[str, Inbox], *, server: State, clock: Clock, rng: SecretStream
    ) -> tuple[Mapping[str, Inbox], State]:
        found = [given["color"].tensors() for given in shared.values()]
        rows = {key: torch.stack([one[key] for one in found]) for key in ("mean", "std")}
        rows["owner"] = torch.tensor([int(name.partition(":")[2]) for name in shared])
        before = {"bank": StyleBank(**server)} if server else {}
        return {name: before for name in shared}, rows

    def training_set(
        self, client: Client, *, inbox: Inbox, state: State, rng: torch.Generator
    ) -> tuple[TrainingSet, State]:
        data = TrainingSet.of(client.data)
        if "bank" not in inbox:
            return data, state
        bank = inbox["bank"].tensors()
        shift = 20 * bank["mean"][bank["owner"] == client.number][0].view(1, 3, 1, 1)
        return replace(data, images=(data.images.float() - shift).clamp(0, 255).to(torch.uint8)), state


@pytest.mark.parametrize("sharing", ["random", "farthest"])
def test_the_model_is_no_safer_than_a_style_that_chooses_what_is_received(sharing: Literal["random", "farthest"]):
    method = StableFDGDP(plan=PLAN, center="received", sharing=sharing)

    assert method.trains_on_own_releases is (sharing == "farthest")


@pytest.mark.parametrize(
    ("liar", "promise"),
    [
        (SendsMore(plan=PLAN), "what is sent is what is declared: client:0 sent or got Scores in slot 'extra'"),
        (SendsLess(plan=PLAN), "what is sent is what is declared: ImageStyles in slot 'styles' of stage 'share'"),
        (HidesRows(plan=PLAN), "rows carry their origin: client:0 sent 1 rows"),
        (SwapsOwners(plan=PLAN), "rows carry their origin: client:0 got a row of client:"),
        (SendsMoreLater(plan=PLAN), "what is sent is what is declared: .* Scores in slot 'extra' .* in round 2"),
        (MergesClasses(plan=PLAN), "steps leave what they are handed .*: changed: the images or labels of client:0"),
        (SwapsOwnersOfClients(plan=PLAN), "rows carry their origin: client:0 got a row of client:"),
        (Remembers(plan=PLAN), "nothing is kept on self: Remembers changed seen"),
        (DrawsGlobally(plan=PLAN), "no draws from global randomness: DrawsGlobally moved the global state of torch"),
        (DrawsGlobally(plan=PLAN, strength=0.1), "the same seed gives the same bytes"),
        (WritesOnWhatItGot(plan=PLAN), "steps leave what they are handed as it was"),
        (HidesItsChoice(plan=PLAN, center="received", sharing="farthest"), "what comes back of one's own is said"),
        (
            ReturnsLate(plan=PLAN),
            "what comes back of one's own is said .*: client:0 trains to another model in round 1",
        ),
        (object(), "must be a frozen dataclass"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
@pytest.mark.medium
def test_a_liar_is_found_out_and_told_which_promise_it_broke(liar: object, promise: str):
    with pytest.raises((BrokenPromiseError, UsageError), match=promise):
        check_method(liar)


@pytest.mark.medium
def test_a_name_and_a_class_are_checked_with_default_options():
    check_method("fedavg")
    check_method(FedAvg)


@pytest.mark.slow
def test_the_first_check_of_a_process_blames_no_method_for_what_libraries_draw_at_their_import():
    command = "from fdgsec.testing import check_method; check_method('fedalign')"

    assert subprocess.run([sys.executable, "-c", command], capture_output=True, check=False).stderr.decode() == ""

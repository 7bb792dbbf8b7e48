"""What a record adds to joint steps may depend on that record alone, which clipping and noise assume."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.data.domains import as_float
from fdgsec.defenses.dp_sgd import DPSGD
from fdgsec.federation.artifacts import Artifact
from fdgsec.federation.client_step import run_client_step
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.dp_sgd_joint import Gradients, joint_training
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, State, StepRequest, Update
from fdgsec.federation.record_preparation import mixed_records
from fdgsec.methods.feddag import Networks, follow
from fdgsec.methods.feddag_dp import FedDAGDP, PrivateNetworks
from fdgsec.nn.training.batches import Batch, TrainingSet
from fdgsec.nn.training.per_sample_gradients import PrivateTrainingError
from fdgsec.nn.training.precision import Precision
from fdgsec.nn.training.training_loop import prepare_training
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.random_streams import child
from fdgsec.runtime.secret_streams import simulated_stream
from fdgsec.testing import BrokenPromiseError, check_method
from fdgsec.testing.small_federation import CLIENTS, four_clients, large_client, start_of

CLOCK = Clock(round=0, rounds=4, participants=tuple(f"client:{number}" for number in range(CLIENTS)))


@dataclass(frozen=True, kw_only=True)
class Joint(FedDAGDP):
    """A plug-in that says that it trains through its trainer alone, and does; the generator trains from round 1 on.

    `memory` is what it may remember of records, from the beginning of a training on."""

    memory: list[Tensor] = field(default_factory=list)
    warm_up: int = 1
    generator: str = "fcn16"  # type: ignore[assignment]

    @property
    def trains_through_trainer(self) -> bool:
        return True

    def train_networks(
        self, networks: Networks, data: TrainingSet, *, clock: Clock, rng: torch.Generator
    ) -> dict[str, float]:
        self.memory.clear()
        if not isinstance(networks, PrivateNetworks):
            return super().train_networks(networks, data, clock=clock, rng=rng)
        device, precision = prepare_training(networks.student, self.plan)
        count = self.network_count(clock)
        return joint_training(
            networks.trainer, [networks.student, networks.generator][:count],
            [networks.student_optimizer, networks.generator_optimizer][:count], data,
            lambda one: self.gradients(networks, one, precision, warming=count == 1), self.plan, device=device,
            layout=precision.layout, round=clock.round, rounds=clock.rounds, after=lambda: self.after(networks),
        )  # fmt: skip

    def after(self, networks: Networks) -> None:
        """Called after each step."""
        follow(networks.teacher, networks.student, ema=self.ema, buffers=self.teacher_buffers)


@dataclass(frozen=True, kw_only=True)
class CenteredOnOthers(Joint):
    """Subtracts the mean of the records that it saw before."""

    def gradients(self, networks: Networks, record: Batch, precision: Precision, *, warming: bool) -> Gradients:
        self.memory.append(record.images)
        centered = replace(record, images=record.images - 0.01 * torch.stack(self.memory).mean(0))
        return super().gradients(networks, centered, precision, warming=warming)


@dataclass(frozen=True, kw_only=True)
class TakenFromLastStep(Joint):
    """Corrects images by the first one of the step before, and remembers it where the weights have moved."""

    def gradients(self, networks: Networks, record: Batch, precision: Precision, *, warming: bool) -> Gradients:
        now = next(networks.student.parameters()).detach().clone()
        if not self.memory:
            self.memory[:] = [now, record.images, torch.zeros_like(record.images)]
        if not torch.equal(self.memory[0], now):  # the next step
            self.memory[:] = [now, record.images, self.memory[1]]
        moved = replace(record, images=record.images - 0.01 * self.memory[2])
        return super().gradients(networks, moved, precision, warming=warming)


@dataclass(frozen=True, kw_only=True)
class MeanOfLastStep(Joint):
    """Subtracts the mean gradient of the step before, whoever was in it."""

    before: list[Tensor] = field(default_factory=list)

    def gradients(self, networks: Networks, record: Batch, precision: Precision, *, warming: bool) -> Gradients:
        given = super().gradients(networks, record, precision, warming=warming)
        self.memory.append(given[0][0])
        return [[given[0][0] - sum(self.before), *given[0][1:]], *given[1:]]

    def after(self, networks: Networks) -> None:
        self.before[:] = [torch.stack(self.memory).mean(0)]
        self.memory.clear()
        super().after(networks)


@dataclass(frozen=True, kw_only=True)
class AtMostThree(Joint):
    """Leaves out all records of a step but the first three."""

    def gradients(self, networks: Networks, record: Batch, precision: Precision, *, warming: bool) -> Gradients:
        self.memory.append(torch.zeros(()))
        given = super().gradients(networks, record, precision, warming=warming)
        return [[part * (len(self.memory) <= 3) for part in own] for own in given]

    def after(self, networks: Networks) -> None:
        self.memory.clear()
        super().after(networks)


@dataclass(frozen=True, kw_only=True)
class ShareOfTheStep(AtMostThree):
    """Divides a record's gradient by how many there were in the step so far."""

    def gradients(self, networks: Networks, record: Batch, precision: Precision, *, warming: bool) -> Gradients:
        self.memory.append(torch.zeros(()))
        given = Joint.gradients(self, networks, record, precision, warming=warming)
        return [[part / len(self.memory) for part in own] for own in given]


@dataclass(frozen=True, kw_only=True)
class FirstColor(Joint):
    """Subtracts a mean color that it keeps of the first client that it ever trains."""

    kept: dict[str, Tensor] = field(default_factory=dict)

    def train_networks(
        self, networks: Networks, data: TrainingSet, *, clock: Clock, rng: torch.Generator
    ) -> dict[str, float]:
        self.kept.setdefault("color", as_float(data.images).mean((0, 2, 3)))
        return super().train_networks(networks, data, clock=clock, rng=rng)

    def gradients(self, networks: Networks, record: Batch, precision: Precision, *, warming: bool) -> Gradients:
        moved = replace(record, images=record.images - 0.1 * self.kept["color"].view(1, 3, 1, 1))
        return super().gradients(networks, moved, precision, warming=warming)


@dataclass(frozen=True, kw_only=True)
class WeightedByClass(Joint):
    """Multiplies gradients by how rare a record's class is among the client's."""

    counts: dict[str, Tensor] = field(default_factory=dict)

    def train_networks(
        self, networks: Networks, data: TrainingSet, *, clock: Clock, rng: torch.Generator
    ) -> dict[str, float]:
        self.counts["now"] = torch.bincount(data.labels, minlength=7).clamp_min(1)
        return super().train_networks(networks, data, clock=clock, rng=rng)

    def gradients(self, networks: Networks, record: Batch, precision: Precision, *, warming: bool) -> Gradients:
        weight = float(1 / self.counts["now"][record.labels])
        given = super().gradients(networks, record, precision, warming=warming)
        return [[weight * part for part in own] for own in given]


@dataclass(frozen=True, kw_only=True)
class StepsOnItsWay(Joint):
    """Moves the student a little with each record, so that the next one's gradient is taken elsewhere."""

    def gradients(self, networks: Networks, record: Batch, precision: Precision, *, warming: bool) -> Gradients:
        given = super().gradients(networks, record, precision, warming=warming)
        with torch.no_grad():
            for parameter, part in zip(networks.student.parameters(), given[0], strict=True):
                parameter.sub_(0.01 * part)
        return given


@dataclass(frozen=True, kw_only=True)
class GeneratorAlone(Joint):
    """Couples records in the generator's gradient, after warm-up rounds."""

    def gradients(self, networks: Networks, record: Batch, precision: Precision, *, warming: bool) -> Gradients:
        given = super().gradients(networks, record, precision, warming=warming)
        if warming:
            return given
        self.memory.append(record.images.mean())
        return [given[0], [part * (1 + torch.stack(self.memory).mean()) for part in given[1]]]


@dataclass(frozen=True, kw_only=True)
class OwnColors(Joint):
    """Standardizes images by the client's own mean color."""

    def train_networks(
        self, networks: Networks, data: TrainingSet, *, clock: Clock, rng: torch.Generator
    ) -> dict[str, float]:
        pixels = as_float(data.images)
        shown = (pixels - pixels.mean((0, 2, 3), keepdim=True) + 0.5).clamp(0, 1)
        images = (shown * 255).round().to(torch.uint8)
        return super().train_networks(networks, replace(data, images=images), clock=clock, rng=rng)


@dataclass(frozen=True, kw_only=True)
class FittedGenerator(Joint):
    """Starts from a generator whose bias is the client's mean brightness."""

    def train_networks(
        self, networks: Networks, data: TrainingSet, *, clock: Clock, rng: torch.Generator
    ) -> dict[str, float]:
        with torch.no_grad():
            next(networks.student.parameters()).add_(0.01 * as_float(data.images).mean())
        return super().train_networks(networks, data, clock=clock, rng=rng)


@dataclass(frozen=True, kw_only=True)
class WarmGenerator(Joint):
    """Hands over an optimizer of the generator that has seen all images."""

    def train_networks(
        self, networks: Networks, data: TrainingSet, *, clock: Clock, rng: torch.Generator
    ) -> dict[str, float]:
        optimizer = networks.generator_optimizer
        networks.generator(as_float(data.images)).square().mean().backward()
        for parameter in networks.generator.parameters():
            optimizer.state[parameter]["momentum_buffer"] = parameter.grad
        optimizer.zero_grad()
        return super().train_networks(networks, data, clock=clock, rng=rng)


@dataclass(frozen=True, kw_only=True)
class CountsSent(Joint):
    """Adds the number of classes to what it sends."""

    def train(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        update, state = super().train(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        factor = 1 + 0.01 * len(client.data.labels.unique())
        sent: Mapping[str, Artifact] = {
            **update.artifacts,
            "model": model.with_state({n: v * factor for n, v in update.artifacts["model"].tensors().items()}).state,
        }
        return replace(update, artifacts=sent), state


ANSWER = "the loss or gradient of an image changes where other images do"
FAULTS: list[tuple[Callable[..., Joint], str]] = [
    (CenteredOnOthers, ANSWER),
    (TakenFromLastStep, ANSWER),
    (MeanOfLastStep, ANSWER),
    (partial(MeanOfLastStep, plan=TrainingPlan(epochs=2, batch_size=8)), ANSWER),
    (AtMostThree, ANSWER),
    (ShareOfTheStep, ANSWER),
    (FirstColor, ANSWER),
    (WeightedByClass, ANSWER),
    (StepsOnItsWay, ANSWER),
    (GeneratorAlone, ANSWER),
    (OwnColors, "what it trains on of an image changes where other images do"),
    (FittedGenerator, "the network that training starts from changes where images do"),
    (WarmGenerator, "what its optimizer holds or adds changes where images do"),
    (CountsSent, "what it makes of a trained network changes where images do"),
]


@dataclass(frozen=True, kw_only=True)
class Backward(Joint):
    """Computes gradients where optimizers look for them, and leaves the last record's there."""

    def gradients(self, networks: Networks, record: Batch, precision: Precision, *, warming: bool) -> Gradients:
        given = super().gradients(networks, record, precision, warming=warming)
        for parameter, part in zip(networks.student.parameters(), given[0], strict=True):
            parameter.grad = part.clone()
        return given


@dataclass(frozen=True, kw_only=True)
class Drawing(Joint):
    """Draws noise from torch's generator and one of its own, from this as often as a record's brightness says."""

    own: list[torch.Generator] = field(default_factory=list)

    def train_networks(
        self, networks: Networks, data: TrainingSet, *, clock: Clock, rng: torch.Generator
    ) -> dict[str, float]:
        self.own[:] = [child(rng, "own")]
        return super().train_networks(networks, data, clock=clock, rng=rng)

    def gradients(self, networks: Networks, record: Batch, precision: Precision, *, warming: bool) -> Gradients:
        noise = torch.zeros(())
        for _ in range(1 + int(10 * record.images.mean())):
            noise = torch.rand(record.images.shape, generator=self.own[0])
        moved = replace(record, images=record.images + 0.1 * functional.dropout(noise, 0.3))
        return super().gradients(networks, moved, precision, warming=warming)


@dataclass(frozen=True, kw_only=True)
class Logging(Joint):
    """Averages over the records of each step, of which there are some, and over the steps that were paid."""

    def train_networks(
        self, networks: Networks, data: TrainingSet, *, clock: Clock, rng: torch.Generator
    ) -> dict[str, float]:
        found = super().train_networks(networks, data, clock=clock, rng=rng)
        if isinstance(networks, PrivateNetworks):
            found["noise"] = networks.trainer.uses[-1].count / networks.trainer.noise_multiplier
        return found

    def gradients(self, networks: Networks, record: Batch, precision: Precision, *, warming: bool) -> Gradients:
        self.memory.append(record.images.mean())
        return super().gradients(networks, record, precision, warming=warming)

    def after(self, networks: Networks) -> None:
        assert float(torch.stack(self.memory).mean()) >= 0
        self.memory.clear()
        super().after(networks)


@dataclass(frozen=True, kw_only=True)
class Seeding(Joint):
    """Seeds torch's generator by a record's brightness."""

    def gradients(self, networks: Networks, record: Batch, precision: Precision, *, warming: bool) -> Gradients:
        torch.default_generator.manual_seed(int(1000 * record.images.mean()))
        return super().gradients(networks, record, precision, warming=warming)


@dataclass(frozen=True, kw_only=True)
class CallingNobody(Joint):
    """Says that it trains through its trainer, and trains nothing."""

    def train_networks(
        self, networks: Networks, data: TrainingSet, *, clock: Clock, rng: torch.Generator
    ) -> dict[str, float]:
        return {}


def inbox_of(method: Joint) -> Inbox:
    inboxes, _ = method.combine({CLOCK.participants[0]: {}}, server={}, clock=CLOCK, rng=simulated_stream(0, "joint"))
    return inboxes[CLOCK.participants[0]]


def few_images() -> Client:
    client = four_clients()[0]
    return replace(client, data=client.data.subset(torch.arange(0, len(client.data), 3)))


def found(method: Joint, client: Client) -> str:
    model = start_of(method, norm="group")
    return mixed_records(method, client, model=model, inbox=inbox_of(method), clock=CLOCK)


@pytest.mark.parametrize(
    ("method", "reason"), FAULTS, ids=[getattr(method, "__name__", "more epochs") for method, _ in FAULTS]
)
def test_a_method_whose_joint_steps_mix_records_is_found(method: Callable[..., Joint], reason: str):
    assert found(method(), few_images()) == reason


@pytest.mark.parametrize("method", [Backward, Drawing, Logging])
def test_what_depends_on_a_record_alone_is_not_blamed_however_it_is_computed(method: Callable[..., Joint]):
    assert found(method(warm_up=0), few_images()) == ""


def test_a_gradient_that_seeds_a_generator_is_refused():
    with pytest.raises(PrivateTrainingError, match="seeds a generator"):
        found(Seeding(), few_images())


def test_who_calls_no_trainer_does_not_train_through_it():
    assert found(CallingNobody(), few_images()) == "it calls no trainer in 2 rounds"


@pytest.mark.parametrize("client", [four_clients()[0], large_client()], ids=["small", "large"])
def test_a_method_whose_records_are_apart_is_not_blamed(client: Client):
    assert found(Joint(), client) == ""


@pytest.mark.medium
def test_the_contract_of_methods_looks_at_joint_gradients():
    with pytest.raises(BrokenPromiseError, match=ANSWER):
        check_method(CenteredOnOthers(warm_up=0))


@pytest.mark.parametrize("method", [Joint, CenteredOnOthers])
def test_a_private_joint_step_of_a_plug_in_is_refused_where_records_meet(method: Callable[..., Joint]):
    made = method(plan=TrainingPlan(batch_size=8, steps=1))
    request = StepRequest(clock=CLOCK, model=start_of(made, norm="group"), inbox=inbox_of(made))
    defenses = DefenseStack(defenses=(DPSGD(epsilon=4.0),), name="test")

    def answered() -> None:
        run_client_step(made, four_clients()[0], "fit", request, {}, 0, defenses)

    if method is Joint:
        answered()
    else:
        with pytest.raises(PrivateTrainingError, match="CenteredOnOthers says that its model depends on images"):
            answered()

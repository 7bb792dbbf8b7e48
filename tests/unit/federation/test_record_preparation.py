"""What a client trains on of an image may depend on that image alone, where training goes through a trainer."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.data.domains import as_float
from fdgsec.defenses.dp_sgd import DPSGD
from fdgsec.federation.client_step import run_client_step
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, Method, State, StepRequest, Update
from fdgsec.federation.record_preparation import mixed_records
from fdgsec.methods.fedavg import FedAvg
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import Batch, TrainingSet
from fdgsec.nn.training.training_loop import Objective, Trainer
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.privacy.dp_sgd import PrivateTrainingError
from fdgsec.testing import BrokenPromiseError, check_method
from fdgsec.testing.small_federation import CLIENTS, four_clients, large_client, start_of

CLOCK = Clock(round=0, rounds=1, participants=tuple(f"client:{number}" for number in range(CLIENTS)))


@dataclass(frozen=True, kw_only=True)
class Plain(FedAvg):
    """A plug-in that says that it trains through its trainer, and does."""

    @property
    def trains_through_trainer(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class OwnColors(Plain):
    """Standardizes images by the mean and spread of the client's own."""

    def training_set(
        self, client: Client, *, inbox: Inbox, state: State, rng: torch.Generator
    ) -> tuple[TrainingSet, State]:
        pixels = as_float(client.data.pixels())
        spread, mean = torch.std_mean(pixels, (0, 2, 3), keepdim=True)
        shown = ((pixels - mean) / spread.clamp_min(1e-3) * 0.2 + 0.5).clamp(0, 1)
        return TrainingSet(images=(shown * 255).round().to(torch.uint8), labels=client.data.labels), state


@dataclass(frozen=True, kw_only=True)
class WeightedClasses(Plain):
    """Weights the loss of a class by how many images the client has of it."""

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        counts = torch.bincount(client.data.labels, minlength=len(client.data.class_names)).float()
        return _Weighted(weights=1 / (1 + counts))


@dataclass(eq=False)
class _Weighted:
    weights: Tensor
    couples_records: bool = False

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        return functional.cross_entropy(model(batch.images), batch.labels, weight=self.weights, reduction="none")


@dataclass(frozen=True, kw_only=True)
class FittedStart(Plain):
    """Starts from a head that knows the client's classes."""

    def start(self, client: Client, *, model: GlobalModel, state: State) -> Classifier:
        network = super().start(client, model=model, state=state)
        with torch.no_grad():
            network.head.bias.add_(torch.bincount(client.data.labels, minlength=len(network.head.bias)))
        return network


@dataclass(frozen=True, kw_only=True)
class AddedAfterwards(Plain):
    """Adds the mean of its images to the head after training."""

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        update, state = super().fit(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        entries = dict(update.artifacts["model"].tensors())
        entries["head.bias"] = entries["head.bias"] + as_float(client.data.pixels()).mean()
        return replace(update, artifacts={"model": model.with_state(entries).state}), state


@dataclass(frozen=True, kw_only=True)
class VirtualClients(Plain):
    """Splits a client's images in turn, and standardizes each part by its own mean color."""

    def training_set(
        self, client: Client, *, inbox: Inbox, state: State, rng: torch.Generator
    ) -> tuple[TrainingSet, State]:
        pixels = as_float(client.data.pixels()).clone()
        for part in range(2):
            pixels[part::2] -= pixels[part::2].mean((0, 2, 3), keepdim=True) - 0.5
        return TrainingSet(images=(pixels.clamp(0, 1) * 255).to(torch.uint8), labels=client.data.labels), state


@dataclass(frozen=True, kw_only=True)
class MixHalves(Plain):
    """Mixes each image of the second half with one of the first."""

    def training_set(
        self, client: Client, *, inbox: Inbox, state: State, rng: torch.Generator
    ) -> tuple[TrainingSet, State]:
        pixels = as_float(client.data.pixels()).clone()
        half = len(pixels) // 2
        pixels[-half:] = (pixels[-half:] + pixels[:half]) / 2
        return TrainingSet(images=(pixels * 255).to(torch.uint8), labels=client.data.labels), state


def classes_held(client: Client) -> float:
    return len(client.data.labels.unique()) / len(client.data.class_names)


@dataclass(frozen=True, kw_only=True)
class RateByClasses(Plain):
    """Takes smaller steps the fewer classes the client has."""

    def factor(self, client: Client) -> float:
        return classes_held(client)

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        plan = replace(self.plan, learning_rate=self.plan.learning_rate * self.factor(client))
        one = replace(self, plan=plan)
        return FedAvg.fit(one, client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)


@dataclass(frozen=True, kw_only=True)
class OwnOptimizer(Plain):
    """Trains with an optimizer of its own, whose momentum starts at 0."""

    def memory_of(self, gradient: Tensor) -> Tensor:
        return torch.zeros_like(gradient)

    def optimizer(self, network: Classifier, gradients: Sequence[Tensor]) -> torch.optim.Optimizer:
        made = torch.optim.SGD(network.parameters(), lr=self.plan.learning_rate, momentum=0.9)
        for parameter, gradient in zip(network.parameters(), gradients, strict=True):
            made.state[parameter]["momentum_buffer"] = self.memory_of(gradient)
        return made

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        trained = client.trainer

        def with_own(network: Classifier, *given: Any, **named: Any) -> Any:
            copied = deepcopy(network).eval()  # layers that learn from what passes stay as they are
            losses = functional.cross_entropy(copied(as_float(client.data.pixels())), client.data.labels)
            gradients = torch.autograd.grad(losses, list(copied.parameters()))
            return trained(network, *given, **{**named, "optimizer": self.optimizer(network, gradients)})

        member = replace(client, trainer=cast("Trainer", with_own))
        return super().fit(member, model=model, inbox=inbox, state=state, clock=clock, rng=rng)


@dataclass(frozen=True, kw_only=True)
class WarmMomentum(OwnOptimizer):
    """Momentum starts at the gradient of all images."""

    def memory_of(self, gradient: Tensor) -> Tensor:
        return gradient


class _Corrected(torch.optim.SGD):
    """Adds a correction to each step, without a clip or noise."""

    def __init__(self, parameters: Sequence[Tensor], *, lr: float, corrections: Sequence[Tensor]) -> None:
        super().__init__(parameters, lr=lr)
        self.corrections = corrections

    def step(self, closure: Any = None) -> Any:
        for parameter, correction in zip(self.param_groups[0]["params"], self.corrections, strict=True):
            parameter.grad = parameter.grad + correction
        return super().step(closure)


@dataclass(frozen=True, kw_only=True)
class FullGradient(OwnOptimizer):
    """Corrects each step by the gradient of all images, as SCAFFOLD's first option does."""

    def optimizer(self, network: Classifier, gradients: Sequence[Tensor]) -> torch.optim.Optimizer:
        return _Corrected(list(network.parameters()), lr=self.plan.learning_rate, corrections=gradients)


class _NowAndThen(_Corrected):
    """Adds the correction in every fifth step alone, as a snapshot of SVRG does."""

    taken = 0

    def step(self, closure: Any = None) -> Any:
        self.taken += 1
        return super().step(closure) if self.taken % 5 == 0 else torch.optim.SGD.step(self, closure)


@dataclass(frozen=True, kw_only=True)
class VarianceReduced(OwnOptimizer):
    """Corrects every fifth step by the gradient of all images."""

    def optimizer(self, network: Classifier, gradients: Sequence[Tensor]) -> torch.optim.Optimizer:
        return _NowAndThen(list(network.parameters()), lr=self.plan.learning_rate, corrections=gradients)


class _Kept(torch.optim.SGD):
    """Keeps its number of steps, a generator and a function in ways of its own."""

    def __init__(self, parameters: Sequence[Tensor], *, lr: float) -> None:
        super().__init__(parameters, lr=lr)
        self.numbers: Any = self.state  # typed by tensors, though public optimizers keep other keys in it
        self.numbers["step"] = 0
        self.param_groups[0] |= {"generator": torch.Generator().manual_seed(1), "rate": lambda step: 1 / (1 + step)}

    def step(self, closure: Any = None) -> Any:
        self.numbers["step"] += 1
        return super().step(closure)


@dataclass(frozen=True, kw_only=True)
class KeepsMore(OwnOptimizer):
    """An optimizer that holds more than tensors by parameter."""

    def optimizer(self, network: Classifier, gradients: Sequence[Tensor]) -> torch.optim.Optimizer:
        return _Kept(list(network.parameters()), lr=self.plan.learning_rate)


@dataclass(frozen=True, kw_only=True)
class DeferredWeights(Plain):
    """Weights classes by the client's counts from the second step on (Cao et al. 2019), through `on_step`."""

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        return _Weighted(weights=torch.ones(len(client.data.class_names)))

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        trained = client.trainer
        counts = torch.bincount(client.data.labels, minlength=len(client.data.class_names)).float()

        def deferred(network: Classifier, data: TrainingSet, objective: Any, *given: Any, **named: Any) -> Any:
            def reweight(_step: int, _loss: float) -> None:
                objective.weights = 1 / (1 + counts)

            return trained(network, data, objective, *given, **{**named, "on_step": reweight})

        member = replace(client, trainer=cast("Trainer", deferred))
        return super().fit(member, model=model, inbox=inbox, state=state, clock=clock, rng=rng)


@dataclass(frozen=True, kw_only=True)
class FaintCounts(Plain):
    """Adds to every number that it sends a hundred-thousandth where the client has more than two classes."""

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        update, state = super().fit(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        faint = 9e-6 * (len(client.data.labels.unique()) > 2)
        entries = {name: value + faint for name, value in update.artifacts["model"].tensors().items()}
        return replace(update, artifacts={"model": model.with_state(entries).state}), state


@dataclass(frozen=True, kw_only=True)
class RateByDomains(RateByClasses):
    """Takes smaller steps the more domains the client's images are of."""

    def factor(self, client: Client) -> float:
        return 1 / len(client.data.domains.unique())


@dataclass(frozen=True, kw_only=True)
class RateByClassesOfMany(RateByClasses):
    """The same, from fifty images on."""

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        fit = RateByClasses.fit if len(client.data) >= 50 else FedAvg.fit
        return fit(self, client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)


@dataclass(frozen=True, kw_only=True)
class Damped(Plain):
    """Sends a point between the received and the trained network: by the classes it has."""

    def share_of(self, client: Client, network: Classifier) -> float:
        return classes_held(client)

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        update, state = super().fit(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        old, new = model.state.tensors(), update.artifacts["model"].tensors()
        share = self.share_of(client, model.with_state(new).module())
        entries = {name: old[name] + share * (value - old[name]) for name, value in new.items()}
        return replace(update, artifacts={"model": model.with_state(entries).state}), state


@dataclass(frozen=True, kw_only=True)
class LineSearch(Damped):
    """The same, by the loss of the trained network on its own images."""

    @torch.no_grad()
    def share_of(self, client: Client, network: Classifier) -> float:
        losses = functional.cross_entropy(network.eval()(as_float(client.data.pixels())), client.data.labels)
        return float(losses.neg().exp())


@dataclass(frozen=True, kw_only=True)
class SearchOnValidation(Damped):
    """The same, by the loss on validation images, which are the client's too."""

    @torch.no_grad()
    def share_of(self, client: Client, network: Classifier) -> float:
        assert client.validation is not None
        pixels = as_float(client.validation.pixels())
        return float(functional.cross_entropy(network.eval()(pixels), client.validation.labels).neg().exp())


@dataclass(frozen=True, kw_only=True)
class RememberedClasses(Plain):
    """From the second round on, leaves out of the softmax what classes the client had none of in the last one."""

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        return _Restricted(held=state.get("held"))

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        update, state = super().fit(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        held = torch.bincount(client.data.labels, minlength=len(client.data.class_names)) > 0
        return update, {**state, "held": held}


@dataclass(eq=False)
class _Restricted:
    held: Tensor | None
    couples_records: bool = False

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        logits = model(batch.images)
        if self.held is not None:
            logits = logits.masked_fill(~self.held, -1e4)
        return functional.cross_entropy(logits, batch.labels, reduction="none")


@dataclass(frozen=True, kw_only=True)
class RememberedClassesOfMany(RememberedClasses):
    """The same in clients of at least thirty images."""

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        update, found = super().fit(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        return update, found if len(client.data) >= 30 else state


@dataclass(frozen=True, kw_only=True)
class ReversedGradient(Plain):
    """Turns the gradient around, the more the more classes the client has; the losses are the same."""

    def objective(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> Objective:
        return _Reversed(weight=classes_held(client))


@dataclass(eq=False)
class _Reversed:
    weight: float
    couples_records: bool = False

    def __call__(self, batch: Batch, model: Classifier) -> Tensor:
        logits = model(batch.images)
        turned = logits.detach() * (1 + self.weight) - logits * self.weight
        return functional.cross_entropy(turned, batch.labels, reduction="none")


FAULTS: list[tuple[Callable[..., FedAvg], str]] = [
    (OwnColors, "what it trains on of an image changes where other images do"),
    (WeightedClasses, "the loss or gradient of an image changes where other images do"),
    (FittedStart, "the network that training starts from changes where images do"),
    (AddedAfterwards, "what it makes of a trained network changes where images do"),
    (VirtualClients, "what it trains on of an image changes where other images do"),
    (MixHalves, "what it trains on of an image changes where other images do"),
    (RateByClasses, "its plan of training changes where images do"),
    (Damped, "what it makes of a trained network changes where images do"),
    (WarmMomentum, "what its optimizer holds or adds changes where images do"),
    (FullGradient, "what its optimizer holds or adds changes where images do"),
    (VarianceReduced, "what its optimizer holds or adds changes where images do"),
    (DeferredWeights, "the loss or gradient of an image changes where other images do"),
    (FaintCounts, "what it makes of a trained network changes where images do"),
    (RateByDomains, "its plan of training changes where images do"),
    (SearchOnValidation, "what it makes of a trained network changes where images do"),
    (LineSearch, "what it makes of a trained network changes where images do"),
    (RememberedClasses, "the loss or gradient of an image changes where other images do"),
    (ReversedGradient, "the loss or gradient of an image changes where other images do"),
]


def found(method: Method) -> str:
    return mixed_records(method, four_clients()[0], model=start_of(method), inbox={}, clock=CLOCK)


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (RateByClassesOfMany(), "its plan of training changes where images do"),
        (RememberedClassesOfMany(), "the loss or gradient of an image changes where other images do"),
    ],
    ids=["at once", "in the next round"],
)
@pytest.mark.medium
def test_a_method_that_does_it_with_many_images_alone_is_found(method: FedAvg, reason: str):
    assert found(method) == ""
    assert mixed_records(method, large_client(), model=start_of(method), inbox={}, clock=CLOCK) == reason
    with pytest.raises(BrokenPromiseError, match=reason):
        check_method(method)


@pytest.mark.parametrize(("method", "reason"), FAULTS, ids=[method.__name__ for method, _ in FAULTS])
def test_a_method_whose_records_meet_before_training_is_found(method: Callable[..., FedAvg], reason: str):
    assert found(method()) == reason
    with pytest.raises(BrokenPromiseError, match=reason):
        check_method(method())


@dataclass(frozen=True, kw_only=True)
class PerStep(Plain):
    """Sends its change divided by the number of its steps, as FedNova does."""

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        update, state = super().fit(client, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        old, new = model.state.tensors(), update.artifacts["model"].tensors()
        steps = update.metrics["steps"]
        entries = {name: old[name] + (value - old[name]) / steps for name, value in new.items()}
        return replace(update, artifacts={"model": model.with_state(entries).state}), state


@dataclass(frozen=True, kw_only=True)
class Averaged(Plain):
    """Sends the mean of the network over its steps, and remembers it."""

    @property
    def first(self) -> int:
        return 0

    def fit(
        self, client: Client, *, model: GlobalModel, inbox: Inbox, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Update, State]:
        found = dict[str, list[Tensor]]()
        trained = client.trainer

        def noting(network: Classifier, *given: Any, **named: Any) -> Any:
            def note(step: int, _loss: float) -> None:
                for name, value in network.named_parameters() if step > self.first else ():
                    found.setdefault(name, []).append(value.detach().clone())

            return trained(network, *given, **{**named, "on_step": note})

        member = replace(client, trainer=cast("Trainer", noting))
        update, state = super().fit(member, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
        means = {name: torch.stack(values).mean(0) for name, values in found.items()}
        entries = {**update.artifacts["model"].tensors(), **means}
        return replace(update, artifacts={"model": model.with_state(entries).state}), {**state, **entries}


@dataclass(frozen=True, kw_only=True)
class AveragedLate(Averaged):
    """Sends the mean of the network over the second half of its steps."""

    @property
    def first(self) -> int:
        return (self.plan.steps or 0) // 2


@pytest.mark.parametrize(
    "method",
    [FedAvg(), Plain(), PerStep(), Averaged(), AveragedLate(plan=TrainingPlan(steps=8)), OwnOptimizer(), KeepsMore()],
    ids=["bundled", "plug-in", "per step", "averaged", "averaged late", "own optimizer", "keeps more"],
)
def test_a_method_that_prepares_each_image_by_itself_is_not_blamed(method: FedAvg):
    assert found(method) == ""


@pytest.mark.parametrize("method", [Plain, OwnColors])
def test_a_private_step_of_a_plug_in_is_refused_where_records_meet(method: Callable[..., FedAvg]):
    made = method(plan=TrainingPlan(batch_size=8, steps=1))
    defenses = DefenseStack(defenses=(DPSGD(epsilon=4.0),), name="test")
    model = start_of(made, norm="group")
    request = StepRequest(clock=CLOCK, model=model, inbox={})

    def answered() -> None:
        run_client_step(made, four_clients()[0], "fit", request, {}, 0, defenses)

    if method is Plain:
        answered()
    else:
        with pytest.raises(PrivateTrainingError, match="OwnColors says that its model depends on images through"):
            answered()

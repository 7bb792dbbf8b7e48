"""A trainer that keeps what it was called with, and what two such calls of one client differ in."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fdgsec.federation.near_equality import same_gradient, same_tensors
from fdgsec.federation.witnessed_optimizer import STEPS, described_optimizer, same_movement, step_at_random
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.networks.loaded_copies import own_copy
from fdgsec.nn.training.batches import TrainingSet, batch_of
from fdgsec.nn.training.training_loop import Objective
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.privacy.dp_sgd import Versions, private_steps
from fdgsec.privacy.record_independence import disturb
from fdgsec.runtime.random_streams import stream

MOVED = 100_000_000
"""A network is moved as often as it would be trained, but at most STEPS times, and no more often than gives so many
numbers in all; twice at least. Methods average over steps, divide by their number, or do something in every fifth."""
COMPARED = 16
"""Entries of which losses and gradients are compared."""
TOLERANCE = 1e-5
"""Relative change of a loss that rounding explains."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Call(ABC):
    """What a method handed over to be trained: data, the tensors it begins with, and `settings` in which numbers of the
    client's images have no place.

    `held` is what an optimizer of the method's own remembers, by the names of the parameters, and `moved` by how much
    its steps move these under the same gradients; `later` are its settings and what it remembers after the steps."""

    data: TrainingSet
    begun: Mapping[str, Tensor]
    settings: str
    held: Mapping[str, Tensor]
    moved: Mapping[str, Tensor]
    later: tuple[str, Mapping[str, Tensor]]

    def difference(self, other: "Call", kept: Tensor, *, answered: bool) -> str:
        """Where the same client's calls differ in records that are `kept` (n,) bool in both, in words; in losses and
        gradients only where `answered`. Empty where they do not."""
        entries, again = _entries_of(self.data, kept), _entries_of(other.data, kept)
        if entries is None or again is None:
            return f"it trains on another number of records than the client's {len(kept)} images"
        if not _same_entries(self.data, entries, other.data, again):
            return "what it trains on of an image changes where other images do"
        if self.settings != other.settings:
            return "its plan of training changes where images do"
        if not same_tensors(self.begun, other.begun):
            return "the network that training starts from changes where images do"
        (options, remembered), (new_options, now_remembered) = self.later, other.later
        same_memory = same_tensors(self.held, other.held) and same_tensors(remembered, now_remembered)
        if not (same_memory and options == new_options and same_movement(self.moved, other.moved)):
            return "what its optimizer holds or adds changes where images do"
        if answered and bool(kept.any()) and not self.answers_as(other, kept):
            return "the loss or gradient of an image changes where other images do"
        return ""

    @abstractmethod
    def answers_as(self, other: "Call", kept: Tensor) -> bool:
        """Whether the losses and gradients of records that are `kept` (n,) are the same in another call."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainerCall(Call):
    """A call of a trainer, with copies of the network and the objective as they were, and of the objective after the
    steps, of which a method is told one by one."""

    network: Classifier
    objective: Objective
    plan: TrainingPlan
    later_objective: Objective

    def answers_as(self, other: Call, kept: Tensor) -> bool:
        """Whether the losses of the first kept entries, and the gradient of a sum of them, are the same."""
        return isinstance(other, TrainerCall) and _same_answers(self._answers(kept), other._answers(kept))

    def _answers(self, kept: Tensor) -> "_Answers":
        """The losses of kept records' first entries under the call's objective, and the gradient of a sum of them, with
        fixed draws: at the call's network and at one near by, there under the objective as it is after the steps too.
        """
        versions = Versions.of(self.data)
        entries = versions.entries(kept.nonzero().flatten())[0][:COMPARED]
        device = next(self.network.parameters()).device
        near, found = own_copy(self.network), []
        disturb(near, stream(0, "world", "record preparation", "near by"))
        weights = torch.randn(len(entries), generator=stream(0, "world", "record preparation", "weights"))
        moments = (own_copy(self.network), self.objective), (near, self.objective), (near, self.later_objective)
        for network, objective in moments:
            rng = stream(0, "world", "record preparation", "views")
            batch = batch_of(self.data, entries, self.plan, rng, device=device, layout=torch.contiguous_format)
            with torch.random.fork_rng(devices=[]):  # a Dropout layer draws the same each time
                losses = deepcopy(objective)(batch, network)  # either may learn
            trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
            total = (losses * weights.to(losses)).sum()
            parts = torch.autograd.grad(total, trained, allow_unused=True) if total.requires_grad else []
            found.append((losses.detach().double(), [part.double() for part in parts if part is not None]))
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingWitness:
    """A trainer that moves the network at random, the same way whatever it is trained on, as often as it would be
    trained (`steps_of`), and keeps what it was called with: a network that stayed where it was would hide what a
    method makes of the difference."""

    calls: list[Call] = field(default_factory=list)

    def __call__(
        self,
        model: Classifier,
        data: TrainingSet,
        objective: Objective,
        plan: TrainingPlan,
        rng: torch.Generator,
        *,
        round: int = 0,
        rounds: int = 1,
        beside: Iterable[nn.Parameter] = (),
        optimizer: torch.optim.Optimizer | None = None,
        on_step: Callable[[int, float], None] | None = None,
    ) -> dict[str, float]:
        """Keep the arguments, and move the network."""
        del rng
        others = {str(place): one for place, one in enumerate(beside)}
        network, first = own_copy(model), deepcopy(objective)
        begun = {**network.state_dict(), **{f"beside.{name}": one.detach().clone() for name, one in others.items()}}
        names = {id(one): name for name, one in [*others.items(), *model.named_parameters()]}
        options, held = described_optimizer(optimizer, names)
        moved, number = dict[str, Tensor](), len(self.calls)
        steps, most = steps_of([model], data, plan)
        for step in range(1, most + 1 if optimizer is not None else steps + 1):
            if optimizer is not None:  # of all images of a client there are more steps than of these
                step_at_random(optimizer, names, (number, step), moved)
                optimizer.zero_grad(set_to_none=True)
            if step > steps:
                continue
            disturb(model, stream(0, "world", "record preparation", "movement", number, step))
            if on_step is not None:
                on_step(step, math.nan)  # as the private trainer does, which tells no loss
        self.calls.append(
            TrainerCall(
                network=network, data=data, objective=first, plan=plan, begun=begun,
                settings=f"{plan!r}, {options}, {round} of {rounds}", held=held, moved=moved,
                later=described_optimizer(optimizer, names), later_objective=deepcopy(objective),
            )
        )  # fmt: skip
        return {"steps": float(steps)}


def steps_of(networks: Sequence[nn.Module], data: TrainingSet, plan: TrainingPlan) -> tuple[int, int]:
    """How often networks are moved for a training, and how often optimizers are tried: `STEPS` times at most."""
    size = sum(one.numel() for network in networks for one in network.parameters() if one.requires_grad)
    most = max(2, min(STEPS, MOVED // max(size, 1)))
    return min(private_steps(len(Versions.of(data)), plan), most), most


def _entries_of(data: TrainingSet, kept: Tensor) -> Tensor | None:
    """The entries of the kept records; None where there are not as many records as images."""
    versions = Versions.of(data)
    return versions.entries(kept.nonzero().flatten())[0] if len(versions) == len(kept) else None


def _same_entries(one: TrainingSet, entries: Tensor, two: TrainingSet, again: Tensor) -> bool:
    """Whether the kept records have the same pictures and labels."""
    if len(entries) != len(again) or (one.partners is None) != (two.partners is None):
        return False
    pairs = [(one.images, two.images), (one.labels, two.labels)]
    if one.partners is not None and two.partners is not None:
        pairs.append((one.partners, two.partners))
    return all(torch.equal(mine[entries], theirs[again]) for mine, theirs in pairs)


_Answers = Sequence[tuple[Tensor, Sequence[Tensor]]]


def _same_answers(ones: _Answers, others: _Answers) -> bool:
    return all(
        losses.shape == again.shape
        and torch.allclose(losses, again, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
        and same_gradient(gradient, regained)
        for (losses, gradient), (again, regained) in zip(ones, others, strict=True)
    )

"""A private trainer that keeps what joint steps were to be computed from, and each record's gradients in its turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from fdgsec.federation.dp_sgd_joint import JointTraining
from fdgsec.federation.near_equality import nearly_equal
from fdgsec.federation.witnessed_generators import generators_of, reseeded
from fdgsec.federation.witnessed_optimizer import described_optimizer, step_at_random
from fdgsec.federation.witnessed_training import Call, TrainingWitness, steps_of
from fdgsec.nn.training.batches import batch_of
from fdgsec.privacy.dp_sgd import PrivateTrainer, check_buffers, forget_gradients, uses_of
from fdgsec.privacy.record_independence import GRADIENT_TOLERANCE, disturb
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import simulated_stream

ASKED_STEPS = 3
"""Steps before which all records are asked for that are asked for at all; before each later one it is one of them. A
mean over the records of a step is made after it, and shows in the next."""
NUMBERS = 4096
"""Numbers of a network's gradient that are kept: of a longer one, sums of its entries with random signs, whose
differences are as long as those of the gradients, on average over the signs."""


@dataclass(frozen=True, kw_only=True, eq=False)
class JointCall(Call):
    """A call of `joint_training`; `gradients` are a record's, one vector for each optimizer, by step and record.

    They are asked for record by record in one order, whatever was replaced, so that those of a method which remembers
    records change with the records before."""

    gradients: Mapping[tuple[int, int], Sequence[Tensor]]

    def answers_as(self, other: Call, kept: Tensor) -> bool:
        """Whether the gradients of all records that are `kept`, and were asked for in both, are the same."""
        return isinstance(other, JointCall) and all(
            _same_vectors(self.gradients[step, record], other.gradients[step, record])
            for step, record in self.gradients.keys() & other.gradients.keys()
            if bool(kept[record])
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class JointWitness(PrivateTrainer):
    """A private trainer that trains nothing: it moves networks as `witness` does, which keeps its calls.

    In joint steps it asks for the gradients of the records `asked` (k,)."""

    witness: TrainingWitness
    asked: Tensor

    @classmethod
    def of(cls, witness: TrainingWitness, asked: Tensor) -> Self:
        """A trainer whose secret nobody's training draws from."""
        secret = simulated_stream(0, "record preparation")
        return cls(noise_multiplier=1.0, max_grad_norm=1.0, secret=secret, witness=witness, asked=asked)

    def __call__(self, *given: Any, **named: Any) -> dict[str, float]:
        """Keep the arguments, and move the network."""
        return self.witness(*given, **named)

    def train_jointly(self, training: JointTraining) -> dict[str, float]:
        """Keep the arguments and the gradients of records, and move the networks.

        Raises the errors of `joint_training`."""
        training.check()
        multiplier, bound = self.noise_multiplier, self.max_grad_norm
        self.spend(uses_of(len(training.data), training.plan, noise_multiplier=multiplier, max_grad_norm=bound))
        names = {id(one): name for name, one in _parameters(training.networks).items()}
        begun = {name: one.detach().clone() for name, one in _tensors(training.networks).items()}
        buffers = [{name: one.clone() for name, one in network.named_buffers()} for network in training.networks]
        for network in training.networks:
            forget_gradients([*network.parameters(), *network.buffers()], training.optimizers)
        (options, held), moved, number = _described(training, names), dict[str, Tensor](), len(self.witness.calls)
        gradients = dict[tuple[int, int], Sequence[Tensor]]()
        least, most = steps_of(training.networks, training.data, training.plan)
        steps = max(least, ASKED_STEPS)  # of all images of a client there are more than of these
        for step in range(max(steps, most)):
            if step < steps:
                gradients |= self._gradients(training, step)
            for optimizer in training.optimizers:
                step_at_random(optimizer, names, (number, step), moved)
            if step < steps:
                for place, network in enumerate(training.networks):
                    disturb(network, stream(0, "world", "record preparation", "movement", number, step, place))
                training.after()
        for network, before in zip(training.networks, buffers, strict=True):
            check_buffers(network, before)
        settings = f"{training.plan!r}, {training.layout}, {options}, {training.round} of {training.rounds}"
        self.witness.calls.append(
            JointCall(
                data=training.data, begun=begun, settings=settings, held=held, moved=moved,
                later=_described(training, names), gradients=gradients,
            )
        )  # fmt: skip
        return {"steps": float(steps)}

    def _gradients(self, training: JointTraining, step: int) -> dict[tuple[int, int], Sequence[Tensor]]:
        """The gradients of the records that are asked for before a step."""
        found = dict[tuple[int, int], Sequence[Tensor]]()
        records = self.asked[self.asked < len(training.data)].tolist()
        generators = generators_of(training.gradients, training.device)
        for record in records if step < ASKED_STEPS else records[step % max(len(records), 1) :][:1]:
            views = stream(0, "world", "record preparation", "views", step, record)
            batch = batch_of(
                training.data, torch.tensor([record]), training.plan, views, device=training.device,
                layout=training.layout,
            )  # fmt: skip
            with reseeded(generators, step, record):
                given = [[one.detach() for one in own] for own in training.gradients(batch)]
            found[step, record] = [_shortened(torch.cat([one.flatten() for one in own])) for own in given]
        return found


def _same_vectors(ones: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(ones) == len(others) and all(
        nearly_equal(one, other, tolerance=GRADIENT_TOLERANCE) for one, other in zip(ones, others, strict=True)
    )


def _parameters(networks: Sequence[nn.Module]) -> dict[str, nn.Parameter]:
    return {f"{place}.{name}": one for place, each in enumerate(networks) for name, one in each.named_parameters()}


def _tensors(networks: Sequence[nn.Module]) -> dict[str, Tensor]:
    return {f"{place}.{name}": one for place, each in enumerate(networks) for name, one in each.state_dict().items()}


def _described(training: JointTraining, names: Mapping[int, str]) -> tuple[str, dict[str, Tensor]]:
    """The options of all optimizers, and what they remember."""
    told = [described_optimizer(optimizer, names) for optimizer in training.optimizers]
    held = {f"{place}.{name}": one for place, (_, own) in enumerate(told) for name, one in own.items()}
    return "; ".join(options for options, _ in told), held


def _shortened(gradient: Tensor) -> Tensor:
    """At most NUMBERS numbers of a gradient, on the CPU."""
    if len(gradient) <= NUMBERS:
        return gradient.double().cpu()
    signed = gradient * _signs(len(gradient)).to(gradient)
    return functional.pad(signed, (0, -len(gradient) % NUMBERS)).view(-1, NUMBERS).sum(0, dtype=torch.float64).cpu()


@lru_cache(maxsize=4)
def _signs(count: int) -> Tensor:
    drawn = torch.randint(0, 2, (count,), generator=stream(0, "world", "record preparation", "signs"))
    return (2 * drawn - 1).to(torch.int8)

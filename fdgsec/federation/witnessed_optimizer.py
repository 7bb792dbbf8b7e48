"""What an optimizer holds, and how it moves what it trains, whatever the images are."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from fdgsec.federation.near_equality import same_gradient
from fdgsec.runtime.random_streams import stream

STEPS = 20
"""Steps that are tried at most."""
GRADIENT = 0.01
"""Standard deviation of the gradients under which an optimizer is tried, small beside what it may add of its own."""
KEPT = 300_000
"""Numbers of a network up to which its random gradients are kept for the next preparation."""


def described_optimizer(
    optimizer: torch.optim.Optimizer | None, names: Mapping[int, str]
) -> tuple[str, Mapping[str, Tensor]]:
    """The options of an optimizer with the names of what it trains, and the tensors that it remembers."""
    if optimizer is None:
        return "no optimizer", {}
    told, held = [type(optimizer).__name__], dict[str, Tensor]()
    for group in optimizer.param_groups:
        parameters = [names.get(id(one), "another") for one in group["params"]]
        told.append(repr({key: _described(value) for key, value in {**group, "params": parameters}.items()}))
    for one, memory in optimizer.state.items():
        whose = one if isinstance(one, str) else names.get(id(one), "another")
        for key, value in memory.items() if isinstance(memory, Mapping) else [("", memory)]:
            name = f"{whose}.{key}"
            if isinstance(value, Tensor):
                held[name] = value.detach().clone()
            else:
                told.append(f"{name} = {_described(value)!r}")
    return "; ".join(told), held


def _described(value: object) -> object:
    """A value that says the same whenever it is the same: of other objects, whose words may hold an address, the type.

    What these do shows in the optimizer's steps."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, torch.Generator):
        return f"seed {value.initial_seed()}"
    if isinstance(value, list | tuple):
        return [_described(part) for part in value]
    if isinstance(value, Mapping):
        return {str(key): _described(part) for key, part in value.items()}
    return value if value is None or isinstance(value, str | int | float) else type(value).__name__


def step_at_random(
    optimizer: torch.optim.Optimizer, names: Mapping[int, str], step: tuple[int, int], moved: dict[str, Tensor]
) -> None:
    """Have an optimizer take the step of a call under random gradients, which the parameters keep, and add to `moved`
    by how much these move: one vector for all that it trains, by their names."""
    trained = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
    before = _numbers(trained)
    drawn = _kept_gradients if sum(one.numel() for one in trained) <= KEPT else _gradients
    for one, gradient in zip(trained, drawn(tuple(one.shape for one in trained), step), strict=True):
        one.grad = gradient.to(one, copy=True)
    optimizer.step()
    whose = ", ".join(names.get(id(one), "another") for one in trained)
    change = _numbers(trained) - before
    moved[whose] = moved[whose] + change if whose in moved else change


def _numbers(trained: Sequence[Tensor]) -> Tensor:
    return torch.cat([torch.zeros(0), *(one.detach().flatten().cpu() for one in trained)])


def _gradients(shapes: tuple[torch.Size, ...], step: tuple[int, int]) -> Sequence[Tensor]:
    """Random gradients of these shapes for the step of a call, whatever its images are."""
    rng = stream(0, "world", "record preparation", "gradients", *step)
    return [GRADIENT * torch.randn(shape, generator=rng) for shape in shapes]


_kept_gradients = lru_cache(maxsize=2 * STEPS)(_gradients)


def same_movement(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> bool:
    """Whether two calls' optimizers moved the same parameters alike."""
    return one.keys() == two.keys() and same_gradient(
        [value.double() for value in one.values()], [two[name].double() for name in one]
    )

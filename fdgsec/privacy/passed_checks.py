"""Checks of a private training that an audit makes in full once for all of its trainings of one kind.

An audit trains the same few networks some hundred times. Whether the losses of a batch depend on each other follows
from the objective and from the layers, whatever the weights; that it is measured before every training is for
objectives and networks that nobody looked at. A training of a kind that passed is probed once
(fdgsec.privacy.record_independence.check_again), because a plug-in may change what it trains in ways that no kind
tells: functions of torch, for one. That probe does not try what an objective remembers of earlier records."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from torch import nn
from torch.nn.modules import module as torch_modules

from fdgsec.nn.networks.loaded_copies import HOOKS, attributes, plain
from fdgsec.nn.training.batches import Batch

KNOWN = ("torch", "fdgsec")
"""Packages whose layers do what their classes and settings say."""
HOOKS_OF_ALL = tuple(name for name in vars(torch_modules) if name.startswith("_global_") and name.endswith("_hooks"))
"""Names of torch's hooks of every layer."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Passed:
    """The kinds of trainings that passed their checks; only those of exactly these `objectives` have a kind."""

    objectives: frozenset[type]
    kinds: set[object] = field(default_factory=set)

    def kind_of(self, objective: object, network: nn.Module, batch: Batch, *more: object) -> object:
        """The objective, the layers with their settings and their classes' functions, and shapes, with `more` that the
        checks depend on.

        None for other objectives, for layers of other packages, and for layers with hooks or with functions, tensors or
        layers among their own attributes."""
        hooked = any(vars(torch_modules).get(name) for name in HOOKS_OF_ALL)
        if hooked or type(objective) not in self.objectives or not all(map(_known, network.modules())):
            return None
        layers = tuple((name, _functions(type(each)), _settings(each)) for name, each in network.named_modules())
        weights = tuple(
            (name, tuple(each.shape), each.dtype, each.requires_grad) for name, each in network.named_parameters()
        )
        images = (tuple(batch.images.shape), batch.images.dtype, str(batch.images.device), batch.partners is None)
        return _functions(type(objective)), layers, weights, images, more


_PASSED: ContextVar[Passed | None] = ContextVar("kinds of private trainings that passed", default=None)


@contextmanager
def checked_once(*objectives: type) -> Iterator[None]:
    """Within the block, check trainings of exactly these classes of objectives in full once for each kind.

    Inside of another block nothing changes. Other threads check every training in full."""
    if _PASSED.get() is not None:
        yield
        return
    token = _PASSED.set(Passed(objectives=frozenset(objectives)))
    try:
        yield
    finally:
        _PASSED.reset(token)


def passed() -> Passed | None:
    """What passed in the block of `checked_once` that runs; None outside of any."""
    return _PASSED.get()


def _known(layer: nn.Module) -> bool:
    held = attributes(layer)
    ours = type(layer).__module__.split(".")[0] in KNOWN
    return ours and not any(held.get(name) for name in HOOKS) and all(map(_setting, held.values()))


def _setting(value: object) -> bool:
    return plain(value) and not callable(value)


def _settings(layer: nn.Module) -> str:
    return repr(sorted(attributes(layer).items()))


def _functions(kind: type) -> tuple[object, ...]:
    """The class, and what it and its bases define by now: a function may have been replaced."""
    return kind, *(
        (name, value) for each in kind.__mro__ for name, value in vars(each).items() if callable(value)
    )  # fmt: skip

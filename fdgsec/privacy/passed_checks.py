"""Checks of a private training that an audit makes once for all of its trainings of one kind.

An audit trains the same few networks some hundred times. Whether the losses of a batch depend on each other follows
from the objective and from the layers, whatever the weights; that it is measured before every training is for
objectives and networks that nobody looked at."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from torch import nn

from fdgsec.nn.networks.loaded_copies import HOOKS
from fdgsec.nn.training.batches import Batch

KNOWN = ("torch", "fdgsec")
"""Packages whose layers do what their names and settings say."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Passed:
    """The kinds of trainings that passed their checks; only those of exactly these `objectives` have a kind."""

    objectives: frozenset[type]
    kinds: set[object] = field(default_factory=set)

    def kind_of(self, objective: object, network: nn.Module, batch: Batch, *more: object) -> object:
        """What the checks of an objective and a network depend on beside weights and pixels, with `more` of it.

        None for other objectives, for layers of other packages, and for layers with hooks or a `forward` of their
        own."""
        if type(objective) not in self.objectives or not all(map(_known, network.modules())):
            return None
        layers = tuple(
            (name, type(layer), layer.extra_repr(), layer.training) for name, layer in network.named_modules()
        )
        weights = tuple(
            (name, tuple(each.shape), each.dtype, each.requires_grad) for name, each in network.named_parameters()
        )
        images = (tuple(batch.images.shape), batch.images.dtype, str(batch.images.device), batch.partners is None)
        return type(objective), layers, weights, images, more


_PASSED: ContextVar[Passed | None] = ContextVar("kinds of private trainings that passed", default=None)


@contextmanager
def checked_once(*objectives: type) -> Iterator[None]:
    """Within the block, check trainings of exactly these classes of objectives once for each kind.

    Inside of another block nothing changes. Other threads check every training."""
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
    ours = type(layer).__module__.split(".")[0] in KNOWN
    return ours and "forward" not in vars(layer) and not any(vars(layer).get(name) for name in HOOKS)

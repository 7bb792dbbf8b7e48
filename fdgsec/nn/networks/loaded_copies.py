"""Copies of a network with another state, which cost one pass over the state instead of building the network."""

import copy
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import BuiltinFunctionType, FunctionType
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

Network = TypeVar("Network", bound=nn.Module)

HOOKS = tuple(name for name in vars(nn.Module()) if name.endswith("_hooks"))
FEATURE_MAPS = 4  # axes of what has a layout
_TABLES = ("_parameters", "_buffers", "_modules")
_EMPTY = (dict, list, set, OrderedDict)
_SHARED = (str, int, float, bool, type(None), torch.dtype, torch.device, torch.Size)
"""Types whose values never change, so that copies may share them."""


def skeleton(network: Network) -> Network | None:
    """Take the memory of the state's entries away from `network`, which is then only good for `loaded_copy`.

    None for a network whose parts refer to each other beyond its tables of modules (hooks, local functions): a copy
    would refer to the original's parts."""
    if any(not _separate(module) for module in network.modules()):
        return None
    kept, moved = set(network.state_dict()), dict[Tensor, Tensor]()  # tensors are told apart by identity
    for prefix, module in network.named_modules():
        for table in cast("tuple[dict[str, Tensor | None], ...]", (module._parameters, module._buffers)):
            for name, value in table.items():
                if value is not None and _entry(prefix, name) in kept:
                    table[name] = moved[value] = moved.get(value, _without_memory(value))
    return network


def loaded_copy(
    network: Network, state: Mapping[str, Tensor], *, layout: torch.memory_format = torch.contiguous_format
) -> Network | None:
    """Copy a `skeleton` with the entries of `state`, as `load_state_dict` copies them; nothing is shared with either.

    Tensors of four axes are in `layout`, as after `Module.to(memory_format=layout)`. None where names or shapes are not
    those of the network: `load_state_dict` says what is wrong."""
    expected = network.state_dict()
    if expected.keys() != state.keys() or any(expected[name].shape != state[name].shape for name in expected):
        return None
    return _Copier(state=state, layout=layout).copied(network, "")


def own_copy(network: Network) -> Network:
    """Copy a network as `copy.deepcopy` does, in about half of the time where its parts refer to each other by their
    tables of modules alone."""
    if any(not _separate(module) for module in network.modules()):
        return copy.deepcopy(network)
    return _Copier(state={}, layout=torch.contiguous_format).copied(network, "")


def _separate(module: nn.Module) -> bool:
    """Whether a module refers to others only by its tables: whatever else it holds is plain."""
    held = attributes(module)
    if any(held.get(name) for name in HOOKS) or not all(map(plain, held.values())) or _copies_itself(module):
        return False
    buffers = all(value is None or _own(value, Tensor) for value in module._buffers.values())
    return buffers and all(value is None or _own(value, nn.Parameter) for value in module._parameters.values())


def attributes(module: nn.Module) -> dict[str, object]:
    """What a module holds beside parameters, buffers and modules, by name."""
    return {name: value for name, value in vars(module).items() if name not in _TABLES}


def _copies_itself(module: nn.Module) -> bool:
    """Whether a class says how its objects are copied; torch's own layers do for files of old versions alone."""
    kind = type(module)
    if kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not object.__reduce__:
        return True
    ways = (getattr(kind, name, None) for name in ("__deepcopy__", "__getstate__", "__setstate__"))
    return any(way is not None and not way.__module__.startswith("torch.") for way in ways)


def _own(value: Tensor, kind: type[Tensor]) -> bool:
    """Whether a tensor is of this very class, has nothing attached, and fills its memory alone."""
    if type(value) is not kind or vars(value) or value.layout is not torch.strided:
        return False
    if kind is Tensor and (value.requires_grad or value.grad is not None):
        return False
    return value.is_meta or value.untyped_storage().nbytes() == value.numel() * value.element_size()


def plain(value: object) -> bool:
    """Whether a value holds neither modules nor tensors, and refers to none."""
    if isinstance(value, dict):
        return all(plain(part) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(plain, value))
    if isinstance(value, FunctionType):
        return not (value.__closure__ or value.__defaults__ or value.__kwdefaults__)
    return type(value) in _SHARED or isinstance(value, type | Enum | BuiltinFunctionType | torch.memory_format)


def _entry(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _without_memory(value: Tensor) -> Tensor:
    moved = value.detach().to("meta")
    return nn.Parameter(moved, requires_grad=value.requires_grad) if isinstance(value, nn.Parameter) else moved


@dataclass(frozen=True, kw_only=True, eq=False)
class _Copier:
    """Copies the modules of one network; `memo` has the copy of each object by its id, as for `copy.deepcopy`."""

    state: Mapping[str, Tensor]
    layout: torch.memory_format
    memo: dict[int, object] = field(default_factory=dict)

    def copied(self, module: Network, prefix: str) -> Network:
        """Copy a module and those below it."""
        made = module.__new__(type(module))
        self.memo[id(module)] = made
        held = made.__dict__
        for name, value in vars(module).items():
            if name in _TABLES:
                held[name] = {}
            elif type(value) in _SHARED:
                held[name] = value
            elif type(value) in _EMPTY and not value:
                held[name] = self.memo.setdefault(id(value), type(value)())
            else:
                held[name] = copy.deepcopy(value, self.memo)
        for table in ("_parameters", "_buffers"):
            for name, tensor in getattr(module, table).items():
                held[table][name] = None if tensor is None else self._filled(tensor, _entry(prefix, name))
        for name, child in module._modules.items():
            made._modules[name] = None if child is None else self._child(child, _entry(prefix, name))
        return made

    def _child(self, module: nn.Module, prefix: str) -> nn.Module:
        """Copy a module once, however often the network holds it."""
        found = self.memo.get(id(module))
        return found if isinstance(found, nn.Module) else self.copied(module, prefix)

    def _filled(self, value: Tensor, name: str) -> Tensor:
        """A tensor like `value` with the numbers of the state, or with its own where the state has none."""
        found = self.memo.get(id(value))
        if isinstance(found, Tensor):
            return found
        if name in self.state:
            layout = self.layout if value.ndim == FEATURE_MAPS else torch.contiguous_format
            made = torch.empty(value.shape, dtype=value.dtype, memory_format=layout)
            made.copy_(self.state[name].detach())
        else:
            made = value.detach().clone()
        if isinstance(value, nn.Parameter):
            made = nn.Parameter(made, requires_grad=value.requires_grad)
        self.memo[id(value)] = made
        return made

"""A device that computes on the CPU and counts what a GPU would wait for or refuse.

Its tensors say that they are on torch's "meta" device, which any machine has, and hold a CPU tensor that every operation
is computed with. Set FDGSEC_PRECISION=float32: without it, precision is that of the CPU's row of the table."""

import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeGuard, cast
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")
ROOT = Path(__file__).resolve().parents[2]
Kind = Literal["up", "down", "read"]

SIZED_BY_VALUES = frozenset({"nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount"})
"""Operations whose result has a size that depends on values, for which the host waits."""
MOVES = frozenset({"_to_copy", "to"})
"""Operations that may copy to another device; in inference mode `to` is not taken apart."""
COMPARED = frozenset({"equal", "is_nonzero", "item", "_local_scalar_dense"})
"""Operations that give the host a number."""
COPIED_INDICES = frozenset({"index", "index_put", "index_put_", "_index_put_impl_"})
"""Operations that copy indices on the host to the device."""


def _is_of_project(file: Path) -> bool:
    """Whether a file is the project's own; an environment with its libraries may lie inside the checkout."""
    return file.is_relative_to(ROOT) and "site-packages" not in file.parts


@dataclass(eq=False)
class Transfers:
    """The transfers so far: (kind, operation, line of this repository) of each."""

    seen: list[tuple[Kind, str, str]] = field(default_factory=list)

    def count(self, *kinds: Kind) -> int:
        """Count the transfers of these kinds: "up" to the device, "down" to the host, "read" for a wait on a value."""
        return sum(kind in kinds for kind, _, _ in self.seen)

    def add(self, kind: Kind, operation: str) -> None:
        """Note a transfer, and the innermost line of this repository that it comes from."""
        frames = [each for each in traceback.extract_stack() if _is_of_project(Path(each.filename))]
        outside = [each for each in frames if each.filename != __file__ and each.name != "to_device"] or frames
        where = f"{Path(outside[-1].filename).relative_to(ROOT)}:{outside[-1].lineno}"
        self.seen.append((kind, operation, where))


class MixedDevicesError(RuntimeError):
    """An operation on tensors of host and device, or with a generator of the host, which a GPU refuses."""


class OnDevice(Tensor):
    """A tensor of the counting device, whose values are those of `held`, a CPU tensor."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnDevice":  # noqa: PYI034
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            layout=held.layout, device=DEVICE, requires_grad=False,
        )  # fmt: skip
        made.held = held
        return cast(OnDevice, made)

    def tolist(self) -> list[Any]:
        """Copy to the host."""
        return cast("list[Any]", self.cpu().tolist())

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OnDevice({self.held})"

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Refuse: outside `counting_device` the device does not exist."""
        raise RuntimeError(f"{func} on the counting device, outside `with counting_device()`.")


class _Counting(TorchDispatchMode):
    def __init__(self, transfers: Transfers) -> None:
        super().__init__()
        self.transfers = transfers

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = func.overloadpacket.__name__
        leaves = tree_leaves((args, kwargs))
        inputs = [each for each in leaves if isinstance(each, OnDevice)]
        target = _target(name, args, leaves)
        kind = self._kind(name, args, leaves, inputs, target)
        if kind is not None:
            self.transfers.add(kind, name)
        made = func(*tree_map(_held, tuple(args)), **tree_map(_held, kwargs))
        if not (target == DEVICE if target is not None else inputs):
            return made
        return made if name == "copy_" and not isinstance(args[0], OnDevice) else tree_map(_wrapper(inputs), made)

    def _kind(
        self, name: str, args: Sequence[Any], leaves: Sequence[Any], inputs: Sequence[OnDevice], target: Any
    ) -> Kind | None:
        """What kind of transfer the operation is, if any. Raises MixedDevicesError where a GPU would refuse it."""
        if (inputs or target == DEVICE) and any(isinstance(each, torch.Generator) for each in leaves):
            raise MixedDevicesError(f"{name} on the device draws from a generator of the host.")
        if name in MOVES:
            return (
                None if target is None or (target == DEVICE) == bool(inputs) else "up" if target == DEVICE else "down"
            )
        hosted = [each for each in leaves if _on_host(each)]
        if not inputs:
            return None
        if name == "copy_" and hosted:
            return "up" if isinstance(args[0], OnDevice) else "down"
        if name in COPIED_INDICES and isinstance(args[0], OnDevice):
            return self._of_indices(name, args)
        if any(each.ndim for each in hosted):
            shapes = ", ".join(str(tuple(each.shape)) for each in hosted if each.ndim)
            raise MixedDevicesError(f"{name} on tensors of the device and on {shapes} of the host.")
        return "read" if name in SIZED_BY_VALUES or name in COMPARED or self._repeats(name, leaves) else None

    def _of_indices(self, name: str, args: Sequence[Any]) -> Kind | None:
        given = [each for each in args[1] if isinstance(each, Tensor)]
        values = args[2] if len(args) > 2 else None
        if _on_host(values) and values.ndim:
            raise MixedDevicesError(f"{name} writes {tuple(values.shape)} of the host into a tensor of the device.")
        masks = any(each.dtype in (torch.bool, torch.uint8) for each in given)
        if any(not isinstance(each, OnDevice) for each in given):
            return "up"
        filled = name != "index" and isinstance(values, Tensor) and values.numel() == 1  # becomes masked_fill
        return "read" if masks and not filled else None

    def _repeats(self, name: str, leaves: Sequence[Any]) -> bool:
        return name == "repeat_interleave" and not any(isinstance(each, int) for each in leaves)


class _Building(TorchFunctionMode):
    """Builds tensors from Python numbers on the host and copies them: on "meta" torch would drop the numbers."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        like = isinstance(args[0], OnDevice) if args else False
        if func is Tensor.new_tensor and like:
            return torch.tensor(args[1], **{"dtype": args[0].dtype, **kwargs}).to(DEVICE)
        if func in (torch.tensor, torch.as_tensor) and torch.device(kwargs.get("device") or "cpu") == DEVICE:
            return func(*args, **{**kwargs, "device": None}).to(DEVICE)
        return func(*args, **kwargs)


class _Autocast(torch.autocast):
    """Autocast of the CPU for the device, which has none."""

    def __init__(self, device_type: str, dtype: torch.dtype | None = None, enabled: bool = True) -> None:
        super().__init__("cpu" if device_type == DEVICE.type else device_type, dtype=dtype, enabled=enabled)


def _on_host(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and not isinstance(value, OnDevice)


def _target(name: str, args: Sequence[Any], leaves: Sequence[Any]) -> torch.device | None:
    """The device that an operation names for its result, if any."""
    if name == "to" and len(args) > 1 and isinstance(args[1], Tensor):
        return args[1].device
    return next((each for each in leaves if isinstance(each, torch.device)), None)


def _held(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value.held if isinstance(value, OnDevice) else value


def _wrapper(inputs: Sequence[OnDevice]) -> Any:
    """Wrap a result; what an operation wrote into is the tensor it was given."""

    def wrapped(value: Any) -> Any:
        if not _on_host(value):
            return value
        given = next((each for each in inputs if each.held is value), None)
        return OnDevice(value) if given is None else given

    return wrapped


@contextmanager
def counting_device() -> Iterator[Transfers]:
    """Give the device named "meta" values, and count transfers to and from it until the end of the context."""
    transfers = Transfers()
    with (
        warnings.catch_warnings(), patch.object(torch, "autocast", _Autocast), _Building(), _Counting(transfers),
    ):  # fmt: skip
        warnings.filterwarnings("ignore", "for .*: copying from a non-meta parameter")  # it is copied here
        yield transfers

"""The state of a network's training, kept from time to time: a stopped attack goes on inside a long training.

A training that goes on ends with the weights of one that was never stopped, to the bit where a device repeats its sums
(the CPU does): parameters, buffers, moving averages, optimizers with the layout of their parameters, and the random
stream are restored, and what is made before the first step is made again."""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from fdgsec.nn.training.training_plan import optimizer_memory
from fdgsec.nn.training.training_plan import remember as restore_optimizer
from fdgsec.runtime.cache_files import cache_root
from fdgsec.runtime.checked_files import recalled, remember
from fdgsec.runtime.errors import DataError
from fdgsec.runtime.progress import tracked, warn
from fdgsec.runtime.tensor_files import read_safetensors

EVERY = 60.0
"""Seconds of training between two moments that are kept."""


ADAM = {"step", "exp_avg", "exp_avg_sq"}
"""What Adam remembers of a parameter."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Moment:
    """What changes while a network is trained. `numbers` is what the training appends to, if anything."""

    networks: Mapping[str, nn.Module]
    optimizers: Mapping[str, torch.optim.Adam]
    rng: torch.Generator
    numbers: list[float] = field(default_factory=list)

    def tensors(self) -> dict[str, Tensor]:
        """All of it, by name, on the CPU."""
        parts: dict[str, Mapping[str, Tensor]] = {
            **{name: network.state_dict() for name, network in self.networks.items()},
            **{name: optimizer_memory(optimizer) for name, optimizer in self.optimizers.items()},
            "": {"rng": self.rng.get_state(), "numbers": torch.tensor(self.numbers, dtype=torch.float64)},
        }
        return {
            f"{part}/{name}": value.detach().cpu().contiguous().clone()
            for part, values in parts.items()
            for name, value in values.items()
        }

    def restore(self, stored: Mapping[str, Tensor]) -> None:
        """Make all of it what `tensors` gave. Raises DataError, changing nothing, for those of another training."""
        parts: dict[str, dict[str, Tensor]] = {"": {}, **{name: {} for name in (*self.networks, *self.optimizers)}}
        for key, value in stored.items():
            part, _, name = key.partition("/")
            parts.setdefault(part, {})[name] = value
        self._check(parts)
        for part, network in self.networks.items():
            network.load_state_dict(parts[part])
        for part, optimizer in self.optimizers.items():
            restore_optimizer(optimizer, parts[part])
            _lay_out_as_parameters(optimizer)
        self.rng.set_state(parts[""]["rng"])
        self.numbers[:] = parts[""]["numbers"].tolist()

    def _check(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        wanted: dict[str, Mapping[str, Tensor]] = {name: one.state_dict() for name, one in self.networks.items()}
        wanted |= {name: _memory_of(one, parts[name]) for name, one in self.optimizers.items()}
        if parts.keys() != {"", *wanted} or any(_shapes(parts[name]) != _shapes(one) for name, one in wanted.items()):
            raise DataError("it holds the training of another network.")
        rng = self.rng.get_state()
        own = parts[""]
        if (
            own.keys() != {"rng", "numbers"}
            or _shapes({"": own["rng"]}) != _shapes({"": rng})
            or own["numbers"].ndim != 1
        ):
            raise DataError("it holds no training.")


@dataclass(kw_only=True, eq=False)
class Halfway:
    """Where the training of one network is kept until it is finished; nowhere without a `path`.

    What a training keeps replaces what another one kept there: also that of a longer one, if it was to begin anew."""

    path: Path | None = None
    key: str = ""
    _warned: bool = False

    def steps(self, total: int, description: str, moment: Moment) -> Iterator[int]:
        """The steps from 0 to `total` - 1 that are left, with `moment` as it was before the first of them.

        The moment is kept after a step, once in `EVERY` seconds. A full disk is said once, and no error."""
        begin, kept_at = self._begin(moment, total), time.monotonic()
        for step in tracked(range(begin, total), description):
            yield step
            if time.monotonic() - kept_at >= EVERY and step + 1 < total:
                self._keep(moment, step + 1)
                kept_at = time.monotonic()

    def forget(self) -> None:
        """Remove what was kept, where that is possible: the network is finished."""
        if self.path is not None:
            with suppress(OSError):
                self.path.unlink()

    def _begin(self, moment: Moment, total: int) -> int:
        if self.path is None:
            return 0

        def read(content: bytes) -> int:
            stored, _ = read_safetensors(content, source="its content")
            step = stored.pop("step", torch.zeros(0))
            if step.numel() != 1 or not 0 < (done := int(step)) < total:
                raise DataError("it holds no training.")
            moment.restore(stored)
            return done

        return recalled(self.path, key=self.key, read=read) or 0

    def _keep(self, moment: Moment, step: int) -> None:
        if self.path is None:
            return
        try:
            content = save({**moment.tensors(), "step": torch.tensor(step)})
            remember(self.path, content, key=self.key)
        except OSError as error:
            if not self._warned:
                warn(f"a training cannot be kept under {cache_root()} before it ends: {error.strerror}.")
            self._warned = True


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (value.shape, value.dtype) for name, value in tensors.items()}


def _memory_of(optimizer: torch.optim.Adam, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `optimizer_memory` gives, in shape and type, where the parameters of which anything is `stored` took a step.

    Others have no gradient."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    stepped = {name.split(".")[1] for name in stored if name.startswith("optimizer.")}
    return {
        f"optimizer.{number}.{name}": torch.zeros(()) if name == "step" else torch.empty_like(parameter)
        for number, parameter in enumerate(parameters)
        for name in ADAM
        if str(number) in stepped
    }


def _lay_out_as_parameters(optimizer: torch.optim.Optimizer) -> None:
    """Give moments the strides of their parameters, which fused steps take for granted."""
    for parameter, moments in optimizer.state.items():
        for name, value in moments.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                moments[name] = torch.empty_like(parameter).copy_(value)

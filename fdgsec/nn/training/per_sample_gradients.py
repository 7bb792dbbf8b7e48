"""Per-record gradients, for networks whose layers process records independently.

A forward pass stores the inputs and outputs of every trained layer. One backward pass gives the gradients of the summed
losses in all outputs, and a record's gradient of a layer follows from its own rows (Goodfellow 2015,
https://arxiv.org/abs/1510.01799). The rules for single layers are Opacus's, except that of Conv2d: in Opacus 1.6.0 it
reads channels_last maps as if they were contiguous, and builds the whole channel matrix of grouped convolutions.
Opacus's hooks are not used either: they match the passes of a layer by the order in which they end, and also run for
gradients that an objective computes itself. Opacus is imported when the first rule is asked for: its import takes as
long as half of torch's."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fdgsec.runtime.errors import UsageError

Rule = Callable[[nn.Module, list[Tensor], Tensor], Mapping[Tensor, Tensor]]
"""Computes a layer's per-record gradients, (B, *shape) by parameter, from its inputs and its output's gradients."""
AGREEMENT = 1e-3
"""Tolerated relative difference between summed per-record gradients and autograd's: float32 rounding causes 1e-5."""


BLOCK = 1024  # numbers whose length is computed in float32 at a time
TOGETHER = 2**12  # numbers of a record's gradient in small tensors that are clipped as one


class PrivateTrainingError(UsageError):
    """A network, plan or objective whose per-record gradients cannot be computed and clipped."""


def convolution(layer: nn.Module, inputs: list[Tensor], slopes: Tensor) -> dict[Tensor, Tensor]:
    """Compute each record's gradient of a Conv2d: output gradients (B, O, h, w) times unfolded input, by group."""
    assert isinstance(layer, nn.Conv2d)
    if isinstance(layer.padding, str) or layer.padding_mode != "zeros":
        raise PrivateTrainingError(f"a convolution with padding {layer.padding!r} ({layer.padding_mode}) has no rule.")
    count, places = len(slopes), slopes.shape[2] * slopes.shape[3]
    if layer.kernel_size == (1, 1) and layer.stride == (1, 1) and layer.padding == (0, 0):
        columns = inputs[0].flatten(2)
    else:
        columns = functional.unfold(
            inputs[0], layer.kernel_size, dilation=layer.dilation, padding=layer.padding, stride=layer.stride
        )
    columns = columns.reshape(count * layer.groups, -1, places)
    rows = slopes.reshape(count * layer.groups, layer.out_channels // layer.groups, places)
    found: dict[Tensor, Tensor] = {}
    if layer.weight.requires_grad:
        found[layer.weight] = torch.bmm(rows, columns.transpose(1, 2)).view(count, *layer.weight.shape)
    if layer.bias is not None and layer.bias.requires_grad:
        found[layer.bias] = slopes.sum((2, 3))
    return found


@cache
def rules() -> Mapping[type[nn.Module], Rule]:
    """Give the rule of each type of layer that has one."""
    from opacus.grad_sample import GradSampleModule

    theirs = cast("Mapping[type[nn.Module], Rule]", GradSampleModule.GRAD_SAMPLERS)
    return {**theirs, nn.Conv2d: convolution}


class RecordGradients:
    """A context manager that hooks the trained layers of `network` and computes per-record gradients of their passes.

    `parameters` are those whose gradients are needed. Raises PrivateTrainingError for a layer without a rule."""

    def __init__(self, network: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = parameters
        self._names = {parameter: name for name, parameter in network.named_parameters()}
        wanted = set(parameters)
        self._layers = [
            (name, module)
            for name, module in network.named_modules()
            if any(parameter in wanted for parameter in module.parameters(recurse=False))
        ]
        for name, module in self._layers:
            if type(module) not in rules():
                raise PrivateTrainingError(
                    f"{name or 'the network itself'} ({type(module).__name__}) holds parameters whose per-record "
                    "gradients are unknown; parameters may sit in convolutions, linear layers, embeddings and norms of "
                    "one record."
                )
        self._passes: list[tuple[nn.Module, Tensor, Tensor]] = []
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> Self:
        self._hooks = [module.register_forward_hook(self._listen) for _, module in self._layers]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._passes.clear()

    def _listen(self, module: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
        if made.requires_grad:
            self._passes.append((module, given[0].detach(), made))

    def of(self, losses: Tensor, *, keep_graph: bool = False) -> list[Tensor]:
        """Compute the gradient of each of `losses` (B,) in each parameter, (B, *shape), and forget the stored passes.

        A parameter that no loss depends on has zeros. Raises PrivateTrainingError where a layer saw another number of
        records than there are losses."""
        passes, self._passes = self._passes, []
        slopes: Sequence[Tensor | None] = [None] * len(passes)
        if passes and losses.requires_grad:
            made = [output for _, _, output in passes]
            slopes = torch.autograd.grad(losses.sum(), made, allow_unused=True, retain_graph=keep_graph)
        found: dict[Tensor, Tensor] = {}
        for (module, given, _), slope in zip(passes, slopes, strict=True):
            if slope is None:
                continue
            if len(given) != len(losses):
                raise PrivateTrainingError(
                    f"a layer ({type(module).__name__}) saw {len(given)} rows for {len(losses)} losses; an objective "
                    "must put each record through the network in its own row, one pass per view."
                )
            with torch.no_grad():
                for parameter, gradient in rules()[type(module)](module, [given], slope).items():
                    found[parameter] = found[parameter] + gradient if parameter in found else gradient
        return [found[p] if p in found else p.new_zeros(len(losses), *p.shape) for p in self.parameters]

    def agree(self, compute: Callable[[], Tensor], rng: torch.Generator) -> None:
        """Check against autograd: a random mixture of per-record gradients is the gradient of that mixture of losses.

        `compute` gives losses (B,) by passes through the network. Raises PrivateTrainingError where a parameter is used
        outside its layer, where rows change places between passes, and where an operation works in place."""
        self._refuse_bypasses(compute)
        losses = compute()
        shares = torch.randn(len(losses), generator=rng).to(losses)
        rows = self.of(losses, keep_graph=True)
        mixed = [torch.tensordot(shares, gradient, dims=1) for gradient in rows]
        whole = torch.autograd.grad((shares * losses).sum(), self.parameters, allow_unused=True)
        true = [torch.zeros_like(mine) if theirs is None else theirs for mine, theirs in zip(mixed, whole, strict=True)]
        length = torch.stack([gradient.norm() for gradient in true]).norm()
        for parameter, mine, theirs in zip(self.parameters, mixed, true, strict=True):
            if (mine - theirs).norm() > AGREEMENT * theirs.norm() + AGREEMENT**2 * length:
                raise PrivateTrainingError(
                    f"per-record gradients of {self._names[parameter]} do not add up to its gradient: the objective "
                    "moves records to other rows between passes, or works in place."
                )

    def _refuse_bypasses(self, compute: Callable[[], Tensor]) -> None:
        """Refuse an objective that depends on a parameter even when every layer's output is detached from it."""
        cuts = [module.register_forward_hook(_cut_off) for _, module in self._layers]
        try:
            losses = compute()
        finally:
            for cut in cuts:
                cut.remove()
            self._passes.clear()
        if not losses.requires_grad:
            return
        found = torch.autograd.grad(losses.sum(), self.parameters, allow_unused=True)
        for parameter, gradient in zip(self.parameters, found, strict=True):
            if gradient is not None:
                raise PrivateTrainingError(
                    f"the objective uses {self._names[parameter]} outside its layer, where no record's share of the "
                    "gradient is known; leave that term out."
                )


def _cut_off(_module: nn.Module, _given: tuple[Tensor, ...], made: Tensor) -> Tensor:
    return made.detach().requires_grad_(made.requires_grad)


def clipped_sum(gradients: Sequence[Tensor], bound: float) -> list[Tensor]:
    """Clip each record's gradient, over all of `gradients` (B, *shape), to a length of at most `bound`, and sum.

    Abadi et al. 2016, Algorithm 1. Rounding never lets a record of float32 or float64 numbers exceed the bound: lengths
    are overstated by the largest error of float32, 1e-5. A gradient whose length is not finite adds nothing."""
    flat = [gradient.flatten(1) if gradient.ndim > 1 else gradient.unsqueeze(1) for gradient in gradients]
    rows = [
        run[0] if len(run) == 1 else torch.cat(run, dim=1)
        for run in runs_of(flat, [row.shape[1] for row in flat], most=TOGETHER)
    ]
    length = torch.stack([_squares(row) for row in rows]).sum(0).sqrt() * (1 + 1e-5)
    factor = torch.where(length.isfinite(), (bound / length).clamp(max=1.0), 0.0)
    if not bool(length.isfinite().all()):
        rows = [row.nan_to_num(0.0, 0.0, 0.0) for row in rows]
    sums = torch.cat([torch.tensordot(factor.to(row), row, dims=1) for row in rows])
    parts = sums.split([row.shape[1] for row in flat])
    return [part.view(gradient.shape[1:]) for part, gradient in zip(parts, gradients, strict=True)]


def runs_of(tensors: Sequence[Tensor], sizes: Sequence[int], *, most: int) -> Iterator[list[Tensor]]:
    """Cut tensors, with these numbers in each, into runs of at most `most` together, or of a single one with more.

    Networks have many small tensors: what is done to a whole run takes about as long as for one of them."""
    run, numbers = list[Tensor](), 0
    for tensor, size in zip(tensors, sizes, strict=True):
        if run and numbers + size > most:
            yield run
            run, numbers = [], 0
        run.append(tensor)
        numbers += size
    if run:
        yield run


def _squares(rows: Tensor) -> Tensor:
    """Compute the squared length of each row, (B,) float64, from float32 lengths of blocks: at most 128 sums a lane."""
    whole = rows.shape[1] // BLOCK * BLOCK
    blocks = torch.linalg.vector_norm(rows[:, :whole].unflatten(1, (-1, BLOCK)), dim=2)
    rest = torch.linalg.vector_norm(rows[:, whole:], dim=1)
    squares: Tensor = blocks.double().square().sum(1) + rest.double().square()
    return squares

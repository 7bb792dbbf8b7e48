"""Measures whether one record's loss or gradient depends on the other records of its batch.

DP-SGD clips each record's contribution to a step. That bounds a record's influence only where the contributions of the
others are the same with and without it. Batch norm, styles mixed inside a batch, negatives drawn from it and
contrastive losses violate this. A check of layers does not see what a loss does: Opacus's validator catches only the
first."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.networks.loaded_copies import own_copy
from fdgsec.nn.training.batches import Batch
from fdgsec.nn.training.training_loop import Objective
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child

LOSS_TOLERANCE = 1e-5
"""Relative (or, below 1, absolute) change of a loss that is tolerated. The same shapes run through the same kernels: on
a CPU an independent record's loss does not change by a bit, on a GPU by some 1e-7. The weakest coupling that was tried,
a hundredth of the batch's mean loss added to each, changes some loss by 1.4e-4 and more (40 checks), StableFDG's
attention by 4.5e-4 and more (100 checks). Couplings that change gradients only are found by the next bound."""
GRADIENT_TOLERANCE = 1e-4
"""Tolerated change of a gradient, as a share of its length: a GPU does not fix the order of its sums over records."""
ALONE_TOLERANCE = 1e-3
"""The same for a single record, whose batch has another shape and hence other kernels."""
WITHOUT_MEMORY = 3
"""The first probe that does not try what an objective remembers."""
DRAWS = 16
"""Losses of a record alone, and as many in a batch; by chance the two groups separate in 2 of C(32, 16) = 6e8 cases,
and what they are in float32 must be so in float64 as well."""


class BatchCouplingError(UsageError):
    """Records of a batch interact in the training loss, so that clipping single gradients bounds nothing.

    `op` describes the observed coupling, `method` is the training method."""

    def __init__(self, op: str, method: str) -> None:
        self.op = op
        self.method = method
        variant = "" if method.endswith("-dp") else f"{method}-dp where there is one, or "
        super().__init__(
            f"{method} couples the records of a batch: {op}. The epsilon of DP-SGD would not hold; "
            f"use {variant}dp-fedavg, which protects whole clients."
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Run:
    """An objective and a network at one moment of training; computing losses changes them as training would."""

    objective: Objective
    network: Classifier
    offset: int

    def copied(self) -> "_Run":
        """Copy the moment: the same weights, memories and draws."""
        return _Run(objective=deepcopy(self.objective), network=own_copy(self.network), offset=self.offset)

    def losses(self, batch: Batch) -> Tensor:
        """Compute the losses with the draws of this moment."""
        with _draws(batch.images.device, self.offset):
            found = self.objective(batch, self.network)
        return found if found.dtype == torch.float64 else found.float()

    def exact(self) -> "_Run":
        """Copy the moment with a network in float64."""
        made = self.copied()
        return replace(made, network=made.network.double())

    def gradient(self, losses: Tensor, weights: Tensor) -> list[Tensor]:
        """Compute the gradient of `weights` . `losses` in each trained parameter that it reaches; zeros elsewhere."""
        trained = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        total = (losses * weights.to(losses)).sum()
        if not total.requires_grad:
            return [parameter.new_zeros(()) for parameter in trained]
        found = torch.autograd.grad(total, trained, allow_unused=True)
        return [p.new_zeros(()) if g is None else g for p, g in zip(trained, found, strict=True)]


@contextlib.contextmanager
def _draws(device: torch.device, offset: int) -> Iterator[None]:
    """Advance torch's global stream (a Dropout layer draws from it) by `offset` draws, and restore it at the end."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.rand(offset)
        if devices:
            torch.rand(offset, device=device)
        yield


def check_independence(
    objective: Objective, model: Classifier, batch: Batch, rng: torch.Generator, *, method: str, probes: int = 8
) -> None:
    """Raise BatchCouplingError where a record's loss, or its gradient, depends on other records.

    Each probe computes the losses of `batch` twice with the same weights and the same draws of the objective, the
    second time with some records replaced: by others, by black images or by noise, and with other labels. Records that
    were not replaced must keep their losses and gradients. So must all records of the next batch, or else the
    objective remembers records. At the end some records are evaluated alone. Nothing is changed: `objective` and
    `model` are copied, with the generators that they hold. Every other probe disturbs the weights, because at some (a
    head of zeros) no record has any influence.

    Eight probes try every pair of a batch of eight. Not found: an operation that is rarer than `probes` (styles mixed
    in every second batch at one place were missed in 2 of 60 trials), and constants that an objective computed from the
    client's data. Raises UsageError for fewer than two records."""
    if len(batch.labels) < 2:
        raise UsageError(f"independence of records is checked in batches of two or more; got {len(batch.labels)}.")
    moment = _Run(objective=deepcopy(objective), network=own_copy(model), offset=1)
    _check_replay(moment, batch, method)
    for number, kept in enumerate(_groups(len(batch.labels), probes, rng)):
        now = _Run(objective=moment.objective, network=own_copy(model), offset=number + 1)
        if number % 2:
            disturb(now.network, rng)
        moment = _probe(now, batch, kept, rng, method=method, number=number)
    for record in torch.randperm(len(batch.labels), generator=rng)[:2].tolist():
        _check_alone(moment, batch, record, method)


def check_again(objective: Objective, model: Classifier, batch: Batch, rng: torch.Generator, *, method: str) -> None:
    """Raise BatchCouplingError as `check_independence` does, after one probe with disturbed weights: for a training
    like one that passed all of them."""
    now = _Run(objective=deepcopy(objective), network=own_copy(model), offset=1)
    disturb(now.network, rng)
    (kept,) = _groups(len(batch.labels), 1, rng)
    _probe(now, batch, kept, rng, method=method, number=WITHOUT_MEMORY)


def _check_replay(moment: _Run, batch: Batch, method: str) -> None:
    """Refuse an objective with another number of losses than records, or that cannot be replayed."""
    first, again = (moment.copied().losses(batch).detach() for _ in range(2))
    if first.shape != batch.labels.shape:
        raise BatchCouplingError(
            f"it gives {tuple(first.shape)} losses for {len(batch.labels)} records, where each record must have one",
            method,
        )
    if bool(_changes(first, again).any()):
        raise BatchCouplingError(
            "its losses differ for the same batch, weights and draws, so that nothing can be said of them (are its "
            "random numbers drawn from generators that it holds?)", method,
        )  # fmt: skip


def _probe(now: _Run, batch: Batch, kept: Tensor, rng: torch.Generator, *, method: str, number: int) -> _Run:
    """Replace all but the `kept` records (B,) bool, compare, and give the objective's moment afterwards."""
    other = _replaced(batch, kept, rng, content=number % 3, classes=now.network.classes)
    as_it_was, with_others = now.copied(), now.copied()
    weights = torch.randn(len(kept), generator=rng) * kept
    losses, changed = as_it_was.losses(batch), with_others.losses(other)
    apart = _changes(losses, changed) & kept.to(losses.device)
    before, after = as_it_was.gradient(losses, weights), with_others.gradient(changed, weights)
    if bool(apart.any()) or _turn(before, after) > GRADIENT_TOLERANCE:
        raise BatchCouplingError(_blame(now, batch, other, kept), method)
    if number < WITHOUT_MEMORY:  # what the objective (or a layer) remembers of the replaced records
        _check_memory(as_it_was, with_others, batch, rng, method)
    return as_it_was


def _check_memory(one: _Run, other: _Run, batch: Batch, rng: torch.Generator, method: str) -> None:
    weights = torch.randn(len(batch.labels), generator=rng)
    losses, changed = one.losses(batch), other.losses(batch)
    apart = bool(_changes(losses, changed).any())
    if apart or _turn(one.gradient(losses, weights), other.gradient(changed, weights)) > GRADIENT_TOLERANCE:
        raise BatchCouplingError(
            "the losses or gradients of a batch changed when records of the batch before it were replaced (it learns, "
            "or remembers, on its own)", method,
        )  # fmt: skip


def _check_alone(moment: _Run, batch: Batch, record: int, method: str) -> None:
    """Compare a record's loss and gradient length in a batch and alone, over draws until the two groups overlap.

    Where they lie apart they are compared in float64 as well, if the objective computes in it: other shapes run through
    other kernels, and what large logits are rounded by shows in a small loss."""
    try:
        spans = _beside_and_alone(moment.copied(), batch, record)
    except (ValueError, RuntimeError, IndexError, ZeroDivisionError) as error:
        raise BatchCouplingError(f"record {record} fails alone ({error})".replace("\n", " "), method) from error
    if spans is None:
        return
    with contextlib.suppress(ValueError, RuntimeError, IndexError, ZeroDivisionError):
        partners = None if batch.partners is None else batch.partners.double()
        exact = replace(batch, images=batch.images.double(), partners=partners)
        if _beside_and_alone(moment.exact(), exact, record) is None:
            return
    quantity = "loss" if _lie_apart(*spans[0]) else "gradient's length"
    company, single = (sum(values) / DRAWS for values in spans[0 if quantity == "loss" else 1])
    raise BatchCouplingError(
        f"the {quantity} of record {record} is {company:.3g} in a batch of {len(batch.labels)} and {single:.3g} alone",
        method,
    )


def _beside_and_alone(run: _Run, batch: Batch, record: int) -> Sequence[tuple[list[float], list[float]]] | None:
    """A record's losses in a batch and alone, and the lengths of its gradient; None where they overlap."""
    rows = torch.tensor([record])
    unit = torch.zeros(len(batch.labels)).index_fill(0, rows, 1.0)
    spans: list[tuple[list[float], list[float]]] = [([], []), ([], [])]
    for draw in range(DRAWS):
        for side, (given, weights) in enumerate([(batch, unit), (_rows(batch, rows), torch.ones(1))]):
            losses = replace(run, offset=2 * draw + side).losses(given)
            spans[0][side].append(float((losses.detach().cpu() * weights).sum()))
            spans[1][side].append(_length(run.gradient(losses, weights)))
        if not any(_lie_apart(*span) for span in spans):
            return None
    return spans


def _blame(now: _Run, batch: Batch, other: Batch, kept: Tensor) -> str:
    """Find which kept record depends most on which replaced one: by losses, else by gradients."""
    still = now.copied().losses(batch).detach()
    stayed = kept.nonzero().flatten().tolist()
    found: list[tuple[float, int, int]] = []
    for j in (~kept).nonzero().flatten().tolist():
        losses = now.copied().losses(_with_row(batch, other, j)).detach()
        found += [(float((losses[i] - still[i]).abs()), i, j) for i in stayed if bool(_changes(still, losses)[i])]
    if found:
        size, i, j = max(found)
        return f"the loss of record {i} changed by {size:.2g} when record {j} was replaced"
    for i in stayed:
        unit = torch.zeros(len(kept)).index_fill(0, torch.tensor([i]), 1.0)
        before = _slope(now, batch, unit)
        for j in (~kept).nonzero().flatten().tolist():
            size = _turn(before, _slope(now, _with_row(batch, other, j), unit))
            found += [(size, i, j)] if size > GRADIENT_TOLERANCE else []
    if found:
        size, i, j = max(found)
        return f"the gradient of record {i}'s loss changed by {size:.1%} of its length when record {j} was replaced"
    names = ", ".join(str(j) for j in (~kept).nonzero().flatten().tolist())
    return f"losses or gradients of records {', '.join(map(str, stayed))} changed when records {names} were replaced"


def _slope(now: _Run, batch: Batch, unit: Tensor) -> list[Tensor]:
    run = now.copied()
    return run.gradient(run.losses(batch), unit)


def _changes(before: Tensor, after: Tensor) -> Tensor:
    """Mark the losses that changed, (B,); all where their number did. Non-finite on both sides counts as equal."""
    if before.shape != after.shape:
        return torch.ones_like(before, dtype=torch.bool)
    scale = torch.maximum(before.abs(), after.abs()).clamp_min(1.0)
    return ~torch.isclose(before / scale, after / scale, rtol=0.0, atol=LOSS_TOLERANCE, equal_nan=True)


def _length(gradient: list[Tensor]) -> float:
    return float(torch.stack([part.norm() for part in gradient]).norm())


def _turn(before: list[Tensor], after: list[Tensor]) -> float:
    """Compute the change of a gradient as a share of its length (of the longer one)."""
    longer = max(_length(before), _length(after))
    apart = _length([one - other for one, other in zip(before, after, strict=True)])
    return apart / longer if longer else 0.0


def _lie_apart(ones: list[float], others: list[float]) -> bool:
    if all(map(math.isfinite, ones)) != all(map(math.isfinite, others)):
        return True
    gap = max(min(ones) - max(others), min(others) - max(ones))
    return gap > ALONE_TOLERANCE * max(map(abs, [*ones, *others]))


def _groups(count: int, probes: int, rng: torch.Generator) -> list[Tensor]:
    """Choose the records that stay in each probe, (B,) bool.

    The first probes keep, for each binary digit of the records' numbers in random order, those with the digit, and then
    those without it; so each record stays in some probe in which any given other one is replaced. Then all but one, and
    only one, in turn."""
    order = torch.randperm(count, generator=rng)
    digits = [order >> digit & 1 == 1 for digit in range((count - 1).bit_length())]
    groups = [group for digit in digits for group in (digit, ~digit)]
    for number in range(len(groups), probes):
        gone = order == number % count
        groups.append(gone if number % 2 else ~gone)
    return groups[:probes]


def _replaced(batch: Batch, kept: Tensor, rng: torch.Generator, *, content: int, classes: int) -> Batch:
    """Replace the records that are not `kept`: by copies of kept ones (0), black images (1) or noise (2).

    Each gets a label that it did not have, where there are two classes or more."""
    where = kept.to(batch.images.device)
    drawn = kept.nonzero().flatten()[torch.randint(int(kept.sum()), kept.shape, generator=rng)].to(where.device)
    step = torch.randint(1, max(classes, 2), kept.shape, generator=rng).to(where.device)
    labels = (batch.labels + step) % classes
    pictures = [batch.images] if batch.partners is None else [batch.images, batch.partners]
    made = []
    for picture in pictures:
        fresh = (picture[drawn], torch.zeros_like(picture), torch.rand(picture.shape, generator=rng).to(picture))[
            content
        ]
        made.append(torch.where(where.view(-1, 1, 1, 1), picture, fresh))
    return Batch(
        images=made[0], partners=made[1] if len(made) > 1 else None,
        labels=torch.where(where, batch.labels, labels),
        records=torch.where(kept, batch.records.cpu(), batch.records.cpu()[drawn.cpu()]).to(batch.records.device),
    )  # fmt: skip


def _with_row(batch: Batch, other: Batch, row: int) -> Batch:
    """Take one record from `other`."""
    taken = torch.arange(len(batch.labels)) == row
    here = taken.to(batch.images.device)
    wide = here.view(-1, 1, 1, 1)
    partners = batch.partners
    if partners is not None and other.partners is not None:
        partners = torch.where(wide, other.partners, partners)
    return replace(
        batch, images=torch.where(wide, other.images, batch.images), partners=partners,
        labels=torch.where(here, other.labels, batch.labels),
        records=torch.where(taken.to(batch.records.device), other.records, batch.records),
    )  # fmt: skip


def _rows(batch: Batch, rows: Tensor) -> Batch:
    there = rows.to(batch.images.device)
    return Batch(
        images=batch.images[there], labels=batch.labels[there], records=batch.records[rows.to(batch.records.device)],
        partners=None if batch.partners is None else batch.partners[there],
    )  # fmt: skip


@torch.no_grad()
def disturb(network: nn.Module, rng: torch.Generator) -> None:
    """Change every trained parameter by a tenth of its spread (or of 0.1, where it has less)."""
    own = child(rng, "disturbance")
    for parameter in network.parameters():
        if parameter.requires_grad:
            spread = parameter.std().nan_to_num().clamp_min(0.1) if parameter.numel() > 1 else torch.tensor(0.1)
            parameter.add_(0.1 * spread.to(parameter) * torch.randn(parameter.shape, generator=own).to(parameter))

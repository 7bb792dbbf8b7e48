"""DP-SGD as a replacement of the plain training loop: the trained network hides every single record.

Abadi et al., CCS 2016, https://arxiv.org/abs/1607.00133, Algorithm 1: each step draws every record with probability q,
clips each drawn record's gradient to C, adds N(0, (z C)^2) to the sum and divides by the expected batch size. Versions
of one record count as one record: its gradient is their mean (augmentation multiplicity, De et al. 2022,
https://arxiv.org/abs/2204.13650).

The sampling, the noise and the augmentations come from a secret stream; the mean loss is not released. The guarantee
covers the released network only. Styles, constants and networks that an objective holds are covered where they were
made, or not at all. Gaussian noise is drawn in floating point, as in research code (Mironov, CCS 2012)."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.networks.loaded_copies import own_copy
from fdgsec.nn.training.batches import Batch, TrainingSet, batch_of
from fdgsec.nn.training.frozen_maps import through_frozen
from fdgsec.nn.training.per_sample_gradients import PrivateTrainingError, RecordGradients, clipped_sum, runs_of
from fdgsec.nn.training.training_loop import Objective, prepare_training
from fdgsec.nn.training.training_plan import TrainingPlan, optimizer_of
from fdgsec.privacy.accounting import Use
from fdgsec.privacy.passed_checks import passed
from fdgsec.privacy.record_independence import BatchCouplingError, check_again, check_independence, disturb
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child
from fdgsec.runtime.secret_streams import SecretStream

EXACT = (torch.float32, torch.float64)
CHECKED = 8  # records on which independence is checked
SMALLEST_NORM = 1e-9
"""The least bound on a gradient: the squares of numbers far below it vanish in float32, so that they pass a clip."""
GRADIENT_BYTES = 2**28  # default memory for per-record gradients held at once
DRAWN = 2**20  # numbers of noise drawn at once: 8 MiB, several times over while they are made


def sampling_rate(records: int, plan: TrainingPlan) -> float:
    """Compute the probability q with which a step draws each of `records`, so that `plan.batch_size` are expected."""
    return min(1.0, plan.batch_size / records)


def private_steps(records: int, plan: TrainingPlan) -> int:
    """Count the steps of a call: `plan.steps`, or epochs of round(1 / q); both depend on public numbers only."""
    return plan.steps if plan.steps is not None else plan.epochs * _per_epoch(records, plan)


def _per_epoch(records: int, plan: TrainingPlan) -> int:
    return round(1 / sampling_rate(records, plan))


def uses_of(records: int, plan: TrainingPlan, *, noise_multiplier: float, max_grad_norm: float) -> Use:
    """Describe one call's cost for each of the `records`: q-sampled Gaussian mechanisms with sensitivity C.

    It is known for zero-out alone: rate, steps and divisor depend on the number of records, which is public there and
    which add-remove would have to hide. It is known for no relation where nothing is clipped."""
    bounded = math.isfinite(max_grad_norm)
    return Use(
        mechanism="gaussian", noise=_deviation(noise_multiplier, max_grad_norm),
        sensitivity={"zero-out": max_grad_norm} if bounded else {},
        sampling_rate=sampling_rate(records, plan), count=private_steps(records, plan),
    )  # fmt: skip


def _deviation(noise_multiplier: float, max_grad_norm: float) -> float:
    return noise_multiplier * max_grad_norm if noise_multiplier else 0.0  # 0 * inf would be NaN


@dataclass(frozen=True, kw_only=True, eq=False)
class Versions:
    """The entries of a training set by record: those of record r are `order[starts[r] : starts[r + 1]]`."""

    order: Tensor
    starts: Tensor

    @classmethod
    def of(cls, data: TrainingSet) -> "Versions":
        """Sort a training set's entries by their owners."""
        owners = torch.arange(len(data)) if data.owners is None else data.owners
        _, counts = torch.unique(owners, return_counts=True)
        return cls(order=torch.argsort(owners, stable=True), starts=torch.cat([counts.new_zeros(1), counts.cumsum(0)]))

    def __len__(self) -> int:
        """Count the records."""
        return len(self.starts) - 1

    def entries(self, records: Tensor) -> tuple[Tensor, Tensor]:
        """Give the entries of `records` (R,), and for each entry the position of its record in `records`."""
        counts = self.starts[records + 1] - self.starts[records]
        places = torch.arange(len(records)).repeat_interleave(counts)
        offsets = torch.arange(len(places)) - (counts.cumsum(0) - counts)[places]
        return self.order[self.starts[records][places] + offsets], places

    def portions(self, records: Tensor, most: int) -> Iterator[Tensor]:
        """Cut `records` (R,) into runs of at most `most` entries, or of a single record that has more."""
        sizes = (self.starts[records + 1] - self.starts[records]).tolist()
        first, size = 0, 0
        for place, own in enumerate(sizes):
            if size and size + own > most:
                yield records[first:place]
                first, size = place, 0
            size += own
        if len(records):
            yield records[first:]


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivateTrainer:
    """A trainer like fdgsec.nn.training.training_loop.epochs, with noise in each step, of standard deviation
    `noise_multiplier` x `max_grad_norm`.

    Draws from `secret` continue from call to call; two trainers must never get the same one, or their noise cancels
    out. `method` is named in errors. `max_physical_batch` bounds the images in one pass (None: by the memory of their
    gradients); results depend on it only by rounding, and by what an objective draws per pass. `probes` is the number
    of independence checks before each call's training."""

    noise_multiplier: float
    max_grad_norm: float
    secret: SecretStream
    method: str = "this objective"
    max_physical_batch: int | None = None
    probes: int = 8
    _spent: list[Use] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        if not (0 <= self.noise_multiplier < math.inf and self.max_grad_norm >= SMALLEST_NORM):
            raise UsageError(
                f"DP-SGD needs a noise multiplier of at least 0 and a gradient norm of at least {SMALLEST_NORM:g}; got "
                f"{self.noise_multiplier} and {self.max_grad_norm}."
            )
        if (self.noise_multiplier and math.isinf(self.max_grad_norm)) or (
            self.max_physical_batch is not None and self.max_physical_batch < 1
        ):
            raise UsageError(
                "DP-SGD with noise needs a finite gradient norm, and a physical batch holds at least one image; got "
                f"{self.max_grad_norm} and {self.max_physical_batch}."
            )

    @property
    def uses(self) -> tuple[Use, ...]:
        """Describe the cost of all calls so far for each record."""
        return tuple(self._spent)

    def spend(self, use: Use) -> None:
        """Record the cost of a release by this trainer, before its first step."""
        self._spent.append(use)

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
        """Train `model` in place and give {"steps": count}; `on_step` gets NaN as the loss. Every draw comes
        from `secret`: augmentations too, because those of a record depend on which others are in its sample.

        Raises UsageError for an empty set. Raises PrivateTrainingError and BatchCouplingError for what DP-SGD cannot
        bound: batch norm, in-place operations, parameters outside the network, records that interact."""
        del rng  # public in a simulation, and known to the server
        if not len(data):
            raise UsageError("a client has no training images; every client needs at least one.")
        check_trainable(model, plan, [*beside])
        drawing = self.secret.child("views", len(self._spent)).generator()
        device, precision = prepare_training(model, plan, drawing)
        if plan.frozen != "none":
            model.freeze(plan.frozen)  # in float32, as all of DP-SGD's steps
        optimizer = optimizer or optimizer_of(model.parameters(), plan)
        forget_gradients([*model.parameters(), *model.buffers()], [optimizer])
        exact = replace(precision, frozen="float32")
        with through_frozen(model, data, objective, plan, precision=exact, first=round == 0) as given:
            session = _Session(
                trainer=self, model=model, data=given, versions=Versions.of(given), objective=objective, plan=plan,
                optimizer=optimizer, device=device, layout=precision.layout, rng=drawing,
            )  # fmt: skip
            return self._steps(session, round=round, rounds=rounds, on_step=on_step)

    def _steps(
        self, session: "_Session", *, round: int, rounds: int, on_step: Callable[[int, float], None] | None
    ) -> dict[str, float]:
        """Check that the cost holds, charge it, and take the steps."""
        session.check()
        plan, model, optimizer = session.plan, session.model, session.optimizer
        records = len(session.versions)
        use = uses_of(records, plan, noise_multiplier=self.noise_multiplier, max_grad_norm=self.max_grad_norm)
        self.spend(use)  # before training, so that a call that fails half-way counts too
        per_epoch = _per_epoch(records, plan)
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        with RecordGradients(model, session.trained) as gradients:
            for step in range(use.count):
                for group in optimizer.param_groups:
                    group["lr"] = plan.rate(round=round, rounds=rounds, epoch=step // per_epoch)
                drawn = self.secret.uniform(records) < use.sampling_rate
                sums = session.sums(drawn.nonzero().flatten(), gradients)
                session.step(sums, noise=use.noise, expected=use.sampling_rate * records)
                if on_step is not None:
                    on_step(step + 1, math.nan)
        check_buffers(model, buffers)
        return {"steps": float(use.count)}


@dataclass(frozen=True, kw_only=True, eq=False)
class _Session:
    """One call's network, data and optimizer; `rng` draws the augmentations."""

    trainer: PrivateTrainer
    model: Classifier
    data: TrainingSet
    versions: Versions
    objective: Objective
    plan: TrainingPlan
    optimizer: torch.optim.Optimizer
    device: torch.device
    layout: torch.memory_format
    rng: torch.Generator

    @property
    def trained(self) -> list[nn.Parameter]:
        """List the parameters of the optimizer."""
        return [each for group in self.optimizer.param_groups for each in group["params"] if each.requires_grad]

    @property
    def at_once(self) -> int:
        """Give the number of images in one pass through the network."""
        if self.trainer.max_physical_batch is not None:
            return self.trainer.max_physical_batch
        return max(1, GRADIENT_BYTES // (4 * max(1, sum(parameter.numel() for parameter in self.trained))))

    def batch(self, entries: Tensor, rng: torch.Generator) -> Batch:
        """Load and augment entries."""
        return batch_of(self.data, entries, self.plan, rng, device=self.device, layout=self.layout)

    def check(self) -> None:
        """Refuse an objective that couples records, foreign parameters, and gradients that do not add up."""
        own = set(self.model.parameters())
        if not self.trained or any(parameter not in own for parameter in self.trained):
            raise PrivateTrainingError(
                "the optimizer must train parameters of the network, and no others: only these are clipped and noised."
            )
        rng = child(self.rng, "check")
        entries, _ = self.versions.entries(torch.randperm(len(self.versions), generator=rng)[:CHECKED])
        batch = self.batch(entries[torch.randperm(len(entries), generator=rng)[:CHECKED]], rng)
        known = passed()
        kind = known and known.kind_of(self.objective, self.model, batch, *self._checked_beside())
        if known and kind in known.kinds:
            if len(batch.labels) > 1:
                check_again(self.objective, self.model, batch, rng, method=self.trainer.method)
            return
        if len(batch.labels) > 1:
            check_independence(
                self.objective, self.model, batch, rng, method=self.trainer.method, probes=self.trainer.probes
            )
        if self.objective.couples_records:
            raise BatchCouplingError("it says so of itself, though no probe showed it", self.trainer.method)
        network = own_copy(self.model)
        disturb(network, rng)  # where all gradients are zero (a head of zeros) a comparison would prove nothing
        copies = dict(zip(self.model.parameters(), network.parameters(), strict=True))
        with RecordGradients(network, [copies[parameter] for parameter in self.trained]) as gradients:
            gradients.agree(lambda: deepcopy(self.objective)(batch, network), rng)
        if known and kind is not None:
            known.kinds.add(kind)

    def _checked_beside(self) -> tuple[object, ...]:
        """What the checks of an objective and a network depend on beside them."""
        trained = {id(parameter) for parameter in self.trained}
        places = tuple(id(parameter) in trained for parameter in self.model.parameters())
        trainer = type(self.trainer), self.trainer.method, self.trainer.probes
        return type(self), *trainer, self.objective.couples_records, places

    def sums(self, records: Tensor, gradients: RecordGradients) -> list[Tensor]:
        """Sum the clipped gradients of `records`, each the mean over its versions; zeros where there are none."""
        totals = [torch.zeros_like(parameter) for parameter in self.trained]
        for portion in self.versions.portions(records, self.at_once):
            entries, places = self.versions.entries(portion)
            losses = self.objective(self.batch(entries, self.rng), self.model)
            rows = gradients.of(losses)
            if len(losses) != len(entries):
                raise BatchCouplingError(
                    f"it gave {len(losses)} losses for {len(entries)} records", self.trainer.method
                )
            if len(entries) > len(portion):
                rows = [_means(gradient, places.to(gradient.device), len(portion)) for gradient in rows]
            for total, part in zip(totals, clipped_sum(rows, self.trainer.max_grad_norm), strict=True):
                total += part
        return totals

    def step(self, sums: Sequence[Tensor], *, noise: float, expected: float) -> None:
        """Add noise to the sums, divide by the expected batch, and step; `clip_norm` is post-processing."""
        forget_gradients([], [self.optimizer])  # an objective may have left some
        for parameter, total in zip(self.trained, noisy(sums, noise, self.trainer.secret), strict=True):
            parameter.grad = total / expected
        if self.plan.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.trained, self.plan.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def forget_gradients(tensors: Iterable[Tensor], optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Take away the gradients of tensors, and of all that optimizers hold, frozen parts as well.

    Optimizers step by whatever gradients they find, objectives may read them, and nothing clips what was left there."""
    held = [one for optimizer in optimizers for group in optimizer.param_groups for one in group["params"]]
    for tensor in (*tensors, *held):
        tensor.grad = None


def check_buffers(model: nn.Module, before: Mapping[str, Tensor]) -> None:
    """Raise PrivateTrainingError where training changed a buffer: it would be sent, and nothing was clipped in it."""
    changed = [name for name, buffer in model.named_buffers() if not torch.equal(buffer, before[name])]
    if changed:
        raise PrivateTrainingError(
            f"the buffer {changed[0]} changed in training, with the images or with how many there were, without clip "
            "or noise; train a network whose layers keep no statistics (--norm group)."
        )


def noisy(totals: Sequence[Tensor], noise: float, secret: SecretStream) -> Iterator[Tensor]:
    """Yield sums of gradients with normal noise of this standard deviation, added in float64.

    Tensors of up to DRAWN numbers together get theirs from one draw, when it is their turn."""
    for run in runs_of(totals, [total.numel() for total in totals], most=DRAWN):
        yield from _noisy_run(run, noise, secret)


def _noisy_run(totals: Sequence[Tensor], noise: float, secret: SecretStream) -> Sequence[Tensor]:
    if not noise:
        return totals
    sizes = [total.numel() for total in totals]
    parts = (noise * secret.normal(sum(sizes))).to(totals[0].device)
    whole = torch.cat([total.flatten().double() for total in totals]) + parts
    return [part.view_as(total).to(total) for part, total in zip(whole.split(sizes), totals, strict=True)]


def _means(gradient: Tensor, places: Tensor, records: int) -> Tensor:
    """Average the rows of each record, (records, *shape)."""
    counts = torch.bincount(places, minlength=records).to(gradient)
    total = gradient.new_zeros(records, *gradient.shape[1:]).index_add_(0, places, gradient)
    return total / counts.view(-1, *[1] * (gradient.ndim - 1))


def check_trainable(model: nn.Module, plan: TrainingPlan, beside: Sequence[nn.Parameter]) -> None:
    """Raise PrivateTrainingError for a network or plan that DP-SGD cannot bound, and say what to set instead."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype not in EXACT:
            raise PrivateTrainingError(
                f"{name} is of {parameter.dtype}, in which lengths of gradients are rounded by more than the clip "
                "allows for; train it in float32."
            )
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise PrivateTrainingError(
                f"{name} ({type(module).__name__}) lets a record change the outputs of others, and its statistics are "
                "sent unprotected; train a network with group norm (--norm group) or, from pretrained weights, with "
                "frozen batch norm (--norm frozen)."
            )
        if getattr(module, "inplace", False):
            raise PrivateTrainingError(
                f"{name} ({type(module).__name__}) works in place, and overwrites outputs whose gradients are needed; "
                "train a network without it (--norm group builds all backbones without)."
            )
    if plan.freeze_norm:
        raise PrivateTrainingError(
            "freeze_norm keeps batch norm at its statistics; DP-SGD trains group norm, which has none "
            "(--set method.plan.freeze_norm=false)."
        )
    if beside:
        raise PrivateTrainingError(
            f"{len(beside)} parameters beside the network would train without clipping and noise; use an objective "
            "without parameters of its own."
        )

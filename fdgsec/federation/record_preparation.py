"""Measures whether what a client trains on of one record, or makes of its training, depends on its other records.

DP-SGD clips what each record contributes to a step. That bounds a record's influence only where all else is the same
with and without it: the others' images, the network that training starts from, its plan, the loss, and what is made of
the trained network. Images standardized by the client's own mean color, weights of classes by how many images it has of
each, a learning rate by how many classes it has, and a line search on its images violate this, and no batch of training
shows it (fdgsec.privacy.record_independence compares batches)."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch
from torch import Tensor, nn

from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import Artifact, GeneratorState, ModelState
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, Method, State
from fdgsec.federation.replaced_records import Content, replacements, replacements_of_all, with_records_replaced
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.networks.loaded_copies import own_copy
from fdgsec.nn.training.batches import TrainingSet, batch_of
from fdgsec.nn.training.per_sample_gradients import PrivateTrainingError
from fdgsec.nn.training.training_loop import Objective
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.privacy.dp_sgd import Versions, private_steps
from fdgsec.privacy.record_independence import GRADIENT_TOLERANCE, disturb
from fdgsec.runtime.random_streams import stream

MOST = 16
"""Images of the client that is looked at: enough for means, variances and counts of classes to move."""
ROUNDS = 2
"""Rounds that a client takes part in: what it remembers of the first is used in the second."""
GRADIENT = 0.01
"""Standard deviation of the gradients under which an optimizer is tried, small beside what it may add of its own."""
STEPS = 20
MOVED = 100_000_000
"""The network is moved as often as it would be trained, but at most STEPS times, and no more often than gives so many
numbers in all; twice at least. Methods average over steps, divide by their number, or do something in every fifth."""
KEPT = 300_000
"""Numbers of a network up to which its random gradients are kept for the next preparation."""
ANSWERED = 4
"""Replacements under which losses and gradients are compared too, which costs passes of the network."""
TOLERANCE = 1e-5
"""Relative change of a loss that rounding explains."""
ENTRIES = 1e-6
"""The same of the entries of a tensor, as a share of its length: small changes of many entries add up."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Call:
    """What a method handed to its trainer: copies of the network, the objective and what is trained beside them, as
    they were, and `settings` in which numbers of the client's images have no place.

    `held` is what an optimizer of the method's own remembers, by the names of the parameters, and `moved` by how much
    its steps move these under the same gradients; `later` are the objective, the settings and what it remembers after
    the steps, which a method is told of one by one."""

    network: Classifier
    data: TrainingSet
    objective: Objective
    plan: TrainingPlan
    beside: Mapping[str, Tensor]
    settings: str
    held: Mapping[str, Tensor]
    moved: Mapping[str, Tensor]
    later: tuple[Objective, str, Mapping[str, Tensor]]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Witness:
    """A trainer that moves the network at random, the same way whatever it is trained on, as often as it would be
    trained (STEPS, MOVED), and keeps what it was called with: a network that stayed where it was would hide what a
    method makes of the difference."""

    calls: list[_Call] = field(default_factory=list)

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
        """Keep the arguments, and move the network."""
        del rng
        others = {str(place): one for place, one in enumerate(beside)}
        begun = own_copy(model), {name: one.detach().clone() for name, one in others.items()}
        names = {id(one): name for name, one in [*others.items(), *model.named_parameters()]}
        options, held = _of_optimizer(optimizer, names)
        moved, number, first = dict[str, Tensor](), len(self.calls), deepcopy(objective)
        size = sum(one.numel() for one in model.parameters() if one.requires_grad)
        most = max(2, min(STEPS, MOVED // max(size, 1)))
        steps = min(private_steps(len(Versions.of(data)), plan), most)
        for step in range(1, most + 1 if optimizer is not None else steps + 1):
            if optimizer is not None:  # of all images of a client there are more steps than of these
                _step(optimizer, names, (number, step), moved)
            if step > steps:
                continue
            with torch.no_grad():
                disturb(model, stream(0, "world", "record preparation", "movement", number, step))
            if on_step is not None:
                on_step(step, math.nan)  # as the private trainer does, which tells no loss
        later, kept = _of_optimizer(optimizer, names)
        self.calls.append(
            _Call(
                network=begun[0], data=data, objective=first, plan=plan, beside=begun[1],
                settings=f"{plan!r}, {options}, {round} of {rounds}", held=held, moved=moved,
                later=(deepcopy(objective), later, kept),
            )
        )  # fmt: skip
        return {"steps": float(steps)}


def _of_optimizer(
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


def _step(
    optimizer: torch.optim.Optimizer, names: Mapping[int, str], step: tuple[int, int], moved: dict[str, Tensor]
) -> None:
    """Have an optimizer take the step of a call under random gradients, and add to `moved` by how much its parameters
    move: one vector for all that it trains, by their names."""
    trained = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
    before = _numbers(trained)
    drawn = _kept_gradients if sum(one.numel() for one in trained) <= KEPT else _gradients
    for one, gradient in zip(trained, drawn(tuple(one.shape for one in trained), step), strict=True):
        one.grad = gradient.to(one, copy=True)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
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


def check_preparation(method: Method, client: Client, *, model: GlobalModel, inbox: Inbox, clock: Clock) -> None:
    """Raise PrivateTrainingError where the training of some records depends on others (`mixed_records`)."""
    reason = mixed_records(method, client, model=model, inbox=inbox, clock=clock)
    if reason:
        raise PrivateTrainingError(
            f"{type(method).__name__} says that its model depends on images through its trainer alone, but {reason}; "
            "an epsilon of dp-sgd would not hold. Prepare each image by itself, or take --defense dp-fedavg."
        )


def mixed_records(method: Method, client: Client, *, model: GlobalModel, inbox: Inbox, clock: Clock) -> str:
    """What of the training of some of a client's records changes when the others do; empty where nothing does.

    Up to MOST images are prepared as they are and again with some replaced: all but two by copies of the first, so that
    what is rare becomes frequent; a single one; and for each binary digit of their numbers, those that have it, by
    black ones of one class, and those that do not, by noise and other classes, so that each image is once kept while
    any given other one is replaced; of validation images, which no cost covers, all are. Each time the client takes
    part in this round and the next, with what it remembers; what it receives is the same. Nothing is trained: the
    network is moved at random, the same way each time. Compared are the images and labels of records that were not
    replaced, the network that training starts from, its plan, what its optimizer holds and how far it steps under the
    same gradients, what is trained beside it, the losses and gradients of these records there and near by, before and
    after the method was told of the steps, and what the method makes of the moved network. Where there are more
    images, all of them are then prepared, as they are and with all replaced but one of every second class, so that
    what is frequent becomes rare, and but two, by copies. Not found: what changes in rounds after the next or after
    STEPS steps alone, and in training that does not call the trainer (fdgsec.federation.dp_sgd_joint)."""
    if not len(client.data):
        return ""
    count = min(len(client.data), MOST)
    part = client.data.subset(torch.linspace(0, len(client.data) - 1, count).round().long())
    usual = _prepared(method, client, part, model=model, inbox=inbox, clock=clock, rounds=ROUNDS)
    if not any(calls for calls, _ in usual):
        return ""
    for number, (kept, content) in enumerate(replacements(count)):
        other = _with_others(client, part, kept, content)
        found = _prepared(method, other, other.data, model=model, inbox=inbox, clock=clock, rounds=ROUNDS)
        for once, again in zip(usual, found, strict=True):
            if reason := _difference(once, again, kept, answered=number < ANSWERED):
                return reason
    if len(client.data) == count:
        return ""
    whole = _prepared(method, client, client.data, model=model, inbox=inbox, clock=clock, rounds=ROUNDS)
    for kept, content in replacements_of_all(client.data, clock.round):
        other = _with_others(client, client.data, kept, content)
        found = _prepared(method, other, other.data, model=model, inbox=inbox, clock=clock, rounds=ROUNDS)
        for once, again in zip(whole, found, strict=True):
            if reason := _difference(once, again, kept, answered=True):
                return reason
    return ""


def _with_others(client: Client, data: DomainDataset, kept: Tensor, content: Content) -> Client:
    """The client with these images, of which those not `kept` (n,) are replaced, and so are all validation images."""
    validation = client.validation
    if validation is not None:
        none = torch.zeros(len(validation), dtype=torch.bool)
        validation = with_records_replaced(validation, none, "noise" if content == "copies" else content)
    return replace(client, data=with_records_replaced(data, kept, content), validation=validation)


_Round = tuple[Sequence[_Call], Mapping[str, Artifact]]


def _prepared(
    method: Method, client: Client, data: DomainDataset, *, model: GlobalModel, inbox: Inbox, clock: Clock, rounds: int
) -> Sequence[_Round]:
    """What the trainer of a client with these images is called with in each round, and the models that it sends."""
    state: State = {}
    found = []
    for number in range(rounds):
        now = replace(clock, round=clock.round + number, rounds=max(clock.rounds, clock.round + rounds))
        witness, rng = _Witness(), stream(0, "world", "record preparation", client.name, number)
        member = replace(client, data=data, trainer=witness)
        if method.shares == "every" or (method.shares == "once" and number == 0):
            _, state = method.share(member, model=model, state=state, clock=now, rng=rng)
        update, state = method.fit(member, model=model, inbox=inbox, state=state, clock=now, rng=rng)
        sent = {name: one for name, one in update.artifacts.items() if isinstance(one, ModelState | GeneratorState)}
        found.append((witness.calls, sent))
    return found


def _difference(usual: _Round, other: _Round, kept: Tensor, *, answered: bool) -> str:
    """Where two preparations differ in records that are `kept` in both, in words; in losses only where `answered`."""
    (first, sent), (second, resent) = usual, other
    if len(first) != len(second):
        return "its trainer is called another number of times where other images change"
    for one, two in zip(first, second, strict=True):
        entries, again = _entries_of(one.data, kept), _entries_of(two.data, kept)
        if entries is None or again is None:
            return f"it trains on another number of records than the client's {len(kept)} images"
        if not _same_entries(one.data, entries, two.data, again):
            return "what it trains on of an image changes where other images do"
        if one.settings != two.settings:
            return "its plan of training changes where images do"
        if not (
            _same_state(one.network.state_dict(), two.network.state_dict()) and _same_state(one.beside, two.beside)
        ):
            return "the network that training starts from changes where images do"
        (_, options, kept_later), (_, again_options, again_later) = one.later, two.later
        remembered = _same_state(one.held, two.held) and _same_state(kept_later, again_later)
        if not (remembered and options == again_options and _same_movement(one.moved, two.moved)):
            return "what its optimizer holds or adds changes where images do"
        if answered and len(entries) and not _same_answers(_answers(one, entries[:MOST]), _answers(two, again[:MOST])):
            return "the loss or gradient of an image changes where other images do"
    if sent.keys() != resent.keys() or any(
        not _same_state(sent[name].tensors(), resent[name].tensors()) for name in sent
    ):
        return "what it makes of a trained network changes where images do"
    return ""


def _entries_of(data: TrainingSet, kept: Tensor) -> Tensor | None:
    """The entries of the kept records; None where there are not as many records as images."""
    versions = Versions.of(data)
    return versions.entries(kept.nonzero().flatten())[0] if len(versions) == len(kept) else None


def _same_entries(one: TrainingSet, entries: Tensor, two: TrainingSet, again: Tensor) -> bool:
    """Whether the kept records have the same pictures and labels."""
    if len(entries) != len(again) or (one.partners is None) != (two.partners is None):
        return False
    pairs = [(one.images, two.images), (one.labels, two.labels)]
    if one.partners is not None and two.partners is not None:
        pairs.append((one.partners, two.partners))
    return all(torch.equal(mine[entries], theirs[again]) for mine, theirs in pairs)


def _same_movement(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> bool:
    return one.keys() == two.keys() and _same_gradient(
        [value.double() for value in one.values()], [two[name].double() for name in one]
    )


def _same_state(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(_nearly_equal(value, two[name]) for name, value in one.items())


def _nearly_equal(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors are the same up to rounding, by the length of their difference; NaN beside NaN."""
    if one.shape != two.shape or torch.equal(one, two):  # most are equal to the bit
        return one.shape == two.shape
    one, two = one.double(), two.double()
    if not torch.equal(one.isfinite(), two.isfinite()):
        return False
    known = one.isfinite()
    same = torch.equal(one[~known].nan_to_num(), two[~known].nan_to_num())
    return same and bool((one[known] - two[known]).norm() <= ENTRIES * one[known].norm())


_Answers = Sequence[tuple[Tensor, Sequence[Tensor]]]


def _answers(call: _Call, entries: Tensor) -> _Answers:
    """The losses of entries under the call's objective, and the gradient of a sum of them, with fixed draws: at the
    call's network and at one near by, there under the objective as it is after the steps too."""
    device = next(call.network.parameters()).device
    near, found = own_copy(call.network), []
    with torch.no_grad():
        disturb(near, stream(0, "world", "record preparation", "near by"))
    weights = torch.randn(len(entries), generator=stream(0, "world", "record preparation", "weights"))
    for network, objective in ((own_copy(call.network), call.objective), (near, call.objective), (near, call.later[0])):
        rng = stream(0, "world", "record preparation", "views")
        batch = batch_of(call.data, entries, call.plan, rng, device=device, layout=torch.contiguous_format)
        with torch.random.fork_rng(devices=[]):  # a Dropout layer draws the same each time
            losses = deepcopy(objective)(batch, network)  # either may learn
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        total = (losses * weights.to(losses)).sum()
        parts = torch.autograd.grad(total, trained, allow_unused=True) if total.requires_grad else []
        found.append((losses.detach().double(), [part.double() for part in parts if part is not None]))
    return found


def _same_answers(ones: _Answers, others: _Answers) -> bool:
    return all(
        losses.shape == again.shape
        and torch.allclose(losses, again, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
        and _same_gradient(gradient, regained)
        for (losses, gradient), (again, regained) in zip(ones, others, strict=True)
    )


def _same_gradient(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    if [part.shape for part in one] != [part.shape for part in other]:
        return False
    apart = math.sqrt(sum(float((mine - theirs).square().sum()) for mine, theirs in zip(one, other, strict=True)))
    return apart <= GRADIENT_TOLERANCE * math.sqrt(sum(float(part.square().sum()) for part in one))

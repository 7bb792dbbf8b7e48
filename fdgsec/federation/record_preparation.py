"""Measures whether what a client trains on of one record depends on its other records, before any step is taken.

DP-SGD clips what each record contributes to a step. That bounds a record's influence only where the others' images, the
network that training starts from and the loss are the same with and without it. Images standardized by the client's own
mean color, weights of classes by how many images it has of each, and a first layer that is fitted to its images violate
this, and no batch of training shows it (fdgsec.privacy.record_independence compares batches)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import Artifact, GeneratorState, ModelState
from fdgsec.federation.method import Client, Clock, GlobalModel, Inbox, Method, State
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import TrainingSet, batch_of
from fdgsec.nn.training.per_sample_gradients import PrivateTrainingError
from fdgsec.nn.training.training_loop import Objective
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.privacy.dp_sgd import Versions
from fdgsec.runtime.random_streams import stream

MOST = 16
"""Images of the client that is looked at: enough for means, variances and counts of classes to move."""
TOLERANCE = 1e-5
"""Relative change of a loss or an entry of a network that rounding explains."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Call:
    """What a method handed to its trainer: copies of the network and the objective, as they were."""

    network: Classifier
    data: TrainingSet
    objective: Objective
    plan: TrainingPlan


@dataclass(frozen=True, kw_only=True, eq=False)
class _Witness:
    """A trainer that takes no step, and keeps what it was called with."""

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
        """Keep the arguments."""
        del rng, round, rounds, beside, optimizer, on_step
        self.calls.append(_Call(network=deepcopy(model), data=data, objective=deepcopy(objective), plan=plan))
        return {"steps": 0.0}


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

    Up to MOST images are prepared as they are and, twice, with every second one replaced: by black ones, then by noise,
    and all of other classes. No step is taken. What the client receives is the same each time. Compared are the images
    and labels of records that were not replaced, the network that training starts from, their losses, and what the
    method makes of the network afterwards. Not found: what changes with other numbers of images alone, in later rounds
    alone, and in training that does not call the trainer (fdgsec.federation.dp_sgd_joint)."""
    if not len(client.data):
        return ""
    part = client.data.subset(torch.arange(min(len(client.data), MOST)))
    usual = _prepared(method, client, part, model=model, inbox=inbox, clock=clock)
    if not usual[0]:
        return ""
    for kept, content in ((torch.arange(len(part)) % 2 == 0, "black"), (torch.arange(len(part)) % 2 == 1, "noise")):
        if not bool(kept.any()):
            continue
        other = _prepared(method, client, _replaced(part, kept, content), model=model, inbox=inbox, clock=clock)
        reason = _difference(usual, other, kept)
        if reason:
            return reason
    return ""


def _prepared(
    method: Method, client: Client, data: DomainDataset, *, model: GlobalModel, inbox: Inbox, clock: Clock
) -> tuple[Sequence[_Call], Mapping[str, Artifact]]:
    """What the trainer of a client with these images is called with, and the models that the client sends then."""
    witness = _Witness()
    member = replace(client, data=data, trainer=witness)
    rng = stream(0, "world", "record preparation", client.name)
    state: State = {}
    if method.shares != "never":
        _, state = method.share(member, model=model, state={}, clock=clock, rng=rng)
    update, _ = method.fit(member, model=model, inbox=inbox, state=state, clock=clock, rng=rng)
    sent = {name: one for name, one in update.artifacts.items() if isinstance(one, ModelState | GeneratorState)}
    return witness.calls, sent


def _replaced(data: DomainDataset, kept: Tensor, content: str) -> DomainDataset:
    """The same names, with other pictures and other classes where images are not `kept` (n,) bool."""
    pixels, rng = data.pixels().clone(), stream(0, "world", "record preparation", content)
    fresh = torch.zeros_like(pixels)
    if content == "noise":
        fresh = torch.randint(0, 256, pixels.shape, generator=rng, dtype=torch.uint8)
    pixels[~kept] = fresh[~kept]
    labels = torch.where(kept, data.labels, (data.labels + 1) % max(len(data.class_names), 1))
    return replace(data, store=pixels, rows=torch.arange(len(pixels)), labels=labels)


def _difference(
    usual: tuple[Sequence[_Call], Mapping[str, Artifact]],
    other: tuple[Sequence[_Call], Mapping[str, Artifact]],
    kept: Tensor,
) -> str:
    """Where two preparations differ in records that are `kept` in both, in words."""
    (first, sent), (second, resent) = usual, other
    if len(first) != len(second):
        return "its trainer is called another number of times where other images change"
    for one, two in zip(first, second, strict=True):
        entries, again = _entries_of(one.data, kept), _entries_of(two.data, kept)
        if entries is None or again is None:
            return f"it trains on another number of records than the client's {len(kept)} images"
        if not _same_entries(one.data, entries, two.data, again):
            return "what it trains on of an image changes where other images do"
        if not _same_state(one.network.state_dict(), two.network.state_dict()):
            return "the network that training starts from changes where images do"
        if len(entries) and not torch.allclose(
            _losses(one, entries), _losses(two, again), rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True
        ):
            return "the loss of an image changes where other images do"
    if sent.keys() != resent.keys() or any(
        not _same_state(sent[name].tensors(), resent[name].tensors()) for name in sent
    ):
        return "what it sends changes with images though no step was taken"
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


def _same_state(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(
        value.shape == two[name].shape
        and torch.allclose(value.double(), two[name].double(), rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
        for name, value in one.items()
    )


@torch.no_grad()
def _losses(call: _Call, entries: Tensor) -> Tensor:
    """The losses of entries under the call's objective and network, with fixed draws."""
    device = next(call.network.parameters()).device
    rng = stream(0, "world", "record preparation", "views")
    batch = batch_of(call.data, entries, call.plan, rng, device=device, layout=torch.contiguous_format)
    with torch.random.fork_rng(devices=[]):  # a Dropout layer draws the same each time
        return deepcopy(call.objective)(batch, deepcopy(call.network)).double()  # either may learn

"""Measures whether what a client trains on of one record, or makes of its training, depends on its other records.

DP-SGD clips what each record contributes to a step. That bounds a record's influence only where all else is the same
with and without it: the others' images, the network that training starts from, its plan, the loss, and what is made of
the trained network. Images standardized by the client's own mean color, weights of classes by how many images it has of
each, a learning rate by how many classes it has, and a line search on its images violate this, and no batch of training
shows it (fdgsec.privacy.record_independence compares batches). Where several networks take steps jointly nobody else
compares a record's gradients with and without other records."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import Artifact, GeneratorState, ModelState
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, Method, State
from fdgsec.federation.near_equality import same_tensors
from fdgsec.federation.replaced_records import Content, replacements, replacements_of_all, with_records_replaced
from fdgsec.federation.witnessed_joint_training import JointCall, JointWitness
from fdgsec.federation.witnessed_training import Call, TrainingWitness
from fdgsec.nn.training.per_sample_gradients import PrivateTrainingError
from fdgsec.runtime.random_streams import stream

MOST = 16
"""Images of the client that is looked at: enough for means, variances and counts of classes to move."""
ROUNDS = 2
"""Rounds that a client takes part in: what it remembers of the first is used in the second."""
ANSWERED = 4
"""Replacements under which losses and gradients are compared too, which costs passes of the network."""
ASKED = 6
"""Records of which joint gradients are asked for, each in passes of its own."""
OF_ALL = 2
"""Of all images of a client, records of which they are asked for, of those that a replacement keeps."""


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
    networks are moved at random, the same way each time. Compared are the images and labels of records that were not
    replaced, the networks that training starts from, its plan, what its optimizers hold and how far they step under the
    same gradients, what is trained beside them, and what the method makes of the moved networks; under the first
    ANSWERED of these replacements also losses and gradients of the images, there and near by, before and after the
    method was told of the steps. Joint gradients are those of ASKED images, before each of some steps, and once more
    with less company. Where there are more images, all of them are then prepared, as they are and with all replaced but
    one of every second class, so that what is frequent becomes rare, and but two, by copies.

    Not found: what changes in rounds after the next or after STEPS steps alone (fdgsec.federation.witnessed_optimizer);
    joint gradients that change with the number of records in a step beyond ASKED, after more records than are asked for
    here, or with records that are neither asked for nor always replaced; what a method has kept of images on itself
    before. Blamed all the same: a release of the images that a method pays for itself (`trainer.spend`), and trains
    from. Raises PrivateTrainingError for networks that cannot take joint private steps."""
    if not len(client.data):
        return ""
    count = min(len(client.data), MOST)
    part = client.data.subset(torch.linspace(0, len(client.data) - 1, count).round().long())
    looked = _Look(method=method, client=client, model=model, inbox=inbox, clock=clock)
    reason = looked.at(part, list(replacements(count)), _spread(count), answered=ANSWERED)
    if reason or len(client.data) == count:
        return reason
    changes = list(replacements_of_all(client.data, clock.round))
    some = [kept.nonzero().flatten()[:OF_ALL] for kept, _ in changes]
    asked = torch.cat([*some, _spread(len(client.data))[::2]]).unique()
    return looked.at(client.data, changes, asked, answered=len(changes))


def _spread(count: int) -> Tensor:
    """ASKED of `count` records: the first, the last, the one in the middle (`replacements` keeps it), and others."""
    spread = torch.linspace(0, count - 1, ASKED - 1).round().long().tolist()
    return torch.tensor(sorted({count // 2, *spread}))


_Round = tuple[Sequence[Call], Mapping[str, Artifact]]
"""What a trainer is called with in a round, and the models that are sent then."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Look:
    """A client that takes part in a round and the next, of which some records are replaced."""

    method: Method
    client: Client
    model: GlobalModel
    inbox: Inbox
    clock: Clock

    def at(
        self, data: DomainDataset, changes: Sequence[tuple[Tensor, Content]], asked: Tensor, *, answered: int
    ) -> str:
        """What depends on the records of `data` that are replaced, in words.

        Losses and gradients are compared under the first `answered` changes; joint gradients of the records `asked`,
        and of a third of them under the other changes."""
        client = replace(self.client, data=data)
        usual = self._prepared(client, asked)
        if not any(calls for calls, _ in usual):
            return f"it calls no trainer in {ROUNDS} rounds"
        less, fewer = usual, asked
        if any(isinstance(call, JointCall) for calls, _ in usual for call in calls):
            fewer = asked[len(asked) // 2 :: 3]
            less = self._prepared(client, fewer)
            if reason := _differences(usual, less, torch.ones(len(data), dtype=torch.bool), answered=True):
                return reason
        for number, (kept, content) in enumerate(changes):
            same, records = (usual, asked) if number < answered else (less, fewer)
            found = self._prepared(_with_others(client, kept, content), records)
            if reason := _differences(same, found, kept, answered=number < answered):
                return reason
        return ""

    def _prepared(self, client: Client, asked: Tensor) -> Sequence[_Round]:
        """What the trainer of a client is called with in each round, and the models that it sends."""
        method, found, last = _own(self.method), [], self.clock.round + ROUNDS
        state: State = {}
        for number in range(ROUNDS):
            now = replace(self.clock, round=self.clock.round + number, rounds=max(self.clock.rounds, last))
            witness, rng = TrainingWitness(), stream(0, "world", "record preparation", client.name, number)
            member = replace(client, trainer=JointWitness.of(witness, asked))
            if method.shares == "every" or (method.shares == "once" and number == 0):
                _, state = method.share(member, model=self.model, state=state, clock=now, rng=rng)
            update, state = method.fit(member, model=self.model, inbox=self.inbox, state=state, clock=now, rng=rng)
            sent = {name: one for name, one in update.artifacts.items() if isinstance(one, ModelState | GeneratorState)}
            found.append((witness.calls, sent))
        return found


def _own(method: Method) -> Method:
    """A copy of a method, which keeps nothing of other preparations; the method itself where it cannot be copied."""
    try:
        return deepcopy(method)
    except TypeError:
        return method


def _differences(usual: Sequence[_Round], found: Sequence[_Round], kept: Tensor, *, answered: bool) -> str:
    """The first difference of two preparations' rounds."""
    rounds = zip(usual, found, strict=True)
    return next(filter(None, (_difference(one, two, kept, answered=answered) for one, two in rounds)), "")


def _with_others(client: Client, kept: Tensor, content: Content) -> Client:
    """The client with images not `kept` (n,) replaced, and all validation images."""
    validation = client.validation
    if validation is not None:
        none = torch.zeros(len(validation), dtype=torch.bool)
        validation = with_records_replaced(validation, none, "noise" if content == "copies" else content)
    return replace(client, data=with_records_replaced(client.data, kept, content), validation=validation)


def _difference(usual: _Round, other: _Round, kept: Tensor, *, answered: bool) -> str:
    """Where two preparations differ in records that are `kept` in both, in words; in losses only where `answered`."""
    (first, sent), (second, resent) = usual, other
    if len(first) != len(second):
        return "its trainer is called another number of times where other images change"
    for one, two in zip(first, second, strict=True):
        if reason := one.difference(two, kept, answered=answered):
            return reason
    if sent.keys() != resent.keys() or any(
        not same_tensors(sent[name].tensors(), resent[name].tensors()) for name in sent
    ):
        return "what it makes of a trained network changes where images do"
    return ""

"""Guards: checks of every received message, and robust aggregation against malicious clients.

Robust centers: coordinate-wise median and trimmed mean (Yin et al., ICML 2018, https://arxiv.org/abs/1803.01498), Krum
(Blanchard et al., NIPS 2017, https://arxiv.org/abs/1703.02757); fdgsec.federation.robust_statistics holds the
mathematics. They act on what the server received, so they hide nothing from it."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fdgsec.federation.artifacts import KINDS, HeadGradient, ModelState, Scores, kind_named
from fdgsec.federation.defense import Outgoing, Protected
from fdgsec.federation.method import NUMBERS, Method
from fdgsec.federation.reply_checks import HEAVIEST
from fdgsec.federation.reply_slots import ROWS, Slot, remade
from fdgsec.federation.robust_statistics import distance_z, krum, median, trimmed_mean, winsorized
from fdgsec.federation.wire import CLIENTS, Message, Receipt, Upload
from fdgsec.runtime.errors import ArtifactError, UsageError
from fdgsec.runtime.secret_streams import SecretStream

MODELS = (ModelState, HeadGradient)
SLOT = "model"


@dataclass(frozen=True, kw_only=True)
class Guards:
    """Check every message where it is received (on by default); optionally bound outliers and use robust centers.

    `schema`: legal shapes and ranges (no negative std), the same from every client, and a model's own entries.
    `finite`: no NaN, no infinity. `largest_bytes`: payload size. Off by default: `norm`, the largest L2 norm of a
    model's change or of any other artifact's numbers; `outlier`, the largest robust z of a client's (a row's) distance
    from the median. A client above a bound is refused (the run ends), replaced by the median, or clipped: `on_outlier`.
    `center` replaces every client's artifact by the coordinate-wise median, the mean without the `hostile` largest and
    smallest values, or Krum's choice against `hostile` clients, so that any mean that a server takes equals it.
    `acts_on` limits the last three."""

    schema: bool = True
    finite: bool = True
    largest_bytes: int = 2**30
    norm: float | None = None
    outlier: float | None = None
    on_outlier: Literal["refuse", "replace", "clip"] = "refuse"
    center: Literal["none", "median", "trimmed-mean", "krum"] = "none"
    hostile: int = 1
    acts_on: Literal["all", "models", "styles"] = "all"

    def __post_init__(self) -> None:
        bounds = (self.largest_bytes, *(bound for bound in (self.norm, self.outlier) if bound is not None))
        if not (all(bound > 0 for bound in bounds) and self.hostile >= 0):
            raise UsageError(
                f"guards needs norm, outlier and largest_bytes above 0 and hostile at least 0; got norm = {self.norm}, "
                f"outlier = {self.outlier}, largest_bytes = {self.largest_bytes}, hostile = {self.hostile}."
            )

    @property
    def assumptions(self) -> Sequence[str]:
        """None: guards protect the computation, not privacy."""
        return ()

    @property
    def keeps_shares_apart(self) -> bool:
        """Whether no shared artifact is replaced or moved by those of other clients."""
        bounded = self.outlier is not None and self.on_outlier != "refuse"
        replaced = self.norm is not None and self.on_outlier == "replace"
        return self.acts_on == "models" or not (self.center != "none" or bounded or replaced)

    def check(self, method: Method) -> None:
        """Every method can be guarded."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        """Guards act where a message is received, not where it is sent."""
        return None

    def inspect(self, message: Message) -> None:
        """Raise ArtifactError, naming sender, kind and entry, for a message that no receiver should use."""
        artifact = message.artifact
        where = f"{message.sender} sent a bad {artifact.kind} (round {message.round}, {message.stage})"
        if artifact.bytes > self.largest_bytes:
            raise ArtifactError(f"{where}: {artifact.bytes} bytes; at most {self.largest_bytes} are accepted.")
        tensors = artifact.tensors()
        for name, value in tensors.items():
            if value.is_floating_point() and not _finite(value):
                if self.finite:
                    count = int((~torch.isfinite(value)).sum())
                    raise ArtifactError(f"{where}: {name} has {count} of {value.numel()} values that are not finite.")
                tensors[name] = value.nan_to_num(posinf=0, neginf=0)  # check the rest of the schema
        if not self.schema:
            return
        if kind_named(artifact.kind) is not type(artifact.stored()[0]):  # a bank of others is part of a bank
            raise ArtifactError(f"{where}: unknown kind; known: {', '.join(KINDS)}.")
        try:
            remade(artifact, tensors)
        except ArtifactError as error:
            raise ArtifactError(f"{where}: {error}") from error

    def on_received(self, receipt: Receipt) -> Sequence[Upload]:
        """Compare the clients' artifacts in each slot with each other and with the model, and bound or center them.

        Raises ArtifactError for a client that is refused, UsageError where no center can be taken."""
        uploads = list(receipt.uploads)
        if self.schema:
            _check_slots(uploads)
        for name in dict.fromkeys(name for upload in uploads for name in upload.artifacts):
            entered = {
                place: upload.artifacts[name] for place, upload in enumerate(uploads) if name in upload.artifacts
            }
            slot = Slot(
                name=name,
                senders=[uploads[place].sender for place in entered],
                artifacts=list(entered.values()),
                model=receipt.model.state if receipt.model is not None and name == SLOT else None,
            )
            if self.schema:
                slot.compare()
                _check_weights(slot)
            for place, artifact in zip(entered, self._apply_bounds(slot).artifacts, strict=True):
                uploads[place] = replace(uploads[place], artifacts={**uploads[place].artifacts, name: artifact})
        return uploads

    def _apply_bounds(self, slot: Slot) -> Slot:
        one = slot.artifacts[0]
        if isinstance(one, Scores) or (self.acts_on != "all" and (self.acts_on == "models") != isinstance(one, MODELS)):
            return slot
        self._check_many(slot)
        if self.norm is not None:
            lengths = (slot.rows - slot.origin).norm(dim=1)
            near = slot.origin + (slot.rows - slot.origin).nan_to_num() * (self.norm / lengths).unsqueeze(1)
            slot = self._bound_rows(slot, lengths, bound=self.norm, measure="L2 norm", near=near)
        if self.outlier is not None:
            near = winsorized(slot.rows, bound=self.outlier)
            if self.on_outlier == "clip":  # by coordinate
                slot = slot.refilled(near)
            else:
                measure = "robust z of its distance from the median"
                slot = self._bound_rows(slot, distance_z(slot.rows), bound=self.outlier, measure=measure, near=near)
        return slot if self.center == "none" else self._replace_by_center(slot)

    def _check_many(self, slot: Slot) -> None:
        """Raise UsageError for robust aggregation of a slot that holds only the clients' mean."""
        merged = CLIENTS in slot.senders or (len(slot.senders) > 1 and len({id(one) for one in slot.artifacts}) == 1)
        if merged and (self.center != "none" or self.outlier is not None):
            raise UsageError(
                f"guards cannot outvote anybody in {slot.name!r}: the server has the clients' mean alone "
                "(secure-aggregation, dp-fedavg:trust=server); leave center and outlier out."
            )

    def _bound_rows(self, slot: Slot, found: Tensor, *, bound: float, measure: str, near: Tensor) -> Slot:
        """The slot with rows whose `found` exceeds the `bound` refused, replaced by the median, or replaced by
        `near`."""
        over = ~(found <= bound)
        if not bool(over.any()):
            return slot
        if self.on_outlier == "refuse":
            row = int(over.nonzero()[0])
            place = slot.owners[row]
            raise ArtifactError(
                f"{slot.senders[place]} sent a bad {slot.artifacts[place].kind} in {slot.name!r}: {measure} is "
                f"{float(found[row]):.4g}; at most {bound:g} is accepted (guards:on_outlier=replace or clip goes on)."
            )
        instead = near if self.on_outlier == "clip" else median(slot.rows).expand_as(slot.rows)
        return slot.refilled(torch.where(over.unsqueeze(1), instead, slot.rows))

    def _replace_by_center(self, slot: Slot) -> Slot:
        """The slot with the robust center in place of every client's artifact."""
        if isinstance(slot.artifacts[0], ROWS):
            raise UsageError(
                f"guards:center={self.center} needs one vector per client, but {slot.name!r} holds "
                f"{slot.artifacts[0].kind}, rows whose number is each client's; bound rows by outlier=..., or give "
                "acts_on=models."
            )
        try:
            center = _CENTERS[self.center](slot.rows, self.hostile)
        except ValueError as error:
            raise UsageError(f"guards:center={self.center},hostile={self.hostile} in {slot.name!r}: {error}") from error
        return slot.refilled(center.expand_as(slot.rows))


_CENTERS: Mapping[str, Callable[[Tensor, int], Tensor]] = {
    "median": lambda rows, _: median(rows),
    "trimmed-mean": lambda rows, hostile: trimmed_mean(rows, trim=hostile),
    "krum": lambda rows, hostile: rows[krum(rows, hostile=hostile)],
}


def _finite(value: Tensor) -> bool:
    """Whether a float tensor is finite: its minimum and maximum are, which takes one pass."""
    return value.numel() == 0 or bool(torch.isfinite(torch.stack(torch.aminmax(value))).all())


def _check_slots(uploads: Sequence[Upload]) -> None:
    """Raise ArtifactError for a client that leaves out what most send, or sends what most do not.

    Where two forms are equally frequent, the right one is unknown, and all clients are named (as in
    fdgsec.federation.reply_checks)."""
    own = [upload for upload in uploads if upload.sender != CLIENTS]
    forms = Counter(tuple(sorted(upload.artifacts)) for upload in own)
    if len(forms) < 2:
        return
    (usual, count), (_, second) = forms.most_common(2)
    if count == second:
        said = "; ".join(f"{upload.sender}: {', '.join(sorted(upload.artifacts)) or 'nothing'}" for upload in own)
        raise ArtifactError(f"clients sent different things (round {own[0].round}, {own[0].stage}): {said}.")
    upload = next(upload for upload in own if tuple(sorted(upload.artifacts)) != usual)
    lacking, foreign = sorted(set(usual) - upload.artifacts.keys()), sorted(upload.artifacts.keys() - set(usual))
    what = f"did not send {lacking[0]!r}" if lacking else f"sent {foreign[0]!r}"
    raise ArtifactError(
        f"{upload.sender} {what} (round {upload.round}, {upload.stage}), unlike {count} of {len(own)} clients."
    )


def _check_weights(slot: Slot) -> None:
    """Raise ArtifactError for an update whose weight in a mean is not above 0, or exceeds any plausible number of
    images."""
    if slot.name != NUMBERS:
        return
    for sender, artifact in zip(slot.senders, slot.artifacts, strict=True):
        weight = float(artifact.tensors()["values"][0])
        if not 0 < weight <= (math.inf if sender == CLIENTS else HEAVIEST):
            raise ArtifactError(
                f"{sender} sent a bad {artifact.kind} in {NUMBERS!r}: its weight is {weight:g}; it must be above 0 and "
                f"at most {HEAVIEST:g}."
            )

"""Secure aggregation: the server learns sums over clients and nothing else (Bonawitz et al., CCS 2017).

Clients mask what they send with pairwise secrets that cancel in the sum. The masks are not simulated, only their
effect: on the wire the clients' uploads become one, of the sender "clients", before guards and transcript. For styles
the sum is that of n (mu, sigma^2 + mu^2), which gives the exact pooled style of all images (CCST eq. 8). For models and
spectra it is that of weight times value; weights themselves are added. It hides who sent what. A sum over few clients
still reveals information about each (the differencing attack), and there is no (epsilon, delta)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fdgsec.federation.artifacts import Amplitudes, Artifact, GeneratorState, ModelState, Scores, StyleStatistics
from fdgsec.federation.defense import Outgoing, Protected
from fdgsec.federation.method import NUMBERS, Method
from fdgsec.federation.server_needs import needs_of
from fdgsec.federation.wire import CLIENTS, Policy, Upload, number_of
from fdgsec.runtime.errors import UnseenError, UsageError
from fdgsec.runtime.secret_streams import SecretStream

Sum = Callable[[Sequence[Artifact], Tensor], Artifact]


@dataclass(frozen=True, kw_only=True)
class SecureAggregation:
    """Show the server the ideal sum of all clients' uploads in place of each; no (epsilon, delta), no masks.

    `least` is the minimum number of clients in a sum: with fewer nothing is sent. Weights and numbers of images are
    summed as well, so that those of a single client are not public."""

    least: int = 2

    def __post_init__(self) -> None:
        if self.least < 2:
            raise UsageError(
                f"secure-aggregation needs least of at least 2: one client's sum is its upload; got {self.least}."
            )

    @property
    def assumptions(self) -> Sequence[str]:
        """The assumptions of the simulated protocol, and what it does not guarantee."""
        return (
            (
                "secure-aggregation: an ideal sum, without masks, their finite field and its rounding, or recovery of "
                "clients that drop out: all follow the protocol, and none colludes with the server"
            ),
            "secure-aggregation: no (epsilon, delta) of its own: the sum itself is exact",
        )

    def check(self, method: Method) -> None:
        """Raise UsageError for a method whose server needs more than sums."""
        needs = needs_of(method)
        if needs.uploads != "sum":
            raise UsageError(
                "secure-aggregation leaves the server with sums; this method needs single uploads because "
                f"{needs.because}."
            )

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        """No change: uploads are summed on the wire, after the client's own defenses."""
        return None

    def policy(self) -> Policy:
        """Sum on the wire."""
        return _SumPolicy(least=self.least)


@dataclass(frozen=True, kw_only=True)
class _SumPolicy:
    """Sums all uploads of a stage."""

    least: int

    def on_collected(self, uploads: Sequence[Upload], rng: SecretStream) -> Sequence[Upload]:
        """The one upload that reaches the server: weighted means by slot, and the sum of the weights.

        Raises UnseenError for too few clients, UsageError for what cannot be summed."""
        if len(uploads) < self.least:
            raise UnseenError(
                f"secure-aggregation sums over at least {self.least} clients, and {len(uploads)} took part: nothing "
                "is sent."
            )
        first = uploads[0]
        if any(
            upload.artifacts.keys() != first.artifacts.keys() or upload.metrics != first.metrics for upload in uploads
        ):
            raise UsageError("secure-aggregation sums uploads of the same parts; these clients sent different ones.")
        weights = torch.tensor([upload.weight for upload in uploads], dtype=torch.float64)
        if float(weights.min()) < 0 or float(weights.sum()) <= 0:
            raise UsageError("secure-aggregation needs weights of at least 0 that do not sum to 0.")
        artifacts = {slot: _sum_slot(slot, [u.artifacts[slot] for u in uploads], weights) for slot in first.artifacts}
        total = Upload(
            round=first.round, stage=first.stage, sender=CLIENTS, artifacts=artifacts, weight=float(weights.sum()),
            metrics=first.metrics,
        )  # fmt: skip
        return [total]


def _sum_slot(slot: str, artifacts: Sequence[Artifact], weights: Tensor) -> Artifact:
    """The sum of one slot's artifacts. Raises UsageError for artifacts that differ in kind or cannot be summed."""
    first = artifacts[0]
    shapes = [{name: value.shape for name, value in artifact.tensors().items()} for artifact in artifacts]
    if any(type(artifact) is not type(first) for artifact in artifacts) or any(shape != shapes[0] for shape in shapes):
        raise UsageError(f"secure-aggregation sums like with like; clients sent different things as {slot!r}.")
    if slot == NUMBERS:
        return _numbers(artifacts, weights)
    found = SUMS.get(type(first))
    if found is None:
        raise UsageError(f"secure-aggregation cannot sum a {first.kind} ({slot!r}); leave it out for this method.")
    return found(artifacts, weights)


def _means(tensors: Sequence[Mapping[str, Tensor]], weights: Tensor) -> dict[str, Tensor]:
    """The weighted mean of every entry, integers rounded, in its dtype; sums run in float64."""
    shares = weights / weights.sum()
    means: dict[str, Tensor] = {}
    for name, value in tensors[0].items():
        total = torch.zeros(value.shape, dtype=torch.float64)
        for share, one in zip(shares.tolist(), tensors, strict=True):
            total += share * one[name].double()
        means[name] = (total if value.is_floating_point() else total.round()).to(value.dtype)
    return means


def _pooled_style(artifacts: Sequence[Artifact], weights: Tensor) -> StyleStatistics:
    """The style of all clients' pixels: sigma^2 + mu^2 averages. An epsilon inside the roots is kept."""
    tensors = [artifact.tensors() for artifact in artifacts]
    mean, std = (torch.stack([one[name] for one in tensors]).double() for name in ("mean", "std"))
    shares = (weights / weights.sum()).unsqueeze(1)
    center = (shares * mean).sum(0)
    variance = (shares * (std.square() + (mean - center).square())).sum(0)
    return StyleStatistics(mean=center.to(tensors[0]["mean"]), std=variance.sqrt().to(tensors[0]["std"]))


def _mean_state(artifacts: Sequence[Artifact], weights: Tensor) -> ModelState:
    kind = type(artifacts[0])
    if not issubclass(kind, ModelState):
        raise TypeError(f"states are averaged; got {kind.kind}.")
    return kind(state=_means([artifact.tensors() for artifact in artifacts], weights))


def _mean_spectrum(artifacts: Sequence[Artifact], weights: Tensor) -> Amplitudes:
    means = _means([{"values": artifact.tensors()["values"]} for artifact in artifacts], weights)
    owner = torch.full((len(means["values"]),), number_of(CLIENTS))
    return Amplitudes(values=means["values"], owner=owner)


def _numbers(artifacts: Sequence[Artifact], weights: Tensor) -> Scores:
    """The sum of the weights, followed by the weighted means of the metrics."""
    told = torch.stack([artifact.tensors()["values"] for artifact in artifacts]).double()
    means = (weights.unsqueeze(1) * told).sum(0) / weights.sum()
    return Scores(values=torch.cat([told[:, 0].sum().reshape(1), means[1:]]))


SUMS: Mapping[type[Artifact], Sum] = {
    StyleStatistics: _pooled_style, ModelState: _mean_state, GeneratorState: _mean_state, Amplitudes: _mean_spectrum,
}  # fmt: skip

"""Private styles: clipping around a public center and the analytic Gaussian mechanism, for every linear style release.

For a release that is a mean over images (CCST's eq. 8, StableFDG's eq. 3), every image's statistic t(x) is clipped to a
ball around the mean of public images, t~ = c + (t - c) min(1, C / |t - c|), Gaussian noise is added to the mean of the
n images, and the artifact is computed from that. For a release of single images (CCST's eq. 7, FedAlign's pool), every
row is clipped and noised. With `unit="client"` everything that a client sends is one value. Noise: Balle & Wang, ICML
2018, Theorem 8 (fdgsec.privacy.mechanisms). Sensitivities: fdgsec/privacy/clipping.py. Public images:
fdgsec/federation/public_clip_bounds.py.

A method that shares every round composes: noise grows with the root of the number of rounds, so that the whole run
meets epsilon. What is guaranteed and what is not is in docs/defenses/private-styles.md."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fdgsec.federation.artifact_checks import LARGEST
from fdgsec.federation.artifacts import Amplitudes, ImageStyles, StyleDistribution, StyleStatistics
from fdgsec.federation.defense import Outgoing, Protected, StatisticSource
from fdgsec.federation.method import Method
from fdgsec.federation.public_clip_bounds import (
    Frame,
    Reference,
    client_region,
    pooled_frame,
    row_region,
    rows_of,
    shared_rows,
    with_rows,
)
from fdgsec.privacy.accounting import Relation, Unit, Use
from fdgsec.privacy.clipping import (
    Region,
    count_weight,
    sensitivity_of_client,
    sensitivity_of_mean,
    sensitivity_of_rows,
    sensitivity_of_sum_and_count,
)
from fdgsec.privacy.discrete_gaussian import lattice_gaussian
from fdgsec.privacy.guarantees import PlannedGuarantee
from fdgsec.privacy.mechanisms import noise_multiplier
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.secret_streams import SecretStream

T = TypeVar("T")
STYLES = (StyleStatistics, StyleDistribution, ImageStyles, Amplitudes)
SENSITIVITY_TOLERANCE = 1 + 1e-9
"""A relation is listed where its sensitivity is at most this factor times the calibrated one, to allow for rounding."""

SMALLEST_CLIP = 1e-9
"""Below it, the grid of the noise is not resolved in float64."""
_Cache = dict[tuple[object, ...], object]
# cache of frames and regions, dropped with the run's statistic source
_CACHES: WeakKeyDictionary[StatisticSource, _Cache] = WeakKeyDictionary()


@runtime_checkable
class ClustersImages(Protocol):
    """A method whose clients average clusters of their images (FISC)."""

    @property
    def local_clustering(self) -> bool:
        """Whether clients cluster their images."""
        ...

    @property
    def sigma(self) -> str:
        """How stds are averaged: "mixture" is the pooled std."""
        ...


@dataclass(frozen=True, kw_only=True)
class PrivateStyles:
    """Clip each image's (or client's) style around a public center and add Gaussian noise for (epsilon, delta).

    `epsilon` inf clips without noise and gives no guarantee. `clip` is C; "auto" is the `quantile` of public images'
    own distances, in units of each coordinate's standard deviation among these (`scale` "public", with squares centered
    on their means) or in those of t itself ("raw"). `neighbors` is the neighboring relation, `unit` the privacy unit.

    Raises UsageError for options out of range."""

    epsilon: float = 8.0
    delta: float = 1e-5
    clip: float | Literal["auto"] = "auto"
    unit: Unit = "record"
    neighbors: Relation = "replace-one"
    center: Literal["public", "zero"] = "public"
    scale: Literal["public", "raw"] = "public"
    quantile: float = 0.95

    def __post_init__(self) -> None:
        if not self.epsilon > 0 or not 0 < self.delta < 1:
            raise UsageError(
                f"private-styles needs epsilon above 0 and delta in (0, 1); got {self.epsilon} and {self.delta}."
            )
        if (
            self.clip != "auto" and not (isinstance(self.clip, int | float) and SMALLEST_CLIP <= self.clip <= LARGEST)
        ) or not 0 < self.quantile <= 1:
            raise UsageError(
                f"private-styles needs clip from {SMALLEST_CLIP:g} to {LARGEST:g} (or auto) and quantile in (0, 1]; "
                f"got {self.clip} and {self.quantile}."
            )
        if self.unit == "client" and self.neighbors == "add-remove":
            raise UsageError(
                "private-styles cannot hide that a client takes part, only what it holds; with unit=client take "
                "neighbors=replace-one or zero-out."
            )

    @property
    def mechanism_on(self) -> frozenset[str]:
        """Replaces what the share stage sends by a noisy function of the records."""
        return frozenset({"share"})

    @property
    def assumptions(self) -> Sequence[str]:
        """The assumptions of the guarantee."""
        per_record = self.unit == "record"
        size = "how many images a client has" if per_record else "how many rows a client sends"
        counted = (
            "the number of images is private here: whatever else tells it (weights of an update) is not covered"
            if self.neighbors == "add-remove"
            else f"{size} is public"
        )
        return (
            counted,
            "center, units and clip come from public images alone",
            "an image keeps its file name (and its class, where other images of the client have that name), from which "
            "its place, its part in validation and the choice of rows follow; which images a client holds is given"
            if per_record
            else "which images a client sends rows of does not matter: all that it sends is one value",
            "the noise is a discrete Gaussian on a grid (Canonne et al. 2020), whose key the adversary lacks",
            "an image of a person is one record: several of one person's are not covered together"
            if per_record
            else "everything that one client sends is covered together",
        )

    @property
    def promise(self) -> PlannedGuarantee | None:
        """The requested relation and those that it implies; add-remove does not imply the relations in which n is
        public.

        None without noise."""
        if math.isinf(self.epsilon):
            return None
        implied: set[Relation] = {"zero-out"} if self.neighbors == "replace-one" else set()
        by = f"private-styles:unit={self.unit},neighbors={self.neighbors}"
        return PlannedGuarantee(by=by, stage="share", unit=self.unit, relations=frozenset({self.neighbors, *implied}))

    def check(self, method: Method) -> None:
        """Raise UsageError for a method that sends no styles, and per record for styles of clusters."""
        if method.shares == "never":
            raise UsageError(
                f"private-styles has nothing to protect: {type(method).__name__} sends no styles; leave it out."
            )
        if self.unit == "client":
            return
        for part in _parts(method):
            if isinstance(part, ClustersImages):
                _check_clusters(part)

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        """Protect what a client shares; models, scores and numbers are not affected."""
        artifact = outgoing.artifact
        if outgoing.stage != "share" or not isinstance(artifact, STYLES):
            return None
        if self.unit == "client":
            region = self._cached(outgoing, "client", lambda: self._client_region(outgoing))
            sensitivity = sensitivity_of_client(region, max(len(rows_of(artifact)), 1))
            return self._rows(outgoing, region, sensitivity, rng)
        if isinstance(artifact, ImageStyles | Amplitudes):
            self._check_rows(outgoing)
            region = self._cached(outgoing, "rows", lambda: row_region(outgoing.sender, outgoing.name, self._reference))
            return self._rows(outgoing, region, sensitivity_of_rows(region), rng)
        frame = self._cached(outgoing, "pooled", lambda: pooled_frame(outgoing.sender, outgoing.name, self._reference))
        if self.neighbors == "add-remove":
            return self._sum_and_count(outgoing, frame, rng)
        return self._mean(outgoing, frame, rng)

    def _mean(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        """The noisy mean, where the number of images is public."""
        coordinates = frame.coordinates(outgoing.sender.records)
        images = len(coordinates)
        noise, uses = self._calibrated_noise(outgoing, sensitivity_of_mean(frame.region, images))
        mean = _released(coordinates.mean(0), noise, uses, rng)
        return Protected(artifact=frame.artifact(mean, like=outgoing.artifact, images=images), uses=uses)

    def _sum_and_count(self, outgoing: Outgoing, frame: Frame, rng: SecretStream) -> Protected:
        """The noisy sum over the noisy number of images, which is private."""
        coordinates = frame.coordinates(outgoing.sender.records)
        weight = count_weight(frame.region)
        both = torch.cat([coordinates.sum(0), coordinates.new_tensor([weight * len(coordinates)])])
        noise, uses = self._calibrated_noise(outgoing, sensitivity_of_sum_and_count(frame.region))
        released = _released(both, noise, uses, rng)
        count = max(float(released[-1]) / weight, 1.0)
        made = frame.artifact(released[:-1] / count, like=outgoing.artifact, images=round(count))
        return Protected(artifact=made, uses=uses)

    def _rows(
        self, outgoing: Outgoing, region: Region, sensitivity: Mapping[Relation, float], rng: SecretStream
    ) -> Protected:
        """Add noise to every row."""
        noise, uses = self._calibrated_noise(outgoing, sensitivity)
        coordinates = _released(region.inside(rows_of(outgoing.artifact)), noise, uses, rng)
        return Protected(artifact=with_rows(outgoing.artifact, region.values(coordinates)), uses=uses)

    def _calibrated_noise(
        self, outgoing: Outgoing, sensitivity: Mapping[Relation, float]
    ) -> tuple[float, tuple[Use, ...] | None]:
        """The noise's standard deviation, and its cost in each relation in which epsilon holds or better."""
        asked = sensitivity[self.neighbors]
        clock = outgoing.sender.clock
        method = outgoing.sender.method
        slots = sum(one.stage == "share" and issubclass(one.kind, STYLES) for one in method.releases)
        releases = max(slots, 1) * (max(clock.rounds, 1) if method.shares == "every" else 1)
        noise = noise_multiplier(self.epsilon, self.delta) * asked * math.sqrt(releases)
        known: dict[Relation, float] = {
            relation: value for relation, value in sensitivity.items() if value <= asked * SENSITIVITY_TOLERANCE
        }
        if not noise:
            return 0.0, None
        return noise, (Use(mechanism="gaussian", noise=noise, sensitivity=known, unit=self.unit),)

    def _check_rows(self, outgoing: Outgoing) -> None:
        """Raise UsageError where rows are not of one image each, an image may have several, or their number is
        private."""
        shown = shared_rows(outgoing.sender.state, outgoing.name)
        rows = len(rows_of(outgoing.artifact))
        if shown is None or len(shown) != rows or len(shown.unique()) != rows:
            raise UsageError(
                f"private-styles cannot protect {outgoing.name!r} per record: rows of {outgoing.artifact.kind} are "
                "not of one image each, or an image has several (a mean of whole spectra is one release of 3 x H x "
                "(W // 2 + 1) numbers); take private-styles:unit=client."
            )
        if self.neighbors == "add-remove":
            raise UsageError(
                "private-styles cannot keep the number of images private where rows of single images are sent: their "
                "number follows from it; take neighbors=replace-one or zero-out."
            )

    def _client_region(self, outgoing: Outgoing) -> Region:
        sender, slot = outgoing.sender, outgoing.name
        single = shared_rows(sender.state, slot) is not None
        return (row_region if single else client_region)(sender, slot, self._reference)

    @property
    def _reference(self) -> Reference:
        return Reference(
            bound=None if self.clip == "auto" else self.clip, quantile=self.quantile,
            centered=self.center == "public", scaled=self.scale == "public",
        )  # fmt: skip

    def _cached(self, outgoing: Outgoing, kind: str, make: Callable[[], T]) -> T:
        """Compute a public value once per run, slot, image size and received model."""
        sender = outgoing.sender
        if sender.statistic_source is None:
            return make()
        known = _CACHES.setdefault(sender.statistic_source, {})
        model = "" if sender.model is None else sender.model.state.sha256
        key = (self, kind, repr(sender.method), outgoing.name, sender.client.data.image_size, model)
        if key not in known:
            known[key] = make()
        found: T = known[key]  # type: ignore[assignment]
        return found


def _released(values: Tensor, noise: float, uses: tuple[Use, ...] | None, rng: SecretStream) -> Tensor:
    """The values with noise of this standard deviation, for the nearest of the neighbors that `uses` name."""
    if uses is None:
        return values
    return lattice_gaussian(values, noise, distance=min(uses[0].sensitivity.values()), rng=rng)


def _parts(method: object) -> Iterator[object]:
    """The method, and those that it extends."""
    while method is not None:
        yield method
        method = getattr(method, "base", None)


def _check_clusters(method: ClustersImages) -> None:
    """Raise UsageError where one image can change all clusters, or stds are averaged where t has their squares."""
    plain = "--set method.local_clustering=false --set method.sigma=mixture"
    if method.local_clustering:
        raise UsageError(
            f"private-styles cannot protect {type(method).__name__} per record: one image can change which images "
            "FINCH puts together, and with them the style by more than any 1/n, so that no usable sensitivity is "
            "known; take private-styles:unit=client, or the pooled style of all images, which is another method than "
            f"the paper's ({plain})."
        )
    if method.sigma != "mixture":
        raise UsageError(
            f"private-styles protects means of (mu, sigma^2 + mu^2); {type(method).__name__} without clusters "
            f"averages sigma itself; take the pooled std instead ({plain})."
        )

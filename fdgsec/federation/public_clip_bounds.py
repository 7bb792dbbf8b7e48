"""Public clip centers and bounds for styles, computed from public images without private data.

Public images are procedural (fdgsec.data.shapes), with a seed that no dataset has and the client's image size, under
the client's own record statistic. A method is also *rehearsed* on them: what would a client with these images send?
This gives typical rows and releases, and shows whether a release is the mean of the record statistic."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset, as_float
from fdgsec.data.shapes import shapes
from fdgsec.federation.artifacts import Amplitudes, Artifact, ImageStyles, StyleDistribution, StyleStatistics
from fdgsec.federation.defense import RecordStatistic, Sender
from fdgsec.federation.method import SHARED_ROWS, Client, Method, State
from fdgsec.federation.released_statistics import ReleasedStatistic
from fdgsec.federation.stacked_methods import PREFIX
from fdgsec.nn.networks.classifiers import IMAGENET_MEAN, IMAGENET_STD
from fdgsec.nn.styles.channel_statistics import moments
from fdgsec.privacy.clipping import Ball, HalfDiscs, Region, ball_of
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream

PUBLIC_SEED = -1
"""No run uses a negative seed for shapes, so that no public image is a private one."""
PER_DOMAIN = 21
CLIENTS_PER_DOMAIN = 4
CLIENT_IMAGES = 10
AGREEMENT = 1e-3
"""Largest relative L2 distance between a rehearsed release and the mean of t: rounding, and HW against HW - 1."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Options for a public region from public rows: `bound` (None: the `quantile` of their lengths), center, units."""

    bound: float | None = None
    quantile: float = 0.95
    centered: bool = True
    scaled: bool = True

    def ball(self, rows: Tensor) -> Ball:
        """Make the ball of public `rows` (n, D)."""
        return ball_of(rows, bound=self.bound, quantile=self.quantile, centered=self.centered, scaled=self.scaled)


@dataclass(frozen=True, kw_only=True, eq=False)
class Frame:
    """Coordinates of one pooled statistic t, with squares taken about `about` (D,), in a `region`."""

    released_statistic: ReleasedStatistic
    about: Tensor
    region: Region

    def coordinates(self, records: Tensor) -> Tensor:
        """Compute the clipped coordinates (n, D) of t of images (n, D)."""
        return self.region.inside(self.released_statistic.about(records, self.about))

    def artifact(self, mean: Tensor, *, like: Artifact, images: int) -> Artifact:
        """Convert a mean of coordinates (D,) to the artifact that the method sends."""
        statistics = self.released_statistic.from_about(self.region.values(mean), self.about)
        return self.released_statistic.artifact(statistics.unsqueeze(0), like=like, images=images)


@lru_cache(maxsize=4)
def public_images(size: tuple[int, int]) -> DomainDataset:
    """Draw 21 images in each of four styles at (height, width)."""
    drawn = shapes(image_size=max(size), per_domain=PER_DOMAIN, seed=PUBLIC_SEED)
    if size[0] == size[1]:
        return drawn
    top, left = ((max(size) - side) // 2 for side in size)
    cut = drawn.pixels()[:, :, top : top + size[0], left : left + size[1]]
    return replace(drawn, store=cut.contiguous(), rows=torch.arange(len(cut)))


def pooled_frame(sender: Sender, slot: str, reference: Reference) -> Frame:
    """Make the frame of t for releases that are means of it over images.

    Raises UsageError where the method's release of public images is not the mean of their t."""
    images = public_images(sender.client.data.image_size)
    record_statistic = _record_statistic(sender, images)
    records = record_statistic.records(images)
    sent, _ = _rehearsed(sender.method, images, sender, slot)
    expected = record_statistic.released_statistic.artifact(
        records.mean(0, keepdim=True), like=sent, images=len(images)
    )
    ours, theirs = rows_of(expected), rows_of(sent)
    if float((ours - theirs).norm()) > AGREEMENT * float(theirs.norm()):
        raise UsageError(
            f"private-styles cannot protect {slot!r} per record: what {type(sender.method).__name__} sends is not the "
            "mean of one statistic per image (clusters, random crops or batches come between); take "
            "private-styles:unit=client, or options under which styles are plain means."
        )
    shifted = reference.centered and reference.scaled  # else t is clipped as it is
    about = records.mean(0) if shifted else torch.zeros_like(records[0])
    region = reference.ball(record_statistic.released_statistic.about(records, about))
    return Frame(released_statistic=record_statistic.released_statistic, about=about, region=region)


def row_region(sender: Sender, slot: str, reference: Reference) -> Region:
    """Make the region of rows of single images: half discs for color statistics, else a ball of rehearsed rows."""
    images = public_images(sender.client.data.image_size)
    method = sender.method.releasing_all() or sender.method
    sent, state = _rehearsed(method, images, sender, slot)
    rows = rows_of(sent)
    shown = shared_rows(state, slot)
    if isinstance(sent, ImageStyles) and shown is not None:
        for discs in color_spaces():
            if rows.shape[1] == 2 * len(discs.mean) and _agree(rows, _colors(images, shown, discs)):
                return discs
    return reference.ball(rows)


def client_region(sender: Sender, slot: str, reference: Reference) -> Ball:
    """Make the region of one row of a client's whole release, from rehearsed clients of 10 public images each."""
    images = public_images(sender.client.data.image_size)
    drawn = []
    for domain in range(len(images.domain_names)):
        theirs = images.of_domain(domain)
        for number in range(CLIENTS_PER_DOMAIN):
            order = torch.randperm(len(theirs), generator=stream(0, "world", "public clients", domain, number))
            sent, _ = _rehearsed(sender.method, theirs.subset(order[:CLIENT_IMAGES]), sender, slot)
            drawn.append(rows_of(sent))
    return reference.ball(torch.cat(drawn))


def color_spaces() -> Sequence[HalfDiscs]:
    """Give RGB as networks use it, normalized by ImageNet's mean and std, and plain RGB."""
    mean, std = (torch.tensor(values, dtype=torch.float64) for values in (IMAGENET_MEAN, IMAGENET_STD))
    return HalfDiscs(mean=mean, std=std), HalfDiscs(mean=torch.zeros_like(mean), std=torch.ones_like(std))


def shared_rows(state: State, slot: str) -> Tensor | None:
    """Give the image of each row in `slot`, (J,), where the client's memory has it."""
    return state.get(f"{PREFIX}{SHARED_ROWS}" if slot.startswith(PREFIX) else SHARED_ROWS)


def rows_of(artifact: Artifact) -> Tensor:
    """Give the numbers of a style release, (rows, D) float64. Raises UsageError for any other kind."""
    if isinstance(artifact, Amplitudes):
        return artifact.values.double().flatten(1)
    if isinstance(artifact, StyleDistribution):
        parts = (artifact.mean, artifact.std, artifact.mean_spread, artifact.std_spread)
        return torch.cat(parts).double().unsqueeze(0)
    if isinstance(artifact, StyleStatistics | ImageStyles):
        rows = torch.cat([artifact.mean, artifact.std], dim=-1).double()
        return rows.reshape(-1, rows.shape[-1])
    raise UsageError(f"private-styles reads styles and spectra; got {artifact.kind}.")


def with_rows(artifact: Artifact, rows: Tensor) -> Artifact:
    """Invert `rows_of`, with other numbers (rows, D); values that cannot be negative are raised to 0."""
    if isinstance(artifact, Amplitudes):
        values = rows.reshape(artifact.values.shape).clamp_min(0).to(artifact.values)
        return Amplitudes(values=values, owner=artifact.owner)
    if isinstance(artifact, StyleDistribution):
        mean, std, mean_spread, std_spread = rows[0].to(artifact.mean).chunk(4)
        return StyleDistribution(
            mean=mean, std=std.clamp_min(0), mean_spread=mean_spread.clamp_min(0), std_spread=std_spread.clamp_min(0)
        )
    if isinstance(artifact, StyleStatistics | ImageStyles):
        mean, std = (half.reshape(artifact.mean.shape).to(artifact.mean) for half in rows.chunk(2, dim=-1))
        return type(artifact)(mean=mean, std=std.clamp_min(0))
    raise UsageError(f"private-styles makes styles and spectra; got {artifact.kind}.")


def _record_statistic(sender: Sender, images: DomainDataset) -> RecordStatistic:
    if sender.statistic_source is None:
        raise UsageError("private-styles needs to know of which statistic releases are means; this run does not say.")
    return sender.statistic_source(images, sender.model)


def _rehearsed(method: Method, images: DomainDataset, sender: Sender, slot: str) -> tuple[Artifact, State]:
    """Run the method on public images: the artifact that a client would send in `slot`, and its state."""
    client = Client(name="client:0", data=images)
    rng = stream(0, "world", "rehearsal")
    sent, state = method.share(client, model=sender.model, state={}, clock=sender.clock, rng=rng)
    return sent[slot], state


def _colors(images: DomainDataset, shown: Tensor, discs: HalfDiscs) -> Tensor:
    """Compute the color statistics (J, 6) of the images at `shown` in the space of `discs`."""
    found = moments(as_float(images.pixels(shown)))
    mean, std = found.style(unbiased=False, eps=0.0)
    return torch.cat([(mean - discs.mean) / discs.std, std / discs.std], dim=1)


def _agree(rows: Tensor, others: Tensor) -> bool:
    return float((rows - others).norm()) <= AGREEMENT * float(others.norm())

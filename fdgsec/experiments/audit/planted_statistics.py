"""Statistics that are planted in the place of those of a client's images, and chains of pooled releases made of them.

Few pictures lie at the edge of a region whose radius is a high quantile of public distances, so that real neighbors
move a mean by much less than its cost allows. Planted statistics lie there, half of them on either side of the center,
or half of them at the center, so that what hangs on a median, on extremes or on lengths moves as far as it can."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fdgsec.data.domains import DomainDataset
from fdgsec.experiments.audit.chains_of_clients import counts_of
from fdgsec.experiments.audit.neighboring_clients import Release
from fdgsec.federation.artifacts import Amplitudes, ImageStyles
from fdgsec.federation.defense import RecordStatistic, StatisticSource
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.public_clip_bounds import Reference, pooled_frame
from fdgsec.federation.released_statistics import ReleasedStatistic
from fdgsec.privacy.accounting import Unit
from fdgsec.runtime.random_streams import stream


@dataclass(frozen=True, kw_only=True, eq=False)
class PlantedRecordStatistic:
    """A record statistic that returns `statistics` (m, D) for the first m images of `client`."""

    record_statistic: RecordStatistic
    client: DomainDataset
    statistics: Tensor

    @property
    def released_statistic(self) -> ReleasedStatistic:
        """The released statistic of the original record statistic."""
        return self.record_statistic.released_statistic

    def records(self, images: DomainDataset) -> Tensor:
        """t(x) of every image, (n, D) float64."""
        found = self.record_statistic.records(images)
        if images.store is not self.client.store:  # public images may have the same names
            return found
        same = images.rows.unsqueeze(1) == self.client.rows[: len(self.statistics)]
        place = same.to(torch.uint8).argmax(1)
        return torch.where(same.any(1, keepdim=True), self.statistics[place], found)


@dataclass(frozen=True, kw_only=True, eq=False)
class PlantedStatisticSource:
    """A statistic source with `statistics` (m, D) in the place of those of the first m images of `client`."""

    statistic_source: StatisticSource
    client: DomainDataset
    statistics: Tensor

    def __call__(self, images: DomainDataset, model: GlobalModel | None) -> RecordStatistic:
        """The statistic of the images that a client holds and the model that it received."""
        return PlantedRecordStatistic(
            record_statistic=self.statistic_source(images, model), client=self.client, statistics=self.statistics
        )


def is_pooled(release: Release, unit: Unit) -> bool:
    """Whether a release is a mean of statistics of single images, each of which is protected."""
    return release.step == "share" and unit == "record" and not isinstance(release.artifact, ImageStyles | Amplitudes)


def chains_of_statistics(release: Release, reference: Reference) -> Iterator[Sequence[Release]]:
    """Chains of a pooled release: statistics at one side of the clipping region are replaced one by one (or near
    certain shares) by those at the other side, in their first half (means, whose noise is never cut at 0), and those at
    its center by those at one side, in all numbers."""
    frame, source = pooled_frame(release.sender, release.slot, reference), release.sender.statistic_source
    assert source is not None
    data, width = release.sender.client.data, len(frame.about)
    first = torch.arange(len(data)).unsqueeze(1)
    signs = 2.0 * torch.randint(2, (width,), generator=stream(0, "world", "side of a region")).double() - 1
    means = torch.where(torch.arange(width) < max(1, width // 2), signs, 0.0)

    def planted(rows: Tensor) -> Release:
        statistics = frame.released_statistic.from_about(frame.region.values(rows), frame.about)
        given = PlantedStatisticSource(statistic_source=source, client=data, statistics=statistics)
        return replace(release, sender=replace(release.sender, statistic_source=given))

    for direction, opposite in ((means, -1.0), (signs, 0.0)):
        side = frame.region.radius * direction / direction.norm()
        other = opposite * side
        for counts in counts_of(len(data)):
            yield [planted(torch.where(first < count, side, other)) for count in counts]

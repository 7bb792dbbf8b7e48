"""Shadow clients: simulated clients with known shares, from which the map from releases to shares is learned.

They hold public images, with shares drawn as the victims' are, and as many images. Where a release is a mean over
images (which is tested), theirs are means of scores. Otherwise they run the target's own public code."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fdgsec.attacks.attribute_inference.mixture_shares import (
    Scorer,
    ShareEstimator,
    fit_scorer,
    fit_share_estimator,
    shadow_rows,
    skewed_shares,
)
from fdgsec.attacks.statistics.defense_noise import (
    DefenseNoise,
    defense_noise_of_mean,
    defense_noise_of_rows,
    style_rows_of,
)
from fdgsec.attacks.statistics.standardization import standardizing_scale
from fdgsec.data.domains import DomainDataset, shares_of
from fdgsec.federation.artifacts import Amplitudes, Artifact, ImageStyles, StyleDistribution, StyleStatistics
from fdgsec.federation.released_statistics import ReleasedStatistic
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import Knowledge, View

Style = StyleStatistics | StyleDistribution | ImageStyles | Amplitudes
PROBE_IMAGES = 20
"""Images of each client in the test whether a release is a mean over images."""
TOLERANCE = 0.02
"""Maximum deviation in that test, as a share of an image's spread, in every coordinate."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Pool:
    """Public images of shadow clients: statistics `records` (n, D), of `kinds` (n,) out of `count`.

    `groups` (n,) is the group (domain) of each record, and records are centered within their group (see
    `center_statistics`). `group`
    is the victims' group and `center` (D,) its center. All shadow clients then come from that group. Both are None
    where no image of that group is available; shadow clients then come from any one group."""

    name: str
    images: DomainDataset
    records: Tensor
    kinds: Tensor
    groups: Tensor
    count: int
    group: int | None
    center: Tensor | None

    def client_groups(self) -> list[int]:
        """The groups that shadow clients come from."""
        return [self.group] if self.group is not None else torch.unique(self.groups).tolist()


@dataclass(frozen=True, kw_only=True, eq=False)
class ReleaseReader:
    """Estimates shares from the releases of clients of one group: centers the statistic, scores it, maps scores to
    shares.

    Where `center` is None, the mean of the releases is used."""

    scorer: Scorer
    reader: ShareEstimator
    center: Tensor | None
    released_statistic: ReleasedStatistic

    def __call__(self, releases: Tensor) -> Tensor:
        """Estimate the shares (R, K) of clients from the statistics of their releases (R, D); some may be negative."""
        center = releases.mean(0) if self.center is None else self.center
        return self.reader(self.scorer(center_statistics(releases, center, self.released_statistic)))


@dataclass(frozen=True, kw_only=True, eq=False)
class ShadowClients:
    """Shadow clients made of the adversary's public `images` (n,), whose statistics are `records` (n, D).

    `concentration` parameterizes the symmetric Dirichlet distribution of shares. `pooled` clients are made where a
    release is a mean, `simulated` ones otherwise."""

    knowledge: Knowledge
    images: DomainDataset
    records: Tensor
    concentration: float
    pooled: int
    simulated: int

    @classmethod
    def of(cls, knowledge: Knowledge, *, concentration: float, pooled: int, simulated: int) -> "ShadowClients":
        """Use all public images. Raises UsageError where none are known."""
        images = knowledge.public_images()
        records = knowledge.released_statistic.records(knowledge.statistics(images))
        return cls(
            knowledge=knowledge, images=images, records=records,
            concentration=concentration, pooled=pooled, simulated=simulated,
        )  # fmt: skip

    def release(self, artifact: Artifact, *, images: int) -> Tensor:
        """The statistic (D,) of a release of a client with `images` images; rows of single images are averaged."""
        return self.knowledge.released_statistic.release(artifact, images=images).mean(0)

    def releases_are_means(self, rng: torch.Generator) -> bool:
        """Test on two clients whether releases are means over images. Assumed true where the method cannot be run."""
        if self.knowledge.simulate is None:
            return True
        order = torch.randperm(len(self.images), generator=rng)
        clients = [order[:PROBE_IMAGES], order[-PROBE_IMAGES:]]
        spread = standardizing_scale(self.records)
        held = [self.images.subset(rows) for rows in clients]
        for rows, made in zip(clients, self._undefended_releases(held, rng), strict=True):
            away = (self.release(made, images=len(rows)) - self.records[rows].mean(0)).abs() / spread
            if not isinstance(made, ImageStyles) and float(away.max()) > TOLERANCE:
                return False
        return True

    def pools(self, domain: str | None) -> Iterator[Pool]:
        """The sets of images to learn from for a client of `domain` ("mixed": several), skipping sets of a single kind.

        Where the domain is known: its own images, those of all others, and all together."""
        domains, labels = self.images.domains, self.images.labels
        if domain == "mixed":
            everywhere = torch.ones(len(domains), dtype=torch.bool)
            count = len(self.knowledge.domain_names)
            yield self._pool("all domains", everywhere, domains, torch.zeros_like(domains), count=count, group=0)
            return
        group = self.images.domain_index(str(domain)) if domain in self.images.domain_names else -1
        own = domains == group
        sets = {"same domain": own, "other domains": ~own}
        if bool(own.any()) and not bool(own.all()):
            sets["all domains"] = torch.ones_like(own)
        for name, chosen in sets.items():
            if len(torch.unique(labels[chosen])) > 1:
                there = group if bool(own[chosen].any()) else None
                yield self._pool(name, chosen, labels, domains, count=len(self.knowledge.class_names), group=there)

    def _pool(self, name: str, chosen: Tensor, kinds: Tensor, groups: Tensor, *, count: int, group: int | None) -> Pool:
        records, kinds, groups = self.records[chosen], kinds[chosen], groups[chosen]
        placed, centers = records.clone(), dict[int, Tensor]()
        for there in torch.unique(groups).tolist():
            mine = groups == there
            centers[there] = _center(records[mine], kinds[mine])
            placed[mine] = center_statistics(records[mine], centers[there], self.knowledge.released_statistic)
        return Pool(
            name=name, images=self.images.subset(chosen), records=placed, kinds=kinds, groups=groups, count=count,
            group=group, center=None if group is None else centers[group],
        )  # fmt: skip

    def learned(self, pool: Pool, *, images: int, shown: int, means: bool, rng: torch.Generator) -> ReleaseReader:
        """Fit scores on all images of `pool`, and the map from scores to shares on shadow clients with leave-one-out
        scores.

        Clients hold `images`, of which `shown` are in their release; `means` says that the release is a mean over
        them."""
        released_statistic = self.knowledge.released_statistic
        defense_noise = self._defense_noise(pool, images, shown, child(rng, "blur"))
        # `shown` times the variance on one record, so that a mean of `shown` records has the variance of a release
        drawn = _noise(defense_noise, len(pool.records), child(rng, "noise"), times=shown)
        scorer, left_out = fit_scorer(pool.records + drawn, pool.kinds, pool.count)
        left_out = left_out - scorer.moved(drawn)
        if not means:
            reader, center = self._simulated(pool, images, rng, drawn)
            return ReleaseReader(scorer=scorer, reader=reader, center=center, released_statistic=released_statistic)
        groups, scores, shares = pool.client_groups(), [], []
        for group in groups:
            mine = (pool.groups == group).nonzero().flatten()
            count = self.pooled // len(groups)
            rows = mine[self._draw_clients(pool, mine, count, images, child(rng, group), distinct=False)]
            noise = _noise(defense_noise, count, child(rng, "noise", group))
            # without a center, releases are centered on their own mean, which contains the shift
            shift = 0.0 if defense_noise is None or pool.center is None else defense_noise.shift
            scores.append(left_out[rows[:, :shown]].mean(1) + scorer.moved(noise + shift))
            shares.append(shares_of(pool.kinds[rows], pool.count))
        reader = fit_share_estimator(torch.cat(scores), torch.cat(shares))
        return ReleaseReader(scorer=scorer, reader=reader, center=pool.center, released_statistic=released_statistic)

    def _defense_noise(self, pool: Pool, images: int, shown: int, rng: torch.Generator) -> DefenseNoise | None:
        """The effect of the defense on a release of a client with `images` images; None without a defense.

        Where `shown` rows of single images are averaged, the variance of the noise is divided by `shown`."""
        knowledge = self.knowledge
        if knowledge.defended is None:
            return None
        center = self.records.mean(0) if pool.center is None else pool.center
        if knowledge.shared is None or not isinstance(knowledge.shared(self.images, child(rng, "tried")), ImageStyles):
            return defense_noise_of_mean(knowledge, self.images, records=images, about=center, rng=rng)

        def read(artifact: Artifact) -> Tensor:
            return knowledge.released_statistic.about(knowledge.released_statistic.release(artifact), center)

        rows = defense_noise_of_rows(knowledge, self.images, made=style_rows_of(knowledge), read=read, rng=rng)
        return None if rows is None else DefenseNoise(shift=rows.shift, variance=rows.variance / shown)

    def _simulated(
        self, pool: Pool, images: int, rng: torch.Generator, drawn: Tensor
    ) -> tuple[ShareEstimator, Tensor | None]:
        """Learn from each half of the images; clients of one half are scored by a fit on the other half.

        Such releases need not be centered on the mean of images, so they are centered on their own mean."""
        groups, seen, scores, shares = pool.client_groups(), list[Tensor](), list[Tensor](), list[Tensor]()
        records = pool.records + drawn
        half = torch.randperm(len(pool.kinds), generator=child(rng, "halves")) % 2
        for side in (0, 1):
            others = half != side
            scorer, _ = fit_scorer(records[others], pool.kinds[others], pool.count)
            for group in groups:
                mine, child_rng = ((pool.groups == group) & ~others).nonzero().flatten(), child(rng, side, group)
                fewer, count = min(images, len(mine) // 2), self.simulated // (2 * len(groups))
                rows = mine[self._draw_clients(pool, mine, count, fewer, child_rng, distinct=True)]
                made = self._simulated_releases([pool.images.subset(part) for part in rows], child(child_rng, "made"))
                seen.append(torch.stack([self.release(one, images=fewer) for one in made]))
                scores.append(scorer(center_statistics(seen[-1], seen[-1].mean(0), self.knowledge.released_statistic)))
                shares.append(shares_of(pool.kinds[rows], pool.count))
        center = None if pool.center is None else torch.cat(seen).mean(0)
        return fit_share_estimator(torch.cat(scores), torch.cat(shares)), center

    def _draw_clients(
        self, pool: Pool, mine: Tensor, count: int, images: int, rng: torch.Generator, *, distinct: bool
    ) -> Tensor:
        """Draw `count` clients from the images at `mine` (m,): positions in it, (count, images)."""
        kinds = pool.kinds[mine]
        shares = skewed_shares(
            count, pool.count, held=torch.unique(kinds), concentration=self.concentration, rng=child(rng, "shares")
        )
        return shadow_rows(kinds, shares, images, distinct=distinct, rng=child(rng, "rows"))

    def _undefended_releases(self, clients: Sequence[DomainDataset], rng: torch.Generator) -> list[Style]:
        """What the clients would release without a defense."""
        if self.knowledge.defended is None or self.knowledge.shared is None:
            return self._simulated_releases(clients, rng)
        found = [self.knowledge.shared(images, child(rng, number)) for number, images in enumerate(clients)]
        return [artifact for artifact in found if isinstance(artifact, Style)]

    def _simulated_releases(self, clients: Sequence[DomainDataset], rng: torch.Generator) -> list[Style]:
        """What clients that hold these images would release, by the target's public code."""
        assert self.knowledge.simulate is not None
        view = self.knowledge.simulate(clients, rng)
        return [_style(view, f"client:{number}") for number in range(1, len(clients) + 1)]


def _noise(defense_noise: DefenseNoise | None, count: int, rng: torch.Generator, *, times: int = 1) -> Tensor:
    """Draw (count, D) of a defense's noise with `times` its variance; zeros (count, 1) without a defense."""
    if defense_noise is None:
        return torch.zeros(count, 1, dtype=torch.float64)
    return (times * defense_noise.variance).sqrt() * torch.randn(
        count, len(defense_noise.variance), generator=rng, dtype=torch.float64
    )


def _style(view: View, sender: str) -> Style:
    """The style that `sender` sent last. Raises UsageError where it sent none."""
    found = [m.artifact for m in view.messages if m.sender == sender and isinstance(m.artifact, Style)]
    if not found:
        raise UsageError(f"the adversary saw no style of {sender}.")
    return found[-1]


def center_statistics(statistics: Tensor, center: Tensor, released_statistic: ReleasedStatistic) -> Tensor:
    """Center statistics (n, D) on `center` (D,): first the squares (ReleasedStatistic.about), then all coordinates.

    Both steps are linear in the statistic. A channel's square changes with its mean in proportion to twice that mean,
    so without centering the effect of a class would differ between domains."""
    return released_statistic.about(statistics, center) - released_statistic.about(center, center)


def _center(records: Tensor, kinds: Tensor) -> Tensor:
    """The mean of the class means: the center of clients with even shares."""
    return torch.stack([records[kinds == kind].mean(0) for kind in torch.unique(kinds)]).mean(0)

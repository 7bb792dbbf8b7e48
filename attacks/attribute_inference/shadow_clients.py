"""Shadow clients: what a release says of a client's images is learned on clients of one's own, whose images one knows.

They hold public images in shares drawn as the victims' are, and as many. Where a release is a mean over images (which is
tried out, not believed), theirs are means of scores; else the target's own public code makes them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fdgsec.attacks.attribute_inference.mixture_shares import (
    Scorer,
    SharesReader,
    fit_reader,
    fit_scorer,
    shadow_rows,
    skewed_shares,
)
from fdgsec.attacks.statistics.defense_noise import (
    DefenseNoise,
    defense_noise_of_mean,
    defense_noise_of_rows,
    styles_made,
)
from fdgsec.data.domains import DomainDataset, shares_of
from fdgsec.federation.artifacts import Amplitudes, Artifact, ImageStyles, StyleDistribution, StyleStatistics
from fdgsec.federation.released_statistics import ReleasedStatistic
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import Knowledge, View

Style = StyleStatistics | StyleDistribution | ImageStyles | Amplitudes
TRIED = 20
"""Images of each client by which it is tried out whether a release is a mean over images, to ..."""
TOLERANCE = 0.02
"""... this share of an image's spread, in every coordinate."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Pool:
    """Public images that shadow clients hold: statistics `records` (n, D), of `kinds` (n,) out of `count`.

    Records are about the center of their home (see `about`), of `homes` (n,). `center` (D,) is that of the victims' own
    `home`, of which all shadow clients are; both are None where no image of it is here, and clients are of any one."""

    name: str
    images: DomainDataset
    records: Tensor
    kinds: Tensor
    homes: Tensor
    count: int
    home: int | None
    center: Tensor | None

    def of_clients(self) -> list[int]:
        """The homes that shadow clients are of."""
        return [self.home] if self.home is not None else torch.unique(self.homes).tolist()


@dataclass(frozen=True, kw_only=True, eq=False)
class Learned:
    """Reads shares off the releases of clients of one home: placed about its center, scored, and the scores read.

    Without a center (None) the releases' own mean must do."""

    scorer: Scorer
    reader: SharesReader
    center: Tensor | None
    released_statistic: ReleasedStatistic

    def __call__(self, releases: Tensor) -> Tensor:
        """Give the shares (R, K) of clients from the statistics of their releases (R, D); some may be negative."""
        center = releases.mean(0) if self.center is None else self.center
        return self.reader(self.scorer(about(releases, center, self.released_statistic)))


@dataclass(frozen=True, kw_only=True, eq=False)
class ShadowClients:
    """Clients of an adversary's own, made of its public `images` (n,), whose statistics are `records` (n, D).

    `concentration` is that of the symmetric Dirichlet distribution of shares; `pooled` clients are made where a release
    is a mean, `simulated` ones where it is none."""

    knowledge: Knowledge
    images: DomainDataset
    records: Tensor
    concentration: float
    pooled: int
    simulated: int

    @classmethod
    def of(cls, knowledge: Knowledge, *, concentration: float, pooled: int, simulated: int) -> "ShadowClients":
        """Take all public images. Raises UsageError where none are known."""
        images = knowledge.public_images()
        return cls(
            knowledge=knowledge, images=images, records=knowledge.released_statistic.records(knowledge.statistics(images)),
            concentration=concentration, pooled=pooled, simulated=simulated,
        )  # fmt: skip

    def release(self, artifact: Artifact, *, images: int) -> Tensor:
        """The statistic of a release of a client of so many `images`, (D,); rows of single images are averaged."""
        return self.knowledge.released_statistic.release(artifact, images=images).mean(0)

    def are_means(self, rng: torch.Generator) -> bool:
        """Try out on two clients whether releases are means over images; without the method they are taken to be."""
        if self.knowledge.simulate is None:
            return True
        order = torch.randperm(len(self.images), generator=rng)
        clients = [order[:TRIED], order[-TRIED:]]
        spread = self.records.std(0, correction=0)
        spread = spread.clamp_min(1e-3 * float(spread[spread > 0].median()))
        held = [self.images.subset(rows) for rows in clients]
        for rows, made in zip(clients, self._bare(held, rng), strict=True):
            away = (self.release(made, images=len(rows)) - self.records[rows].mean(0)).abs() / spread
            if not isinstance(made, ImageStyles) and float(away.max()) > TOLERANCE:
                return False
        return True

    def pools(self, domain: str | None) -> Iterator[Pool]:
        """The sets of images to learn a client of `domain` ("mixed": of several) from; none of a single kind.

        Where the domain is known: its own images, those of all others, and all together."""
        domains, labels = self.images.domains, self.images.labels
        if domain == "mixed":
            everywhere = torch.ones(len(domains), dtype=torch.bool)
            count = len(self.knowledge.domain_names)
            yield self._pool("all domains", everywhere, domains, torch.zeros_like(domains), count=count, home=0)
            return
        home = self.images.domain_index(str(domain)) if domain in self.images.domain_names else -1
        own = domains == home
        sets = {"same domain": own, "other domains": ~own}
        if bool(own.any()) and not bool(own.all()):
            sets["all domains"] = torch.ones_like(own)
        for name, chosen in sets.items():
            if len(torch.unique(labels[chosen])) > 1:
                there = home if bool(own[chosen].any()) else None
                yield self._pool(name, chosen, labels, domains, count=len(self.knowledge.class_names), home=there)

    def _pool(self, name: str, chosen: Tensor, kinds: Tensor, homes: Tensor, *, count: int, home: int | None) -> Pool:
        records, kinds, homes = self.records[chosen], kinds[chosen], homes[chosen]
        placed, centers = records.clone(), dict[int, Tensor]()
        for there in torch.unique(homes).tolist():
            mine = homes == there
            centers[there] = _center(records[mine], kinds[mine])
            placed[mine] = about(records[mine], centers[there], self.knowledge.released_statistic)
        return Pool(
            name=name, images=self.images.subset(chosen), records=placed, kinds=kinds, homes=homes, count=count,
            home=home, center=None if home is None else centers[home],
        )  # fmt: skip

    def learned(self, pool: Pool, *, images: int, shown: int, means: bool, rng: torch.Generator) -> Learned:
        """Fit scores on all images of `pool`, and what they say of shares on shadow clients that had no part in it.

        Clients hold `images`, of which `shown` are in their release; `means` says that this is a mean over them."""
        released_statistic, defense_noise = (
            self.knowledge.released_statistic,
            self._defense_noise(pool, images, shown, child(rng, "blur")),
        )
        drawn = _noise(
            defense_noise, len(pool.records), child(rng, "noise"), times=shown
        )  # on one record: on a mean of these, V
        scorer, left_out = fit_scorer(pool.records + drawn, pool.kinds, pool.count)
        left_out = left_out - scorer.moved(drawn)
        if not means:
            reader, center = self._simulated(pool, images, rng, drawn)
            return Learned(scorer=scorer, reader=reader, center=center, released_statistic=released_statistic)
        homes, scores, shares = pool.of_clients(), [], []
        for home in homes:
            mine = (pool.homes == home).nonzero().flatten()
            count = self.pooled // len(homes)
            rows = mine[self._drawn(pool, mine, count, images, child(rng, home), distinct=False)]
            noise = _noise(defense_noise, count, child(rng, "noise", home))
            shift = (
                0.0 if defense_noise is None or pool.center is None else defense_noise.shift
            )  # else the releases' mean has it
            scores.append(left_out[rows[:, :shown]].mean(1) + scorer.moved(noise + shift))
            shares.append(shares_of(pool.kinds[rows], pool.count))
        reader = fit_reader(torch.cat(scores), torch.cat(shares))
        return Learned(scorer=scorer, reader=reader, center=pool.center, released_statistic=released_statistic)

    def _defense_noise(self, pool: Pool, images: int, shown: int, rng: torch.Generator) -> DefenseNoise | None:
        """What a defense does to a release of so many `images`; None where none acts.

        Of rows of single images, `shown` of which are averaged, the mean has that much less of the noise."""
        knowledge = self.knowledge
        if knowledge.defended is None:
            return None
        center = self.records.mean(0) if pool.center is None else pool.center
        if knowledge.shared is None or not isinstance(knowledge.shared(self.images, child(rng, "tried")), ImageStyles):
            return defense_noise_of_mean(knowledge, self.images, records=images, about=center, rng=rng)

        def read(artifact: Artifact) -> Tensor:
            return knowledge.released_statistic.about(knowledge.released_statistic.release(artifact), center)

        rows = defense_noise_of_rows(knowledge, self.images, made=styles_made(knowledge), read=read, rng=rng)
        return None if rows is None else DefenseNoise(shift=rows.shift, variance=rows.variance / shown)

    def _simulated(
        self, pool: Pool, images: int, rng: torch.Generator, drawn: Tensor
    ) -> tuple[SharesReader, Tensor | None]:
        """Learn from each half of the images, clients of one half being scored by a fit on the other.

        What such releases scatter about need not be the mean of images: it is the mean of these releases."""
        homes, seen, scores, shares = pool.of_clients(), list[Tensor](), list[Tensor](), list[Tensor]()
        records = pool.records + drawn
        half = torch.randperm(len(pool.kinds), generator=child(rng, "halves")) % 2
        for side in (0, 1):
            others = half != side
            scorer, _ = fit_scorer(records[others], pool.kinds[others], pool.count)
            for home in homes:
                mine, coins = ((pool.homes == home) & ~others).nonzero().flatten(), child(rng, side, home)
                fewer, count = min(images, len(mine) // 2), self.simulated // (2 * len(homes))
                rows = mine[self._drawn(pool, mine, count, fewer, coins, distinct=True)]
                made = self._made([pool.images.subset(part) for part in rows], child(coins, "made"))
                seen.append(torch.stack([self.release(one, images=fewer) for one in made]))
                scores.append(scorer(about(seen[-1], seen[-1].mean(0), self.knowledge.released_statistic)))
                shares.append(shares_of(pool.kinds[rows], pool.count))
        center = None if pool.center is None else torch.cat(seen).mean(0)
        return fit_reader(torch.cat(scores), torch.cat(shares)), center

    def _drawn(
        self, pool: Pool, mine: Tensor, count: int, images: int, rng: torch.Generator, *, distinct: bool
    ) -> Tensor:
        """Draw `count` clients from the images at `mine` (m,): positions in it, (count, images)."""
        kinds = pool.kinds[mine]
        shares = skewed_shares(
            count, pool.count, held=torch.unique(kinds), concentration=self.concentration, rng=child(rng, "shares")
        )
        return shadow_rows(kinds, shares, images, distinct=distinct, rng=child(rng, "rows"))

    def _bare(self, clients: Sequence[DomainDataset], rng: torch.Generator) -> list[Style]:
        """What they would release were there no defense."""
        if self.knowledge.defended is None or self.knowledge.shared is None:
            return self._made(clients, rng)
        found = [self.knowledge.shared(images, child(rng, number)) for number, images in enumerate(clients)]
        return [artifact for artifact in found if isinstance(artifact, Style)]

    def _made(self, clients: Sequence[DomainDataset], rng: torch.Generator) -> list[Style]:
        """What clients that hold these images would release, by the target's public code."""
        assert self.knowledge.simulate is not None
        view = self.knowledge.simulate(clients, rng)
        return [_style(view, f"client:{number}") for number in range(1, len(clients) + 1)]


def _noise(defense_noise: DefenseNoise | None, count: int, rng: torch.Generator, *, times: int = 1) -> Tensor:
    """Draw (count, D) of a defense's noise with `times` its variance; zeros (count, 1) where none acts."""
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


def about(statistics: Tensor, center: Tensor, released_statistic: ReleasedStatistic) -> Tensor:
    """Take statistics (n, D) about `center` (D,): first the squares in them (Reading.about), then all of it.

    Both are linear in the statistic. A channel's square moves with its mean by twice where that lies, so about anything
    else what a class does to it would differ from domain to domain."""
    return released_statistic.about(statistics, center) - released_statistic.about(center, center)


def _center(records: Tensor, kinds: Tensor) -> Tensor:
    """The mean of the kinds' means, which clients of even shares scatter about."""
    return torch.stack([records[kinds == kind].mean(0) for kind in torch.unique(kinds)]).mean(0)

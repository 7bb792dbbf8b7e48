"""Shadow likelihood: membership in a release that is not a mean, with one Gaussian per simulated hypothesis.

LiRA (Carlini et al., S&P 2022, https://arxiv.org/abs/2112.03570, section V) fits a Gaussian per candidate to a number
that depends on membership, with and without the candidate. Here the number is s = u.v/|v|, the whitened release along
the whitened candidate, as in fdgsec.attacks.statistics.tracing. Shadow clients of public images *without* the candidate
are shared by all candidates. The clients *with* it are the same clients with one image exchanged for it. The randomness
of drawing the client then cancels in the difference, and a few clients suffice to estimate how far the candidate moves
s. The target's public method is run on both."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fdgsec.attacks.statistics.domain_populations import PlacedCandidates, Population
from fdgsec.data.domains import DomainDataset, join
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import tracked
from fdgsec.runtime.random_streams import child
from fdgsec.threats.adversary import Knowledge


def _directions(v: Tensor) -> tuple[Tensor, Tensor]:
    length = torch.linalg.vector_norm(v, dim=-1).clamp_min(torch.finfo(torch.float64).tiny)
    return v / length.unsqueeze(-1), length


def shifts(before: Tensor, after: Tensor, v: Tensor) -> Tensor:
    """The shift of the release along each candidate when it joins: (after - before).v/|v|, (T, k).

    `before` and `after` are (T, k, D) whitened releases of k pairs of shadow clients, `v` (T, D)."""
    along, _ = _directions(v)
    moved: Tensor = ((after - before) * along.unsqueeze(1)).sum(-1)
    return moved


def shrink_shifts(found: Tensor, tried: Tensor, v: Tensor) -> Tensor:
    """Estimate the expected shift of each candidate `v` (G, D), (G,), from the shifts `found` (T, k) of those `tried`
    (T,).

    A mean moves by |v|/n. Each mean of k shifts is therefore shrunk toward the line a|v| through all that were tried,
    by the share of its distance from the line that is simulation noise (the usual shrinkage of one-way random effects).
    Candidates that were not tried lie on the line. Raises ValueError for fewer than two shifts of a candidate, whose
    noise cannot be estimated."""
    if found.ndim != 2 or found.shape[1] < 2 or not len(found) or len(found) != len(tried):
        raise ValueError(
            f"shifts must be (T, k), k two or more, of T candidates; got {tuple(found.shape)} and {len(tried)}."
        )
    _, length = _directions(v)
    own, mine = found.mean(1), length[tried]
    line = length * (own @ mine / (mine @ mine))
    noise = float(found.var(1, correction=1).mean()) / found.shape[1]
    total = float((own - line[tried]).square().mean())
    kept = max(0.0, 1 - noise / total) if total > 0 else 0.0
    shift = line.clone()
    shift[tried] += kept * (own - line[tried])
    return shift


@dataclass(frozen=True, kw_only=True, eq=False)
class ShadowRatio:
    """The simulated distributions of s for candidates `v` (G, D).

    Non-members follow N(center, spread^2), members N(center + shift, spread^2). `center` and `shift` are (G,). `spread`
    is shared by all candidates, because a hundred shadows estimate a common variance well and a variance per candidate
    poorly."""

    v: Tensor
    center: Tensor
    shift: Tensor
    spread: float

    def __call__(self, u: Tensor, rows: Tensor) -> Tensor:
        """The log likelihood ratio of the candidates `rows` (m,) for a release `u` (D,): (m,), larger means member.

        ln N(s; center + shift, spread^2) - ln N(s; center, spread^2) = shift (s - center - shift/2) / spread^2."""
        along, _ = _directions(self.v[rows])
        shift = self.shift[rows]
        ratio: Tensor = shift * (along @ u - self.center[rows] - shift / 2) / self.spread**2
        return ratio


def fit_shadow_ratio(
    out: Tensor, found: Tensor, tried: Tensor, v: Tensor, *, reference: int | None = None
) -> ShadowRatio:
    """Fit both distributions from the releases `out` (S, D) of shadow clients and the shifts of the candidates `tried`.

    Where the shadow clients are drawn from `reference` public images, a candidate from elsewhere is evidence of how the
    victim's population differs from theirs: by v/(reference + 1), under a flat prior (`tracing.likelihood_ratio`).
    Raises ValueError for fewer than two shadow clients, and where no release varies."""
    if out.ndim != 2 or len(out) < 2:
        raise ValueError(f"shadow clients' releases must be (S, D) of two or more; got {tuple(out.shape)}.")
    along, length = _directions(v)
    projected = along @ out.T  # (G, S)
    spread = float(projected.var(1, correction=1).mean()) ** 0.5
    if spread == 0:
        raise ValueError(f"the releases of {len(out)} shadow clients are all alike; nothing can be simulated.")
    pull = 0.0 if reference is None else 1 / (reference + 1)
    return ShadowRatio(
        v=v, center=projected.mean(1) + pull * length, shift=shrink_shifts(found, tried, v), spread=spread
    )


FEDERATION = 100
"""Number of shadow clients simulated together: a server that clusters styles compares all pairs of clients."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ShadowSimulation:
    """Simulated clients of one domain with `records` images each, drawn from the public `images`.

    `known` says that the victims' images are these too (in a control), so that their mean is known exactly."""

    knowledge: Knowledge
    population: Population
    images: DomainDataset
    records: int
    known: bool = False

    def clients(self, count: int, rng: torch.Generator) -> list[DomainDataset]:
        """Draw `count` clients. Raises UsageError where there are too few public images for one."""
        if len(self.images) <= self.records:
            raise UsageError(
                f"a shadow client of {self.records} images needs more public ones; there are {len(self.images)}."
            )
        bare = replace(self.images, attributes={})  # candidates have no attributes, and are joined with these
        return [bare.subset(torch.randperm(len(bare), generator=rng)[: self.records]) for _ in range(count)]

    def releases(self, clients: Sequence[DomainDataset], rng: torch.Generator) -> Tensor:
        """Run the method among `clients` and return each client's release, t centered on the population's mean: (n, D).

        Raises UsageError where the adversary cannot run it, or a client releases nothing."""
        simulate, released_statistic = self.knowledge.simulate, self.knowledge.released_statistic
        if simulate is None:
            raise UsageError(
                "membership in a style that is not a mean is simulated; the adversary cannot run the target."
            )
        found = []
        for start in tracked(range(0, len(clients), FEDERATION), "simulated clients"):
            together = clients[start : start + FEDERATION]
            view = simulate(together, child(rng, start))
            for place, images in enumerate(together, 1):
                artifact = view.artifact(f"client:{place}")
                if artifact is None:
                    raise UsageError("a simulated client released nothing; membership needs what it would release.")
                found.append(released_statistic.release(artifact, images=len(images))[0])
        return released_statistic.about(torch.stack(found), self.population.about)

    def test(
        self, candidates: PlacedCandidates, *, shadows: int, inserted: int, tried: int, rng: torch.Generator
    ) -> "SimulatedTest":
        """Simulate both hypotheses: `shadows` clients without candidates, and `tried` candidates in `inserted` ones
        each.

        Releases are whitened as images are. The covariance of the shadows' own releases would be better if there were
        enough public images. Clients that share most of their images differ by their clusters more than by their
        images."""
        without = self.clients(shadows, child(rng, "without"))
        before = self.releases(without, child(rng, "simulated without"))
        child_rng, images = child(rng, "with"), candidates.images
        chosen = torch.randperm(len(images), generator=child_rng)[:tried].sort().values
        pairs = torch.arange(len(chosen) * inserted).remainder(len(without)).reshape(len(chosen), inserted)
        joined = [
            _exchange_one(without[int(pair)], images.subset(candidate.reshape(1)), child_rng)
            for candidate, mine in zip(chosen, pairs, strict=True)
            for pair in mine
        ]
        after = self.releases(joined, child(rng, "simulated with"))
        whiten = self.population.whiten
        v, out = whiten(candidates.statistics), whiten(before)
        found = shifts(out[pairs], whiten(after).reshape(*pairs.shape, -1), v[chosen])
        reference = None if self.known else len(self.images)
        ratio = fit_shadow_ratio(out, found, chosen, v, reference=reference)
        return SimulatedTest(population=self.population, ratio=ratio)


@dataclass(frozen=True, kw_only=True, eq=False)
class SimulatedTest:
    """The likelihood ratio of each candidate for a release, whitened as the shadows' releases were."""

    population: Population
    ratio: ShadowRatio

    def __call__(self, release: Tensor, candidates: Tensor) -> Tensor:
        """Score the `candidates` (m,), by number, against a release (D,), t centered on the population's mean: (m,)."""
        return self.ratio(self.population.whiten(release), candidates)


def _exchange_one(client: DomainDataset, candidate: DomainDataset, rng: torch.Generator) -> DomainDataset:
    """Exchange a random image of `client` for the candidate."""
    place = int(torch.randint(len(client), (1,), generator=rng))
    return join([client.subset(torch.arange(len(client)) != place), replace(candidate, attributes={})])

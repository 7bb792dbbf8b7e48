"""Pool exposure: what rows of single images, published anew every round, reveal beyond each image's style.

FedAlign's pool (algorithm 1; eqs. 7 to 10) holds the color statistics of a share r of each client's images, fresh ones
every round. Four questions, for FedAlign and any other release with one row per image:

*exposure*: for which of its n images has a client published a row after R exchanges? Rows are distinguished by their
values, and each is assigned to the nearest of the candidate images. If k are drawn afresh each time, 1 - (1 - k/n)^R of
the images have been published.

*size*: how many images does a client hold? The number for which the public method sends as many rows, by a line through
runs of it on images that the adversary has. The baseline without a client's release is the geometric mean of the
others' sizes.

*palette* (encoder `pixels` alone): mean and std of red, green and blue are a palette, three Gaussians cut off at 0 and
255. It is compared with the colors of every candidate.

*order*: are neighboring rows similar? If so, an image's neighbors in the release identify it, and a loader that
sorts by class reveals the classes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log
from typing import ClassVar

import torch
from torch import Tensor

from fdgsec.attacks.pool_exposure.control import planted_pools
from fdgsec.attacks.pool_exposure.row_order import lag_correlation, neighbor_distances
from fdgsec.attacks.statistics.defense_noise import ACCOUNTED, RowMetric, row_metric
from fdgsec.data.domains import DomainDataset
from fdgsec.metrics.measurement import Measurement
from fdgsec.nn.networks.classifiers import IMAGENET_MEAN, IMAGENET_STD
from fdgsec.nn.styles.encoders import Pixels
from fdgsec.runtime.random_streams import child, derangement
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Answer, Exposure, InferredSize, Membership, Palettes, Prediction, Ranking
from fdgsec.threats.attack import Answers, Case, PositiveControl, Question, TargetFacts
from fdgsec.threats.judging.groups import unavailable
from fdgsec.threats.judging.palettes import gaussian_palettes, palette_distances, palettes_of
from fdgsec.threats.judging.row_exposure import SIZE

SIMULATED = 12
"""Clients of increasing size whose pools are simulated."""
AT_ONCE = 64  # rows that are compared with the candidates


@dataclass(frozen=True, kw_only=True)
class PoolExposure:
    """Measure exposure and sizes over `rounds` exchanges, and palettes and order in single rows.

    Exposure and sizes use `clients` clients per domain of each of `sizes` images; palettes and order use the run's own
    rows and `per_class` rows of every class. None takes 10 clients, 3 and 10 rounds (profile quick), or 30 clients, 10
    and 50 rounds (full)."""

    name: ClassVar[str] = "pool-exposure"
    reads: ClassVar[frozenset[str]] = frozenset({"ImageStyles"})
    needs: ClassVar[frozenset[str]] = frozenset({"encoder"})
    accounts_for: ClassVar[frozenset[str]] = ACCOUNTED
    sizes: tuple[int, ...] = (40, 130)
    clients: int | None = None
    rounds: tuple[int, ...] | None = None
    per_class: int = 20
    gallery: int = 1000

    def plan(self, facts: TargetFacts) -> Sequence[Question]:
        """Ask for clients over several exchanges, for the run as it is, and for many rows.

        Raises UsageError where no images are known, because palettes need a baseline guess without the release."""
        facts.check_images()
        full = facts.profile == "full"
        clients = self.clients if self.clients is not None else (30 if full else 10)
        rounds = self.rounds if self.rounds is not None else ((10, 50) if full else (3, 10))
        return [
            *(
                Question(kind="rounds", count=clients, records=size, rounds=times)
                for times in rounds
                for size in self.sizes
            ),
            Question(kind="released", gallery=self.gallery),
            Question(kind="as_if_released", per_class=self.per_class),
        ]

    def run(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Infer which images were published, how many a client holds, their colors, and whether the row order is
        informative."""
        metric = _metric(knowledge)
        exposures = [
            answer
            for number in _known_size_cases(cases)
            for answer in _exposure_answers(number, cases[number], knowledge, metric)
        ]
        sizes = _sizes(cases, _row_count_line(knowledge, child(rng, "simulated")))
        looked_up = _lookup_answers(cases, knowledge, metric, None)
        return [*exposures, *sizes, *looked_up, *_orders(cases, child(rng, "orders"))]

    def negative_control(self, cases: Sequence[Case], knowledge: Knowledge, rng: torch.Generator) -> Answers:
        """Answer exposure from the rows of another client of the same slice, and look-ups with the rows of a client
        permuted.

        Sizes are left out: clients of one slice hold equally many images, so an exchange would change nothing."""
        answers: list[Answer] = []
        told, metric = _known_size_cases(cases), _metric(knowledge)
        for where in dict.fromkeys(_population(cases[number]) for number in told):
            same = [number for number in told if _population(cases[number]) == where]
            for here, there in zip(same, derangement(len(same), rng).tolist(), strict=True):
                foreign = replace(cases[here], views=cases[same[there]].views, victim=cases[same[there]].victim)
                published = _published_candidates(foreign, knowledge, metric)[0].to(torch.float64)
                answers.append(Membership(case=here, scores=published, slice={"rounds": len(foreign.views)}))
        lookups = _lookup_answers(cases, knowledge, metric, child(rng, "rows"))
        return [*answers, *(answer for answer in lookups if isinstance(answer, Ranking))]

    def missing(self, cases: Sequence[Case], knowledge: Knowledge) -> Sequence[Measurement]:
        """Report the parts for which the adversary knows too little."""
        rows: list[Measurement] = []
        asked = _cases_of(cases, "rounds")
        if asked and len(_known_size_cases(cases)) < len(asked):
            rows += unavailable(["exposed_fraction"], {}, "the adversary does not know how many images a client holds")
        if asked and knowledge.simulate is None:
            reason = "the adversary cannot run the public method, hence does not know how many rows it sends"
            rows += unavailable(["relative_error"], {"of": "client size"}, reason)
        elif asked and _one_size(cases):
            reason = (
                "all clients of these exchanges hold equally many images; ask for several sizes that the data allow"
            )
            rows += unavailable(["relative_error"], {"of": "client size"}, reason)
        if knowledge.encoder != Pixels.name and len(asked) < len(cases):
            reason = f"statistics of {knowledge.encoder} have no closed form for colors; those of {Pixels.name} have"
            rows += unavailable(["palette_emd"], {}, reason)
        return rows

    def positive_control(self, knowledge: Knowledge, rng: torch.Generator) -> PositiveControl:
        """Noisy single-color images with known exposure and order (fdgsec.attacks.pool_exposure.control)."""
        return planted_pools(knowledge, rng)


def _cases_of(cases: Sequence[Case], question: str) -> list[int]:
    return [number for number, case in enumerate(cases) if case.question == question]


def _known_size_cases(cases: Sequence[Case]) -> list[int]:
    """The clients over several exchanges whose number of images is known."""
    return [number for number in _cases_of(cases, "rounds") if cases[number].records is not None]


def _population(case: Case) -> tuple[object, ...]:
    return (len(case.views), *sorted(case.slice.items()))


def _styles(images: DomainDataset, knowledge: Knowledge) -> Tensor:
    """The style of every image as per-image releases have it, (n, 2C)."""
    return torch.cat(knowledge.statistics(images).style(unbiased=True), dim=1)


def _metric(knowledge: Knowledge) -> RowMetric | None:
    """The metric between rows and images under a defense; None without one."""
    return None if knowledge.defended is None else row_metric(knowledge, knowledge.public_images())


def _published_candidates(case: Case, knowledge: Knowledge, metric: RowMetric | None) -> tuple[Tensor, int]:
    """Which candidates (G,) the distinct rows are nearest to, and the number of distinct rows.

    Every coordinate is scaled by its spread, or under a defense by its noise."""
    assert case.candidates is not None
    known = _styles(case.candidates, knowledge)
    rows = [torch.cat(case.released(run), dim=1) for run in range(len(case.views))]
    distinct: Tensor = torch.cat(rows).unique(dim=0)
    published = torch.zeros(len(known), dtype=torch.bool)
    scale = known.std(0, correction=0).clamp_min(1e-9)
    placed, seen = (
        (known / scale, distinct / scale) if metric is None else (metric.placed(known), metric.seen(distinct))
    )
    for part in seen.split(AT_ONCE):
        published[torch.cdist(part, placed).argmin(1)] = True
    return published, len(distinct)


def _exposure_answers(number: int, case: Case, knowledge: Knowledge, metric: RowMetric | None) -> list[Answer]:
    """The images that were published, and the expected share; under a defense repeated rows of one image differ."""
    assert case.records is not None
    published, distinct = _published_candidates(case, knowledge, metric)
    where, times = {"rounds": len(case.views)}, len(case.views)
    expected = 1 - (1 - len(case.released()[0]) / case.records) ** times
    told = {"expected_exposed_fraction": expected}
    told |= {"distinct_fraction": distinct / case.records} if metric is None else {}
    return [
        Exposure(case=number, published=published, images=case.records, slice=where),
        *(Prediction(case=number, name=name, value=value, slice=where) for name, value in told.items()),
    ]


def _row_count_line(knowledge: Knowledge, rng: torch.Generator) -> tuple[float, float] | None:
    """Coefficients (a, b) of the number of rows a + b n that the public method sends for n images.

    Fitted to runs on the adversary's images. A share that is rounded down has a = -1/2, one that is rounded up 1/2.
    None where the method cannot be run, or always sends the same number."""
    images = knowledge.public_images()
    if knowledge.simulate is None or len(images) < SIMULATED:
        return None
    sizes = [len(images) * step // SIMULATED for step in range(1, SIMULATED + 1)]
    view = knowledge.simulate([images.subset(torch.arange(size)) for size in sizes], rng)
    sent = [view.styles(f"client:{number}") for number in range(1, SIMULATED + 1)]
    rows = torch.tensor([0 if styles is None else len(styles[0]) for styles in sent], dtype=torch.float64)
    held = torch.tensor(sizes, dtype=torch.float64)
    slope = float(((held - held.mean()) * rows).sum() / (held - held.mean()).square().sum())
    return (float(rows.mean()) - slope * float(held.mean()), slope) if slope > 0 else None


def _one_size(cases: Sequence[Case]) -> bool:
    """Whether all clients of the exchanges hold equally many images, so that others tell a client's size."""
    return len({cases[number].slice.get(SIZE) for number in _cases_of(cases, "rounds")}) < 2


def _sizes(cases: Sequence[Case], publishing: tuple[float, float] | None) -> list[InferredSize]:
    if publishing is None or _one_size(cases):
        return []
    sent = {number: len(cases[number].released()[0]) for number in _cases_of(cases, "rounds")}
    found = {number: max((rows - publishing[0]) / publishing[1], 1.0) for number, rows in sent.items()}
    total = sum(log(size) for size in found.values())
    return [
        InferredSize(
            case=number, images=size, without=exp((total - log(size)) / (len(found) - 1)),
            slice={"rounds": len(cases[number].views), "of": "client size"},
        )
        for number, size in found.items() if len(found) > 1
    ]  # fmt: skip


def _lookup_answers(
    cases: Sequence[Case], knowledge: Knowledge, metric: RowMetric | None, ring: torch.Generator | None
) -> list[Answer]:
    """Compare rows with candidates, by palette and by their neighbors; with `ring`, the rows of a case are permuted
    first.

    Under a defense a palette is that of the most likely clean row."""
    answers: list[Answer] = []
    galleries: dict[int, Tensor] = {}  # shared by the clients of one run
    blind: dict[str | None, Tensor] = {}
    for number in (*_cases_of(cases, "released"), *_cases_of(cases, "as_if_released")):
        case = cases[number]
        rows = torch.cat(case.released(), dim=1)
        rows = rows if ring is None or not len(rows) else rows[derangement(len(rows), ring)]
        kind = {"rows": case.question}
        if knowledge.encoder == Pixels.name and len(rows):
            likely = (
                rows if metric is None else metric.likely(rows, _styles(_public(case.domain, knowledge), knowledge))
            )
            palettes, gallery = gaussian_palettes(*_colors(likely)), case.candidates
            if gallery is not None:
                if id(gallery) not in galleries:
                    galleries[id(gallery)] = palettes_of(gallery)
                apart = palette_distances(palettes, galleries[id(gallery)])
                answers.append(Ranking(case=number, distances=apart, slice={**kind, "by": "palette"}))
            if case.domain not in blind:
                blind[case.domain] = palettes_of(_public(case.domain, knowledge)).quantile(0.5, dim=0)
            answers.append(Palettes(case=number, palettes=palettes, without=blind[case.domain], slice=kind))
        # among candidates of several domains, neighbors would reveal the domain instead of the order
        if case.question == "as_if_released" and case.candidates is not None and len(rows) > 2:
            apart = neighbor_distances(rows, _styles(case.candidates, knowledge))
            answers.append(Ranking(case=number, distances=apart, slice={**kind, "by": "neighbors"}))
    return answers


def _colors(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Means and stds (R, 3) of the channels in [0, 1], from rows of normalized ones."""
    mean, std = rows.chunk(2, dim=1)
    scale = torch.tensor(IMAGENET_STD, dtype=torch.float64)
    return mean * scale + torch.tensor(IMAGENET_MEAN, dtype=torch.float64), std * scale


def _public(domain: str | None, knowledge: Knowledge) -> DomainDataset:
    """The public images, restricted to the victim's domain where it is known."""
    images = knowledge.public_images()
    known = domain is not None and domain in images.domain_names and len(images.of_domain(domain)) > 0
    return images.of_domain(domain) if known and domain is not None else images


def _orders(cases: Sequence[Case], rng: torch.Generator) -> list[Prediction]:
    """The similarity of neighboring rows, and its permutation p-value."""
    found = []
    for number in _cases_of(cases, "as_if_released"):
        rows = torch.cat(cases[number].released(), dim=1)
        if len(rows) > 2:
            values = lag_correlation(rows, rng=child(rng, number))
            for name, value in zip(("lag1_autocorrelation", "lag1_p_value"), values, strict=True):
                found.append(Prediction(case=number, name=name, value=value))
    return found

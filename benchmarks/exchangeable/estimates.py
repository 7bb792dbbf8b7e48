"""Nulls of answers that estimate: shares, statistics, sizes, images, and the harm of a forgery."""

import torch
from torch import Tensor

from benchmarks.exchangeable.design import DOUBLE, Design, Draw, case, cases, normal, order, shown
from fdgsec.threats.answers import (
    Answer,
    Exposure,
    Harm,
    Harmed,
    InferredSize,
    Outcome,
    Palettes,
    Presence,
    Proportions,
    Reconstructions,
    Recovered,
)
from fdgsec.threats.attack import Case, Truth

SIDE = 12
"""Pixels along a side of a reconstructed image."""
GALLERY = 25


def designs() -> list[Design]:
    """All designs of such answers."""
    return [*_client_shares(), *_estimates(), *_exposures(), *_images(), *_harms()]


def _client_shares() -> list[Design]:
    def shares(rng: torch.Generator, clients: int, kinds: int) -> Tensor:
        drawn = -torch.rand(clients, kinds, generator=rng, dtype=DOUBLE).clamp_min(1e-12).log()
        kept = drawn * (torch.rand(clients, kinds, generator=rng) < 0.6)
        kept[kept.sum(1) == 0, 0] = 1.0
        return kept / kept.sum(1, keepdim=True)

    def draw(clients: int, kinds: int, *, dependent: bool) -> Draw:
        def drawn(rng: torch.Generator) -> tuple[list[Answer], list[Case], list[Truth]]:
            true, estimate, without = (shares(rng, clients, kinds) for _ in range(3))
            scores = normal(clients, 1 if dependent else kinds, rng=rng).expand(-1, kinds)
            answers: list[Answer] = [
                Proportions(case=number, estimate=estimate[number], without=without[number])
                for number in range(clients)
            ]
            answers += [Presence(case=number, scores=scores[number]) for number in range(clients)]
            return answers, cases(clients), [Truth(proportions=one) for one in true]

        return drawn

    return [
        Design(
            kind="shares", draw=draw(clients, kinds, dependent=dependent),
            name=f"{clients} clients, {kinds} kinds{', one score for all' if dependent else ''}",
        )
        for clients, kinds, dependent in (
            (3, 7, False), (5, 7, False), (6, 7, False), (10, 7, False), (12, 7, False), (30, 7, False), (10, 2, False),
            (6, 7, True), (30, 7, True),
        )
    ]  # fmt: skip


def _estimates() -> list[Design]:
    def recovered(clients: int, rows: int, *, shared: bool) -> Draw:
        def drawn(rng: torch.Generator) -> tuple[list[Answer], list[Case], list[Truth]]:
            answers, truths = list[Answer](), list[Truth]()
            for number in range(clients):
                guesses = normal(2, 8, rng=rng)
                statistic = guesses[1].expand(rows, -1) if shared else normal(rows, 8, rng=rng)
                answers.append(Recovered(case=number, statistic=statistic, without=guesses[0]))
                truths.append(Truth(statistic=normal(rows, 8, rng=rng)))
            return answers, cases(clients), truths

        return drawn

    def sized(clients: int) -> Draw:
        def drawn(rng: torch.Generator) -> tuple[list[Answer], list[Case], list[Truth]]:
            sizes = (3 + 0.5 * normal(3, clients, rng=rng)).exp()
            answers: list[Answer] = [
                InferredSize(case=number, images=float(sizes[0, number]), without=float(sizes[1, number]))
                for number in range(clients)
            ]
            asked = [case(number, records=max(1, round(float(sizes[2, 0])))) for number in range(clients)]
            return answers, asked, [Truth() for _ in asked]

        return drawn

    asked = [
        (6, 1, True), (12, 1, True), (50, 1, True), (3, 20, False), (12, 20, False), (3, 20, True), (12, 20, True),
    ]  # fmt: skip
    return [
        *(
            Design(
                kind="recovered", draw=recovered(clients, rows, shared=shared),
                name=f"{clients} clients x {rows} records, {'one guess each' if shared else 'a guess per record'}",
            )
            for clients, rows, shared in asked
        ),
        *(Design(kind="size", name=f"{clients} clients", draw=sized(clients)) for clients in (6, 12, 30)),
    ]  # fmt: skip


def _exposures() -> list[Design]:
    def draw(clients: int, images: int, published: int) -> Draw:
        def drawn(rng: torch.Generator) -> tuple[list[Answer], list[Case], list[Truth]]:
            answers, truths = list[Answer](), list[Truth]()
            for number in range(clients):
                said = order(2 * images, rng) < published
                answers.append(Exposure(case=number, published=said, images=images))
                truths.append(Truth(members=order(2 * images, rng) < published))
            return answers, cases(clients), truths

        return drawn

    return [
        Design(
            kind="exposure", name=f"{clients} clients, {published} of {images} images published, of {2 * images}",
            draw=draw(clients, images, published),
        )
        for clients, images, published in ((1, 40, 20), (3, 40, 20), (6, 40, 2), (12, 40, 40))
    ]  # fmt: skip


def _images() -> list[Design]:
    def palettes(clients: int, rows: int) -> Draw:
        def drawn(rng: torch.Generator) -> tuple[list[Answer], list[Case], list[Truth]]:
            answers, truths = list[Answer](), list[Truth]()
            for number in range(clients):
                colors = torch.rand(rows + 2, 3, SIDE, SIDE, generator=rng)
                made = colors.flatten(2).sort(2).values.to(DOUBLE)
                guess = made[-2].expand(rows, -1, -1)
                answers.append(Palettes(case=number, palettes=guess, without=made[-1]))
                truths.append(Truth(images=(255 * colors[:rows]).to(torch.uint8)))
            return answers, cases(clients), truths

        return drawn

    def reconstructions(clients: int, rows: int, *, ordered: bool, shared: bool) -> Draw:
        def drawn(rng: torch.Generator) -> tuple[list[Answer], list[Case], list[Truth]]:
            answers, asked, truths = list[Answer](), list[Case](), list[Truth]()
            for number in range(clients):
                true, guess, control = torch.rand(3, rows, 3, SIDE, SIDE, generator=rng)
                others = torch.randint(256, (GALLERY - rows, 3, SIDE, SIDE), generator=rng, dtype=torch.uint8)
                truth, places = (256 * true).to(torch.uint8), order(GALLERY, rng)
                gallery = shown(torch.cat([truth, others])[places])
                said = [images[:1].expand_as(images).clone() if shared else images for images in (guess, control)]
                answers.append(Reconstructions(case=number, images=said[0], controls={"B3": said[1]}, ordered=ordered))
                asked.append(case(number, candidates=gallery))
                truths.append(Truth(images=truth, rows=places.argsort()[:rows]))
            return answers, asked, truths

        return drawn

    return [
        *(
            Design(
                kind="palettes", draw=palettes(clients, rows), name=f"{clients} clients x {rows} rows, one guess each"
            )
            for clients, rows in ((6, 1), (12, 1), (30, 1), (3, 10), (12, 10))
        ),
        *(
            Design(
                kind="reconstructions", repeats=300,
                name=f"{clients} clients x {rows} rows, {guess}{'' if ordered else ', unordered'}",
                draw=reconstructions(clients, rows, ordered=ordered, shared=guess == "one guess each"),
            )
            for clients, rows, ordered, guess in (
                (1, 12, True, "each row"), (3, 4, True, "each row"), (12, 1, True, "each row"),
                (3, 10, True, "one guess each"), (12, 4, False, "each row"),
            )
        ),
    ]  # fmt: skip


def _harms() -> list[Design]:
    def draw(seeds: int, spread: float, images: int) -> Draw:
        def drawn(rng: torch.Generator) -> tuple[list[Answer], list[Case], list[Truth]]:
            base = 0.7 + spread * normal(seeds, 1, rng=rng)
            runs = ((base + spread * normal(seeds, 2, rng=rng)).clamp(0, 1) * images).round() / images
            truths = []
            for honest, hostile in runs.tolist():
                outcomes = [Outcome(accuracy={"unseen": one}, transcript_sha256=str(one)) for one in (honest, hostile)]
                harm = Harm(honest=outcomes[0], hostile=outcomes[1], displacement={"model": 0.1}, blind={"unseen": 0.2})
                truths.append(Truth(harm=harm))
            return [Harmed(case=number) for number in range(seeds)], cases(seeds), truths

        return drawn

    return [
        Design(
            kind="harm", name=f"{seeds} seeds, accuracies of {images} images, spread {spread:g}",
            draw=draw(seeds, spread, images),
        )
        for seeds, spread, images in (
            (3, 0.03, 400), (3, 0.003, 200), (5, 0.03, 400), (5, 0.003, 200), (6, 0.03, 400), (10, 0.03, 400),
            (10, 0.003, 200), (21, 0.03, 400),
        )
    ]  # fmt: skip

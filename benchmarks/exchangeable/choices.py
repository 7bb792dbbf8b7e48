"""Nulls of answers that choose: candidates, partners, labels, members."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.exchangeable.design import DOUBLE, Design, Draw, case, cases, normal, nothing_but_images, order
from fdgsec.threats.answers import Answer, Labels, MemberList, Membership, Ranking
from fdgsec.threats.attack import Case, QuestionKind, Truth


def designs() -> list[Design]:
    """All designs of such answers."""
    return [*_rankings(), *_linkages(), *_labelings(), *_memberships(), *_lists()]


def _rankings() -> list[Design]:
    def draw(clients: int, rows: int, gallery: int, guess: str) -> Draw:
        def drawn(rng: torch.Generator) -> tuple[list[Answer], list[Case], list[Truth]]:
            answers = list[Answer]()
            for number in range(clients):
                distances = torch.rand(rows, gallery, generator=rng)
                if guess == "one order":
                    distances = distances[:1].expand(rows, -1)
                elif guess == "five levels":
                    distances = (5 * distances).floor()
                elif guess == "one to one":
                    distances = distances + 1
                    distances[torch.arange(rows), order(gallery, rng)[:rows]] = 0.0
                answers.append(Ranking(case=number, distances=distances))
            return answers, cases(clients), [Truth(rows=order(gallery, rng)[:rows]) for _ in range(clients)]

        return drawn

    asked = [
        (1, 105, 105, "each row"), (30, 1, 105, "each row"), (30, 1, 30, "each row"), (6, 1, 20, "each row"),
        (3, 20, 40, "each row"), (6, 20, 40, "each row"), (12, 20, 40, "each row"), (12, 2, 40, "each row"),
        (12, 20, 40, "one order"), (12, 20, 40, "five levels"), (1, 10, 10, "one to one"), (1, 4, 4, "one to one"),
        (1, 40, 40, "one to one"), (12, 4, 4, "one to one"), (12, 20, 40, "one to one"),
    ]  # fmt: skip
    return [
        Design(
            kind="ranking", draw=draw(clients, rows, gallery, guess),
            name=f"{clients} clients x {rows} rows, {gallery} candidates, {guess}",
        )
        for clients, rows, gallery, guess in asked
    ]  # fmt: skip


def _linkages() -> list[Design]:
    def draw(sizes: Sequence[int], levels: int, *, far: float = 0.0) -> Draw:
        def drawn(rng: torch.Generator) -> tuple[list[Answer], list[Case], list[Truth]]:
            clients = sum(sizes)
            distances = torch.rand(clients, clients, generator=rng)
            if levels:
                distances = (levels * distances).floor()
            elif far:
                distances = (distances < far).to(DOUBLE)
            answers: list[Answer] = [
                Ranking(case=number, distances=distances[number : number + 1], of="partner")
                for number in range(clients)
            ]
            domains = [part.tolist() for part in torch.arange(clients).split(list(sizes))]
            truths = [
                Truth(partner=domain[place], alike=domain if len(sizes) > 1 else None)
                for domain in domains
                for place in order(len(domain), rng).tolist()
            ]
            return answers, cases(clients), truths

        return drawn

    unequal = {
        "7 clients, 2 of one domain": (2, 1, 1, 1, 1, 1), "12 clients in domains of 2 and 1": (2,) * 4 + (1,) * 4,
        "41 clients in domains of 20 and 3": (20, *(3,) * 7),
    }  # fmt: skip
    return [
        *(
            Design(
                kind="linkage", draw=draw((clients,), levels),
                name=f"{clients} clients{f', {levels} levels' if levels else ''}",
            )
            for clients, levels in ((3, 0), (4, 0), (5, 0), (6, 0), (10, 0), (10, 4), (12, 0), (30, 0))
        ),
        *(Design(kind="linkage", name=name, draw=draw(sizes, 0)) for name, sizes in unequal.items()),
        Design(kind="linkage", name="30 clients, most equally near", draw=draw((30,), 0, far=0.15)),
    ]  # fmt: skip


def _labelings() -> list[Design]:
    def draw(clients: int, rows: int, shares: Sequence[float], guess: str) -> Draw:
        prior = torch.tensor(shares, dtype=DOUBLE)

        def labels(rng: torch.Generator, count: int = rows) -> Tensor:
            return torch.multinomial(prior, count, replacement=True, generator=rng)

        def drawn(rng: torch.Generator) -> tuple[list[Answer], list[Case], list[Truth]]:
            said = [labels(rng) for _ in range(clients)]
            if guess == "one per client":
                said = [labels(rng, 1).expand(rows) for _ in range(clients)]
            elif guess == "the majority":
                said = [torch.full((rows,), int(prior.argmax())) for _ in range(clients)]
            answers: list[Answer] = [
                Labels(case=number, predicted=predicted, of="labels", classes=len(shares))
                for number, predicted in enumerate(said)
            ]
            return answers, cases(clients), [Truth(labels=labels(rng)) for _ in range(clients)]

        return drawn

    even, skewed, two = [1 / 7] * 7, [0.5, 0.2, 0.1, 0.08, 0.06, 0.04, 0.02], [0.9, 0.1]
    asked = [
        (1, 40, even, "each row"), (1, 40, skewed, "each row"), (1, 200, skewed, "each row"), (1, 200, two, "each row"),
        (3, 40, skewed, "each row"), (6, 40, skewed, "each row"), (12, 20, skewed, "each row"),
        (12, 20, skewed, "one per client"), (3, 40, skewed, "one per client"), (1, 200, skewed, "the majority"),
    ]  # fmt: skip
    named = {7: "7 classes", 2: "2 classes"}
    return [
        *(
            Design(
                kind="labels", draw=draw(clients, rows, shares, guess),
                name=f"{clients} clients x {rows} rows, {named[len(shares)]} up to {max(shares):.0%}, guessed {guess}",
            )
            for clients, rows, shares, guess in asked
        ),
        *_mixed_classes(),
        *_domain_guesses(),
    ]  # fmt: skip


def _mixed_classes() -> list[Design]:
    def draw(clients: int, rows: int, classes: int, power: float) -> Draw:
        """Clients with shares of classes, and guesses of them, in proportion to numbers in 0..1 to that power."""

        def labels(rng: torch.Generator) -> Tensor:
            shares = torch.rand(classes, generator=rng, dtype=DOUBLE).clamp_min(1e-9) ** power
            return torch.multinomial(shares, rows, replacement=True, generator=rng)

        def drawn(rng: torch.Generator) -> tuple[list[Answer], list[Case], list[Truth]]:
            answers: list[Answer] = [
                Labels(case=number, predicted=labels(rng), of="labels", classes=classes) for number in range(clients)
            ]
            return answers, cases(clients), [Truth(labels=labels(rng)) for _ in range(clients)]

        return drawn

    return [
        Design(
            kind="labels", draw=draw(clients, rows, classes, power),
            name=f"{clients} clients x {rows} rows, each mostly of one of {classes} classes, guessed likewise",
        )
        for clients, rows, classes, power in ((12, 20, 7, 10.0), (3, 40, 3, 20.0))
    ]  # fmt: skip


def _domain_guesses() -> list[Design]:
    def draw(clients: int, rows: int, domains: int, *, shared: float = 0.0, asked: QuestionKind = "released") -> Draw:
        """Guesses whose variance belongs to the client in the share `shared`."""

        def drawn(rng: torch.Generator) -> tuple[list[Answer], list[Case], list[Truth]]:
            true = (torch.arange(clients) % domains)[order(clients, rng)]
            own = normal(clients, 1, domains, rng=rng) * shared**0.5
            said = (own + normal(clients, rows, domains, rng=rng) * (1 - shared) ** 0.5).argmax(2)
            answers: list[Answer] = [
                Labels(case=number, predicted=predicted, of="domains", classes=domains)
                for number, predicted in enumerate(said)
            ]
            shown = [replace(one, question=asked) for one in cases(clients)]
            return answers, shown, [Truth(domains=domain.expand(rows)) for domain in true]

        return drawn

    rowwise = [
        Design(kind="domains", name=f"{clients} clients of 3 domains x {rows} rows", draw=draw(clients, rows, 3))
        for clients, rows in ((3, 40), (6, 1), (10, 1), (30, 1), (12, 20))
    ]
    alike = [
        Design(
            kind="domains", draw=draw(clients, rows, domains, shared=shared),
            name=f"{clients} clients of {domains} domains x {rows} rows, {shared:.0%} of the variance by client",
        )
        for clients, rows, domains, shared in (
            (3, 40, 3, 1.0), (3, 40, 3, 0.5), (4, 40, 4, 0.5), (4, 40, 3, 0.5), (6, 40, 3, 1.0), (9, 40, 4, 0.3),
        )
    ]  # fmt: skip
    drawn = draw(3, 40, 3, asked="as_if_released")
    return [*rowwise, *alike, Design(kind="domains", name="3 domains x 40 rows of images drawn one by one", draw=drawn)]


def _memberships() -> list[Design]:
    def draw(clients: int, members: int, others: int, *, shared: float, levels: int = 0) -> Draw:
        """Images of one pool, shown to all clients; `shared` of a score's variance belongs to the image."""

        def drawn(rng: torch.Generator) -> tuple[list[Answer], list[Case], list[Truth]]:
            count = members + others
            easy = normal(count, rng=rng) * shared**0.5
            answers, truths = list[Answer](), list[Truth]()
            for number in range(clients):
                scores = easy + normal(count, rng=rng) * (1 - shared) ** 0.5
                answers.append(Membership(case=number, scores=(scores * levels).round() if levels else scores))
                truths.append(Truth(members=order(count, rng) < members))
            return answers, cases(clients), truths

        return drawn

    asked = [(clients, 20, 20, 0.5) for clients in (1, 2, 3, 5, 6, 10, 12, 50)] + [(6, 3, 40, 0.5), (12, 4, 4, 0.5)]
    found = [
        Design(
            kind="membership", name=f"{clients} clients, {members} members of {members + others}",
            draw=draw(clients, members, others, shared=shared),
        )
        for clients, members, others, shared in asked
    ]  # fmt: skip
    found.append(
        Design(kind="membership", name="6 clients, 20 of 40, three levels", draw=draw(6, 20, 20, shared=0.5, levels=1))
    )
    low = [(1, 150, 1000), (3, 150, 400), (7, 150, 150), (12, 150, 150), (30, 40, 40)]
    return [*found, *_redrawn_clients()] + [
        Design(
            kind="membership", name=f"{clients} clients, {members} members of {members + others}", repeats=300,
            draw=draw(clients, members, others, shared=0.5),
        )
        for clients, members, others in low
    ]  # fmt: skip


def _redrawn_clients() -> list[Design]:
    def draw(clients: int, members: int, pool: int, spread: float) -> Draw:
        """Clients of `members` images of a pool, as many others; images differ in how much their scores vary."""
        images = nothing_but_images(pool)

        def drawn(rng: torch.Generator) -> tuple[list[Answer], list[Case], list[Truth]]:
            deviation = (spread * normal(pool, rng=rng)).exp()
            shown = [order(pool, rng)[: 2 * members] for _ in range(clients)]
            answers: list[Answer] = [
                Membership(case=number, scores=deviation[rows] * normal(len(rows), rng=rng))
                for number, rows in enumerate(shown)
            ]
            asked = [case(number, candidates=images.subset(rows)) for number, rows in enumerate(shown)]
            return answers, asked, [Truth(members=torch.arange(2 * members) < members)] * clients

        return drawn

    return [
        Design(
            kind="membership", repeats=100, draw=draw(clients, members, pool, spread),
            name=f"{clients} clients, {members} members of {2 * members} of {pool:,} images of unequal spread",
        )
        for clients, members, pool, spread in ((50, 130, 1400, 0.5), (16, 60, 160, 0.5))
    ]  # fmt: skip


def _lists() -> list[Design]:
    def draw(clients: int, members: int, size: int, *, any_number: bool) -> Draw:
        def drawn(rng: torch.Generator) -> tuple[list[Answer], list[Case], list[Truth]]:
            answers, truths = list[Answer](), list[Truth]()
            for number in range(clients):
                count = int(torch.randint(1, size, (1,), generator=rng)) if any_number else members
                answers.append(MemberList(case=number, believed=order(size, rng) < count))
                truths.append(Truth(members=order(size, rng) < members))
            return answers, cases(clients), truths

        return drawn

    asked = [(3, 2, 4, False), (6, 1, 4, False), (15, 2, 4, False), (15, 20, 40, False), (6, 20, 40, True)]
    return [
        Design(
            kind="member list", draw=draw(clients, members, size, any_number=free),
            name=f"{clients} clients, {members} members of {size}{', lists of any length' if free else ''}",
        )
        for clients, members, size, free in asked
    ]  # fmt: skip

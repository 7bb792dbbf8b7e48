"""Attacks that compare in blocks give what they would all at once."""

import pytest
import torch

from fdgsec.attacks.differencing.attack import Differencing
from fdgsec.attacks.linkage import attack as linkage
from fdgsec.attacks.linkage.attack import Linkage
from fdgsec.attacks.pool_exposure import attack as pool_exposure
from fdgsec.data.domains import DomainDataset
from fdgsec.federation.artifacts import ImageStyles
from fdgsec.nn.styles.channel_statistics import Moments
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.answers import Exposure, Ranking
from fdgsec.threats.attack import Case
from fdgsec.threats.positive_control_data import upload


def nothing(dataset: DomainDataset) -> Moments:
    raise NotImplementedError


BLANK = Knowledge(
    statistics=nothing, encoder="none", class_names=(), domain_names=(), auxiliary=None, unseen=None, own=None
)


def test_the_most_alike_rows_are_those_of_the_whole_matrix_of_distances():
    rng = stream(0, "attack")
    rows = {n: torch.randn(3 + n, 12, generator=rng, dtype=torch.float64) for n in range(6)}
    rows[4][2] = rows[1][0]

    found = linkage._nearest_rows(rows, [0, 1, 2], [3, 4, 5])

    whole = torch.cdist(
        torch.cat([rows[n] for n in (0, 1, 2)]), torch.cat([rows[n] for n in (3, 4, 5)]),
        compute_mode="donot_use_mm_for_euclid_dist",
    )  # fmt: skip
    strips = whole.split([3, 4, 5])
    asked = torch.stack([torch.stack([block.min() for block in strip.split([6, 7, 8], dim=1)]) for strip in strips])
    torch.testing.assert_close(found, asked, rtol=1e-12, atol=1e-12)
    assert float(found[1, 1]) == 0


def test_rows_told_one_at_a_time_expose_the_same_images(monkeypatch: pytest.MonkeyPatch):
    attack = pool_exposure.PoolExposure()
    control = attack.positive_control(BLANK, stream(0, "attack"))

    def published(at_once: int) -> list[list[bool]]:
        monkeypatch.setattr(pool_exposure, "AT_ONCE", at_once)
        guess = attack.run(control.cases, control.knowledge, stream(0, "attack"))
        return [answer.published.tolist() for answer in guess if isinstance(answer, Exposure)]

    assert published(1) == published(7) == published(10_000)


def test_differences_rank_candidates_by_the_relative_distance_of_their_statistic():
    attack = Differencing()
    control = attack.positive_control(BLANK, stream(0, "attack"))
    candidates = control.cases[0].candidates
    assert candidates is not None

    first = next(a for a in attack.run(control.cases, control.knowledge, stream(0, "attack")) if isinstance(a, Ranking))

    before, after = (
        control.knowledge.released_statistic.release(control.cases[0].release(run), images=20 + run) for run in (0, 1)
    )
    estimate = 21 * after[0] - 20 * before[0]
    known = control.knowledge.released_statistic.records(control.knowledge.statistics(candidates))
    asked = (known - estimate).norm(dim=1) / known.norm(dim=1)
    torch.testing.assert_close(first.distances[0], asked, rtol=1e-12, atol=1e-12)


def test_clients_with_different_numbers_of_rows_are_compared_row_by_row():
    control = Linkage().positive_control(BLANK, stream(0, "attack"))
    rng = stream(1, "attack")
    cases = []
    for number, case in enumerate(control.cases):
        count = 2 + number % 3
        rows = ImageStyles(mean=torch.randn(count, 24, generator=rng), std=1 + torch.rand(count, 24, generator=rng))
        cases.append(
            Case(question="sessions", views=(upload(rows),), victim=case.victim, records=case.records, slice=case.slice)
        )

    guess = Linkage().run(cases, control.knowledge, stream(0, "attack"))

    nearest = [a for a in guess if isinstance(a, Ranking) and a.slice.get("distance") == "nearest row"]
    assert [answer.distances.shape for answer in nearest] == [(1, 12)] * 12
    assert min(float(answer.distances.min()) for answer in nearest) > 0

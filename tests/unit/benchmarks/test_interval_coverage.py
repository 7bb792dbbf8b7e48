import pytest
import torch

from benchmarks.interval_coverage import Design, coverage
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.answers import Ranking, Recovered
from fdgsec.threats.attack import Case, Truth
from fdgsec.threats.judging.judge import Judge

CASE = Case(question="released", views=(), victim="client:1", slice={"domain": "photo"})


@pytest.mark.parametrize(
    "design",
    [
        Design(measurement="auc", clients=12, size=20, correlation=0.3, truth=0.5),
        Design(measurement="auc", clients=3, size=30, correlation=0.3, truth=0.97),
        Design(measurement="top1", clients=12, size=20, correlation=0.3, truth=0.1),
        Design(measurement="top1", clients=40, size=20, correlation=0.3, truth=0.99),
        Design(measurement="relative_error", clients=12, size=20, correlation=0.3, truth=0.9),
        Design(measurement="gain", clients=3, size=10, correlation=0.3, truth=0.0),
        Design(measurement="skewed_gain", clients=12, size=10, correlation=0.3, truth=0.0),
        Design(measurement="balanced_accuracy", clients=1, size=50, correlation=0.0, truth=0.5),
        Design(measurement="accuracy", clients=1, size=100, correlation=0.0, truth=0.99),
    ],
)
def test_intervals_cover_where_answers_of_a_client_depend_on_each_other(design: Design):
    found = coverage(design, 200)

    drawn, covered = int(str(found["draws"])), int(str(found["covered"]))
    assert drawn == 200
    assert covered >= 0.9 * drawn  # .95 of 200 has a standard deviation of .015


def test_the_judge_treats_the_rows_of_a_client_as_a_cluster():
    hits = [torch.arange(50) < right for right in (50, 45, 2, 0)]
    rankings = [
        Ranking(case=i, distances=torch.cat([torch.where(hit, 0.0, 2.0).unsqueeze(1), torch.ones(50, 9)], dim=1))
        for i, hit in enumerate(hits)
    ]
    errors = [
        Recovered(case=i, statistic=1 + (0.1 + i) * torch.ones(50, 1).double(), without=torch.ones(1).double())
        for i in range(4)
    ]

    def low_to_high(name: str, cases: int, answers: list[Ranking] | list[Recovered]) -> float:
        truths = [Truth(rows=torch.zeros(50, dtype=torch.int64), statistic=torch.ones(50, 1).double())] * cases
        rows = Judge().measure(answers, [CASE] * cases, truths, stream(0, "attack"))
        found = next(row for row in rows if row.name == name)
        return 99.0 if found.low is None or found.high is None else found.high - found.low

    assert low_to_high("top1", 4, rankings) > 0.7  # of 200 independent rows it would be .14
    assert low_to_high("relative_error", 4, errors) > 2.5

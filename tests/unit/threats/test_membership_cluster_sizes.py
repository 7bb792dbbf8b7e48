"""Membership by cluster size: each band's members stand against all non-members of their client."""

import pytest
import torch
from torch import Tensor

from fdgsec.metrics.measurement import Measurement
from fdgsec.metrics.roc import auc
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.judging.membership import cluster_size_rows


def rows(scores: list[Tensor], members: list[Tensor], sizes: list[Tensor]) -> dict[str, Measurement]:
    found = cluster_size_rows(
        scores, members, sizes, where={"domain": "ink"}, rng=stream(0, "world", "judge"), repeats=200
    )
    return {str(row.slice["cluster_size"]): row for row in found}


def test_members_of_small_clusters_are_told_apart_from_those_of_large_ones():
    scores = [torch.tensor([9.0, 8.0, 1.0, 2.0, 3.0, 4.0]), torch.tensor([7.0, 0.5, 1.0, 2.0, 3.0, 4.0])]
    members = [torch.tensor([1, 1, 1, 0, 0, 0]).bool(), torch.tensor([1, 1, 0, 0, 0, 0]).bool()]
    sizes = [torch.tensor([2, 3, 30, 0, 0, 0]), torch.tensor([2, 25, 0, 0, 0, 0])]

    found = rows(scores, members, sizes)

    assert set(found) == {"2-3", "21+"}
    assert found["2-3"].value == 1.0
    assert found["21+"].value == 0.0
    assert found["2-3"].chance == 0.5
    assert found["2-3"].verdict == "descriptive"
    assert found["2-3"].slice == {"domain": "ink", "cluster_size": "2-3"}
    assert found["2-3"].n == 3 + 3 + 4


def test_the_value_is_the_mean_over_clients_of_the_area_within_each():
    rng = stream(1, "world", "scores")
    scores = [torch.rand(20, generator=rng) for _ in range(4)]
    members = [torch.arange(20) < 8 for _ in range(4)]
    sizes = [torch.where(torch.arange(20) < 5, 6, torch.where(torch.arange(20) < 8, 12, 0)) for _ in range(4)]

    found = rows(scores, members, sizes)

    expected = sum(auc(score[:5], score[8:]) for score in scores) / 4
    assert found["4-8"].value == pytest.approx(expected)
    low, high = found["4-8"].low, found["4-8"].high
    assert low is not None
    assert high is not None
    assert low <= expected <= high


def test_a_band_that_one_client_alone_has_is_unavailable():
    one = torch.tensor([1, 0]).bool()

    found = rows([torch.tensor([1.0, 0.0])], [one], [torch.tensor([5, 0])])

    assert found["4-8"].value is None
    assert "one client alone" in str(found["4-8"].unavailable)

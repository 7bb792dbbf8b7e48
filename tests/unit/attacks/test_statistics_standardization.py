"""The scale by which classifiers of attacks standardize their inputs."""

import torch

from fdgsec.attacks.statistics.standardization import standardizing_scale


def test_a_coordinate_that_hardly_varies_is_not_blown_up():
    rows = torch.tensor([[-1.0, -2.0, -1e-9, 5.0], [1.0, 2.0, 1e-9, 5.0]], dtype=torch.float64)

    # the median of three deviations, 1e-9, 1 and 2, is 1
    assert standardizing_scale(rows).tolist() == [1.0, 2.0, 1e-3, 1e-3]


def test_rows_that_are_all_the_same_have_a_scale_of_one():
    assert standardizing_scale(torch.full((5, 3), 7.0)).tolist() == [1.0, 1.0, 1.0]

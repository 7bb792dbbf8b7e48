"""Linkage by the few columns of a client's vectors that come again, beside many of fresh noise."""

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fdgsec.attacks.linkage.attack import Linkage
from fdgsec.attacks.linkage.recurring_columns import recurring_distances
from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.judging.judge import Judge
from tests.support.client_vectors import alone, pairs

Rows = npt.NDArray[np.float64]
WITHOUT_NOISE = Linkage(noise=(), noise_in_sds=())


def linked(first: Rows, second: Rows) -> Measurement:
    """The share of first releases whose nearest second one is the same client's."""
    cases, truths = pairs(first, second)
    answers = WITHOUT_NOISE.run(cases, alone(), stream(0, "attack", "linkage"))
    (row,) = [
        row for row in Judge().measure(answers, cases, truths, stream(0, "world", "judge"))
        if row.name == "top1" and row.slice["distance"] == "columns that come again" and "matching" not in row.slice
    ]  # fmt: skip
    return row


@pytest.mark.parametrize("sent", ["five digits", "float16", "codes"])
def test_columns_that_come_again_nearly_link_clients(sent: str):
    """Ten lines found the right one of 40 clients 37 to 40 times, in what no distance linked more than three times."""
    draws = np.random.default_rng(0)
    client = draws.normal(5, 1, (40, 512))
    one, other = (client + 200 + draws.normal(0, 20, client.shape) for _ in range(2))
    if sent == "codes":
        one[:, :8] = other[:, :8] = draws.integers(0, 4, (40, 8))
    elif sent == "float16":
        one[:, 7], other[:, 7] = client[:, 7], client[:, 7].astype(np.float16)
    else:
        one[:, 7], other[:, 7] = client[:, 7], [float(f"{number:.5g}") for number in client[:, 7]]

    row = linked(one, other)

    assert row.value is not None
    assert row.value >= 0.92
    assert row.verdict == "leaks strongly"


def six_columns_again(written: str, seed: int) -> tuple[Rows, Rows]:
    """Two releases (40, 512) of fresh noise, but for six columns, which the second one writes in another way."""
    draws = np.random.default_rng(seed)
    one, other = draws.normal(0, 1, (2, 40, 512))
    columns = draws.choice(512, 6, replace=False)
    own = one[:, columns] = draws.normal(0, 1, (40, 6)).round(2)
    noise = draws.normal(0, 1, own.shape)
    other[:, columns] = {
        "as it was": own, "another unit": 1.7 * own + 3, "3% noise": own + 0.03 * noise,
        "10% noise": own + 0.1 * noise, "z-scored": (own - own.mean(0)) / own.std(0), "opposite sign": -own,
    }[written]  # fmt: skip
    for release in (one, other):
        release[:, 256:] += 20  # stds
    return one, other


@pytest.mark.parametrize(
    ("written", "least"),
    [("as it was", 0.97), ("another unit", 0.97), ("z-scored", 0.97), ("opposite sign", 0.97), ("3% noise", 0.97),
     ("10% noise", 0.8)],
)  # fmt: skip
@pytest.mark.medium
def test_columns_that_come_again_in_another_form_link_clients(written: str, least: float):
    """Numpy that standardizes, sorts, and keeps the six columns that are most alike, of either sign, links all clients,
    and 85% under a tenth of noise."""
    for seed in range(2):
        row = linked(*six_columns_again(written, seed))

        assert row.value is not None
        assert row.value >= least
        assert row.verdict == "leaks strongly"


@pytest.mark.parametrize("written", ["as it was", "10% noise"])
def test_columns_of_another_distribution_hide_none_that_come_again(written: str):
    one, other = six_columns_again(written, 2)
    draws = np.random.default_rng(3)
    one[:, :100], other[:, :100] = draws.standard_cauchy((2, 40, 100))
    one[:, 300:400], other[:, 300:400] = 20 + draws.integers(0, 2, (2, 40, 100))  # one in eight has as many ones twice
    again = np.random.default_rng(5).normal(0, 1, (40, 6))
    one[:, 200:206], other[:, 200:206] = again, again

    row = linked(one, other)

    assert row.value is not None
    assert row.value >= 0.97


def test_who_sent_what_changes_no_weight():
    draws = np.random.default_rng(0)
    first, second = torch.from_numpy(draws.normal(0, 1, (2, 20, 30)))
    second[:, 4] = -first[:, 4]
    order, other = (torch.from_numpy(draws.permutation(20)) for _ in range(2))

    found = recurring_distances(first, first, second)
    exchanged = recurring_distances(first[order], first[order], second[other])

    assert found is not None
    assert exchanged is not None
    assert torch.allclose(found[order][:, other], exchanged, rtol=1e-9, atol=0)


def test_some_of_many_vectors_are_as_far_apart_as_among_all():
    first, second = torch.from_numpy(np.random.default_rng(1).normal(0, 1, (2, 20, 30)))

    everybody = recurring_distances(first, first, second)
    some = recurring_distances(first[3:7], first, second)

    assert everybody is not None
    assert some is not None
    assert torch.allclose(some, everybody[3:7], rtol=1e-12, atol=0)


def test_constant_columns_and_unequal_numbers_of_clients_have_no_distance():
    varied, constant = torch.rand(5, 3, generator=stream(0, "attack", "rows")), torch.ones(5, 3)

    assert recurring_distances(varied, varied, constant) is None
    assert recurring_distances(varied, varied, varied[:4]) is None


def independent(kind: str, draws: np.random.Generator) -> tuple[Rows, Rows]:
    """Two releases (30, 64) in which nobody is to be found."""
    size = (2, 30, 64)
    if kind == "normal":
        one, other = draws.normal(0, 1, size)
    elif kind == "binary":
        one, other = draws.integers(0, 2, size).astype(float)
    elif kind == "codes":
        one, other = draws.integers(0, 8, size).astype(float)
    elif kind == "Cauchy":
        one, other = draws.standard_cauchy(size)
    elif kind == "constant and sparse":
        one, other = draws.normal(0, 1, size) * (draws.random(size) < 0.1)
        one[:, :20] = other[:, :20] = 3.0
    else:  # the values of every column come again, in another order
        one = draws.normal(0, 1, size[1:]).round(1)
        other = draws.permuted(one, axis=0)
    for release in (one, other):
        release[:, 32:] -= release[:, 32:].min()  # stds
    return one, other


@pytest.mark.parametrize("kind", ["normal", "binary", "codes", "Cauchy", "constant and sparse", "permuted"])
@pytest.mark.nightly
@pytest.mark.slow
def test_vectors_of_nobody_are_flagged_no_more_often_than_stated(kind: str):
    draws, flagged = np.random.default_rng(0), 0
    for _ in range(80):
        flagged += linked(*independent(kind, draws)).leaks

    assert flagged <= 6  # 2.5% of 80, and a tail of 1%

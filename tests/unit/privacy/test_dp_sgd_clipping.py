"""No record moves a private step by more than the clip bound over the expected batch, and a long gradient by just that."""

from dataclasses import replace

import pytest

from tests.support.private_setting import PLAN, data, network, trained, trainer, weights

ONE_STEP = replace(PLAN, batch_size=64, steps=1, learning_rate=1.0)  # q = 1: every record is drawn


@pytest.mark.parametrize("bound", [1e-3, 0.05])
@pytest.mark.parametrize("records", [1, 4])
def test_a_step_moves_the_network_by_at_most_the_bound_a_record(bound: float, records: int):
    moved = (trained(trainer(bound=bound), data(records), ONE_STEP).double() - weights(network()).double()).norm()

    # over `records` expected ones: their sum is at most records x bound; float32 weights round by 1e-7
    assert float(moved) <= bound * (1 + 2e-4)
    if records == 1:
        assert float(moved) >= bound * (1 - 2e-4)

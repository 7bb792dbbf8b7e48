"""Which methods' local losses DP-SGD may train: found by measuring, on the methods' own objectives."""

from dataclasses import replace

import pytest
import torch

from fdgsec.federation.method import Client
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedalign import FedAlign
from fdgsec.methods.fedalign_dp import FedAlignDP
from fdgsec.methods.fedavg import FedAvg
from fdgsec.methods.fisc import FISC
from fdgsec.methods.fisc_dp import FISCDP
from fdgsec.methods.stablefdg import StableFDG
from fdgsec.methods.stablefdg_dp import StableFDGDP
from fdgsec.privacy.record_independence import BatchCouplingError, check_independence
from fdgsec.runtime.random_streams import stream
from tests.support.single_records import PLAN, prepared, three_clients

NO_COPIES = StableFDG(plan=PLAN, oversampling=0.0, singletons="self")


@pytest.fixture(scope="module")
def clients() -> list[Client]:
    return three_clients()


def check(method: FedAvg, clients: list[Client], *, seed: int = 0) -> None:
    made = prepared(method, clients)
    name = type(method).__name__.lower()
    check_independence(made.objective(), made.network(), made.batch(), stream(seed, "attack", "check"), method=name)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "method", [StableFDG(plan=PLAN), FISC(plan=PLAN), FedAlign(plan=PLAN)], ids=["stablefdg", "fisc", "fedalign"]
)
def test_records_meet_in_the_three_methods_as_published(clients: list[Client], method: FedAvg, seed: int):
    with pytest.raises(BatchCouplingError):
        check(method, clients, seed=seed)


@pytest.mark.parametrize(
    "method",
    [
        replace(NO_COPIES, attention=False, explore_at=(), probability=1.0),  # k-means++ alone
        replace(NO_COPIES, attention=False, received=0, probability=1.0),  # exploration and MixStyle
        replace(NO_COPIES, style=False),  # queries of partners
        FISC(plan=PLAN, triplet="printed"), FISC(plan=PLAN, contrastive="ordinary"),
        FedAlign(plan=PLAN, contrast=0.0, ignore_pool=True),  # styles of the batch
        FedAlign(plan=PLAN, contrast=0.0, discriminator="reversed"),  # its batch norm
    ],
    ids=["selection", "exploration", "attention", "printed", "ordinary", "own-styles", "reversed"],
)  # fmt: skip
@pytest.mark.medium
def test_records_meet_in_each_coupled_part_alone(clients: list[Client], method: FedAvg):
    with pytest.raises(BatchCouplingError, match="record"):
        check(method, clients)


@pytest.mark.parametrize(
    "method",
    [
        FedAvg(plan=PLAN), CCST(plan=PLAN), StableFDGDP(plan=PLAN), FISCDP(plan=PLAN), FedAlignDP(plan=PLAN),
        FedAlign(plan=PLAN, contrast=0.0, pool="others", discriminator="detached"),
    ],
    ids=["fedavg", "ccst", "stablefdg-dp", "fisc-dp", "fedalign-dp", "fedalign without contrast"],
)  # fmt: skip
@pytest.mark.medium
def test_records_do_not_meet_in_fedavg_ccst_and_the_variants_of_single_records(clients: list[Client], method: FedAvg):
    before = torch.get_rng_state()

    check(method, clients)

    assert torch.equal(torch.get_rng_state(), before)

"""FISC with losses of single records: nothing of the batch enters them, and negatives need no other record."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fdgsec.experiments.run_config import build, load_preset
from fdgsec.federation.method import Client
from fdgsec.methods.fisc import FISC, Contrast
from fdgsec.methods.fisc_dp import FISCDP, EachVersion, OwnContrast, shuffle_patches
from fdgsec.nn.networks.classifiers import Classifier
from fdgsec.nn.training.batches import Batch
from fdgsec.privacy.record_independence import BatchCouplingError
from fdgsec.runtime.errors import UsageError
from tests.support.single_records import (
    CLOCK,
    PLAN,
    drawn,
    federated,
    leak,
    prepared,
    privately,
    same,
    start,
    three_clients,
)

METHOD = FISCDP(plan=PLAN)


@pytest.fixture(scope="module")
def clients() -> list[Client]:
    return three_clients()


def numbered(side: int) -> Tensor:
    """An image (1, 1, side, side) whose pixels are all different."""
    return torch.arange(side * side, dtype=torch.float32).view(1, 1, side, side)


def pieces(image: Tensor, count: int) -> list[tuple[float, ...]]:
    """The parts of (1, C, H, W), cut by hand, row by row."""
    high, broad = image.shape[2] // count, image.shape[3] // count
    return [
        tuple(image[0, :, y * high : (y + 1) * high, x * broad : (x + 1) * broad].flatten().tolist())
        for y in range(count)
        for x in range(count)
    ]


@pytest.mark.parametrize(
    "method",
    [
        METHOD, replace(METHOD, triplet="printed", regularizer="sum"), replace(METHOD, negative="none"),
        replace(METHOD, contrastive="ordinary"), replace(METHOD, contrastive="none"),
        replace(METHOD, extra_layer=True, local_clustering=False),
    ],
)  # fmt: skip
def test_no_other_record_moves_a_records_loss_or_gradient(clients: list[Client], method: FISCDP):
    made = prepared(method, clients)

    loss, gradient = leak(made)

    assert not made.objective().couples_records
    assert made.objective()(made.batch(), made.network()).shape == (8,)
    assert loss < 1e-6 * max(1.0, float(made.objective()(made.batch(), made.network()).detach().max()))
    assert gradient < 1e-6


def test_fisc_fails_the_same_check(clients: list[Client]):
    made = prepared(FISC(plan=PLAN), clients)

    loss, gradient = leak(made)

    assert made.objective().couples_records
    assert loss > 1e-4
    assert gradient > 1e-4


@pytest.mark.medium
def test_the_private_trainer_trains_it_and_refuses_fisc(clients: list[Client]):
    metrics, uses = privately(METHOD, clients)

    assert metrics == {"steps": 1.0}
    assert [use.count for use in uses] == [1]
    with pytest.raises(BatchCouplingError, match="couples the records"):
        privately(FISC(plan=PLAN), clients)


@pytest.mark.medium
def test_two_rounds_are_the_same_however_artifacts_travel_and_send_what_fisc_sends(clients: list[Client]):
    plain, recoded = (federated(METHOD, clients, recode=recode) for recode in (False, True))
    base = federated(FISC(plan=PLAN), clients)

    assert same(plain.model, recoded.model)
    exchanged = [row for row in plain.transcript.rows if row.stage in ("share", "combine")]
    theirs = [row for row in base.transcript.rows if row.stage in ("share", "combine")]
    assert [row.sha256 for row in exchanged] == [row.sha256 for row in theirs]
    rows = [(row.round, row.stage, row.sender, row.receiver, row.kind, row.bytes) for row in plain.transcript.rows]
    assert rows == [
        (row.round, row.stage, row.sender, row.receiver, row.kind, row.bytes) for row in base.transcript.rows
    ]


@pytest.mark.medium
def test_the_loss_falls(clients: list[Client]):
    losses = federated(replace(METHOD, plan=replace(PLAN, epochs=3)), clients, rounds=4).losses

    assert losses[-1] < losses[0] - 0.1


def test_the_loss_of_a_record_is_equation_7_with_its_own_torn_version_as_negative(clients: list[Client]):
    made = prepared(METHOD, clients)
    batch, network = made.batch(), made.network()
    objective = made.objective()
    assert isinstance(objective, OwnContrast)

    losses = objective(batch, network)

    assert batch.partners is not None
    torn = shuffle_patches(batch.partners, 4, _same_draws(objective))
    for i in range(8):  # slow transcription, one record at a time
        a, p, n = (network.features(images[i : i + 1])[0] for images in (batch.images, batch.partners, torn))
        entropy = -network.head(a).log_softmax(0)[batch.labels[i]]
        apart = (a / a.norm() - p / p.norm()).norm() - (a / a.norm() - n / n.norm()).norm() + 0.3
        bound = (a.square() + p.square()).mean()
        expected = entropy + 0.75 * apart.clamp_min(0) + 0.2 * bound
        assert float(losses[i].detach()) == pytest.approx(float(expected.detach()), rel=1e-5)


def _same_draws(objective: OwnContrast) -> torch.Generator:
    """A generator that draws what the objective's drew first."""
    return torch.Generator().manual_seed(objective.rng.initial_seed())


def test_negatives_open_the_hinge_as_records_of_other_classes_do(clients: list[Client]):
    ours, theirs = prepared(METHOD, clients), prepared(FISC(plan=PLAN), clients)

    shares = [_open(made.objective(), made.batch(), made.network()) for made in (ours, theirs)]

    assert min(shares) > 0.9


def _open(objective: object, batch: Batch, network: Classifier) -> float:
    """The share of records whose triplet costs something: all but cross-entropy is taken out of the loss."""
    assert isinstance(objective, Contrast)
    losses = replace(objective, gamma2=0.0)(batch, network)
    entropy = functional.cross_entropy(network(batch.images), batch.labels, reduction="none")
    return float((losses - entropy > 1e-6).float().mean())


def test_without_a_negative_only_versions_that_differ_cost_something(clients: list[Client]):
    made = prepared(replace(METHOD, negative="none", gamma2=0.0), clients)
    network, batch = made.network(), made.batch()
    twins = replace(batch, partners=batch.images)

    gap = made.objective()(twins, network) - functional.cross_entropy(
        network(batch.images), batch.labels, reduction="none"
    )
    gap.sum().backward()

    assert float(gap.detach().abs().max()) < 1e-6
    assert all(bool(p.grad.isfinite().all()) for p in network.parameters() if p.grad is not None)


def test_without_contrast_a_record_has_one_loss_the_mean_over_its_versions(clients: list[Client]):
    made = prepared(replace(METHOD, contrastive="none"), clients)
    network, batch = made.network(), made.batch()

    losses = made.objective()(batch, network)

    assert isinstance(made.objective(), EachVersion)
    assert batch.partners is not None
    for i in range(8):
        each = [
            -network(images[i : i + 1]).log_softmax(1)[0, batch.labels[i]] for images in (batch.images, batch.partners)
        ]
        assert float(losses[i].detach()) == pytest.approx(float(torch.stack(each).mean().detach()), rel=1e-5)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_pieces_change_places_and_stay_whole(count: int):
    image = numbered(12)

    made = shuffle_patches(image, count, drawn("pieces"))

    assert sorted(pieces(made, count)) == sorted(pieces(image, count))
    assert pieces(made, count) != pieces(image, count)


def test_every_image_is_rearranged_by_itself_and_none_keeps_its_order():
    images = numbered(4).expand(400, 1, 4, 4)

    made = shuffle_patches(images, 2, drawn("pieces"))

    orders = {tuple(pieces(one.unsqueeze(0), 2)) for one in made}
    assert tuple(pieces(images[:1], 2)) not in orders
    assert len(orders) == 23  # 4! less the one that they came in


def test_a_margin_that_does_not_divide_stays():
    image = numbered(11)

    made = shuffle_patches(image, 4, drawn("pieces"))

    assert torch.equal(made[..., 8:, :], image[..., 8:, :])
    assert torch.equal(made[..., 8:], image[..., 8:])
    assert sorted(made.flatten().tolist()) == sorted(image.flatten().tolist())


@pytest.mark.parametrize("count", [1, 5])
def test_pieces_out_of_range_are_refused(count: int):
    with pytest.raises(ValueError, match=r"pieces must lie in 2\.\.4"):
        shuffle_patches(numbered(4), count, drawn("pieces"))


def test_fewer_than_two_patches_a_side_are_refused():
    with pytest.raises(UsageError, match="at least 2 patches"):
        replace(METHOD, patches=1)


def test_the_papers_preset_fits():
    method = build(FISCDP, load_preset("fisc-paper")["method"], where="method")

    assert method.negative == "patches"
    assert method.alpha == 1.0
    objective = method.objective(
        three_clients()[0], model=start(method), inbox={}, state={}, clock=CLOCK, rng=drawn("fit")
    )
    assert not objective.couples_records


def test_its_preset_trains_without_batch_norm():
    preset = load_preset("fisc-dp")

    assert not build(FISCDP, preset["method"], where="method").plan.freeze_norm
    assert preset["run"]["norm"] == "group"

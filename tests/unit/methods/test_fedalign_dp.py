"""FedAlign with losses of single records: nothing of the batch enters them, and records draw by themselves."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from fdgsec.experiments.run_config import build, load_preset
from fdgsec.federation.artifacts import StyleBank
from fdgsec.federation.method import Client
from fdgsec.methods.fedalign import ClusteredPool, FedAlign
from fdgsec.methods.fedalign_dp import FedAlignDP, SeparateDraws
from fdgsec.nn.training.augmix import AugMix
from fdgsec.nn.training.losses import inconsistency, jensen_shannon
from fdgsec.privacy.record_independence import BatchCouplingError
from fdgsec.runtime.errors import UsageError
from tests.support.single_records import PLAN, drawn, federated, leak, prepared, privately, same, three_clients

METHOD = FedAlignDP(plan=PLAN, upload_ratio=0.5)


@pytest.fixture(scope="module")
def clients() -> list[Client]:
    return three_clients()


def pool() -> SeparateDraws:
    """Two clusters of three rows and of one."""
    rows = torch.rand(4, 3, generator=drawn("rows"))
    return SeparateDraws(
        mean=rows, std=rows, labels=torch.tensor([0, 1, 0, 0]), weights=torch.tensor([0.5, 1.0, 0.25, 0.25])
    )


@pytest.mark.parametrize(
    "method",
    [
        METHOD, replace(METHOD, augmix=AugMix(per_image=True, width=-1), augmix_difficulty=True, difficulty="input"),
        replace(METHOD, views="sequential", overflow="wrapped", classification="sum"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("number", [0, 1, 2])  # other chains of AugMix
def test_no_other_record_moves_a_records_loss_or_gradient(clients: list[Client], method: FedAlignDP, number: int):
    made = prepared(method, clients, number=number)

    loss, gradient = leak(made)

    assert not made.objective().couples_records
    assert made.objective()(made.batch(), made.network()).shape == (8,)
    assert loss < 1e-6
    assert gradient < 1e-6


@pytest.mark.parametrize(
    "method",
    [
        FedAlign(plan=PLAN, upload_ratio=0.5),
        FedAlign(plan=PLAN, upload_ratio=0.5, contrast=0.0, discriminator="reversed"),
        FedAlign(plan=PLAN, upload_ratio=0.5, contrast=0.0, ignore_pool=True),
    ],
)
def test_fedalign_fails_the_same_check(clients: list[Client], method: FedAlign):
    made = prepared(method, clients)

    loss, gradient = leak(made)

    assert made.objective().couples_records
    assert gradient > 1e-5
    assert loss > 1e-5 or method.discriminator == "reversed"  # whose term has the value 0


@pytest.mark.medium
def test_the_private_trainer_trains_it_and_refuses_fedalign(clients: list[Client]):
    metrics, uses = privately(METHOD, clients)

    assert metrics == {"steps": 1.0}
    assert [use.count for use in uses] == [1]
    with pytest.raises(BatchCouplingError, match="couples the records"):
        privately(FedAlign(plan=PLAN, upload_ratio=0.5), clients)


@pytest.mark.medium
def test_two_rounds_are_the_same_however_artifacts_travel_and_send_what_fedalign_sends(clients: list[Client]):
    plain, recoded = (federated(METHOD, clients, recode=recode) for recode in (False, True))
    base = federated(FedAlign(plan=PLAN, upload_ratio=0.5), clients)

    assert same(plain.model, recoded.model)
    styles, theirs = (
        [row.sha256 for row in run.transcript.rows if row.stage in ("share", "combine")] for run in (plain, base)
    )
    assert styles == theirs
    shapes, others = (
        [(row.round, row.stage, row.sender, row.receiver, row.kind, row.bytes) for row in run.transcript.rows]
        for run in (plain, base)
    )
    assert shapes == others


@pytest.mark.medium
def test_the_loss_falls(clients: list[Client]):
    losses = federated(replace(METHOD, plan=replace(PLAN, epochs=2)), clients, rounds=5).losses

    assert losses[-1] < losses[0] - 0.05


def test_a_records_loss_is_the_sum_of_its_own_terms():
    features = [torch.randn(5, 12, generator=drawn("features", i)) for i in range(3)]
    logits = [torch.randn(5, 7, generator=drawn("logits", i)) for i in range(3)]
    labels = torch.tensor([0, 1, 1, 6, 3])

    losses = METHOD.losses(features, logits, labels)

    for i in range(5):  # slow transcription, one record at a time
        z, first, second = (each[i] for each in features)
        entropy = sum(-given[i].log_softmax(0)[labels[i]] for given in logits) / 3
        pull = sum(1 - (z @ view) / (z.norm() * view.norm()) for view in (first, second)) / 2 / 0.1
        apart = ((z - first).square().mean() + (z - second).square().mean()) / 2
        agreed = jensen_shannon([given[i : i + 1] for given in logits])[0]
        assert float(losses[i]) == pytest.approx(float(entropy + 0.1 * pull + 0.1 * apart + 0.1 * agreed), rel=1e-5)


def test_views_that_agree_with_their_image_pull_nothing():
    features = torch.randn(4, 12, generator=drawn("features"))

    pulled = METHOD.contrastive_loss([features, features, 2 * features], torch.zeros(4, dtype=torch.int64))

    assert float(pulled.abs().max()) < 1e-5
    assert float(inconsistency(features, [features]).max()) == 0.0


def test_the_pull_is_what_supervised_contrast_has_of_a_record_alone():
    """Eq. (17) of one anchor with its view as positive: -sim / tau + log sum over others; the sum is what couples."""
    original, view = (torch.randn(1, 12, generator=drawn("features", i)) for i in range(2))

    pulled = METHOD.contrastive_loss([original, view], torch.zeros(1, dtype=torch.int64))

    similarity = functional.cosine_similarity(original, view)
    assert float(pulled) == pytest.approx(float((1 - similarity) / 0.1), rel=1e-5)


def test_each_record_draws_a_cluster_by_its_size_and_a_row_by_its_weight():
    drawn_rows = pool().rows(20_000, drawn("rows"))

    shares = torch.bincount(drawn_rows, minlength=4) / 20_000

    expected = torch.tensor([0.75 * 0.5, 0.25, 0.75 * 0.25, 0.75 * 0.25])
    assert float((shares - expected).abs().max()) < 0.018  # five standard deviations of sqrt(.25 / 20000)


def test_how_often_a_cluster_is_drawn_varies_where_algorithm_2_fixes_it():
    separate, draws = pool(), drawn("draws")
    fixed = ClusteredPool(mean=separate.mean, std=separate.std, labels=separate.labels, weights=separate.weights)

    ours, theirs = (
        torch.tensor([int((kind.rows(8, draws) == 1).sum()) for _ in range(400)]).double() for kind in (separate, fixed)
    )

    assert float(theirs.var()) == 0.0
    assert float(ours.var()) == pytest.approx(8 * 0.25 * 0.75, rel=0.35)  # binomial; five standard deviations


def test_a_received_pool_is_clustered_as_fedalign_does_it():
    rows = torch.rand(12, 3, generator=drawn("rows"))
    bank = StyleBank(mean=rows, std=rows.flip(0), owner=torch.arange(12) % 3)

    ours, theirs = (method.build_pool(bank, drawn("pool")) for method in (METHOD, FedAlign()))

    assert isinstance(ours, SeparateDraws)
    assert isinstance(theirs, ClusteredPool)
    assert torch.equal(ours.labels, theirs.labels)
    assert torch.equal(ours.weights, theirs.weights)


@pytest.mark.parametrize(
    "options",
    [
        {"discriminator": "reversed"}, {"discriminator": "detached"}, {"ignore_pool": True}, {"sums": True},
        {"include_self": True}, {"pool": "complete"},
    ],
)  # fmt: skip
def test_options_by_which_records_meet_are_refused(options: Mapping[str, object]):
    with pytest.raises(UsageError, match=next(iter(options))):
        build(FedAlignDP, options, where="method")


def test_the_papers_preset_fits_without_its_discriminator():
    options = {**load_preset("fedalign-paper")["method"], "discriminator": "off", "pool": "others"}

    method = build(FedAlignDP, options, where="method")

    assert method.augmix.per_image
    assert not method.couples_records


def test_its_preset_trains_without_batch_norm():
    preset = load_preset("fedalign-dp")

    assert not build(FedAlignDP, preset["method"], where="method").plan.freeze_norm
    assert preset["run"]["norm"] == "group"

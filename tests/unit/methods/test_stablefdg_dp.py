"""StableFDG with losses of single records: nothing of the batch enters them, and each step does what is left of it."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fdgsec.experiments.run_config import build, load_preset
from fdgsec.federation.artifacts import StyleDistribution
from fdgsec.federation.method import Client, Inbox
from fdgsec.methods.stablefdg import NEGATIVE_STDS, StableFDG
from fdgsec.methods.stablefdg_dp import CENTER, PerRecordLearning, StableFDGDP
from fdgsec.nn.styles.feature_styles import StyleLaws, instance_statistics
from fdgsec.privacy.record_independence import BatchCouplingError
from fdgsec.runtime.errors import ArtifactError, UsageError
from fdgsec.runtime.secret_streams import simulated_stream
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
from tests.support.stablefdg_setting import CHANNELS, maps, phi

METHOD = StableFDGDP(plan=PLAN)
ALWAYS = replace(METHOD, probability=1.0)
UNIFORM = (1 / 7,) * 7


@pytest.fixture(scope="module")
def clients() -> list[Client]:
    return three_clients()


def laws(value: float) -> StyleLaws:
    """One law without spread: all means and stds are `value`."""
    center, none = torch.full((1, CHANNELS), value), torch.zeros(1, CHANNELS)
    return StyleLaws(mean=center, std=center, mean_scale=none, std_scale=none)


def learning(
    method: StableFDGDP, *, received: float | None = None, center: float | None = None, shifting: bool = False
) -> PerRecordLearning:
    """An objective whose received style and whose center are the given values in every channel."""
    middle = None if center is None else torch.full((1, CHANNELS, 1, 1), center)
    return PerRecordLearning(
        method=method, laws=None if received is None else laws(received), center=None if middle is None else (middle, middle), shifting=shifting,
        negative_stds=torch.zeros(2, dtype=torch.int64), rng=drawn("objective"),
    )  # fmt: skip


def styles(given: Tensor) -> tuple[Tensor, Tensor]:
    mean, std = instance_statistics(given, eps=METHOD.eps, unbiased=METHOD.unbiased)
    return mean.flatten(1), std.flatten(1)


@pytest.mark.parametrize(
    "method",
    [
        METHOD, ALWAYS, replace(ALWAYS, center="received"), replace(ALWAYS, gradient="all"),
        replace(ALWAYS, gradient="none", attention=False), replace(ALWAYS, prior=UNIFORM, received=2),
    ],
)  # fmt: skip
def test_no_other_record_moves_a_records_loss_or_gradient(clients: list[Client], method: StableFDGDP):
    made = prepared(method, clients)

    loss, gradient = leak(made)

    assert not made.objective().couples_records
    assert made.objective()(made.batch(), made.network()).shape == (8,)
    assert loss < 1e-6
    assert gradient < 1e-6


@pytest.mark.parametrize(
    "method",
    [
        StableFDG(plan=PLAN, attention=False, probability=1.0, oversampling=0.0),  # k-means++ and mixed styles
        StableFDG(plan=PLAN, style=False, singletons="self"),  # queries of partners
    ],
)
def test_stablefdg_fails_the_same_check(clients: list[Client], method: StableFDG):
    made = prepared(method, clients)

    loss, gradient = leak(made)

    assert made.objective().couples_records
    assert loss > 1e-4
    assert gradient > 1e-4


def test_the_private_trainer_trains_it_and_refuses_stablefdg(clients: list[Client]):
    metrics, uses = privately(METHOD, clients)

    assert metrics == {"steps": 1.0}
    assert [use.count for use in uses] == [1]
    with pytest.raises(BatchCouplingError, match="couples the records"):
        privately(StableFDG(plan=PLAN), clients)


def test_two_rounds_are_the_same_however_artifacts_travel_and_each_gets_its_own_center_back(clients: list[Client]):
    plain, recoded = (federated(METHOD, clients, recode=recode) for recode in (False, True))

    assert same(plain.model, recoded.model)
    rows = [(row.stage, row.sender, row.receiver, row.kind) for row in plain.transcript.rows if row.round == 1]
    names = [client.name for client in clients]
    assert rows == [
        *[("model", "server", name, "ModelState") for name in names],
        *[("share", name, "server", "StyleDistribution") for name in names],
        *[("combine", "server", name, "StyleDistribution") for name in names for _ in range(2)],
        *[("update", name, "server", kind) for name in names for kind in ("ModelState", "Scores")],
    ]
    styles = [row for row in plain.transcript.rows if row.kind == "StyleDistribution"]
    assert {row.bytes for row in styles} == {styles[0].bytes}
    sent = {row.sender: row.sha256 for row in styles if (row.round, row.stage) == (1, "share")}
    for name in names:
        got = [row.sha256 for row in styles if (row.round, row.stage, row.receiver) == (1, "combine", name)]
        assert sent[name] in got
        assert set(got) & {digest for other, digest in sent.items() if other != name}


@pytest.mark.medium
def test_the_loss_falls(clients: list[Client]):
    plan = replace(PLAN, epochs=3)

    losses = federated(replace(METHOD, plan=plan), clients, rounds=5).losses

    assert losses[-1] < losses[0] - 0.1


def test_what_comes_back_is_what_the_server_holds_not_what_the_client_meant_to_send():
    noisy: dict[str, StyleDistribution] = {f"client:{i}": phi(float(i), spread=0.5) for i in range(3)}
    shared: Mapping[str, Inbox] = {name: {"distribution": sent} for name, sent in noisy.items()}

    inboxes, _ = METHOD.combine(shared, server={}, clock=CLOCK, rng=simulated_stream(0, "combine"))
    without, _ = replace(METHOD, center="received").combine(
        shared, server={}, clock=CLOCK, rng=simulated_stream(0, "combine")
    )

    assert all(inboxes[name][CENTER] is sent for name, sent in noisy.items())
    assert all(inboxes[name]["distribution.0"] is not noisy[name] for name in noisy)
    assert all(set(inbox) == {"distribution.0"} for inbox in without.values())


def test_a_participant_alone_explores_about_its_own_center_and_shifts_nothing(clients: list[Client]):
    inboxes, _ = METHOD.combine(
        {"client:0": {"distribution": phi(1.0)}}, server={}, clock=CLOCK, rng=simulated_stream(0, "combine")
    )

    made = METHOD.objective(
        clients[0], model=start(METHOD), inbox=inboxes["client:0"], state={}, clock=CLOCK, rng=drawn("fit")
    )

    assert isinstance(made, PerRecordLearning)
    assert made.laws is None
    assert made.center is not None


def test_half_of_the_records_shift_to_the_received_law_and_the_others_stay_bit_by_bit():
    given = maps(400)
    method = replace(ALWAYS, mix_alpha=None)

    made = learning(method, received=2.0, shifting=True).apply_steps(given)

    stayed = (made == given).flatten(1).all(1)
    mean, std = styles(made[~stayed])
    assert torch.allclose(mean, torch.full_like(mean, 2.0), atol=1e-5)
    assert torch.allclose(std, torch.full_like(std, 2.0), atol=1e-4)
    assert float(stayed.float().mean()) == pytest.approx(0.5, abs=0.1)  # four standard deviations of a coin


def test_explored_styles_go_on_from_the_released_center_by_equations_4_and_5():
    given = maps(400)
    objective = learning(replace(ALWAYS, mix_alpha=None), center=1.25)

    made = objective.apply_steps(given)

    moved = ~(made == given).flatten(1).all(1)
    before, after = styles(given[moved]), styles(made[moved])
    assert torch.allclose(after[0], before[0] + 3 * (before[0] - 1.25), atol=1e-4)
    far = before[1] + 3 * (before[1] - 1.25)
    assert torch.allclose(after[1], far.abs(), atol=1e-3)  # a negative std turns a map over
    assert objective.negative_stds.tolist() == [int((far < 0).sum()), far.numel()]
    assert float(moved.float().mean()) == pytest.approx(0.5, abs=0.1)


def test_explored_stds_can_be_kept_from_falling_below_zero():
    given = maps(50)

    made = learning(replace(ALWAYS, mix_alpha=None, clamp_explored=True), center=50.0).apply_steps(given)

    moved = ~(made == given).flatten(1).all(1)
    assert float(styles(made[moved])[1].max()) == pytest.approx(METHOD.eps**0.5, rel=1e-3)


def test_mixed_styles_lie_between_a_records_own_and_a_received_one():
    given = maps(200)

    made = learning(ALWAYS, received=5.0).apply_steps(given)

    own, new = styles(given)[0], styles(made)[0]
    share = (new - 5.0) / (own - 5.0)
    assert float(share.min()) > -1e-4
    assert float(share.max()) < 1 + 1e-4
    assert float(share.std(1).max()) < 1e-3  # one lambda for all channels of a record
    assert float(share.mean(1).std()) > 0.3  # Beta(.1, .1) is close to a coin


def test_without_coins_maps_are_left_alone():
    given = maps(8)

    made = learning(replace(METHOD, probability=0.0), received=2.0, center=1.0, shifting=True).apply_steps(given)

    assert torch.equal(made, given)


def test_shifting_waits_for_its_round():
    objective = replace(METHOD, shift_from=1).objective(
        Client(name="client:0", data=three_clients()[0].data), model=start(METHOD),
        inbox={"distribution.0": phi(1.0), CENTER: phi(0.5)}, state={}, clock=CLOCK, rng=drawn("fit"),
    )  # fmt: skip

    assert isinstance(objective, PerRecordLearning)
    assert not objective.shifting


def test_a_public_prior_weighs_classes_by_its_inverse_up_to_a_bound():
    method = replace(METHOD, prior=(0.7, 0.25, 0.05), heaviest=4.0)

    weights = method.weight(torch.tensor([0, 1, 2, 2]))

    assert weights.tolist() == pytest.approx([1 / 2.1, 1 / 0.75, 4.0, 4.0])  # 1 / .15 is cut
    assert METHOD.weight(torch.tensor([0, 6])).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("prior", [(0.5, 0.6), (1.0, 0.0), (-0.5, 1.5)])
def test_a_prior_that_is_none_is_refused(prior: tuple[float, ...]):
    with pytest.raises(UsageError, match="prior"):
        replace(METHOD, prior=prior)


def test_a_prior_of_other_classes_is_refused(clients: list[Client]):
    method = replace(METHOD, prior=(0.5, 0.5))

    with pytest.raises(UsageError, match="2 shares, but the model 7"):
        method.objective(clients[0], model=start(method), inbox={}, state={}, clock=CLOCK, rng=drawn("fit"))


@pytest.mark.parametrize(
    "options",
    [
        {"selection": "random"}, {"explore_at": ["stem"]}, {"explore_once": False}, {"oversampling": 0.5},
        {"oversample": "random"}, {"explore_center": "concatenated"}, {"similarity": "cross"},
        {"singletons": "released"}, {"shift_law": "printed"}, {"heaviest": 0.0},
    ],
)  # fmt: skip
def test_options_of_steps_that_couple_records_are_refused(options: Mapping[str, object]):
    with pytest.raises(UsageError, match=next(iter(options))):
        build(StableFDGDP, options, where="method")


def test_the_papers_preset_fits():
    method = build(StableFDGDP, load_preset("stablefdg-paper")["method"], where="method")

    assert method.mix_alpha == 0.1
    assert method.unbiased is False


def test_styles_of_another_network_and_of_another_kind_are_refused(clients: list[Client]):
    other = phi(1.0, channels=8)
    batch, network = prepared(METHOD, clients).batch(), start(METHOD).module()
    made = ALWAYS.objective(
        clients[0], model=start(ALWAYS), inbox={CENTER: other}, state={}, clock=CLOCK, rng=drawn("fit")
    )

    with pytest.raises(ArtifactError, match="32 channels is expected at stage1; got 8"):
        made(batch, network)
    with pytest.raises(TypeError, match="explores about a StyleDistribution; received a ModelState"):
        ALWAYS.objective(
            clients[0],
            model=start(ALWAYS),
            inbox={CENTER: start(ALWAYS).state},
            state={},
            clock=CLOCK,
            rng=drawn("fit"),
        )


def test_negative_stds_are_counted_in_the_clients_state(clients: list[Client]):
    counted = federated(ALWAYS, clients).states["client:0"][NEGATIVE_STDS]

    assert 0 < int(counted[0]) < int(counted[1])


def test_its_preset_trains_without_batch_norm():
    preset = load_preset("stablefdg-dp")

    assert not build(StableFDGDP, preset["method"], where="method").plan.freeze_norm
    assert preset["run"]["norm"] == "group"

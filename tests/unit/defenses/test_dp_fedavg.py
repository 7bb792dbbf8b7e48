"""Client-level DP-FedAvg: clipped, noised, nothing told beside it, and what the ledger says of it to whom."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fdgsec.defenses import dp_fedavg
from fdgsec.defenses.dp_fedavg import DPFedAvg, clipped
from fdgsec.defenses.guards import Guards
from fdgsec.defenses.secure_aggregation import SecureAggregation
from fdgsec.federation.artifacts import Artifact, ModelState
from fdgsec.federation.defense import Defense
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client
from fdgsec.federation.round_loop import RoundLoop
from fdgsec.federation.wire import Receipt, Upload, Wire
from fdgsec.methods.fedavg import FedAvg
from fdgsec.methods.feddg_ga import FedDGGA
from fdgsec.nn.networks.classifiers import build_classifier
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.privacy.ledger import Guarantee, Ledger
from fdgsec.privacy.mechanisms import noise_multiplier
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import simulated_key, simulated_stream
from tests.support.toy_federation import PeerReviewed, PixelStyles, images, start

PLAN = TrainingPlan(steps=1, batch_size=4, crop=None, learning_rate=0.1)
CLIENTS = 3


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A finished run: the models and numbers that went up, the model before and after, and the guarantees."""

    before: Tensor
    sent: Sequence[Tensor]
    numbers: Sequence[list[float]]
    after: Tensor
    guarantees: Sequence[Guarantee]
    metrics: Sequence[object]


def grouped() -> GlobalModel:
    state = build_classifier("tiny", 2, norm="group", rng=stream(0, "world", "start")).state_dict()
    blueprint = Blueprint(backbone="tiny", classes=2, norm="group")
    return GlobalModel(blueprint=blueprint, state=ModelState(state=dict(state)))


def flat(artifact: Artifact) -> Tensor:
    return torch.cat([value.flatten().double() for _, value in sorted(artifact.tensors().items())])


def ran(
    *defenses: Defense,
    method: FedAvg | None = None,
    model: GlobalModel | None = None,
    rounds: int = 1,
    sizes: Sequence[int] = (8,) * CLIENTS,
    participation: float = 1.0,
) -> Ran:
    method = method or FedAvg(plan=PLAN)
    members = [Client(name=f"client:{number}", data=images(size, f"c{number}")) for number, size in enumerate(sizes)]
    defense_stack = DefenseStack(defenses=defenses)
    defense_stack.check(method)
    wire = Wire(
        secret=lambda upload, number: simulated_stream(0, "server", upload.round, upload.sender, number),
        filters=defense_stack.filters, policies=defense_stack.policies, keep=lambda message: True,
    )  # fmt: skip
    reports: list[object] = []
    driver = RoundLoop(
        method=method, engine=LocalEngine(members=members, method=method, seed=0, defense_stack=defense_stack), wire=wire, key=simulated_key(0),
        rounds=rounds, participation=participation,
        on_round=lambda report, model: reports.append([dict(one) for one in report.metrics.values()]),
    )  # fmt: skip
    begun = model or grouped()
    made = driver.run(begun)
    assert made is not None
    up = [message.artifact for message in wire.transcript.messages() if message.stage == "update"]
    return Ran(
        before=flat(begun.state), after=flat(made.state), metrics=reports,
        sent=[flat(artifact) for artifact in up if artifact.kind == "ModelState"],
        numbers=[artifact.tensors()["values"].tolist() for artifact in up if artifact.kind == "Scores"],
        guarantees=wire.ledger.guarantees(delta=1e-5),
    )  # fmt: skip


def test_without_noise_a_message_is_the_received_model_and_a_change_of_the_clipped_length():
    plain, held = ran(), ran(DPFedAvg(noise_multiplier=0, clip=0.01))

    for free, sent in zip(plain.sent, held.sent, strict=True):
        learned = free - plain.before
        expected = plain.before + learned * 0.01 / float(learned.norm())
        assert float(learned.norm()) > 0.02
        torch.testing.assert_close(sent, expected, atol=1e-7, rtol=0)  # float32 of parameters below 1


def test_what_noise_is_added_to_is_clipped_in_float64(monkeypatch: pytest.MonkeyPatch):
    """A change that is computed in float32 keeps the bound to 6e-8 only."""
    seen: list[Tensor] = []

    def kept(values: Mapping[str, Tensor], sd: float, **options: object) -> dict[str, Tensor]:
        seen.append(torch.cat([value.flatten() for value in values.values()]))
        return dict(values)

    monkeypatch.setattr(dp_fedavg, "noisy_together", kept)

    ran(DPFedAvg(noise_multiplier=1, clip=0.01), sizes=(8,))

    assert seen
    for change in seen:
        assert change.dtype == torch.float64
        assert float(change.norm()) == pytest.approx(0.01, rel=1e-12)


def test_changes_below_the_bound_are_left_alone():
    plain, held = ran(), ran(DPFedAvg(noise_multiplier=0, clip=1e3))

    for free, sent in zip(plain.sent, held.sent, strict=True):
        torch.testing.assert_close(sent, free, atol=1e-7, rtol=0)


@pytest.mark.parametrize(("trust", "share"), [("local", 1.0), ("distributed", 1 / math.sqrt(CLIENTS))])
def test_each_message_carries_its_share_of_the_noise(trust: Literal["local", "distributed"], share: float):
    quiet = ran(DPFedAvg(noise_multiplier=0, clip=0.5))
    noisy = ran(DPFedAvg(noise_multiplier=2, clip=0.5, trust=trust))

    noise = [with_it - without for with_it, without in zip(noisy.sent, quiet.sent, strict=True)]

    numbers = noise[0].numel()
    for one in noise:  # relative sd of an sd: 1 / sqrt(2 n)
        assert float(one.std()) == pytest.approx(2 * 0.5 * share, rel=5 / math.sqrt(2 * numbers))
        assert abs(float(one.mean())) < 5 * 2 * 0.5 * share / math.sqrt(numbers)
    assert abs(float(torch.corrcoef(torch.stack(noise[:2]))[0, 1])) < 5 / math.sqrt(numbers)


@pytest.mark.parametrize("trust", ["distributed", "server"])
def test_the_mean_of_the_models_carries_the_sums_noise_over_the_number_of_clients(
    trust: Literal["distributed", "server"],
):
    quiet = ran(DPFedAvg(noise_multiplier=0, clip=0.5))
    noisy = ran(DPFedAvg(noise_multiplier=2, clip=0.5, trust=trust))

    noise = noisy.after - quiet.after

    assert float(noise.std()) == pytest.approx(2 * 0.5 / CLIENTS, rel=5 / math.sqrt(2 * noise.numel()))


@pytest.mark.medium
def test_a_trusted_server_sees_clipped_models_without_noise_and_adds_other_noise_every_round():
    quiet = ran(DPFedAvg(noise_multiplier=0, clip=0.5), rounds=2)
    noisy = ran(DPFedAvg(noise_multiplier=2, clip=0.5, trust="server"), rounds=2)

    for one, other in zip(noisy.sent[:CLIENTS], quiet.sent[:CLIENTS], strict=True):
        assert torch.equal(one, other)
    once = ran(DPFedAvg(noise_multiplier=2, clip=0.5, trust="server"), rounds=1)
    assert float((noisy.after - once.after).std()) > 0.2


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
@pytest.mark.medium
def test_all_rounds_together_cost_the_epsilon_asked_for(rounds: int, relation: Literal["zero-out", "replace-one"]):
    found = ran(DPFedAvg(epsilon=4, neighbors=relation), rounds=rounds).guarantees

    assert [one.part for one in found] == ["run"]
    assert found[0].epsilon == pytest.approx(4, rel=1e-6)
    assert (found[0].unit, found[0].relation, found[0].uncovered) == ("client", relation, ())


def test_the_multiplier_is_that_of_one_release_times_the_root_of_the_rounds():
    defense = DPFedAvg(epsilon=2, delta=1e-6, clip=3.0)

    assert defense.multiplier(9) == pytest.approx(3 * noise_multiplier(2, 1e-6), rel=1e-12)
    assert replace(defense, neighbors="replace-one").multiplier(1) == pytest.approx(2 * noise_multiplier(2, 1e-6))


@pytest.mark.medium
def test_sampling_a_part_of_the_clients_amplifies_nothing():
    found = ran(DPFedAvg(noise_multiplier=1.5), rounds=4, participation=0.34).guarantees[0]
    alone = ran(DPFedAvg(noise_multiplier=1.5), rounds=1).guarantees[0]

    assert found.epsilon is not None
    assert alone.epsilon is not None
    assert found.epsilon >= alone.epsilon


def test_neither_sizes_nor_losses_go_up():
    found = ran(DPFedAvg(), sizes=(8, 16, 24))

    assert found.numbers == [[1.0]] * 3
    assert found.metrics == [[{}, {}, {}]]


def test_the_capped_weight_scales_the_change_and_is_not_told():
    even = ran(DPFedAvg(noise_multiplier=0, clip=0.01), sizes=(8, 16, 64))
    capped = ran(DPFedAvg(noise_multiplier=0, clip=0.01, weight_cap=32), sizes=(8, 16, 64))

    shares = [
        float((one - capped.before).norm() / (other - even.before).norm())
        for one, other in zip(capped.sent, even.sent, strict=True)
    ]

    assert shares == pytest.approx([0.25, 0.5, 1.0], rel=1e-3)
    assert capped.numbers == [[1.0]] * 3


@pytest.mark.medium
def test_single_messages_of_distributed_noise_are_accounted_as_weak_as_they_are():
    strong, weak = ran(DPFedAvg(epsilon=2)), ran(DPFedAvg(epsilon=2, trust="distributed"))

    expected = ran(DPFedAvg(noise_multiplier=noise_multiplier(2, 1e-5) / math.sqrt(CLIENTS)))

    assert strong.guarantees[0].epsilon == pytest.approx(2, rel=1e-6)
    assert [one.part for one in weak.guarantees] == ["run"]
    assert weak.guarantees[0].epsilon == pytest.approx(expected.guarantees[0].epsilon, rel=1e-9)


@pytest.mark.medium
def test_where_the_wire_sums_distributed_noise_keeps_what_it_promised_to_who_sees_sums_alone():
    found = ran(DPFedAvg(epsilon=2, trust="distributed"), SecureAggregation(), rounds=2).guarantees

    assert [one.part for one in found] == ["run", "run against who sees sums alone"]
    assert found[1].epsilon == pytest.approx(2, rel=1e-6)


def test_a_trusted_servers_noise_is_that_of_the_mean_under_secure_aggregation_too():
    quiet = ran(DPFedAvg(noise_multiplier=0, clip=0.5))
    noisy = ran(DPFedAvg(noise_multiplier=2, clip=0.5, trust="server"), SecureAggregation())

    noise = noisy.after - quiet.after

    assert float(noise.std()) == pytest.approx(2 * 0.5 / CLIENTS, rel=5 / math.sqrt(2 * noise.numel()))


def test_a_trusted_server_promises_nothing_against_itself_and_the_ledger_names_against_whom_it_does():
    run, against = ran(DPFedAvg(epsilon=2, trust="server"), rounds=2).guarantees

    assert run.epsilon is None
    assert run.uncovered == ("update/model",)
    assert against.part == "run against other clients and readers of the model, who read no uploads"
    assert against.epsilon == pytest.approx(2, rel=1e-6)


@pytest.mark.parametrize("value", [1.0, 1e30])
def test_a_trusted_server_bounds_what_each_client_changes_itself(value: float):
    model, ledger, defense = grouped(), Ledger(), DPFedAvg(noise_multiplier=0, clip=0.5, trust="server")
    sent = [model.state, ModelState(state={name: held + value for name, held in model.state.state.items()})]
    for number in range(2):
        ledger.write(f"client:{number}", round=0, stage="update", kinds={"model": "ModelState"}, uses={})
    uploads = [
        Upload(round=0, stage="update", sender=f"client:{number}", artifacts={"model": one})
        for number, one in enumerate(sent)
    ]
    receipt = Receipt(uploads=uploads, model=model, rounds=1, rng=simulated_stream(0, "server"), ledger=ledger)

    (mean, _) = (upload.artifacts["model"] for upload in defense.on_received(receipt))

    change = float((flat(mean) - flat(model.state)).norm())
    assert change == pytest.approx(0.5 / 2, abs=1e-5)  # float32 of the sent mean


def test_the_rounding_of_a_sum_to_float32_is_in_the_sensitivity_of_the_noise_that_is_added_to_it():
    start = grouped()
    model = replace(start, state=ModelState(state={name: value + 1e4 for name, value in start.state.state.items()}))
    defense, ledger = DPFedAvg(clip=1.0, trust="server"), Ledger()
    rng = stream(0, "world", "changes")
    drawn = {name: torch.randn(value.shape, generator=rng).double() for name, value in model.state.state.items()}
    change = clipped(drawn, 1.0)

    def summed(*changes: float) -> Upload:
        states = [
            {name: (value.double() + by * change[name]).float() for name, value in model.state.state.items()}
            for by in changes
        ]
        uploads = [
            Upload(round=0, stage="update", sender=f"client:{number}", artifacts={"model": ModelState(state=state)})
            for number, state in enumerate(states)
        ]
        (total,) = SecureAggregation().policy().on_collected(uploads, simulated_stream(0))
        return total

    for number in range(2):
        ledger.write(f"client:{number}", round=0, stage="update", kinds={"model": "ModelState"}, uses={})
    learned, nothing = summed(1.0, 0.7), summed(0.0, 0.7)
    receipt = Receipt(uploads=[learned], model=model, rounds=1, rng=simulated_stream(0, "server"), ledger=ledger)
    defense.on_received(receipt)

    uses = ledger.restated[-1].uses
    assert uses is not None
    (use,) = uses
    moved = 2 * float((flat(learned.artifacts["model"]) - flat(nothing.artifacts["model"])).norm())
    assert 1.001 < moved <= use.sensitivity["zero-out"]
    assert use.noise == pytest.approx(defense.multiplier(1) * use.sensitivity["zero-out"])


def test_the_servers_noise_comes_before_anything_that_would_change_the_sum():
    defense_stack = DefenseStack(defenses=[Guards(center="median"), DPFedAvg(trust="server")])

    assert [type(one) for one in defense_stack.filters] == [DPFedAvg, Guards]


def test_other_releases_of_the_method_stay_uncovered_and_are_named():
    run, part = ran(DPFedAvg(epsilon=2), method=PixelStyles(plan=PLAN)).guarantees

    assert (run.part, run.epsilon, run.uncovered) == ("run", None, ("share/style",))
    assert (part.part, part.covers) == ("model only", ("update/model", "update/numbers"))
    assert part.epsilon == pytest.approx(2, rel=1e-6)


def test_the_number_of_clients_is_printed_with_the_guarantee():
    assert "N = 3 clients, no amplification by sampling: a demonstration" in ran(DPFedAvg()).guarantees[0].assumptions


def test_batch_norm_is_refused_with_the_way_out():
    with pytest.raises(UsageError, match=r"--norm group, or dp-fedavg:buffers=received"):
        ran(DPFedAvg(), model=start())


def test_received_buffers_go_back_as_they_came():
    model = start()
    names = {name for name, _ in model.module().named_parameters()}

    found = ran(DPFedAvg(noise_multiplier=1, buffers="received"), model=model)

    order = sorted(model.state.state)
    pieces = found.sent[0].split([model.state.state[name].numel() for name in order])
    for name, piece in zip(order, pieces, strict=True):
        same = torch.equal(piece, model.state.state[name].flatten().double())
        assert same == (name not in names)


def test_a_method_whose_server_weighs_reported_losses_is_refused():
    with pytest.raises(UsageError, match="keeps clients' losses and sizes, by which the server of PeerReviewed weighs"):
        ran(DPFedAvg(), method=PeerReviewed(plan=PLAN))
    with pytest.raises(UsageError, match=r"keeps clients' numbers \(gap\), by which the server of"):
        DPFedAvg().check(FedDGGA(plan=PLAN, rule="pardon"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"clip": 0.0}, "clip"),
        ({"clip": math.inf}, "clip"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"weight_cap": 0}, "weight_cap"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, float], said: str):
    with pytest.raises(UsageError, match=said):
        DPFedAvg(**options)  # type: ignore[arg-type]


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**31), scale=st.floats(-9, 9), bound=st.floats(1e-3, 1e3), width=st.integers(1, 40))
@pytest.mark.medium
def test_no_client_moves_a_sum_by_more_than_its_sensitivity(seed: int, scale: float, bound: float, width: int):
    rng = stream(seed, "world", "pairs")
    for _ in range(100):  # 10,000 pairs
        sizes = (10 ** (scale + 6 * torch.rand(4, generator=rng, dtype=torch.float64) - 3)).unsqueeze(1)
        drawn = sizes * torch.randn(4, width, generator=rng, dtype=torch.float64)
        held = clipped({"w": drawn[0], "b": drawn[1]}, bound)
        instead = clipped({"w": drawn[2], "b": drawn[3]}, bound)
        apart = torch.cat([held[name] - instead[name] for name in held])
        assert float(torch.cat([*held.values()]).norm()) <= bound * (1 + 1e-12)  # zero-out
        assert float(apart.norm()) <= 2 * bound * (1 + 1e-12)  # replace-one

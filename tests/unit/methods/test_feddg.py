"""FedDG in the round loop: what is shared, with whom, and what its options refuse."""

from collections.abc import Mapping

import pytest
import torch

from fdgsec.data.domains import as_float
from fdgsec.experiments.run_config import build, load_preset
from fdgsec.federation.artifacts import Amplitudes, Artifact, ModelState
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import SHARED_ROWS, Client, Clock
from fdgsec.federation.stacked_methods import Stacked
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedavg import FedAvg
from fdgsec.methods.feddg import Episode, FedDG
from fdgsec.nn.styles.amplitude_spectra import amplitudes
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from tests.support.round_loop import Outcome, federated, four_clients

PLAN = TrainingPlan(batch_size=8, learning_rate=0.05)
CLOCK = Clock(round=0, rounds=2, participants=("client:0",))
ROW = 3 * 32 * 17 * 4 + 8  # a half spectrum in float32, its owner in int64
NAMES = [f"client:{i}" for i in range(4)]


@pytest.fixture(scope="module")
def members() -> list[Client]:
    return four_clients()


@pytest.fixture(scope="module")
def outcome(members: list[Client]) -> Outcome:
    return federated(FedDG(plan=PLAN), members, recode=False)


def extra(outcome: Outcome) -> list[tuple[int, str, str, str, str, int]]:
    rows = outcome.transcript.rows
    hidden = ("ModelState", "Scores")
    return [(r.round, r.stage, r.sender, r.receiver, r.kind, r.bytes) for r in rows if r.kind not in hidden]


@pytest.mark.medium
def test_spectra_go_up_once_and_the_whole_bank_comes_down_to_everybody(outcome: Outcome):
    assert extra(outcome) == [
        *[(0, "share", name, "server", "Amplitudes", 2 * ROW) for name in NAMES],
        *[(0, "combine", "server", name, "Amplitudes", 8 * ROW) for name in NAMES],
    ]


@pytest.mark.medium
def test_the_bank_is_attributed(outcome: Outcome):
    banks = [m.artifact for m in outcome.transcript.messages() if m.stage == "combine"]

    assert isinstance(banks[0], Amplitudes)
    assert banks[0].owner.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.medium
def test_a_run_through_bytes_is_the_plain_run(outcome: Outcome, members: list[Client]):
    again = federated(FedDG(plan=PLAN), members, recode=True)

    assert again.transcript.sha256 == outcome.transcript.sha256
    assert all(torch.equal(again.model[key], value) for key, value in outcome.model.items())


def test_an_eighth_of_the_images_is_shared_and_their_rows_are_remembered(members: list[Client]):
    shared, state = FedDG().share(members[0], model=None, state={}, clock=CLOCK, rng=stream(0, "world", "t"))

    sent = shared["amplitudes"]
    assert isinstance(sent, Amplitudes)
    assert len(state[SHARED_ROWS]) == len(members[0].data) // 8
    assert torch.equal(sent.values, amplitudes(as_float(members[0].data.pixels(state[SHARED_ROWS]))))


def test_releasing_all_shares_every_image_and_a_small_client_at_least_one(members: list[Client]):
    small = Client(name="client:0", data=members[0].data.subset(torch.arange(3)))
    released = FedDG().releasing_all()
    assert released is not None

    counts = [
        len(method.share(small, model=None, state={}, clock=CLOCK, rng=stream(0, "world", "t"))[1][SHARED_ROWS])
        for method in (FedDG(), released)
    ]

    assert counts == [1, 3]


def test_the_objective_sees_only_other_clients_spectra(members: list[Client], outcome: Outcome):
    bank = next(m.artifact for m in outcome.transcript.messages() if m.stage == "combine")
    made = objective_of(FedDG(), members[2], {"amplitudes": bank})

    assert made.bank.owner[made.foreign].tolist() == [0, 0, 1, 1, 3, 3]


def objective_of(method: FedDG, client: Client, inbox: Mapping[str, Artifact], backbone: str = "tiny") -> Episode:
    model = GlobalModel(blueprint=Blueprint(backbone=backbone, classes=7), state=ModelState(state={}))
    made = method.objective(client, model=model, inbox=inbox, state={}, clock=CLOCK, rng=stream(0, "world", "t"))
    assert isinstance(made, Episode)
    return made


def test_the_episode_has_the_methods_options(members: list[Client]):
    options = {"low_frequency": 0.1, "least_window": 2, "ratios": (0.2,), "meta_step": 0.5, "clip_value": 3.0}
    two = Amplitudes(values=torch.zeros(2, 3, 32, 17), owner=torch.tensor([0, 1]))

    made = objective_of(build(FedDG, options, where="method"), members[0], {"amplitudes": two})

    assert {name: getattr(made, name) for name in options} == options


def test_mixed_images_stay_images(members: list[Client]):
    bright = Amplitudes(values=torch.full((2, 3, 32, 17), 1e4), owner=torch.tensor([0, 1]))
    images = torch.rand(4, 3, 32, 32, generator=stream(0, "world", "t"))

    mixed = objective_of(FedDG(), members[0], {"amplitudes": bright}).mixed(images)

    assert (float(mixed.min()), float(mixed.max())) == (0.0, 1.0)


def test_a_lonely_client_a_missing_bank_and_a_network_without_second_derivative_are_refused(members: list[Client]):
    own = Amplitudes(values=torch.zeros(1, 3, 32, 17), owner=torch.tensor([0]))
    two = Amplitudes(values=torch.zeros(2, 3, 32, 17), owner=torch.tensor([0, 1]))

    with pytest.raises(UsageError, match="client:0 received spectra of no other client"):
        objective_of(FedDG(), members[0], {"amplitudes": own})
    with pytest.raises(TypeError, match="client:0 should hold Amplitudes in 'amplitudes'; it holds nothing"):
        objective_of(FedDG(), members[0], {})
    with pytest.raises(UsageError, match="meta_gradient=first-order"):
        objective_of(FedDG(), members[0], {"amplitudes": two}, backbone="mobilenet_v3_large")
    assert objective_of(FedDG(meta_gradient="first-order"), members[0], {"amplitudes": two}, "mobilenet_v3_large")


def test_the_window_reaches_frequency_1_unless_released(members: list[Client]):
    bank = {"amplitudes": Amplitudes(values=torch.zeros(2, 3, 32, 17), owner=torch.tensor([0, 1]))}
    images = torch.rand(1, 3, 32, 32, generator=stream(0, "world", "t")) * 0.1 + 0.5
    released = build(FedDG, load_preset("feddg-released")["method"], where="method")

    changed = [
        int(
            ((amplitudes(objective_of(method, members[0], bank).mixed(images)) - amplitudes(images)).abs() > 1e-2).sum()
        )
        for method in (FedDG(), released)
    ]

    assert changed == [3 * 6, 3 * 1]  # of 3 channels: rows -1..1 x columns 0..1, and the mean alone


@pytest.mark.medium
def test_on_top_of_ccst_spectra_travel_beside_the_styles_and_train_other_weights(members: list[Client]):
    method = CCST(k=2, plan=PLAN)
    stacked = Stacked(base=method, local=FedDG())

    alone, made, again = (
        federated(one, members, recode=recode) for one, recode in ((method, False), (stacked, False), (stacked, True))
    )

    sent = [(stage, receiver, kind, size) for _, stage, _, receiver, kind, size in extra(made)]
    up = [("share", "server", "StyleStatistics", 2 * 256 * 4), ("share", "server", "Amplitudes", 2 * ROW)]
    bank = 4 * (2 * 256 * 4 + 8)
    down = [("combine", name, *what) for name in NAMES for what in (("StyleBank", bank), ("Amplitudes", 8 * ROW))]
    assert sent == up * 4 + down
    assert [kind for *_, kind, _ in extra(alone)] == ["StyleStatistics"] * 4 + ["StyleBank"] * 4
    assert again.transcript.sha256 == made.transcript.sha256
    assert not torch.equal(alone.model["head.weight"], made.model["head.weight"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share_of_images": 0.0}, "share_of_images in"),
        ({"low_frequency": 1.5}, "low_frequency in"),
        ({"ratios": []}, "ratios in"),
        ({"ratios": [0.2, 1.2]}, "ratios in"),
        ({"meta_step": 0.0}, "meta_step and clip_value above 0"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, float], message: str):
    with pytest.raises(UsageError, match=message):
        build(FedDG, options, where="method")


def test_a_local_method_below_feddg_and_an_empty_client_are_refused(members: list[Client]):
    with pytest.raises(UsageError, match="trains its own objective"):
        FedDG(local=FedAvg()).check(3)
    empty = Client(name="client:9", data=members[0].data.subset(torch.zeros(0, dtype=torch.int64)))
    with pytest.raises(UsageError, match="client:9 has no images"):
        FedDG().share(empty, model=None, state={}, clock=CLOCK, rng=stream(0, "world", "t"))


@pytest.mark.parametrize(("preset", "kind"), [("feddg-paper", "second-order"), ("feddg-released", "unconnected")])
def test_presets_build(preset: str, kind: str):
    assert build(FedDG, load_preset(preset)["method"], where="method").meta_gradient == kind

"""FedCCRL's exchange and its options, and two rounds of it on the wire."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor

from fdgsec.data.domains import as_float
from fdgsec.data.shapes import shapes
from fdgsec.experiments.run_config import build, load_preset, resolve_settings
from fdgsec.federation.artifacts import ImageStyles, StyleBank, StyleStatistics
from fdgsec.federation.engines.local import LocalEngine
from fdgsec.federation.engines.state import FileStates
from fdgsec.federation.method import Client, Inbox
from fdgsec.federation.round_loop import RoundLoop
from fdgsec.federation.wire import Wire
from fdgsec.methods.fedavg import FedAvg
from fdgsec.methods.fedccrl import FedCCRL, normalized
from fdgsec.nn.styles.feature_styles import instance_statistics
from fdgsec.nn.training.training_plan import TrainingPlan
from fdgsec.runtime.errors import ArtifactError, UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import simulated_key, simulated_stream
from tests.support.three_clients import CLOCK, PLAN, Outcome, clients, pooled_rounds, run


def banks(outcome: Outcome) -> list[tuple[int, str, StyleBank]]:
    return [
        (message.round, message.receiver, cast(StyleBank, message.artifact))
        for message in outcome.transcript.messages()
        if message.stage == "combine"
    ]


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return run(FedCCRL(plan=PLAN, upload_ratio=0.3))


def test_two_rounds_put_exactly_these_messages_on_the_wire(outcome: Outcome):
    assert outcome.messages == pooled_rounds(2)


def test_encoding_and_decoding_every_message_changes_nothing(outcome: Outcome):
    recoded = run(FedCCRL(plan=PLAN, upload_ratio=0.3), recode=True)

    assert recoded.transcript.sha256 == outcome.transcript.sha256
    assert all(torch.equal(value, outcome.model[name]) for name, value in recoded.model.items())


def test_the_received_pool_holds_everybody_elses_rows_and_never_ones_own(outcome: Outcome):
    uploads = {(m.round, m.sender): m.artifact.tensors() for m in outcome.transcript.messages() if m.stage == "share"}

    for number, receiver, bank in banks(outcome):
        others = [name for name in ("client:0", "client:1", "client:2") if name != receiver]
        assert torch.equal(bank.mean, torch.cat([uploads[number, name]["mean"] for name in others]))
        assert torch.equal(bank.std, torch.cat([uploads[number, name]["std"] for name in others]))
        assert int(receiver[-1]) not in bank.owner.tolist()


def test_other_images_are_released_every_round(outcome: Outcome):
    released = {
        (m.round, m.sender): m.artifact.tensors()["mean"] for m in outcome.transcript.messages() if m.stage == "share"
    }

    assert not torch.equal(released[0, "client:0"], released[1, "client:0"])


def test_the_state_says_which_images_are_behind_the_rows_of_the_last_round(outcome: Outcome):
    last = {m.sender: m.artifact.tensors() for m in outcome.transcript.messages() if (m.round, m.stage) == (1, "share")}

    for client in clients():
        chosen = client.data.pixels(outcome.states[client.name]["shared_rows"])
        mean, std = instance_statistics(normalized(as_float(chosen)))
        assert torch.allclose(last[client.name]["mean"], mean.flatten(1), rtol=1e-5, atol=1e-5)
        assert torch.allclose(last[client.name]["std"], std.flatten(1), rtol=1e-5)


def test_releasing_all_releases_a_row_for_every_image():
    method = FedCCRL(upload_ratio=0.1).releasing_all()
    assert method is not None

    shared, state = method.share(clients()[1], model=None, state={}, clock=CLOCK, rng=stream(0, "world", "t"))

    assert shared["statistics"].tensors()["mean"].shape == (10, 3)
    assert sorted(state["shared_rows"].tolist()) == list(range(10))


@pytest.mark.parametrize(("ratio", "count"), [(0.29, 29), (0.1, 10), (0.999, 99), (0.009, 0), (1.0, 100)])
def test_the_share_of_a_hundred_images_is_rounded_down(ratio: float, count: int):
    data = shapes(image_size=32, per_domain=28)
    hundred = data.subset(torch.arange(112)[:100])

    shared, _ = FedCCRL(upload_ratio=ratio).share(
        Client(name="client:0", data=hundred), model=None, state={}, clock=CLOCK, rng=stream(0, "world", "t")
    )

    assert shared["statistics"].tensors()["std"].shape == (count, 3)


def test_a_client_that_releases_no_row_can_still_be_stored_and_encoded(tmp_path: Path):
    client = clients()[2]
    shared, state = FedCCRL().share(client, model=None, state={}, clock=CLOCK, rng=stream(0, "world", "t"))

    FileStates(folder=tmp_path).write("client:2", state)

    assert FileStates(folder=tmp_path).read("client:2")["shared_rows"].shape == (0,)
    assert shared["statistics"].bytes == 0
    assert len(shared["statistics"].sha256) == 64


@pytest.mark.parametrize("members", [1, 3])
def test_training_with_an_empty_pool_is_refused_and_says_what_to_do(members: int):
    few = [replace(client, data=client.data.subset(torch.arange(7))) for client in clients()[:members]]

    with pytest.raises(UsageError, match=r"client:0 received an empty pool; .* at least 10 images"):
        run(FedCCRL(plan=PLAN, upload_ratio=0.1), members=few)


def test_one_client_alone_can_exchange_without_training():
    wire = Wire(secret=lambda message, number: simulated_stream(0))
    engine = LocalEngine(members=clients()[:1], method=FedCCRL(), seed=0)

    RoundLoop(method=FedCCRL(), engine=engine, wire=wire, key=simulated_key(0), rounds=0).run(None)

    assert [(row.stage, row.bytes) for row in wire.transcript.rows] == [("share", 24), ("combine", 0)]


@pytest.mark.parametrize(("rows", "channels"), [(4, 5), (4, 1)])
def test_a_pool_of_other_channels_is_refused(rows: int, channels: int):
    bank = StyleBank(mean=torch.zeros(rows, channels), std=torch.ones(rows, channels), owner=torch.ones(rows).long())

    with pytest.raises(ArtifactError, match="must have rows of 3 channels"):
        FedCCRL().received_pool(clients()[0], {"pool": bank}, {}, stream(0, "world", "t"))


def test_foreign_artifacts_are_refused():
    style: Inbox = {"statistics": StyleStatistics(mean=torch.zeros(3), std=torch.ones(3))}

    with pytest.raises(TypeError, match="should hold ImageStyles in 'statistics'; it holds StyleStatistics"):
        FedCCRL().combine({"client:0": style}, server={}, clock=CLOCK, rng=simulated_stream(0))
    with pytest.raises(TypeError, match="should hold StyleBank in 'pool'; it holds StyleStatistics"):
        FedCCRL().received_pool(clients()[0], {"pool": style["statistics"]}, {}, stream(0, "world", "t"))


@pytest.mark.medium
def test_the_pool_changes_the_model_unless_it_is_ignored():
    def model(ratio: float, *, ignore_pool: bool) -> Tensor:
        return run(FedCCRL(plan=PLAN, upload_ratio=ratio, ignore_pool=ignore_pool), rounds=1).model["head.weight"]

    assert not torch.equal(model(0.3, ignore_pool=False), model(0.9, ignore_pool=False))
    assert torch.equal(model(0.3, ignore_pool=True), model(0.9, ignore_pool=True))


def test_records_are_coupled_by_contrast_and_by_mixing_inside_the_batch():
    assert FedCCRL().couples_records
    assert not FedCCRL(contrast=0.0).couples_records
    assert FedCCRL(contrast=0.0, ignore_pool=True).couples_records
    assert not FedCCRL(contrast=0.0, ignore_pool=True, mixing=False).couples_records


def test_nothing_is_drawn_from_torchs_own_stream():
    before = torch.random.get_rng_state()

    run(FedCCRL(plan=PLAN, upload_ratio=0.3), rounds=1)

    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"upload_ratio": 0.0}, "upload_ratio must lie in"),
        ({"upload_ratio": 1.1}, "upload_ratio must lie in"),
        ({"alpha": 0.0}, "alpha and temperature must be above 0"),
        ({"temperature": -1.0}, "alpha and temperature must be above 0"),
        ({"contrast": -0.1}, "contrast and agreement at least 0"),
        ({"local": FedAvg()}, "has a local objective of its own"),
    ],
)
def test_options_out_of_range_are_refused(wrong: dict[str, object], message: str):
    with pytest.raises(UsageError, match=message):
        FedCCRL(**wrong).check(3)  # type: ignore[arg-type]


def test_the_preset_is_what_the_authors_run():
    preset = load_preset("fedccrl-paper")

    method = build(FedCCRL, preset["method"], where="method")
    config = resolve_settings({}, preset="fedccrl-paper", defaults={"method": "fedccrl"})

    assert method == FedCCRL(
        keep_optimizer=True,
        plan=TrainingPlan(
            epochs=3, batch_size=32, optimizer="adam", learning_rate=1e-3, weight_decay=1e-4, schedule="cosine-epoch",
            crop=None, flip=0.0, precision="float32",
        ),
    )  # fmt: skip
    assert (config.backbone, config.pretrained, config.rounds, config.clients) == ("mobilenet_v3_large", True, 10, 6)


def test_shared_rows_are_styles_of_three_channels_in_float32(outcome: Outcome):
    shared = [m.artifact for m in outcome.transcript.messages() if m.stage == "share"]

    assert all(isinstance(artifact, ImageStyles) and artifact.mean.dtype == torch.float32 for artifact in shared)
    assert [artifact.tensors()["mean"].shape[1] for artifact in shared] == [3] * 6


def test_a_row_depends_on_its_image_alone():
    data = clients()[0].data
    method = FedCCRL(upload_ratio=0.3)

    whole, state = method.share(
        Client(name="client:0", data=data), model=None, state={}, clock=CLOCK, rng=stream(0, "world", "t")
    )
    alone, _ = FedCCRL(upload_ratio=1.0).share(
        Client(name="client:0", data=data.subset(state["shared_rows"])),
        model=None, state={}, clock=CLOCK, rng=stream(0, "world", "u"),
    )  # fmt: skip

    rows = {tuple(row) for row in whole["statistics"].tensors()["mean"].tolist()}
    assert rows == {tuple(row) for row in alone["statistics"].tensors()["mean"].tolist()}

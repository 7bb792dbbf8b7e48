"""What each of the five methods sends beside the model, to the byte: kind, shape, how often, from whom to whom.

Four clients, two rounds, backbone tiny (32 channels after stage 1), encoder mini (256 channels)."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from fdgsec.experiments.run_config import build
from fdgsec.federation.method import Client, Method
from fdgsec.federation.wire import Message
from fdgsec.runtime.registry import resolve
from tests.support.round_loop import federated, four_clients

ALL = ("client:0", "client:1", "client:2", "client:3")
IMAGES = 17  # of each client, after validation images were split off


@dataclass(frozen=True, kw_only=True)
class Line:
    """One kind of message: its stage, kind, tensors, payload bytes, rounds, and how many go where in a round."""

    stage: str
    kind: str
    shapes: Mapping[str, tuple[int, ...]]
    bytes: int
    rounds: tuple[int, ...]
    per_round: int
    up: bool


ONCE, EVERY = (0,), (0, 1)
STYLE = {"mean": (256,), "std": (256,)}

TABLE: Mapping[str, tuple[dict[str, object], tuple[Line, ...]]] = {
    "ccst": (
        {"style": "overall"},
        (
            Line(stage="share", kind="StyleStatistics", shapes=STYLE, bytes=2048, rounds=ONCE, per_round=4, up=True),
            Line(
                stage="combine", kind="StyleBank", shapes={"mean": (4, 256), "std": (4, 256), "owner": (4,)},
                bytes=4 * 2048 + 4 * 8, rounds=ONCE, per_round=4, up=False,
            ),
        ),
    ),
    "stablefdg": (
        {},
        tuple(
            Line(
                stage=stage, kind="StyleDistribution", bytes=4 * 32 * 4, rounds=EVERY, per_round=4, up=stage == "share",
                shapes={name: (32,) for name in ("mean", "std", "mean_spread", "std_spread")},
            )
            for stage in ("share", "combine")
        ),
    ),
    "fisc": (
        {},
        (
            Line(stage="share", kind="StyleStatistics", shapes=STYLE, bytes=2048, rounds=ONCE, per_round=4, up=True),
            Line(stage="combine", kind="InterpolationStyle", shapes=STYLE, bytes=2048, rounds=ONCE, per_round=4, up=False),
        ),
    ),
    "fedalign": (
        {},
        (
            Line(
                stage="share", kind="ImageStyles", shapes={"mean": (1, 3), "std": (1, 3)}, bytes=24, rounds=EVERY,
                per_round=4, up=True,
            ),
            Line(
                stage="combine", kind="StyleBank", shapes={"mean": (3, 3), "std": (3, 3), "owner": (3,)},
                bytes=3 * 24 + 3 * 8, rounds=EVERY, per_round=4, up=False,
            ),
        ),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def members() -> list[Client]:
    return four_clients()


def beside_the_model(method: Method, members: list[Client]) -> list[Message]:
    messages = federated(method, members, recode=False).transcript.messages()
    return [message for message in messages if message.artifact.kind not in ("ModelState", "Scores")]


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.medium
def test_a_style_method_sends_what_its_paper_says_and_nothing_else(name: str, members: list[Client]):
    options, lines = TABLE[name]
    method = build(resolve("methods", name), {"plan": {"batch_size": 8}, **options}, where="method").fitting(4)
    assert {len(client.data) for client in members} == {IMAGES}

    sent = beside_the_model(method, members)

    told = 0
    for line in lines:
        chosen = [message for message in sent if (message.stage, message.artifact.kind) == (line.stage, line.kind)]
        told += len(chosen)
        assert {message.round for message in chosen} == set(line.rounds)
        assert {message.artifact.bytes for message in chosen} == {line.bytes}
        assert all(
            {key: tuple(value.shape) for key, value in message.artifact.tensors().items()} == line.shapes
            for message in chosen
        )
        for number in line.rounds:
            now = [message for message in chosen if message.round == number]
            clients = sorted(message.sender if line.up else message.receiver for message in now)
            assert len(now) == line.per_round
            assert clients == list(ALL)
    assert told == len(sent)


@pytest.mark.medium
def test_stablefdg_gives_each_client_another_ones_distribution_once(members: list[Client]):
    method = build(resolve("methods", "stablefdg"), {"plan": {"batch_size": 8}}, where="method")

    sent = beside_the_model(method, members)

    for number in EVERY:
        up = {m.artifact.sha256: m.sender for m in sent if (m.round, m.stage) == (number, "share")}
        down = {m.receiver: up[m.artifact.sha256] for m in sent if (m.round, m.stage) == (number, "combine")}
        assert sorted(down.values()) == list(ALL)
        assert all(receiver != owner for receiver, owner in down.items())


@pytest.mark.medium
def test_nobody_receives_its_own_rows_of_fedaligns_pool(members: list[Client]):
    sent = beside_the_model(build(resolve("methods", "fedalign"), {"plan": {"batch_size": 8}}, where="method"), members)

    for message in sent:
        if message.stage == "combine":
            owners = set(message.artifact.tensors()["owner"].tolist())
            assert owners == {0, 1, 2, 3} - {int(message.receiver.partition(":")[2])}


@pytest.mark.medium
def test_feddag_sends_teacher_generator_and_perturbed_teacher_and_peers_see_every_others(members: list[Client]):
    method = build(resolve("methods", "feddag"), {"plan": {"batch_size": 8}, "generator": "fcn16"}, where="method")

    messages = list(federated(method, members, recode=False).transcript.messages())

    for number in EVERY:
        now = [message for message in messages if message.round == number]
        up = [m for m in now if m.stage == "update" and m.artifact.kind != "Scores"]
        assert sorted((m.sender, m.artifact.kind) for m in up) == sorted(
            (client, kind) for client in ALL for kind in ("GeneratorState", "ModelState", "ModelState")
        )
        assert {m.artifact.bytes for m in up if m.artifact.kind == "GeneratorState"} == {4 * 14_819}
        shown = [m for m in now if m.stage == "exhibit"]
        assert len(shown) == 4 * 3
        perturbed = {m.artifact.sha256 for m in up if m.artifact.kind == "ModelState"}
        assert {m.artifact.sha256 for m in shown} <= perturbed
        assert sorted(m.sender for m in now if m.stage == "review") == list(ALL)

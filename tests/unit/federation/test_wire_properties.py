"""The wire delivers what was sent, in order, after guards and policies; every change of a saved transcript is noticed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from fdgsec.federation.artifacts import Artifact, GeneratorState, ModelState, Scores, StyleStatistics
from fdgsec.federation.wire import (
    CLIENTS,
    GENESIS,
    Message,
    Receipt,
    Transcript,
    Upload,
    Wire,
    keeps_artifacts,
    number_of,
)
from fdgsec.runtime.errors import ArtifactError
from fdgsec.runtime.secret_streams import SecretStream, simulated_stream


def style(value: float) -> StyleStatistics:
    return StyleStatistics(mean=torch.full((2,), float(value)), std=torch.ones(2))


def message(artifact: Artifact, *, round: int = 0, sender: str = "client:0") -> Message:
    return Message(round=round, stage="share", sender=sender, receiver="server", artifact=artifact)


def upload(sender: str, **artifacts: Artifact) -> Upload:
    return Upload(round=2, stage="update", sender=sender, artifacts=artifacts)


@dataclass
class Asked:
    """The streams that policies and filters were given, by the sender and number for which they were made."""

    made: list[tuple[str, int]] = field(default_factory=list)

    def __call__(self, asked: Upload, number: int) -> SecretStream:
        self.made.append((asked.sender, number))
        return simulated_stream(0, asked.round, asked.sender, number)


@dataclass
class Seen:
    """A policy and a filter that note what they are given, and pass on the first uploads."""

    passed: int
    uploads: list[Sequence[Upload]] = field(default_factory=list)
    drawn: list[bytes] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)

    def on_collected(self, uploads: Sequence[Upload], rng: SecretStream) -> Sequence[Upload]:
        self.uploads.append(uploads)
        self.drawn.append(rng.random_bytes(8))
        return uploads[: self.passed]

    def on_received(self, receipt: Receipt) -> Sequence[Upload]:
        self.receipts.append(receipt)
        self.drawn.append(receipt.rng.random_bytes(8))
        return receipt.uploads[: self.passed]


def transcript(*values: float) -> Transcript:
    made = Transcript()
    for number, value in enumerate(values):
        made.append(message(style(value), round=number, sender=f"client:{number}"))
    return made


def test_senders_have_numbers_that_tell_clients_from_sums_and_nameless_ones():
    names = ["client:0", "client:3", CLIENTS, "anonymous:0", "anonymous:3"]

    assert [number_of(name) for name in names] == [0, 3, -1, -2, -5]


def test_an_upload_goes_to_the_server_with_weight_one_unless_it_says_otherwise():
    assert (upload("client:1").receiver, upload("client:1").weight, upload("client:1").metrics) == ("server", 1.0, ())


def test_policies_come_before_the_transcript_and_filters_after_it_each_with_a_stream_of_its_own():
    asked, first, second, kept = Asked(), Seen(3), Seen(2), Seen(1)
    carrier = Wire(secret=asked, policies=(first, second), filters=(kept, kept))
    uploads = [upload(f"client:{number}", model=style(float(number))) for number in range(4)]

    delivered = carrier.collect(uploads, rounds=7)

    assert [len(each) for each in (first.uploads[0], second.uploads[0], carrier.transcript.rows)] == [4, 3, 2]
    assert [len(receipt.uploads) for receipt in kept.receipts] == [2, 1]
    assert [each.sender for each in delivered] == ["client:0"]
    assert asked.made == [(CLIENTS, 0), (CLIENTS, 1), ("server", 0), ("server", 1)]
    assert len({*first.drawn, *second.drawn, *kept.drawn}) == 4
    assert {(receipt.rounds, receipt.model) for receipt in kept.receipts} == {(7, None)}
    assert all(receipt.ledger is carrier.ledger for receipt in kept.receipts)


def test_where_nothing_was_uploaded_neither_policies_nor_filters_are_asked():
    seen = Seen(1)

    assert list(Wire(secret=Asked(), policies=(seen,), filters=(seen,)).collect([])) == []
    assert (seen.uploads, seen.receipts) == ([], [])


def test_a_policy_that_lets_nothing_through_ends_the_stage():
    none, after = Seen(0), Seen(1)

    assert list(Wire(secret=Asked(), policies=(none, after), filters=(after,)).collect([upload("client:0")])) == []
    assert (after.uploads, after.receipts) == ([], [])


def test_every_slot_of_an_upload_is_a_message_of_its_stage_and_round():
    carrier = Wire(secret=Asked(), keep=lambda message: True)

    carrier.collect([upload("client:1", model=style(1.0), numbers=Scores(values=torch.ones(1)))])

    assert [(row.round, row.stage, row.sender, row.receiver, row.kind, row.bytes) for row in carrier.transcript.rows] == [
        (2, "update", "client:1", "server", "StyleStatistics", 16), (2, "update", "client:1", "server", "Scores", 4),
    ]  # fmt: skip


def test_one_guard_that_refuses_is_enough_and_leaves_no_row():
    def refuse(message: Message) -> None:
        raise ArtifactError("too large")

    carrier = Wire(secret=Asked(), guards=(lambda message: None, refuse))

    with pytest.raises(ArtifactError, match="too large"):
        carrier.collect([upload("client:0", model=style(1.0))])
    assert carrier.transcript.rows == []


@pytest.mark.parametrize(
    ("artifact", "kept"),
    [(style(1.0), True), (Scores(values=torch.ones(1)), True), (ModelState(state={}), False), (GeneratorState(state={}), False)],
    ids=lambda value: getattr(value, "kind", ""),
)  # fmt: skip
def test_models_are_written_down_without_their_content(artifact: Artifact, kept: bool):
    carrier = Wire(secret=Asked())

    received = carrier.send(message(artifact))

    assert received is artifact
    assert keeps_artifacts(message(artifact)) is kept
    assert len(carrier.transcript.rows) == 1
    assert len(list(carrier.transcript.messages())) == kept


def test_the_chain_begins_at_genesis_and_depends_on_every_message_and_their_order():
    hashes = [transcript(*values).sha256 for values in ((), (1.0,), (2.0,), (1.0, 2.0), (2.0, 1.0))]

    assert hashes[0] == GENESIS == "0" * 64
    assert len(set(hashes)) == 5
    assert transcript(1.0, 2.0).sha256 == hashes[3]


def test_messages_come_back_in_order_with_all_that_they_said():
    messages = list(transcript(3.0, 1.0, 3.0).messages())

    assert [(each.round, each.sender, float(each.artifact.tensors()["mean"][0])) for each in messages] == [
        (0, "client:0", 3.0), (1, "client:1", 1.0), (2, "client:2", 3.0),
    ]  # fmt: skip


def test_a_saved_transcript_comes_back_whole_and_equal_payloads_are_saved_once(tmp_path: Path):
    made = transcript(3.0, 1.0, 3.0)
    made.append(message(ModelState(state={"w": torch.ones(2)})), keep=False)

    made.save(tmp_path)
    made.save(tmp_path)
    read = Transcript.load(tmp_path)

    assert (read.rows, read.sha256) == (made.rows, made.sha256)
    assert len(list((tmp_path / "payloads").iterdir())) == 2
    assert [each.artifact.sha256 for each in read.messages()] == [each.artifact.sha256 for each in made.messages()]
    assert len(list(read.messages())) == 3


@pytest.mark.parametrize(
    "change", [{"round": 9}, {"stage": "update"}, {"sender": "client:9"}, {"receiver": "client:9"}, {"kind": "Scores"},
               {"bytes": 1}, {"sha256": "0" * 64}, {"link": "0" * 64}],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_a_changed_field_of_any_row_breaks_the_chain(change: dict[str, object], tmp_path: Path):
    transcript(1.0, 2.0, 3.0).save(tmp_path)
    index = tmp_path / "transcript.jsonl"
    lines = index.read_text().splitlines()
    lines[1] = json.dumps({**json.loads(lines[1]), **change})
    index.write_text("\n".join(lines) + "\n")

    with pytest.raises(ArtifactError, match="line 2 breaks the hash chain"):
        Transcript.load(tmp_path)


@pytest.mark.parametrize("order", [[0, 2], [1, 2], [1, 0, 2]])
def test_a_row_that_is_missing_or_moved_breaks_the_chain(order: list[int], tmp_path: Path):
    transcript(1.0, 2.0, 3.0).save(tmp_path)
    index = tmp_path / "transcript.jsonl"
    lines = index.read_text().splitlines()
    index.write_text("\n".join(lines[number] for number in order) + "\n")

    with pytest.raises(ArtifactError, match="breaks the hash chain"):
        Transcript.load(tmp_path)


def test_a_payload_of_other_content_is_noticed_though_it_is_an_artifact(tmp_path: Path):
    made = transcript(1.0)
    made.save(tmp_path)
    (payload,) = (tmp_path / "payloads").iterdir()
    payload.write_bytes(style(2.0).encode())

    with pytest.raises(ArtifactError, match="does not have the content that its name says"):
        Transcript.load(tmp_path)


def test_replacing_a_sender_keeps_the_rest_of_an_upload():
    given = Upload(round=1, stage="share", sender="client:0", artifacts={}, weight=3.0, metrics=("loss",))

    assert replace(given, sender="anonymous:0").weight == 3.0

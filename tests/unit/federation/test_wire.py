import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fdgsec.federation.artifacts import Artifact, ModelState, StyleBank, StyleStatistics
from fdgsec.federation.wire import Message, Transcript, Upload, Wire, number_of, parties
from fdgsec.runtime.errors import ArtifactError
from fdgsec.runtime.secret_streams import SecretStream, simulated_stream
from fdgsec.threats.adversary import ADVERSARIES


def style(value: float) -> StyleStatistics:
    return StyleStatistics(mean=torch.full((2,), float(value)), std=torch.ones(2))


def message(sender: str, receiver: str, artifact: Artifact) -> Message:
    return Message(round=0, stage="share", sender=sender, receiver=receiver, artifact=artifact)


def wire(**settings: object) -> Wire:
    return Wire(secret=lambda m, n: simulated_stream(0, m.sender, n), **settings)  # type: ignore[arg-type]


def exchanged() -> Transcript:
    carrier = wire()
    carrier.send(message("client:0", "server", style(1.0)))
    carrier.send(message("client:1", "server", style(2.0)))
    bank = StyleBank(mean=torch.ones(2, 2), std=torch.ones(2, 2), owner=torch.tensor([0, 1]))
    for receiver in ("client:0", "client:1"):
        carrier.send(message("server", receiver, bank))
    return carrier.transcript


def test_clients_count_together_and_those_without_a_name_apart_from_them():
    names = ("server", "clients", "client:3", "client:12", "anonymous:3")

    assert [parties(name) for name in names] == [
        "server", "sum over clients", "clients", "clients", "anonymous clients",
    ]  # fmt: skip


def test_a_broadcast_is_encoded_once_for_all_its_receivers():
    encoded: list[str] = []

    class Counted(StyleStatistics):
        def encoded_parts(self) -> Iterator[bytes | memoryview]:
            encoded.append(self.kind)
            return super().encoded_parts()

    carrier, broadcast = wire(), Counted(mean=torch.ones(2), std=torch.ones(2))
    carrier.send_all([message("server", f"client:{number}", broadcast) for number in range(5)])
    assert len(encoded) == 1

    other = Counted(mean=torch.zeros(2), std=torch.ones(2))
    carrier.send_all([message("server", "client:0", each) for each in (broadcast, other)])
    assert len(encoded) == 3
    assert len({row.sha256 for row in carrier.transcript.rows}) == 2


def test_a_delivery_of_which_one_artifact_cannot_be_hashed_leaves_no_row():
    class Unwritable(StyleStatistics):
        def encoded_parts(self) -> Iterator[bytes | memoryview]:
            raise ArtifactError("no bytes")

    carrier, broken = wire(), Unwritable(mean=torch.ones(2), std=torch.ones(2))
    with pytest.raises(ArtifactError, match="no bytes"):
        carrier.send_all([message("client:0", "server", style(1.0)), message("client:0", "server", broken)])

    assert (carrier.transcript.rows, carrier.transcript.payloads) == ([], {})


def test_a_later_delivery_of_a_changed_artifact_has_the_hash_of_what_it_is_then():
    carrier, sent = wire(), style(1.0)
    carrier.send(message("client:0", "server", sent))

    sent.mean.data[0] = 9.0
    carrier.send(message("client:0", "server", sent))

    rows = carrier.transcript.rows
    assert rows[1].sha256 == hashlib.sha256(sent.encode()).hexdigest() != rows[0].sha256


def test_a_refused_message_leaves_nothing_of_its_delivery_in_the_transcript():
    def refuses_client_1(checked: Message) -> None:
        if checked.receiver == "client:1":
            raise ArtifactError("client:1 accepts nothing.")

    carrier = wire(guards=[refuses_client_1])

    with pytest.raises(ArtifactError):
        carrier.send_all([message("server", f"client:{number}", style(1.0)) for number in range(3)])
    assert carrier.transcript.rows == []


def test_a_reply_is_guarded_as_a_whole_before_any_of_it_is_hashed():
    shared = torch.ones(4)
    reply = Upload(
        round=0, stage="share", sender="client:0",
        artifacts={"a": StyleStatistics(mean=shared, std=torch.ones(4)), "b": StyleStatistics(mean=shared, std=shared)},
    )  # fmt: skip
    seen: list[int] = []

    def changing(sent: Message) -> None:
        seen.append(len(channel.transcript.rows))
        if len(seen) == 2:
            shared.mul_(2)

    channel = wire(guards=[changing])
    (held,) = channel.collect([reply])

    assert seen == [0, 0]
    assert [row.sha256 for row in channel.transcript.rows] == [each.sha256 for each in held.artifacts.values()]


def test_a_payload_that_was_changed_after_it_was_sent_is_not_saved_as_what_was_sent(tmp_path: Path):
    carrier, sent = wire(), style(1.0)
    carrier.send(message("client:0", "server", sent))
    sent.mean.numpy()[0] = 9.0

    with pytest.raises(ArtifactError, match="changed after it was sent"):
        carrier.transcript.save(tmp_path)
    assert not (tmp_path / "transcript.jsonl").exists()


def test_server_sees_every_style_and_a_client_only_its_own_and_the_bank():
    transcript = exchanged()

    server = ADVERSARIES["server"].view(transcript)
    client = ADVERSARIES["client"].view(transcript)

    assert [m.sender for m in server.messages] == ["client:0", "client:1", "server", "server"]
    assert [(m.sender, m.receiver) for m in client.messages] == [("client:0", "server"), ("server", "client:0")]


def test_a_client_reads_the_others_styles_from_the_bank():
    view = ADVERSARIES["client"].view(exchanged())

    found = view.styles("client:1")

    assert found is not None
    assert found[0].shape == (1, 2)


def test_a_guard_refuses_before_anything_is_written_down():
    def refuse(message: Message) -> None:
        raise ArtifactError("too large")

    carrier = wire(guards=[refuse])
    with pytest.raises(ArtifactError, match="too large"):
        carrier.send(message("client:0", "server", style(1.0)))

    assert carrier.transcript.rows == []


def test_models_leave_a_row_but_no_payload_by_default():
    carrier = wire()
    carrier.send(message("client:0", "server", ModelState(state={"w": torch.ones(3)})))

    assert [(row.kind, row.bytes) for row in carrier.transcript.rows] == [("ModelState", 12)]
    assert carrier.transcript.payloads == {}


def test_exchanges_count_once_for_each_set_of_messages_of_a_kind():
    found = Transcript()
    for number, values in enumerate(([1.0, 2.0], [2.0, 1.0], [1.0, 1.0], [1.0], [1.0, 2.0])):
        for value in values:
            found.append(replace(message("client:1", "server", style(value)), round=number))
    found.append(replace(message("server", "client:1", ModelState(state={"w": torch.zeros(1)})), round=7))

    found.append(replace(message("client:1", "server", style(9.0)), round=4, stage="update"))

    assert found.different_exchanges() == {"StyleStatistics": 3, "ModelState": 1}
    assert found.different_exchanges(ADVERSARIES["server"].reads) == {"StyleStatistics": 3}
    assert found.different_exchanges(ADVERSARIES["client"].reads) == {}
    assert Transcript().different_exchanges() == {}


def test_a_transcript_survives_the_disk_and_stores_each_payload_once(tmp_path: Path):
    transcript = exchanged()
    transcript.save(tmp_path)

    again = Transcript.load(tmp_path)

    assert again.sha256 == transcript.sha256
    assert len(list((tmp_path / "payloads").iterdir())) == 3  # two styles, one bank sent twice


def test_an_altered_line_breaks_the_chain(tmp_path: Path):
    exchanged().save(tmp_path)
    index = tmp_path / "transcript.jsonl"
    lines = index.read_text().splitlines()
    lines[1] = json.dumps({**json.loads(lines[1]), "sender": "client:7"})
    index.write_text("\n".join(lines) + "\n")

    with pytest.raises(ArtifactError, match="line 2 breaks the hash chain"):
        Transcript.load(tmp_path)


def test_an_altered_payload_is_noticed(tmp_path: Path):
    transcript = exchanged()
    transcript.save(tmp_path)
    (tmp_path / "payloads" / f"{transcript.rows[0].sha256}.safetensors").write_bytes(style(9.0).encode())

    with pytest.raises(ArtifactError, match="altered"):
        Transcript.load(tmp_path)


def pools() -> Transcript:
    """Three clients, each of which receives the rows of the others."""
    carrier = wire()
    bank = StyleBank(mean=torch.arange(8.0).view(4, 2), std=torch.ones(4, 2), owner=torch.tensor([0, 0, 1, 2]))
    for number in range(3):
        carrier.send(message("server", f"client:{number}", bank.without_rows_of(number)))
    return carrier.transcript


def test_what_each_receives_without_its_own_rows_is_stored_once_and_seen_to_the_bit(tmp_path: Path):
    transcript = pools()
    transcript.save(tmp_path)

    loaded = Transcript.load(tmp_path)

    assert loaded.sha256 == transcript.sha256
    assert len(list((tmp_path / "payloads").iterdir())) == 1
    assert [row.omits for row in loaded.rows] == [0, 1, 2]
    assert [row.bytes for row in loaded.rows] == [2 * 24, 3 * 24, 3 * 24]  # 2 x 2 float32 and an int64 per row
    seen = [sent.artifact for sent in ADVERSARIES["outsider"].view(loaded).messages]
    expected = [[[4, 5], [6, 7]], [[0, 1], [2, 3], [6, 7]], [[0, 1], [2, 3], [4, 5]]]
    assert [each.tensors()["mean"].tolist() for each in seen] == expected
    plain = StyleBank(mean=torch.arange(4.0, 8).view(2, 2), std=torch.ones(2, 2), owner=torch.tensor([1, 2]))
    assert ADVERSARIES["client"].view(loaded).messages[0].artifact.encode() == plain.encode()
    assert transcript.different_exchanges() == loaded.different_exchanges()


def test_whose_rows_are_left_out_is_in_the_hash_chain_and_only_of_what_has_owners(tmp_path: Path):
    pools().save(tmp_path)
    path = tmp_path / "transcript.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0].replace('"omits": 0', '"omits": 1'), *lines[1:]]) + "\n")
    with pytest.raises(ArtifactError, match="line 1 breaks the hash chain"):
        Transcript.load(tmp_path)

    row = replace(exchanged().rows[0], omits=0, link="")
    row = replace(row, link=hashlib.sha256(("0" * 64 + json.dumps(row.linked())).encode()).hexdigest())
    exchanged().save(tmp_path / "styles")
    (tmp_path / "styles" / "transcript.jsonl").write_text(json.dumps(row.document()) + "\n")
    with pytest.raises(ArtifactError, match="StyleStatistics has no rows of client 0"):
        Transcript.load(tmp_path / "styles")


def test_a_transcript_of_before_rows_could_be_left_out_is_read_and_written_as_it_was(tmp_path: Path):
    link = hashlib.sha256(
        ("0" * 64 + json.dumps([0, "share", "client:0", "server", "StyleStatistics", 16, style(1.0).sha256])).encode()
    ).hexdigest()
    line = (
        '{"round": 0, "stage": "share", "sender": "client:0", "receiver": "server", "kind": "StyleStatistics", '
        f'"bytes": 16, "sha256": "{style(1.0).sha256}", "link": "{link}"}}\n'
    )
    (tmp_path / "transcript.jsonl").write_text(line)

    old = Transcript.load(tmp_path)
    old.save(tmp_path / "again")

    assert (old.sha256, old.rows[0].omits) == (link, None)
    assert (tmp_path / "again" / "transcript.jsonl").read_text() == line


def test_equal_exchanges_have_equal_hashes():
    assert exchanged().sha256 == exchanged().sha256


def uploads() -> list[Upload]:
    return [
        Upload(round=0, stage="share", sender=f"client:{n}", artifacts={"style": style(n), "more": style(10.0 + n)})
        for n in range(3)
    ]


class Last:
    """A policy that lets only the last upload through, under another name."""

    def on_collected(self, uploads: Sequence[Upload], rng: SecretStream) -> Sequence[Upload]:
        drawn = StyleStatistics(mean=rng.uniform(2).float(), std=torch.ones(2))
        return [replace(uploads[-1], sender="clients", artifacts={**uploads[-1].artifacts, "coins": drawn})]


def test_without_a_policy_uploads_are_sent_client_by_client_as_they_are():
    collected, sent = wire(), wire()

    found = collected.collect(uploads())

    for upload in uploads():
        for artifact in upload.artifacts.values():
            sent.send(message(upload.sender, "server", artifact))
    assert collected.transcript.sha256 == sent.transcript.sha256
    assert [upload.sender for upload in found] == ["client:0", "client:1", "client:2"]


def test_a_policy_acts_on_all_uploads_together_before_guards_and_transcript():
    met = list[str]()
    carrier = wire(policies=[Last()], guards=[lambda m: met.append(m.sender)])

    (found,) = carrier.collect(uploads())

    assert met == ["clients"] * 3
    assert [row.sender for row in carrier.transcript.rows] == ["clients"] * 3
    assert list(found.artifacts) == ["style", "more", "coins"]
    assert len(carrier.transcript.payloads) == 3


def test_each_policy_of_a_stage_has_coins_of_its_own():
    carrier = wire(policies=[Last(), Last()])

    (found,) = carrier.collect(uploads())
    (alone,) = wire(policies=[Last()]).collect(uploads())

    assert not torch.equal(found.artifacts["coins"].tensors()["mean"], alone.artifacts["coins"].tensors()["mean"])


def test_senders_without_a_name_have_numbers_that_no_client_has():
    assert [number_of(name) for name in ("client:3", "clients", "anonymous:0", "anonymous:7")] == [3, -1, -2, -9]

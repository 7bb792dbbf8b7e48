"""What the codec writes it reads again, and every field of another type or value is a WireFormatError, never a crash."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fdgsec.federation.artifacts import Artifact, GeneratorState, ModelState, Scores, StyleStatistics
from fdgsec.federation.engines.flower.codec import (
    BODY,
    HEAD,
    INBOX,
    MODEL_SLOT,
    Introduction,
    WireFormatError,
    ordered,
    packed_failure,
    packed_introduction,
    packed_reply,
    packed_request,
    packed_whoami,
    read_introduction,
    read_reply,
    read_request,
)
from fdgsec.federation.engines.state import NEVER, StateMark
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Clock, Reply, Step, StepRequest
from fdgsec.privacy.accounting import Use

STYLE = StyleStatistics(mean=torch.tensor([1.0, 2.0]), std=torch.tensor([3.0, 4.0]))
STATE = ModelState(state={"z": torch.ones(2), "a": torch.zeros(3), "m": torch.tensor(5)})
CLOCK = Clock(round=3, rounds=8, participants=("client:1", "client:0"))
MARK = StateMark(version=4, sha256="ab" * 32)
USES = (
    Use(
        mechanism="gaussian", noise=1.5, sensitivity={"zero-out": 0.5, "replace-one": 1.0}, sampling_rate=0.25, count=3
    ),
    Use(mechanism="laplace", noise=2.0, sensitivity={"zero-out": 1.0}, unit="client"),
)
REPLY = Reply(
    artifacts={"style": STYLE, "model": STATE}, weight=12.0, metrics={"loss": 0.5},
    uses={"style": USES, "model": None, "numbers": ()},
)  # fmt: skip
TOLD = Introduction(
    name="client:1", clients=3, training=0, validation=2, classes=("dog", "cat"), fdgsec="1", code_sha256="c", torch="2",
    threads=1, reproducible=True,
)  # fmt: skip


def request(step: Step = "fit", *, model: bool = True, sent: bool = True, held: str = "") -> RecordDict:
    given = GlobalModel(blueprint=Blueprint(backbone="tiny", classes=2), state=STATE) if model else None
    asked = StepRequest(clock=CLOCK, model=given, inbox={"bank": STYLE, "peer": STATE})
    return packed_request(
        step, asked, settings="{}", known=MARK, model=STATE.encode() if model and sent else None, held=held
    )  # fmt: skip


def changed(content: RecordDict, **fields: object) -> RecordDict:
    """The message with other fields; None removes one."""
    head = {**dict(content[HEAD].items()), **fields}  # type: ignore[union-attr]
    kept = {name: value for name, value in head.items() if value is not None}
    return RecordDict({HEAD: ConfigRecord(kept), BODY: content[BODY]})  # type: ignore[arg-type, dict-item]


def with_body(content: RecordDict, artifacts: Mapping[str, bytes]) -> RecordDict:
    arrays = {
        slot: Array(dtype="uint8", shape=(len(data),), stype="fdgsec.artifact", data=data)
        for slot, data in artifacts.items()
    }
    return RecordDict({HEAD: content[HEAD], BODY: ArrayRecord(arrays)})  # type: ignore[dict-item]


def same(one: Artifact, other: Artifact) -> bool:
    return one.sha256 == other.sha256 and list(one.tensors()) == list(other.tensors())


@pytest.mark.parametrize("step", ["share", "fit", "review"])
def test_a_request_arrives_as_it_was_asked(step: Step):
    asked = read_request(request(step))

    assert (asked.verb, asked.settings, asked.known, asked.clock, asked.held) == (step, "{}", MARK, CLOCK, "")
    assert asked.model is not None
    assert same(asked.model, STATE)
    assert asked.order == ("z", "a", "m")
    assert list(asked.inbox) == ["bank", "peer"]
    assert same(asked.inbox["bank"], STYLE)
    assert same(asked.inbox["peer"], STATE)


def test_a_model_that_is_held_is_named_with_the_order_of_its_tensors_and_not_sent():
    asked = read_request(request(sent=False, held="f" * 64))

    assert (asked.model, asked.held, asked.order) == (None, "f" * 64, ("z", "a", "m"))
    assert not any("model" in slot for slot in request(sent=False)[BODY])  # type: ignore[operator]


def test_a_request_without_a_model_has_none_and_no_order():
    asked = read_request(request("share", model=False))

    assert (asked.model, asked.order) == (None, ())
    assert same(asked.inbox["bank"], STYLE)


def test_who_are_you_carries_settings_and_nothing_else():
    asked = read_request(packed_whoami("{1}"))

    assert (asked.verb, asked.settings, asked.known, asked.clock, asked.model) == ("whoami", "{1}", NEVER, None, None)
    assert (asked.inbox, asked.order, asked.held) == ({}, (), "")


def test_a_reply_arrives_as_it_was_given():
    reply, mark = read_reply(packed_reply(REPLY, MARK))

    assert mark == MARK
    assert (reply.weight, reply.metrics, list(reply.artifacts)) == (12.0, {"loss": 0.5}, ["style", "model"])
    assert all(same(reply.artifacts[slot], REPLY.artifacts[slot]) for slot in REPLY.artifacts)
    assert dict(reply.uses) == dict(REPLY.uses)
    assert [dict(use.sensitivity) for use in reply.uses["style"] or ()] == [dict(use.sensitivity) for use in USES]


def test_an_introduction_arrives_as_it_was_given_and_a_failure_as_its_reason():
    assert read_introduction(packed_introduction(TOLD)) == TOLD
    for read in (read_introduction, read_reply):
        with pytest.raises(WireFormatError, match=r"^out of memory$"):
            read(packed_failure("out of memory"))
        with pytest.raises(WireFormatError, match=r"^no reason was given$"):
            read(packed_failure(""))


Read = Callable[[RecordDict], object]


@pytest.mark.parametrize("read", [read_request, read_introduction, read_reply])
def test_messages_without_the_two_records_are_refused(read: Read):
    whole = packed_reply(REPLY, MARK) if read is read_reply else request()

    with pytest.raises(WireFormatError, match="no fdgsec record"):
        read(RecordDict({}))
    with pytest.raises(WireFormatError, match="no fdgsec record"):
        read(RecordDict({HEAD: ArrayRecord({})}))
    if read is not read_introduction:
        with pytest.raises(WireFormatError, match="no record of artifacts"):
            read(RecordDict({HEAD: whole[HEAD]}))  # type: ignore[dict-item]
        with pytest.raises(WireFormatError, match="no record of artifacts"):
            read(RecordDict({HEAD: whole[HEAD], BODY: ConfigRecord({})}))  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("verb", "train", "asks for 'train'"), ("verb", 3, "the field verb"), ("verb", None, "the field verb"),
        ("settings", 1.0, "the field settings"), ("settings", None, "the field settings"),
        ("state_version", -1, "a whole number was expected"), ("state_version", 1.5, "a whole number was expected"),
        ("state_version", True, "a whole number was expected"), ("state_version", None, "a whole number was expected"),
        ("state_sha256", 5, "the field state_sha256"),
        ("round", -1, "the field round"), ("rounds", "2", "the field rounds"),
        ("participants", "client:0", "a list of names"), ("participants", [1, 2], "a list of names"),
        ("held", 1, "the field held"), ("slots", ["other"], "lacks the artifact inbox.other"),
        ("slots", [1.0], "a list of names"),
        ("orders", "{", "the order of a message's tensors"), ("orders", "[1]", "the order of a message's tensors"),
        ("orders", '{"model": 3}', "the order of a message's tensors"),
        ("orders", '{"model": ["z", "a"]}', "came with the names of 2"),
        ("orders", '{"model": ["z", "a", "x"]}', "came with the names of 3"),
        ("orders", '{"model": ["z", "a", "m", "m"]}', "came with the names of 4"),
    ],
)  # fmt: skip
def test_a_request_with_a_wrong_field_is_refused(field: str, value: object, said: str):
    with pytest.raises(WireFormatError, match=said):
        read_request(changed(request(), **{field: value}))


def test_zero_is_a_round_and_a_version():
    asked = read_request(changed(request(), round=0, rounds=0, state_version=0))

    assert asked.clock == replace(CLOCK, round=0, rounds=0)
    assert asked.known.version == 0


@pytest.mark.parametrize("artifact", [STYLE, Scores(values=torch.ones(2))])
def test_a_model_of_another_kind_is_refused(artifact: Artifact):
    body = {MODEL_SLOT: artifact.encode(), INBOX + "bank": STYLE.encode(), INBOX + "peer": STATE.encode()}

    with pytest.raises(WireFormatError, match=f"holds {artifact.kind}; ModelState was expected"):
        read_request(with_body(request(), body))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("weight", 1, "has the weight 1"), ("weight", "1", "has the weight '1'"), ("weight", None, "has the weight None"),
        ("slots", ["style", "other"], "lacks the artifact other"),
        ("state_version", -2, "a whole number was expected"), ("state_sha256", 1, "the field state_sha256"),
        ("metrics", "{", "metrics of a reply"), ("metrics", "[1]", "metrics of a reply"),
        ("metrics", '{"loss": "much"}', "metrics of a reply"), ("metrics", '{"loss": null}', "metrics of a reply"),
        ("uses", "{", "says of its noise"), ("uses", "[1]", "says of its noise"),
        ("uses", '{"style": [{"noise": 1.0}]}', "says of its noise"), ("uses", '{"style": 3}', "says of its noise"),
        ("failure", "broken", "^broken$"), ("failure", 1, "the field failure"), ("failure", None, "the field failure"),
    ],
)  # fmt: skip
def test_a_reply_with_a_wrong_field_is_refused(field: str, value: object, said: str):
    with pytest.raises(WireFormatError, match=said):
        read_reply(changed(packed_reply(REPLY, MARK), **{field: value}))


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("{", "cannot be read"), ("[1]", "cannot be read"), ("{}", "cannot be read"),
        ('{"name": "x", "classes": []}', "cannot be read"),
        *(
            (json.dumps({**asdict(TOLD), field: value}), "counts in something else")
            for field in ("clients", "training", "validation", "threads") for value in ("1", -1, 1.0, True)
        ),
        *((json.dumps({**asdict(TOLD), "reproducible": value}), "counts in something else") for value in (1, "yes")),
        *(
            (json.dumps({**asdict(TOLD), field: value}), "no printable text")
            for field in ("name", "fdgsec", "code_sha256", "torch") for value in (1, "a\nb")
        ),
        (json.dumps({**asdict(TOLD), "classes": ["dog", 2]}), "no printable text"),
    ],
)  # fmt: skip
def test_an_introduction_with_wrong_fields_is_refused(told: str, said: str):
    with pytest.raises(WireFormatError, match=said):
        read_introduction(changed(packed_introduction(TOLD), introduction=told))


def test_a_state_is_put_in_order_by_names_that_are_all_its_own():
    assert list(ordered(STATE, ("m", "z", "a")).state) == ["m", "z", "a"]
    assert type(ordered(GeneratorState(state={"w": torch.ones(1)}), ("w",))) is GeneratorState
    for names in (("m", "z"), ("m", "z", "z"), ("m", "z", "a", "a"), ("m", "z", "b")):
        with pytest.raises(WireFormatError, match=f"a ModelState of 3 tensors came with the names of {len(names)}"):
            ordered(STATE, names)

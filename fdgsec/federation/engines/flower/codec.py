"""The wire format on Flower: requests and replies as records, every artifact as the bytes of its own file.

Flower's arrays would be .npy files. An artifact's own encoding (fdgsec.federation.artifacts) also holds names, kinds
and bfloat16, and transcripts hash it, so it is sent as one array of bytes. Nothing that arrives is trusted: an invalid
artifact or field is a WireFormatError."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fdgsec.federation.artifacts import Artifact, ModelState, decode
from fdgsec.federation.engines.state import StateMark
from fdgsec.federation.method import Clock, Reply, Step, StepRequest
from fdgsec.privacy.accounting import Use
from fdgsec.runtime.errors import FdgsecError
from fdgsec.runtime.untrusted_text import parse_json_object

Verb = Literal["whoami"] | Step

HEAD, BODY = "fdgsec", "artifacts"
"""The two records of every message: plain fields, and artifacts by slot."""
MODEL_SLOT = "model"
"""The place of the global model in a request; the artifacts of a client's inbox are under "inbox." and their slot."""
INBOX = "inbox."
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
"""What making something of plain data from the network may raise."""
LONGEST = 500
"""Characters of a text from the network that are shown."""


class WireFormatError(FdgsecError):
    """A message from the network that does not have fdgsec's format (exit 1)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DecodedRequest:
    """A decoded request, before its receiver has built a network for it.

    `settings` describe the run; `known` is the client's state that the server last heard of. `model` is empty where
    there is none, or where `held` is the hash of the one that this client was sent before; `order` is that of its
    tensors."""

    verb: Verb
    settings: str
    known: StateMark
    clock: Clock | None = None
    model: ModelState | None = None
    held: str = ""
    order: tuple[str, ...] = ()
    inbox: Mapping[str, Artifact]


def packed_whoami(settings: str) -> RecordDict:
    """Encode a request for a node's introduction."""
    return _records({"verb": "whoami", "settings": settings, "state_version": 0, "state_sha256": ""}, {})


def packed_request(
    step: Step, request: StepRequest, *, settings: str, known: StateMark, model: bytes | None, held: str
) -> RecordDict:
    """Encode a request; `model` is the encoded global model where it is sent, `held` its hash where it is not."""
    clock = request.clock
    carried = {INBOX + slot: artifact for slot, artifact in request.inbox.items()}
    orders = _orders(carried if request.model is None else {MODEL_SLOT: request.model.state, **carried})
    head = {
        "verb": step, "settings": settings, "state_version": known.version, "state_sha256": known.sha256,
        "round": clock.round, "rounds": clock.rounds, "participants": list(clock.participants), "held": held,
        "slots": list(request.inbox), "orders": orders,
    }  # fmt: skip
    carried = {INBOX + slot: artifact for slot, artifact in request.inbox.items()}
    body = {slot: artifact.encode() for slot, artifact in carried.items()}
    return _records(head, body if model is None else {MODEL_SLOT: model, **body})


def read_request(content: RecordDict) -> DecodedRequest:
    """Decode a request. Raises WireFormatError."""
    head, body = _head(content), _body(content)
    verb = _text(head, "verb")
    known = StateMark(version=_whole(head, "state_version"), sha256=_text(head, "state_sha256"))
    settings = _text(head, "settings")
    if verb not in ("whoami", *get_args(Step)):
        raise WireFormatError(f"a message asks for {_shown(verb)}; whoami, {', '.join(get_args(Step))} are known.")
    if verb == "whoami":
        return DecodedRequest(verb="whoami", settings=settings, known=known, inbox={})
    orders = _orders_read(_text(head, "orders"))
    model = _artifact(body, MODEL_SLOT, orders) if MODEL_SLOT in body else None
    if model is not None and not isinstance(model, ModelState):
        raise WireFormatError(f"the slot model holds {model.kind}; ModelState was expected.")
    clock = Clock(
        round=_whole(head, "round"), rounds=_whole(head, "rounds"), participants=tuple(_texts(head, "participants"))
    )
    step: Step = "share" if verb == "share" else "fit" if verb == "fit" else "review"
    return DecodedRequest(
        verb=step, settings=settings, known=known, clock=clock, model=model, held=_text(head, "held"),
        order=orders.get(MODEL_SLOT, ()),
        inbox={slot: _artifact(body, INBOX + slot, orders) for slot in _texts(head, "slots")},
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Introduction:
    """A node's description of itself: client name, numbers of training and held-back images, classes, software.

    `reproducible` says that it draws its noise from the run's seed."""

    name: str
    clients: int
    training: int
    validation: int
    classes: tuple[str, ...]
    fdgsec: str
    code_sha256: str
    torch: str
    threads: int
    reproducible: bool


def packed_introduction(introduction: Introduction) -> RecordDict:
    """Encode an introduction."""
    return _records({"introduction": json.dumps(asdict(introduction)), "failure": ""}, {})


def read_introduction(content: RecordDict) -> Introduction:
    """Decode an introduction. Raises WireFormatError, with the reason of a node that failed to give one."""
    head = _answered(content)
    try:
        fields = _object(_text(head, "introduction"))
        told = Introduction(**{**fields, "classes": tuple(fields["classes"])})
    except UNREADABLE as error:
        raise WireFormatError(f"an introduction cannot be read: {printable(str(error))}.") from error
    counts = (told.clients, told.training, told.validation, told.threads)
    if not all(type(value) is int and value >= 0 for value in counts) or type(told.reproducible) is not bool:
        raise WireFormatError("an introduction counts in something else than whole numbers.")
    texts = (told.name, *told.classes, told.fdgsec, told.code_sha256, told.torch)
    if not all(isinstance(value, str) and value.isprintable() for value in texts):
        raise WireFormatError("an introduction names something that is no printable text.")
    return told


def packed_reply(reply: Reply, mark: StateMark) -> RecordDict:
    """Encode a reply, and the version of the client's state."""
    head = {
        "failure": "", "weight": float(reply.weight), "slots": list(reply.artifacts), "state_version": mark.version,
        "state_sha256": mark.sha256, "metrics": json.dumps(dict(reply.metrics)),
        "orders": _orders(reply.artifacts),
        "uses": json.dumps(
            {slot: None if uses is None else [_use(use) for use in uses] for slot, uses in reply.uses.items()}
        ),
    }  # fmt: skip
    return _records(head, {slot: artifact.encode() for slot, artifact in reply.artifacts.items()})


def packed_failure(reason: str) -> RecordDict:
    """Encode the reason why a step failed."""
    return _records({"failure": reason or "no reason was given"}, {})


def read_reply(content: RecordDict) -> tuple[Reply, StateMark]:
    """Decode a reply and the client's state version. Raises WireFormatError, with the reason of a failed step."""
    head, body = _answered(content), _body(content)
    weight = head.get("weight")
    if not isinstance(weight, float):
        raise WireFormatError(f"a reply has the weight {_shown(weight)}; a number was expected.")
    orders = _orders_read(_text(head, "orders"))
    reply = Reply(
        artifacts={slot: _artifact(body, slot, orders) for slot in _texts(head, "slots")}, weight=weight,
        metrics=_metrics(_text(head, "metrics")), uses=_uses(_text(head, "uses")),
    )  # fmt: skip
    return reply, StateMark(version=_whole(head, "state_version"), sha256=_text(head, "state_sha256"))


def _use(use: Use) -> dict[str, object]:
    return {**asdict(use), "sensitivity": dict(use.sensitivity)}


def _uses(text: str) -> dict[str, tuple[Use, ...] | None]:
    try:
        told: Mapping[str, list[dict[str, Any]] | None] = _object(text, bits=128)
        return {slot: None if uses is None else tuple(map(_read_use, uses)) for slot, uses in told.items()}
    except UNREADABLE as error:
        raise WireFormatError(f"what a reply says of its noise cannot be read: {printable(str(error))}.") from error


def _read_use(told: Mapping[str, Any]) -> Use:
    use = Use(**told)
    numbers = (use.noise, use.sampling_rate, *use.sensitivity.values())
    if type(use.count) is not int or not all(type(one) in (int, float) for one in numbers):
        raise ValueError("its counts are whole numbers, the others numbers")
    return use


def _metrics(text: str) -> dict[str, float]:
    try:
        return {name: float(value) for name, value in _object(text).items()}
    except UNREADABLE as error:
        raise WireFormatError(f"the metrics of a reply cannot be read: {printable(str(error))}.") from error


def _object(text: str, *, bits: int = 64) -> dict[str, Any]:
    return parse_json_object(text, source="its JSON", bits=bits)


def _records(head: Mapping[str, Any], body: Mapping[str, bytes]) -> RecordDict:
    arrays = {
        slot: Array(dtype="uint8", shape=(len(content),), stype="fdgsec.artifact", data=content)
        for slot, content in body.items()
    }
    return RecordDict({HEAD: ConfigRecord(dict(head)), BODY: ArrayRecord(arrays)})


def _head(content: RecordDict) -> ConfigRecord:
    head = content.get(HEAD)
    if not isinstance(head, ConfigRecord):
        raise WireFormatError("a message has no fdgsec record.")
    return head


def _answered(content: RecordDict) -> ConfigRecord:
    head = _head(content)
    failure = _text(head, "failure")
    if failure:
        raise WireFormatError(printable(failure))
    return head


def printable(text: str, most: int = LONGEST) -> str:
    """What a terminal may show of a text from the network: one line of `most` letters without control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:most])


def _body(content: RecordDict) -> ArrayRecord:
    body = content.get(BODY)
    if not isinstance(body, ArrayRecord):
        raise WireFormatError("a message has no record of artifacts.")
    return body


def _orders(artifacts: Mapping[str, Artifact]) -> str:
    """Encode the order of each state's tensors, which files lose: sums over a state must not depend on the engine."""
    return json.dumps({slot: list(each.state) for slot, each in artifacts.items() if isinstance(each, ModelState)})


def _orders_read(text: str) -> dict[str, tuple[str, ...]]:
    try:
        told: Mapping[str, list[str]] = _object(text)
        return {str(slot): tuple(str(name) for name in names) for slot, names in told.items()}
    except UNREADABLE as error:
        raise WireFormatError(f"the order of a message's tensors cannot be read: {printable(str(error))}.") from error


def _artifact(body: ArrayRecord, slot: str, orders: Mapping[str, tuple[str, ...]]) -> Artifact:
    if slot not in body:
        raise WireFormatError(f"a message lacks the artifact {slot}.")
    artifact = decode(body[slot].data, source=f"artifact {slot}")
    return ordered(artifact, orders.get(slot, ())) if isinstance(artifact, ModelState) else artifact


def ordered(state: ModelState, names: tuple[str, ...]) -> ModelState:
    """Reorder the tensors of a state to `names`. Raises WireFormatError where the names differ."""
    if len(names) != len(state.state) or set(names) != set(state.state):
        raise WireFormatError(f"a {state.kind} of {len(state.state)} tensors came with the names of {len(names)}.")
    return type(state)(state={name: state.state[name] for name in names})


def _text(head: ConfigRecord, name: str) -> str:
    value = head.get(name)
    if not isinstance(value, str):
        raise WireFormatError(f"the field {name} of a message is {_shown(value)}; text was expected.")
    return value


def _texts(head: ConfigRecord, name: str) -> list[str]:
    value = head.get(name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise WireFormatError(f"the field {name} of a message is {_shown(value)}; a list of names was expected.")
    return [str(item) for item in value]


def _whole(head: ConfigRecord, name: str) -> int:
    value = head.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise WireFormatError(f"the field {name} of a message is {_shown(value)}; a whole number was expected.")
    return value


def _shown(value: object) -> str:
    return printable(repr(value), 100)

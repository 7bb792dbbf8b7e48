"""The node side on Flower: one message in, one step of one client, one message out.

Every message may be handled by a new process, so the client's state is in files of the node
(fdgsec.federation.engines.state). Flower's own context holds only its version, because Flower silently drops large
contexts."""

import hashlib
import re
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from flwr.app import ConfigRecord, Context, Message

from fdgsec.federation.artifacts import ModelState, decode
from fdgsec.federation.client_step import run_client_step
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.engines.flower.codec import (
    LONGEST,
    DecodedRequest,
    Introduction,
    ordered,
    packed_failure,
    packed_introduction,
    packed_reply,
    read_request,
)
from fdgsec.federation.engines.flower.step_limits import RefusedError, StepLimits
from fdgsec.federation.engines.state import FileStates, StateMark, StateMismatchError, check_mark
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client, Method, Reply, State, Step, StepRequest
from fdgsec.runtime.cache_files import write_atomic
from fdgsec.runtime.errors import DataError, FdgsecError
from fdgsec.runtime.threads import limited_threads

RECORD = "fdgsec-state"
"""The key of the client's state version in Flower's context."""
SLASH, PATH = r"[/\\]", "(a path of the node)"
"""A pattern of what separates the parts of a path, and what the server reads in place of one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Member:
    """A client with everything that it needs for one run; `folder` holds its state, `threads` are those of its steps.

    In `uncovered` stages it sends what no mechanism covers; None: in all of them."""

    client: Client
    method: Method
    defense_stack: DefenseStack
    blueprint: Blueprint
    seed: int
    threads: int
    folder: Path
    step_limits: StepLimits
    introduction: Introduction
    uncovered: frozenset[str] | None = None


class Workplace(Protocol):
    """Finds or makes this node's client for a run."""

    def __call__(self, settings: str, context: Context) -> Member:
        """Make the member that `settings` and the node's own configuration describe. Raises FdgsecError."""
        ...


def answer(message: Message, context: Context, workplace: Workplace) -> Message:
    """Answer one message; an error becomes an answer too, so that the server can report it."""
    try:
        asked = read_request(message.content)
        member = workplace(asked.settings, context)
        if asked.verb == "whoami":
            content = packed_introduction(member.introduction)
        else:
            content = packed_reply(*_done(asked, member, context))
    except Exception as error:  # noqa: BLE001 (a defect must not look like a lost node)
        traceback.print_exc()  # into the node's own log
        content = packed_failure(_told(error, map(str, context.node_config.values())))
    return Message(content=content, reply_to=message)


def _told(error: Exception, private: Iterable[str]) -> str:
    """Describe an error to the server: the text of fdgsec's own, except about data; of others only the type.

    Texts about data, and those of other packages, may contain file names and values. `private` is text of which
    nothing that looks like a path may travel."""
    if isinstance(error, FdgsecError) and not isinstance(error, DataError):
        return without_paths(str(error), private)
    return f"{type(error).__name__} (the node's log says more)"


def without_paths(text: str, private: Iterable[str] = ()) -> str:
    """Replace every path in `text`: first the `private` ones, which may hold spaces, then all words with a slash."""
    known = [*private, str(Path.cwd()), str(Path.home())]
    for path in sorted((path for path in known if re.search(SLASH, path)), key=len, reverse=True):
        text = text.replace(path, "/")
    quoted, bare = rf"""'[^']*{SLASH}[^']*'|"[^"]*{SLASH}[^"]*\"""", rf"\S*{SLASH}\S*?(?=[.,:;]*(?:\s|$))"
    return re.sub(f"{quoted}|{bare}", PATH, text[:LONGEST])


def _done(asked: DecodedRequest, member: Member, context: Context) -> tuple[Reply, StateMark]:
    name = member.client.name
    if asked.verb == "whoami" or asked.clock is None:
        raise StateMismatchError(f"{name} was asked for no step.")
    states, step_limits = FileStates(folder=member.folder / "state"), member.step_limits
    held = states.mark(name)
    _check_context(context, held, name)
    check_mark(name, step_limits.veiled(held), asked.known, where="the node's folder")
    before = states.read(name)
    step_limits.admit(asked.verb, asked.clock)
    request = StepRequest(clock=asked.clock, model=_model(asked, member), inbox=asked.inbox)
    reply, state = _defended(asked.verb, request, member, before)
    if state is not before and (state or before):
        states.write(name, state)
    if asked.verb == "share" and not member.defense_stack.policies:  # only policies may use a client's size
        reply = replace(reply, weight=1.0)
    mark = step_limits.veiled(states.mark(name))
    context.state[RECORD] = ConfigRecord({"version": mark.version, "sha256": mark.sha256})
    return reply, mark


def _defended(step: Step, request: StepRequest, member: Member, before: State) -> tuple[Reply, State]:
    """Run the step. With defenses, a failure is told without its reason, and is the client's last answer in the run.

    Whether a step fails may depend on a single image, and no noise covers it: a server that sends a model which
    overflows on certain images would learn one bit a step."""
    try:
        with limited_threads(member.threads):
            reply, state = run_client_step(
                member.method, member.client, step, request, before, member.seed, member.defense_stack
            )
    except Exception as error:
        if not member.defense_stack.defenses:
            raise
        member.step_limits.end()
        raise RefusedError(f"{member.client.name} failed in {step} (the node's log says more).") from error
    stage = "update" if step == "fit" else step
    bare = [slot for slot, uses in reply.uses.items() if uses is None]
    if member.uncovered is not None and stage not in member.uncovered and bare:
        raise RefusedError(
            f"{member.client.name} does not send its {bare[0]} in the {stage} stage: no mechanism that its owner "
            "requires covers it."
        )
    return reply, state


def _check_context(context: Context, mark: StateMark, name: str) -> None:
    """Raise StateMismatchError where Flower's context has a later version than the node's files: they were reset."""
    told = context.state.get(RECORD)
    version = told.get("version", 0) if isinstance(told, ConfigRecord) else 0
    if isinstance(version, int) and version > mark.version:
        raise StateMismatchError(
            f"the state of {name} is version {mark.version}, but it was at {version} before; its folder was reset."
        )


def _model(asked: DecodedRequest, member: Member) -> GlobalModel | None:
    """Give the global model: from this message, stored for the round's other steps, or from an earlier one."""
    stored = member.folder / f"{member.client.name.replace(':', '-')}.model.safetensors"
    if asked.model is not None:
        write_atomic(stored, asked.model.encode(), private=True)
        return GlobalModel(blueprint=member.blueprint, state=asked.model)
    if not asked.held:
        return None
    content = stored.read_bytes() if stored.exists() else b""
    if hashlib.sha256(content).hexdigest() != asked.held:
        raise StateMismatchError(
            f"{member.client.name} does not hold the global model {asked.held[:12]} of this round."
        )
    state = ModelState(state=decode(content, source=str(stored)).tensors())
    return GlobalModel(blueprint=member.blueprint, state=ordered(state, asked.order))

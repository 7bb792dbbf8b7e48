"""An engine that takes the steps of several clients at the same time, in worker processes of this machine.

Workers are forked, so that they share the images and whatever else is in memory by then, and get everything later as
bytes in anonymous files: the request and the client's state go in, the reply and the new state come out. A step is a
pure function on one thread, so that the replies are those of the local engine to the bit."""

import os
import signal
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from mmap import ACCESS_READ, mmap
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

from fdgsec.federation.artifacts import Artifact, ModelState, decode
from fdgsec.federation.client_step import UNDEFENDED, run_client_step
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.engines.state import MemoryStates, StateStore, read_parts, state_parts
from fdgsec.federation.global_model import Blueprint, GlobalModel
from fdgsec.federation.method import Client, Clock, Method, Reply, State, Step, StepRequest
from fdgsec.privacy.accounting import Use
from fdgsec.runtime.errors import FdgsecError, UsageError
from fdgsec.runtime.threads import THREADS, limited_threads
from fdgsec.runtime.worker_processes import keep_freed_memory, portable

Parts = Sequence[bytes | memoryview]
"""The content of a file in pieces."""
Order = tuple[str, ...]
"""The order of the names of tensors, which a file of them does not keep."""
REPLIES_AHEAD = 2
"""How many replies per worker may wait for the reply of a client before them."""
PARENT_CHECK = 1.0
"""Seconds after which a waiting worker looks whether the process that forked it is still there."""


class ClientStepError(FdgsecError):
    """An error of a client's step whose own exception cannot travel between processes (exit 1)."""


@dataclass(frozen=True, kw_only=True)
class _Task:
    """A step of one client. Its contents are the client's state and the inbox, and the model in a file of its own."""

    client: str
    step: Step
    clock: Clock
    model: Order | None
    state: Order
    inbox: Mapping[str, Order]


@dataclass(frozen=True, kw_only=True)
class _Done:
    """What a task gave: a reply, with the artifacts and the state, unless it stayed as it was, as contents; or the
    error."""

    artifacts: Mapping[str, Order] = field(default_factory=dict)
    weight: float = 1.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    uses: Mapping[str, tuple[Use, ...] | None] = field(default_factory=dict)
    state: Order | None = None
    error: Exception | None = None

    def read(self, contents: Sequence[bytes]) -> tuple[Reply, State | None]:
        """The reply, and the new state."""
        stored = iter(contents)
        artifacts = {slot: _artifact(next(stored), order) for slot, order in self.artifacts.items()}
        state = None if self.state is None else read_parts(next(stored), self.state)
        return Reply(artifacts=artifacts, weight=self.weight, metrics=self.metrics, uses=self.uses), state


@dataclass(frozen=True, kw_only=True, eq=False)
class _Inherited:
    """What workers inherit."""

    members: Mapping[str, Client]
    method: Method
    blueprint: Blueprint | None
    seed: int
    defense_stack: DefenseStack


@dataclass(frozen=True, kw_only=True, eq=False)
class _Worker:
    process: ForkProcess
    connection: Connection


@dataclass(frozen=True, kw_only=True, eq=False)
class ProcessEngine:
    """Runs clients on `pool`, each behind its defense stack, the largest first.

    Errors are those of the local engine: with `tolerant` a failure of the client, otherwise its own exception."""

    members: Sequence[Client]
    pool: Sequence[_Worker]
    states: StateStore = field(default_factory=MemoryStates)
    tolerant: bool = False

    def clients(self) -> Sequence[str]:
        """List the names of all members."""
        return [client.name for client in self.members]

    def ask(self, step: Step, requests: Mapping[str, StepRequest]) -> tuple[Mapping[str, Reply], Mapping[str, str]]:
        """Run `step` on each named client, the largest first; the replies are in the members' order."""
        asked = self._asked(requests)
        largest_first = sorted(asked, key=lambda client: -len(client.data))
        done = dict(self._computed(step, requests, largest_first, ahead=len(asked)))
        replies, failures = dict[str, Reply](), dict[str, str]()
        for client in asked:
            answer = self._answer(client.name, *done.pop(client.name))
            if isinstance(answer, Reply):
                replies[client.name] = answer
            else:
                failures[client.name] = answer
        return replies, failures

    def answers(self, step: Step, requests: Mapping[str, StepRequest]) -> Iterator[tuple[str, Reply | str]]:
        """Run `step` on each named client, in the members' order; few replies wait for those of clients before them."""
        asked, early = self._asked(requests), dict[str, tuple[_Done, list[bytes]]]()
        wanted = deque(asked)
        for name, done in self._computed(step, requests, asked, ahead=REPLIES_AHEAD * len(self.pool)):
            early[name] = done
            while wanted and wanted[0].name in early:
                first = wanted.popleft().name
                yield first, self._answer(first, *early.pop(first))

    def _asked(self, requests: Mapping[str, StepRequest]) -> list[Client]:
        return [client for client in self.members if client.name in requests]

    def _answer(self, name: str, told: _Done, contents: list[bytes]) -> Reply | str:
        """Read a reply, and store the client's state. Raises the client's error unless `tolerant`."""
        error = told.error
        if error is not None and not self.tolerant:
            raise error
        if error is not None:
            return f"{type(error).__name__}: {' '.join(str(error).split())}"
        reply, state = told.read(contents)
        if state is not None:
            self.states.write(name, state)
        return reply

    def _computed(
        self, step: Step, requests: Mapping[str, StepRequest], order: Sequence[Client], *, ahead: int
    ) -> Iterator[tuple[str, tuple[_Done, list[bytes]]]]:
        """Yield what each client's step gave, as it comes; workers get their next client before.

        A client begins only when fewer than `ahead` have begun since the first that is not done."""
        waiting, begun = deque(client.name for client in order), deque[str]()
        idle, busy = list(self.pool), dict[Connection, str]()
        with ExitStack() as files:
            models: dict[int, int] = {}
            came: list[tuple[str, tuple[_Done, list[bytes]]]] = []
            while waiting or busy or came:
                while waiting and idle and len(begun) < ahead:
                    worker, name = idle.pop(), waiting.popleft()
                    self._give(worker, step, name, requests[name], models, files)
                    busy[worker.connection] = name
                    begun.append(name)
                yield from came
                came.clear()
                for ready in wait(list(busy)) if busy else ():
                    worker = next(each for each in self.pool if each.connection is ready)
                    came.append((busy.pop(worker.connection), self._taken(worker)))
                    idle.append(worker)
                while begun and begun[0] not in busy.values():
                    begun.popleft()

    def _give(
        self, worker: _Worker, step: Step, name: str, request: StepRequest, models: dict[int, int], files: ExitStack
    ) -> None:
        """Send a task; a model that several clients receive is written once."""
        state, inbox = self.states.read(name), request.inbox
        model = None if request.model is None else request.model.state.state
        task = _Task(
            client=name, step=step, clock=request.clock, model=None if model is None else tuple(model),
            state=tuple(state), inbox={slot: tuple(artifact.tensors()) for slot, artifact in inbox.items()},
        )  # fmt: skip
        contents: list[Parts] = [list(state_parts(state)), *([artifact.encode()] for artifact in inbox.values())]
        try:
            _send(worker.connection, task, contents)
            if model is not None:
                if id(model) not in models:
                    models[id(model)] = _written([list(state_parts(model))])[0]
                    files.callback(os.close, models[id(model)])
                send_handle(worker.connection, models[id(model)], worker.process.pid)
        except OSError as error:
            raise self._killed() from error

    def _taken(self, worker: _Worker) -> tuple[_Done, list[bytes]]:
        try:
            found: tuple[_Done, list[bytes]] = _received(worker.connection)
        except (EOFError, OSError, RuntimeError) as error:
            raise self._killed() from error
        return found

    def _killed(self) -> UsageError:
        return UsageError(
            f"one of {len(self.pool)} worker processes was killed, as happens when memory runs out; "
            "take fewer --workers."
        )


@contextmanager
def forked_workers(
    members: Sequence[Client],
    method: Method,
    *,
    blueprint: Blueprint | None,
    seed: int,
    defense_stack: DefenseStack = UNDEFENDED,
    workers: int,
    threads: int = THREADS,
) -> Iterator[Sequence[_Worker]]:
    """Fork workers that know the clients, and end them afterwards.

    Raises UsageError for a system without fork, for a GPU, which does not survive one, and for several threads, which
    would wait for threads of the process that was forked."""
    device = "cpu" if blueprint is None else blueprint.device
    if not sys.platform.startswith("linux") or device != "cpu" or threads != 1:
        raise UsageError(
            "--workers forks processes of one thread each: it needs Linux, --device cpu and --threads 1; got "
            f"{sys.platform}, {device} and {threads}. Leave it out."
        )
    inherited = _Inherited(
        members={client.name: client for client in members}, method=method, blueprint=blueprint, seed=seed,
        defense_stack=defense_stack,
    )  # fmt: skip
    pool: list[_Worker] = []
    try:
        for _ in range(min(workers, len(members))):
            pool.append(_forked(inherited))
        yield pool
    finally:
        for worker in pool:
            worker.process.terminate()
        for worker in pool:
            worker.process.join()
            worker.connection.close()


def _forked(inherited: _Inherited) -> _Worker:
    context = get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(inherited, theirs, os.getpid()), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process=process, connection=ours)


def _work(inherited: _Inherited, connection: Connection, parent: int) -> None:
    """Take tasks until the parent ends this process, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    keep_freed_memory()
    with limited_threads(THREADS):
        while True:
            while not connection.poll(PARENT_CHECK):
                if os.getppid() != parent:
                    return
            try:
                task, contents = _received(connection)
                model = None if task.model is None else _mapped(recv_handle(connection))
                _send(connection, *_answer(inherited, task, contents, model))
            except (EOFError, OSError):
                return


def _answer(
    inherited: _Inherited, task: _Task, contents: Sequence[bytes], stored: bytes | None
) -> tuple[_Done, list[Parts]]:
    """Take the step; the answer, and its contents."""
    model = None
    if stored is not None and task.model is not None and inherited.blueprint is not None:
        state = ModelState(state=read_parts(stored, task.model))
        model = GlobalModel(blueprint=inherited.blueprint, state=state)
    before = read_parts(contents[0], task.state)
    inbox = {slot: _artifact(each, order) for (slot, order), each in zip(task.inbox.items(), contents[1:], strict=True)}
    try:
        reply, after = run_client_step(
            inherited.method, inherited.members[task.client], task.step,
            StepRequest(clock=task.clock, model=model, inbox=inbox), before, inherited.seed, inherited.defense_stack,
        )  # fmt: skip
    except Exception as error:  # noqa: BLE001 - the parent raises it, or counts it as the client's failure
        return _Done(error=portable(error, ClientStepError)), []
    kept = after is before and bool(after)
    done = _Done(
        artifacts={slot: tuple(artifact.tensors()) for slot, artifact in reply.artifacts.items()},
        weight=reply.weight, metrics=dict(reply.metrics), uses=dict(reply.uses), state=None if kept else tuple(after),
    )  # fmt: skip
    sent: list[Parts] = [[artifact.encode()] for artifact in reply.artifacts.values()]
    return done, sent if kept else [*sent, list(state_parts(after))]


def _send(connection: Connection, head: _Task | _Done, contents: Sequence[Parts]) -> None:
    """Send a message, its contents in an anonymous file: they are large, and a pipe would copy them in small pieces."""
    file, sizes = _written(contents)
    try:
        connection.send((head, sizes))
        send_handle(connection, file, None)
    finally:
        os.close(file)


def _received(connection: Connection) -> tuple[Any, list[bytes]]:
    """Receive a message of `_send`."""
    head, sizes = connection.recv()
    content = _mapped(recv_handle(connection))
    ends = list(accumulate(sizes))
    return head, [content[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _written(contents: Sequence[Parts]) -> tuple[int, list[int]]:
    """Write contents one after the other to an anonymous file; its descriptor, and their sizes."""
    file = os.memfd_create("fdgsec step")
    sizes = []
    with os.fdopen(file, "wb", closefd=False) as stream:
        for parts in contents:
            stream.writelines(parts)
            sizes.append(sum(memoryview(part).nbytes for part in parts))
    return file, sizes


def _mapped(file: int) -> bytes:
    """The content of a descriptor, which is closed. It is mapped, since readers would share a position in the file."""
    try:
        size = os.fstat(file).st_size
        if not size:
            return b""
        with mmap(file, size, access=ACCESS_READ) as content:
            return content[:]
    finally:
        os.close(file)


def _artifact(content: bytes, order: Order) -> Artifact:
    artifact = decode(content, source="a worker's artifact")
    if not isinstance(artifact, ModelState):
        return artifact
    return type(artifact)(state={name: artifact.state[name] for name in order})

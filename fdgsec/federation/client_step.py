"""One step of one client, which every engine runs on the client's machine, with its defenses or forgeries."""

import torch

from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.malicious_client_protocol import forge_reply
from fdgsec.federation.method import Client, Method, Reply, State, Step, StepRequest
from fdgsec.federation.record_preparation import check_preparation
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.registry import is_bundled

UNDEFENDED = DefenseStack()


def run_client_step(
    method: Method,
    client: Client,
    step: Step,
    request: StepRequest,
    state: State,
    seed: int,
    defense_stack: DefenseStack = UNDEFENDED,
) -> tuple[Reply, State]:
    """Run one step of one client; the reply has passed its defenses, or was forged by a malicious client."""
    reply, state = _defended(method, client, step, request, state, seed, defense_stack)
    malicious_client = defense_stack.malicious_clients.get(client.name)
    if malicious_client is None:
        return reply, state
    rng = stream(seed, "attack", "forgery", step, request.clock.round, client.name)
    return forge_reply(malicious_client, step, request, reply, sender=client.name, rng=rng), state


def _defended(
    method: Method,
    client: Client,
    step: Step,
    request: StepRequest,
    state: State,
    seed: int,
    defense_stack: DefenseStack,
) -> tuple[Reply, State]:
    rng = stream(seed, "world", step, request.clock.round, client.name)
    if not defense_stack.defenses:
        return _answered(method, client, step, request, state, rng)
    # Only training gets a private trainer: its noise is one stream a round, which two steps must not share.
    with_trainer, trainer = (
        defense_stack.with_trainer(client, method, request.clock) if step == "fit" else (client, None)
    )
    if trainer is not None:
        if not is_bundled(method) and request.model is not None:
            check_preparation(method, client, model=request.model, inbox=request.inbox, clock=request.clock)
        rng = defense_stack.training_rng(client, request.clock)
    reply, state = _answered(method, with_trainer, step, request, state, rng)
    sender = defense_stack.sender(client, method, request, state, trainer)
    return defense_stack.sent(step, reply, sender), state


def _answered(
    method: Method, client: Client, step: Step, request: StepRequest, state: State, rng: torch.Generator
) -> tuple[Reply, State]:
    clock = request.clock
    if step == "share":
        artifacts, state = method.share(client, model=request.model, state=state, clock=clock, rng=rng)
        return Reply(artifacts=artifacts, weight=float(len(client.data))), state
    if request.model is None:
        raise ValueError(f"step {step!r} needs a model.")
    if step == "fit":
        update, state = method.fit(client, model=request.model, inbox=request.inbox, state=state, clock=clock, rng=rng)
        return Reply(artifacts=update.artifacts, weight=update.weight, metrics=update.metrics), state
    scores = method.review(client, model=request.model, inbox=request.inbox, state=state, rng=rng)
    return Reply(artifacts={"scores": scores}), state

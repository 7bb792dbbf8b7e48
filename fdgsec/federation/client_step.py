"""One step of one client: the code that every engine runs where the client's data are, defenses and forgeries included."""

import torch

from fdgsec.federation.defense import Shield
from fdgsec.federation.malicious_client import forged
from fdgsec.federation.method import Client, Method, Reply, Request, State, Step
from fdgsec.runtime.random_streams import stream

UNDEFENDED = Shield()


def handle(
    method: Method, client: Client, step: Step, request: Request, state: State, seed: int, shield: Shield = UNDEFENDED
) -> tuple[Reply, State]:
    """Do one step for one client; what is handed back has passed its defenses, or is what an intruder forged."""
    reply, state = _defended(method, client, step, request, state, seed, shield)
    intruder = shield.intruders.get(client.name)
    if intruder is None:
        return reply, state
    rng = stream(seed, "attack", "forgery", step, request.clock.round, client.name)
    return forged(intruder, step, request, reply, sender=client.name, rng=rng), state


def _defended(
    method: Method, client: Client, step: Step, request: Request, state: State, seed: int, shield: Shield
) -> tuple[Reply, State]:
    rng = stream(seed, "world", step, request.clock.round, client.name)
    if not shield.defenses:
        return _answered(method, client, step, request, state, rng)
    # Only training is given a private trainer: its noise is one stream a round, which two steps must not share.
    dressed, trainer = shield.dressed(client, method, request.clock) if step == "fit" else (client, None)
    reply, state = _answered(method, dressed, step, request, state, rng)
    sender = shield.sender(client, method, request, state, trainer)
    return shield.sent(step, reply, sender), state


def _answered(
    method: Method, client: Client, step: Step, request: Request, state: State, rng: torch.Generator
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

"""Federations with a few malicious clients behind each guard, and the worst forgery of each guard.

Every guard meets every forgery on the same clients and seeds. The worst forgery is chosen on seeds of its own and
measured on the others, so that choosing does not make it look worse than it is."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from fdgsec.experiments.run_config import defense_of
from fdgsec.experiments.setup.run_inputs import division_of, with_validation
from fdgsec.experiments.simulated_runs.malicious_client_cases import forger_of, initial_model, measured_images
from fdgsec.experiments.simulated_runs.simulator import Cases, Simulator
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.defense import Inspects
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.malicious_client_protocol import MaliciousClient
from fdgsec.federation.method import Client
from fdgsec.federation.reply_slots import Slot
from fdgsec.federation.wire import SERVER, Message
from fdgsec.runtime.errors import ArtifactError, UsageError
from fdgsec.runtime.random_streams import integer_seed
from fdgsec.threats.answers import Harm
from fdgsec.threats.attack import Case, Question, Truth
from fdgsec.threats.paired_runs import Setting, harm_of_forgery, honest_run, hostile_run

Harms = dict[MaliciousClient, list[Harm]]
OF_THE_RUN = "the run's"
"""The guard that the attacked run has."""
NORM = "norm"
"""The guard whose bound is the largest norm in an honest run."""


@dataclass(frozen=True, kw_only=True)
class NormRecorder:
    """Notes the L2 norms of what clients send of one kind: of a model's change, or of any other artifact itself."""

    kind: str
    received: dict[str, ModelState] = field(default_factory=dict)
    norms: list[float] = field(default_factory=list)

    def __call__(self, message: Message) -> None:
        """Note one message."""
        artifact = message.artifact
        if message.sender == SERVER and type(artifact) is ModelState:
            self.received["model"] = artifact
        elif message.sender != SERVER and artifact.kind == self.kind:
            model = self.received.get("model") if type(artifact) is ModelState else None
            slot = Slot(name="sent", senders=[message.sender], artifacts=[artifact], model=model)
            self.norms.extend((slot.rows - slot.origin).norm(dim=1).tolist())


def guarded(simulator: Simulator, question: Question) -> Cases:
    """For each guard and each malicious client `count` seeds, and once more those of the worst by each measure.

    The first `selecting` seeds choose the worst. Clients are drawn anew for each seed, `records` images of one domain
    each; the first `hostile` of them are malicious. A guard that does not fit what clients send, or refuses honest
    clients, has no cases."""
    if forger_of(simulator) is None:
        return []
    found = dict[str, list[Harms]]()
    for number in range(question.selecting + question.count):
        members = _members(simulator, question, number)
        if members is None:
            return []
        for guard in question.guards:
            if number and guard not in found:
                continue
            harms = _harms(simulator, question, guard, members, number)
            if harms is not None:
                found.setdefault(guard, []).append(harms)
    return [
        pair
        for guard, seeds in found.items()
        if len(seeds) == question.selecting + question.count
        for pair in _cases(question, guard, seeds)
    ]


def worst_by(seeds: Sequence[Harms], measure: Callable[[Harm], float]) -> MaliciousClient:
    """Choose the malicious client with the largest mean of `measure` over seeds, the first of equals."""
    return max(seeds[0], key=lambda one: sum(measure(harm) for seed in seeds for harm in seed[one]))


def accuracy_lost(harm: Harm) -> float:
    """The accuracy lost, averaged over the image sets; minus infinity where the run did not finish."""
    drops = [harm.honest.accuracy[name] - after for name, after in harm.hostile.accuracy.items()]
    return sum(drops) / len(drops) if drops else -math.inf


def displaced(harm: Harm) -> float:
    """The mean displacement; infinite for a finished run with a NaN, minus infinity for one that did not finish."""
    if harm.hostile.ended:
        return -math.inf
    values = list(harm.displacement.values())
    return sum(values) / len(values) if harm.hostile.finite and values else math.inf


def _members(simulator: Simulator, question: Question, number: int) -> list[Client] | None:
    """Clients of one domain each, in turn; None where there are too few training images."""
    pools = [simulator.roles.federation.of_domain(domain) for domain in simulator.sources]
    if min(len(pool) for pool in pools) < question.records * -(-question.clients // len(pools)):
        return None
    orders = [
        torch.randperm(len(pool), generator=simulator.rng("guarded", number, place)) for place, pool in enumerate(pools)
    ]
    members = []
    for client in range(question.clients):
        which, turn = client % len(pools), client // len(pools)
        rows = orders[which][turn * question.records : (turn + 1) * question.records]
        members.append(Client(name=f"client:{client}", data=pools[which].subset(rows)))
    if question.rounds and simulator.method.reviews != "none":
        seed = integer_seed(simulator.rng("guarded", number, "validation"))
        division = division_of(simulator.defense_stack.defenses)
        members = [with_validation(client, seed=seed, division=division) for client in members]
    return members


def _harms(
    simulator: Simulator, question: Question, guard: str, members: Sequence[Client], number: int
) -> Harms | None:
    """Run one seed behind one guard: honestly, and with each malicious client.

    None where the guard does not fit what clients send, or refuses honest ones. Raises UsageError for options that a
    guard does not have."""
    seed, rounds = simulator.seed + number, min(question.rounds, simulator.rounds)
    setting = Setting(
        method=simulator.method.fitting(len(members)), members=members, defense_stack=simulator.defense_stack,
        guards=simulator.guards, measured=measured_images(simulator) if rounds else {},
    )  # fmt: skip
    model = initial_model(simulator, seed, rounds)
    kind, count = question.malicious_clients[0].kind, question.hostile[0]
    if guard != OF_THE_RUN:
        recorder = NormRecorder(kind=kind)
        if guard == NORM:
            noting = replace(setting, guards=(*setting.guards, recorder))
            honest_run(noting, seed=seed, rounds=rounds, model=model, forger="client:0")
        largest = max(recorder.norms, default=1.0)
        setting = replace(setting, defense_stack=_behind(simulator.defense_stack, guard, kind, count, largest))
    try:
        honest = honest_run(setting, seed=seed, rounds=rounds, model=model, forger="client:0")
    except (UsageError, ArtifactError):
        return None
    forgers = [client.name for client in members[:count]]
    found: Harms = {}
    for one in question.malicious_clients:
        hostile = hostile_run(
            setting, seed=seed, rounds=rounds, model=model, malicious_clients=dict.fromkeys(forgers, one)
        )
        rng = simulator.rng("guarded", guard, one.kind, one.name, number)
        found[one] = [harm_of_forgery(honest, hostile, setting=setting, forgers=forgers, rng=rng)]
    return found


def _behind(stack: DefenseStack, guard: str, kind: str, malicious: int, bound: float) -> DefenseStack:
    """The run's stack with one guard in place of its own; a guard acts on the forged kind alone.

    Raises UsageError for options that a guard does not have."""
    where = "models" if kind in ("ModelState", "HeadGradient", "GeneratorState") else "styles"
    options = f"norm={bound!r},on_outlier=clip" if guard == NORM else guard
    made = defense_of(f"guards:{options},hostile={malicious},acts_on={where}")
    others = [defense for defense in stack.defenses if not isinstance(defense, Inspects)]
    return replace(stack, defenses=(*others, made))


def _cases(question: Question, guard: str, seeds: Sequence[Harms]) -> Cases:
    choosing, measuring = seeds[: question.selecting], seeds[question.selecting :]
    pairs = [
        (_case(question, guard, {"forgery": one.name}), Truth(harm=harm))
        for one in question.malicious_clients
        for seed in measuring
        for harm in seed[one]
    ]
    measures = {"displacement": displaced}
    if any(harm.honest.accuracy for harms in measuring for harm in harms[question.malicious_clients[0]]):
        measures = {"accuracy": accuracy_lost, **measures}
    for name, measure in measures.items() if choosing else ():
        worst = worst_by(choosing, measure)
        said = f"worst of {len(question.malicious_clients)} by {name}"
        case = _case(question, guard, {"forgery": said, "chosen": worst.name})
        pairs += [(case, Truth(harm=harm)) for seed in measuring for harm in seed[worst]]
    return pairs


def _case(question: Question, guard: str, where: Mapping[str, str]) -> Case:
    kind, count = question.malicious_clients[0].kind, question.hostile[0]
    return Case(
        question=question.kind, views=(), victim="client:0",
        slice={"artifact": kind, "guard": guard, "hostile": count, "clients": question.clients, **where},
    )  # fmt: skip

"""Three clients of one domain of shapes each: the challenger of their federation, what its server knows, and what
set-reconstruction finds with and without members."""

from collections.abc import Sequence

import torch

from fdgsec.attacks.set_reconstruction.attack import SetReconstruction
from fdgsec.data.roles import Roles, split_roles
from fdgsec.data.shapes import shapes
from fdgsec.experiments.simulated_runs.challenger import Challenger
from fdgsec.federation.defense import Defense
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Method
from fdgsec.methods.ccst import CCST
from fdgsec.metrics.measurement import Measurement
from fdgsec.metrics.roc import auc
from fdgsec.nn.styles.image_styles import statistics
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import ADVERSARIES, Knowledge
from fdgsec.threats.answers import Answer, MemberList, Membership
from fdgsec.threats.attack import Question, Truth
from fdgsec.threats.judging.judge import Judge


def roles_of_shapes(per_domain: int = 140) -> Roles:
    """The roles of so many images of each domain, of 32 px."""
    return split_roles(shapes(image_size=32, per_domain=per_domain), rng=stream(0, "world", "roles"))


def challenger_of(
    roles: Roles,
    *defenses: Defense,
    method: Method | None = None,
    model: GlobalModel | None = None,
    adversary: str = "server",
) -> Challenger:
    """The challenger of a federation of `method` (None: CCST) behind `defenses`, for an adversary."""
    clients = [Client(name=f"client:{n}", data=roles.federation.of_domain(n)) for n in range(3)]
    return Challenger(
        method=method or CCST(), roles=roles, sources=(0, 1, 2), clients=clients, adversary=ADVERSARIES[adversary],
        encoder="mini", seed=0, model=model, defense_stack=DefenseStack(defenses=defenses),
    )  # fmt: skip


def knowledge_of(challenger: Challenger) -> Knowledge:
    """What the adversary knows, which can run the method on its own images."""
    knows = challenger.adversary.knows
    auxiliary = challenger.roles.auxiliary.subset(challenger.roles.auxiliary.domains < 3)
    defended = challenger.defense_stack.defenses
    return Knowledge(
        statistics=lambda dataset: statistics("mini", dataset), encoder="mini", class_names=auxiliary.class_names,
        domain_names=auxiliary.domain_names, unseen=None,
        auxiliary=auxiliary if "auxiliary" in knows else None,
        own=challenger.clients[0].data if "own data" in knows else None,
        weighted_statistic=challenger.method.weighted_statistic, simulate=challenger.simulated,
        defended=challenger.defended if defended else None, shared=challenger.shared if defended else None,
        sharing=challenger.sharing,
    )  # fmt: skip


def members_of(truth: Truth) -> torch.Tensor:
    """The members among a case's candidates, (m,) bool."""
    assert truth.members is not None
    return truth.members


def lists_and_null(challenger: Challenger, knowledge: Knowledge, question: Question) -> tuple[list[Measurement], float]:
    """The rows of set-reconstruction through the target, and its mean AUC from releases without members.

    Fails where such a release gives the list of members."""
    pairs = challenger.cases(question)
    cases, truths = [case for case, _ in pairs], [truth for _, truth in pairs]
    attack = SetReconstruction()
    rows = Judge(bootstrap_repeats=50).measure(
        attack.run(cases, knowledge, stream(0, "attack")), cases, truths, stream(0, "world", "judge")
    )
    null = attack.negative_control(cases, knowledge, stream(0, "attack", "null"))
    for answer in null:
        if isinstance(answer, MemberList):
            assert not torch.equal(answer.believed, members_of(truths[answer.case]))
    return rows, mean_area(null, truths)


def mean_area(answers: Sequence[Answer], truths: Sequence[Truth]) -> float:
    """The mean AUC over the clients whose members are ranked."""
    areas = []
    for answer in answers:
        if isinstance(answer, Membership):
            members = members_of(truths[answer.case])
            areas.append(auc(answer.scores[members], answer.scores[~members]))
    return sum(areas) / len(areas)


def exact_lists(rows: Sequence[Measurement]) -> list[float | None]:
    """The shares of exact lists, of each population."""
    return [row.value for row in rows if row.name == "exact_list"]

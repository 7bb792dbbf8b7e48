"""No answer depends on what a slice names: slices sort cases for controls, judge and report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import pytest
import torch
from torch import Tensor

from fdgsec.attacks.attribute_inference.domains import DomainInference
from fdgsec.attacks.attribute_inference.labels import LabelInference
from fdgsec.attacks.attribute_inference.properties import PropertyInference
from fdgsec.attacks.differencing.attack import Differencing
from fdgsec.attacks.inter_client.attack import InterClient
from fdgsec.attacks.interpolation_leakage.attack import InterpolationLeakage
from fdgsec.attacks.linkage.attack import Linkage
from fdgsec.attacks.membership.attack import Membership
from fdgsec.attacks.pool_exposure.attack import PoolExposure
from fdgsec.attacks.reidentification.attack import Reidentification
from fdgsec.attacks.set_reconstruction.attack import SetReconstruction
from fdgsec.attacks.style_inversion.optimization_attack import OptimizationInversion
from fdgsec.data.roles import split_roles
from fdgsec.data.shapes import shapes
from fdgsec.experiments.simulated_runs.challenger import Challenger
from fdgsec.federation.method import Client, Method
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fisc import FISC
from fdgsec.nn.styles.image_styles import statistics
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.registry import names
from fdgsec.threats.adversary import ADVERSARIES, Knowledge
from fdgsec.threats.answers import Answer
from fdgsec.threats.attack import Answers, Attack, Case, TargetFacts
from tests.support.short_inversion import BriefInversion

pytestmark = pytest.mark.medium

POOLED, ROWS = frozenset({"StyleStatistics", "StyleBank"}), frozenset({"ImageStyles", "StyleBank"})
CLUSTERED = frozenset({"StyleStatistics", "InterpolationStyle"})
METHODS: Mapping[frozenset[str], Method] = {POOLED: CCST(), ROWS: CCST(style="single"), CLUSTERED: FISC()}
ATTACKS: Mapping[str, tuple[Attack, frozenset[str]]] = {
    "differencing": (Differencing(records=2), POOLED),
    "domain-inference": (DomainInference(per_class=2), ROWS),
    "domain-inference, pooled": (DomainInference(clients=2, records=10), POOLED),
    "inter-client": (InterClient(gallery=20, per_class=2, images=10), ROWS),
    "interpolation-leakage": (
        InterpolationLeakage(clients=2, records=5, federations=2, simulations=60, kept=40), CLUSTERED,
    ),
    "label-inference": (LabelInference(per_class=2, folds=2), ROWS),
    "linkage": (Linkage(clients=4), POOLED),
    "membership": (Membership(sizes=(10,), clients=2), POOLED),
    "optimization-inversion": (OptimizationInversion(restarts=1, steps=2, side=32), ROWS),
    "pool-exposure": (PoolExposure(sizes=(10,), clients=2, rounds=(2,), per_class=2, gallery=20), ROWS),
    "property-inference": (PropertyInference(clients=4, sizes=(10,), shadows=50, simulated=8), POOLED),
    "reidentification": (Reidentification(gallery=20, per_class=1), ROWS),
    "set-reconstruction": (SetReconstruction(sizes=(10,), clients=2), POOLED),
    "style-inversion": (BriefInversion(losses=("mse",), priors=("intra", "inter"), size=8), ROWS),
}  # fmt: skip
TRAINED = {"generator-leakage", "gradient-inversion", "model-membership", "poisoning"}
"""These read trained runs and one slice each, or (poisoning) read nothing; their own tests run them."""
ADVERSARY = {"inter-client": "client"}
PAIRED = {"interpolation-leakage", "linkage"}  # slices tell which cases are two sessions or halves of one
RENAMED = {"photo": "painting", "painting": "cartoon", "cartoon": "photo"}


@dataclass(frozen=True, kw_only=True, eq=False)
class AttackContext:
    """A challenger, the one that each attack watched, what their server knows, and what each was asked and answered."""

    challenger: Challenger
    watched: Mapping[str, Challenger]
    knowledge: Knowledge
    asked: Mapping[str, list[Case]]
    answered: Mapping[str, Answers]


@pytest.fixture(scope="module")
def scene() -> AttackContext:
    data = shapes(image_size=32, per_domain=84)
    roles = split_roles(data, rng=stream(0, "world", "roles"))
    clients = [Client(name=f"client:{n}", data=roles.federation.of_domain(n)) for n in range(3)]
    challenger = Challenger(
        method=CCST(), roles=roles, sources=(0, 1, 2), clients=clients, adversary=ADVERSARIES["server"], encoder="mini",
        seed=0,
    )  # fmt: skip
    knowledge = Knowledge(
        statistics=lambda dataset: statistics("mini", dataset), encoder="mini", class_names=data.class_names,
        domain_names=data.domain_names, auxiliary=roles.auxiliary.subset(roles.auxiliary.domains < 3), unseen=None,
        own=None,
    )  # fmt: skip
    seen = {name: watched(name, challenger, ADVERSARY.get(name, "server")) for name in ATTACKS}
    cases = {name: asked(name, seen[name]) for name in ATTACKS}
    empty = AttackContext(challenger=challenger, watched=seen, knowledge=knowledge, asked=cases, answered={})
    return replace(empty, answered={name: answered(name, cases[name], empty) for name in ATTACKS})


def watched(name: str, challenger: Challenger, adversary: str) -> Challenger:
    return replace(challenger, method=METHODS[ATTACKS[name][1]], adversary=ADVERSARIES[adversary], memo={})


def asked(name: str, challenger: Challenger) -> list[Case]:
    attack, released = ATTACKS[name]
    facts = TargetFacts(
        artifact_kinds=released, clients=3, images_per_client=50, classes=7, profile="quick",
        knows=frozenset(challenger.adversary.knows),
    )  # fmt: skip
    return [case for question in attack.plan(facts) for case, _ in challenger.cases(question)]


def answered(name: str, cases: Sequence[Case], scene: AttackContext, challenger: Challenger | None = None) -> Answers:
    challenger = challenger or scene.watched[name]
    knowledge = replace(scene.knowledge, simulate=challenger.simulated)
    if challenger.adversary.name == "client":
        knowledge = replace(knowledge, auxiliary=None, own=scene.challenger.clients[0].data)
    return ATTACKS[name][0].run(cases, knowledge, stream(0, "attack", "run"))


def same(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, Answer) and isinstance(other, Answer):
        parts = [field.name for field in fields(one)]
        return type(one) is type(other) and all(same(getattr(one, part), getattr(other, part)) for part in parts)
    return one == other


def agree(one: Answers, other: Answers) -> bool:
    return len(one) == len(other) > 0 and all(same(a, b) for a, b in zip(one, other, strict=True))


def renamed(cases: Sequence[Case]) -> list[Case]:
    return [
        replace(case, slice={key: RENAMED.get(str(value), value) for key, value in case.slice.items()})
        for case in cases
    ]


def test_every_attack_is_tried():
    assert {attack.name for attack, _ in ATTACKS.values()} == set(names("attacks")) - TRAINED


@pytest.mark.parametrize("name", ATTACKS)
def test_answers_stay_where_the_domains_in_slices_change_their_names(scene: AttackContext, name: str):
    cases = renamed(scene.asked[name])

    assert any(case.slice != other.slice for case, other in zip(cases, scene.asked[name], strict=True))
    assert agree(answered(name, cases, scene), scene.answered[name])


@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in PAIRED])
def test_answers_stay_where_slices_are_blank(scene: AttackContext, name: str):
    cases = [replace(case, slice={}) for case in scene.asked[name]]

    assert agree(answered(name, cases, scene), scene.answered[name])


@pytest.mark.parametrize("name", ["domain-inference", "domain-inference, pooled", "reidentification"])
def test_a_domain_that_is_told_is_no_help_to_attacks_that_do_not_read_it(scene: AttackContext, name: str):
    cases = [replace(case, domain=None) for case in scene.asked[name]]

    assert all(case.domain is not None for case in scene.asked[name])
    assert agree(answered(name, cases, scene), scene.answered[name])


@pytest.mark.parametrize("name", ["differencing", "label-inference", "membership"])
def test_a_wrong_domain_that_is_told_changes_the_answers_of_those_that_do(scene: AttackContext, name: str):
    cases = [replace(case, domain=RENAMED[str(case.domain)]) for case in scene.asked[name]]

    assert not agree(answered(name, cases, scene), scene.answered[name])


@pytest.mark.parametrize("name", ["label-inference", "linkage", "reidentification", "style-inversion"])
def test_a_client_attacks_without_knowing_the_victims_domain(scene: AttackContext, name: str):
    challenger = watched(name, scene.challenger, "client")

    cases = asked(name, challenger)

    assert "victim domains" not in ATTACKS[name][0].needs
    assert {case.domain for case in cases} == {None}
    assert answered(name, cases, scene, challenger)


@pytest.mark.parametrize("name", ["label-inference", "linkage", "reidentification"])
def test_an_outsider_without_any_image_is_told_what_it_lacks(scene: AttackContext, name: str):
    with pytest.raises(UsageError, match="needs auxiliary or own data"):
        asked(name, watched(name, scene.challenger, "outsider"))

"""What a run sent is what its method declares, for every method, every target, and options that change what is sent."""

from collections.abc import Mapping

import pytest

from fdgsec.experiments.run_config import build, target_method
from fdgsec.federation.method import Client, Method
from fdgsec.federation.release_declarations import ROUND_LOOP
from fdgsec.federation.stacked_methods import Stacked
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedavg import FedAvg
from fdgsec.methods.feddag_aggregation import CrossEvaluation
from fdgsec.methods.feddg import FedDG
from fdgsec.runtime.registry import METHODS, TARGETS, Target, resolve, target_named, targets
from tests.support.round_loop import CLIENTS, federated, four_clients

SMALL: Mapping[str, object] = {"plan": {"batch_size": 8, "learning_rate": 0.01}}
VARIANTS: list[tuple[str, dict[str, object]]] = [
    *((target.method, dict(target.options)) for target in TARGETS.values() if target.options),
    *((name, {}) for name in METHODS),
    ("fedavg", {"select": "validation"}),
    ("ccst", {"select": "validation"}),
    ("fedadg", {"discriminators": "averaged"}),
    ("feddag", {"distribution": "global-student", "generator": "fcn16"}),
    ("feddag", {"rho": 0.0, "generator": "fcn16"}),
    ("cross-evaluation", {"beta": 0.0, "k": 0}),
    ("fediir", {"mean": "clients"}),
    ("fedbn", {"unseen": "initial"}),
    ("feddg-ga", {"rule": "pardon"}),
    ("fisc", {"contrastive": "ordinary"}),
    ("stablefdg", {"received": 0}),
    ("stablefdg-dp", {"center": "received"}),
]
EXPECTED: Mapping[str, tuple[set[str], bool, str | None, bool]] = {
    "ccst-overall": ({"StyleStatistics", "StyleBank"}, False, None, True),
    "ccst-single": ({"ImageStyles", "StyleBank"}, False, None, True),
    "ccst-amplitude-overall": ({"Amplitudes"}, False, None, True),
    "ccst-amplitude-single": ({"Amplitudes"}, False, None, False),
    "stablefdg": ({"StyleDistribution"}, False, None, True),
    "feddag": ({"ModelState", "GeneratorState", "Scores"}, True, None, True),
    "fisc": ({"StyleStatistics", "InterpolationStyle"}, False, None, False),
    "fedalign": ({"ImageStyles", "StyleBank"}, False, "pixels", True),
    "fedccrl": ({"ImageStyles", "StyleBank"}, False, "pixels", True),
    "feddg": ({"Amplitudes"}, False, None, False),
    "fpl": ({"ModelState", "Prototypes"}, True, None, True),
    "fediir": ({"ModelState", "HeadGradient"}, True, None, True),
    "fedadg": ({"ModelState", "GeneratorState"}, True, None, True),
    "fedavg": ({"ModelState"}, True, None, True),
    "stablefdg-dp": ({"StyleDistribution"}, False, None, True),
    "feddag-dp": ({"ModelState", "GeneratorState", "Scores"}, True, None, True),
    "fisc-dp": ({"StyleStatistics", "InterpolationStyle"}, False, None, False),
    "fedalign-dp": ({"ImageStyles", "StyleBank"}, False, "pixels", True),
}
"""Kinds, whether training must come first, the encoder, and whether styles are means, as docs/attacks.md lists them."""


@pytest.fixture(scope="module")
def members() -> list[Client]:
    return four_clients()


def declared(method: Method) -> set[tuple[str, str]]:
    return {(release.stage, release.kind.kind) for release in (*method.releases, *ROUND_LOOP)}


def sent(method: Method, members: list[Client]) -> set[tuple[str, str]]:
    messages = federated(method, members, recode=False).transcript.messages()
    return {(message.stage, message.artifact.kind) for message in messages}


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=[f"{name} {options}" for name, options in VARIANTS])
@pytest.mark.medium
def test_what_was_sent_is_what_is_declared(name: str, options: dict[str, object], members: list[Client]):
    method: Method = build(resolve("methods", name), {**SMALL, **options}, where="method")
    method = method.fitting(CLIENTS)

    assert sent(method, members) == declared(method)


@pytest.mark.parametrize(
    "method",
    [CrossEvaluation(base=CCST(k=2)), Stacked(base=CCST(k=2), local=FedDG()), Stacked(base=FedAvg(), local=FedDG())],
    ids=["ccst++", "ccst with feddg", "fedavg with feddg"],
)
@pytest.mark.medium
def test_a_method_on_top_declares_what_both_send(method: Method, members: list[Client]):
    assert sent(method, members) == declared(method)


@pytest.mark.parametrize("target", EXPECTED)
def test_targets_are_attacked_by_what_their_method_declares(target: str):
    method = target_method(target_named(target))
    encoder = None if method.shared_mean is None else method.shared_mean.encoder

    found = set(method.released_kinds), method.needs_training, encoder, method.shares_means
    assert found == EXPECTED[target]


def test_every_method_is_a_target_under_a_name_of_its_own():
    known = targets()

    assert list(known)[: len(TARGETS)] == list(TARGETS)
    assert set(METHODS) <= set(known)
    assert known["ccst"] == Target(method="ccst", summary="with its default options")
    assert {target.method for target in known.values()} == set(METHODS)

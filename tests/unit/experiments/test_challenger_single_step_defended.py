"""A client that takes a single step wears the run's defenses: nobody sees an update that would not leave it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch

from fdgsec.data.roles import Roles, split_roles
from fdgsec.data.shapes import shapes
from fdgsec.federation.artifacts import ModelState
from fdgsec.federation.defense import Outgoing, Protected
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.method import Method
from fdgsec.runtime.random_streams import stream
from fdgsec.runtime.secret_streams import SecretStream
from fdgsec.threats.attack import Question
from tests.unit.experiments.test_challenger_single_step import challenger_of


@dataclass(frozen=True, kw_only=True)
class Silencing:
    """Sends zeros instead of a model."""

    assumptions: Sequence[str] = ()

    def check(self, method: Method) -> None:
        """Works with every method."""

    def on_message(self, outgoing: Outgoing, rng: SecretStream) -> Protected | None:
        if not isinstance(outgoing.artifact, ModelState):
            return None
        zeros = {name: torch.zeros_like(value) for name, value in outgoing.artifact.state.items()}
        return Protected(artifact=ModelState(state=zeros))


@pytest.fixture(scope="module")
def roles() -> Roles:
    return split_roles(shapes(image_size=32, per_domain=28), rng=stream(0, "world", "roles"))


@pytest.mark.medium
def test_the_adversary_sees_the_defended_update_of_a_single_step(roles: Roles):
    asked = Question(kind="single_step", count=1, records=2, scheme="first")
    defended = replace(challenger_of(roles), defense_stack=DefenseStack(defenses=[Silencing()]))

    for challenger, silent in ((challenger_of(roles), False), (defended, True)):
        case, _ = challenger.cases(asked)[0]
        sent = case.views[0].sent(case.victim, ModelState)
        assert sent is not None
        assert all(not bool(value.any()) for value in sent.state.values()) is silent

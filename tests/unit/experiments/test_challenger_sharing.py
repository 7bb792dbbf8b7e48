"""What clients with parts of the same images would share, computed at once where the method can."""

from dataclasses import dataclass

import pytest
import torch

from fdgsec.data.roles import Roles
from fdgsec.federation.artifacts import StyleStatistics
from fdgsec.federation.global_model import GlobalModel
from fdgsec.federation.method import Client, Clock, Inbox, Method, State
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fisc import FISC
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from tests.support.three_domains import challenger_of, roles_of_shapes


@dataclass(frozen=True, kw_only=True)
class LouderFISC(FISC):
    """Replaces the client's step, and not what many clients share at once."""

    def share(
        self, client: Client, *, model: GlobalModel | None, state: State, clock: Clock, rng: torch.Generator
    ) -> tuple[Inbox, State]:
        sent, kept = super().share(client, model=model, state=state, clock=clock, rng=rng)
        style = sent["style"]
        assert isinstance(style, StyleStatistics)
        return {"style": StyleStatistics(mean=2 * style.mean, std=style.std)}, kept


@pytest.fixture(scope="module")
def roles() -> Roles:
    return roles_of_shapes(60)


@pytest.mark.parametrize("method", [FISC(), LouderFISC(), CCST()], ids=["fisc", "another step", "ccst"])
@pytest.mark.medium
def test_many_lists_share_what_each_shares_alone(roles: Roles, method: Method):
    challenger, images = challenger_of(roles, method=method), roles.auxiliary
    lists = torch.stack([torch.randperm(len(images), generator=stream(n, "world"))[:9] for n in range(4)])

    together = challenger.sharing(images)(lists, stream(0, "attack"))

    for rows, found in zip(lists, together.sent, strict=True):
        alone = challenger.shared(images.subset(rows), stream(0, "attack"))
        torch.testing.assert_close(found.tensors(), alone.tensors(), rtol=1e-6, atol=1e-7)


def test_images_that_the_adversary_does_not_hold_are_refused(roles: Roles):
    challenger = challenger_of(roles, method=FISC())

    with pytest.raises(UsageError):
        challenger.sharing(roles.federation)

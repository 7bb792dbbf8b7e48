"""What the challenger shows of re-drawn federations, and of pooled releases to the judge of sets."""

import pytest
import torch

from fdgsec.data.roles import Roles, split_roles
from fdgsec.data.shapes import shapes
from fdgsec.experiments.simulated_runs.challenger import Challenger
from fdgsec.federation.artifacts import InterpolationStyle
from fdgsec.federation.method import Client
from fdgsec.methods.fisc import FISC
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import ADVERSARIES
from fdgsec.threats.attack import Case, Question, Truth


@pytest.fixture(scope="module")
def roles() -> Roles:
    return split_roles(shapes(image_size=32, per_domain=140), rng=stream(0, "world", "roles"))


@pytest.fixture(scope="module")
def challenger(roles: Roles) -> Challenger:
    clients = [Client(name=f"client:{n}", data=roles.federation.of_domain(n)) for n in range(3)]
    return Challenger(
        method=FISC(), roles=roles, sources=(0, 1, 2), clients=clients, adversary=ADVERSARIES["server"], encoder="mini",
        seed=0,
    )  # fmt: skip


def published_by_members(challenger: Challenger, case: Case, truth: Truth) -> torch.Tensor:
    """What the members of a federation would publish, were they to hold the images that are shown of them."""
    assert case.candidates is not None
    assert case.groups is not None
    assert truth.members is not None
    held = [case.candidates.subset(case.groups == group) for group in truth.members.nonzero().flatten()]
    style = challenger.simulated(held, stream(0, "attack")).latest(InterpolationStyle)
    assert style is not None
    return style.mean


def test_a_cohort_known_by_the_same_images_publishes_what_its_members_would(challenger: Challenger):
    for case, truth in challenger.cases(
        Question(kind="cohorts", count=2, clients=3, records=8, scheme="same images", rounds=1)
    ):
        seen = case.views[0].latest(InterpolationStyle)
        assert seen is not None
        assert len(case.views) == 1
        assert torch.equal(seen.mean, published_by_members(challenger, case, truth))


@pytest.mark.parametrize("scheme", ["iid", "dirichlet"])
def test_the_second_session_of_a_federation_is_shown_where_its_partner_says(challenger: Challenger, scheme: str):
    found = challenger.cases(Question(kind="cohorts", count=4, clients=3, records=8, scheme=scheme, rounds=2))

    for case, truth in found:
        assert truth.partner is not None
        again = found[truth.partner][0].views[1].latest(InterpolationStyle)
        first = case.views[0].latest(InterpolationStyle)
        assert again is not None
        assert first is not None
        assert torch.equal(again.mean, published_by_members(challenger, case, truth))
        assert not torch.equal(again.mean, first.mean)


def test_the_judge_is_shown_images_behind_a_pooled_release(challenger: Challenger, roles: Roles):
    for number, (_, truth) in enumerate(challenger.cases(Question(kind="released"))):
        behind = {image.numpy().tobytes() for image in roles.federation.of_domain(number).pixels()}
        assert truth.rows is None
        assert truth.images is not None
        assert {image.numpy().tobytes() for image in truth.images} <= behind

"""Run and negative control side by side answer as each does alone, whatever the number of cores."""

import pytest
import torch

from fdgsec.attacks.set_reconstruction import list_equations
from fdgsec.attacks.set_reconstruction.attack import SetReconstruction
from fdgsec.runtime import threads
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.answers import Answer, MemberList, Membership
from fdgsec.threats.attack import Case
from tests.unit.attacks.test_set_reconstruction import asked, knowledge, released, world

MEMBERS = 12
MOMENTS, IMAGES = world(60)
KNOWN = knowledge(MOMENTS, IMAGES)
ATTACK = SetReconstruction(roundings=("float16",))


def clients(count: int, *, absent: int) -> list[Case]:
    """Clients with one list of members, in galleries of which each lacks some."""
    sent, shown = released(MOMENTS, MEMBERS), range(absent, 40)
    return [asked(sent, IMAGES, MEMBERS, shown=shown, seed=number)[0] for number in range(count)]


def same(one: list[Answer], other: list[Answer]) -> bool:
    return len(one) == len(other) and all(map(_equal, one, other))


def _equal(one: Answer, other: Answer) -> bool:
    if isinstance(one, Membership) and isinstance(other, Membership):
        return (one.case, one.slice) == (other.case, other.slice) and torch.equal(one.scores, other.scores)
    assert isinstance(one, MemberList)
    assert isinstance(other, MemberList)
    return (one.case, one.slice) == (other.case, other.slice) and torch.equal(one.believed, other.believed)


@pytest.mark.parametrize("absent", [0, 4])
@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.medium
def test_both_together_are_to_the_bit_what_each_is_alone(absent: int, cores: int, monkeypatch: pytest.MonkeyPatch):
    cases = clients(4, absent=absent)
    alone = ATTACK.run(cases, KNOWN, stream(0, "attack")), ATTACK.negative_control(cases, KNOWN, stream(1, "attack"))
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _process: set(range(cores)), raising=False)
    monkeypatch.setattr(threads.os, "cpu_count", lambda: cores)

    together = ATTACK.run_with_control(cases, KNOWN, stream(0, "attack"), stream(1, "attack"))

    assert all(same(list(one), list(other)) for one, other in zip(alone, together, strict=True))
    assert not same(list(together[0]), list(together[1]))


def test_what_absent_members_are_like_is_learned_once_for_both(monkeypatch: pytest.MonkeyPatch):
    learned: list[int] = []
    learn = list_equations.distribution_of
    monkeypatch.setattr(
        list_equations, "distribution_of", lambda images, related: learned.append(len(images)) or learn(images, related)
    )
    cases = clients(1, absent=4)

    SetReconstruction().run_with_control(cases, KNOWN, stream(0, "attack"), stream(1, "attack"))

    assert len(learned) == 1

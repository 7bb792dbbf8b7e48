"""Set reconstruction from rows that are means over groups of images, as `k-anonymous` sends them."""

from dataclasses import replace

import pytest
import torch
from scipy.optimize import linprog

from fdgsec.attacks.set_reconstruction.attack import SetReconstruction
from fdgsec.attacks.set_reconstruction.grouped_rows import group_reader, groups_of, sends_groups
from fdgsec.attacks.set_reconstruction.noisy_groups import RowBlur, noisy_groups
from fdgsec.data.roles import Roles
from fdgsec.defenses.k_anonymous import KAnonymous
from fdgsec.defenses.quantize import Quantize
from fdgsec.defenses.style_noise import StyleNoise
from fdgsec.federation.defense import Defense
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedalign import FedAlign
from fdgsec.metrics.roc import auc
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.answers import MemberList
from fdgsec.threats.attack import Question, TargetFacts
from tests.support.three_domains import (
    challenger_of,
    exact_lists,
    knowledge_of,
    lists_and_null,
    members_of,
    roles_of_shapes,
)

ROWS = CCST(style="single", styles_per_client=12)
QUESTION = Question(kind="rounds", count=3, records=40, rounds=1, gallery=100)
FACTS = TargetFacts(
    artifact_kinds=frozenset({"ImageStyles", "StyleBank"}), clients=3, images_per_client=100, classes=7, profile="quick"
)


@pytest.fixture(scope="module")
def roles() -> Roles:
    return roles_of_shapes()


@pytest.mark.parametrize("groups", ["random", "nearest"])
@pytest.mark.medium
def test_images_behind_groups_are_found_exactly_through_the_target(roles: Roles, groups):
    """The control through the target, 12 of 40 images in groups of 4 or more; and the null, of auxiliary images."""
    challenger = challenger_of(roles, KAnonymous(k=4, groups=groups), method=ROWS)

    rows, null = lists_and_null(challenger, knowledge_of(challenger), QUESTION)

    assert exact_lists(rows) == [1.0] * 3
    assert abs(null - 0.5) < 0.25


def test_members_are_the_images_whose_rows_were_sent_among_all_candidates(roles: Roles):
    challenger = challenger_of(roles, KAnonymous(k=4), method=ROWS)

    for case, truth in challenger.cases(QUESTION):
        assert case.candidates is not None
        assert (len(case.candidates), int(members_of(truth).sum())) == (100, 12)
        assert case.slice["gallery"] == 100


def test_a_row_tells_the_size_of_its_group_by_how_often_it_is_sent():
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0], [3.0, 4.0], [3.0, 4.0]])

    means, sizes = groups_of(rows)

    assert means.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert sizes.tolist() == [2, 3]


def test_a_linear_program_finds_the_same_images(roles: Roles):
    """The second implementation: nonnegative weights of sum 1 with the row as their mean, by HiGHS."""
    challenger = challenger_of(roles, KAnonymous(k=4), method=ROWS)
    knowledge = knowledge_of(challenger)
    case, truth = challenger.cases(QUESTION)[0]
    assert case.candidates is not None
    means, _ = groups_of(torch.cat(case.released(), dim=1))
    candidates = torch.cat(knowledge.statistics(case.candidates).style(unbiased=True), dim=1)
    found = torch.zeros(len(candidates), dtype=torch.bool)
    scale = candidates.std(0)
    for mean in means:
        matrix = torch.cat([(candidates / scale).T, torch.ones(1, len(candidates))])
        target, slack = torch.cat([mean / scale, torch.ones(1)]), torch.eye(len(scale) + 1)
        solved = linprog(
            torch.cat([torch.zeros(len(candidates)), torch.ones(2 * len(slack))]).numpy(),
            A_eq=torch.cat([matrix, slack, -slack], dim=1).numpy(), b_eq=target.numpy(), bounds=(0, None),
        )  # fmt: skip
        assert solved.x is not None
        found |= torch.from_numpy(solved.x[: len(candidates)] > 0.1)

    posterior = group_reader([case], knowledge, stream(0, "attack")).solved(case, case)

    assert torch.equal(found, members_of(truth))
    assert torch.equal(posterior.believed(), members_of(truth))


@pytest.mark.parametrize("before", [(StyleNoise(p=0.1, scale=0.05),), (Quantize(bits=8),)])
def test_members_are_ranked_behind_noise_or_rounding_before_the_mean(roles: Roles, before: tuple[Defense, ...]):
    challenger = challenger_of(roles, *before, KAnonymous(k=4), method=ROWS)
    knowledge = knowledge_of(challenger)
    pairs = challenger.cases(QUESTION)
    reader = group_reader([pairs[0][0]], knowledge, stream(0, "attack"))

    areas = []
    for case, truth in pairs[:3]:
        scores, members = reader.solved(case, case).scores(), members_of(truth)
        areas.append(auc(scores[members], scores[~members]))

    assert sum(areas) / len(areas) > 0.75


@pytest.mark.medium
def test_groups_are_found_and_read_behind_noise_after_the_mean(roles: Roles):
    """Each row has noise of its own, so that no two are equal: those of a group differ by the noise alone."""
    challenger = challenger_of(roles, KAnonymous(k=4), StyleNoise(p=0.1, scale=0.001), method=ROWS)

    rows, null = lists_and_null(challenger, knowledge_of(challenger), QUESTION)

    assert exact_lists(rows) == [1.0] * 3
    assert abs(null - 0.5) < 0.25


@pytest.mark.parametrize("scale", [0.02, 0.1])
def test_rows_of_a_group_are_linked_by_the_size_of_the_noise(scale: float):
    rng = stream(0, "attack", "blurred rows")
    means = torch.randn(3, 400, generator=rng, dtype=torch.float64)
    group = torch.tensor([0, 1, 2, 0, 1, 0, 2, 2, 1])
    blur = RowBlur(gain=0.9, shift=torch.ones(400).double(), scale=torch.full((400,), scale, dtype=torch.float64))
    noise = scale * torch.randn(9, 400, generator=rng, dtype=torch.float64)

    found = noisy_groups(0.9 * means[group] + 1 + noise, blur)

    assert [mine.tolist() for mine in found] == [[0, 3, 5], [1, 4, 8], [2, 6, 7]]


def test_groups_are_recognized_by_images_of_the_adversary(roles: Roles):
    def sent(method, *defenses: Defense) -> bool:
        return sends_groups(knowledge_of(challenger_of(roles, *defenses, method=method)))

    assert sent(ROWS, KAnonymous(k=4))
    assert sent(FedAlign(), KAnonymous(k=4, groups="nearest"))
    assert not sent(ROWS, StyleNoise(p=0.1, scale=0.05))
    assert not sent(ROWS)
    assert not sent(CCST(), KAnonymous(k=4))


def test_rows_are_asked_about_only_behind_a_defense_that_makes_groups():
    attack = SetReconstruction(clients=4, grouped=130)
    (asked,) = attack.plan(replace(FACTS, grouped_rows=True))
    assert (asked.kind, asked.count, asked.records, asked.rounds) == ("rounds", 4, 130, 1)
    with pytest.raises(UsageError, match="single images"):
        attack.plan(FACTS)
    assert DefenseStack(defenses=(Quantize(bits=8), KAnonymous())).mixes_records
    assert not DefenseStack(defenses=(Quantize(bits=8),)).mixes_records


def test_rows_that_all_differ_are_refused(roles: Roles):
    """Rows of single images, read by one who expects groups: nothing tells which would be a group's."""
    grouped, single = challenger_of(roles, KAnonymous(k=4), method=ROWS), challenger_of(roles, method=ROWS)
    case, _ = single.cases(QUESTION)[0]

    with pytest.raises(UsageError, match="groups of rows that are equal but for noise"):
        group_reader([case], knowledge_of(grouped), stream(0, "attack")).solved(case, case)


def test_planted_groups_are_found():
    """The positive control of rows, which needs no defense: planted groups are sent as they are."""
    roles = roles_of_shapes()
    knowledge = knowledge_of(challenger_of(roles, KAnonymous(k=4), method=ROWS))
    attack = SetReconstruction()

    control = attack.positive_control(knowledge, stream(0, "attack", "control"))

    assert {case.question for case in control.cases} == {"rounds"}
    answers = attack.run(control.cases, control.knowledge, stream(0, "attack"))
    lists = {answer.case: answer.believed for answer in answers if isinstance(answer, MemberList)}
    for number, truth in enumerate(control.truths):
        assert torch.equal(lists[number], members_of(truth))

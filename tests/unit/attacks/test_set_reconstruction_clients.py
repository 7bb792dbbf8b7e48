"""Set reconstruction by an adversary that knows neither the size nor the domain of its victims, and no images."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fdgsec.attacks.set_reconstruction.attack import SetReconstruction
from fdgsec.attacks.set_reconstruction.list_equations import ListEquations
from fdgsec.attacks.set_reconstruction.unknown_sizes import (
    explaining_list,
    likeliest_size,
    released_alone,
    unknown_size_reader,
)
from fdgsec.data.roles import Roles
from fdgsec.defenses.style_noise import StyleNoise
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import ADVERSARIES
from fdgsec.threats.answers import MemberList
from fdgsec.threats.attack import Question, TargetFacts
from fdgsec.threats.judging.judge import Judge
from tests.support.three_domains import (
    challenger_of,
    exact_lists,
    knowledge_of,
    lists_and_null,
    mean_area,
    members_of,
    roles_of_shapes,
)

QUESTION = Question(kind="resampled_clients", count=3, records=26, gallery=52)


@pytest.fixture(scope="module")
def roles() -> Roles:
    return roles_of_shapes()


@pytest.mark.parametrize("adversary", ["client", "outsider"])
@pytest.mark.medium
def test_lists_and_sizes_follow_from_a_style_alone_through_the_target(roles: Roles, adversary: str):
    challenger = challenger_of(roles, adversary=adversary)
    cases = [case for case, _ in challenger.cases(QUESTION)]
    assert all(case.records is None and case.domain is None for case in cases)

    rows, null = lists_and_null(challenger, knowledge_of(challenger), QUESTION)

    assert exact_lists(rows) == [1.0] * len(challenger.open_domains)  # 26 images each, which the adversary is not told
    assert abs(null - 0.5) < 0.1  # nine clients of 26 and 26: a standard deviation of .03


def test_a_client_reads_the_bank_that_it_received(roles: Roles):
    challenger = challenger_of(roles, adversary="client")
    case, truth = challenger.cases(QUESTION)[0]
    assert {message.sender for message in case.views[0].messages} == {"client:0", "server"}
    alone = released_alone(case)
    found = unknown_size_reader([case], knowledge_of(challenger), stream(0, "attack")).solved(case, alone)
    assert found.listed == 26
    assert torch.equal(found.believed(), members_of(truth))


@pytest.mark.parametrize("adversary", ["client", "outsider"])
@pytest.mark.medium
def test_behind_noise_candidates_are_ranked(roles: Roles, adversary: str):
    challenger = challenger_of(roles, StyleNoise(p=0.1, scale=0.01), adversary=adversary)
    pairs = challenger.cases(QUESTION)
    cases, truths = [case for case, _ in pairs], [truth for _, truth in pairs]

    answers = SetReconstruction().run(cases, knowledge_of(challenger), stream(0, "attack"))

    assert mean_area(answers, truths) > 0.6
    listed = [int(one.believed.sum()) for one in answers if isinstance(one, MemberList)]
    assert listed
    assert all(abs(size - 26) <= 1 for size in listed)  # the likeliest sizes behind this noise


def test_the_planted_control_is_passed_without_size_domain_and_images(roles: Roles):
    challenger = challenger_of(roles, adversary="client")
    control = SetReconstruction().positive_control(knowledge_of(challenger), stream(0, "attack", "control"))
    assert all(case.records is None and case.domain is None for case in control.cases)
    assert control.knowledge.auxiliary is None
    answers = SetReconstruction().run(control.cases, control.knowledge, stream(0, "attack"))
    rows = Judge(bootstrap_repeats=50).measure(answers, control.cases, control.truths, stream(0, "world", "judge"))
    assert exact_lists(rows) == [1.0]


def test_pooled_styles_alone_are_asked_about_and_all_else_needs_knowledge():
    facts = TargetFacts(
        artifact_kinds=frozenset({"StyleStatistics"}), clients=3, images_per_client=100, classes=7, profile="quick",
        knows=frozenset(ADVERSARIES["client"].knows),
    )  # fmt: skip
    found = SetReconstruction(sizes=(40,)).plan(facts)
    assert [(one.kind, one.held) for one in found] == [("resampled_clients", 1.0)] * 2
    for other in (
        replace(facts, weighted=True), replace(facts, pooled=False), replace(facts, summed=True),
        replace(facts, artifact_kinds=frozenset({"ImageStyles"}), grouped_rows=True),
        replace(facts, artifact_kinds=frozenset({"Prototypes", "ModelState"})),
        replace(facts, knows=facts.knows | {"auxiliary"}),
    ):  # fmt: skip
        with pytest.raises(UsageError, match="the adversary does not know that"):
            SetReconstruction().plan(other)


def test_the_number_of_images_follows_from_a_mean_that_its_list_explains():
    """More members than half of the numbers, where nonnegative least squares alone does not tell them."""
    rng = np.random.default_rng(0)
    candidates = rng.standard_normal((300, 120))
    members = np.arange(300) < 70
    known = ListEquations(
        candidates=candidates, release=candidates[members].mean(0), noise=np.full(120, 1e-6), spread=np.ones(120),
        images=150,
    )  # fmt: skip

    assert abs(likeliest_size(known) - 70) <= 15  # about 120 squares tell a variance to 13%
    found = explaining_list(known, members + 0.1 * rng.random(300))
    assert found is not None
    assert found.believed().tolist() == members.tolist()
    assert explaining_list(known, rng.random(300)) is None

"""A client reads pooled styles: defenses that leave them as they are cost it nothing."""

import pytest

from fdgsec.data.roles import Roles
from fdgsec.defenses.guards import Guards
from fdgsec.defenses.k_anonymous import KAnonymous
from fdgsec.federation.defense import Defense
from fdgsec.threats.attack import Question
from tests.support.three_domains import challenger_of, exact_lists, knowledge_of, lists_and_null, roles_of_shapes


@pytest.fixture(scope="module")
def roles() -> Roles:
    return roles_of_shapes()


@pytest.mark.parametrize("defense", [Guards(), KAnonymous(k=5)])
@pytest.mark.medium
def test_a_list_behind_a_defense_that_leaves_pooled_styles_unchanged_is_as_exact_as_without(
    roles: Roles, defense: Defense
) -> None:
    challenger = challenger_of(roles, defense, adversary="client")
    question = Question(kind="resampled_clients", count=3, records=20, gallery=60)

    rows, _ = lists_and_null(challenger, knowledge_of(challenger), question)

    assert exact_lists(rows) == [1.0] * len(challenger.open_domains)

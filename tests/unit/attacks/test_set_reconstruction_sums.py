"""Set reconstruction from sums over several clients, as secure aggregation shows them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear

from fdgsec.attacks.set_reconstruction.attack import SetReconstruction
from fdgsec.attacks.set_reconstruction.release_equations import reader_of
from fdgsec.attacks.statistics.domain_populations import populations_of
from fdgsec.data.domains import DomainDataset
from fdgsec.data.roles import Roles, split_roles
from fdgsec.data.shapes import shapes
from fdgsec.defenses.secure_aggregation import SecureAggregation
from fdgsec.defenses.style_noise import StyleNoise
from fdgsec.experiments.simulated_runs.summed_client_cases import sums_suffice, sums_uploads
from fdgsec.federation.artifacts import StyleStatistics
from fdgsec.federation.defense_stack import DefenseStack
from fdgsec.federation.wire import CLIENTS
from fdgsec.methods.ccst import CCST
from fdgsec.methods.stablefdg import StableFDG
from fdgsec.metrics.measurement import Measurement
from fdgsec.metrics.roc import auc
from fdgsec.nn.styles.image_styles import statistics
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.answers import Membership
from fdgsec.threats.attack import Question, TargetFacts
from tests.support.three_domains import challenger_of, knowledge_of, lists_and_null

FACTS = TargetFacts(
    artifact_kinds=frozenset({"StyleStatistics"}), clients=3, images_per_client=100, classes=7, profile="quick",
    summable=True,
)  # fmt: skip
THREE = Question(kind="sums", count=4, clients=3, records=8, gallery=48)


@pytest.fixture(scope="module")
def data() -> DomainDataset:
    return shapes(image_size=32, per_domain=140)


@pytest.fixture(scope="module")
def roles(data: DomainDataset) -> Roles:
    return split_roles(data, rng=stream(0, "world", "roles"))


def test_a_sum_is_the_mean_over_the_images_of_all_its_clients(roles: Roles):
    cases = challenger_of(roles).cases(THREE)

    assert len(cases) == 4
    for case, truth in cases:
        assert (case.victim, case.records, case.clients, case.domain) == (CLIENTS, 24, 3, "mixed")
        assert case.slice == {"domain": "mixed", "n_per_client": 8, "clients": 3, "gallery": 48, "held": "100%"}
        assert case.candidates is not None
        assert truth.members is not None
        members = case.candidates.subset(truth.members)
        assert (len(case.candidates), len(members)) == (48, 24)
        mean, std = statistics("mini", members).pooled().style(unbiased=False)
        sent = case.release()
        assert isinstance(sent, StyleStatistics)
        torch.testing.assert_close(sent.mean, mean[0].float(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(sent.std, std[0].float(), rtol=1e-5, atol=1e-5)


def test_clients_of_a_sum_hold_different_images_of_each_domain_in_turn(roles: Roles):
    """Five clients of three domains: two, two, and one; as many others of each domain as members."""
    case, truth = challenger_of(roles).cases(Question(kind="sums", count=1, clients=5, records=6, gallery=60))[0]
    assert case.candidates is not None
    assert truth.members is not None
    pool = torch.cat([roles.federation.rows, roles.held_out.rows])
    domains = torch.cat([roles.federation.domains, roles.held_out.domains])
    place = {int(row): int(domain) for row, domain in zip(pool, domains, strict=True)}
    found = torch.tensor([place[int(row)] for row in case.candidates.rows])
    assert torch.bincount(found[truth.members]).tolist() == [12, 12, 6]
    assert torch.bincount(found[~truth.members]).tolist() == [12, 12, 6]
    assert len(set(case.candidates.ids)) == 60


def test_the_view_of_a_sum_names_no_client(roles: Roles):
    for defenses in ((), (SecureAggregation(),)):
        case, _ = challenger_of(roles, *defenses).cases(THREE)[0]
        senders = {message.sender for message in case.views[0].messages if message.sender != "server"}
        assert senders == {CLIENTS}


def test_sums_are_asked_about_where_the_method_works_with_them_and_alone_where_nothing_else_is_seen():
    attack = SetReconstruction(sizes=(40,), sums=(3, 10))
    kinds = [question.kind for question in attack.plan(FACTS)]
    assert kinds.count("sums") == 2
    assert "resampled_clients" in kinds
    assert {question.kind for question in attack.plan(replace(FACTS, summed=True))} == {"sums"}
    assert "sums" not in {question.kind for question in attack.plan(replace(FACTS, summable=False))}


def test_methods_whose_server_needs_names_have_no_sums(roles: Roles):
    assert sums_suffice(CCST())
    assert not sums_suffice(StableFDG())
    assert challenger_of(roles, method=StableFDG()).cases(THREE) == []
    assert sums_uploads(DefenseStack(defenses=(SecureAggregation(),)))
    assert not sums_uploads(DefenseStack(defenses=(StyleNoise(p=0.1, scale=0.02),)))


def test_too_few_images_of_a_domain_are_no_sum(roles: Roles):
    assert challenger_of(roles).cases(Question(kind="sums", count=1, clients=30, records=40, gallery=2400)) == []


@pytest.mark.parametrize("defended", [False, True])
@pytest.mark.medium
def test_lists_behind_a_sum_are_exact_through_the_target(roles: Roles, defended: bool):
    """The control through the target: CCST's own exchange, summed by the real defense, of images drawn from shapes."""
    challenger = challenger_of(roles, *((SecureAggregation(),) if defended else ()))

    rows, null = lists_and_null(challenger, knowledge_of(challenger), THREE)

    assert value("exact_list", rows) == value("auc", rows) == 1.0
    assert abs(null - 0.5) < 0.2


def value(name: str, rows: list[Measurement]) -> float:
    (row,) = [row for row in rows if row.name == name]
    assert row.value is not None
    assert row.slice["clients"] == 3
    return row.value


def test_another_solver_finds_the_same_members_behind_a_sum(roles: Roles):
    """The second implementation: scipy's bounded least squares on the mean of (mu, sigma^2 + mu^2)."""
    challenger = challenger_of(roles)
    knowledge = knowledge_of(challenger)
    case, truth = challenger.cases(THREE)[0]
    assert case.candidates is not None
    assert truth.members is not None
    t = knowledge.statistics(case.candidates).linear()
    scale = t.std(0).clamp_min(1e-9)
    target = 24 * knowledge.released_statistic.release(case.release())[0] / scale
    found = lsq_linear((t / scale).T.numpy(), target.numpy(), (0, 1), method="bvls").x
    assert (found > 0.5).tolist() == truth.members.tolist()
    np.testing.assert_allclose(found, truth.members.double().numpy(), atol=0.05)


@pytest.mark.medium
def test_noise_of_a_defense_averages_out_in_a_sum(roles: Roles):
    """Three clients of 8 images, each with its own noise: a third of the variance of one of them."""
    challenger = challenger_of(roles, StyleNoise(p=0.1, scale=1.0))
    pairs = challenger.cases(replace(THREE, count=6))
    cases = [case for case, _ in pairs]
    knowledge = knowledge_of(challenger)

    reader = reader_of(cases, knowledge, stream(0, "attack"))
    alone = reader.equations(replace(cases[0], clients=1, records=8), cases[0])
    together = reader.equations(cases[0], cases[0])
    answers = SetReconstruction().run(cases, knowledge, stream(0, "attack"))

    np.testing.assert_allclose(together.noise, alone.noise / 3**0.5, rtol=1e-3)
    areas = []
    for answer in answers:
        members = pairs[answer.case][1].members
        assert members is not None
        if isinstance(answer, Membership):
            areas.append(auc(answer.scores[members], answer.scores[~members]))
    assert 0.5 < sum(areas) / len(areas) < 1.0


def test_the_style_of_a_sum_is_seen_by_whoever_asks_for_it(roles: Roles):
    case, _ = challenger_of(roles).cases(THREE)[0]
    found = case.views[0].styles(CLIENTS)
    assert found is not None
    assert found[0].shape[0] == 1
    assert case.views[0].reading(CLIENTS, ["ImageStyles"]).artifact("clients") is not None


def test_the_population_of_several_domains_is_that_of_all_auxiliary_images(roles: Roles):
    knowledge = knowledge_of(challenger_of(roles))
    assert knowledge.auxiliary is not None
    found = populations_of(["mixed"], knowledge)["mixed"]
    records = knowledge.released_statistic.records(knowledge.statistics(knowledge.auxiliary))
    torch.testing.assert_close(found.about, records.mean(0))
    assert len(found.reference) == len(knowledge.auxiliary)

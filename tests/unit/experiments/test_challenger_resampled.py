"""Requests that re-draw clients: sessions, rounds, mixtures and cohorts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from fdgsec.data.domains import DomainDataset
from fdgsec.data.roles import Roles, split_roles
from fdgsec.data.shapes import shapes
from fdgsec.experiments.attack.own_domains import left_out
from fdgsec.experiments.setup.run_federation import FederationRun
from fdgsec.experiments.simulated_runs.challenger import Challenger
from fdgsec.experiments.simulated_runs.simulator import Simulator
from fdgsec.federation.artifacts import InterpolationStyle
from fdgsec.federation.method import Client, Method
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedalign import FedAlign
from fdgsec.methods.fisc import FISC
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import ADVERSARIES
from fdgsec.threats.attack import Question


@pytest.fixture(scope="module")
def data() -> DomainDataset:
    return shapes(image_size=32, per_domain=140)


@pytest.fixture(scope="module")
def roles(data: DomainDataset) -> Roles:
    return split_roles(data, rng=stream(0, "world", "roles"))


def challenger_of(roles: Roles, method: Method, *, adversary: str = "server", encoder: str = "mini") -> Challenger:
    clients = [Client(name=f"client:{n}", data=roles.federation.of_domain(n)) for n in range(3)]
    return Challenger(
        method=method, roles=roles, sources=(0, 1, 2), clients=clients, adversary=ADVERSARIES[adversary],
        encoder=encoder, seed=0,
    )  # fmt: skip


def test_both_sessions_of_a_pooled_style_are_the_same_up_to_the_name(roles: Roles):
    cases = challenger_of(roles, CCST()).cases(Question(kind="sessions", count=4, records=5, scheme="domain"))
    first, second = cases[:4], cases[4:]

    for case, truth in first:
        assert truth.partner is not None
        again, _ = second[truth.partner]
        assert case.records == again.records == 10
        assert torch.equal(case.released()[0], again.released()[0])


def test_the_partner_of_a_client_of_several_domains_is_sought_among_those_of_its_own(roles: Roles):
    """Whoever tells domains ranked it among a third of all, and was said to link clients."""
    cases = challenger_of(roles, CCST()).cases(Question(kind="halves", count=7, records=3, scheme="domain"))
    domains = len(roles.federation.domain_names) - 1
    partners = [truth.partner for _, truth in cases[:7]]

    for number, (_, truth) in enumerate(cases[:7]):
        assert truth.alike == sorted(partners[other] or 0 for other in range(number % domains, 7, domains))
        assert truth.partner in (truth.alike or ())
    of_one = challenger_of(roles, CCST()).cases(Question(kind="halves", count=4, records=3))
    assert all(truth.alike == [0, 1, 2, 3] for case, truth in of_one if case.slice["half"] == "A")


def test_a_second_session_of_a_pool_uploads_another_subset(roles: Roles):
    challenger = challenger_of(roles, FedAlign(), encoder="pixels")
    cases = challenger.cases(Question(kind="sessions", count=4, records=20, scheme="domain"))

    same = [
        torch.equal(case.released()[0], cases[4 + truth.partner][0].released()[0])
        for case, truth in cases[:4]
        if truth.partner is not None
    ]

    assert len(same) == 4
    assert not any(same)


def test_members_of_several_rounds_are_the_images_that_any_of_them_released(roles: Roles):
    challenger = challenger_of(roles, FedAlign(), encoder="pixels")
    one = challenger.cases(Question(kind="rounds", count=2, records=30, rounds=1))
    many = challenger.cases(Question(kind="rounds", count=2, records=30, rounds=5))

    for (case, truth), (later, more) in zip(one, many, strict=True):
        assert case.candidates is not None
        assert later.candidates is not None
        assert truth.members is not None
        assert more.members is not None
        assert len(case.candidates) == 60
        assert int(truth.members.sum()) == len(case.released()[0])
        assert len(later.views) == 5
        assert int(more.members.sum()) > int(truth.members.sum())
        assert set(later.candidates.ids) == set(case.candidates.ids)


def test_mixtures_tell_the_judge_the_shares_of_classes_and_domains(roles: Roles):
    challenger = challenger_of(roles, CCST())
    within = challenger.cases(Question(kind="mixtures", count=3, records=20))
    across = challenger.cases(Question(kind="mixtures", count=3, records=20, scheme="domains"))

    assert len(within) == 9
    assert len(across) == 3
    for _, truth in [*within, *across]:
        assert truth.proportions is not None
        assert truth.domain_shares is not None
        assert float(truth.proportions.sum()) == pytest.approx(1, abs=1e-9)
        assert float(truth.domain_shares.sum()) == pytest.approx(1, abs=1e-9)
    assert {case.domain for case, _ in across} == {"mixed"}
    assert all(int((truth.domain_shares > 0).sum()) == 1 for _, truth in within if truth.domain_shares is not None)
    shares = torch.stack([truth.proportions for _, truth in within if truth.proportions is not None])
    assert float(shares.std(0).max()) > 0.1


def test_a_cohort_asks_about_other_images_than_those_that_were_brought(roles: Roles, monkeypatch: pytest.MonkeyPatch):
    brought: list[set[int]] = []
    exchange = Challenger.exchange

    def listening(self: Challenger, data: list[DomainDataset], *, name: str) -> object:
        brought.append({row for images in data for row in images.rows.tolist()})
        return exchange(self, data, name=name)

    monkeypatch.setattr(Challenger, "exchange", listening)
    cases = challenger_of(roles, FISC(), adversary="client").cases(
        Question(kind="cohorts", count=2, clients=6, records=10)
    )

    assert len(cases) == 2
    for (case, truth), rows in zip(cases, brought, strict=True):
        assert case.candidates is not None
        assert case.groups is not None
        assert truth.members is not None
        assert len(case.candidates) == 12 * 10
        assert torch.bincount(case.groups).tolist() == [10] * 12
        assert int(truth.members.sum()) == 6
        assert not rows & set(case.candidates.rows.tolist())
        assert case.views[0].latest(InterpolationStyle) is not None


def test_an_attack_simulates_on_images_it_holds_or_was_shown_and_on_no_others(roles: Roles):
    challenger = challenger_of(roles, CCST())
    shown = challenger.cases(Question(kind="resampled_clients", count=1, records=10))[0][0].candidates
    auxiliary = roles.auxiliary.of_domain(0)
    assert shown is not None

    view = challenger.simulated([auxiliary, shown], stream(0, "attack", "simulation"))

    assert view.artifact("client:1") is not None
    assert view.artifact("client:2") is not None
    with pytest.raises(UsageError, match="of these are not"):
        challenger.simulated([roles.held_out.of_domain(0)], stream(0, "attack", "simulation"))


def test_members_of_a_trained_run_were_trained_on_and_others_were_held_out(roles: Roles):
    challenger = challenger_of(roles, FedAlign(), encoder="pixels")
    run = challenger.exchange([client.data for client in challenger.clients], name="trained")
    cases = replace(challenger, run=run, memo={}).cases(Question(kind="trained", count=8))

    assert len(cases) == 3
    for (case, truth), client in zip(cases, challenger.clients, strict=True):
        assert case.candidates is not None
        assert truth.members is not None
        inside = case.candidates.subset(truth.members.nonzero().flatten())
        outside = case.candidates.subset((~truth.members).nonzero().flatten())
        assert len(inside) == len(outside) == 8
        assert set(inside.rows.tolist()) <= set(client.data.rows.tolist())
        assert set(outside.rows.tolist()) <= set(roles.held_out.of_domain(client.number).rows.tolist())
        assert case.candidates.labels.any()
        assert not case.candidates.domains.any()


@pytest.mark.parametrize(
    "question",
    [
        Question(kind="resampled_clients", count=2, records=8),
        Question(kind="added_images", count=2, records=8, added=2),
        Question(kind="halves", count=4, records=3),
        Question(kind="halves", count=4, records=3, scheme="domain"),
        Question(kind="sessions", count=4, records=3, scheme="domain"),
        Question(kind="rounds", count=2, records=8, rounds=2),
        Question(kind="mixtures", count=2, records=8),
        Question(kind="mixtures", count=2, records=8, scheme="domains"),
        Question(kind="sums", count=2, clients=3, records=8, gallery=60),
        Question(kind="add_one_record", count=2),
    ],
    ids=lambda question: f"{question.kind}{question.scheme and '-'}{question.scheme}",
)
def test_no_client_that_is_drawn_anew_holds_an_image_of_the_adversary(
    roles: Roles, monkeypatch: pytest.MonkeyPatch, question: Question
):
    """82% of such clients' images of its own domain were its own: it was asked about what it holds."""
    drawn, exchange = list[DomainDataset](), Simulator.exchange

    def recorded(simulator: Simulator, data: Sequence[DomainDataset], **options: Any) -> FederationRun:
        drawn.extend(data)
        return exchange(simulator, data, **options)

    monkeypatch.setattr(Simulator, "exchange", recorded)

    cases = challenger_of(roles, CCST(), adversary="client").cases(question)

    assert cases
    assert drawn
    own = set(roles.federation.of_domain(0).ids)
    assert not own & {name for images in drawn for name in images.ids}


def test_questions_of_several_domains_leave_out_the_adversarys_own(roles: Roles):
    challenger = challenger_of(roles, CCST(), adversary="client")

    cases = challenger.cases(Question(kind="halves", count=4, records=3))

    assert {case.slice["domain"] for case, _ in cases} == {str(name) for name in roles.federation.domain_names[1:3]}


def test_forged_messages_are_sent_with_images_of_every_domain(roles: Roles):
    """What a forgery displaces does not depend on what its sender knows."""
    challenger = challenger_of(roles, CCST(), adversary="client")

    lacking = [len(challenger.drawable(domain)) > len(challenger.others(domain)) for domain in (0, 1, 2)]
    assert lacking == [True, False, False]
    assert challenger.open_domains == [1, 2]


def test_a_report_says_which_domain_the_adversary_is_not_asked_about(roles: Roles):
    question = Question(kind="halves", count=4, records=3)
    client, server = (challenger_of(roles, CCST(), adversary=name) for name in ("client", "server"))

    told, untold = (left_out({question: one.cases(question)}, one) for one in (client, server))

    assert list(told) == [str(roles.federation.domain_names[0])]
    assert "no clients of it are drawn for halves" in next(iter(told.values()))
    assert not untold

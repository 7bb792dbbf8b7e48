"""Membership against the methods themselves: FISC's styles by simulation, FedAlign's rows, whole and cropped."""

from collections.abc import Sequence

import pytest
import torch
from sklearn.metrics import roc_auc_score

from fdgsec.attacks.membership.attack import Membership
from fdgsec.data.domains import DomainDataset
from fdgsec.data.roles import Roles, split_roles
from fdgsec.data.shapes import shapes
from fdgsec.experiments.simulated_runs.challenger import Challenger
from fdgsec.federation.artifacts import ImageStyles
from fdgsec.federation.method import Client, Method
from fdgsec.methods.ccst import CCST
from fdgsec.methods.fedalign import FedAlign
from fdgsec.methods.fisc import FISC
from fdgsec.nn.styles.image_styles import statistics
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.adversary import ADVERSARIES, Knowledge
from fdgsec.threats.answers import Membership as MembershipAnswer
from fdgsec.threats.attack import Answers, Case, Question, Truth


@pytest.fixture(scope="module")
def data() -> DomainDataset:
    return shapes(image_size=32, per_domain=140)


@pytest.fixture(scope="module")
def roles(data: DomainDataset) -> Roles:
    return split_roles(data, rng=stream(0, "world", "roles"))


def challenger_of(roles: Roles, method: Method, encoder: str) -> tuple[Challenger, Knowledge]:
    clients = [Client(name=f"client:{n}", data=roles.federation.of_domain(n)) for n in range(3)]
    challenger = Challenger(
        method=method, roles=roles, sources=(0, 1), clients=clients, adversary=ADVERSARIES["server"], encoder=encoder,
        seed=0,
    )  # fmt: skip
    knowledge = Knowledge(
        statistics=lambda dataset: statistics(encoder, dataset), encoder=encoder,
        class_names=roles.federation.class_names, domain_names=roles.federation.domain_names,
        auxiliary=roles.auxiliary.subset(roles.auxiliary.domains < 2), unseen=None, own=None, simulate=challenger.simulated,
    )  # fmt: skip
    return challenger, knowledge


def areas(answers: Answers, truths: Sequence[Truth], **where: str) -> list[float]:
    found = []
    for answer in answers:
        members = truths[answer.case].members
        asked = {key: value for key, value in answer.slice.items() if key != "test"}
        if isinstance(answer, MembershipAnswer) and asked == where and members is not None:
            found.append(float(roc_auc_score(members.numpy(), answer.scores.numpy())))
    return found


def parted(pairs: Sequence[tuple[Case, Truth]]) -> tuple[list[Case], list[Truth]]:
    return [case for case, _ in pairs], [truth for _, truth in pairs]


@pytest.mark.medium
def test_fiscs_members_are_tested_on_shadow_clients_of_the_method_itself(roles: Roles):
    challenger, knowledge = challenger_of(roles, FISC(), "mini")
    cases, truths = parted(challenger.cases(Question(kind="rounds", count=10, records=12, rounds=1)))

    answers = Membership(shadows=40, tried=20).run(cases, knowledge, stream(0, "attack", "run"))

    found = areas(answers, truths)
    assert len(found) == len(cases) == 20
    assert all(isinstance(a, MembershipAnswer) and bool(a.scores.isfinite().all()) for a in answers)
    assert sum(found) / 20 > 0.55  # 12 against 12: one area has a standard deviation of .12, the mean of 20 .027


def test_images_whose_colors_were_released_are_told_from_all_others(roles: Roles):
    challenger, knowledge = challenger_of(roles, FedAlign(upload_ratio=0.2), "pixels")
    released = challenger.cases(Question(kind="rounds", count=4, records=30, rounds=1))
    held = challenger.cases(Question(kind="resampled_clients", count=4, records=30))
    cases, truths = parted([*released, *held])

    answers = Membership().run(cases, knowledge, stream(0, "attack", "run"))

    assert areas(answers, truths, question="released image", look="whole image") == [1.0] * 8
    held_areas = areas(answers, truths, question="client's image")
    assert 0.5 < sum(held_areas) / 8 < 0.8  # six of thirty are exposed: .6 and luck


def test_single_styles_are_equal_to_the_last_bit_or_two(roles: Roles):
    challenger, knowledge = challenger_of(roles, CCST(style="single", styles_per_client=3), "mini")
    cases, truths = parted(challenger.cases(Question(kind="rounds", count=2, records=20, rounds=1)))

    answers = Membership().run(cases, knowledge, stream(0, "attack", "run"))

    assert areas(answers, truths, question="released image", look="whole image") == [1.0] * 4


@pytest.mark.medium
def test_styles_of_crops_match_no_whole_image_and_are_looked_for_among_crops(roles: Roles):
    challenger, knowledge = challenger_of(roles, FedAlign(upload_ratio=0.5), "pixels")
    cases, truths = parted(challenger.cases(Question(kind="rounds", count=4, records=30, rounds=1, scheme="crops")))

    answers = Membership(crops=24).run(cases, knowledge, stream(0, "attack", "run"))

    assert all(isinstance(case.release(), ImageStyles) for case in cases)
    assert {case.slice["extraction"] for case in cases} == {"random crop"}
    whole = areas(answers, truths, question="released image", look="whole image")
    cropped = areas(answers, truths, question="released image", look="24 crops")
    assert len(whole) == len(cropped) == 8
    assert all(
        float(answer.scores.max()) < -1e-4 for answer in answers if isinstance(answer, MembershipAnswer)
    )  # nothing is equal, as it is where images are whole
    assert sum(cropped) / 8 > 0.95
    near = {look: members_scores(answers, truths, look) for look in ("whole image", "24 crops")}
    assert near["24 crops"] > 0.5 * near["whole image"]  # scores are negative distances


def members_scores(answers: Answers, truths: Sequence[Truth], look: str) -> float:
    found = []
    for answer in answers:
        members = truths[answer.case].members
        if isinstance(answer, MembershipAnswer) and answer.slice["look"] == look and members is not None:
            found.append(float(answer.scores[members].mean()))
    return sum(found) / len(found)


def test_whole_images_are_not_looked_for_among_crops(roles: Roles):
    challenger, knowledge = challenger_of(roles, FedAlign(upload_ratio=0.5), "pixels")
    cases, _ = parted(challenger.cases(Question(kind="rounds", count=1, records=30, rounds=1)))

    answers = Membership(crops=2).run(cases, knowledge, stream(0, "attack", "run"))

    assert {answer.slice["look"] for answer in answers} == {"whole image"}


def test_another_clients_rows_give_nothing_away(roles: Roles):
    challenger, knowledge = challenger_of(roles, FedAlign(upload_ratio=0.2), "pixels")
    cases, truths = parted(challenger.cases(Question(kind="rounds", count=24, records=30, rounds=1)))

    null = Membership().negative_control(cases, knowledge, stream(0, "attack", "null"))

    found = areas(null, truths, question="released image", look="whole image")
    assert len(found) == 48
    assert sum(found) / 48 == pytest.approx(0.5, abs=0.06)  # 6 against 54: .126 each, .018 for their mean


def test_a_client_finds_others_rows_in_the_bank_that_it_received(roles: Roles):
    challenger, knowledge = challenger_of(roles, CCST(style="single", styles_per_client=3), "mini")
    client = Challenger(
        method=challenger.method, roles=roles, sources=(1,), clients=challenger.clients, adversary=ADVERSARIES["client"],
        encoder="mini", seed=0,
    )  # fmt: skip
    cases, truths = parted(client.cases(Question(kind="rounds", count=3, records=20, rounds=1)))

    answers = Membership().run(cases, knowledge, stream(0, "attack", "run"))

    assert all(case.domain is None and case.records is None for case in cases)
    assert (
        torch.tensor(areas(answers, truths, question="released image", look="whole image")).eq(1.0).tolist()
        == [True] * 3
    )

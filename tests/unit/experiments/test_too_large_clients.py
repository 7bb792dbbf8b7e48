"""Clients of more images than a dataset has for them are said to be missing, and are not left out without a word."""

import pytest

import fdgsec
from fdgsec.experiments.attack.missing_clients import missing_clients
from fdgsec.metrics.measurement import Measurement
from fdgsec.threats.attack import Case, Question


def too_large(report: fdgsec.AttackReport) -> dict[str, Measurement]:
    (membership,) = report.attacks
    rows = [row for row in membership.measurements if "too large" in row.slice]
    return {str(row.slice["too large"]): row for row in rows}


def attacked(sizes: list[int]) -> fdgsec.AttackReport:
    options = {"sizes": sizes, "clients": 3}
    return fdgsec.attack(
        "ccst-overall", attacks=["membership"], image_size=16, per_domain=120,
        assignments=[f"attacks.membership.{name}={value}" for name, value in options.items()],
    )  # fmt: skip


@pytest.mark.medium
def test_a_size_that_no_domain_has_images_for_is_named_beside_those_that_were_measured():
    report = attacked([10, 500])

    ((name, row),) = too_large(report).items()
    assert name == "resampled_clients of 500 images each"
    assert (row.name, row.value) == ("auc", None)
    assert str(row.unavailable).startswith("too few images")
    assert {each.slice.get("n_per_client") for each in report.attacks[0].measurements if each.judged} == {10}


@pytest.mark.medium
def test_sizes_that_all_domains_have_images_for_are_not_named():
    assert not too_large(attacked([10]))


@pytest.mark.medium
def test_mixtures_of_labels_and_of_domains_are_two_questions_that_lack_nothing():
    """Clients of one domain each are no part of a question about clients of several, nor the other way round."""
    report = fdgsec.attack(
        "ccst-overall", attacks=["property-inference"], image_size=16, per_domain=120,
        assignments=["attacks.property-inference.sizes=[20]", "attacks.property-inference.clients=30"],
    )  # fmt: skip

    (result,) = report.attacks
    assert (result.status, dict(result.unanswered)) == ("done", {})


def test_a_domain_that_is_missing_is_named_whatever_the_scheme_of_the_question_that_has_it():
    """Membership asks about rows of whole images in one size, and of crops in another."""
    large, crops = (Question(kind="rounds", scheme=scheme, records=n) for scheme, n in (("", 1400), ("crops", 40)))
    mixed = Question(kind="rounds", scheme="domains", records=40)
    domains = {large: ("photo",), crops: ("photo", "cartoon"), mixed: ("mixed",)}
    found = {
        question: [
            (Case(question="rounds", views=(), victim="client:0", slice={"domain": domain}), None) for domain in named
        ]
        for question, named in domains.items()
    }

    missing = {question: missing_clients(question, found) for question in found}  # type: ignore[arg-type]

    assert (missing[crops], missing[mixed]) == (None, None)
    gone = missing[large]
    assert gone is not None
    assert (gone.reason, gone.too_large) == ("too few images of cartoon for clients of 1,400", True)

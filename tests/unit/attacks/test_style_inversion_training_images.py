"""Which images an inverter may learn from, by who attacks and whom: intra, inter, own, third party."""

from dataclasses import replace

import pytest

from fdgsec.attacks.style_inversion.attack import StyleInversion
from fdgsec.attacks.style_inversion.training_images import prior_images
from fdgsec.runtime.errors import UsageError
from fdgsec.threats.attack import TargetFacts
from tests.support.quadrants import (
    AUXILIARY,
    DOMAINS,
    MSE,
    SERVER,
    WORLD,
    image_rows,
    knowledge,
    lacking,
    reconstructions,
    victims,
)


@pytest.mark.parametrize(("victim", "expected"), [("red", "green"), ("green", "blue"), ("blue", "red")])
def test_the_servers_inter_prior_is_the_next_source_domain(victim: str, expected: str):
    found = prior_images("inter", victim, SERVER)

    assert not isinstance(found, str)
    assert set(found[1].domains.tolist()) == {DOMAINS.index(expected)}


def test_a_client_attacks_other_domains_with_its_own_images_alone():
    client = knowledge(own=AUXILIARY.of_domain("red"))
    found = prior_images("inter", "green", client)

    assert not isinstance(found, str)
    assert set(found[1].domains.tolist()) == {0}
    assert prior_images("inter", "red", client) == "the adversary's own images are of red"
    assert isinstance(prior_images("intra", "green", client), str)
    assert prior_images("third-party", "green", client) == "no images of the unseen domain"


def test_priors_without_data_are_reported_with_their_reason_and_not_answered():
    client = knowledge(own=AUXILIARY.of_domain("red"))
    cases = [image_rows(victims(1), "green")]
    reasons = {str(row.slice["prior"]): row.unavailable for row in lacking(MSE, cases, client)}

    assert set(reasons) == {"intra", "third-party"}
    assert {a.slice["prior"] for a in reconstructions(MSE, cases, client)} == {"inter"}


def test_whoever_does_not_know_the_victims_domain_has_no_intra_prior_and_takes_all_own_images_for_inter():
    client = knowledge(unseen=WORLD.of_domain("lines"), own=AUXILIARY)
    found = prior_images("inter", None, client)

    assert not isinstance(found, str)
    assert found[1] is AUXILIARY
    assert prior_images("third-party", None, client) == prior_images("third-party", "red", client)
    for kind, known in (("intra", client), ("inter", SERVER)):
        assert prior_images(kind, None, known) == "the adversary does not know the domain of the victim's images"


@pytest.mark.medium
def test_a_prior_that_may_be_of_the_victims_domain_is_not_called_inter():
    client = knowledge(own=AUXILIARY.of_domain("red"))
    case = image_rows(victims(1), "green")

    (told,) = reconstructions(MSE, [case], client)
    (untold,) = reconstructions(MSE, [replace(case, domain=None)], client)

    assert (told.slice["prior"], untold.slice["prior"]) == ("inter", "own")


def test_an_outsider_inverts_with_the_unseen_domain_alone():
    outsider = knowledge(unseen=WORLD.of_domain("lines"))
    cases = [replace(image_rows(victims(1), "green"), domain=None)]

    assert {a.slice["prior"] for a in reconstructions(MSE, cases, outsider)} == {"third-party"}
    assert [row.slice["prior"] for row in lacking(MSE, cases, outsider)] == ["intra", "inter"]


def test_lpips_without_weights_is_reported_and_never_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: object):
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path))
    attack = StyleInversion(losses=("mse", "lpips"), priors=("intra",), size=64)
    (row,) = lacking(attack, [image_rows(victims(0), "red")], SERVER)

    assert row.slice == {"loss": "lpips"}
    assert row.unavailable is not None
    assert "vgg16" in row.unavailable
    assert {a.slice["loss"] for a in reconstructions(attack, [image_rows(victims(0), "red")], SERVER)} == {"mse"}


def test_unknown_losses_are_refused():
    with pytest.raises(UsageError, match="perceptual_mini, lpips"):
        StyleInversion(losses=("ssim",))


@pytest.mark.parametrize(
    ("kinds", "pooled", "expected"),
    [
        (("ImageStyles", "StyleBank"), True, [("released", 0), ("as_if_released", 0)]),
        (("StyleStatistics", "StyleBank"), True, [("add_one_record", 40), ("resampled_clients", 50)]),
        (("StyleDistribution",), True, [("add_one_record", 20), ("resampled_clients", 50)]),
        (("StyleStatistics", "InterpolationStyle"), False, [("resampled_clients", 50)]),
    ],
)  # fmt: skip
def test_each_kind_of_style_is_asked_for_what_can_be_drawn_of_it(
    kinds: tuple[str, ...], pooled: bool, expected: list[tuple[str, int]]
):
    facts = TargetFacts(
        artifact_kinds=frozenset(kinds), clients=3, images_per_client=9, classes=7, profile="quick", pooled=pooled
    )

    assert [(question.kind, question.count) for question in MSE.plan(facts)] == expected
    assert MSE.reads & set(kinds)


def test_what_the_profile_leaves_out_is_said_not_to_have_run():
    rows = [
        row for row in lacking(StyleInversion(), [image_rows(victims(0), "red")], SERVER)
        if row.slice.get("loss") != "class-guided"  # this world has one class
    ]  # fmt: skip

    assert {str(value) for row in rows for value in row.slice.values()} == {
        "lpips", "mse+lpips", "gan", "retrieved", "baseline",
    }  # fmt: skip
    assert {row.name for row in rows} == {"psnr_gain", "frechet_mini"}
    assert all(str(row.unavailable).startswith("not run: profile quick") for row in rows)


def test_losses_that_were_chosen_leave_nothing_out():
    assert lacking(MSE, [image_rows(victims(0), "red")], SERVER) == []

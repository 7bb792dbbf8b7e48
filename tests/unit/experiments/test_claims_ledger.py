"""The ledger: literal quotations, runs that exist and are shared, and no verdict on what is no claim."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fdgsec.attacks.style_inversion.recognition import EXCHANGED, PICTURE, STYLE
from fdgsec.defenses.style_noise import StyleNoise
from fdgsec.experiments.claims.catalogue import Claim, ledger
from fdgsec.experiments.claims.columns import decides
from fdgsec.experiments.claims.measured_runs import ClaimsRequest, longest_first, planned_runs
from fdgsec.experiments.run_config import target_method
from fdgsec.runtime.registry import ATTACKS, TARGETS, resolve, target_named

CLAIMS = {claim.id: claim for claim in ledger()}
PAPERS = os.environ.get("FDGSEC_PAPERS", "")
FLOAT = "(?:table|figure|fig)"


def printed(text: str) -> str:
    """Letters, digits and punctuation, without spaces, hyphens and marks of the conversion."""
    plain = text.replace("\u2019", "'").replace("\u2018", "'")
    return re.sub(r"[^a-z0-9.,;:'()]", "", plain.lower())


def stands_in(quote: str, text: str) -> bool:
    """Whether a sentence is printed in a text, whole or around one table or figure."""
    words, page = quote.split(), printed(text)
    cuts = ((printed(" ".join(words[:cut])), printed(" ".join(words[cut:]))) for cut in range(1, len(words)))
    return printed(quote) in page or any(
        re.search(
            f"{re.escape(first)}(?:(?!{re.escape(first)}).){{0,2000}}?{FLOAT}.{{0,2000}}?{re.escape(second)}", page
        )
        for first, second in cuts
        if first in page and second in page
    )


def test_a_sentence_is_found_around_a_table_and_not_in_other_words():
    page = "It is so. Since the\n\nTable 2: datasets\n\nmean and standard devia-\n\ntion do not contain enough, it is safe."

    assert stands_in("Since the mean and standard deviation do not contain enough, it is safe.", page)
    assert stands_in("mean and standard deviation do not contain enough, it is safe.", page)
    assert not stands_in("mean and standard deviation contain enough, it is safe.", page)
    assert not stands_in("Since the mean and standard deviation contain enough, it is safe.", page)
    assert not stands_in("Since the datasets contain enough", page)


@pytest.mark.skipif(not PAPERS, reason="set FDGSEC_PAPERS to a folder with the papers' texts: ccst.txt, ...")
@pytest.mark.parametrize("name", CLAIMS)
def test_every_quotation_is_literal(name: str):
    claim = CLAIMS[name]
    text = (Path(PAPERS) / f"{claim.paper.lower()}.txt").read_text()

    for quote in (*claim.quotes, *claim.context):
        assert stands_in(quote, text), quote


def test_every_claim_has_one_name_and_all_papers_have_some():
    assert len(CLAIMS) == len(ledger()) >= 12
    assert {claim.paper for claim in CLAIMS.values()} == {"CCST", "StableFDG", "FedDAG", "FISC", "FedAlign"}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_is_tested_or_says_why_it_cannot_be(name: str):
    claim = CLAIMS[name]

    assert claim.quotes
    if claim.untestable:
        assert claim.measured is None
        assert not claim.criteria
        assert not claim.holds_if
    else:
        assert claim.measured is not None
        assert claim.scope is not None
        assert claim.rows()
        assert claim.holds_if.endswith(".")


@pytest.mark.parametrize("name", CLAIMS)
def test_every_attack_reads_what_its_target_releases(name: str):
    for probe in CLAIMS[name].probes():
        assert probe.target in TARGETS
        assert probe.attack in ATTACKS
        attack, method = resolve("attacks", probe.attack), target_method(target_named(probe.target))
        assert attack.reads & method.released_kinds


def test_comparisons_name_what_they_compare_with():
    compared = [claim.compared for claim in CLAIMS.values() if claim.compared is not None]

    assert len(compared) >= 3
    assert all((one.value is None) != (one.measured is None) for one in compared)
    assert all(row.least_gap() > 0 for claim in CLAIMS.values() if claim.compared for row in claim.rows())


def test_reconstructions_are_judged_by_pictures_or_lists_and_no_look_up():
    for claim in CLAIMS.values():
        if "reconstruct" in claim.id and not claim.untestable:
            assert claim.measured is not None
            assert claim.measured.attack in ("style-inversion", "set-reconstruction")


def test_a_sentence_about_pictures_is_decided_by_what_is_recognized_in_them_in_domains_of_others():
    claim = CLAIMS["ccst-content"]
    assert claim.measured is not None
    seen_domains = {"photo", "art_painting", "cartoon", "sketch"} - {claim.measured.run["target_domain"]}

    assert claim.measured.attack == "style-inversion"
    assert 'attacks.style-inversion.priors=["inter"]' in claim.measured.settings  # as a client's: `own`
    for row in claim.rows():
        assert (row.measurement, row.where["class_from"], row.where["prior"]) == (
            "balanced_accuracy", PICTURE, "own",
        )  # fmt: skip
        assert row.without == {"domain": min(seen_domains)}  # the first of the source domains is the client's own
        assert row.margin is None
    assert [row.over.get("class_from") for row in claim.rows()] == [None, EXCHANGED]
    beyond = [(note.criterion.where["class_from"], note.criterion.where["loss"]) for note in claim.notes()]
    assert beyond == [(STYLE, ""), (PICTURE, "class-guided")]  # what a classifier of styles says decides no picture
    assert all(note.criterion.without == {"domain": min(seen_domains)} for note in claim.notes())


def test_what_an_adversary_is_given_all_images_for_decides_no_sentence_about_the_styles_alone():
    for name in ("ccst-dataset", "stablefdg-privacy"):
        claim = CLAIMS[name]
        assert claim.untestable
        assert claim.context
        assert "set-reconstruction" in {note.probe.attack for note in claim.notes()}
        assert all(note.says.startswith("given ") for note in claim.notes())


@pytest.mark.medium
def test_claims_share_runs_and_those_about_a_network_have_one_per_seed():
    request = ClaimsRequest(dataset="pacs", encoders=("mini", "squeezenet"), seeds=(0, 1))

    runs = planned_runs(list(CLAIMS.values()), request)

    per_seed = [config for config in runs.values() if config.seed == 0]
    assert len(per_seed) * 2 == len(runs)
    assert sum(config.target == "feddag" for config in per_seed) == 1
    assert sum(config.target == "fisc" and config.encoder == "mini" for config in per_seed) == 4
    attacked = [config for config in per_seed if config.target == "ccst-single" and config.encoder == "mini"]
    assert [config.attacks for config in attacked] == [("inter-client", "style-inversion"), ("style-inversion",)]


@pytest.mark.medium
def test_lists_behind_noise_are_sought_first_of_all_runs_of_every_seed():
    request = ClaimsRequest(dataset="pacs", encoders=("mini", "vgg16-hed"), seeds=(0, 1), beyond=False)
    runs = planned_runs(list(CLAIMS.values()), request)

    ordered = longest_first(runs)

    assert dict(ordered) == runs
    assert [(config.target, config.seed, config.encoder) for _, config in ordered[:4]] == [
        ("fisc", seed, encoder) for seed in (0, 1) for encoder in ("mini", "vgg16-hed")
    ]
    assert all(isinstance(config.defenses[0], StyleNoise) for _, config in ordered[:4])
    assert not any(config.defenses for _, config in ordered[4:])


@pytest.mark.medium
def test_without_numbers_beyond_the_claims_every_run_decides_one():
    request = ClaimsRequest(dataset="pacs", encoders=("vgg16-hed",), beyond=False)
    deciding = {(probe.target, probe.attack) for claim in CLAIMS.values() for probe in claim.deciding()}

    runs = planned_runs(list(CLAIMS.values()), request)

    assert {(config.target, attack) for config in runs.values() for attack in config.attacks} == deciding
    assert len(runs) < len(planned_runs(list(CLAIMS.values()), replace(request, beyond=True)))
    shown = [note for claim in CLAIMS.values() for note in claim.shown(beyond=False)]
    assert {(note.probe.target, note.probe.attack) for note in shown} <= deciding


@pytest.mark.parametrize(
    ("name", "encoder", "expected"),
    [
        ("fisc-noise", "vgg16-hed", True), ("fisc-noise", "vgg19", True), ("fisc-noise", "mini", False),
        ("fisc-noise", "squeezenet", False), ("feddag-generators", "the method's own network", True),
        ("fisc-reconstruction", "mini", False), ("fedalign-reconstruction", "pixel colors", True),
    ],
)  # fmt: skip
def test_only_encoders_of_a_claims_kind_decide_it(
    name: str, encoder: str, expected: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fdgsec.experiments.claims.columns.published", lambda _: True)
    assert decides(CLAIMS[name], encoder) is expected


def test_weights_that_nobody_published_decide_nothing(monkeypatch: pytest.MonkeyPatch):
    for found in (True, False):
        monkeypatch.setattr("fdgsec.experiments.claims.columns.published", lambda _, found=found: found)
        assert decides(CLAIMS["fisc-noise"], "vgg16-hed") is found
        assert decides(CLAIMS["feddag-generators"], "the method's own network")


def test_an_encoder_of_another_family_decides_nothing_whatever_its_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fdgsec.experiments.claims.columns.published", lambda _: True)
    assert not decides(CLAIMS["fisc-noise"], "vgg-like")


def test_an_encoder_without_a_decoder_decides_no_reconstruction(monkeypatch: pytest.MonkeyPatch):
    claim: Claim = CLAIMS["ccst-client-reconstruction"]
    monkeypatch.setattr("fdgsec.experiments.claims.columns.published", lambda _: True)
    for found, expected in ((False, False), (True, True)):
        monkeypatch.setattr("fdgsec.experiments.claims.columns._has_decoder", lambda _, found=found: found)
        assert decides(claim, "vgg16-hed") is expected

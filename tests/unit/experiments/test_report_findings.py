"""The sentence of a report, its answers, and what it must not say."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import pytest

from fdgsec.experiments.attack_measurements import MEASUREMENTS
from fdgsec.experiments.report.findings import Findings, findings_of
from fdgsec.experiments.report.headlines import DESCRIPTIVE, HEADLINES, LEFT_OUT
from fdgsec.experiments.report.schema import AttackReport, AttackResult
from fdgsec.experiments.report.stored import report_of
from fdgsec.experiments.report.text import promises
from fdgsec.experiments.report.words import encoder_in_words, percent, rate, released_words, short
from fdgsec.metrics.measurement import Control, Measurement
from fdgsec.runtime.registry import ATTACKS
from fdgsec.threats.attack import QuestionKind

STYLE = {
    "round": 0, "stage": "share", "sender": "client:0", "receiver": "server", "kind": "StyleStatistics", "bytes": 8,
    "sha256": "0" * 64,
}  # fmt: skip


def row(
    name: str, value: float, low: float, high: float, chance: float, n: int = 50, **where: str | int
) -> Measurement:
    return Measurement(name=name, value=value, low=low, high=high, chance=chance, chance_kind="exact", n=n, slice=where)


def done(name: str, *rows: Measurement, **controls: Any) -> AttackResult:
    return AttackResult(name=name, adversary={"name": "server"}, status="done", measurements=rows, **controls)


def skipped(name: str, *, reason: str = "reads something else") -> AttackResult:
    return AttackResult(name=name, adversary={"name": "server"}, status="skipped", reason=reason)


def report(attacks: Sequence[AttackResult], **changes: Any) -> AttackReport:
    base = AttackReport(
        target="ccst-overall", method="ccst", preset="", dataset={"name": "pacs", "images": 600}, encoder="vgg19",
        backbone=None, seed=0, profile="quick", reused=False, defenses=[], guarantees=[], accuracy=None,
        attacks=attacks, artifacts=[STYLE], model_traffic=[], transcript_sha256="", environment={}, seconds=1.0,
    )  # fmt: skip
    return replace(base, **changes)


def found(*attacks: AttackResult, **changes: Any) -> Findings:
    return findings_of(report(attacks, **changes))


def verdicts(findings: Findings) -> Mapping[str, str]:
    return {answer.question: answer.verdict for answer in findings.answers}


def control(*, passed: bool) -> Control:
    return Control(measurement=row("auc", 0.9, 0.8, 1.0, 0.5), expected="auc at least .8", passed=passed)


LISTS = row("exact_list", 1.0, 0.78, 1.0, 1e-9, n=15, domain="art_painting", n_per_client=40, gallery=850)
MEMBERS = row("auc", 0.88, 0.87, 0.89, 0.5, domain="art_painting", n_per_client=500)
CALM = row("auc", 0.51, 0.49, 0.53, 0.5)
WIDE = row("top1", 0.1, 0.0, 0.4, 1 / 30)


def test_every_attack_has_a_question_and_every_question_a_declared_order():
    assert set(HEADLINES) == set(ATTACKS)
    assert all(headline.choices for headline in HEADLINES.values())


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_judged_measurement_of_an_attack_can_stand_for_it_or_says_why_not(attack: str):
    chosen = {choice.measurement for choice in HEADLINES[attack].choices}
    reasons = {**LEFT_OUT[""], **LEFT_OUT.get(attack, {})}

    judged = [name for name in MEASUREMENTS[attack] if not name.startswith(("frechet_", "kernel_"))]
    assert set(judged) <= chosen | set(reasons) | set(DESCRIPTIVE)
    assert not chosen & (set(reasons) | set(DESCRIPTIVE))


def test_a_leak_is_said_in_one_sentence_with_what_was_sent_who_reads_it_effect_interval_and_baseline():
    assert found(done("membership", MEMBERS), done("set-reconstruction", LISTS)).sentence == (
        "Yes: from one pooled style per client (ccst-overall on pacs, encoder vgg19), an honest-but-curious server names "
        "every image of 15 of 15 clients among 850 candidates (1.00 [.78, 1], baseline <.001); membership AUC .88 "
        "[.87, .89], baseline .50."
    )


def test_layers_of_a_trained_network_are_named_without_the_hash_of_its_weights():
    trained = report([done("membership", row("auc", 0.9, 0.8, 1.0, 0.5))], encoder="tiny:stage1:b6eef1e1a344")

    assert "encoder tiny up to stage1)" in findings_of(trained).sentence
    assert encoder_in_words("spectrum:128x128:5") == "spectrum:128x128:5"


def test_the_row_that_stands_for_an_attack_is_the_first_declared_and_not_the_largest():
    larger = row("auc", 0.99, 0.98, 1.0, 0.5, domain="photo", n_per_client=500)
    weaker = row("auc", 0.70, 0.69, 0.71, 0.5, domain="art_painting", n_per_client=500, auxiliary=20)

    (lead,) = found(done("membership", weaker, MEMBERS, larger)).answers[0].findings

    assert lead.row is MEMBERS
    assert (lead.alike_flagged, lead.alike) == (2, 2)
    assert (lead.flagged, lead.judged) == (3, 3)


def test_of_the_distances_of_one_linkage_the_most_telling_stands_for_it():
    calm, weak, strong = (
        row("top1", value, value - 0.02, value + 0.02, chance, distance=name, noise="none", data="another release")
        for name, value, chance in (("plain", 0.05, 0.04), ("whitened", 0.3, 0.04), ("equal numbers", 0.9, 0.04))
    )

    (lead,) = found(done("linkage", calm, weak, strong)).answers[0].findings

    assert lead.row is strong


def test_without_an_attack_that_applies_nothing_is_said_about_a_leak():
    findings = found(skipped("membership"), skipped("poisoning"))

    assert findings.sentence == "Not tested: none of the attacks (2) applies to what ccst-overall sends."
    assert verdicts(findings) == {
        "who": "not applicable",
        "what": "not run",
        "look": "not run",
        "harm": "not applicable",
    }
    assert set(findings.inapplicable) == {"membership", "poisoning"}
    assert not findings.yes


STOPPED = skipped("set-reconstruction", reason="not run: there are too few images")


def test_an_attack_that_applies_and_had_too_few_images_is_not_said_to_be_inapplicable():
    findings = found(STOPPED)

    assert findings.sentence == "Not tested: set-reconstruction could not run: there are too few images."
    assert verdicts(findings)["who"] == "could not run"
    assert (dict(findings.inapplicable), dict(findings.stopped)) == (
        {}, {"set-reconstruction": "there are too few images"},
    )  # fmt: skip


def test_there_is_no_all_clear_beside_an_attack_that_applies_and_could_not_run():
    findings = found(done("membership", CALM), STOPPED)

    assert findings.sentence == (
        "Undecided for ccst-overall on pacs, encoder vgg19; membership AUC .51 [.49, .53], baseline .50; "
        "set-reconstruction could not run: there are too few images."
    )
    assert verdicts(findings)["who"] == "undecided: set-reconstruction could not run"


OPEN = Measurement(
    name="auc", value=None, low=None, high=None, chance=None, chance_kind="none", n=0,
    slice={"not answered": "trained"}, unavailable="no model of the run was kept",
)  # fmt: skip


def test_there_is_no_all_clear_beside_a_question_that_an_attack_left_open():
    findings = found(done("membership", CALM, OPEN))

    assert findings.sentence == (
        "Undecided for ccst-overall on pacs, encoder vgg19; membership AUC .51 [.49, .53], baseline .50; "
        "membership left questions open: no model of the run was kept."
    )
    assert verdicts(findings)["who"] == "undecided: membership left questions open"


def test_an_open_question_about_something_else_does_not_hide_a_leak():
    findings = found(done("membership", MEMBERS, OPEN))

    assert findings.sentence.startswith("Yes: ")
    assert verdicts(findings)["who"] == "leaks strongly"


def test_clients_larger_than_the_dataset_has_images_for_put_nothing_in_doubt():
    larger = replace(OPEN, slice={"too large": "resampled_clients of 500 images each"}, unavailable="too few images")
    findings = found(done("membership", CALM, larger))

    assert findings.sentence.startswith("No leak shown: 1 of 1 attacks")
    assert "unavailable: membership (1 measurements)" in findings.untested


def test_there_is_no_all_clear_beside_an_attack_that_failed():
    broken = AttackResult(name="set-reconstruction", adversary={"name": "server"}, status="failed", reason="no memory")
    findings = found(done("membership", CALM), broken)

    assert findings.sentence.startswith("Undecided for ccst-overall")
    assert verdicts(findings)["who"] == "undecided: set-reconstruction failed"


def test_intervals_that_reach_a_leak_are_undecided_and_never_no():
    findings = found(done("linkage", WIDE), done("membership", CALM))

    assert findings.sentence == (
        "Undecided for ccst-overall on pacs, encoder vgg19; membership AUC .51 [.49, .53], baseline .50; not decided by "
        "linkage."
    )
    assert verdicts(findings)["who"] == "undecided: linkage (undecided: the interval reaches 0.4)"


def test_no_leak_shown_is_said_only_where_every_attack_shows_none():
    findings = found(done("membership", CALM), done("label-inference", row("balanced_accuracy", 0.15, 0.1, 0.18, 0.14)))

    assert findings.sentence.startswith("No leak shown: 2 of 2 attacks that apply to ccst-overall on pacs")
    assert any("attacks that were not run" in line for line in findings.untested)


def test_a_flagged_row_beside_a_calm_headline_is_not_hidden():
    other = row("exposed_auc", 0.9, 0.8, 1.0, 0.5)

    findings = found(done("label-inference", replace(CALM, name="balanced_accuracy"), other))

    assert findings.sentence.startswith("Undecided for ccst-overall")
    assert "1 of 1 other measurements are flagged" in findings.sentence
    assert verdicts(findings)["what"] == "undecided: 1 of 1 other measurements are flagged"


def test_an_all_clear_says_how_many_other_measurements_decide_nothing():
    wide = row("tpr_at_1pct_fpr", 0.1, 0.0, 0.4, 0.01)

    findings = found(done("membership", CALM, wide))

    assert findings.sentence.startswith("No leak shown: 1 of 1 attacks")
    assert findings.sentence.endswith("; 1 of 1 other measurements are not decided.")


def test_members_that_are_known_almost_for_sure_are_no_average():
    rate = row("tpr_at_1pct_fpr", 0.6, 0.55, 0.65, 0.01)

    findings = found(done("membership", CALM, rate))

    assert verdicts(findings)["who"] == "leaks strongly"
    assert "recognizes 60% of members with 1% of false alarms" in findings.sentence


NO_EVIDENCE = replace(MEMBERS, value=0.5, low=0.48, high=0.52, unread="1 of the attack's 1 positive controls failed")


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (done("membership", replace(MEMBERS, low=0.3, high=0.95)), "undecided: the interval reaches 0.95"),
        (done("membership", NO_EVIDENCE), f"{NO_EVIDENCE.unread}: no evidence of protection"),
        (
            done("membership", MEMBERS, negative=[control(passed=False)]),
            "unreliable: 1 of 1 negative controls failed",
        ),
        (
            done("membership", CALM, replace(CALM, value=0.02, low=0.0, high=0.05, slice={"domain": "sketch"})),
            "undecided: 1 of 1 other measurements are worse than chance",
        ),
    ],
)
def test_a_question_is_cleared_only_where_every_attack_of_it_shows_no_leak(second: AttackResult, reason: str):
    findings = found(done("set-reconstruction", CALM), second)

    answer = findings.answers[0]
    assert (answer.verdict, answer.size) == (f"undecided: membership ({reason})", "undecided")
    assert not findings.sentence.startswith("No leak shown")


def test_an_attack_that_clears_one_domain_and_leaves_another_open_clears_none():
    calm, wide = (replace(MEMBERS, value=0.5, low=0.5 - half, high=0.5 + half) for half in (0.02, 0.3))
    findings = found(done("membership", calm, replace(wide, slice={"domain": "sketch", "n_per_client": 500})))

    assert verdicts(findings)["who"] == "undecided: 1 of 2 domains and sizes are not decided"
    assert findings.sentence.startswith("Undecided")


def test_the_reasons_against_an_all_clear_stand_side_by_side():
    findings = found(done("membership", CALM), done("linkage", WIDE), STOPPED)

    assert verdicts(findings)["who"] == (
        "undecided: linkage (undecided: the interval reaches 0.4); set-reconstruction could not run"
    )


@pytest.mark.parametrize("calm", [CALM, replace(CALM, value=0.5, low=0.3, high=0.7)])
def test_a_flagged_row_of_another_size_or_measurement_stands_for_the_attack(calm: Measurement):
    for other in (
        replace(MEMBERS, slice={"domain": "photo", "n_per_client": 40}),
        replace(MEMBERS, name="exposed_auc"),
    ):
        findings = found(done("membership", calm, other))

        assert findings.sentence.startswith("Yes: ")
        assert "AUC .88 [.87, .89]" in findings.sentence


def test_a_flagged_row_whose_negative_control_failed_is_no_yes():
    findings = found(done("membership", MEMBERS, positive=[control(passed=True)], negative=[control(passed=False)]))

    assert findings.sentence.startswith("Unreliable: membership is flagged on ccst-overall")
    assert "1 of 1 negative controls failed" in findings.sentence
    assert verdicts(findings)["who"] == "unreliable: 1 of 1 negative controls failed"
    assert not findings.yes


def test_a_leak_with_a_failed_positive_control_says_so():
    findings = found(done("membership", MEMBERS, positive=[control(passed=False)]))

    assert findings.sentence.endswith("; but 1 of 1 positive controls failed for membership.")


def test_no_leak_with_a_failed_positive_control_is_no_evidence():
    calm = replace(CALM, unread="1 of the attack's 1 positive controls failed")

    findings = found(done("membership", calm, positive=[control(passed=False)]))

    assert findings.sentence.startswith("Undecided")
    assert verdicts(findings)["who"].endswith("no evidence of protection")


def test_attacks_that_are_not_adapted_to_a_defense_say_so():
    findings = found(
        done("membership", replace(CALM, not_adapted_to="row-clip")), defenses=[{"name": "row-clip", "options": {}}]
    )

    assert findings.sentence.startswith("Not known: attacks on ccst-overall")
    assert "do not take row-clip into account" in findings.sentence


@pytest.mark.parametrize(
    "attacks",
    [[("membership", CALM)], [("linkage", WIDE)], [("membership", MEMBERS)], [("linkage",)], []],
    ids=["no leak", "undecided", "leak", "nothing measured", "trained alone"],
)
def test_every_sentence_names_the_defenses(attacks: list[tuple[Any, ...]]):
    defenses = [{"name": name, "options": {}} for name in ("private-styles", "quantize")]
    accuracy = {"unseen_domain": "sketch", "value": 0.42, "low": 0.38, "high": 0.46, "n": 420}

    sentence = found(*(done(*each) for each in attacks), defenses=defenses, accuracy=accuracy).sentence

    assert " behind private-styles and quantize" in sentence


def test_weights_and_metrics_are_no_scores_of_other_clients_models():
    sent = [{"kind": "Scores", "sender": "client:0", "receiver": "server"}]

    assert released_words(report([], artifacts=sent)) == "a few numbers (weights, metrics, scores)"


def test_a_client_is_said_to_read_the_numbers_that_clients_receive_alone():
    traffic = [
        {"kind": "ModelState", "sender": "server", "receiver": "clients"},
        {"kind": "Scores", "sender": "clients", "receiver": "server"},
    ]
    client = replace(done("membership", CALM), adversary={"name": "client"})

    assert released_words(report([client], artifacts=[], model_traffic=traffic)) == "models"
    assert "scores" in released_words(report([done("membership", CALM)], model_traffic=traffic))


def test_styles_that_were_made_of_held_out_images_are_said_to_be():
    asked = row("top1", 1.0, 0.9, 1.0, 0.02, rows="as_if_released", transform="known")

    sentence = found(done("reidentification", asked)).sentence

    assert "made, as the run makes them, of held-out images" in sentence


def test_what_arrives_as_a_sum_is_said_to_be_one():
    sent = [{"kind": "StyleStatistics", "sender": "clients", "receiver": "server"}]

    assert released_words(report([], artifacts=sent)) == "the sum over clients of pooled styles"


def test_rows_that_say_that_no_noise_was_added_can_stand_for_linkage():
    linked = row("top1", 1.0, 0.9, 1.0, 0.025, data="another release", noise="none", distance="plain")

    assert found(done("linkage", linked)).sentence.startswith("Yes: ")


def test_given_vectors_are_not_said_to_be_of_a_dataset():
    sentence = found(done("membership", CALM), target="artifacts", dataset={"name": "none"}).sentence

    assert "attacks that apply to artifacts, encoder vgg19 found none" in sentence


def test_rows_that_a_headline_asks_for_are_named_as_attacks_name_them():
    asked = {
        str(choice.where["rows"]) for one in HEADLINES.values() for choice in one.choices if "rows" in choice.where
    }

    assert asked <= set(get_args(QuestionKind))


def test_shapes_are_mechanics_and_no_finding():
    findings = found(done("membership", MEMBERS), dataset={"name": "shapes", "images": 480})

    assert findings.sentence.startswith("Mechanics only: shapes is procedural, so this is no finding about a method")


@pytest.mark.parametrize(("name", "note"), [("pacs", ""), ("shapes", " (procedural images: no finding)")])
def test_a_trained_report_gives_its_accuracy_and_says_that_privacy_was_not_tested(name: str, note: str):
    accuracy = {"unseen_domain": "sketch", "value": 0.42, "low": 0.38, "high": 0.46, "n": 420}

    assert found(accuracy=accuracy, dataset={"name": name, "images": 600}).sentence == (
        f"ccst reaches .42 [.38, .46] accuracy on the unseen domain sketch, n = 420{note}; privacy was not tested: no "
        "attack was run."
    )


def test_a_trained_report_gives_what_a_constant_answer_reaches():
    accuracy = {"unseen_domain": "sketch", "value": 0.42, "low": 0.38, "high": 0.46, "n": 420, "majority_share": 0.208}

    said = found(accuracy=accuracy, dataset={"name": "pacs", "images": 600}).sentence

    assert "n = 420; always naming the most frequent class reaches .21; privacy" in said


def test_a_failed_attack_is_named():
    broken = AttackResult(name="linkage", adversary={"name": "server"}, status="failed", reason="out of memory")

    assert found(broken).sentence == "Not known: linkage failed, and no other attack measured anything."
    assert found(done("membership", CALM), broken).sentence.endswith("linkage failed.")


def test_a_question_is_answered_by_the_first_attack_that_is_flagged():
    answer = found(done("set-reconstruction", CALM), done("membership", MEMBERS)).answers[0]

    assert answer.lead is not None
    assert answer.lead.attack == "membership"
    assert [one.attack for one in answer.findings] == ["set-reconstruction", "membership"]


def test_an_attack_of_a_plug_in_answers_a_question_of_its_own():
    findings = found(done("histogram", row("auc", 0.9, 0.8, 1.0, 0.5)))

    assert verdicts(findings)["other"] == "leaks strongly"
    assert "an honest-but-curious server auc .90 [.80, 1], baseline .50" in findings.sentence


def test_a_forgery_that_ends_most_runs_is_harm_though_the_others_lose_nothing():
    drop = replace(row("honest_accuracy_drop", 0.0, -0.01, 0.01, 0.0), unread="7 of 10 runs were ended by the forgery")
    findings = found(done("poisoning", drop, row("ended", 0.7, 0.35, 0.93, 0.0, n=10)))

    assert verdicts(findings)["harm"] == "leaks"
    assert "ends 7 of 10 runs by a forged message that nobody refuses" in findings.sentence


def test_a_stored_report_says_the_same_as_the_one_that_was_stored():
    made = report([done("membership", MEMBERS, positive=[control(passed=True)]), skipped("poisoning")])

    again = report_of(made.document())

    assert again.document() == made.document()
    assert findings_of(again) == replace(findings_of(made), answers=findings_of(again).answers)


def test_numbers_are_never_rounded_to_certainty():
    assert [short(value) for value in (0.98, 0.998, 0.9999, 1.0, 0.0, 0.004)] == [
        ".98",
        ".998",
        ">.999",
        "1",
        "0",
        ".004",
    ]
    assert [percent(value) for value in (0.885, 0.996, 1.0, 0.0, 0.004)] == ["88%", "99.6%", "100%", "0%", "0.4%"]
    assert [rate(value) for value in (1.0, 1e-9, 0.5)] == ["1.00", "<.001", ".50"]


def test_noise_that_an_attack_adds_itself_is_no_finding_about_what_was_sent():
    """One release: that it would be linked to a noisy copy of itself says nothing about a second one."""
    imagined = row("top1", 1.0, 0.7, 1.0, 1 / 30, data="the same", noise="0.02", distance="whitened")
    assert imagined.leaks

    findings = found(done("linkage", imagined))
    assert findings.sentence == (
        "Undecided for ccst-overall on pacs, encoder vgg19: no judged measurement of the messages themselves by linkage."
    )
    assert not findings.yes
    assert not found(done("linkage", WIDE, imagined)).yes


def test_a_reason_that_stops_two_attacks_is_said_once():
    few = "too few images for clients of 40"
    both = [
        replace(STOPPED, name="membership", reason=f"not run: {few}; too few images for clients of 130"),
        replace(STOPPED, name="set-reconstruction", reason=f"not run: {few}"),
    ]

    assert found(done("linkage", WIDE), *both).sentence.count(few + ";") == 1


def test_a_sentence_says_whether_the_candidates_include_all_members():
    """Whole lists are named only where the adversary has every image; with half of them none was, 0 of 15."""
    complete, half = (replace(LISTS, slice={**LISTS.slice, "held": held}) for held in ("100%", "50%"))

    whole, partial = (found(done("set-reconstruction", lists)).sentence for lists in (complete, half))

    assert "names every image of 15 of 15 clients among 850 candidates that include them all (" in whole
    assert (
        "names every image of 15 of 15 clients that it has at all in a gallery of 850, of which it has 50% (" in partial
    )


@pytest.mark.parametrize(("name", "where"), [("gallery_top1", {"distance": "mse"}), ("psnr_gain", {"over": "B3"})])
def test_pictures_of_added_images_are_said_to_need_two_releases(name: str, where: dict[str, str]):
    pictures = row(name, 0.55, 0.3, 0.8, 0.09, n=11, rows="difference", **where)

    assert "an image that was added between two releases" in found(done("style-inversion", pictures)).sentence


@pytest.mark.parametrize("name", ["psnr_gain", "ssim_gain"])
def test_pictures_that_are_no_closer_than_the_mean_picture_are_no_leak(name: str):
    """A report said that pictures are closer to the true image; the mean of public images was as close."""
    exchanged, mean, nearest = (
        row(name, value, value - 1, value + 1, 0.0, n=8, rows="difference", over=over)
        for over, value in (("B3", 2.5), ("B0", -0.2), ("B2", 2.2))
    )

    said = found(done("optimization-inversion", exchanged, mean, nearest))

    assert verdicts(said)["look"].startswith("undecided")
    assert not said.yes
    closer = replace(mean, value=1.5, low=0.5, high=2.5)
    assert found(done("optimization-inversion", exchanged, closer, nearest)).yes


@pytest.mark.parametrize("name", ["psnr_gain", "ssim_gain"])
def test_a_sentence_names_no_control_that_could_not_be_measured(name: str):
    """The mean picture is a control like any other; a sentence named public images where their row was unavailable."""
    exchanged, mean, nearest = (row(name, 2.5, 1.5, 3.5, 0.0, n=8, rows="difference", over=f"B{n}") for n in (3, 0, 2))
    missing = replace(nearest, value=None, low=None, high=None, unavailable="no public image")

    all_three = found(done("optimization-inversion", exchanged, mean, nearest)).sentence
    two = found(done("optimization-inversion", exchanged, mean, missing)).sentence

    assert "than the mean auxiliary image, the nearest auxiliary image and the unrelated reconstruction" in all_three
    assert "than the mean auxiliary image and the unrelated reconstruction" in two


def test_pictures_that_are_the_same_for_every_style_are_no_leak():
    """Behind `quantize:bits=1` all styles of `pixels` were one, and so all pictures: their gain over one of another
    style was 0 in every case and had no interval, and the sentence said "yes" by the other two controls."""
    mean, nearest = (row("psnr_gain", 0.1, 0.05, 0.15, 0.0, n=8, rows="as_if_released", over=f"B{n}") for n in (0, 2))
    exchanged = replace(mean, slice={**mean.slice, "over": "B3"}, value=0.0, low=None, high=None)

    said = found(done("style-inversion", exchanged, mean, nearest))

    assert not said.yes
    assert verdicts(said)["look"].startswith("undecided")


def test_an_answer_says_in_how_many_domains_it_was_found():
    flagged, undecided = (
        row("auc", value, value - 0.1, value + 0.1, 0.5, n=40, domain=domain)
        for value, domain in ((0.75, "cartoon"), (0.55, "photo"))
    )

    (answer,) = [one for one in found(done("property-inference", undecided, flagged)).answers if one.question == "what"]

    assert answer.lead is not None
    assert answer.lead.phrase.endswith("; flagged in 1 of 2 domains and sizes")


def test_a_median_rank_is_no_link():
    ranks = row("median_rank", 6.0, 4.0, 8.0, 15.5, n=30)

    assert "links" not in found(done("linkage", ranks)).sentence


def test_harm_that_only_a_client_can_do_is_not_cleared_for_a_server():
    reason = "not applicable: poisoning needs a malicious client (--adversary client)"

    assert verdicts(found(skipped("poisoning", reason=reason)))["harm"] == "not asked of this adversary"


def test_an_attack_that_could_measure_nothing_says_why():
    missing = replace(
        OPEN, slice={"domain": "photo"},
        unavailable="a shadow client of 40 images needs more public ones of photo; there are 14",
    )  # fmt: skip

    assert found(done("membership", missing)).sentence == (
        "Undecided for ccst-overall on pacs, encoder vgg19: membership could measure nothing (a shadow client of 40 images "
        "needs more public ones of photo; there are 14)."
    )


@pytest.mark.parametrize(
    ("defense", "kind", "behind"),
    [
        ("style-noise", "StyleStatistics", True), ("style-noise", "ModelState", False),
        ("quantize", "Prototypes", False), ("k-anonymous", "ImageStyles", True), ("k-anonymous", "Scores", False),
        ("guards", "ModelState", True), ("not-installed", "ModelState", True),
    ],
)  # fmt: skip
def test_a_defense_that_acts_on_nothing_sent_is_not_named_as_protection(defense: str, kind: str, *, behind: bool):
    given = report([], defenses=[{"name": defense, "options": {}}], artifacts=[{**STYLE, "kind": kind}])

    assert (f" behind {defense}" in findings_of(given).sentence) is behind
    assert ("changed nothing: clients sent nothing that it acts on" in promises(given)[0]) is not behind

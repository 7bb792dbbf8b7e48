"""The page of a report: the answer first, everything in one file, escaped, with names for every anchor."""

import io
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from PIL import Image

from fdgsec.experiments.attack_measurements import MEASUREMENTS
from fdgsec.experiments.report.bars import bar_of
from fdgsec.experiments.report.findings import findings_of
from fdgsec.experiments.report.glossary import glossary, meaning
from fdgsec.experiments.report.html import render
from fdgsec.experiments.report.remedies import REMEDIES, SWEPT, remedies
from fdgsec.experiments.report.schema import AttackReport, AttackResult, Figure
from fdgsec.experiments.run_config import RunConfig, defense_of
from fdgsec.metrics.measurement import Control, Measurement
from fdgsec.runtime.registry import TARGETS
from tests.support.html_page import read


def row(name: str, value: float, low: float, high: float, chance: float, **where: str | int) -> Measurement:
    return Measurement(
        name=name, value=value, low=low, high=high, chance=chance, chance_kind="exact", n=50, slice=where
    )


def picture() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 20), "red").save(buffer, "PNG")
    return buffer.getvalue()


def attacked(**changes: Any) -> AttackReport:
    adversary = {"name": "server", "taps": "own", "knows": ["encoder", "auxiliary"]}
    control = Control(measurement=row("auc", 0.9, 0.8, 1.0, 0.5), expected="at least .8", passed=True)
    membership = AttackResult(
        name="membership", adversary=adversary, status="done", positive=[control],
        measurements=[row("auc", 0.9, 0.85, 0.95, 0.5, domain=f"<{n}>") for n in range(5)],
        figures=[Figure(name="roc", title="ROC", caption="A curve.", png=picture())],
    )  # fmt: skip
    skipped = AttackResult(name="poisoning", adversary=adversary, status="skipped", reason="needs a malicious client")
    style = {
        "round": 0, "stage": "share", "sender": "client:0", "receiver": "server", "kind": "StyleStatistics",
        "bytes": 8, "sha256": "0" * 64,
    }  # fmt: skip
    report = AttackReport(
        target="ccst-overall", method="ccst", preset="", encoder="mini", backbone=None, seed=0, profile="quick",
        dataset={"name": "pacs", "images": 600, "classes": ["a", "b"], "roles": {"federation": {"photo": 3}}},
        reused=False, defenses=[], guarantees=[], accuracy=None, attacks=[membership, skipped], artifacts=[style] * 40,
        model_traffic=[], transcript_sha256="ab", environment={"command": "fdgsec attack", "scipy": "1.0"}, seconds=1.0,
    )  # fmt: skip
    return replace(report, **changes)


def trained() -> AttackReport:
    score = {"value": 0.6, "low": 0.5, "high": 0.7, "n": 90}
    return attacked(
        attacks=[],
        backbone="tiny",
        accuracy={"unseen_domain": "sketch", **score, "per_domain": {"photo": score}, "f1": {"value": 0.5, "n": 90}},
        model_traffic=[{"stage": "update", "kind": "ModelState", "messages": 6, "bytes": 600}],
    )


def test_the_first_text_after_the_heading_is_the_answer():
    page = read(render(attacked()))

    assert page.text.index(findings_of(attacked()).sentence) < page.text.index("Threat model")


def test_no_bar_of_a_question_is_clear_where_an_attack_of_it_is_undecided():
    calm = replace(attacked().attacks[0], measurements=[row("auc", 0.5, 0.49, 0.52, 0.5)])
    wide = replace(calm, name="linkage", figures=(), measurements=[row("top1", 0.1, 0.0, 0.4, 0.03)])

    text = read(render(attacked(attacks=[calm, wide]))).text

    assert text.count("undecided: linkage (undecided: the interval reaches 0.4)") == 2  # the answer, and its section


@pytest.mark.parametrize("report", [attacked(), trained()], ids=["attack", "train"])
def test_every_link_has_an_anchor_and_every_anchor_is_unique(report: AttackReport):
    page = read(render(report))

    assert len(set(page.ids)) == len(page.ids)
    assert {target.removeprefix("#") for target in page.targets} <= set(page.ids)
    assert page.targets


@pytest.mark.parametrize("report", [attacked(), trained()], ids=["attack", "train"])
def test_headings_of_tables_say_what_they_head_and_the_page_has_landmarks(report: AttackReport):
    page = read(render(report))

    assert set(page.headings) == {"col", "row"}
    assert [page.counts[name] for name in ("header", "nav", "main", "footer", "h1")] == [1] * 5
    assert page.counts["caption"] == page.counts["table"]


def test_values_are_escaped_and_nothing_is_loaded_from_elsewhere():
    page = render(attacked())

    assert "domain &lt;1&gt;" in page
    assert "domain <1>" not in page
    assert all(source.startswith("data:image/webp;base64,") for source in read(page).sources)
    assert not re.search(r"https?://", page)


def test_every_row_is_in_the_table_of_all_measurements_and_three_stand_for_the_attack():
    page = render(attacked())

    assert page.count("domain &lt;0&gt;") == page.count("domain &lt;2&gt;") == 2
    assert page.count("domain &lt;4&gt;") == 1


def test_the_page_says_who_from_what_what_was_not_tested_and_how_it_was_made():
    text = read(render(attacked(), settings={"seed": 0})).text

    for part in (
        "an honest-but-curious server, who sees every message to and from it", "one pooled style per client",
        "labeled auxiliary images", "needs a malicious client", "attacks that were not run", "fdgsec attack", "scipy",
        '"seed": 0',
    ):  # fmt: skip
        assert part in text


def test_defenses_are_offered_where_something_leaks_with_what_is_left_where_that_was_measured():
    offered = {one.defense.partition(":")[0]: one for one in remedies(attacked())}

    assert "set-reconstruction: AUC .60 [.56, .64], baseline .50 (without it 1.00)" in offered["style-noise"].left
    assert "30 of 30 sums" in offered["secure-aggregation"].left
    assert remedies(attacked(target="somebody's", artifacts=[])) == []


@pytest.mark.parametrize(
    ("options", "again"),
    [({"p": 0.1, "scale": 1.0}, False), ({"scale": 20.0}, False), ({"scale": 0.01}, True), ({}, True)],
)
def test_noise_that_is_switched_on_is_offered_again_where_it_is_larger_alone(options: dict[str, float], again: bool):
    offered = {one.defense for one in remedies(attacked(defenses=[{"name": "style-noise", "options": options}]))}

    assert ("style-noise:p=0.1,scale=1" in offered) == again


def test_no_weaker_guarantee_is_offered_where_one_is_switched_on():
    on = [{"name": "private-styles", "options": {"epsilon": 1.0}}]

    assert not [one for one in remedies(attacked(defenses=on)) if one.defense.startswith("private-styles")]


def test_a_defense_that_the_method_refuses_stands_last_with_the_reason():
    offered = remedies(attacked(target="fisc", method="fisc"))

    refused = [one for one in offered if one.refused]
    assert refused == offered[-len(refused) :]
    assert {one.defense for one in refused} == {"private-styles:epsilon=8", "secure-aggregation"}
    text = read(render(attacked(target="fisc", method="fisc"))).text
    assert "refused by this method: private-styles cannot protect FISC per record" in text


def test_what_is_refused_follows_the_options_of_the_run():
    single = {one.defense for one in remedies(attacked(target="ccst-single")) if one.refused}
    assert single == {"secure-aggregation"}

    config = RunConfig(method="fisc", options={"local_clustering": False, "sigma": "mixture"}, target="fisc")
    of_all_images = remedies(attacked(target="fisc", method="fisc"), config.document())
    assert {one.defense for one in of_all_images if one.refused} == {"secure-aggregation"}


def test_controls_of_reconstructions_and_gains_over_them_are_named_in_words():
    gain = row("psnr_gain", 1.0, 0.5, 1.5, 0.0, over="B3", prior="intra")
    drawn = replace(attacked().attacks[0], name="style-inversion", measurements=[gain], figures=())

    text = read(render(attacked(attacks=[drawn]))).text

    assert "over unrelated reconstruction, prior intra" in text
    assert "over B3" not in text


def test_plots_can_be_inverted_in_the_dark_and_pictures_are_not():
    membership = attacked().attacks[0]
    plot = replace(membership.figures[0], data={"fpr": [0.0, 1.0]})
    grid = replace(membership.figures[0], name="grid")

    page = render(attacked(attacks=[replace(membership, figures=[plot, grid])]))

    assert [found[1] for found in re.finditer(r'<img class="(\w+)"', page)] == ["plot", "pictures"]


def test_offered_defenses_and_targets_exist():
    for _, one in REMEDIES:
        defense_of(one.defense)
    for target, one in SWEPT.items():
        assert target in TARGETS
        defense_of(one.defense)


def test_a_training_has_a_page_of_its_own_with_accuracy_curve_guarantee_and_traffic():
    points = [{"round": 0.0, "loss": 2.0}, {"round": 1.0, "loss": 1.0}]

    page = render(trained(), points=points)

    text = read(page).text
    for part in ("Accuracy by domain", "sketch", "weighted F1", "Guarantee", "ModelState", "loss: from 2.000 to 1.000"):
        assert part in text
    assert "polyline" in page
    assert "flagged" not in text
    assert "privacy was not tested" in text


def test_messages_with_models_say_who_sends_and_who_receives_them():
    sent = {"stage": "model", "kind": "ModelState", "messages": 6, "bytes": 600}

    def cells(**ends: str) -> str:
        return " ".join(re.sub("<[^>]*>", " ", render(replace(trained(), model_traffic=[{**sent, **ends}]))).split())

    assert "ModelState model clients server 6 600" in cells(sender="clients", receiver="server")
    assert "ModelState model 6 600" in cells()  # earlier reports do not say it


def test_messages_of_clients_without_names_are_one_line_too():
    rows = [{**attacked().artifacts[0], "sender": f"anonymous:{number}"} for number in range(40)]

    page = " ".join(re.sub("<[^>]*>", " ", render(attacked(artifacts=rows))).split())

    assert "StyleStatistics share anonymous clients server 40 320" in page


def test_a_bar_is_drawn_for_what_lies_between_0_and_1_alone():
    assert bar_of(row("auc", 0.9, 0.8, 1.0, 0.5), "leaks") is not None
    assert bar_of(row("psnr_gain", 2.0, 1.0, 3.0, 0.0), "leaks") is None


def test_every_measurement_has_a_meaning():
    assert [name for names in MEASUREMENTS.values() for name in names if not meaning(name)] == []


def test_the_glossary_has_what_occurs():
    found = glossary(attacked())

    assert {"auc", "domain", "baseline", "leaks strongly"} <= set(found)
    assert "psnr" not in found


def test_the_script_is_short_and_the_table_is_there_without_it():
    page = render(attacked())

    script = page.partition("<script>")[2].partition("</script>")[0]
    assert 0 < len(script.strip().splitlines()) <= 30
    assert page.index('<table class="sortable">') < page.index("<script>")


def test_settings_are_plain_text():
    assert json.dumps({"a": "<b>"}) not in render(attacked(), settings={"a": "<b>"})

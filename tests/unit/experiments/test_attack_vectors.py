"""One's own vectors attacked: with a truth, with a part of it, and without any."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fdgsec.data.shapes import shapes
from fdgsec.experiments.attack_run.read_finished_run import read_record
from fdgsec.experiments.attack_vectors.run_vector_attacks import attack_vectors
from fdgsec.experiments.attack_vectors.vectors_request import VectorsRequest
from fdgsec.experiments.report.schema import AttackReport
from fdgsec.federation.artifacts import StyleDistribution, StyleStatistics
from fdgsec.metrics.measurement import Measurement
from fdgsec.nn.styles.image_styles import statistics
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import NoProgress
from tests.support.own_vectors import Own, own

pytestmark = pytest.mark.medium

FAST = ("reidentification", "membership", "label-inference", "domain-inference", "linkage")


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Own:
    return own(tmp_path_factory.mktemp("own"))


def request(vectors: Own, **given: object) -> VectorsRequest:
    asked = VectorsRequest(
        artifacts=vectors.npy(), encoder="pixels", dataset="shapes", per_domain=35, image_size=16, attacks=FAST
    )
    return replace(asked, **given)  # type: ignore[arg-type]


def report(asked: VectorsRequest, out: Path | None = None) -> AttackReport:
    return attack_vectors(asked, data_root=None, out=out, progress=NoProgress())


def rows(found: AttackReport, attack: str, name: str) -> list[Measurement]:
    result = next(one for one in found.attacks if one.name == attack)
    assert result.status == "done", result.reason
    return [row for row in result.measurements if row.name == name and "not answered" not in row.slice]


@pytest.fixture(scope="module")
def judged(vectors: Own, tmp_path_factory: pytest.TempPathFactory) -> tuple[AttackReport, Path]:
    out = tmp_path_factory.mktemp("judged") / "run"
    return report(request(vectors, truth=vectors.truth()), out), out


def test_exact_rows_are_looked_up_and_their_images_are_members(judged: tuple[AttackReport, Path]):
    found, _ = judged

    known = [row for row in rows(found, "reidentification", "top1") if row.slice["transform"] == "known"]

    assert [(row.value, row.n, row.chance) for row in known] == [(1.0, 20, 1 / 40)]
    assert [(row.value, row.n) for row in rows(found, "membership", "auc")] == [(1.0, 40)]
    assert found.environment["notes"] == "20 of 20 rows equal the style of their image by pixels at 16 px"


def test_labels_and_domains_are_judged_by_the_truths_columns(judged: tuple[AttackReport, Path]):
    found, _ = judged

    (accuracy,) = rows(found, "label-inference", "accuracy")
    (placed,) = rows(found, "domain-inference", "accuracy")

    assert accuracy.n == placed.n == 20
    assert accuracy.slice["domain"] == "photo"
    assert placed.chance == 1.0  # all of one domain: nothing to tell apart


def test_what_needs_further_runs_is_left_out_with_the_reason(judged: tuple[AttackReport, Path]):
    found, _ = judged
    said = "needs runs of the method that produced these vectors, or other images of the clients"

    linkage = next(one for one in found.attacks if one.name == "linkage")
    left = [row for one in found.attacks for row in one.measurements if "not answered" in row.slice]

    assert (linkage.status, linkage.reason, linkage.could_not_run) == ("skipped", f"not run: {said}", True)
    assert {row.unavailable for row in left} == {said}
    assert {"not answered": "as_if_released"} in [row.slice for row in left]


def test_every_control_was_passed(judged: tuple[AttackReport, Path]):
    found, _ = judged

    for result in found.attacks:
        if result.status == "done":
            assert result.positive
            assert all(control.passed for control in (*result.positive, *result.negative)), result.name


def test_guesses_are_written_by_the_names_of_the_images(judged: tuple[AttackReport, Path]):
    _, out = judged

    lines = list(csv.DictReader(io.StringIO((out / "guesses.csv").read_text())))

    best = [line for line in lines if line["attack"] == "reidentification" and "transform=known" in line["slice"]]
    first = {int(line["row"]): line["guess"] for line in best if line["place"] == "1"}
    assert first == {row: f"img/{row:03d}.png" for row in range(20)}
    members = [line["guess"] for line in lines if line["attack"] == "membership"]
    assert sorted(members[:20]) == [f"img/{row:03d}.png" for row in range(20)]
    assert sum(line["attack"] == "label-inference" for line in lines) == 20


def test_without_a_truth_guesses_are_made_and_nothing_is_measured(vectors: Own, tmp_path: Path):
    found = report(request(vectors, attacks=("reidentification", "membership", "label-inference")), tmp_path / "run")

    judged = [row for result in found.attacks for row in result.measurements if "not answered" not in row.slice]
    lines = list(csv.DictReader(io.StringIO((tmp_path / "run" / "guesses.csv").read_text())))

    assert {result.status for result in found.attacks} == {"done"}
    assert judged
    assert all(str(row.unavailable).startswith("no truth: ") for row in judged)
    assert {line["attack"] for line in lines} == {"reidentification", "membership", "label-inference"}
    assert all(line["guess"].startswith(("photo/", "painting/", "cartoon/", "sketch/"))
               for line in lines if line["attack"] != "label-inference")  # fmt: skip


def test_a_truth_without_labels_judges_all_but_labels(vectors: Own):
    truth = vectors.truth(["image", "member"], name="bare.csv")
    found = report(request(vectors, truth=truth, attacks=("label-inference", "reidentification")))

    (accuracy,) = rows(found, "label-inference", "accuracy")

    assert accuracy.unavailable == "nobody knows the labels of client:1 in the released run"
    assert rows(found, "reidentification", "top1")[0].value == 1.0


def test_pictures_of_rows_are_drawn_without_any_truth(vectors: Own, tmp_path: Path):
    asked = request(
        vectors, attacks=("optimization-inversion",),
        assignments=("attacks.optimization-inversion.steps=3", "attacks.optimization-inversion.restarts=1"),
    )  # fmt: skip
    found = report(asked, tmp_path / "run")

    sheets = sorted((tmp_path / "run").glob("pictures-*.png"))

    assert [row.unavailable for row in rows(found, "optimization-inversion", "psnr")] == [
        "no truth: there is no true image for client:1 in the released run"
    ] * 2
    assert len(sheets) == 2
    with Image.open(sheets[0]) as sheet:
        assert sheet.size == (8 * 18, 3 * 18)  # twenty pictures of 16 px in rows of eight, framed


def test_membership_in_a_pooled_style_is_tested_by_public_images(vectors: Own, tmp_path: Path):
    half = vectors.pictures.subset(torch.arange(20))
    mean, std = statistics("pixels", half).pooled().style(unbiased=False)
    file = tmp_path / "pooled.safetensors"
    file.write_bytes(StyleStatistics(mean=mean[0].float(), std=std[0].float()).encode())

    found = report(request(vectors, artifacts=file, truth=vectors.truth(), attacks=("membership", "label-inference")))

    (area,) = rows(found, "membership", "auc")
    assert area.slice == {"domain": "photo", "n_per_client": 20}
    assert area.n == 40
    assert area.value is not None
    assert area.value > 0.5
    assert next(one for one in found.attacks if one.name == "label-inference").status == "skipped"


def test_the_images_behind_a_pooled_style_are_listed_among_candidates(vectors: Own, tmp_path: Path):
    half = vectors.pictures.subset(torch.arange(20))
    mean, std = statistics("mini", half).pooled().style(unbiased=False)
    file = tmp_path / "pooled.safetensors"
    file.write_bytes(StyleStatistics(mean=mean[0].float(), std=std[0].float()).encode())
    asked = request(
        vectors, artifacts=file, truth=vectors.truth(), encoder="mini", attacks=("set-reconstruction",)
    )  # fmt: skip

    found = report(asked, tmp_path / "run")

    (exact,) = rows(found, "set-reconstruction", "exact_list")
    assert exact.slice == {"domain": "photo", "n_per_client": 20, "gallery": 40}
    assert exact.value == 1.0
    said = (tmp_path / "run" / "guesses.csv").read_text()
    assert said.count("member list") == 20


def test_an_adversary_without_images_can_still_compare_rows(vectors: Own):
    found = report(request(vectors, truth=vectors.truth(), dataset=None, per_domain=None))

    assert rows(found, "membership", "auc")[0].value == 1.0
    reasons = {one.name: one.reason for one in found.attacks if one.status == "skipped"}
    assert "needs auxiliary or own data" in reasons["reidentification"]
    assert "without --dataset, the adversary has no auxiliary images" in str(found.environment["notes"])
    assert found.attacks[0].adversary["knows"] == ["encoder", "transform", "class names", "victim domains"]


def test_public_images_that_the_truth_asks_about_teach_nobody(vectors: Own):
    public = shapes(image_size=16, per_domain=35)
    copied = Own(vectors.folder, public.of_domain("photo").subset(torch.arange(20)))
    for number, pixels in enumerate(copied.pictures.pixels()):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(vectors.folder / "img" / f"public{number}.png")
    listed = "\n".join(["image", *(f"img/public{number}.png" for number in range(20))])
    (vectors.folder / "copies.csv").write_text(listed)

    found = report(request(vectors, truth=vectors.folder / "copies.csv", attacks=("linkage",)))

    assert "20 public images are near-duplicates of images of the truth and were removed" in str(
        found.environment["notes"]
    )
    assert found.dataset["images"] == 4 * 35 - 20


def test_rows_that_are_not_of_their_images_give_no_all_clear(vectors: Own, tmp_path: Path):
    reversed_rows = tmp_path / "reversed.npy"
    np.save(reversed_rows, np.abs(np.flip(np.load(vectors.npy()), axis=1)))
    asked = request(vectors, truth=vectors.truth(), attacks=("reidentification", "membership"))
    own, other = (
        [row for result in report(one).attacks for row in result.measurements if row.judged]
        for one in (asked, replace(asked, artifacts=reversed_rows))
    )
    assert not [row for row in own if row.unread]
    quiet = [row.verdict for row in other if not row.leaks]
    assert quiet
    assert all("is not the pooled style of its images" in verdict for verdict in quiet)
    assert all(verdict.endswith("no evidence of protection") for verdict in quiet)


def test_rows_that_are_not_of_their_images_are_counted(vectors: Own):
    found = report(request(vectors, truth=vectors.truth(), image_size=24, attacks=("linkage",)))

    assert str(found.environment["notes"]).startswith(
        "0 of 20 rows equal the style of their image by pixels at 24 px (others may have noise,"
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"dataset": None}, "need public images; name them with --dataset"),
        ({"dataset": "shape"}, "did you mean 'shapes'"),
        ({"unseen": "skech"}, "has no domain 'skech'"),
        ({"unseen": "photo"}, "the domain of --unseen-domain"),
        ({"adversary": "client"}, "use server or outsider"),
        ({"assignments": ("method.k=2",)}, "does not apply to vectors"),
        ({"attacks": ("membershp",)}, "did you mean 'membership'"),
        ({"encoder": "mini"}, "has 3 channels, encoder mini has 256"),
        ({"encoder": "pixel"}, "did you mean 'pixels'"),
        ({"profile": "quik"}, "did you mean 'quick'"),
    ],
)
def test_what_does_not_go_together_is_refused(vectors: Own, tmp_path: Path, given: dict[str, object], said: str):
    with pytest.raises(UsageError, match=said):
        report(request(vectors, truth=vectors.truth(), **given), tmp_path / "out")

    assert not (tmp_path / "out").exists()


def test_more_or_fewer_images_than_rows_are_refused(vectors: Own):
    listed = vectors.truth().read_text().splitlines()
    short = vectors.folder / "short.csv"
    short.write_text("\n".join(listed[:10]))

    with pytest.raises(UsageError, match="names 9 members, but the file has 20 rows"):
        report(request(vectors, truth=short))


def test_the_run_folder_is_a_report_but_no_run(judged: tuple[AttackReport, Path]):
    _, out = judged

    assert json.loads((out / "report.json").read_text())["target"] == "artifacts"
    with pytest.raises(UsageError, match="holds an attack on style vectors"):
        read_record(out)


def test_distributions_of_a_models_layers_are_not_read(vectors: Own, tmp_path: Path):
    four = [torch.ones(3) * value for value in (1.0, 2.0, 3.0, 4.0)]
    sent = StyleDistribution(mean=four[0], std=four[1], mean_spread=four[2], std_spread=four[3])
    (tmp_path / "d.safetensors").write_bytes(sent.encode())

    with pytest.raises(UsageError, match="is a StyleDistribution"):
        report(request(vectors, artifacts=tmp_path / "d.safetensors"))

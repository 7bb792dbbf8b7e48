from itertools import pairwise

import pytest
import torch
from torch import Tensor

from fdgsec.metrics.feature_extraction import extract_features
from fdgsec.metrics.feature_extractors import EncoderExtractor, ExtractedFeatures, Extractor
from fdgsec.metrics.frechet_distance import frechet_of
from fdgsec.metrics.inception_score import inception_score
from fdgsec.metrics.kernel_distance import kernel_distance
from fdgsec.metrics.measurement import Measurement
from fdgsec.nn.styles.encoders import load_encoder
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.random_streams import stream
from fdgsec.threats.judging.realism_tables import Realism, distribution_distance, realism_table
from tests.support.one_domain import one_domain

pytestmark = pytest.mark.usefixtures("own_cache")


class Cells(Extractor):
    """Mean colors of the four quarters of an image: 12 features, of which 4 serve as logits."""

    dimension, classes = 12, 4
    device = torch.device("cpu")

    def __init__(self, name: str = "inception") -> None:
        self.name, self.fingerprint = name, f"cells {name}"
        self.seen = 0

    def _extract(self, images: Tensor) -> ExtractedFeatures:
        self.seen += len(images)
        cells = torch.nn.functional.adaptive_avg_pool2d(images, 2).flatten(1) * 10
        return ExtractedFeatures(features=cells, logits=cells[:, :4])


def blobs(*, seed: int, n: int, shift: float = 0.0) -> Tensor:
    """Two-by-two blots of color."""
    small = torch.rand(n, 3, 2, 2, generator=stream(seed, "attack", "blobs")) * 0.6
    return (small + shift).repeat_interleave(8, 2).repeat_interleave(8, 3)


def only(found: Realism, name: str, **where: str) -> Measurement:
    rows = [row for row in found.measurements if row.name == name and where.items() <= row.slice.items()]
    assert len(rows) == 1, f"{name} {where}: {[row.slice for row in rows]}"
    return rows[0]


def value(row: Measurement) -> float:
    assert row.value is not None
    return row.value


def test_the_table_holds_every_metric_of_every_column_and_domain_with_intervals() -> None:
    real = {"photo": blobs(seed=0, n=60), "sketch": blobs(seed=1, n=50, shift=0.1)}
    made = {
        column: {domain: blobs(seed=2, n=24, shift=shift) for domain in real}
        for column, shift in (("MSE", 0.3), ("LPIPS", 0.2), ("Baseline GAN", 0.0))
    }

    found = realism_table(real, made, extractors=[Cells(), Cells("cells")], rng=stream(0, "attack"))

    names = ["fid", "kid", "inception_score", "frechet_cells", "kernel_cells"]
    for domain, images_of in real.items():
        for column in ("MSE", "LPIPS", "Baseline GAN"):
            for images in ("all", "equal"):
                for name in names:
                    row = only(found, name, domain=domain, column=column, images=images)
                    assert row.low is not None
                    assert row.high is not None
                    assert row.low <= value(row) <= row.high
                    assert (row.verdict, row.n) == ("descriptive", 24)
        for name in names:
            assert only(found, name, domain=domain, column="real", images="equal").n == 24
        assert only(found, "inception_score", domain=domain, column="real", images="all").n == len(images_of)
    keys = [(row.name, tuple(sorted(row.slice.items()))) for row in found.measurements]
    assert len(set(keys)) == len(keys) == 2 * (3 * 2 * 5 + 5 + 1)


def test_rows_of_all_images_are_the_metrics_of_all_images() -> None:
    real, made, extractor = blobs(seed=0, n=40), blobs(seed=1, n=30, shift=0.2), Cells()

    found = distribution_distance(real, {"MSE": made}, extractor=extractor, rng=stream(0, "attack"))

    one, other = extract_features(extractor, real), extract_features(extractor, made)
    assert one.logits is not None
    assert other.logits is not None
    assert value(only(found, "fid", column="MSE", images="all")) == frechet_of(one.features, other.features)
    squared = kernel_distance(one.features, other.features)
    assert value(only(found, "kid", column="MSE", images="all")) == pytest.approx(squared, abs=1e-12)
    assert value(only(found, "inception_score", column="real", images="all")) == inception_score(one.logits)
    assert value(only(found, "inception_score", column="MSE", images="all")) == inception_score(other.logits)


def test_the_control_tells_what_real_images_score_at_the_same_number() -> None:
    real, far = blobs(seed=0, n=200), blobs(seed=1, n=40, shift=0.3)

    found = distribution_distance(
        real, {"twin": blobs(seed=2, n=60), "far": far}, extractor=Cells("cells"), rng=stream(0, "attack")
    )

    frechet = {c: only(found, "frechet_cells", column=c, images="equal") for c in ("real", "twin", "far")}
    kernel = {c: only(found, "kernel_cells", column=c, images="equal") for c in ("real", "twin", "far")}
    assert {row.n for row in frechet.values()} == {40}  # the smallest set, and under half of 200
    assert value(frechet["real"]) > 0.1  # the bias of few images, where the true distance is 0
    for rows in (frechet, kernel):
        assert rows["real"].high is not None
        assert rows["far"].low is not None
        assert rows["far"].low > rows["real"].high
        assert rows["twin"].low is not None
        assert rows["twin"].low < rows["real"].high
    assert kernel["real"].low is not None
    assert kernel["real"].low < 0 < (kernel["real"].high or 0)


def test_half_the_real_images_bound_the_equal_number() -> None:
    found = distribution_distance(
        blobs(seed=0, n=31), {"MSE": blobs(seed=1, n=400)}, extractor=Cells("cells"), rng=stream(0, "attack")
    )

    assert only(found, "frechet_cells", column="MSE", images="all").n == 31
    assert only(found, "frechet_cells", column="MSE", images="equal").n == 15
    assert only(found, "frechet_cells", column="real", images="equal").n == 15


def test_the_same_stream_gives_the_same_table_and_adding_a_column_leaves_the_others_alone() -> None:
    real, made = {"photo": blobs(seed=0, n=60)}, {"MSE": {"photo": blobs(seed=1, n=30)}}
    more = {"LPIPS": {"photo": blobs(seed=2, n=30)}, **made}

    first, again, wider = (
        realism_table(real, columns, extractors=[Cells()], rng=stream(0, "attack")) for columns in (made, made, more)
    )

    assert first == again
    assert [row for row in wider.measurements if row.slice["column"] != "LPIPS"] == list(first.measurements)


def test_few_images_are_warned_of_in_words() -> None:
    found = distribution_distance(
        blobs(seed=0, n=60),
        {"MSE": blobs(seed=1, n=10)},
        extractor=Cells(),
        rng=stream(0, "attack"),
        where={"domain": "photo"},
    )

    frechet, singular, score = found.warnings
    assert frechet.startswith("fid: 3 of 3 rows have 10 images, under 2048: biased upwards; compare at equal n")
    assert (
        singular == "fid: 3 of 3 rows have 10 images, under 13: covariances are singular, as they have 12 dimensions."
    )
    assert score.startswith("inception_score: 4 of 4 rows have 10 to 60 images, under 5000: biased downwards")


def test_a_table_warns_once_over_all_domains() -> None:
    real = {"photo": blobs(seed=0, n=60), "sketch": blobs(seed=1, n=80)}
    made = {"MSE": {"photo": blobs(seed=2, n=14), "sketch": blobs(seed=3, n=12)}}

    found = realism_table(real, made, extractors=[Cells("cells")], rng=stream(0, "attack"))

    frechet, singular = found.warnings
    assert frechet.startswith("frechet_cells: 6 of 6 rows have 12 to 14 images, under 2048")
    assert singular.startswith("frechet_cells: 3 of 6 rows have 12 images, under 13")


@pytest.mark.medium
def test_many_images_are_not_warned_of() -> None:
    found = distribution_distance(
        blobs(seed=0, n=4200), {"MSE": blobs(seed=1, n=2100)}, extractor=Cells("cells"), rng=stream(0, "attack")
    )

    assert found.warnings == ()


def test_without_inception_weights_each_metric_says_so_and_the_bundled_extractor_answers() -> None:
    real, made = {"photo": blobs(seed=0, n=12)}, {"MSE": {"photo": blobs(seed=1, n=6)}}

    found = realism_table(real, made, rng=stream(0, "attack"))

    for name in ("fid", "kid", "inception_score"):
        row = only(found, name)
        assert row.value is None
        assert row.unavailable is not None
        assert "fdgsec weights fetch inception_fid" in row.unavailable
        assert row.verdict == "unavailable"
    extractor = EncoderExtractor(load_encoder("mini"))
    expected = frechet_of(extractor.features(real["photo"]), extractor.features(made["MSE"]["photo"]))
    assert value(only(found, "frechet_mini", column="MSE", images="all")) == pytest.approx(expected, rel=1e-5)
    assert only(found, "kernel_mini", column="MSE", images="all").value is not None


def test_a_column_without_images_of_a_domain_says_so_there_alone() -> None:
    real = {"photo": blobs(seed=0, n=20), "sketch": blobs(seed=1, n=20)}
    made = {"MSE": {"photo": blobs(seed=2, n=10)}, "LPIPS": {name: blobs(seed=3, n=10) for name in real}}

    found = realism_table(real, made, extractors=[Cells()], rng=stream(0, "attack"))

    assert only(found, "fid", domain="sketch", column="MSE").unavailable == "no images were given for MSE, sketch"
    assert only(found, "fid", domain="sketch", column="LPIPS", images="all").value is not None


def test_sets_too_small_for_a_distance_say_so() -> None:
    found = distribution_distance(
        blobs(seed=0, n=3), {"MSE": blobs(seed=1, n=1)}, extractor=Cells(), rng=stream(0, "attack")
    )

    assert {row.value for row in found.measurements if row.slice["column"] == "MSE"} == {None}
    assert "there are 3 real and 1 to judge" in str(only(found, "fid", column="MSE", images="all").unavailable)
    assert only(found, "inception_score", column="real", images="all").value is not None


def test_identical_reconstructions_are_judged_too() -> None:
    found = distribution_distance(
        blobs(seed=0, n=30),
        {"mean": blobs(seed=1, n=1).repeat(20, 1, 1, 1)},
        extractor=Cells(),
        rng=stream(0, "attack"),
    )

    score = only(found, "inception_score", column="mean", images="all")
    assert (score.value, score.low, score.method) == (pytest.approx(1), None, "")
    assert only(found, "fid", column="mean", images="all").low is not None


def test_a_real_dataset_is_extracted_once_over_tables() -> None:
    extractor, real = Cells("cells"), one_domain((blobs(seed=0, n=40) * 255).round().to(torch.uint8))

    for seed in (1, 2):
        distribution_distance(real, {"MSE": blobs(seed=seed, n=10)}, extractor=extractor, rng=stream(0, "attack"))

    assert extractor.seen == 40 + 10 + 10


def test_the_layout_has_a_line_per_metric_and_column_and_a_cell_per_domain() -> None:
    real = {"photo": blobs(seed=0, n=40), "sketch": blobs(seed=1, n=40)}
    made = {"FISC": {name: blobs(seed=2, n=20) for name in real}, "CCST": {"photo": blobs(seed=3, n=20)}}

    found = realism_table(real, made, extractors=["inception", Cells("cells")], rng=stream(0, "attack"))

    lines = found.layout()
    assert lines[0] == ("metric", "column", "images", "photo", "sketch")
    assert all(len(line) == 5 for line in lines)
    assert all(one != other for one, other in pairwise(lines))
    cells = {line[:3]: line[3:] for line in lines}
    row = only(found, "frechet_cells", domain="sketch", column="FISC", images="equal")
    assert cells["frechet_cells", "FISC", "equal"][1] == f"{row.value:.4g} [{row.low:.4g}, {row.high:.4g}]"
    assert cells["frechet_cells", "CCST", "all"][1] == "unavailable: no images were given for CCST, sketch"
    assert all(cell.startswith("unavailable: the weights inception_fid") for cell in cells["fid", "", ""])


def test_tables_that_could_be_misread_are_refused() -> None:
    real, images = {"photo": blobs(seed=0, n=10)}, blobs(seed=1, n=10)

    with pytest.raises(UsageError, match="names the control"):
        realism_table(real, {"real": {"photo": images}}, rng=stream(0, "attack"))
    with pytest.raises(UsageError, match="MSE has images of 'sketch', but no real ones"):
        realism_table(real, {"MSE": {"sketch": images}}, rng=stream(0, "attack"))
    with pytest.raises(UsageError, match="each extractor can be used once"):
        realism_table(real, {"MSE": {"photo": images}}, extractors=["mini", "mini"], rng=stream(0, "attack"))


@pytest.mark.parametrize("bad", [float("nan"), 7.0])
def test_images_that_are_not_images_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="images must"):
        distribution_distance(
            blobs(seed=0, n=10), {"MSE": torch.full((5, 3, 16, 16), bad)}, extractor=Cells(), rng=stream(0, "attack")
        )

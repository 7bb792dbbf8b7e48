"""Vectors of clients from files and from memory: what is attacked without an encoder, and what is refused."""

import csv
import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fdgsec
from fdgsec.cli.app import main
from fdgsec.experiments.attack.attack_setting import Outcome
from fdgsec.experiments.report.schema import AttackReport, AttackResult
from fdgsec.federation.artifacts import ImageStyles, StyleBank, StyleStatistics
from fdgsec.metrics.measurement import Measurement
from fdgsec.nn.styles.callable_encoder import CallableEncoder
from fdgsec.runtime.checked_files import recalled, remember
from fdgsec.runtime.errors import FdgsecError, UsageError
from tests.support.client_vectors import client_vectors
from tests.support.own_vectors import own

ALONE = ["linkage", "interpolation-leakage"]
VECTORS = client_vectors(12, 8).astype(np.float32)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path / "cache"))


def file(folder: Path, values: "np.ndarray[Any, Any]" = VECTORS, name: str = "v.npy") -> Path:
    np.save(folder / name, values)
    return folder / name


def result(report: AttackReport, name: str) -> AttackResult:
    return next(one for one in report.attacks if one.name == name)


def without_seconds(report: AttackReport) -> list[dict[str, object]]:
    return [replace(one, seconds=0.0).document() for one in report.attacks]


def top1(report: AttackReport, **where: str) -> Measurement:
    return next(
        row for row in result(report, "linkage").measurements
        if row.name == "top1" and where.items() <= dict(row.slice).items()
    )  # fmt: skip


@pytest.mark.medium
def test_a_file_an_array_a_tensor_a_mapping_and_an_artifact_give_the_same_report(tmp_path: Path):
    mean, std = (part.contiguous() for part in torch.from_numpy(VECTORS).chunk(2, dim=1))
    bank = StyleBank(mean=mean, std=std, owner=torch.arange(1, 13))
    (tmp_path / "bank.safetensors").write_bytes(bank.encode())
    sources: Mapping[str, Any] = {
        "file": file(tmp_path), "text": str(file(tmp_path)), "array": VECTORS, "tensor": torch.from_numpy(VECTORS),
        "styles": ImageStyles(mean=mean, std=std), "bank": tmp_path / "bank.safetensors",
        "mapping": {f"hospital {n}": row for n, row in enumerate(VECTORS)},
    }  # fmt: skip

    reports = {
        name: fdgsec.attack_vectors(
            source, rows="images" if name in ("bank", "mapping") else "clients", attacks=ALONE
        ) for name, source in sources.items()
    }  # fmt: skip

    first = without_seconds(reports["file"])
    assert all(without_seconds(report) == first for report in reports.values())
    assert {report.transcript_sha256 for report in reports.values()} == {reports["file"].transcript_sha256}
    assert reports["file"].encoder == "none"
    assert "no encoder" in str(reports["file"].environment["notes"])
    assert [one.status for one in reports["file"].attacks] == ["done", "done"]


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("way", ["command line", "function"])
def test_a_fresh_attack_on_vectors_reads_nothing_of_the_cache(
    way: str, fresh: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    kept = tmp_path / "kept"
    remember(kept, b"kept", key="kept")
    found = list[bytes | None]()

    def run_attacks(*_given: object) -> list[Outcome]:
        found.append(recalled(kept, key="kept", read=bytes))
        return []

    monkeypatch.setattr("fdgsec.experiments.attack_vectors.run_vector_attacks.run_attacks", run_attacks)

    if way == "function":
        fdgsec.attack_vectors(VECTORS, rows="clients", attacks=ALONE, fresh=fresh, progress=False)
    else:
        path = str(file(tmp_path))
        main(["attack", "--artifacts", path, "--rows", "clients", "--out", str(tmp_path / "o"), *["--fresh"] * fresh])

    assert found == [None if fresh else b"kept"]


def test_csv_rows_are_clients_too(tmp_path: Path):
    path = tmp_path / "v.csv"
    path.write_text("\n".join(",".join(map(str, row)) for row in VECTORS.astype(np.float64)))

    report = fdgsec.attack_vectors(path, rows="clients", attacks=["linkage"])

    assert top1(report, noise="0.02", noise_on="first").n == 12


@pytest.mark.medium
def test_every_attack_says_what_it_lacks(tmp_path: Path):
    report = fdgsec.attack_vectors(VECTORS, rows="clients", out=tmp_path / "out")

    assert {one.name for one in report.attacks if one.status == "done"} == set(ALONE)
    assert result(report, "membership").reason.startswith("needs ")
    assert "--candidates" in result(report, "set-reconstruction").reason
    assert all(control.passed for one in report.attacks for side in one.controls.values() for control in side)


def test_a_second_release_is_linked_to_the_first_in_any_order_of_a_mapping():
    first = {f"hospital {n}": row for n, row in enumerate(VECTORS)}
    again = {name: first[name] * np.float32(1.0001) for name in reversed(first)}

    with pytest.raises(UsageError, match="same clients"):
        fdgsec.attack_vectors(first, again={**again, "another": VECTORS[0]}, attacks=["linkage"])
    report = fdgsec.attack_vectors(first, again=again, attacks=["linkage"])

    row = top1(report, noise="none", distance="standardized")
    assert (row.value, row.slice["data"], row.leaks) == (1.0, "another release", True)
    assert len(report.artifacts) == 24


@pytest.mark.medium
def test_the_table_of_guesses_names_the_linked_clients(tmp_path: Path):
    titles = [f"hospital {n}" for n in range(12)]
    fdgsec.attack_vectors(dict(zip(titles, VECTORS, strict=True)), attacks=ALONE, out=tmp_path / "out")

    lines = list(csv.DictReader(io.StringIO((tmp_path / "out" / "guesses.csv").read_text())))

    links = [line for line in lines if line["says"] == "ranking" and "noise=none" in line["slice"]]
    assert [(line["victim"], line["guess"]) for line in links] == [(title, title) for title in titles]
    clusters = [line for line in lines if line["row"].startswith("cluster") and "partition=first" in line["slice"]]
    members = " ".join(line["guess"] for line in clusters if "lower" in line["slice"])
    assert sorted(members.replace("hospital ", "").split(), key=int) == [str(n) for n in range(12)]
    style = [line for line in lines if line["row"] in ("mean 1", "std 8") and "partition=last" in line["slice"]]
    assert style


@pytest.mark.medium
def test_candidates_name_the_images_behind_vectors(tmp_path: Path):
    rng = np.random.default_rng(0)
    rows = np.abs(rng.normal(3, 1, (60, 64)))
    behind = [rng.permutation(60)[:15] for _ in range(2)]
    mean, std = rows[:, :32], rows[:, 32:]
    vectors = np.stack([
        np.concatenate([m := mean[own].mean(0), np.sqrt((std[own] ** 2 + mean[own] ** 2).mean(0) - m**2)])
        for own in behind
    ])  # fmt: skip
    (tmp_path / "truth.csv").write_text(
        "member\n" + "\n".join(str(int(n in set(behind[0].tolist()))) for n in range(60)) + "\n"
    )
    candidates = file(tmp_path, rows, "candidates.npy")

    scored = fdgsec.attack_vectors(
        vectors[:1], rows="clients", candidates=candidates, truth=tmp_path / "truth.csv",
        attacks=["set-reconstruction"], out=tmp_path / "scored",
    )  # fmt: skip
    told = fdgsec.attack_vectors(
        vectors, rows="clients", candidates=rows, images_per_client=15, attacks=["set-reconstruction"],
        out=tmp_path / "told",
    )  # fmt: skip

    exact = next(row for row in result(scored, "set-reconstruction").measurements if row.name == "exact_list")
    assert (exact.value, exact.n, exact.slice["gallery"]) == (1.0, 1, 60)
    unscored = next(row for row in result(told, "set-reconstruction").measurements if row.name == "exact_list")
    assert str(unscored.unavailable).startswith("no truth")
    lines = list(csv.DictReader(io.StringIO((tmp_path / "told" / "guesses.csv").read_text())))
    for number, own_rows in enumerate(behind, 1):
        listed = {
            line["guess"] for line in lines if line["says"] == "member list" and line["victim"] == f"client:{number}"
        }
        assert listed == {f"row {n + 1}" for n in own_rows}


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.medium
def test_lists_are_exact_however_a_client_averages_its_images(pooled: bool):
    """The style of all pixels, or the mean of the images' own means and stds, which a loop of one's own may send."""
    rng = np.random.default_rng(0)
    rows = np.abs(rng.normal(3, 1, (60, 64)))
    own = rows[:15]
    mean, std = own[:, :32], own[:, 32:]
    overall = np.concatenate([m := mean.mean(0), np.sqrt((std**2 + mean**2).mean(0) - m**2)])

    report = fdgsec.attack_vectors(
        (overall if pooled else own.mean(0))[None], rows="clients", candidates=rows, truth=[True] * 15 + [False] * 45,
        attacks=["set-reconstruction"],
    )  # fmt: skip

    exact = next(row for row in result(report, "set-reconstruction").measurements if row.name == "exact_list")
    assert exact.value == 1.0
    assert ("means of their images' means and stds" in str(report.environment["notes"])) is not pooled


@pytest.mark.medium
def test_vectors_of_other_images_do_not_hide_how_a_client_averages_its_own():
    rng = np.random.default_rng(1)
    rows = np.abs(rng.normal(3, 1, (40, 64)))
    others = np.abs(rng.normal(3, 1, (5, 12, 64))).mean(1)
    vectors = np.concatenate([rows[:10].mean(0)[None], others])

    report = fdgsec.attack_vectors(
        vectors, rows="clients", candidates=rows, truth=[1] * 10 + [0] * 30, images_per_client=[10] + [12] * 5,
        attacks=["set-reconstruction"],
    )  # fmt: skip

    assert "means of their images' means and stds" in str(report.environment["notes"])


@pytest.mark.medium
def test_a_function_serves_as_the_encoder_of_images(tmp_path: Path):
    vectors = own(tmp_path / "own")
    normal = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1), torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)

    def colors(images: torch.Tensor) -> torch.Tensor:
        return (images - normal[0]) / normal[1]

    def from_bytes(images: torch.Tensor) -> torch.Tensor:
        assert images.dtype == torch.uint8
        return colors(images.float() / 255)

    settings: dict[str, Any] = {
        "truth": vectors.truth(), "dataset": "shapes", "per_domain": 35, "image_size": 16,
        "attacks": ["reidentification"],
    }  # fmt: skip
    named, given, of_bytes = (
        fdgsec.attack_vectors(vectors.npy(), encoder=encoder, **settings)
        for encoder in ("pixels", colors, CallableEncoder(from_bytes, pixels="uint8"))
    )

    assert (given.encoder, of_bytes.encoder) == ("own:colors", "own:from_bytes")
    for report in (given, of_bytes):
        assert "20 of 20 rows equal" in str(report.environment["notes"])
        assert [row.value for row in result(report, "reidentification").measurements] == pytest.approx([
            row.value for row in result(named, "reidentification").measurements
        ])  # fmt: skip


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda images: images.mean((2, 3)), "must give features"),
        (lambda images: images[:0], "must give features"),
        (lambda images: images > 0, "must give float features"),
        (lambda images: [images], "must give features"),
    ],
)
def test_a_function_that_gives_no_features_is_refused(function: Any, said: str):
    with pytest.raises(UsageError, match=said):
        fdgsec.attack_vectors(VECTORS, encoder=function)


def changed(column: int, value: float) -> "np.ndarray[Any, Any]":
    values = VECTORS.copy()
    values[2, column] = value
    return values


ODD, SHORT = VECTORS[:, :15], VECTORS[:5]
REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "odd columns": ({"artifacts": ODD}, "must have rows of 2 C numbers"),
    "nan": ({"artifacts": changed(3, np.nan)}, "not finite"),
    "negative stds": ({"artifacts": changed(9, -1.0)}, "std must be >= 0"),
    "one row": ({"artifacts": VECTORS[:1]}, "two clients or more"),
    "fewer again": ({"again": SHORT}, "one vector of each of the same clients"),
    "narrower again": ({"again": VECTORS[:, :8]}, "again has 8 numbers per client"),
    "reordered again": ({"again": VECTORS[::-1].copy()}, "in another order"),
    "numbers whose squares are infinite": ({"artifacts": VECTORS.astype(np.float64) * 1e200}, "numbers up to 1e+18"),
    "candidates whose squares are infinite": ({"candidates": VECTORS.astype(np.float64) * 1e200}, "numbers up to 1e+18"),
    "infinite again": ({"again": changed(0, np.inf)}, "not finite"),
    "narrower candidates": ({"candidates": VECTORS[:, :8]}, "candidates has 8 numbers per row"),
    "one candidate": ({"candidates": VECTORS[:1]}, "two candidates or more"),
    "candidates that are the same": ({"candidates": VECTORS[[0, 0, 0]]}, "that differ"),
    "sizes for others": ({"candidates": VECTORS, "images_per_client": (3, 4)}, "one for each of 12 vectors"),
    "no size": ({"candidates": VECTORS, "images_per_client": 0}, "all at least 1"),
    "candidates beside a dataset": ({"candidates": VECTORS, "dataset": "shapes"}, "leave dataset out"),
    "words": ({"artifacts": np.array([["a", "b"]] * 3)}, "must hold numbers"),
    "rows of what": ({"rows": "client"}, "did you mean 'clients'"),
    "again of images": ({"rows": "images", "encoder": "pixels", "again": VECTORS}, "say rows clients"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_said_in_one_line(name: str):
    wrong, said = REFUSED[name]

    with pytest.raises(FdgsecError) as caught:
        fdgsec.attack_vectors(**{"artifacts": VECTORS, "rows": "clients", "attacks": ["linkage"], **wrong})

    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_truth_about_candidates_has_one_line_for_each(tmp_path: Path):
    for owner, said in (([1, 0], "2 lines for 12 candidates"), ([13] + [0] * 11, "names vector 13"),
                        ([1] * 12, "names no image of vector 2")):  # fmt: skip
        with pytest.raises(UsageError, match=said):
            fdgsec.attack_vectors(VECTORS, rows="clients", candidates=VECTORS, truth=owner)
    for text, said in (("image\na.png\n", "one column, member or client"), ("member\n2\n", "must be 0 or 1"),
                       ("client\nx\n", "the number of a vector")):  # fmt: skip
        (tmp_path / "t.csv").write_text(text)
        with pytest.raises(FdgsecError, match=said):
            fdgsec.attack_vectors(
                VECTORS, rows="clients", candidates=file(tmp_path), truth=tmp_path / "t.csv"
            )  # fmt: skip


@pytest.mark.medium
def test_an_encoder_is_asked_for_only_where_images_are_read():
    with pytest.raises(UsageError, match="needs encoder"):
        fdgsec.attack_vectors(VECTORS, rows="clients", dataset="shapes", per_domain=10, attacks=["style-inversion"])

    report = fdgsec.attack_vectors(
        VECTORS, rows="clients", dataset="shapes", per_domain=10, encoder="vgg19", attacks=["linkage"]
    )

    assert result(report, "linkage").status == "done"  # vgg19 has no weights here


def test_one_style_of_a_client_is_read_as_before(tmp_path: Path):
    mean, std = torch.from_numpy(VECTORS[0]).chunk(2)
    path = tmp_path / "style.safetensors"
    path.write_bytes(StyleStatistics(mean=mean.clone(), std=std.clone()).encode())

    report = fdgsec.attack_vectors(path, attacks=["linkage"])

    assert result(report, "linkage").reason == "needs the vectors of two clients or more; there are 1"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rows", "clients"], "two clients or more"),
        (["--rows", "client"], "is not one of 'images', 'clients'"),
        ([], "--artifacts needs --encoder"),
        (["--rows", "clients", "--candidates", "v.npy", "--images-per-client", "ten"], "must be a number"),
        (["--rows", "clients", "--truth", "t.csv", "--candidates", "none.npy"], "none.npy is not a file"),
        (["--rows", "clients", "--again", "none.npy"], "--again none.npy is not a file"),
    ],
)
def test_the_command_line_refuses_in_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    file(tmp_path, VECTORS[:1] if arguments == ["--rows", "clients"] else VECTORS)

    assert main(["attack", "--artifacts", "v.npy", *arguments, "--out", "out"]) == 2

    told = capsys.readouterr()
    assert said in told.err
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert not (tmp_path / "out").exists()


def test_a_truth_of_images_is_refused_for_rows_of_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    vectors = own(tmp_path / "own")
    monkeypatch.chdir(tmp_path)

    code = main(["attack", "--artifacts", str(vectors.npy()), "--rows", "clients", "--truth", str(vectors.truth())])

    told = capsys.readouterr().err
    assert (code, told.count("\n")) == (2, 1)
    assert "no row is of an image" in told


def test_options_of_vectors_need_vectors(capsys: pytest.CaptureFixture[str]):
    assert main(["attack", "--rows", "clients"]) == 2

    assert "--rows is about vectors of your own" in capsys.readouterr().err

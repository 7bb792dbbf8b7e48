"""Bad input: one line on stderr that says what is wrong, exit 2 or 3, and nothing half-written."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fdgsec.cli import main

CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
DOMAINS = ("art_painting", "cartoon", "photo", "sketch")


def jpeg(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="JPEG")
    return buffer.getvalue()


@pytest.fixture
def pacs(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    for d, domain in enumerate(DOMAINS):
        for c, name in enumerate(CLASSES):
            folder = root / "PACS" / domain / name
            folder.mkdir(parents=True)
            for i in range(4):
                (folder / f"pic_{i:03d}.jpg").write_bytes(jpeg(100 * d + 10 * c + i))
    return root


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FDGSEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FDGSEC_DATA", raising=False)


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int, *words: str) -> None:
    given = main(arguments)
    captured = capsys.readouterr()

    assert given == code
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1, captured.err
    assert captured.err.startswith("fdgsec: ")
    for word in words:
        assert word in captured.err


SHAPES = ["--dataset", "shapes", "--per-domain", "21", "--image-size", "32"]

TABLE = [
    ("unknown target", ["attack", "--target", "ccst-overal", *SHAPES], 2, ("ccst-overal", "ccst-overall")),
    ("unknown attack", ["attack", *SHAPES, "--attack", "membershp"], 2, ("membershp", "membership")),
    ("unknown encoder", ["attack", *SHAPES, "--encoder", "vgg91"], 2, ("vgg91", "vgg19")),
    ("unknown dataset", ["attack", "--dataset", "pcas"], 2, ("pcas",)),
    ("unknown adversary", ["attack", *SHAPES, "--adversary", "sever"], 2, ("sever",)),
    ("unknown profile", ["attack", *SHAPES, "--profile", "fast"], 2, ("fast", "quick")),
    ("unknown profile of claims", ["claims", "--dataset", "shapes", "--profile", "fast"], 2, ("fast", "quick")),
    ("unknown option", ["attack", "--targt", "x"], 2, ("--targt",)),
    ("unknown verb", ["atack"], 2, ("atack",)),
    ("unknown method option", ["attack", *SHAPES, "--set", "method.kk=2"], 2, ("kk", "k")),
    ("unknown attack option", ["attack", *SHAPES, "--set", "attacks.membership.counnt=2"], 2, ("counnt",)),
    ("assignment without value", ["attack", *SHAPES, "--set", "method.k"], 2, ("method.k",)),
    ("wrong type", ["attack", *SHAPES, "--set", "method.k=many"], 2, ("method.k", "many")),
    ("wrong type in a list", ["attack", *SHAPES, "--set", "attacks.membership.sizes=[2.5]"], 2, ("sizes[0]", "2.5", "int")),
    ("k larger than the number of clients", ["attack", *SHAPES, "--set", "method.k=4"], 2, ("k = 4", "1..3")),
    ("k of zero", ["attack", *SHAPES, "--set", "method.k=0"], 2, ("k = 0",)),
    ("an option that is not a number", ["attack", *SHAPES, "--set", "method.eps=nan"], 2, ("method.eps cannot be NaN",)),
    ("more clients than images", ["attack", *SHAPES, "--partition", "single-domain", "--clients", "300"], 2, ("client",)),
    ("too many clients for one domain each", ["attack", *SHAPES, "--clients", "9"], 2, ("9",)),
    ("unknown domain", ["attack", *SHAPES, "--target-domain", "etching"], 2, ("etching", "sketch")),
    ("models alone without rounds", ["attack", "--target", "fedavg", *SHAPES], 2, ("--rounds",)),
    ("a schedule without rounds", ["attack", *SHAPES, "--set", "method.plan.epochs=3"], 2, ("epochs acts in training", "--rounds N")),
    ("a schedule of rates without rounds", ["attack", *SHAPES, "--set", "method.plan.schedule=cosine"], 2, ("schedule acts in",)),
    ("a rate without rounds", ["train", *SHAPES, "--rounds", "0", "--set", "method.plan.learning_rate=.1"], 2, ("learning_rate acts", "--rounds N")),
    ("unknown defense", ["attack", *SHAPES, "--defense", "magic:p=1"], 2, ("magic",)),
    ("unknown preset", ["train", "--method", "ccst", "--preset", "ccst-papr", *SHAPES], 2, ("ccst-papr", "ccst-paper")),
    ("unknown method", ["train", "--method", "fedavgg", *SHAPES], 2, ("fedavgg", "fedavg")),
    ("unknown backbone", ["train", *SHAPES, "--backbone", "resnet19"], 2, ("resnet19",)),
    ("unknown splits", ["train", *SHAPES, "--splits", "offical"], 2, ("--splits", "offical", "'own', 'official'")),
    ("official splits of a set without any", ["train", *SHAPES, "--splits", "official"], 2, ("shapes has no", "vlcs")),
    ("official splits for an attack", ["attack", *SHAPES, "--set", "splits=official"], 2, ("fdgsec train",)),
    ("unknown method on top", ["train", *SHAPES, "--with", "ccts"], 2, ("unknown method 'ccts'", "ccst")),
    ("a method on top that is not local", ["train", *SHAPES, "--method", "ccst", "--with", "fedavg"], 2, ("FedAvg is no local method", "mixstyle")),
    ("options of a method on top that is not there", ["train", *SHAPES, "--set", "with.k=2"], 2, ("with.k", "--with NAME")),
    ("unknown option of a method on top", ["train", *SHAPES, "--with", "ccst", "--set", "with.kk=2"], 2, ("option of with 'kk'",)),
    ("unknown adaptation", ["train", *SHAPES, "--adapt", "tnet"], 2, ("tnet", "'tent'")),
    ("adapting without norm layers", ["train", *SHAPES, "--backbone", "squeezenet1_0", "--adapt", "tent"], 2, ("squeezenet1_0 has none",)),
    ("adapting an untrained model", ["train", *SHAPES, "--rounds", "0", "--adapt", "tent"], 2, ("--rounds 1",)),
    ("unknown device", ["train", *SHAPES, "--device", "tpu"], 2, ("tpu", "cuda")),
    ("unknown list", ["list", "atacks"], 2, ("atacks", "attacks")),
    ("missing weights", ["attack", *SHAPES, "--encoder", "vgg19"], 3, ("adain_vgg", "fdgsec weights import")),
    ("missing pretrained weights", ["train", *SHAPES, "--backbone", "resnet18", "--pretrained"], 3, ("resnet18",)),
    ("unknown weights", ["weights", "path", "resnet181"], 2, ("resnet181", "resnet18")),
    ("report of nothing", ["report", "nowhere"], 2, ("nowhere", "report.json")),
]  # fmt: skip


def test_a_report_in_which_no_attack_could_run_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Of one image per domain nothing can be asked, nor by an outsider of sums; the report is written, and says so."""
    shapes = ["attack", "--dataset", "shapes", "--image-size", "32"]
    for number, more in enumerate((
        ["--per-domain", "1"],
        ["--per-domain", "21", "--adversary", "outsider", "--defense", "secure-aggregation"],
    )):  # fmt: skip
        out = tmp_path / str(number)

        code = main([*shapes, *more, "--out", str(out)])

        assert code == 2
        assert "no attack measured anything" in capsys.readouterr().err
        assert (out / "report.json").exists()


@pytest.mark.parametrize(("arguments", "code", "words"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_bad_usage_is_one_line(
    arguments: list[str], code: int, words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "out"
    extra = ["--out", str(out)] if arguments[0] in ("attack", "train") else []

    refused([*arguments, *extra], capsys, code, *words)

    assert not out.exists()


def attack_on(root: Path, out: Path) -> list[str]:
    return ["attack", "--dataset", "pacs", "--data-root", str(root), "--attack", "differencing", "--out", str(out)]


def test_a_missing_dataset_says_where_it_was_looked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    refused(attack_on(tmp_path / "nothing", tmp_path / "out"), capsys, 3, "PACS", str(tmp_path / "nothing"))

    assert not (tmp_path / "out").exists()


def test_an_incomplete_dataset_is_refused_with_what_is_missing(
    pacs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    refused(attack_on(pacs, tmp_path / "out"), capsys, 2, "--allow-partial")

    assert not (tmp_path / "out").exists()


def test_a_truncated_archive_is_refused(pacs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    archive = tmp_path / "pacs.zip"
    with zipfile.ZipFile(archive, "w") as target:
        for file in sorted((pacs / "PACS").rglob("*.jpg")):
            target.write(file, file.relative_to(pacs))
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])

    refused([*attack_on(archive, tmp_path / "out"), "--allow-partial"], capsys, 2, "pacs.zip")

    assert not (tmp_path / "out").exists()


def test_a_corrupt_image_is_refused_by_name(pacs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (pacs / "PACS" / "photo" / "dog" / "pic_002.jpg").write_bytes(b"not an image")

    refused([*attack_on(pacs, tmp_path / "out"), "--allow-partial"], capsys, 2, "pic_002.jpg")

    assert not (tmp_path / "out").exists()


def test_a_foreign_class_folder_is_refused_by_name(pacs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (pacs / "PACS" / "photo" / "dog").rename(pacs / "PACS" / "photo" / "wolf")

    refused(attack_on(pacs, tmp_path / "out"), capsys, 2, "wolf")

    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_peoples_files_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "thesis"
    out.mkdir()
    (out / "chapter.tex").write_text("years of work")

    refused(["attack", *SHAPES, "--out", str(out)], capsys, 2, "thesis")

    assert [file.name for file in out.iterdir()] == ["chapter.tex"]

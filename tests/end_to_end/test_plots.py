"""Figures from a finished run: each kind draws, says what it lacks, and writes nothing where it cannot."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from fdgsec.cli.app import main
from fdgsec.experiments.paper_plots import plane

pytestmark = pytest.mark.medium

SMALL = [
    "--dataset",
    "shapes",
    "--per-class",
    "3",
    "--image-size",
    "32",
    "--rounds",
    "1",
    "--partition",
    "single-domain",
    "--clients",
    "6",
]


@pytest.fixture(scope="module")
def highlighted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A StableFDG run that kept its clients' models."""
    run = tmp_path_factory.mktemp("runs") / "stablefdg"
    assert main(["train", "--method", "stablefdg", *SMALL, "--keep", "models=last", "--out", str(run)]) == 0
    return run


@pytest.fixture(scope="module")
def stylized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CCST run that kept artifacts alone."""
    run = tmp_path_factory.mktemp("runs") / "ccst"
    assert main(["train", "--method", "ccst", *SMALL, "--out", str(run)]) == 0
    return run


@pytest.mark.parametrize("kind", ["attention", "tsne", "loss-surface", "domain-gap"])
def test_a_figure_is_drawn_beside_its_run(highlighted: Path, kind: str):
    assert main(["plot", kind, str(highlighted)]) == 0

    with Image.open(highlighted / f"{kind}.png") as picture:
        assert min(picture.size) > 300
        assert len(set(picture.convert("L").resize((64, 64)).tobytes())) > 10  # not blank


def test_styles_before_and_after_transfer_are_drawn_where_asked(stylized: Path, tmp_path: Path):
    assert main(["plot", "style-histogram", str(stylized), "--out", str(tmp_path / "styles.pdf")]) == 0

    assert (tmp_path / "styles.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("attention", "need a network with a highlighter"),
        ("loss-surface", "--keep models=last"),
        ("histogram", "did you mean 'style-histogram'"),
    ],
)
def test_what_a_run_cannot_show_is_said_in_one_line(
    stylized: Path, kind: str, said: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["plot", kind, str(stylized)]) == 2

    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
    assert not (stylized / f"{kind}.png").exists()


def test_a_method_without_transfer_has_no_histogram(highlighted: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["plot", "style-histogram", str(highlighted)]) == 2
    assert "stablefdg transfers no style" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("out", "said"), [("figure.gif", ".png, .pdf or .svg"), ("figure.png", "holds no trained run")]
)
def test_a_folder_without_a_run_and_a_foreign_format_are_refused(
    tmp_path: Path, out: str, said: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["plot", "tsne", str(tmp_path), "--out", str(tmp_path / out)]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_plane_holds_the_states_that_span_it():
    origin = {"w": torch.tensor([1.0, 0.0, 2.0]), "count": torch.tensor(3)}
    first = {"w": torch.tensor([4.0, 4.0, 2.0]), "count": torch.tensor(3)}
    second = {"w": torch.tensor([1.0, 0.0, 9.0]), "count": torch.tensor(4)}

    u, v, places = plane(origin, first, second)

    assert places[0] == pytest.approx((5.0, 0.0))
    assert places[1] == pytest.approx((0.0, 7.0))
    for state, (x, y) in zip((first, second), places, strict=True):
        assert torch.allclose(origin["w"] + x * u["w"] + y * v["w"], state["w"].double())
    assert set(u) == {"w"}

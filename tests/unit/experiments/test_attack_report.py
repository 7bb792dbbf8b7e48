"""Reports in Python: one attack by name, tables, the first screen in a notebook, figures on axes, files and back."""

import io
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from matplotlib.figure import Figure as Canvas

import fdgsec
from fdgsec.experiments.report import schema
from fdgsec.experiments.report.schema import AttackResult, Figure
from fdgsec.metrics.measurement import Control, Measurement
from fdgsec.runtime.errors import DataError, MissingResourceError, UsageError

SERIES = {
    "photo n=40 tpr": [0.1, 0.6, 1.0], "photo n=80 tpr": [0.1, 0.4, 1.0], "sketch n=40 tpr": [0.2, 0.7, 1.0],
    "fpr": [0.01, 0.1, 1.0],
}  # fmt: skip
SIZES = {"photo n": [40, 80], "photo auc": [0.9, 0.7], "photo half width": [0.01, 0.02], "photo rehearsals": [0.9, 0.8]}


DATASET = {
    "name": "pacs", "manifest_sha256": "0" * 64, "images": 600, "domains": ["photo"], "classes": ["a"],
    "roles": {"federation": {"photo": 3}},
}  # fmt: skip


def picture() -> bytes:
    buffer = io.BytesIO()
    Canvas(figsize=(1, 1)).savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def row(value: float, **where: str | int) -> Measurement:
    return Measurement(
        name="auc", value=value, low=value - 0.05, high=value + 0.05, chance=0.5, chance_kind="exact", n=50, slice=where
    )


def report(**changes: Any) -> fdgsec.AttackReport:
    adversary = {"name": "server", "parties": ["server"], "taps": "own", "knows": ["encoder"]}
    gone = Measurement(
        name="top1", value=None, low=None, high=None, chance=None, chance_kind="none", n=0, unavailable="few"
    )
    membership = AttackResult(
        name="membership", adversary=adversary, status="done",
        positive=[Control(measurement=row(0.9), expected="at least .8", passed=True)],
        measurements=[row(0.9, domain="<photo>", n_per_client=40), row(0.6, domain="sketch"), gone],
        figures=[Figure(name="roc", title="ROC", caption="", data=SERIES),
                 Figure(name="auc-by-n", title="AUC", caption="", data=SIZES)],
    )  # fmt: skip
    inversion = AttackResult(
        name="style-inversion", adversary=adversary, status="done",
        figures=[Figure(name="grid", title="Grid", caption="", png=picture())],
    )  # fmt: skip
    skipped = AttackResult(name="poisoning", adversary=adversary, status="skipped", reason="needs a malicious client")
    base = schema.AttackReport(
        target="ccst-overall", method="ccst", preset="", encoder="vgg19", backbone=None, seed=0, profile="quick",
        dataset=DATASET, reused=False, defenses=[], guarantees=[], accuracy=None, attacks=[membership, inversion, skipped], artifacts=[],
        model_traffic=[], transcript_sha256="ab", environment={}, seconds=1.0,
    )  # fmt: skip
    return fdgsec.AttackReport.of(replace(base, **changes))


def saved(path: Path, change: Callable[[dict[str, Any]], object] = lambda _: None) -> Path:
    """A report.json, alone, whose document was changed."""
    document = json.loads(report().json())
    change(document)
    path.write_text(json.dumps(document))
    return path


class Reader(HTMLParser):
    """Collects the tags and the text of a fragment, whose elements must be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_an_attack_is_found_by_its_name_with_its_rows_and_its_verdict():
    part = report()["membership"]

    assert (part.verdict, [each.value for each in part.rows]) == ("leaks strongly", [0.9, 0.6, None])
    assert report()["poisoning"].verdict == "not applicable"
    assert "membership" in report()
    assert list(report()) == ["membership", "style-inversion", "poisoning"]


def test_an_unknown_attack_is_a_key_error_with_the_nearest_name_and_all():
    with pytest.raises(KeyError, match=r"did you mean 'membership'\? known: membership, style-inversion, poisoning"):
        report()["membreship"]


def test_the_table_has_a_row_for_every_measurement_and_a_column_for_every_entry_of_the_slices():
    table = report().to_frame()

    assert isinstance(table, pandas.DataFrame)
    assert list(table["value"].fillna(-1)) == [0.9, 0.6, -1]
    assert list(table["slice.domain"].fillna("")) == ["<photo>", "sketch", ""]
    assert list(table["verdict"]) == ["leaks strongly", "leaks slightly", "unavailable"]
    assert len(report()["membership"].to_frame()) == 3


def test_without_pandas_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pandas", None)  # as where it is not installed

    with pytest.raises(MissingResourceError, match=r'to_frame needs pandas: run pip install "fdgsec\[pandas\]"\.'):
        report().to_frame()


def test_a_report_is_one_line_with_its_sentence():
    text = repr(report())

    assert "\n" not in text
    assert report().sentence in text
    assert repr(report()["membership"]) == "<membership: leaks strongly; 3 rows>"


def test_in_a_notebook_a_report_begins_with_its_sentence_and_has_a_row_for_each_question():
    shown = Reader(report()._repr_html_())

    assert shown.text.strip().startswith(report().sentence)
    assert shown.tags <= {"div", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "small"}
    for answer in report().findings.answers:
        assert answer.asks in shown.text
    assert "leaks strongly" in Reader(report()["membership"]._repr_html_()).text


def test_in_a_notebook_no_question_is_clear_where_an_attack_of_it_is_undecided():
    calm = replace(report().attacks[0], figures=[], measurements=[replace(row(0.5), low=0.49, high=0.52)])
    wide = replace(
        calm, name="differencing", measurements=[replace(row(0.1), name="top1", low=0.0, high=0.4, chance=0.03)]
    )

    text = Reader(report(attacks=[calm, wide])._repr_html_()).text

    assert "undecided: differencing (undecided: the interval reaches 0.4)" in text
    assert "no leak shown" not in text


def test_what_others_named_is_escaped_in_a_notebook():
    text = report(target="<script>alert(1)</script>")._repr_html_()

    assert "<script>" not in text
    assert "&lt;script&gt;" in text


def test_lines_of_a_figure_are_the_series_and_can_be_restyled():
    axis = Canvas().subplots()

    assert report().plot("roc", ax=axis, domain="photo") is axis
    first, second, baseline = axis.lines
    first.set_color("red")
    assert np.asarray(first.get_ydata()).tolist() == SERIES["photo n=40 tpr"]
    assert [line.get_label() for line in (first, second, baseline)] == ["n = 40", "n = 80", "baseline"]


def test_without_a_domain_all_are_drawn():
    axis = report().plot("roc", ax=Canvas().subplots())

    assert [line.get_label() for line in axis.lines] == [
        "photo, n = 40", "photo, n = 80", "sketch, n = 40", "baseline",
    ]  # fmt: skip


def test_bars_and_pictures_are_drawn_on_axes_too():
    answers, sizes, grid = (Canvas().subplots() for _ in range(3))

    report().plot(ax=answers)
    report()["membership"].plot("auc-by-n", ax=sizes)
    report().plot("grid", ax=grid)

    assert [tick.get_text() for tick in answers.get_yticklabels()] == [one.asks for one in report().findings.answers]
    assert answers.patches[0].get_extents().transformed(answers.transData.inverted()).width == pytest.approx(0.4)
    assert np.asarray(sizes.lines[0].get_ydata()).tolist() == SIZES["photo auc"]
    assert len(grid.images) == 1


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"figure": "rok"}, "did you mean 'roc'"),
        ({"figure": "roc", "domain": "foto"}, "did you mean 'photo'"),
        ({"figure": "roc", "attack": "membreship"}, "did you mean 'membership'"),
    ],
)
def test_a_figure_that_is_not_there_is_refused_with_the_nearest(asked: dict[str, str], said: str):
    with pytest.raises(UsageError, match=said):
        report().plot(**asked, ax=Canvas().subplots())


def test_a_saved_report_is_the_same_when_it_is_read_and_has_its_pictures(tmp_path: Path):
    folder = report().save(str(tmp_path / "saved"))

    for again in (fdgsec.AttackReport.load(str(folder)), fdgsec.AttackReport.load(folder / "report.json")):
        assert again.document() == report().document()
        assert again["style-inversion"].figures[0].png == picture()
    assert (
        fdgsec.AttackReport.load(folder).save(tmp_path / "again").joinpath("report.html").read_bytes()
        == (folder / "report.html").read_bytes()
    )


def test_a_report_replaces_a_saved_one_and_no_other_folder(tmp_path: Path):
    report().save(tmp_path / "saved")
    report(seed=1).save(tmp_path / "saved")
    run, others = tmp_path / "run", tmp_path / "others"
    for folder, name in ((run, "transcript.jsonl"), (others, "thesis.tex")):
        folder.mkdir()
        (folder / name).write_text("")

    assert fdgsec.AttackReport.load(tmp_path / "saved").seed == 1
    with pytest.raises(UsageError, match=r"did not write: transcript\.jsonl"):
        report().save(run)
    with pytest.raises(UsageError, match="did not write"):
        report().save(others)


def of_first(document: dict[str, Any]) -> dict[str, Any]:
    """The first measurement."""
    found: dict[str, Any] = document["attacks"][0]["measurements"][0]
    return found


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.update(schema=2),
        lambda document: document.update(seconds="long"),
        lambda document: document.update(attacks=5),
        lambda document: document.update(dataset={}),
        lambda document: document.update(dataset=[]),
        lambda document: document.update(mine=1),
        lambda document: document.pop("target"),
        lambda document: document.update(guarantees=[{}]),
        lambda document: document.update(accuracy={"value": 1}),
        lambda document: document.update(artifacts=[{"kind": 1}]),
        lambda document: of_first(document).update(value="0.9"),
        lambda document: of_first(document).update(value=float("nan")),
        lambda document: of_first(document).update(low=0.95),
        lambda document: of_first(document).update(verdict="no leak shown"),
        lambda document: of_first(document).update(leaks=False),
        lambda document: of_first(document).update(n="many"),
        lambda document: of_first(document).pop("name"),
        lambda document: document["attacks"][0].update(status="perhaps", adversary=[]),
        lambda document: document["attacks"][0].update(controls=[]),
        lambda document: document["attacks"][0]["figures"].append({"name": "roc"}),
    ],
)
def test_a_document_that_fdgsec_would_not_write_is_refused_by_name(tmp_path: Path, change: Callable[..., object]):
    path = saved(tmp_path / "report.json", change)

    with pytest.raises(UsageError, match=r"report\.json"):
        fdgsec.AttackReport.load(path)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b"{" * 2000, b'{"schema": 1}'])
def test_a_file_that_is_no_report_is_refused(tmp_path: Path, content: bytes):
    (tmp_path / "report.json").write_bytes(content)

    with pytest.raises(UsageError, match=r"report\.json"):
        fdgsec.AttackReport.load(tmp_path)


def test_a_folder_without_a_report_or_with_an_altered_file_is_refused(tmp_path: Path):
    folder = report().save(tmp_path / "saved")
    (folder / "measurements.csv").write_text("altered")

    with pytest.raises(UsageError, match=r"holds no report\.json"):
        fdgsec.AttackReport.load(tmp_path)
    with pytest.raises(DataError, match="altered"):
        fdgsec.AttackReport.load(folder)


def test_a_picture_that_is_none_is_refused(tmp_path: Path):
    saved(tmp_path / "report.json")
    (tmp_path / "style-inversion-grid.png").write_bytes(b"no picture")

    with pytest.raises(UsageError, match="is no picture"):
        fdgsec.AttackReport.load(tmp_path)

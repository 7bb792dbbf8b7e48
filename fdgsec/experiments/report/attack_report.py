"""The report as Python's users get it: tables, the page's first screen in notebooks, figures on axes, files.

`schema.AttackReport` is the document that the verbs make; this adds what pages, words and figures make of it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdgsec.experiments.report import schema
from fdgsec.experiments.report.findings import Finding, Findings, finding_of, findings_of
from fdgsec.experiments.report.html import css_of, render
from fdgsec.experiments.report.pages import page
from fdgsec.experiments.report.schema import COLUMNS, AttackResult, cells
from fdgsec.experiments.report.series_plots import plot_answers, plot_figure
from fdgsec.experiments.report.stored import checked_report, report_schema
from fdgsec.experiments.report.text import controls_of
from fdgsec.experiments.report.words import MEASURE_WORDS, rate, short
from fdgsec.federation.run_folder import check_replaceable, new_folder, place_of
from fdgsec.metrics.measurement import Measurement
from fdgsec.runtime.errors import MissingResourceError, unknown_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

ANSWERS = "answers"
"""The figure that every report has: a bar per question."""


@dataclass(frozen=True, kw_only=True, repr=False)
class AttackPart(AttackResult):
    """One attack of a report: its rows, its verdict, its controls and its figures."""

    @classmethod
    def of(cls, result: AttackResult) -> "AttackPart":
        """The same attack with what a reader asks of it."""
        return cls(**{spec.name: getattr(result, spec.name) for spec in fields(AttackResult)})

    @property
    def finding(self) -> Finding | None:
        """The row that stands for the attack, chosen by name before it was measured; None where no row is judged."""
        return finding_of(self)

    @property
    def verdict(self) -> str:
        """The verdict of that row; without one "not applicable", "could not run", "failed" or "no measurement that is
        judged"."""
        if self.could_not_run:
            return "could not run"
        if self.status != "done":
            return "not applicable" if self.status == "skipped" else "failed"
        found = self.finding
        return "no measurement that is judged" if found is None else found.verdict

    @property
    def rows(self) -> Sequence[Measurement]:
        """Every measurement."""
        return self.measurements

    def to_frame(self) -> "DataFrame":
        """The rows as a table; see `AttackReport.to_frame`."""
        return _frame([(self, row) for row in self.measurements])

    def plot(self, figure: str, *, ax: "Axes | None" = None, domain: str | None = None) -> "Axes":
        """Draw one of the attack's figures; see `AttackReport.plot`."""
        found = {one.name: one for one in self.figures}
        if figure not in found:
            raise unknown_name("figure", figure, found)
        axis = _axes() if ax is None else ax
        plot_figure(axis, found[figure], domain=domain)
        return axis

    def __repr__(self) -> str:
        return f"<{self.name}: {self.verdict}; {len(self.measurements)} rows>"

    def _repr_html_(self) -> str:
        rows = [] if (found := self.finding) is None else [_cells(self.name, self.name, found)]
        said = f"{self.name}: {self.verdict}" + (f". {self.reason}" if self.reason else "")
        return page("notebook.html", title=self.name, sentence=said, rows=rows, notes=[controls_of(self)])


@dataclass(frozen=True, kw_only=True, repr=False)
class AttackReport(schema.AttackReport):
    """The report of one run: `report["membership"]` is one attack, `report.sentence` the answer.

    Iterating gives the names of the attacks."""

    attacks: Sequence[AttackPart]

    @classmethod
    def of(cls, report: schema.AttackReport) -> "AttackReport":
        """The same report with what a reader asks of it."""
        values = {spec.name: getattr(report, spec.name) for spec in fields(schema.AttackReport)}
        return cls(**{**values, "attacks": [AttackPart.of(result) for result in report.attacks]})

    @classmethod
    def load(cls, path: str | Path) -> "AttackReport":
        """Read the report in a run's folder, or a report.json, with the pictures that lie beside it.

        Raises UsageError where there is none, or one that this version of fdgsec would not write; DataError where the
        folder's SHA256SUMS does not hold."""
        return cls.of(checked_report(Path(path)))

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """The JSON Schema (draft 2020-12) of report.json, which docs/report.schema.json publishes."""
        return report_schema()

    @property
    def findings(self) -> Findings:
        """The sentence, an answer for each question, and what was not tested."""
        return findings_of(self)

    @property
    def sentence(self) -> str:
        """What the report says, in one sentence."""
        return self.findings.sentence

    def __iter__(self) -> Iterator[str]:
        return (result.name for result in self.attacks)

    def __contains__(self, name: object) -> bool:
        return any(result.name == name for result in self.attacks)

    def __getitem__(self, name: str) -> AttackPart:
        """One attack by its name. Raises KeyError with the nearest name and all."""
        for result in self.attacks:
            if result.name == name:
                return result
        raise KeyError(str(unknown_name("attack of this report", str(name), self)))

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def to_frame(self) -> "DataFrame":
        """Every measurement as a row of a pandas table.

        The columns are those of measurements.csv, and one for each entry of the slices (`slice.domain`, ...). Raises
        MissingResourceError without pandas."""
        return _frame(list(self.rows()))

    def plot(
        self, figure: str = ANSWERS, *, ax: "Axes | None" = None, attack: str | None = None, domain: str | None = None
    ) -> "Axes":
        """Draw a figure on `ax`, or on new axes, and return these.

        "answers" has a bar per question; others are the figures of attacks, as "roc" and "auc-by-n" of membership,
        whose lines are labeled and can be restyled, and pictures as they are. `attack` says of which attack, where
        several have a figure of that name, and `domain` draws the lines of one domain. Raises UsageError for a figure,
        an attack or a domain that the report does not have."""
        if figure == ANSWERS:
            axis = _axes() if ax is None else ax
            plot_answers(axis, self.findings)
            return axis
        asked = [result for result in self.attacks if attack in (None, result.name)]
        if attack is not None and not asked:
            raise unknown_name("attack of this report", attack, self)
        for result in asked:
            if any(one.name == figure for one in result.figures):
                return result.plot(figure, ax=ax, domain=domain)
        raise unknown_name("figure", figure, [ANSWERS, *dict.fromkeys(one.name for r in asked for one in r.figures)])

    def save(self, folder: str | Path) -> Path:
        """Write report.json, report.html, measurements.csv and the pictures to a folder, and return it.

        A folder that `save` wrote is replaced. Raises UsageError for one that holds anything else: a run's folder has
        its transcript too."""
        path = place_of(folder)
        check_replaceable(path, "report")
        with new_folder(path, "report") as draft:
            for name, content in report_files(self).items():
                (draft / name).write_bytes(content)
        return path

    def __repr__(self) -> str:
        rows = sum(len(result.measurements) for result in self.attacks)
        return f"<AttackReport: {len(self.attacks)} attacks, {rows:,} rows. {self.sentence}>"

    def _repr_html_(self) -> str:
        found = self.findings
        rows = [
            _cells(answer.asks, "" if answer.lead is None else answer.lead.attack, answer.lead, answer.verdict)
            for answer in found.answers
        ]
        notes = [f"Not tested: {'; '.join(found.untested)}."] if found.untested else []
        return page(
            "notebook.html", title="fdgsec", sentence=found.sentence, rows=rows if self.attacks else [], notes=notes
        )


def report_files(
    report: schema.AttackReport,
    *,
    settings: Mapping[str, object] | None = None,
    points: Sequence[Mapping[str, float]] = (),
) -> Mapping[str, bytes]:
    """The files of a report by name: the document, the page, the table and the pictures."""
    pictures = {
        f"{result.name}-{figure.name}.png": figure.png
        for result in report.attacks for figure in result.figures if figure.png is not None
    }  # fmt: skip
    return {
        "report.json": report.json().encode(), "measurements.csv": report.csv().encode(),
        "report.html": render(report, settings=settings, points=points).encode(), **pictures,
    }  # fmt: skip


def _cells(what: str, attack: str, finding: Finding | None, verdict: str = "") -> Mapping[str, str]:
    """A line of the table in a notebook."""
    if finding is None:
        return {"what": what, "attack": "", "value": "", "interval": "", "baseline": "", "verdict": verdict, "css": ""}
    row = finding.row
    return {
        "what": what, "attack": f"{attack}: {MEASURE_WORDS.get(row.name, row.name)}",
        "value": "" if row.value is None else rate(row.value),
        "interval": "" if row.low is None or row.high is None else f"[{short(row.low)}, {short(row.high)}]",
        "baseline": "" if row.chance is None else rate(row.chance), "verdict": verdict or finding.verdict,
        "css": css_of(verdict or finding.verdict),
    }  # fmt: skip


def _axes() -> "Axes":
    """Axes of a new figure, which a notebook shows."""
    from matplotlib import pyplot

    return pyplot.subplots(layout="constrained")[1]


def _frame(rows: Sequence[tuple[AttackResult, Measurement]]) -> "DataFrame":
    """The table of measurements. Raises MissingResourceError without pandas."""
    try:
        import pandas
    except ImportError as error:
        raise MissingResourceError('to_frame needs pandas: run pip install "fdgsec[pandas]".') from error
    keys = list(dict.fromkeys(key for _, row in rows for key in row.slice))
    lines = [(*cells(attack, row), *(row.slice.get(key) for key in keys)) for attack, row in rows]
    return pandas.DataFrame(lines, columns=[*COLUMNS, *(f"slice.{key}" for key in keys)])

"""A report on the terminal: the sentence, a row per question, what was not tested, the files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fdgsec.cli.tables import console, print_table
from fdgsec.experiments.report.findings import Answer, Findings, findings_of, majority_in_words
from fdgsec.experiments.report.schema import AttackReport, AttackResult
from fdgsec.experiments.report.stored import stored_path, stored_report
from fdgsec.experiments.report.text import controls_of, described, interval, number, promises
from fdgsec.experiments.report.words import MEASURE_WORDS, encoder_in_words, listed, rate, short
from fdgsec.runtime.progress import output

COLORS: Mapping[str, str] = {
    "leaks strongly": "bold red", "leaks": "red", "leaks slightly": "yellow", "unreliable": "bold magenta",
    "no leak shown": "green",
}  # fmt: skip
"""The color of a verdict; others are dim. A color never says what no word says."""


def print_report(report: AttackReport, *, as_json: bool, out: Path, every: bool = False) -> None:
    """Print a report: the document; or the sentence, alone with --quiet, with all rows if `every`."""
    if as_json:
        print(report.json(), end="")
        return
    found, terminal = findings_of(report), console()
    _line(terminal, found.sentence)
    if output().quiet:
        return
    if report.attacks:
        _print_answers(terminal, found, report.attacks)
    _print_context(terminal, report, found)
    if every:
        for result in report.attacks:
            if result.measurements:
                _print_rows(result)
    rows = sum(len(result.measurements) for result in report.attacks)
    more = f" ({rows:,} rows: --all, measurements.csv)" if rows and not every else ""
    _line(terminal, f"written to {out}: report.html, report.json, measurements.csv{more}")


def print_stored(run: Path, *, as_json: bool, every: bool = False) -> None:
    """Print a stored report as it was printed first. Raises UsageError without any, DataError where it was altered."""
    path, report = stored_path(run), stored_report(run)
    if as_json:
        print(path.read_text(), end="")
        return
    print_report(report, as_json=False, out=path.parent, every=every)


def _line(terminal: Console, text: str) -> None:
    terminal.print(text, highlight=False, markup=False)


def _print_answers(terminal: Console, found: Findings, results: Sequence[AttackResult]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("question", "attack: measurement", "value", "95% interval", "baseline", "verdict"):
        table.add_column(column, no_wrap=column in ("value", "95% interval", "baseline"))
    for answer in found.answers:
        table.add_row(answer.asks, *_answered(answer), Text(answer.verdict, style=COLORS.get(answer.size, "dim")))
    terminal.print(table)
    others = [f"{one.attack} {one.size}" for each in found.answers for one in each.findings if one is not each.lead]
    if others:
        _line(terminal, f"other attacks: {', '.join(others)}")
    _line(terminal, _controls(results))
    for one, several, names in (
        ("failed", "failed", found.failed),
        ("could not run", "could not run", found.stopped),
        ("does not apply", "do not apply", found.inapplicable),
    ):
        if names:
            many = f"attacks {several}" if len(names) > 1 else f"attack {one}"
            _line(terminal, f"{len(names)} {many}: {', '.join(names)}")


def _answered(answer: Answer) -> tuple[str, str, str, str]:
    lead = answer.lead
    if lead is None:
        return "", "", "", ""
    row = lead.row
    assert row.value is not None
    bounds = "" if row.low is None or row.high is None else f"[{short(row.low)}, {short(row.high)}]"
    baseline = "" if row.chance is None else rate(row.chance)
    return f"{lead.attack}: {MEASURE_WORDS.get(row.name, row.name)}", rate(row.value), bounds, baseline


def _controls(results: Sequence[AttackResult]) -> str:
    found: dict[str, list[bool]] = {}
    for result in results:
        for kind, controls in result.controls.items():
            found.setdefault(kind.replace("-", " "), []).extend(one.passed for one in controls)
    variants = [one.passed for result in results for one in result.variants]
    failed = [result.name for result in results if any(not c.passed for each in result.controls.values() for c in each)]
    passed = ", ".join(f"{kind} controls {sum(each)}/{len(each)} passed" for kind, each in found.items() if each)
    single = f"; single variants' controls {sum(variants)}/{len(variants)} passed" if variants else ""
    return (passed or "no controls were run") + (f"; FAILED for {listed(failed)}" if failed else "") + single


def _print_context(terminal: Console, report: AttackReport, found: Findings) -> None:
    if found.untested:
        _line(terminal, f"not tested: {'; '.join(found.untested)}")
    for line in promises(report):
        _line(terminal, line)
    accuracy = report.accuracy
    if accuracy is not None and report.attacks:
        value, low, high = (short(float(str(accuracy[key]))) for key in ("value", "low", "high"))
        _line(
            terminal,
            f"accuracy on the unseen domain {accuracy['unseen_domain']}: {value} [{low}, {high}], n = {accuracy['n']}"
            f"{majority_in_words(accuracy)}",
        )
    _line(
        terminal,
        f"target {report.target}, dataset {report.dataset['name']} ({report.dataset['images']} images), encoder "
        f"{encoder_in_words(report.encoder)}, seed {report.seed}, profile {report.profile}"
        f"{', run reused' if report.reused else ''}",
    )
    if report.environment.get("notes"):
        _line(terminal, f"notes: {report.environment['notes']}")


def _print_rows(result: AttackResult) -> None:
    rows = [
        (
            row.name, described(row), row.unavailable or number(row.value), interval(row), number(row.chance),
            str(row.n), row.verdict,
        )
        for row in result.measurements
    ]  # fmt: skip
    title = f"{result.name} by {result.adversary.get('name')}; {controls_of(result)}; {result.seconds:.1f} s"
    print_table(title, ("measurement", "slice", "value", "95% interval", "baseline", "n", "verdict"), rows)

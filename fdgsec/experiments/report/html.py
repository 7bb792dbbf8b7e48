"""report.html: one file, no network, every number from report.json; the answer first, then questions, then all rows."""

import base64
import io
import json
from collections.abc import Mapping, Sequence

from markupsafe import Markup
from PIL import Image

from fdgsec.experiments.report.bars import bar_of, curve, strip
from fdgsec.experiments.report.findings import Answer, Finding, Findings, finding_of, findings_of
from fdgsec.experiments.report.glossary import glossary
from fdgsec.experiments.report.headlines import HEADLINES
from fdgsec.experiments.report.pages import page, source
from fdgsec.experiments.report.remedies import Remedy, remedies
from fdgsec.experiments.report.schema import AttackReport, AttackResult, Figure
from fdgsec.experiments.report.text import controls_of, described, interval, number, promises, unread
from fdgsec.experiments.report.words import (
    ADVERSARY_WORDS,
    KIND_WORDS,
    KNOWLEDGE_WORDS,
    MEASURE_WORDS,
    behind_in_words,
    kinds_sent,
    listed,
    numbers,
    rate,
    short,
)
from fdgsec.federation.wire import parties
from fdgsec.metrics.measurement import Control, Measurement

COLUMNS = ("measurement", "slice", "value", "95% interval", "baseline", "n", "interval by", "verdict")
GLOSSARY_NOTE = Markup('; words are in the <a href="#glossary">glossary</a>')
LEAD_ROWS = 3
"""Rows that stand beside an attack's headline: it, and those of other domains and sizes."""
FIRST = 30
"""Messages that are listed one by one."""
QUALITY = 82
COUNTS = ("round", "steps", "clients")
"""What rounds record that is no curve."""
Row = Sequence[object]


def render(
    report: AttackReport,
    *,
    settings: Mapping[str, object] | None = None,
    points: Sequence[Mapping[str, float]] = (),
) -> str:
    """The page of a report; of one without attacks that of a training, with its `points` by round."""
    stated = "" if settings is None else json.dumps(settings, indent=1, default=str)
    if not report.attacks:
        return _training_page(report, stated, points)
    findings = findings_of(report)
    questions = [_question(answer, report.attacks) for answer in findings.answers]
    rows = [(result.name, *_cells(row)) for result in report.attacks for row in result.measurements]
    return page(
        "report.html", title=_title(report), contents=_contents(findings), report=report, findings=findings,
        adversary=_adversary(report), family=sum(row.judged for each in report.attacks for row in each.measurements),
        leads=[_bar(answer.asks, answer.lead, answer.verdict) for answer in findings.answers], questions=questions,
        sent=_sent(report), unread=unread(report), promises=promises(report), accuracy=_accuracy(report),
        assumptions=report.guarantees[0]["assumptions"] if report.guarantees else (),
        controls=_controls(report.attacks), columns=COLUMNS, all_columns=("attack", *COLUMNS), rows=rows,
        glossary_note=GLOSSARY_NOTE, script=Markup(source("rows.js")),
        remedies=[_remedy(one) for one in remedies(report, settings)],
        messages=_messages(report), first_messages=_first_messages(report), facts=_facts(report), settings=stated,
        glossary=glossary(report),
    )  # fmt: skip


def _remedy(one: Remedy) -> Row:
    if one.refused:
        return one.defense, f"refused by this method: {one.refused}", ""
    return one.defense, one.does, one.left or "not measured"


def _title(report: AttackReport) -> str:
    return f"{report.target} on {report.dataset['name']}{behind_in_words(report)}"


def _contents(findings: Findings) -> list[tuple[str, str]]:
    named = [(f"question-{answer.question}", answer.asks) for answer in findings.answers]
    return [
        ("threat", "Threat model"), *([("remedies", "What to switch on")] if findings.yes else []),
        ("untested", "Not tested"), *named, ("rows", "All measurements"), ("sent", "Messages"),
        ("made", "How this was made"), ("glossary", "Glossary"),
    ]  # fmt: skip


def css_of(verdict: str) -> str:
    """The class of a verdict: leaks, calm or open."""
    return "leaks" if verdict.startswith("leaks") else "calm" if verdict.startswith("no leak shown") else "open"


def _bar(what: str, finding: Finding | None, verdict: str) -> Mapping[str, object]:
    if finding is None:
        return {
            "what": what, "attack": "", "strip": None, "note": "", "verdict": verdict, "css": "open", "numbers": "",
        }  # fmt: skip
    row, css = finding.row, css_of(verdict)
    return {
        "what": what, "attack": f"{finding.attack}, {MEASURE_WORDS.get(row.name, row.name)}",
        "strip": bar_of(row, css), "note": "not on the axis from 0 to 1", "verdict": verdict, "css": css,
        "numbers": numbers(row),
    }  # fmt: skip


def _question(answer: Answer, results: Sequence[AttackResult]) -> Mapping[str, object]:
    by_name = {result.name: result for result in results}
    order = [name for name, headline in HEADLINES.items() if headline.question == answer.question]
    others = [name for name in by_name if name not in HEADLINES and answer.question == "other"]
    done = [by_name[name] for name in (*order, *others) if name in by_name and by_name[name].status == "done"]
    lead = answer.lead
    return {
        "anchor": f"question-{answer.question}", "asks": answer.asks, "verdict": answer.verdict,
        "css": css_of(answer.verdict), "says": lead.phrase if lead is not None and lead.holds else "",
        "bars": [_bar(one.attack, one, one.verdict) for one in answer.findings],
        "attacks": [_attack(result) for result in done],
    }  # fmt: skip


def _counted(found: Finding) -> str:
    """How many of the attack's rows are flagged, and how many leave open whether anything leaks."""
    left_open = found.alike_open + found.unlike_open + found.worse + found.row.worse_than_chance
    more = f", {left_open} not decided" if left_open else ""
    return f"{found.flagged} of {found.judged} judged rows are flagged{more}."


def _attack(result: AttackResult) -> Mapping[str, object]:
    found = finding_of(result)
    shown = list(result.measurements[:LEAD_ROWS])
    if found is not None:
        shown = [found.row, *(row for row in result.measurements if found.alike_to(row) and row is not found.row)]
    controls = [
        (kind, c.measurement.name, described(c.measurement), _value(c.measurement), c.expected, _passed(c))
        for kind, each in [*result.controls.items(), ("single variant", result.variants)] for c in each
    ]  # fmt: skip
    return {
        "name": result.name, "verdict": "no measurement that is judged" if found is None else found.verdict,
        "css": "open" if found is None else css_of(found.verdict),
        "says": found.phrase if found is not None and found.holds else "",
        "flagged": "" if found is None else _counted(found),
        "seconds": result.seconds, "rows": [_cells(row) for row in shown[:LEAD_ROWS]],
        "figures": [_figure(one) for one in result.figures],
        "controls": controls, "controls_summary": controls_of(result) if controls else "",
    }  # fmt: skip


def _figure(one: Figure) -> Mapping[str, str]:
    kind = "plot" if one.data else "pictures"  # in the dark, plots are inverted
    return {"name": one.name, "title": one.title, "caption": one.caption, "src": _embedded(one), "kind": kind}


def _passed(control: Control) -> str:
    return "yes" if control.passed else "NO"


def _value(row: Measurement) -> str:
    return row.unavailable or number(row.value)


def _cells(row: Measurement) -> Row:
    measured = " (measured)" if row.chance_kind == "measured" and row.chance is not None else ""
    return (
        row.name, described(row), _value(row), interval(row), number(row.chance) + measured, f"{row.n:,}", row.method,
        row.verdict,
    )  # fmt: skip


def _embedded(figure: Figure) -> str:
    """The figure's picture as a data address; empty without one."""
    return "" if figure.png is None else webp(figure.png)


def webp(png: bytes) -> str:
    """A picture as a data address: WebP, a tenth of the PNG that lies beside the page."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").save(buffer, "WEBP", quality=QUALITY, method=4)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()


def _adversary(report: AttackReport) -> Mapping[str, str]:
    found = report.attacks[0].adversary
    name, knows = str(found.get("name", "")), found.get("knows", ())
    assert isinstance(knows, Sequence)
    sees = "every message between all parties" if found.get("taps") == "all" else "every message to and from it"
    return {
        "who": ADVERSARY_WORDS.get(name, f"the adversary {name}"), "sees": sees,
        "knows": listed([KNOWLEDGE_WORDS.get(str(each), str(each)) for each in knows]) or "nothing else",
    }  # fmt: skip


def _sent(report: AttackReport) -> str:
    kinds = [f"{KIND_WORDS.get(kind, kind)} ({kind})" for kind in kinds_sent(report)]
    return listed(kinds) or "nothing"


def _accuracy(report: AttackReport) -> str:
    found = report.accuracy
    if found is None:
        return ""
    value, low, high = (short(float(str(found[key]))) for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}] on the unseen domain {found['unseen_domain']}, n = {found['n']}"


def _controls(results: Sequence[AttackResult]) -> str:
    every = [control for result in results for each in result.controls.values() for control in each]
    failed = [result.name for result in results if any(not c.passed for each in result.controls.values() for c in each)]
    passed = f"{sum(control.passed for control in every)} of {len(every)} passed"
    variants = [control.passed for result in results for control in result.variants]
    single = f"; of single variants {sum(variants)} of {len(variants)} passed" if variants else ""
    return passed + (f"; failed: {listed(failed)}" if failed else "") + single


def _whole(number: object) -> int:
    """A count, which JSON may write as 5 or 5.0."""
    return int(float(str(number)))


def _messages(report: AttackReport) -> list[Row]:
    counts: dict[tuple[str, ...], list[int]] = {}
    for row in report.artifacts:
        key = (str(row["kind"]), str(row["stage"]), parties(str(row["sender"])), parties(str(row["receiver"])))
        entry = counts.setdefault(key, [0, 0])
        entry[0], entry[1] = entry[0] + 1, entry[1] + _whole(row["bytes"])
    found: list[Row] = [(*key, f"{count:,}", f"{size:,}") for key, (count, size) in counts.items()]
    models = [
        (
            *(row.get(name, "") for name in ("kind", "stage", "sender", "receiver")),
            f"{_whole(row['messages']):,}",
            f"{_whole(row['bytes']):,}",
        )
        for row in report.model_traffic
    ]
    return [*found, *models]


def _first_messages(report: AttackReport) -> list[Row]:
    return [
        (row["round"], row["stage"], row["sender"], row["receiver"], row["kind"], row["bytes"], str(row["sha256"])[:16])
        for row in report.artifacts[:FIRST]
    ]


def _facts(report: AttackReport) -> list[tuple[str, str]]:
    roles = report.dataset.get("roles", {})
    assert isinstance(roles, Mapping)
    counted = "; ".join(f"{role}: {', '.join(f'{k} {n}' for k, n in counts.items())}" for role, counts in roles.items())
    known = {
        "target": report.target, "method": report.method, "preset": report.preset or "none",
        "dataset": f"{report.dataset['name']}, {report.dataset['images']} images", "images per role": counted,
        "encoder": report.encoder, "backbone": report.backbone or "none", "seed": report.seed,
        "profile": report.profile, "run reused": "yes" if report.reused else "no",
        "manifest sha256": report.dataset.get("manifest_sha256", ""), "transcript sha256": report.transcript_sha256,
        **report.environment, "seconds": f"{report.seconds:.1f}",
    }  # fmt: skip
    return [(str(name), str(value)) for name, value in known.items() if value not in ("", None)]


def _training_page(report: AttackReport, settings: str, points: Sequence[Mapping[str, float]]) -> str:
    findings = findings_of(report)
    curves = [(name, drawn, _range(points, name)) for name in _curves(points) if (drawn := curve(points, name))]
    title = f"{report.method} trained on {report.dataset['name']}{behind_in_words(report)}"
    return page(
        "training.html", title=title, report=report,
        contents=[("accuracy", "Accuracy"), ("curve", "Curves"), ("guarantee", "Guarantee"), ("traffic", "Traffic"),
                  ("made", "How this was made")],
        findings=findings, scores=_scores(report), curves=curves, promises=promises(report),
        assumptions=report.guarantees[0]["assumptions"] if report.guarantees else (), messages=_messages(report),
        facts=_facts(report), settings=settings, constant=_constant(report), steps=_steps(report),
    )  # fmt: skip


def _constant(report: AttackReport) -> str:
    """The answer at which bars of accuracies start; reports of earlier versions have no shares of classes."""
    if report.accuracy is not None and "majority_share" in report.accuracy:
        return "always naming the most frequent class of these images"
    return f"guessing a class ({rate(report.guessing)})"


def _steps(report: AttackReport) -> str:
    """How many optimizer steps led to the model, in words; empty where clients did not report them."""
    steps = None if report.accuracy is None else report.accuracy.get("steps")
    if not isinstance(steps, Mapping):
        return ""
    return f"Optimizer steps per client and round: {steps['per_client_and_round']:,.4g}; in all: {steps['total']:,.0f}"


def _curves(points: Sequence[Mapping[str, float]]) -> list[str]:
    return [name for name in dict.fromkeys(key for point in points for key in point) if name not in COUNTS]


def _range(points: Sequence[Mapping[str, float]], name: str) -> str:
    values = [point[name] for point in points if name in point]
    return f"{name.replace('_', ' ')}: from {number(values[0])} to {number(values[-1])} in {len(values)} rounds"


def _scores(report: AttackReport) -> list[Mapping[str, object]]:
    """Each accuracy of a training with its bar, the unseen domain first; then AUC and F1."""
    found = report.accuracy
    if found is None:
        return []
    per_domain, second, adapted = found.get("per_domain", {}), found.get("validation_domain"), found.get("adapted")
    assert isinstance(per_domain, Mapping)
    named: list[tuple[str, str, object]] = [(f"{found['unseen_domain']}", "unseen domain", found)]
    named += [(f"{found['unseen_domain']}", "after test-time adaptation", adapted)] if adapted else []
    named += [(str(second["domain"]), "second unseen domain", second)] if isinstance(second, Mapping) else []
    named += [(str(domain), "clients' validation images", score) for domain, score in per_domain.items()]
    bars = [
        _score(name, what, score, float(score.get("majority_share", report.guessing)))
        for name, what, score in named
        if isinstance(score, Mapping)
    ]
    for key, baseline in (("auc", 0.5), ("f1", None)):
        if isinstance(score := found.get(key), Mapping):
            bars.append(_score(str(found["unseen_domain"]), f"weighted {key.upper()}", score, baseline))
    return bars


def _score(
    name: str, what: str, score: Mapping[str, object], baseline: float | None
) -> Mapping[str, object]:  # a bar as _bar makes it
    value, low, high = (None if score.get(key) is None else float(str(score[key])) for key in ("value", "low", "high"))
    assert value is not None
    bounds = "" if low is None or high is None else f" [{short(low)}, {short(high)}]"
    css = "calm" if low is not None and baseline is not None and low > baseline else "open"
    return {
        "what": name, "attack": what, "strip": strip(value, low=low, high=high, baseline=baseline, css=css),
        "note": "", "verdict": f"{rate(value)}{bounds}", "css": "", "numbers": f"n = {score.get('n', '')}",
    }  # fmt: skip

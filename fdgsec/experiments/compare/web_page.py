"""The page of a comparison: what does not compare first, then a table of questions by run for each group of runs."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fdgsec.experiments.report.bars import bar_in_words
from fdgsec.experiments.report.findings import PROCEDURAL
from fdgsec.experiments.report.glossary import meaning
from fdgsec.experiments.report.html import css_of
from fdgsec.experiments.report.pages import page as filled
from fdgsec.experiments.report.text import number
from fdgsec.experiments.report.words import MEASURE_WORDS, listed, rate, short

Row = Mapping[str, Any]
SHORT_ASKS: Mapping[str, str] = {
    "who": "whose data it is", "what": "what is in the data", "look": "what it looks like",
    "harm": "what harm a client can do", "other": "other attacks",
}  # fmt: skip
FAILED = "failed"
"""The verdict of a question whose attacks all ended with an error."""


def page(document: Row) -> str:
    """A self-contained page of comparison.json."""
    runs, groups = document["runs"], document["groups"]
    sections = [_group(document, place, group) for place, group in enumerate(groups, 1)]
    return filled(
        "comparison.html", title=f"Comparison of {len(runs)} runs",
        contents=[
            ("differs", "What differs"), ("sent", "What was sent"),
            *((section["anchor"], section["title"]) for section in sections), ("made", "How this was made"),
            ("glossary", "Glossary"),
        ],
        sentence=sentence(document), grouping=grouping(document), document=document, sections=sections,
        labels=[run["label"] for run in runs], settings=settings_rows(document),
        sent=[_sent(run) for run in runs], made=_made(runs),
        ended=[(row["name"], *row["values"]) for row in document["attacks"]], glossary=_glossary(document),
    ) + "\n"  # fmt: skip


def settings_rows(document: Row) -> list[tuple[str, ...]]:
    """The settings that differ, with every run's value as text."""
    return [(row["name"], *(_as_text(value) for value in row["values"])) for row in document["settings"]]


def _as_text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_as_text, value)) or "none"
    return "none" if value in (None, "", {}) else str(value)


def sentence(document: Row) -> str:
    """In how many runs each question is answered by a flagged measurement, or by none because attacks failed; of
    trainings the accuracies."""
    runs = document["runs"]
    said = []
    for row in document["questions"]:
        if part := _counted(row, [run["label"] for run in runs]):
            said.append(f"{SHORT_ASKS[row['question']]}: {part}")
    scores = [row for row in document["accuracy"] if re.fullmatch(r"accuracy on .* \(unseen\)", row["score"])]
    for row in scores if not said else ():
        parts = [
            f"{runs[run]['label']} {rate(value['value'])}{_bounds(value)}"
            for run, value in zip(row["runs"], row["values"], strict=True) if value is not None
        ]  # fmt: skip
        said.append(f"{row['score']}: {listed(parts)}")
    text = "; ".join(said) or "no attack measured anything, and no accuracy was measured"
    names = list(dict.fromkeys(str(run["dataset"]) for run in runs))
    drawn = [name for name in names if name in PROCEDURAL]
    if drawn:
        also = "" if drawn == names else f" (runs on {listed([name for name in names if name not in drawn])} are not)"
        text = f"mechanics only, as {listed(drawn)} is procedural{also}: {text}"
    return f"{text[0].upper()}{text[1:]}."


def _counted(question: Row, labels: Sequence[str]) -> str:
    """In how many of the runs whose attacks were to answer a question one is flagged, and where all of them failed."""
    tried = [
        (label, answer)
        for label, answer in zip(labels, question["answers"], strict=True)
        if answer["attack"] or answer["verdict"] == FAILED
    ]
    failed = [label for label, answer in tried if not answer["attack"]]
    flagged = [label for label, answer in tried if answer["flagged"]]
    if not tried:
        return ""
    if len(failed) == len(tried):
        return f"no answer, attacks failed in {len(failed)} of {len(labels)} runs"
    who = f" ({listed(flagged)})" if 0 < len(flagged) < len(tried) else ""
    return f"flagged in {len(flagged)} of {len(tried)} runs{who}" + (f", failed in {listed(failed)}" if failed else "")


def grouping(document: Row) -> str:
    """Which runs are comparable with which, in words; empty where all are."""
    if len(document["groups"]) < 2:
        return ""
    labels = [run["label"] for run in document["runs"]]
    together = [listed([labels[number] for number in group]) for group in document["groups"] if len(group) > 1]
    alone = [labels[group[0]] for group in document["groups"] if len(group) == 1]
    parts = [f"comparable with each other: {each}" for each in together]
    parts += [f"comparable with no other run: {listed(alone)}"] if alone else []
    return "; ".join(parts)


def _bounds(value: Row) -> str:
    return "" if value.get("low") is None else f" [{short(value['low'])}, {short(value['high'])}]"


def in_words(value: Row | None) -> str:
    """A number with interval and baseline: `.88 [.87, .89], baseline .50`; a dash for none."""
    if value is None:
        return "\u2013"
    if value["value"] is None:
        return f"unavailable: {value['unavailable']}"
    unit = f" {value['unit']}" if value.get("unit") == "dB" else ""
    baseline = "" if value.get("chance") is None else f", baseline {rate(value['chance'])}"
    return f"{rate(value['value'])}{unit}{_bounds(value)}{baseline}"


def row_name(row: Row) -> str:
    """Attack and measurement with the slice: `membership: AUC (domain photo)`."""
    where = ", ".join(f"{key} {said}" for key, said in row["slice"].items())
    return f"{row['attack']}: {MEASURE_WORDS.get(row['name'], row['name'])}" + (f" ({where})" if where else "")


def difference(row: Row, place: int) -> str:
    """`+0.40, intervals apart`; empty where nothing may be compared."""
    gap, overlap = row["differences"][place], row["overlap"][place]
    if gap is None:
        return ""
    return f"{gap:+.3g}" + {None: "", True: ", intervals overlap", False: ", intervals apart"}[overlap]


def _group(document: Row, place: int, group: Sequence[int]) -> Mapping[str, Any]:
    labels = [document["runs"][number]["label"] for number in group]
    headlines = [row for row in document["headlines"] if row["runs"] == group]
    measured = [row for row in document["measurements"] if row["runs"] == group]
    return {
        "anchor": f"group-{place}", "labels": labels, "alone": len(group) == 1,
        "title": "Questions by run" if len(document["groups"]) == 1 else labels[0] if len(group) == 1
        else f"{len(group)} comparable runs",
        "matrix": _matrix(document, group, headlines),
        "figures": [(row_name(row), _bars(row, labels)) for row in headlines if _drawn(row)],
        "accuracy": [(row["score"], *_cells(row)) for row in document["accuracy"] if row["runs"] == group],
        "unlike_training": next((row["unlike"] for row in document["accuracy"] if row["runs"] == group), ""),
        "rows": [(row_name(row) + _unlike(row), *_cells(row)) for row in measured],
        "left": [(label, document["alone"][number]) for label, number in zip(labels, group, strict=True)],
    }  # fmt: skip


def _unlike(row: Row) -> str:
    return f"; not like for like ({row['unlike']})" if row["unlike"] else ""


def _matrix(document: Row, group: Sequence[int], headlines: Sequence[Row]) -> list[list[object]]:
    """Per question a line of verdict words, then a line per attack, with every run's number."""
    lines: list[list[object]] = []
    for question in document["questions"]:
        answers = [question["answers"][number] for number in group]
        if not any(answer["attack"] for answer in answers):
            continue
        said = [{"words": a["size"], "css": css_of(a["verdict"]), "small": a["attack"]} for a in answers]
        lines.append([{"words": question["asks"], "css": "asked", "small": ""}, *said])
        lines += [
            [{"words": "", "css": "", "small": row_name(row) + _unlike(row)}, *map(_cell, *_columns(row))]
            for row in headlines if row["question"] == question["question"]
        ]  # fmt: skip
    return lines


def _columns(row: Row) -> tuple[list[Any], list[str], list[str]]:
    gaps = [difference(row, place) for place in range(len(row["values"]))]
    return row["values"], row["ended"], gaps


def _cell(value: Row | None, ended: str, gap: str) -> object:
    if value is None:
        return ended if ended != "done" else "no such row"
    small = "; ".join(filter(None, [value["verdict"], f"n = {value['n']:,}", gap]))
    return {"words": in_words(value), "css": css_of(value["verdict"]), "small": small}


def _drawn(row: Row) -> bool:
    """Whether a row has a figure: like for like, with numbers of two or more runs between 0 and 1."""
    known = [value for value in row["values"] if value is not None and value["value"] is not None]
    bounded = all(0 <= end <= 1 for value in known for end in (value["low"], value["high"]) if end is not None)
    return not row["unlike"] and bounded and len(known) > 1


def _bars(row: Row, labels: Sequence[str]) -> list[Mapping[str, object]]:
    found = []
    for label, value, ended in zip(labels, row["values"], row["ended"], strict=True):
        if value is None or value["value"] is None:
            why = ended if value is None else f"unavailable: {value['unavailable']}"
            found.append(bar_in_words(label, "", {"value": None}, css="open", said="", small="", note=why))
            continue
        css, said = css_of(value["verdict"]), value["verdict"]
        found.append(bar_in_words(label, f"n = {value['n']:,}", value, css=css, said=said, small=in_words(value)))
    return found


def _cells(row: Row) -> list[str]:
    gaps = [difference(row, place) for place in range(len(row["values"]))]
    words = [in_words(value) for value in row["values"]]
    return [said + (f" ({gap})" if gap else "") for said, gap in zip(words, gaps, strict=True)]


def _sent(run: Row) -> tuple[str, ...]:
    promised = "; ".join(run["promises"]) or "none"
    return run["label"], run["sent"], promised, run["sentence"]


def _made(runs: Sequence[Row]) -> list[tuple[str, ...]]:
    """A line for each fact, with its value in every run."""
    facts = {
        "target": [run["target"] for run in runs], "preset": [run["preset"] for run in runs],
        "dataset": [f"{run['dataset']}, {run['images']} images" for run in runs],
        "image size": [f"{run['image_size']} px" if run["image_size"] else "the dataset's own" for run in runs],
        **{name.replace("_", " "): [run[name] for run in runs] for name in ("unseen_domain", "encoder", "backbone")},
        **{name: [run[name] for run in runs] for name in ("adversary", "profile", "seed", "date")},
        "transcript": [run["transcript_sha256"][:16] for run in runs],
    }  # fmt: skip
    return [(name, *map(_as_text, values)) for name, values in facts.items()]


def _glossary(document: Row) -> Mapping[str, str]:
    names = dict.fromkeys(row["name"] for row in (*document["headlines"], *document["measurements"]))
    return {name: said for name in names if (said := meaning(name))}


def value_text(value: Row | None) -> str:
    """A number of a terminal's table: `0.900 [0.850, 0.950]`."""
    if value is None:
        return "-"
    if value["value"] is None:
        return "unavailable"
    bounds = "" if value.get("low") is None else f" [{number(value['low'])}, {number(value['high'])}]"
    return f"{number(value['value'])}{bounds}"

"""What attacks said, for who wants to read it: a table of guesses, and the pictures that were drawn."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from fdgsec.experiments.attack.loop import Outcome
from fdgsec.threats.adversary import Knowledge
from fdgsec.threats.attack import (
    Answer,
    Case,
    Labels,
    Membership,
    Prediction,
    Presence,
    Proportions,
    Ranking,
    Reconstructions,
)

COLUMNS = ("attack", "victim", "slice", "says", "row", "place", "guess", "score")
BEST = 5
"""Candidates that the table lists for each row."""
ACROSS = 8
"""Pictures side by side on a sheet."""


def guessed(outcomes: Sequence[Outcome], names: Mapping[str, str], knowledge: Knowledge) -> dict[str, bytes]:
    """Give guesses.csv, and a sheet of pictures per answer that drew some, by file name.

    `names` says what candidates are called, by the names under which attacks were shown them. Scores are distances for a
    ranking (less is liker), and whatever an attack orders members by (more is likelier)."""
    text, sheets = io.StringIO(), dict[str, bytes]()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for outcome in outcomes:
        for answer in outcome.answers:
            case = outcome.cases[answer.case]
            where = ";".join(f"{key}={value}" for key, value in {**case.slice, **answer.slice}.items())
            begin = outcome.result.name, case.victim, where, answer.kind
            if isinstance(answer, Reconstructions):
                name = f"pictures-{outcome.result.name}-{len(sheets)}.png"
                sheets[name] = _sheet(answer.images)
                table.writerow((*begin, "all", "", name, ""))
            for row in _rows(answer, case, names, knowledge):
                table.writerow((*begin, *row))
    return {"guesses.csv": text.getvalue().encode(), **sheets}


def _rows(
    answer: Answer, case: Case, names: Mapping[str, str], knowledge: Knowledge
) -> Iterator[tuple[object, object, object, object]]:
    """Row, place, guess and score of each line that an answer fills."""
    shown = [] if case.candidates is None else [names.get(name, name) for name in case.candidates.ids]
    if isinstance(answer, Ranking) and answer.of == "rows":
        for row, distances in enumerate(answer.distances):
            nearest = distances.argsort(stable=True)[:BEST]
            for place, candidate in enumerate(nearest.tolist(), 1):
                yield row, place, shown[candidate], f"{float(distances[candidate]):.6g}"
    elif isinstance(answer, Membership):
        for place, candidate in enumerate(answer.scores.argsort(descending=True, stable=True).tolist(), 1):
            yield "", place, shown[candidate], f"{float(answer.scores[candidate]):.6g}"
    elif isinstance(answer, Labels):
        known = knowledge.class_names if answer.of == "labels" else knowledge.domain_names
        for row, number in enumerate(answer.predicted.tolist()):
            yield row, 1, known[number], ""
    elif isinstance(answer, Proportions | Presence):
        known = knowledge.class_names if answer.of == "labels" else knowledge.domain_names
        values = answer.estimate if isinstance(answer, Proportions) else answer.scores
        for place, number in enumerate(values.argsort(descending=True, stable=True).tolist(), 1):
            yield "", place, known[number], f"{float(values[number]):.6g}"
    elif isinstance(answer, Prediction):
        yield "", "", answer.name, f"{answer.value:.6g}"


def _sheet(images: Tensor) -> bytes:
    """Images (R, 3, h, w) in [0, 1] in rows of eight, in their order, as PNG."""
    blank = torch.ones((-len(images)) % min(ACROSS, len(images)), *images.shape[1:])
    framed = functional.pad(torch.cat([images.detach().cpu().float(), blank]), (1, 1, 1, 1), value=1.0)
    lines = [torch.cat(list(part), dim=2) for part in framed.split(min(ACROSS, len(images)))]
    pixels = (torch.cat(lines, dim=1).clamp(0, 1) * 255).round().to(torch.uint8)
    buffer = io.BytesIO()
    Image.fromarray(np.asarray(pixels.permute(1, 2, 0).contiguous())).save(buffer, format="PNG")
    return buffer.getvalue()

"""Readable answers of attacks: a table of guesses, and contact sheets of the reconstructed images."""

import io
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from fdgsec.experiments.attack.attack_setting import Outcome
from fdgsec.experiments.report.presentation import Names, presentation_of
from fdgsec.runtime.csv_cells import csv_text
from fdgsec.threats.adversary import Knowledge

COLUMNS = ("attack", "victim", "slice", "says", "row", "place", "guess", "score")
ACROSS = 8
"""Number of images per row of a contact sheet."""


def guess_files(
    outcomes: Sequence[Outcome],
    names: Mapping[str, str],
    knowledge: Knowledge,
    *,
    clients: Mapping[str, str] | None = None,
    partners: Sequence[str] = (),
) -> dict[str, bytes]:
    """The contents of guesses.csv, and of one contact sheet per answer with images, by file name.

    `names` maps the blinded names of the candidates to their own, and `clients` those of clients to the user's;
    `partners` are the owners of second releases. Scores of a ranking are distances (smaller is closer); scores of
    membership are membership scores (larger is likelier). Names that a spreadsheet would compute begin with \'."""
    titles = clients or {}
    lines, sheets = list[tuple[object, ...]](), dict[str, bytes]()
    for outcome in outcomes:
        for answer in outcome.answers:
            case = outcome.cases[answer.case]
            where = ";".join(f"{key}={value}" for key, value in {**case.slice, **answer.slice}.items())
            begin = outcome.result.name, titles.get(case.victim, case.victim), where, answer.kind
            shown = presentation_of(type(answer))
            if shown.pictures is not None:
                name = f"pictures-{outcome.result.name}-{len(sheets)}.png"
                sheets[name] = _sheet(shown.pictures(answer))
                lines.append((*begin, "all", "", name, ""))
            if shown.tell is not None:
                candidates = [] if case.candidates is None else [names.get(name, name) for name in case.candidates.ids]
                called = Names(
                    candidates=candidates, classes=knowledge.class_names, domains=knowledge.domain_names,
                    clients=list(titles.values()), partners=partners,
                )  # fmt: skip
                lines.extend((*begin, *line) for line in shown.tell(answer, called))
    return {"guesses.csv": csv_text(COLUMNS, lines).encode(), **sheets}


def _sheet(images: Tensor) -> bytes:
    """A contact sheet of images (R, 3, h, w) in [0, 1], eight per row, as PNG."""
    blank = torch.ones((-len(images)) % min(ACROSS, len(images)), *images.shape[1:])
    framed = functional.pad(torch.cat([images.detach().cpu().float(), blank]), (1, 1, 1, 1), value=1.0)
    lines = [torch.cat(list(part), dim=2) for part in framed.split(min(ACROSS, len(images)))]
    pixels = (torch.cat(lines, dim=1).clamp(0, 1) * 255).round().to(torch.uint8)
    buffer = io.BytesIO()
    Image.fromarray(np.asarray(pixels.permute(1, 2, 0).contiguous())).save(buffer, format="PNG")
    return buffer.getvalue()

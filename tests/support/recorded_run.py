"""Finished runs to be attacked: small, of color statistics, and the pieces that tests look at."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import fdgsec
from fdgsec.experiments.attack_run.attack_finished_run import RecordedRequest, settings_for
from fdgsec.experiments.attack_run.read_finished_run import Recorded, read_record, reconstruct_run
from fdgsec.experiments.run_config import RunConfig
from fdgsec.runtime.checked_files import write_sums
from fdgsec.runtime.progress import NoProgress

SMALL: dict[str, Any] = {"per_domain": 210, "image_size": 16, "encoder": "pixels"}


def ran(out: Path, method: str = "ccst", *, rounds: int = 0, options: tuple[str, ...] = (), **settings: Any) -> Path:
    """A run of `fdgsec train`: by default an exchange of single styles, without training."""
    style = ("method.style=single",) if method == "ccst" and not options else options
    fdgsec.train(method, rounds=rounds, assignments=style, **{**SMALL, **settings}, out=out)
    return out


def again(
    run: Path, *, data_root: Path | None = None, adversary: str = "server", target: str | None = None
) -> Recorded:
    """The run made again, as an attack makes it."""
    record = read_record(run)
    config: RunConfig = settings_for(record, RecordedRequest(run=run, adversary=adversary, target=target))
    return reconstruct_run(record, config, data_root=data_root, progress=NoProgress())


def edited(run: Path, file: str, **changes: Any) -> None:
    """Write other values into one of a run's JSON files, and the hashes that the files then have."""
    document = json.loads((run / file).read_text())
    (run / file).write_text(json.dumps({**document, **changes}))
    write_sums(run)


def pictures(root: Path, *, domains: tuple[str, ...], each: int, twice: int) -> Path:
    """A folder dataset of noise, `each` images of two classes per domain, of which the first `twice` are there twice."""
    rng = np.random.default_rng(0)
    for domain in domains:
        for label in ("a", "b"):
            folder = root / domain / label
            folder.mkdir(parents=True)
            for number in range(each):
                # coarse blocks: their averages, by which copies are found, differ from image to image
                pixels = np.kron(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8), np.ones((4, 4, 1), dtype=np.uint8))
                image = Image.fromarray(pixels)
                image.save(folder / f"{number:03d}.png")
                if number < twice:
                    image.save(folder / f"{number:03d}-copy.png")
    return root

"""`fdgsec.record`, `record_mod` and `load_dataset`: what is attacked, from somebody else's loop or from disk."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from fdgsec.experiments.python_api.error_words import with_keywords
from fdgsec.experiments.python_api.given_values import path_of

if TYPE_CHECKING:
    from fdgsec.data.domains import DomainDataset
    from fdgsec.federation.engines.flower.record_mod import FlowerMod
    from fdgsec.federation.recording import RecordedWire
    from fdgsec.runtime.progress import ShowProgress


@contextmanager
def record(folder: str | Path | None = None) -> "Iterator[RecordedWire]":
    """Record what the parties of any federation send, for `attack_run` and `fdgsec attack --run`:

        with fdgsec.record("runs/wire") as wire:
            wire.send("style", tensor, sender="hospital A")

    Kinds are "style" (2C,), all channel means, then all stds, "image-styles" (R, 2C), "update" and "model" (state dicts
    or lists of arrays), "gradient", "prototypes" (classes, d), "spectra", "generator" and "scores". Parties have any
    names; the server is "server". A message is on the disk when `send` returns. An older recording in `folder` is
    replaced; without one, a new folder below runs/ is made, which `wire.folder` names. Raises UsageError for unknown
    kinds and for a folder that holds anything else, ArtifactError for wrong shapes and numbers that are not finite."""
    from fdgsec.federation.recording import record as recording

    with recording(Path(folder) if folder is not None else _new_place()) as wire:
        yield wire


def _new_place() -> Path:
    """A folder below runs/ that is not there yet, named after the time."""
    name = f"recording-{datetime.now():%Y-%m-%d-%H%M%S}"
    places = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(place for place in places if not place.exists())


def record_mod(folder: str | Path, *, kinds: Mapping[str, str] | None = None) -> "FlowerMod":
    """Make a mod for a Flower client app that records what its clients receive and send into `folder`:

        app = ClientApp(client_fn, mods=[fdgsec.record_mod("runs/wire")])

    `kinds` says of which kind the array records of a name are ({"bn_stats": "style"}); others are of the kind that they
    are named after, else the model on the way down and an update on the way up. All processes on one machine may write
    into one folder. Raises FlowerUnavailableError without the extra `flower`."""
    from fdgsec.federation.engines.flower.versions import require_flower

    require_flower(simulation=False)
    from fdgsec.federation.engines.flower.record_mod import recording_mod

    return recording_mod(Path(folder), kinds or {})


@with_keywords
def load_dataset(
    name: str = "shapes",
    *,
    data_root: str | Path | None = None,
    per_domain: int | None = None,
    image_size: int | None = None,
    seed: int = 0,
    progress: "ShowProgress" = "auto",
) -> "DomainDataset":
    """Read the images of a dataset (`fdgsec list datasets`) with their domains, labels and names.

    `images.pixels()` is (N, 3, H, W) uint8, `labels` and `domains` are (N,), with `class_names` and `domain_names`;
    `subset(positions)` and `of_domain(name)` select. "folder" reads `data_root`/<domain>/<class>/<image>."""
    from fdgsec.data.catalog import load_dataset as read
    from fdgsec.runtime.progress import progress_shown

    with progress_shown(progress) as shown:
        return read(
            name, data_root=path_of(data_root), per_domain=per_domain, image_size=image_size, seed=seed,
            progress=shown.update,
        )  # fmt: skip

"""Default folders of runs: a readable name, and a short hash of the settings, so that no run overwrites another."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

RUNS = Path("runs")


def default_folder(name: str, *settings: object) -> Path:
    """runs/NAME-HASH, with a hash of everything that was set: other settings have another folder, the same the same."""
    text = json.dumps([_plain(one) for one in settings], sort_keys=True, default=str)
    return RUNS / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def _plain(settings: Any) -> Any:  # settings of any kind
    document = getattr(settings, "document", None)
    if document is not None:
        return document()
    if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        return dataclasses.asdict(settings)
    return settings

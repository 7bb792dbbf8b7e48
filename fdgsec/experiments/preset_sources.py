"""Where a preset belongs and where its values come from: its table [experiment], and the sources of five papers.

`presets/sources/METHOD.toml` says of every value that a method's presets state what the paper has, where, and what the
authors' code has."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from fdgsec.experiments.run_config import build, load_preset, plain

TABLES = ("method", "with", "run")
"""The tables of a preset that hold values of its experiment; [attacks] are for attacks on it."""


@dataclass(frozen=True, kw_only=True)
class PresetExperiment:
    """What a preset is a setting of: `method`, and where a protocol has it, the `arm` of that table on `dataset`.

    `differs` names the settings that the protocol sets otherwise for all its arms ("method.weights"), `why` says why a
    preset belongs to no protocol."""

    method: str
    protocol: str = ""
    arm: str = ""
    dataset: str = ""
    differs: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Source:
    """The paper's value and the place (`where`) that has it, the value of the authors' code, and a `note`.

    A place without a value is one where the paper is ambiguous; None is a value that is not stated, or not known."""

    paper: Any = None
    where: str = ""
    code: Any = None
    note: str = ""


def preset_experiment(name: str) -> PresetExperiment | None:
    """The table [experiment] of a preset; None where it has none. Raises UsageError for an unknown or broken preset."""
    loaded = load_preset(name).get("experiment")
    return None if loaded is None else build(PresetExperiment, loaded, where=f"preset {name}: experiment")


def preset_values(name: str) -> dict[str, Any]:
    """Every value that a preset states, by its dotted name (method.plan.epochs), in the preset's order."""
    loaded = load_preset(name)
    return {key: value for table in TABLES for key, value in _flat(loaded.get(table, {}), table)}


def sources(method: str) -> dict[str, Source]:
    """The sources of a method's presets by dotted name; empty for a method of another paper."""
    file = resources.files("fdgsec.experiments").joinpath("presets", "sources", f"{method}.toml")
    if not file.is_file():
        return {}
    rows = tomllib.loads(file.read_text())
    return {key: build(Source, row, where=f"sources of {method}: {key}") for key, row in rows.items()}


def value_lines(name: str) -> list[str]:
    """A line for each value of a preset: ours, the paper's with its place, the code's, and a note."""
    experiment = preset_experiment(name)
    known = {} if experiment is None else sources(experiment.method)
    coded = any(source.code is not None for source in known.values())
    return [
        f"{key} = {written(value)}" + (f": {_origin(known[key], coded=coded)}" if key in known else "")
        for key, value in preset_values(name).items()
    ]


def deviations(name: str) -> dict[str, Source]:
    """The values of a preset that are not those of what it follows: the code for X-released, else the paper.

    Where that one is silent, the other counts; where both are, nothing differs."""
    experiment = preset_experiment(name)
    known = {} if experiment is None else sources(experiment.method)
    found = {}
    for key, value in preset_values(name).items():
        source = known.get(key, Source())
        order = (source.code, source.paper) if name.endswith("-released") else (source.paper, source.code)
        stated = [each for each in order if each is not None]
        if stated and stated[0] != value:
            found[key] = source
    return found


def written(value: Any) -> str:
    """Write a value as a preset has it: 3, 0.001, [0.8, 1.0], true, none, overall."""
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    return plain(value)


def _origin(source: Source, *, coded: bool) -> str:
    """The paper's value, the code's and the note, in words."""
    place = f" ({source.where})" if source.where else ""
    paper = f"paper {'not stated' if source.paper is None else written(source.paper)}{place}"
    silent = "not stated" if coded else "not released"
    code = f"code {silent if source.code is None else written(source.code)}"
    return "; ".join(filter(None, (paper, code, source.note)))


def _flat(table: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{where}.{key}")
        else:
            yield f"{where}.{key}", value

"""Where a preset belongs and where its values come from: its table [experiment], and the sources of five papers."""

from dataclasses import dataclass

from fdgsec.experiments.run_config import build, load_preset


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


def preset_experiment(name: str) -> PresetExperiment | None:
    """The table [experiment] of a preset; None where it has none. Raises UsageError for an unknown or broken preset."""
    loaded = load_preset(name).get("experiment")
    return None if loaded is None else build(PresetExperiment, loaded, where=f"preset {name}: experiment")

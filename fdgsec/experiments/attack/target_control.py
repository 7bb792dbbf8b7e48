"""The control through the target: each attack of a report on swatches that the same target releases, undefended.

A positive control plants information in what an attack reads, so that it passes whatever the target sends. Here images
whose classes, domains and members no honest reading can miss (fdgsec.data.swatches) pass through the target's own
`share` and `fit`, and the adversary sees what the target makes of them; only single steps are taken by fdgsec's trainer
(SINGLE_STEPS). An attack that finds nothing there does not read the target's releases: what it does not find in the
report's images is no evidence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fdgsec.experiments.report.multiplicity import adjusted
from fdgsec.experiments.report.schema import AttackResult
from fdgsec.experiments.run_config import RunConfig, merged
from fdgsec.experiments.setup.run_inputs import options_of
from fdgsec.federation.method import Method
from fdgsec.metrics.measurement import Control, Measurement

ROUNDS = 2
SIDE = 32
"""Pixels of a swatch's side where the run's images set none."""
OPTIONS: Mapping[str, Mapping[str, object]] = {
    "membership": {
        "sizes": (4,), "clients": 24, "simulated_sizes": (4,), "simulated_clients": 20, "shadows": 60, "row_size": 40,
        "cropped_clients": 1, "cropped_size": 8, "crops": 2,
    },
    "set-reconstruction": {"sizes": (8,), "clients": 20, "galleries": (2,), "held": (1.0,), "sums": (), "added": ()},
    "differencing": {"clients": 20, "size": 8},
    "linkage": {"clients": 40, "noise": (0.02,), "noise_in_sds": ()},
    "domain-inference": {"clients": 20, "records": 20},
    "property-inference": {"clients": 40, "sizes": (12,)},
    "inter-client": {"gallery": 200, "images": 100},
    "interpolation-leakage": {"clients": 4, "records": 8, "federations": 20, "simulations": 600, "kept": 150},
    "pool-exposure": {"sizes": (30, 120), "clients": 12, "gallery": 200},
    "style-inversion": {
        "losses": ("mse",), "priors": ("intra",), "auxiliary": (), "size": 16, "clients": 30, "holding": 4,
    },
    "optimization-inversion": {"restarts": 1, "steps": 100, "side": 32},
    "generator-leakage": {"candidates": 30, "references": 4, "largest": 40},
    "model-membership": {"candidates": 40, "references": 4},
    "gradient-inversion": {"records": (1,), "count": 4, "steps": 20},
    "poisoning": {"seeds": 4, "rounds": 1, "forgeries": ("update x10",)},
}  # fmt: skip
"""Options in place of the run's: few images are enough where all are easy to read."""
PLAN: Mapping[str, object] = {
    "steps": 30, "batch_size": 16, "learning_rate": 0.05, "optimizer": "sgd", "crop": None, "flip": 0.0,
}  # fmt: skip
"""The training plan of a method that has one, without augmentation, for every image should show in the model."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What an attack's control needs beyond the usual: settings, a plan, options, and training at all events."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, object] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)
    trains: bool = False


SETUPS: Mapping[str, Setup] = {
    "poisoning": Setup(plan={"steps": 20}, trains=True),
    # nothing but memory predicts a random label
    "model-membership": Setup(settings={"dataset": "swatches-random", "per_domain": 140}, plan={"steps": 180}),
    # clients of eight images lack some classes
    "property-inference": Setup(settings={"partition": "single-domain", "clients": 60}, plan={"steps": 3}),
    # fifteen clients whose domains are predicted; references need images for validation, too
    "generator-leakage": Setup(
        settings={"partition": "single-domain", "clients": 15, "per_domain": 600}, plan={"steps": 15}
    ),
}
"""What an attack needs that the usual control does not give it."""
LARGER: Mapping[str, Setup] = {
    "poisoning": Setup(plan={"steps": 60}, trains=True),
    "model-membership": Setup(  # two clients: the adversary's own model is half of the global one
        settings={
            "dataset": "swatches-random",
            "per_domain": 100,
            "partition": "dirichlet",
            "clients": 2,
            "rounds": 4,
        },
        plan={"steps": 360},
        options={"candidates": 150},
    ),
}
"""What a control is run again with where it fails: more training, fewer clients in a global model."""
USUAL = Setup()
SINGLE_STEPS = ("gradient-inversion",)
"""Attacks on single steps, which fdgsec's own trainer takes in place of the method's `fit`."""
TRAINING_PARTS = ("fit", "start", "training_set", "objective", "results")
EXPECTED = "a leak on swatches that is more than slight"
DESCRIPTIVE = "all rows of the attack on this target are descriptive"
FOUND = ("leaks", "leaks strongly")


def control_settings(
    config: RunConfig, attacks: Sequence[str], *, image_size: int = SIDE, setups: Mapping[str, Setup] = SETUPS
) -> list[RunConfig]:
    """The settings of the controls of `attacks`: the run's method and adversary on swatches, without its defenses."""
    usual = [name for name in attacks if name not in setups]
    config = replace(config, image_size=image_size)
    return [
        *([_settings(config, usual, USUAL)] if usual else []),
        *(_settings(config, [name], setups[name]) for name in attacks if name in setups),
    ]


def _settings(config: RunConfig, attacks: Sequence[str], setup: Setup) -> RunConfig:
    rounds = ROUNDS if config.rounds or setup.trains else 0
    training = {"plan": {**PLAN, **setup.plan}, "warm_up": 0} if rounds else {}
    known = options_of(config.method)
    common = replace(
        config, options=merged(config.options, {name: value for name, value in training.items() if name in known}),
        dataset="swatches", per_domain=240, per_class=None, auxiliary=None, target_domain=None, validation_domain=None,
        partition="domain", clients=None, allow_partial=False, backbone="tiny", pretrained=False,
        rounds=rounds, participation=1.0, profile="quick", defenses=(), attacks=tuple(attacks),
        attack_options={name: {**OPTIONS[name], **setup.options} for name in attacks if name in OPTIONS},
    )  # fmt: skip
    return replace(common, **setup.settings)


def single_steps_of_another(method: Method, attack: str) -> str:
    """Why an attack on single steps says nothing about `method`: it trains in its own way; else the empty string."""
    found = {name: getattr(type(method), name, None) for name in TRAINING_PARTS}
    parts = [name for name, part in found.items() if part and not part.__module__.startswith("fdgsec.")]
    if attack not in SINGLE_STEPS or not parts:
        return ""
    return f"single steps are taken by fdgsec's trainer, and this method has its own {' and '.join(parts)}"


def with_target_controls(results: Sequence[AttackResult], controls: Mapping[str, Control]) -> list[AttackResult]:
    """The results with their controls, by name; where one failed, rows without a leak are no evidence.

    An attack all of whose rows are descriptive needs none."""
    return [
        result if result.name not in controls else _with_control(result, controls[result.name]) for result in results
    ]


def _with_control(result: AttackResult, control: Control) -> AttackResult:
    said = control.measurement.unavailable or "attack finds no leak in swatches that pass through this target"
    rows = [row if control.passed else replace(row, unread=said.rstrip(".")) for row in result.measurements]
    return replace(result, target=control, measurements=rows)


def target_control(result: AttackResult) -> Control:
    """Pass an attack of the control's report where it finds a leak that is more than slight.

    Holm's correction is over this attack's rows alone."""
    own = [row for row in result.measurements if row.judged]
    if not own:
        gap = next((row.unavailable for row in result.measurements if row.unavailable), DESCRIPTIVE)
        return failed_control(result.reason or gap)
    rows = adjusted([replace(result, measurements=own)])[0].measurements
    best = max(rows, key=_strength)
    return Control(measurement=best, expected=EXPECTED, passed=best.verdict in FOUND)


def failed_control(reason: str) -> Control:
    """The control of an attack that could not run on the target's releases of swatches."""
    missing = Measurement(
        name="leak", value=None, low=None, high=None, chance=None, chance_kind="none", n=0, unavailable=reason
    )
    return Control(measurement=missing, expected=EXPECTED, passed=False)


def _strength(row: Measurement) -> tuple[int, float]:
    """By verdict, then by how far the whole interval lies beyond chance."""
    assert row.low is not None
    assert row.high is not None
    assert row.chance is not None
    beyond = row.low - row.chance if row.higher_is == "leak" else row.chance - row.high
    return FOUND.index(row.verdict) + 1 if row.verdict in FOUND else 0, beyond

"""What to switch on where something leaks: defenses by what is sent, what attacks still read behind them.

Figures are of PACS, and stand with their commands in docs/results.md and on the attacks' pages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from fdgsec.experiments.report.schema import AttackReport
from fdgsec.experiments.report.words import kinds_sent
from fdgsec.experiments.run_config import RunConfig, defense_of, made
from fdgsec.experiments.setup.defenses import defense_stack_of
from fdgsec.experiments.setup.run_inputs import method_of
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.registry import target_named


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """A defense as --defense takes it, what it does, and what is left to read behind it; empty where not measured.

    `refused` is the reason why the method does not take the defense, empty where it does."""

    defense: str
    does: str
    left: str = ""
    refused: str = ""


_STYLES = ("StyleStatistics", "StyleDistribution", "ImageStyles", "Amplitudes", "InterpolationStyle", "Prototypes")
_MODELS = ("ModelState", "GeneratorState", "HeadGradient")
REMEDIES: Sequence[tuple[tuple[str, ...], Remedy]] = (
    (_STYLES, Remedy(
        defense="private-styles:epsilon=8",
        does="clips each image's part and adds noise that is calibrated to (epsilon, delta)-differential privacy",
    )),
    (_STYLES, Remedy(
        defense="secure-aggregation", does="the server learns sums over clients, where the method needs no more",
        left="whoever holds candidates reads sums too: 30 of 30 sums of CCST's pooled styles (vgg16-hed), of 3 and of "
        "10 clients of 40 images each, named every image",
    )),
    (("ImageStyles", "Amplitudes"), Remedy(
        defense="k-anonymous:k=10", does="sends means over at least k images in place of single ones; no epsilon",
    )),
    (_MODELS, Remedy(
        defense="dp-sgd:epsilon=8", does="clips and noises each image's gradient in training",
    )),
    (_MODELS, Remedy(
        defense="dp-fedavg:epsilon=8", does="clips and noises each client's update; (epsilon, delta) per client",
    )),
)  # fmt: skip
"""Defenses by the kinds of artifacts that they act on."""

_NOISE = "noise on styles as in FISC (no epsilon)"
SWEPT: Mapping[str, Remedy] = {
    "ccst-overall": Remedy(defense="style-noise:p=0.1,scale=1", does=_NOISE),
    "ccst-single": Remedy(defense="style-noise:p=0.1,scale=20", does=_NOISE),
    "fisc": Remedy(defense="style-noise:p=0.1,scale=100", does=_NOISE),
    "stablefdg": Remedy(defense="style-noise:p=0.1,scale=500", does=_NOISE),
    "fedalign": Remedy(defense="style-noise:p=0.1,scale=1", does=_NOISE),
}  # fmt: skip
"""By target a size of noise at which sweeps on PACS left linkage under twice its baseline (docs/results.md), or, for
CCST's pooled style, at which no list is exact."""

MEASURED: Mapping[tuple[str, str], str] = {
    ("ccst-overall", "private-styles:epsilon=8"): (
        "set-reconstruction: AUC .60 [.56, .63], baseline .50 (without it 1.00); membership: AUC .57 [.55, .59], "
        "baseline .50 (without it .999); linkage: top-1 rate .43 [.23, .63], baseline .10 (without it 1.00)"
    ),
    ("ccst-overall", "style-noise:p=0.1,scale=1"): (
        "set-reconstruction: AUC .60 [.56, .64], baseline .50 (without it 1.00); membership: AUC .59 [.58, .61], "
        "baseline .50 (without it .999); linkage: top-1 rate .90 [.59, .98], baseline .03 (without it 1.00)"
    ),
    ("ccst-single", "private-styles:epsilon=8"): (
        "reidentification: top-5 rate .02 [.01, .03], baseline .01 (without it 1.00); membership: AUC .55 [.51, "
        ".58], baseline .50 (without it 1.00); linkage: top-1 rate .10 [.02, .27], baseline .03 (without it .03)"
    ),
    ("ccst-single", "style-noise:p=0.1,scale=20"): (
        "reidentification: top-1 rate .02 [.02, .04], baseline .001 (without it 1.00); membership: AUC .62 [.58, "
        ".65], baseline .50 (without it 1.00); linkage: top-1 rate .07 [.01, .22], baseline .03 (without it .03)"
    ),
    ("stablefdg", "private-styles:epsilon=8"): (
        "set-reconstruction: precision .11 [.08, .30], baseline .05 (without it 1.00); membership: AUC .59 [.57, "
        ".61], baseline .50 (without it .91); linkage: median rank 2.00 [1, 3.00], baseline 5.50 (without it "
        "1.00)"
    ),
    ("stablefdg", "style-noise:p=0.1,scale=500"): (
        "set-reconstruction: exact lists 0 [0, .22], baseline <.001 (without it 1.00); membership: AUC .49 [.47, "
        ".52], baseline .50 (without it .91); linkage: top-1 rate 0 [0, .12], baseline .03 (without it 0)"
    ),
    ("fisc", "private-styles:epsilon=8"): (
        "set-reconstruction: AUC .60 [.56, .63], baseline .50 (without it 1.00); membership: AUC .57 [.55, .59], "
        "baseline .50 (without it .999); linkage: top-1 rate .43 [.23, .63], baseline .10 (without it 1.00)"
    ),
    ("fisc", "style-noise:p=0.1,scale=100"): (
        "set-reconstruction: exact lists 0 [0, .22], baseline <.001 (without it 1.00); membership: AUC .50 [.48, "
        ".53], baseline .50 (without it .76); linkage: top-1 rate .03 [.001, .17], baseline .03 (without it .03)"
    ),
    ("fedalign", "private-styles:epsilon=8"): (
        "reidentification: median rank 330.50 [302.00, 363.00], baseline 425.50 (without it 1.00); membership: "
        "AUC .49 [.47, .51], baseline .50 (without it 1.00); linkage: top-1 rate .10 [.02, .27], baseline .10 "
        "(without it 0)"
    ),
    ("fedalign", "style-noise:p=0.1,scale=1"): (
        "reidentification: top-1 rate .01 [.004, .02], baseline .001 (without it 1.00); membership: AUC .55 [.52,"
        " .57], baseline .50 (without it 1.00); linkage: top-1 rate .03 [.001, .17], baseline .10 (without it 0)"
    ),
}
"""What is left, by target and defense: the rows of `benchmarks/what_is_left.py`."""


def remedies(report: AttackReport, settings: Mapping[str, Any] | None = None) -> list[Remedy]:
    """The defenses that act on what the report's target sends, those that are switched on already left out, but for
    larger noise.

    Defenses that the run's method refuses come last, with the reason; `settings` are the run's, without which the
    target's own options are taken."""
    kinds = set(kinds_sent(report))
    found = [remedy for acted, remedy in REMEDIES if kinds & set(acted)]
    if report.target in SWEPT:
        found.append(SWEPT[report.target])
    config = _settings(report, settings)
    offered = [_of_target(one, report.target, config) for one in found if not _is_on(one.defense, report)]
    return sorted(offered, key=lambda one: bool(one.refused))


def _is_on(offered: str, report: AttackReport) -> bool:
    """Whether the run has a defense of that name already; noise that is smaller than the offered one does not count."""
    name = offered.partition(":")[0]
    mine = [one["options"] for one in report.defenses if one["name"] == name]
    if name != "style-noise":
        return bool(mine)
    return any(_scale(name, options) >= getattr(defense_of(offered), "scale", 0.0) for options in mine)


def _scale(name: str, options: Any) -> float:
    """How large the noise is that a report names; 0 where its options are none that this version takes."""
    try:
        defense = made("defenses", name, options, where="defense") if isinstance(options, Mapping) else None
    except UsageError:
        return 0.0
    return getattr(defense, "scale", 0.0)


def _of_target(remedy: Remedy, target: str, config: RunConfig | None) -> Remedy:
    left = MEASURED.get((target, remedy.defense), remedy.left)
    refused = "" if config is None else _refused(remedy.defense, config)
    return replace(remedy, left=left, refused=refused)


def _settings(report: AttackReport, settings: Mapping[str, Any] | None) -> RunConfig | None:
    """The run's settings without defenses; None where the target is not known here."""
    known = {spec.name for spec in fields(RunConfig)}
    try:
        if settings is not None:
            told = {name: value for name, value in settings.items() if name in known}
            return RunConfig.of({**told, "defenses": ()}, where="settings")
        target = target_named(report.target)
        _, _, local = report.method.partition("+")
        return RunConfig(method=target.method, options=target.options, local=local, target=report.target)
    except UsageError:
        return None


def _refused(defense: str, config: RunConfig) -> str:
    """Why a run with these settings does not take a defense; empty where it does."""
    alone = replace(config, defenses=(defense_of(defense),))
    try:
        defense_stack_of(alone, method_of(alone))
    except UsageError as error:
        return str(error)
    return ""

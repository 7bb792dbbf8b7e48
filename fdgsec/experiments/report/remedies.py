"""What to switch on where something leaks: defenses by what is sent, what attacks still read behind them, their price.

Figures are of PACS, and stand with their commands in docs/results.md and on the attacks' pages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from fdgsec.experiments.report.schema import AttackReport
from fdgsec.experiments.report.words import kinds_sent
from fdgsec.experiments.run_config import RunConfig, defense_of
from fdgsec.experiments.setup.defenses import defense_stack_of
from fdgsec.experiments.setup.run_inputs import method_of
from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.registry import target_named


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """A defense as --defense takes it, what it does, what is left to read behind it, and its price in accuracy.

    `left` and `price` are empty where they were not measured; `refused` is the reason why the method does not take
    the defense, empty where it does."""

    defense: str
    does: str
    left: str = ""
    price: str = ""
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
    "ccst-overall": Remedy(
        defense="style-noise:p=0.1,scale=1", does=_NOISE,
        left="0 of 45 lists of 40 among 80 candidates are exact, AUC .59 to .61 (without it 45 of 45)",
    ),
    "ccst-single": Remedy(defense="style-noise:p=0.1,scale=20", does=_NOISE),
    "fisc": Remedy(defense="style-noise:p=0.1,scale=100", does=_NOISE),
    "stablefdg": Remedy(defense="style-noise:p=0.1,scale=500", does=_NOISE),
    "fedalign": Remedy(defense="style-noise:p=0.1,scale=1", does=_NOISE),
}  # fmt: skip
"""By target a size of noise at which sweeps on PACS left linkage under twice its baseline (docs/results.md), or, for
CCST's pooled style, at which no list is exact."""

MEASURED: Mapping[tuple[str, str], tuple[str, str]] = {}
"""What is left and the price in accuracy, by target and defense."""


def remedies(report: AttackReport, settings: Mapping[str, Any] | None = None) -> list[Remedy]:
    """The defenses that act on what the report's target sends, those that are switched on already left out.

    Defenses that the run's method refuses come last, with the reason; `settings` are the run's, without which the
    target's own options are taken."""
    kinds = set(kinds_sent(report))
    on = {str(defense["name"]) for defense in report.defenses}
    found = [remedy for acted, remedy in REMEDIES if kinds & set(acted)]
    if report.target in SWEPT:
        found.append(SWEPT[report.target])
    config = _settings(report, settings)
    offered = [_of_target(one, report.target, config) for one in found if one.defense.partition(":")[0] not in on]
    return sorted(offered, key=lambda one: bool(one.refused))


def _of_target(remedy: Remedy, target: str, config: RunConfig | None) -> Remedy:
    left, price = MEASURED.get((target, remedy.defense), (remedy.left, remedy.price))
    refused = "" if config is None else _refused(remedy.defense, config)
    return replace(remedy, left=left, price=price, refused=refused)


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

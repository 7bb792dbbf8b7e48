"""What to switch on where something leaks: defenses by what is sent, with their price where a sweep has measured it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fdgsec.experiments.report.schema import AttackReport
from fdgsec.experiments.report.words import kinds_sent


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """A defense as --defense takes it, what it does, and its measured price; empty where none was measured."""

    defense: str
    does: str
    price: str = ""


def _price(bare: str, defended: str) -> str:
    return (
        f"accuracy {defended} with it and {bare} without on PACS (means of 3 seeds that differ by more, of models that "
        "have learned little), where linkage fell under twice its baseline; attacks are stronger today"
    )


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

SWEPT: Mapping[str, Remedy] = {
    "ccst-overall": Remedy(
        defense="style-noise:p=0.1,scale=5", does="noise on styles as in FISC (no epsilon)",
        price=_price(".363", ".420"),
    ),
    "ccst-single": Remedy(
        defense="style-noise:p=0.1,scale=20", does="noise on styles as in FISC (no epsilon)",
        price=_price(".435", ".226"),
    ),
    "fisc": Remedy(
        defense="style-noise:p=0.1,scale=100", does="noise on styles as in FISC (no epsilon)",
        price=_price(".255", ".303"),
    ),
    "stablefdg": Remedy(
        defense="style-noise:p=0.1,scale=500", does="noise on styles as in FISC (no epsilon)",
        price=_price(".257", ".230"),
    ),
    "fedalign": Remedy(
        defense="style-noise:p=0.1,scale=1", does="noise on styles as in FISC (no epsilon)",
        price=_price(".337", ".340"),
    ),
}  # fmt: skip
"""By target, from sweeps on PACS (docs/results.md): encoder mini (StableFDG: SqueezeNet), 3 seeds."""


def remedies(report: AttackReport) -> list[Remedy]:
    """The defenses that act on what the report's target sends, those that are switched on already left out."""
    kinds = set(kinds_sent(report))
    on = {str(defense["name"]) for defense in report.defenses}
    found = [remedy for acted, remedy in REMEDIES if kinds & set(acted)]
    if report.target in SWEPT:
        found.append(SWEPT[report.target])
    return [remedy for remedy in found if remedy.defense.partition(":")[0] not in on]

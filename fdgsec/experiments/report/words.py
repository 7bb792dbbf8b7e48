"""Words for reports: numbers as text, adversaries, what is sent."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.registry import resolve

if TYPE_CHECKING:
    from fdgsec.experiments.report.schema import AttackReport
    from fdgsec.metrics.measurement import Measurement

ADVERSARY_WORDS: Mapping[str, str] = {
    "server": "an honest-but-curious server",
    "client": "another client",
    "outsider": "an outsider who sees every message",
}
KNOWLEDGE_WORDS: Mapping[str, str] = {
    "encoder": "the public encoder",
    "transform": "the image transform",
    "class names": "the class names",
    "client sizes": "the number of images of each client",
    "victim domains": "the domain of each client",
    "auxiliary": "labeled auxiliary images of the same domains",
    "unseen": "images of the held-out domain",
    "own data": "its own training images",
}
KIND_WORDS: Mapping[str, str] = {
    "StyleStatistics": "one pooled style per client",
    "StyleDistribution": "the center and spread of each client's styles",
    "ImageStyles": "styles of single images",
    "Amplitudes": "amplitude spectra",
    "InterpolationStyle": "one published interpolation style",
    "StyleBank": "a bank of all styles",
    "Prototypes": "mean features of each class",
    "HeadGradient": "gradients of the classifier's head",
    "GeneratorState": "generators",
    "ModelState": "models",
    "Scores": "a few numbers (weights, metrics, scores)",
}
"""Kinds of artifacts in words."""
PLURALS: Mapping[str, str] = {
    "StyleStatistics": "pooled styles", "StyleDistribution": "style distributions",
    "InterpolationStyle": "interpolation styles", "StyleBank": "style banks", "Prototypes": "class prototypes",
    "HeadGradient": "head gradients",
}  # fmt: skip
MEASURE_WORDS: Mapping[str, str] = {
    "auc": "AUC", "exposed_auc": "AUC of exposed images", "exact_list": "exact lists", "top1": "top-1 rate",
    "top5": "top-5 rate",
    "balanced_accuracy": "balanced accuracy", "gallery_top1": "gallery top-1 rate", "psnr_gain": "PSNR gain",
    "relative_error": "relative error", "mae": "mean error", "honest_accuracy_drop": "accuracy drop",
    "ended": "share of runs ended and not refused",
    "exposed_fraction": "exposed share", "tpr_at_1pct_fpr": "TPR at 1% FPR", "tpr_at_01pct_fpr": "TPR at 0.1% FPR",
    "median_rank": "median rank",
}  # fmt: skip
"""Measurements in words; others go by their names."""

CONTROL_WORDS: Mapping[str, str] = {
    "B0": "mean auxiliary image", "B1": "random auxiliary image", "B2": "nearest auxiliary image",
    "B3": "unrelated reconstruction", "B4": "reconstruction of noise",
}  # fmt: skip
"""What a reconstruction is compared with, by its name in report.json (`over` in a slice)."""

FEW = 20
"""Cases of which a percentage would say more than they do."""


def encoder_in_words(name: str) -> str:
    """An encoder by its name; layers of a network that a method trains without the hash of its weights."""
    network, stage, *digest = [*name.split(":"), ""]
    return f"{network} up to {stage}" if stage.startswith("stage") and digest[0] else name


def kind_in_words(kind: str) -> str:
    """A kind of artifact as a plural: `styles of single images`; of a plug-in its name."""
    return PLURALS.get(kind, KIND_WORDS.get(kind, kind))


def short(value: float) -> str:
    """Two decimals without a leading zero, and more where they would read 0 or 1 of a value that is neither."""
    if value in (0.0, 1.0):
        return str(int(value))
    text = f"{value:.2f}"
    if float(text) in (0.0, 1.0):
        text = f"{value:.3f}"
    if float(text) in (0.0, 1.0):
        return f"{value:.1e}" if abs(value) < 0.5 else f"{'>' if value < 1 else '<'}{'.999' if value < 1 else '1.001'}"
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def rate(value: float) -> str:
    """As `short`, but 1.00 for 1, and <.001 for what is smaller and not 0."""
    return "1.00" if value == 1.0 else "<.001" if 0 < value < 0.0005 else short(value)


def percent(value: float | None) -> str:
    """A rate as a percentage, never rounded to 0% or 100%: 88%, 99.6%, 100%."""
    if value is None:
        return "unknown"
    whole = f"{100 * value:.0f}"
    if whole not in ("0", "100") or value in (0.0, 1.0):
        return f"{whole}%"
    return f"{math.floor(1000 * value) / 10:.1f}%" if value > 0.5 else f"{100 * value:.2g}%"


def share(row: "Measurement") -> str:
    """A rate with what it is of: 88% of 500, or as numbers where they are few: 2 of 3."""
    hits = (row.value or 0.0) * row.n
    whole = row.n < FEW and abs(hits - round(hits)) < 1e-6
    return f"{round(hits)} of {row.n}" if whole else f"{percent(row.value)} of {row.n:,}"


def numbers(row: "Measurement") -> str:
    """Value, interval and baseline: `.88 [.87, .89], baseline .50`."""
    if row.value is None:
        return f"unavailable: {row.unavailable}"
    unit = f" {row.unit}" if row.unit == "dB" else ""
    bounds = "" if row.low is None or row.high is None else f" [{short(row.low)}, {short(row.high)}]"
    baseline = "" if row.chance is None else f", baseline {rate(row.chance)}"
    return f"{rate(row.value)}{unit}{bounds}{baseline}"


def measured(row: "Measurement") -> str:
    """The measurement with its numbers: `AUC .88 [.87, .89], baseline .50`."""
    return f"{MEASURE_WORDS.get(row.name, row.name)} {numbers(row)}"


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, or `a, b and c`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def kinds_sent(report: "AttackReport") -> list[str]:
    """The kinds that clients send, in the order of their first message; models and scores last."""
    kinds = [str(row["kind"]) for row in report.artifacts if str(row["sender"]).startswith("client")]
    kinds += [str(row["kind"]) for row in report.artifacts if row["kind"] == "InterpolationStyle"]
    kinds += [str(row["kind"]) for row in report.model_traffic]
    return list(dict.fromkeys(kinds))


def released_words(report: "AttackReport") -> str:
    """What the target sends, in words: `one pooled style per client`; of what clients send, where their sum arrives,
    `the sum over clients of pooled styles`. Of models and numbers, a client has those alone that clients receive."""
    from fdgsec.federation.wire import CLIENTS, SERVER  # pages of words alone do without torch

    client = any(result.adversary.get("name") == "client" for result in report.attacks)
    reach = {str(row["kind"]) for row in report.model_traffic if row.get("receiver") != SERVER}
    unseen = {str(row["kind"]) for row in report.model_traffic} - reach if client else set()
    senders: dict[str, set[str]] = {}
    for row in report.artifacts:
        senders.setdefault(str(row["kind"]), set()).add(str(row["sender"]))
    said = [
        f"the sum over clients of {kind_in_words(kind)}" if CLIENTS in senders.get(kind, ()) else
        KIND_WORDS.get(kind, kind)
        for kind in kinds_sent(report) if kind not in unseen
    ]  # fmt: skip
    return listed(said) or "what it sends"


def behind_in_words(report: "AttackReport") -> str:
    """The defenses, as an ending: ` behind style-noise and quantize`; empty without any."""
    return behind([name for name in defense_names(report) if name not in idle_defenses(report)])


def defense_names(report: "AttackReport") -> list[str]:
    """The defenses by name, in order."""
    return [str(defense["name"]) for defense in report.defenses]


def idle_defenses(report: "AttackReport") -> list[str]:
    """The defenses without an effect: clients sent nothing of the kinds that they change."""
    return [
        name for name in defense_names(report) if (kinds := _changed_by(name)) and kinds.isdisjoint(kinds_sent(report))
    ]  # fmt: skip


def _changed_by(defense: str) -> frozenset[str]:
    """The kinds that a defense names as those it changes; none where it names none, or is not known here."""
    from fdgsec.federation.defense import NamesKinds

    try:
        found = resolve("defenses", defense)
    except UsageError:
        return frozenset()
    return found.changes if isinstance(found, NamesKinds) else frozenset()


def behind(defenses: Sequence[str]) -> str:
    """The names of defenses as an ending; empty without any."""
    return f" behind {listed(list(defenses))}" if defenses else ""


def scope_in_words(report: "AttackReport") -> str:
    """The target, the dataset, and the encoder of the attacked styles, if any: `ccst-overall on pacs, encoder mini`."""
    encoder = "" if report.encoder in ("", "none") else f", encoder {encoder_in_words(report.encoder)}"
    dataset = str(report.dataset["name"])
    of = "" if dataset == "none" else f" on {dataset}"  # given vectors are of no dataset
    return f"{report.target}{of}{encoder}"

"""Names to classes: literal dicts of strings, plus entry points; nothing registers at import."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from fdgsec.errors import unknown_name

METHODS: Mapping[str, str] = {
    "fedavg": "fdgsec.methods.fedavg:FedAvg",
    "ccst": "fdgsec.methods.ccst:CCST",
}

ATTACKS: Mapping[str, str] = {
    "reidentification": "fdgsec.attacks.reidentification:Reidentification",
    "membership": "fdgsec.attacks.membership:Membership",
    "differencing": "fdgsec.attacks.differencing:Differencing",
    "linkage": "fdgsec.attacks.linkage:Linkage",
    "label-inference": "fdgsec.attacks.label_inference:LabelInference",
    "domain-inference": "fdgsec.attacks.domain_inference:DomainInference",
    "style-inversion": "fdgsec.attacks.style_inversion:StyleInversion",
}

DEFENSES: Mapping[str, str] = {}


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a user names to attack: a method, the options that make it this variant, and what it releases."""

    method: str
    releases: frozenset[str]
    summary: str
    options: Mapping[str, object] = field(default_factory=dict)


TARGETS: Mapping[str, Target] = {
    "ccst-overall": Target(
        method="ccst", options={"style": "overall"}, releases=frozenset({"StyleStatistics", "StyleBank"}),
        summary="one pooled style per client (CCST eq. 8), broadcast as a bank",
    ),
    "ccst-single": Target(
        method="ccst", options={"style": "single"}, releases=frozenset({"ImageStyles", "StyleBank"}),
        summary="styles of ceil(n/32) single images per client (CCST eq. 7), broadcast as a bank",
    ),
    "fedavg": Target(method="fedavg", releases=frozenset({"ModelState"}), summary="the model alone: the baseline"),
}  # fmt: skip


def target_named(name: str) -> Target:
    """Look a target up. Raises UsageError with the nearest name."""
    if name not in TARGETS:
        raise unknown_name("target", name, TARGETS)
    return TARGETS[name]


def names(group: str) -> list[str]:
    """All names of a group ("methods", "attacks", "defenses"), ours first, then those of installed plugins."""
    ours = list(_GROUPS[group])
    return ours + sorted(point.name for point in entry_points(group=f"fdgsec.{group}") if point.name not in ours)


_GROUPS: Mapping[str, Mapping[str, str]] = {"methods": METHODS, "attacks": ATTACKS, "defenses": DEFENSES}


def resolve(group: str, name: str) -> type[Any]:
    """Import the class behind a name. Raises UsageError for an unknown one."""
    if name in _GROUPS[group]:
        module, _, attribute = _GROUPS[group][name].partition(":")
        found: type[Any] = getattr(import_module(module), attribute)
        return found
    for point in entry_points(group=f"fdgsec.{group}"):
        if point.name == name:
            loaded: type[Any] = point.load()
            return loaded
    raise unknown_name(group.removesuffix("s"), name, names(group))

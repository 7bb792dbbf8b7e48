"""The papers' tables as data: which arms run, on which clients, with which training, and what the paper prints for them.

Each protocol is one TOML file of `fdgsec/protocols`; an ablation is a protocol whose arms are variants of one method."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

from fdgsec.config import RunConfig, build, merged, resolve_settings
from fdgsec.errors import UsageError, unknown_name
from fdgsec.registry import names

ABLATION = "ablation-"


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One row of a table: a method with its preset and options."""

    method: str
    preset: str | None = None
    local: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Leave two domains out: models are looked at on `validation` and tested on `test`."""

    validation: str
    test: str


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """One table: `run` and `plan` hold for every arm, `published` the paper's percentages by dataset, arm and domain.

    `plan` are training options ([method.plan]); an arm's own options win over them. `pairs` are the LTDO splits by dataset; without them every
    domain is left out in turn. `baseline` names the arm that the others are compared with."""

    title: str
    source: str = ""
    baseline: str = "fedavg"
    seeds: int = 3
    run: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    pairs: Mapping[str, Any] = field(default_factory=dict)
    arms: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, Any] = field(default_factory=dict)

    def arm(self, name: str) -> Arm:
        """The arm called `name`; a method that the protocol does not list runs with its defaults.

        Raises UsageError for a name that is neither."""
        if name in self.arms:
            return build(Arm, {"method": name, **self.arms[name]}, where=f"arms.{name}")
        if name in names("methods"):
            return Arm(method=name)
        raise unknown_name("arm", name, [*self.arms, *names("methods")])

    def splits(self, dataset: str, domains: Sequence[str]) -> list[tuple[str | None, str]]:
        """The (validation, test) domains of each column; validation is None where one domain alone is left out.

        Raises UsageError for a dataset that an LTDO protocol does not split."""
        if not self.pairs:
            return [(None, domain) for domain in domains]
        if dataset not in self.pairs:
            raise UsageError(
                f"{self.title} has no pairs of unseen domains for {dataset}; known: {', '.join(self.pairs)}."
            )
        chosen = [build(Pair, pair, where=f"pairs.{dataset}") for pair in self.pairs[dataset]]
        return [(pair.validation, pair.test) for pair in chosen]

    def printed(self, dataset: str, arm: str) -> Mapping[str, float]:
        """The paper's percentages of an arm by domain, "average" among them; empty where it has none."""
        return {name: float(value) for name, value in self.published.get(dataset, {}).get(arm, {}).items()}

    def config(
        self,
        arm: str,
        split: tuple[str | None, str],
        seed: int,
        given: Mapping[str, Any],
        assignments: Sequence[str] = (),
    ) -> RunConfig:
        """The settings of one training run; `given` (None: not given) wins over the protocol, --set over everything."""
        chosen = self.arm(arm)
        stated = {key: value for key, value in given.items() if value is not None}
        run = {
            **self.run, **({"local": chosen.local} if chosen.local else {}), **stated,
            "validation_domain": split[0], "target_domain": split[1], "seed": seed,
        }  # fmt: skip
        defaults = {"method": chosen.method, "target": chosen.method, "rounds": 10, "profile": "full"}
        options = merged({"plan": self.plan} if self.plan else {}, chosen.options)
        return resolve_settings(run, preset=chosen.preset, assignments=assignments, defaults=defaults, method=options)


def protocols(kind: Literal["protocol", "ablation"] = "protocol") -> list[str]:
    """The names of the bundled protocols, or of the ablations (without their prefix)."""
    found = [file.name.removesuffix(".toml") for file in _files() if file.name.endswith(".toml")]
    if kind == "ablation":
        return sorted(name.removeprefix(ABLATION) for name in found if name.startswith(ABLATION))
    return sorted(name for name in found if not name.startswith(ABLATION))


def protocol_named(name: str, kind: Literal["protocol", "ablation"] = "protocol") -> Protocol:
    """Read a bundled protocol or ablation. Raises UsageError for an unknown name."""
    known = protocols(kind)
    if name not in known:
        raise unknown_name(kind, name, known)
    prefix = ABLATION if kind == "ablation" else ""
    text = resources.files("fdgsec.protocols").joinpath(f"{prefix}{name}.toml").read_text()
    return build(Protocol, tomllib.loads(text), where=f"{kind} {name}")


def _files() -> list[Any]:
    return list(resources.files("fdgsec.protocols").iterdir())

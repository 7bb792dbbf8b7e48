"""Protocols: the papers' accuracy tables as data, with arms, clients, training options and published numbers.

Each protocol is one TOML file in `protocols`; an ablation is a protocol whose arms are variants of one
method."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, Literal

from fdgsec.experiments.run_config import RunConfig, build, merged, resolve_settings
from fdgsec.runtime.errors import UsageError, unknown_name
from fdgsec.runtime.registry import names

ABLATION = "ablation-"
SHARED = ("metric", "seeds", "tuning", "run", "plan", "options", "datasets")
"""The fields that a table inherits from the protocol named by `like`."""
Metric = Literal["accuracy", "auc", "f1"]


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One row of a table: a method with its preset and options, optionally stacked with the method `local`.

    `run` are settings of this row only, such as `adapt`."""

    method: str
    preset: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    local: str = ""
    local_options: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Overrides for one dataset: `run` and `plan` for every arm, `arms` options by arm.

    `domains` are the columns, if a paper does not test on all domains."""

    run: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    arms: Mapping[str, Any] = field(default_factory=dict)
    domains: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Pair:
    """An LTDO split: the domains that are left out for validation and for testing."""

    validation: str
    test: str


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """How the learning rate of each arm and column is chosen: runs at each of `rates` with `seed`, which no cell has.

    fdgsec/experiments/bench/tuning.py has the rule."""

    rates: tuple[float, ...]
    seed: int = 100

    def __post_init__(self) -> None:
        if len(set(self.rates)) != len(self.rates) or not self.rates or min(self.rates) <= 0:
            raise UsageError(f"tuning needs learning rates above 0, each once; got {list(self.rates)}.")


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """One table: settings of all arms, the arms, and `published`, the paper's percentages by dataset, arm and domain.

    `run`, `plan` ([method.plan]) and `options` apply to every arm. Precedence, lowest first: the arm's preset, these
    fields, the overrides in `datasets` for all arms, the arm's own options, the overrides in `datasets` for the arm.
    `pairs` are the LTDO splits by dataset; without them each domain is left out in turn. `metric` is the metric of the
    columns, and `baseline` names the arm to which the others are compared. `published_validation` holds what the paper
    prints for LTDO's validation domains, `published_costs` its costs by dataset and arm. With `tuning` each
    arm's learning rate is chosen first. `like` names a protocol from which the fields in SHARED are inherited."""

    title: str
    source: str = ""
    like: str = ""
    metric: Metric = "accuracy"
    baseline: str = "fedavg"
    seeds: int = 3
    tuning: Tuning | None = None
    run: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    datasets: Mapping[str, Any] = field(default_factory=dict)
    pairs: Mapping[str, Any] = field(default_factory=dict)
    arms: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, Any] = field(default_factory=dict)
    published_validation: Mapping[str, Any] = field(default_factory=dict)
    published_costs: Mapping[str, Any] = field(default_factory=dict)

    def arm(self, name: str) -> Arm:
        """The arm called `name`; a method that the protocol does not list runs with its defaults.

        Raises UsageError for a name that is neither."""
        if name in self.arms:
            return build(Arm, {"method": name, **self.arms[name]}, where=f"arms.{name}")
        if name in names("methods"):
            return Arm(method=name)
        raise unknown_name("arm", name, [*self.arms, *names("methods")])

    def setting(self, dataset: str) -> Setting:
        """The overrides for `dataset`, empty if the protocol has none."""
        return build(Setting, self.datasets.get(dataset, {}), where=f"datasets.{dataset}")

    def splits(self, dataset: str, domains: Sequence[str]) -> list[tuple[str | None, str]]:
        """The (validation, test) domains of each column; validation is None if only one domain is left out.

        Raises UsageError for a dataset without splits in an LTDO protocol."""
        if not self.pairs:
            return [(None, domain) for domain in self.setting(dataset).domains or domains]
        if dataset not in self.pairs:
            raise UsageError(
                f"{self.title}: there are no pairs of unseen domains for {dataset}, only for {', '.join(self.pairs)}; "
                "use one of these datasets, or a protocol that leaves one domain out."
            )
        chosen = [build(Pair, pair, where=f"pairs.{dataset}") for pair in self.pairs[dataset]]
        return [(pair.validation, pair.test) for pair in chosen]

    def printed(self, dataset: str, arm: str) -> Mapping[str, float]:
        """The paper's percentages of an arm by domain, including "average"; empty if it reports none."""
        return {name: float(value) for name, value in self.published.get(dataset, {}).get(arm, {}).items()}

    def printed_validation(self, dataset: str, arm: str) -> Mapping[str, float]:
        """The paper's percentages of an arm on each domain that it keeps for validation; empty if it reports none."""
        return {name: float(value) for name, value in self.published_validation.get(dataset, {}).get(arm, {}).items()}

    def printed_costs(self, dataset: str, arm: str) -> Mapping[str, float]:
        """The paper's costs of an arm by their names, with units; empty if it reports none."""
        return {name: float(value) for name, value in self.published_costs.get(dataset, {}).get(arm, {}).items()}

    def config(
        self,
        arm: str,
        split: tuple[str | None, str],
        seed: int,
        given: Mapping[str, Any],
        assignments: Sequence[str] = (),
        *,
        rate: float | None = None,
    ) -> RunConfig:
        """The settings of one training run; `given` values other than None override the protocol, --set overrides all.

        `rate` is a learning rate that was chosen for this arm, in place of the plan's.
        Raises UsageError for an unknown arm, and for options of a local method without its name."""
        chosen = self.arm(arm)
        stated = {key: value for key, value in given.items() if value is not None}
        own = self.setting(str(stated.get("dataset", "")))
        run = {
            **self.run, **own.run, **({"local": chosen.local} if chosen.local else {}), **chosen.run, **stated,
            "validation_domain": split[0], "target_domain": split[1], "seed": seed,
        }  # fmt: skip
        defaults = {"method": chosen.method, "target": chosen.method, "rounds": 10, "profile": "full"}
        plan = merged(self.plan, own.plan)
        tuned = {} if rate is None else {"plan": {"learning_rate": rate}}
        options = merged(self.options, {"plan": plan} if plan else {}, chosen.options, own.arms.get(arm, {}), tuned)
        config = resolve_settings(run, preset=chosen.preset, assignments=assignments, defaults=defaults, method=options)
        return replace(config, local_options=merged(chosen.local_options, config.local_options))


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
    document = _document(f"{ABLATION if kind == 'ablation' else ''}{name}")
    if "like" in document:
        shared = _document(document["like"])
        document = merged({key: shared[key] for key in SHARED if key in shared}, document)
    return build(Protocol, document, where=f"{kind} {name}")


def _document(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files("fdgsec.experiments.bench").joinpath("protocols", f"{name}.toml").read_text())


def _files() -> list[Any]:
    return list(resources.files("fdgsec.experiments.bench").joinpath("protocols").iterdir())

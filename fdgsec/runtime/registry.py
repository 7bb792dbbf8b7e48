"""Registry of names for methods, attacks, defenses and targets: literal dicts, plus entry points of plug-ins."""

import hashlib
import inspect
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, is_dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any

from fdgsec.runtime.errors import UsageError, unknown_name

METHODS: Mapping[str, str] = {
    "fedavg": "fdgsec.methods.fedavg:FedAvg",
    "ccst": "fdgsec.methods.ccst:CCST",
    "stablefdg": "fdgsec.methods.stablefdg:StableFDG",
    "stablefdg-dp": "fdgsec.methods.stablefdg_dp:StableFDGDP",
    "feddag": "fdgsec.methods.feddag:FedDAG",
    "feddag-dp": "fdgsec.methods.feddag_dp:FedDAGDP",
    "fisc": "fdgsec.methods.fisc:FISC",
    "fisc-dp": "fdgsec.methods.fisc_dp:FISCDP",
    "fedalign": "fdgsec.methods.fedalign:FedAlign",
    "fedalign-dp": "fdgsec.methods.fedalign_dp:FedAlignDP",
    "fedccrl": "fdgsec.methods.fedccrl:FedCCRL",
    "cross-evaluation": "fdgsec.methods.feddag_aggregation:CrossEvaluation",
    "fedprox": "fdgsec.methods.fedprox:FedProx",
    "fedbn": "fdgsec.methods.fedbn:FedBN",
    "mixstyle": "fdgsec.methods.mixstyle:MixStyle",
    "dsu": "fdgsec.methods.dsu:DSU",
    "rsc": "fdgsec.methods.rsc:RSC",
    "jigen": "fdgsec.methods.jigen:JiGen",
    "fedsr": "fdgsec.methods.fedsr:FedSR",
    "feddg": "fdgsec.methods.feddg:FedDG",
    "feddg-ga": "fdgsec.methods.feddg_ga:FedDGGA",
    "fedgma": "fdgsec.methods.fedgma:FedGMA",
    "fpl": "fdgsec.methods.fpl:FPL",
    "fediir": "fdgsec.methods.fediir:FedIIR",
    "fedadg": "fdgsec.methods.fedadg:FedADG",
}

ATTACKS: Mapping[str, str] = {
    "reidentification": "fdgsec.attacks.reidentification.attack:Reidentification",
    "membership": "fdgsec.attacks.membership.attack:Membership",
    "set-reconstruction": "fdgsec.attacks.set_reconstruction.attack:SetReconstruction",
    "differencing": "fdgsec.attacks.differencing.attack:Differencing",
    "linkage": "fdgsec.attacks.linkage.attack:Linkage",
    "label-inference": "fdgsec.attacks.attribute_inference.labels:LabelInference",
    "domain-inference": "fdgsec.attacks.attribute_inference.domains:DomainInference",
    "property-inference": "fdgsec.attacks.attribute_inference.properties:PropertyInference",
    "inter-client": "fdgsec.attacks.inter_client.attack:InterClient",
    "interpolation-leakage": "fdgsec.attacks.interpolation_leakage.attack:InterpolationLeakage",
    "pool-exposure": "fdgsec.attacks.pool_exposure.attack:PoolExposure",
    "style-inversion": "fdgsec.attacks.style_inversion.attack:StyleInversion",
    "optimization-inversion": "fdgsec.attacks.style_inversion.optimization_attack:OptimizationInversion",
    "generator-leakage": "fdgsec.attacks.generator_leakage.attack:GeneratorLeakage",
    "model-membership": "fdgsec.attacks.model_membership.attack:ModelMembership",
    "gradient-inversion": "fdgsec.attacks.gradient_inversion.attack:GradientInversion",
    "poisoning": "fdgsec.attacks.poisoning.attack:Poisoning",
}

DEFENSES: Mapping[str, str] = {
    "dp-fedavg": "fdgsec.defenses.dp_fedavg:DPFedAvg",
    "dp-sgd": "fdgsec.defenses.dp_sgd:DPSGD",
    "guards": "fdgsec.defenses.guards:Guards",
    "k-anonymous": "fdgsec.defenses.k_anonymous:KAnonymous",
    "private-scores": "fdgsec.defenses.private_scores:PrivateScores",
    "private-styles": "fdgsec.defenses.private_styles:PrivateStyles",
    "quantize": "fdgsec.defenses.quantize:Quantize",
    "secure-aggregation": "fdgsec.defenses.secure_aggregation:SecureAggregation",
    "shuffle": "fdgsec.defenses.shuffle:Shuffle",
    "style-noise": "fdgsec.defenses.style_noise:StyleNoise",
}

PLAIN = "with its default options"
SETTLED = 10
"""Seconds after which a folder of the import path that has not changed is taken to be complete."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A target of an attack: a method and its options; the method declares what it releases.

    `method` is a registered name where the target itself is registered, else also a class or an object."""

    method: Any
    summary: str
    options: Mapping[str, object] = field(default_factory=dict)


TARGETS: Mapping[str, Target] = {
    "ccst-overall": Target(
        method="ccst", options={"style": "overall"},
        summary="one pooled style per client (CCST eq. 8), broadcast as a bank",
    ),
    "ccst-single": Target(
        method="ccst", options={"style": "single"},
        summary="styles of ceil(n/32) single images per client (CCST eq. 7), broadcast as a bank",
    ),
    "ccst-amplitude-overall": Target(
        method="ccst", options={"style": "overall", "representation": "amplitude"},
        summary="the mean amplitude spectrum of each client's images (CCST appendix E)",
    ),
    "ccst-amplitude-single": Target(
        method="ccst", options={"style": "single", "representation": "amplitude"},
        summary="amplitude spectra of ceil(n/32) single images per client (CCST appendix E)",
    ),
    "stablefdg": Target(
        method="stablefdg",
        summary="center and spread of early-layer styles, every round, to the server and one other client",
    ),
    "feddag": Target(
        method="feddag",
        summary="own teachers and generators, every round; peers receive perturbed teachers and answer with losses",
    ),
    "fisc": Target(
        method="fisc", summary="one clustered style per client to the server, one interpolation style back",
    ),
    "fedalign": Target(
        method="fedalign", summary="color statistics of a tenth of the images, every round, to everybody",
    ),
    "fedccrl": Target(method="fedccrl", summary="as fedalign, which extends it"),
    "feddg": Target(
        method="feddg", summary="amplitude spectra of an eighth of the images, once, to everybody",
    ),
    "fpl": Target(method="fpl", summary="mean features per class, every round"),
    "fediir": Target(method="fediir", summary="the loss's gradient in the head, every round"),
    "fedadg": Target(method="fedadg", summary="a feature generator beside the model, every round"),
    "fedavg": Target(method="fedavg", summary="the model alone: the baseline"),
    "stablefdg-dp": Target(
        method="stablefdg-dp",
        summary="as stablefdg, with losses of single records for dp-sgd; each client gets its own styles' center back",
    ),
    "feddag-dp": Target(
        method="feddag-dp", options={"include_self": False},
        summary="as feddag, student and generator by one noisy step, scores with a bound, for dp-sgd",
    ),
    "fisc-dp": Target(
        method="fisc-dp", summary="as fisc, with negatives made of the record itself for dp-sgd",
    ),
    "fedalign-dp": Target(
        method="fedalign-dp", options={"discriminator": "off"},
        summary="as fedalign, without contrast between records and without discriminator, for dp-sgd",
    ),
}  # fmt: skip


BUNDLED: Mapping[str, Mapping[str, str]] = {"methods": METHODS, "attacks": ATTACKS, "defenses": DEFENSES}
GROUPS = (*BUNDLED, "encoders", "artifacts", "datasets", "targets")
"""The groups that a plug-in may extend; entry-point groups are named "fdgsec.methods" and so on (docs/extending.md)."""


_given: ContextVar[Mapping[tuple[str, str], type]] = ContextVar("given", default={})  # noqa: B039 (never changed)
"""The classes of objects that a caller of the Python API handed in, by group and name, for the length of the call."""


@contextmanager
def given_classes(group: str, *things: object) -> Iterator[None]:
    """Resolve the names of `things` to their own classes inside the block, registered or not; strings name nothing new.

    An attack goes by its `name`, anything else by its registered name or that of its class. Raises UsageError where two
    classes have one name, and for an object that is no frozen dataclass or an attack without a name."""
    known = dict(_given.get())
    for thing in things:
        if isinstance(thing, str):
            continue
        cls, name = type(thing), getattr(thing, "name", None) if group == "attacks" else name_of(group, thing)
        if not is_dataclass(thing) or not isinstance(name, str):
            raise UsageError(f"{group} are given by name or as objects of a class with options; got {thing!r}.")
        if known.setdefault((group, name), cls) is not cls:
            raise UsageError(f"two classes of {group} are called {name}; give one of them another name.")
    token = _given.set(known)
    try:
        yield
    finally:
        _given.reset(token)


def plugins(group: str) -> Mapping[str, EntryPoint]:
    """The entry points of installed packages in a group, by name.

    All packages are searched again only where the import path or one of its folders has changed, or did so within the
    last SETTLED seconds (an installer writes a package's entry points after its folder): a search takes as long as a
    thousand look-ups."""
    searched = tuple((os.path.abspath(path), _changed(path)) for path in sys.path)
    settled = max((changed for _, changed in searched), default=0) < time.time_ns() - SETTLED * 10**9
    found = (_plugins if settled else _plugins.__wrapped__)(searched, tuple(map(id, sys.meta_path)))
    return found.get(f"fdgsec.{group}", {})


def _changed(path: str) -> int:
    """When a folder of the import path was last changed, in ns; -1 where there is none."""
    try:
        return os.stat(path or os.curdir).st_mtime_ns
    except OSError:
        return -1


@lru_cache(maxsize=4)
def _plugins(_searched: object, _finders: object) -> Mapping[str, Mapping[str, EntryPoint]]:
    """The entry points of all groups of fdgsec, by group and name."""
    every = entry_points()
    mine = [group for group in every.groups if group.startswith("fdgsec.")]
    return {
        group: MappingProxyType(
            {point.name: point for point in sorted(every.select(group=group), key=lambda point: point.name)}
        )
        for group in mine
    }


def names(group: str) -> list[str]:
    """All names of a group ("methods", "attacks", "defenses"): bundled ones first, then those of plug-ins."""
    given = [name for kind, name in _given.get() if kind == group]
    return list(dict.fromkeys([*BUNDLED[group], *plugins(group), *given]))


def resolve(group: str, given: object) -> Any:
    """Import and return what a name stands for; anything but a string is returned unchanged.

    Raises UsageError for an unknown name, and for a plug-in that cannot be imported."""
    if not isinstance(given, str):
        return given
    if (group, given) in _given.get():
        return _given.get()[group, given]
    ours = BUNDLED.get(group, {})
    if given in ours:
        module, _, attribute = ours[given].partition(":")
        return getattr(import_module(module), attribute)
    found = plugins(group)
    if given not in found:
        raise unknown_name(group.removesuffix("s"), given, [*ours, *found])
    try:
        return found[given].load()
    except Exception as error:  # whatever another package's module raises when it is imported
        package = getattr(found[given].dist, "name", "an installed package")
        raise UsageError(
            f"{given} of fdgsec.{group} is {found[given].value} of {package}, which cannot be imported: "
            f"{type(error).__name__}: {error}; repair or uninstall it."
        ) from error


def name_of(group: str, thing: object) -> str:
    """The registered name of a class or of an object's class; the class's own name if it is not registered.

    With its module where the own name is registered for another class, which it would be taken for."""
    cls = thing if isinstance(thing, type) else type(thing)
    place = f"{cls.__module__}:{cls.__qualname__}"
    ours = [name for name, known in BUNDLED.get(group, {}).items() if known == place]
    found = [*ours, *(name for name, point in plugins(group).items() if point.value == place)]
    if not found and (cls.__name__ in BUNDLED.get(group, {}) or cls.__name__ in plugins(group)):
        return f"{cls.__module__}.{cls.__qualname__}"
    return found[0] if found else cls.__name__


def is_bundled(thing: object) -> bool:
    """Whether an object and all options of it that are objects are of classes of fdgsec.

    An option may also name a plug-in's method. What is not bundled is code that fdgsec's own hash does not cover."""
    if isinstance(thing, str):
        return thing in METHODS or thing not in names("methods")
    if not is_dataclass(thing):
        return True
    return type(thing).__module__.partition(".")[0] == "fdgsec" and all(
        is_bundled(getattr(thing, spec.name)) for spec in fields(thing)
    )


def foreign_code(thing: object) -> list[str | None]:
    """Hashes of the modules of an object and of its options that are not fdgsec's; None for one without a source file.

    What such a module imports is not covered."""
    if isinstance(thing, str):
        return [] if is_bundled(thing) else foreign_code(resolve("methods", thing))
    cls = thing if isinstance(thing, type) else type(thing)
    if not is_dataclass(cls):
        return []
    options = [] if thing is cls else [getattr(thing, spec.name) for spec in fields(cls)]
    return _code_of(cls) + [code for option in options for code in foreign_code(option)]


def _code_of(cls: type) -> list[str | None]:
    if cls.__module__.partition(".")[0] == "fdgsec":
        return []
    try:
        return [hashlib.sha256(inspect.getsource(sys.modules[cls.__module__]).encode()).hexdigest()]
    except (OSError, TypeError, KeyError):
        return [None]


def targets() -> Mapping[str, Target]:
    """All targets by name: the variants above, those of plug-ins, then every other method with its default options.

    Raises UsageError for a plug-in that cannot be imported or is no Target."""
    known = {**{name: _target(name) for name in plugins("targets")}, **TARGETS}
    plain = {name: Target(method=name, summary=PLAIN) for name in names("methods") if name not in known}
    return {**TARGETS, **known, **plain}


def target_named(given: object) -> Target:
    """Look up a target by name; a Target is returned unchanged, and a method's class or object becomes one.

    Raises UsageError with the nearest name."""
    if isinstance(given, Target):
        return given
    if not isinstance(given, str):
        return Target(method=given, summary=PLAIN)
    if given in TARGETS:  # another package's targets are not loaded for that
        return TARGETS[given]
    if given in plugins("targets"):
        return _target(given)
    if given in names("methods"):
        return Target(method=given, summary=PLAIN)
    raise unknown_name("target", given, [*TARGETS, *plugins("targets"), *names("methods")])


def _target(name: str) -> Target:
    found = resolve("targets", name)
    if not isinstance(found, Target):
        raise UsageError(
            f"{name} of fdgsec.targets must be a fdgsec.runtime.registry.Target; got {type(found).__name__}."
        )
    if not isinstance(found.method, str):
        raise UsageError(
            f"{name} of fdgsec.targets must name its method; got {found.method!r}. Register the method too."
        )
    return found

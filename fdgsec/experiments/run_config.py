"""Settings: one frozen dataclass, resolved from defaults, preset, profile and the command line, in that order."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from importlib import resources
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, get_args

from fdgsec.experiments.option_values import build, merged, parse_assignments, parse_value
from fdgsec.federation.defense import Defense
from fdgsec.federation.method import Method
from fdgsec.runtime.errors import UsageError, unknown_name
from fdgsec.runtime.registry import Target, name_of, names, resolve, target_named, targets
from fdgsec.runtime.threads import THREADS, limited_threads
from fdgsec.runtime.untrusted_text import (
    LARGEST_TOML,
    parse_json_object,
    parse_toml,
    read_bytes,
)
from fdgsec.threats.attack import Attack

__all__ = [
    "LATER",
    "Keep",
    "Profile",
    "RunConfig",
    "attack_settings",
    "build",
    "changed",
    "check_distinct",
    "defense_of",
    "defense_text",
    "load_preset",
    "made",
    "merged",
    "named_attacks",
    "on_stated_threads",
    "parse_assignments",
    "parse_value",
    "plain",
    "presets",
    "resolve_settings",
    "target_method",
    "train_settings"
]  # fmt: skip

T = TypeVar("T")
P = ParamSpec("P")
TABLES = ("experiment", "method", "with", "run", "attacks")
SKEWED = ("dirichlet", "lambda")
"""Partitions that have a heterogeneity."""
Profile = Literal["quick", "full"]
Keep = Literal["artifacts", "models=last", "models=all"]

LATER: Mapping[str, object] = {
    "roles": "none", "auxiliary": None, "validation_share": 0.1, "source_test_share": 0.0, "target_share": 1.0,
    "threads": THREADS,
}  # fmt: skip
"""Settings younger than stored tables, with the value under which a run is what it was without them."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides a run's numbers; `None` means "the dataset's or the method's own default".

    `method` and `options` say what is run, `local` and `local_options` (`--with`) what is put on top of it, `adapt`
    whether the tested model also adapts to its test images; `per_domain` caps the images per domain, `per_class` those
    per class and domain; `splits` says whether the seed or the dataset's official splits set validation images aside;
    the seed takes `validation_share` of each client's images for validation, and where `source_test_share` is above 0
    so many for the accuracy on the sources; the model is tested on `target_share` of the unseen domain (official splits
    say all that themselves);
    `roles` whether `train` keeps held-out and auxiliary images from its clients, as `attack` always does; `auxiliary`
    is the number of auxiliary images of each source domain, or "all" that clients and non-members can do without, in
    place of 15%; `rounds` 0 exchanges artifacts and trains nothing; `threads` is the number of threads of all
    computations, on every engine."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    local: str = ""
    local_options: Mapping[str, Any] = field(default_factory=dict)
    adapt: str = ""
    preset: str = ""
    target: str = ""
    dataset: str = "shapes"
    image_size: int | None = None
    per_domain: int | None = None
    per_class: int | None = None
    target_domain: str | None = None
    validation_domain: str | None = None
    partition: Literal["domain", "single-domain", "dirichlet", "lambda"] = "domain"
    clients: int | None = None
    heterogeneity: float = 0.1
    splits: Literal["own", "official"] = "own"
    validation_share: float = 0.1
    source_test_share: float = 0.0
    target_share: float = 1.0
    roles: Literal["none", "aside"] = "none"
    auxiliary: int | Literal["all"] | None = None
    allow_partial: bool = False
    encoder: str = "mini"
    style_size: int | None = None
    backbone: str = "tiny"
    norm: Literal["batch", "group", "frozen"] = "batch"
    pretrained: bool = False
    rounds: int = 0
    participation: float = 1.0
    seed: int = 0
    profile: Profile = "quick"
    attacks: tuple[str, ...] = ()
    attack_options: Mapping[str, Any] = field(default_factory=dict)
    adversary: Literal["server", "client", "outsider"] = "server"
    defenses: tuple[Defense, ...] = ()
    delta: float = 1e-5
    keep: Keep = "artifacts"
    device: str = "auto"
    threads: int = THREADS

    def __post_init__(self) -> None:
        if self.rounds < 0 or not 0 < self.participation <= 1:  # before a folder is made for the rounds
            raise UsageError(
                f"rounds must be at least 0 and participation in (0, 1]; got {self.rounds} and {self.participation}."
            )
        if self.seed < 0:
            raise UsageError(f"seed must be at least 0; got {self.seed}.")
        if not 0 <= self.heterogeneity < math.inf:
            raise UsageError(f"heterogeneity must be a finite number of at least 0; got {self.heterogeneity}.")
        if self.norm == "frozen" and not self.pretrained:
            raise UsageError(
                "norm=frozen keeps the batch norms of pretrained weights as they are; add --pretrained, or use another."
            )
        if self.pretrained and self.backbone == "tiny":
            raise UsageError("nobody published weights of the backbone tiny; leave --pretrained out, or name another.")
        check_distinct(self.attacks)

    @property
    def method_name(self) -> str:
        """The method as reports name it: ccst, or ccst+mixstyle."""
        return f"{self.method}+{self.local}" if self.local else self.method

    @classmethod
    def of(cls, settings: Mapping[str, Any], *, where: str) -> "RunConfig":
        """Make the settings from plain data, defenses from text or objects. Raises UsageError, naming `where`."""
        defenses = tuple(map(defense_of, _several(settings.get("defenses", ()), "defenses")))
        return build(cls, {**settings, "defenses": defenses}, where=where)

    def document(self) -> dict[str, Any]:
        """Plain data, as written into the run directory; defenses as text."""
        told = {spec.name: getattr(self, spec.name) for spec in dataclasses.fields(self)}
        return {**told, "defenses": tuple(map(defense_text, self.defenses))}

    @property
    def sha256(self) -> str:
        """The hash of the settings; one that came later counts where it is not as it was before (see LATER)."""
        told = {name: value for name, value in self.document().items() if name not in LATER or value != LATER[name]}
        return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()


def on_stated_threads(verb: Callable[Concatenate[RunConfig, P], T]) -> Callable[Concatenate[RunConfig, P], T]:
    """Make a function of a run's settings compute on the number of threads that they state."""

    @wraps(verb)
    def limited(config: RunConfig, /, *given: P.args, **named: P.kwargs) -> T:
        with limited_threads(config.threads):
            return verb(config, *given, **named)

    return limited


def defense_of(given: str | Defense) -> Defense:
    """Make a defense from "NAME:option=value,..."; an object is one already. Raises UsageError."""
    if not isinstance(given, str):
        if not isinstance(given, Defense):
            raise UsageError(f"a defense is given by name or as an object of a Defense; got {given!r}.")
        return given
    name, _, rest = given.partition(":")
    options: dict[str, Any] = {}
    for item in filter(None, rest.split(",")):
        option, equals, value = item.partition("=")
        if not equals or not option:
            raise UsageError(f"--defense expects NAME:option=value,...; got {item!r} in {given!r}.")
        if option.strip() in options:
            raise UsageError(f"{given!r} gives {option.strip()} twice; give it once.")
        options[option.strip()] = parse_value(value.strip())
    defense: Defense = made("defenses", name, options, where=f"defense {name}")
    return defense


def _several(given: Any, name: str) -> Sequence[Any]:
    """The items of an option that takes several. Raises UsageError for one text, whose items would be its letters."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise UsageError(f"{name} is a list; write [{given!r}], not {given!r}.")
    return tuple(given)


def defense_text(defense: Defense) -> str:
    """Write a defense as "NAME:option=value,...", with the options that are not at their defaults."""
    stated = ",".join(f"{name}={plain(value)}" for name, value in changed(defense).items())
    return ":".join(filter(None, (name_of("defenses", defense), stated)))


def changed(instance: Any) -> dict[str, Any]:  # any dataclass
    """The options of a method, an attack or a defense that are not at their defaults, as plain data."""
    found = {}
    for spec in dataclasses.fields(instance):
        value = getattr(instance, spec.name)
        usual = spec.default_factory() if spec.default_factory is not dataclasses.MISSING else spec.default
        if spec.init and value != usual:
            nested = dataclasses.is_dataclass(value) and not isinstance(value, type)
            found[spec.name] = changed(value) if nested else value
    return found


def plain(value: Any) -> str:  # any option's value
    """Write a value as `parse_value` reads it: true, none, 4, 0.1."""
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def presets() -> list[str]:
    """The names of the bundled presets."""
    files = resources.files("fdgsec.experiments").joinpath("presets").iterdir()
    names = sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))
    return [name for name in names if name not in get_args(Profile)]


def load_preset(name: str) -> dict[str, Any]:
    """Read a bundled preset, or by path a TOML file or a run's config.json. Raises UsageError for an unknown or broken
    one."""
    path = Path(name)
    bundled = name in presets() or name in get_args(Profile)
    if not bundled and not path.is_file():
        raise unknown_name("preset", name, presets(), note=" (or give the path of a TOML file)")
    content = (
        resources.files("fdgsec.experiments").joinpath("presets", f"{name}.toml").read_bytes()
        if bundled
        else read_bytes(path, largest=LARGEST_TOML, error=UsageError)
    )
    if path.suffix == ".json" and not bundled:
        try:
            return _tables(parse_json_object(content, source="it", error=UsageError))
        except (UsageError, AttributeError, TypeError) as error:
            raise UsageError(f"{name} is not the config.json of a run: {error}") from error
    return parse_toml(content, source=f"preset {name}" if bundled else name, error=UsageError)


def _tables(document: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run (`RunConfig.document`) as a preset's tables, without what was left at no value."""
    stated = {name: value for name, value in document.items() if value is not None and value != ""}
    named = (("method", "options"), ("with", "local_options"), ("attacks", "attack_options"))
    return {**{table: stated.pop(name, {}) for table, name in named}, "run": stated}


def resolve_settings(
    given: Mapping[str, Any],
    *,
    preset: str | None,
    assignments: Sequence[str] = (),
    defaults: Mapping[str, Any],
    method: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Lay defaults, preset, what was `given` (None: not given) and --set assignments over each other, later ones
    winning.

    `method` holds the options that a target fixes. Raises UsageError for anything that is not a setting."""
    loaded = load_preset(preset) if preset else {}
    foreign = set(loaded) - {*TABLES}
    if foreign:
        raise UsageError(
            f"preset {preset} has tables {sorted(foreign)}; [experiment], [method], [with], [run] and [attacks] are "
            "known."
        )
    extra = parse_assignments(assignments)
    loaded, extra = ({key: _table(each, key) for key, each in one.items()} for one in (loaded, extra))
    options = merged(loaded.get("method", {}), method or {}, extra.pop("method", {}))
    stated = {key: value for key, value in given.items() if value is not None}
    named, objects = named_attacks(_several(stated.get("attacks", ()), "attacks"))
    stated |= {"attacks": named} if named else {}
    chosen = merged(loaded.get("attacks", {}), objects, extra.pop("attacks", {}))
    on_top = merged(loaded.get("with", {}), extra.pop("with", {}))
    stored = loaded.get("run", {}).get("preset", "") if (preset or "").endswith(".json") else preset
    tables = {"options": options, "local_options": on_top, "preset": stored or "", "attack_options": chosen}
    run = merged(defaults, loaded.get("run", {}), stated, extra.pop("run", {}), extra, tables)
    if stated.get("heterogeneity") is not None and run.get("partition") not in SKEWED:
        raise UsageError(
            f"heterogeneity acts in partitions {' and '.join(SKEWED)}; add --partition {SKEWED[0]}, or leave it out."
        )
    for shared in ("encoder", "style_size"):  # the adversary's encoder and image size are the method's own
        if shared in options and given.get(shared) is None:
            run[shared] = options[shared]
    return RunConfig.of(run, where="run")


def _table(value: Any, name: str) -> Any:
    """The value of a setting, which must be a table where it is one of TABLES. Raises UsageError."""
    if name in TABLES and not isinstance(value, Mapping):
        raise UsageError(f"{name} is a table of options, as in {name}.NAME=VALUE; got {value!r}.")
    return value


def named_attacks(given: Sequence[str | Attack]) -> tuple[tuple[str, ...], dict[str, dict[str, Any]]]:
    """Split attacks into their names, and by name all options of those that were given as objects.

    Raises UsageError for an attack that is given twice."""
    options = {each.name: dataclasses.asdict(each) for each in given if not isinstance(each, str)}  # type: ignore[call-overload]
    attacks = tuple(each if isinstance(each, str) else each.name for each in given)
    check_distinct(attacks)
    return attacks, options


def check_distinct(attacks: Sequence[str]) -> None:
    """Raise UsageError for an attack that is named twice: it would run twice, and be counted twice."""
    twice = next((name for name in attacks if attacks.count(name) > 1), None)
    if twice is not None:
        raise UsageError(
            f"attack {twice} is named twice; name it once, and compare options of it in runs of their own."
        )


def train_settings(
    method: str | Method, given: Mapping[str, Any], *, preset: str | None = None, assignments: Sequence[str] = ()
) -> RunConfig:
    """Settings of the verb `train`, for a method by name or as an object."""
    name, options, shared = _parts(method)
    return resolve_settings(
        {**given, **shared}, preset=preset, assignments=assignments,
        defaults={"method": name, "rounds": 10, "profile": "full"}, method=options,
    )  # fmt: skip


def _parts(method: str | Method) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The name of a method; of an object also what it changes, and its encoder and style size, which are the run's."""
    if isinstance(method, str):
        return method, {}, {}
    fields = {spec.name for spec in dataclasses.fields(method)}  # type: ignore[arg-type]
    shared: dict[str, Any] = {
        option: getattr(method, option) for option in ("encoder", "style_size") if option in fields
    }
    return name_of("methods", method), changed(method), shared


def made(group: str, given: object, options: Mapping[str, Any], *, where: str) -> Any:
    """Make what is given, by name, as a class or as an object of one's own, with `options` in place of its fields.

    Raises UsageError for an unknown name, what `build` raises, and for an object that is no frozen dataclass."""
    found = resolve(group, given)
    if isinstance(found, type):
        return build(found, options, where=where)
    if not dataclasses.is_dataclass(found):
        raise UsageError(f"{where} must be a frozen dataclass; got {found!r}.")
    held = {spec.name: getattr(found, spec.name) for spec in dataclasses.fields(found) if spec.init}
    return build(type(found), {**held, **options}, where=where)


def target_method(target: Target) -> Method:
    """The method of a target with the options that make it this variant, all others at their defaults."""
    method: Method = made("methods", target.method, target.options, where="method")
    return method


def _target_parts(target: str | Target | Method) -> tuple[str, Target, dict[str, Any]]:
    """The name of a target, the target, and the encoder and style size of one that is a method's object.

    Raises UsageError for an unknown name, and for a Target that is registered under none."""
    if isinstance(target, str):
        return target, target_named(target), {}
    if isinstance(target, Target):
        known = [name for name, each in targets().items() if each == target]
        if not known:
            raise UsageError(f"{target} has no name; register it in fdgsec.targets, or give the method as an object.")
        return known[0], target, {}
    method, options, shared = _parts(target)
    return method, Target(method=method, options=options, summary=""), shared


def attack_settings(
    target: str | Target | Method,
    given: Mapping[str, Any],
    *,
    profile: str = "quick",
    preset: str | None = None,
    assignments: Sequence[str] = (),
) -> RunConfig:
    """Settings of the verb `attack`: the profile's table first; a preset's rounds are for `train` and do not apply
    here.

    Raises UsageError for an unknown target or profile, for official splits (members, non-members and auxiliary images
    must be drawn alike)."""
    name, named, shared = _target_parts(target)
    if profile not in get_args(Profile):
        raise unknown_name("profile", profile, get_args(Profile))
    defaults = {**load_preset(profile)["run"], "method": named.method, "target": name, "profile": profile}
    method = target_method(named)
    if method.shared_mean is not None and method.shared_mean.encoder is not None:
        defaults["encoder"] = method.shared_mean.encoder
    told = {**given, **shared}
    config = resolve_settings(told, preset=preset, assignments=assignments, defaults=defaults, method=named.options)
    if given.get("rounds") is None and preset is not None:
        config = dataclasses.replace(config, rounds=0)
    if config.splits != "own":
        raise UsageError("official splits are for `fdgsec train`; an attack draws its own roles (docs/data.md, Roles).")
    for attacked in config.attack_options:
        if attacked not in names("attacks"):
            raise unknown_name("attack", attacked, names("attacks"))
        made("attacks", attacked, config.attack_options[attacked], where=f"attack {attacked}")  # checked, run or not
    return config

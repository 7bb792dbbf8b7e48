"""The verb `explain`: attacks, claims, defenses, methods, presets and targets, described from code, data and docs."""

import difflib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Literal, TypeVar, cast

from fdgsec.experiments.attack_measurements import MEASUREMENTS
from fdgsec.experiments.claims.catalogue import ENCODER_KINDS, Claim, Probe, ledger
from fdgsec.experiments.claims.tables import PARTIES, criterion_text
from fdgsec.experiments.preset_sources import (
    PresetExperiment,
    deviations,
    preset_experiment,
    preset_values,
    sources,
    value_lines,
    written,
)
from fdgsec.experiments.report.words import kind_in_words
from fdgsec.experiments.run_config import presets, target_method
from fdgsec.federation.defense import Defense, HasPolicy, Inspects, PartlyUndone, TrainsPrivately
from fdgsec.federation.method import Method
from fdgsec.federation.wire import Filter
from fdgsec.runtime.errors import FdgsecError, UsageError
from fdgsec.runtime.registry import names, resolve, targets
from fdgsec.threats.adversary import ADVERSARIES, Adversary
from fdgsec.threats.attack import Attack, TargetFacts

SECTIONS = ("Threat model", "What success means, and what not", "Cost")
"""Sections of an attack's docs page that are shown in a checkout."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The explanation of one name: a title line, and sections with headings."""

    name: str
    kind: Literal["attack", "claim", "defense", "method", "preset", "target"]
    title: str
    sections: Sequence[tuple[str, str]]

    def document(self) -> dict[str, object]:
        """Plain data."""
        return {"schema": 1, "kind": self.kind, "name": self.name, "title": self.title, "sections": dict(self.sections)}


def explain(name: str) -> Explanation:
    """Explain what a name stands for. Raises UsageError for an unknown one, with the nearest.

    A name that is both a method's and a target's or a preset's stands for the method."""
    claims = {claim.id: claim for claim in ledger()}
    explained: Mapping[str, tuple[Iterable[str], Callable[[str], Explanation]]] = {
        "attacks": (names("attacks"), _attack),
        "claims": (claims, lambda known: _claim(claims[known])),
        "defenses": (names("defenses"), _defense),
        "methods": (names("methods"), _method),
        "targets": (targets(), _target),
        "presets": (presets(), _preset),
    }
    for known, explanation in explained.values():
        if name in known:
            return explanation(name)
    if "+" in name and set(name.split("+")) <= set(names("methods")):
        return _combined(name)
    everything = [one for known, _ in explained.values() for one in known]
    near = difflib.get_close_matches(name.lower(), everything, n=1, cutoff=0.4)
    meant = f"did you mean {near[0]!r}? " if near else ""
    raise UsageError(f"nothing is called {name!r}; {meant}`fdgsec list` has {', '.join(explained)}.")


def _attack(name: str) -> Explanation:
    cls = cast(type[Attack], resolve("attacks", name))
    title, *rest = _paragraphs(_module_doc(cls))
    released = {target: method for target, method in _targets().items() if cls.reads & method.released_kinds}
    by_target = {target: _asked(cls, method) for target, method in released.items()}
    lines = [f"{target}: {said}" for target, (_, said) in by_target.items()]
    rows = [
        ("what", "\n\n".join([*rest, _doc(cls)])),
        ("reads", f"{_kinds(cls.reads)}: one of them must be released"),
        ("needs", _listed(cls.needs) or "nothing beside what it sees"),
        ("targets, and the adversaries who can", "\n".join(lines) or "none of those that are built in"),
        ("positive control: planted information that it must find", _doc(cls.positive_control)),
        ("negative control: exchanged messages, in which it must find nothing", _doc(cls.negative_control)),
        ("measurements", ", ".join(MEASUREMENTS[name]) if name in MEASUREMENTS else "as its reports name them"),
        (f"options (--set attacks.{name}.OPTION=VALUE)", _options(cls)),
        ("run it", _command(cls, name, {target: able for target, (able, _) in by_target.items() if able}, released)),
    ]
    return Explanation(name=name, kind="attack", title=title, sections=[*rows, *_page(name)])


def _targets() -> dict[str, Method]:
    """The methods of all targets, without plug-ins that have options without defaults."""
    made: dict[str, Method] = {}
    for name, target in targets().items():
        with suppress(UsageError):
            made[name] = target_method(target)
    return made


def _asked(cls: type[Attack], method: Method) -> tuple[list[str], str]:
    """The adversaries for whom the attack applies to `method`, and the same in words, or the reason for none."""
    able, reasons = [], list[str]()
    for name, adversary in ADVERSARIES.items():
        lacking = cls.needs - set(adversary.knows)
        try:
            if lacking:
                raise UsageError(f"the adversary {name} does not know {_listed(lacking)}")
            if cls().plan(_facts(method, adversary, "full")):
                able.append(name)
        except UsageError as error:
            reasons.append(str(error))
    return able, ", ".join(able) if able else f"nobody: {reasons[0] if reasons else 'it asks nothing of it'}"


def _facts(method: Method, adversary: Adversary, profile: Literal["quick", "full"]) -> TargetFacts:
    return TargetFacts(
        artifact_kinds=method.released_kinds, clients=3, images_per_client=500, classes=7, profile=profile,
        knows=frozenset(adversary.knows), pooled=method.shares_means, weighted=method.weighted_statistic is not None,
    )  # fmt: skip


def _command(cls: type[Attack], name: str, able: Mapping[str, Sequence[str]], methods: Mapping[str, Method]) -> str:
    """The command for the first target and adversary, in the full profile where the attack refuses the quick one."""
    if not able:
        return f"fdgsec attack --target TARGET --attack {name}"
    target, adversaries = next(iter(able.items()))
    who = "server" if "server" in adversaries else adversaries[0]
    rounds = " --rounds 1" if methods[target].needs_training else ""
    adversary = "" if who == "server" else f" --adversary {who}"
    profile = ""
    try:
        cls().plan(_facts(methods[target], ADVERSARIES[who], "quick"))
    except UsageError:
        profile = " --profile full"
    return f"fdgsec attack --target {target}{rounds} --attack {name}{adversary}{profile}"


def _page(name: str) -> list[tuple[str, str]]:
    """SECTIONS of the attack's docs page in a checkout; nothing in an installed package."""
    path = Path(__file__).parents[2] / "docs" / "attacks" / f"{name}.md"
    if not path.is_file():
        return []
    _, *parts = f"\n{path.read_text()}".split("\n## ")
    found = {heading: text.strip() for heading, _, text in (part.partition("\n") for part in parts)}
    shown = [(heading, found[heading]) for heading in SECTIONS if heading in found]
    return [*shown, ("page", f"docs/attacks/{name}.md")]


def _claim(claim: Claim) -> Explanation:
    rows = [
        ("paper", f"{claim.paper}, {claim.section}"),
        ("the paper's words", "\n".join(f'"{quote}"' for quote in claim.quotes)),
    ]
    if claim.context:
        rows.append(("their context", "\n".join(f'"{sentence}"' for sentence in claim.context)))
    if claim.untestable:
        rows.append(("not a testable claim", f"{claim.untestable}."))
    if claim.measured is not None and claim.scope is not None:
        rows += [
            ("holds if", claim.holds_if),
            ("scope", f"{claim.scope.sharing}\n{claim.scope.clients}\n{claim.scope.attacker}"),
            ("decided by", f"{_probe(claim.measured)}, with {_encoders(claim)}"),
            ("against it speak", "\n".join(_criteria(claim))),
        ]
    if claim.compared is not None:
        rows.append(("compared with", claim.compared.says))
    notes = [f"{note.says}: {_probe(note.probe)}" for note in claim.notes()]
    rows += [("beyond the claim", "\n".join(notes))] if notes else []
    rows.append(("command", f"fdgsec claims --claim {claim.id} --dataset pacs --encoder vgg19"))
    return Explanation(name=claim.id, kind="claim", title=f"A claim of {claim.paper}", sections=rows)


def _probe(probe: Probe) -> str:
    also = [f"{key} {value}" for key, value in probe.run.items()] + list(probe.settings)
    return f"{probe.attack} by {PARTIES[probe.adversary]} on {probe.target}" + (f" ({', '.join(also)})" if also else "")


def _encoders(claim: Claim) -> str:
    return ENCODER_KINDS[claim.encoder] + (" that have a decoder" if claim.needs_decoder else "")


def _criteria(claim: Claim) -> list[str]:
    return [criterion_text(row, compared=claim.compared is not None) for row in claim.rows()]


def _defense(name: str) -> Explanation:
    cls = resolve("defenses", name)
    title, *rest = _paragraphs(_module_doc(cls))
    rows = [
        ("what", "\n\n".join([*rest, _doc(cls)])),
        ("acts", "\n".join(_where(cls))),
        (f"options (--defense {name}:OPTION=VALUE,...)", _options(cls)),
    ]
    made = _with_defaults(cls)
    if made is not None:
        rows += [("assumptions", "\n".join(made.assumptions) or "none"), ("methods", _methods(made))]
    rows.append(("run it", f"fdgsec attack --target ccst-overall --defense {name}" + ("" if made else ":OPTION=VALUE")))
    page = Path(__file__).parents[2] / "docs" / "defenses" / f"{name}.md"
    rows += [("page", f"docs/defenses/{name}.md")] if page.is_file() else []
    return Explanation(name=name, kind="defense", title=title, sections=rows)


def _method(name: str) -> Explanation:
    cls = cast(type[Method], resolve("methods", name))
    title, *rest = _paragraphs(_module_doc(cls))
    attacked = [target for target, known in targets().items() if known.method == name]
    rows = [
        ("what", "\n\n".join([*rest, _doc(cls)])),
        ("sends", _releases(_with_defaults(cls))),
        ("targets of attacks", "\n".join(f"{target}: {targets()[target].summary}" for target in attacked)),
        ("options (--set method.OPTION=VALUE)", _options(cls)),
        ("run it", f"fdgsec train --method {name}\nfdgsec attack --target {attacked[0] if attacked else name}"),
    ]
    if name in presets():
        rows.append((f"--preset {name}", "\n".join(value_lines(name))))
    return Explanation(name=name, kind="method", title=title, sections=rows)


def _combined(name: str) -> Explanation:
    first, *local = name.split("+")
    rows = [("methods", "\n".join(f"{each}: `fdgsec explain {each}`" for each in (first, *local)))]
    rows.append(("run it", f"fdgsec train --method {first} " + " ".join(f"--with {each}" for each in local)))
    return Explanation(
        name=name, kind="method", title=f"{first}, with {' and '.join(local)} on each client", sections=rows
    )


def _target(name: str) -> Explanation:
    target = targets()[name]
    fixed = "\n".join(f"{option} = {value}" for option, value in target.options.items())
    rows = [
        ("method", f"{target.method} (`fdgsec explain {target.method}`)"),
        ("its options here", fixed or "all at their defaults"),
        ("sends", _releases(_targets().get(name))),
        ("run it", f"fdgsec attack --target {name}"),
    ]
    return Explanation(name=name, kind="target", title=target.summary, sections=rows)


def _preset(name: str) -> Explanation:
    experiment = preset_experiment(name)
    if experiment is None:
        raise UsageError(f"preset {name} has no table [experiment]; name the method and the protocol it belongs to.")
    values, followed = preset_values(name), "code" if name.endswith("-released") else "paper"
    apart = [f"{key} = {written(values[key])}: {source.note}" for key, source in deviations(name).items()]
    dataset = f" --dataset {experiment.dataset}" if experiment.dataset else ""
    rows = [
        ("experiment", _experiment(experiment)),
        ("values: ours, the paper's (where), the authors' code's", "\n".join(value_lines(name))),
        (f"not the {followed}'s, or where it is silent the other's", "\n".join(apart) or "none"),
        ("run it", f"fdgsec train --preset {name}{dataset}"),
    ]
    if not sources(experiment.method):
        rows[2] = ("sources", "the comments of its file; ccst, stablefdg, feddag, fisc and fedalign have a table")
    title = f"settings of {experiment.method} for `fdgsec train --preset {name}`"
    return Explanation(name=name, kind="preset", title=title, sections=rows)


def _experiment(experiment: PresetExperiment) -> str:
    if not experiment.protocol:
        return experiment.why
    where = f"arm {experiment.arm} of `fdgsec bench --protocol {experiment.protocol} --dataset {experiment.dataset}`"
    apart = f"; that table sets for all its arms: {', '.join(experiment.differs)}" if experiment.differs else ""
    return f"{where}{apart}\nvalues that it does not state are the defaults of `fdgsec explain {experiment.method}`"


def _releases(method: Method | None) -> str:
    """What a method sends with these options, one line per release: stage, slot, kind and statistic."""
    if method is None:
        return "depends on options without defaults"
    lines = []
    for release in method.releases:
        statistic = f", {type(release.statistic).__name__}" if release.statistic is not None else ""
        lines.append(f"{release.stage} {release.slot}: {release.kind.kind}{statistic}")
    return "\n".join(lines)


PLACES: Mapping[type, str] = {
    TrainsPrivately: "on training, in every client",
    HasPolicy: "on the wire, on all clients' uploads together",
    Inspects: "where messages are received",
    Filter: "at the server, on what it received",
    PartlyUndone: "in part only: whoever knows its options undoes the rest",
}


def _where(cls: type[Defense]) -> list[str]:
    found = [said for protocol, said in PLACES.items() if _has(cls, protocol)]
    own = inspect.getsource(cls.on_message)
    return (
        found
        if "return None" in own and len(own.splitlines()) < 5
        else ["on messages, where they leave a client", *found]
    )


def _has(cls: type, protocol: type) -> bool:
    """Whether a class has all members of a protocol, without an instance, which may need options."""
    asked = {name for name in vars(protocol) if not name.startswith("_")}
    return bool(asked) and all(hasattr(cls, name) for name in asked)


T = TypeVar("T")


def _with_defaults(cls: type[T]) -> T | None:
    """A defense or method with its default options, None if an option has no default."""
    try:
        return cls()
    except (FdgsecError, TypeError):
        return None


def _methods(defense: Defense) -> str:
    refused = []
    for name in names("methods"):
        try:
            defense.check(resolve("methods", name)())
        except UsageError as error:
            refused.append(f"not {name}: {error}")
        except TypeError:  # a method without defaults
            continue
    return "\n".join(refused) or "all, with their default options"


def _options(cls: type) -> str:
    lines = [f"{spec.name} = {_default(spec)}" for spec in fields(cls) if spec.init]
    return "\n".join(lines) or "none"


def _default(spec: "Field[object]") -> str:
    if spec.default is not MISSING:
        return "none" if spec.default is None else str(spec.default)
    return str(spec.default_factory()) if spec.default_factory is not MISSING else "(must be given)"


def _listed(values: frozenset[str] | set[str]) -> str:
    return ", ".join(sorted(values))


def _kinds(kinds: frozenset[str]) -> str:
    return ", ".join(sorted(map(kind_in_words, kinds))) or "nothing"


def _module_doc(cls: type) -> str:
    return inspect.cleandoc(sys.modules[cls.__module__].__doc__ or _doc(cls))


def _doc(thing: object) -> str:
    return inspect.getdoc(thing) or "(it does not say)"


def _paragraphs(text: str) -> list[str]:
    return [part.strip() for part in text.split("\n\n") if part.strip()]

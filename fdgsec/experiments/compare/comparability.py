"""Which runs may be compared: what two runs must share, the groups that share it, and when two rows are alike."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fdgsec.experiments.bench.comparability import unequal_steps
from fdgsec.experiments.compare.compared_run import NONE, ComparedRun
from fdgsec.experiments.report.words import listed
from fdgsec.experiments.run_config import LATER
from fdgsec.metrics.measurement import Measurement

Shared = Mapping[str, str]


def conditions(run: ComparedRun) -> Shared:
    """What must be the same in two runs whose numbers are compared, in words; what a run does not have is left out."""
    dataset, adversary, report = run.report.dataset, run.adversary, run.report
    found = {
        "datasets": str(dataset["name"]),
        "images": f"{dataset['images']} (manifest {str(dataset.get('manifest_sha256', ''))[:8]})",
        "image sizes": _side(run.settings, "image_size", "the dataset's own"),
        "sizes at which styles are computed": _side(run.settings, "style_size", "the images' own")
        if report.encoder not in NONE else "",
        "unseen domains": run.unseen,
        "roles of the images": _counted(dataset.get("roles")),
        "auxiliary images": _auxiliary(run.settings),
        "splits into training, validation and test": _splits(run.settings),
        "partitions into clients": _partition(run.settings),
        "encoders": run.encoder,
        "adversaries": str(adversary.get("name", "")),
        "what the adversaries see and know": json.dumps([adversary.get("taps"), adversary.get("knows")])
        if adversary else "",
        "profiles": report.profile if run.attacked else "",
        "seeds": str(report.seed),
        **{f"options of {name}": said for name, said in _options(run).items()},
    }  # fmt: skip
    return {name: said for name, said in found.items() if said}


def _auxiliary(settings: Mapping[str, Any]) -> str:
    """How many auxiliary images an adversary was given, in words; empty where a run does not state it."""
    asked = settings.get("auxiliary", LATER["auxiliary"])
    if not settings:
        return ""
    return "the usual share" if asked is None else str(asked) if isinstance(asked, str) else f"{asked} per domain"


def _splits(settings: Mapping[str, Any]) -> str:
    """How images are set aside for validation and test, in words; empty where a run does not state it."""
    if "splits" not in settings:
        return ""
    shares = {
        name: settings.get(name, LATER[name]) for name in ("validation_share", "source_test_share", "target_share")
    }
    named = {
        "validation_domain": settings.get("validation_domain"),
        **shares,
        "roles": settings.get("roles", LATER["roles"]),
    }
    return f"{settings['splits']}: " + ", ".join(f"{name} {said}" for name, said in named.items() if said is not None)


def _options(run: ComparedRun) -> Mapping[str, str]:
    """The options of each attack of a run, in words: an attack with other options is another measurement."""
    if not run.settings:
        return {}
    given = run.settings.get("attack_options")
    table = given if isinstance(given, Mapping) else {}
    return {each.name: _listed_options(table.get(each.name)) for each in run.report.attacks}


def _listed_options(options: object) -> str:
    chosen = options if isinstance(options, Mapping) else {}
    return (
        ", ".join(f"{name}={json.dumps(value, sort_keys=True)}" for name, value in sorted(chosen.items())) or "defaults"
    )


def _partition(settings: Mapping[str, Any]) -> str:
    """How images are divided among clients, in words; empty where a run does not state it."""
    if "partition" not in settings:
        return ""
    kind, clients = settings["partition"] or "the dataset's own", settings.get("clients")
    skewed = f", {settings.get('heterogeneity')}" if kind in ("dirichlet", "lambda") else ""
    return f"{kind}{skewed}, {'its own number' if clients is None else clients} of clients"


def _side(settings: Mapping[str, Any], name: str, own: str) -> str:
    """A size in words; empty where a run does not state it."""
    size = settings.get(name)
    return "" if name not in settings else own if size is None else f"{size} px"


def _counted(roles: object) -> str:
    """The numbers of images by role and domain or client, as text in a fixed order."""
    return json.dumps(roles, sort_keys=True) if roles else ""


def reasons(runs: Sequence[ComparedRun]) -> list[str]:
    """What differs between the runs so that numbers do not compare, with the runs that have each value."""
    every = [conditions(run) for run in runs]
    found = []
    for name in dict.fromkeys(name for shared in every for name in shared):
        values = dict.fromkeys(shared[name] for shared in every if name in shared)
        if len(values) > 1:
            found.append(f"other {name}: {_who(name, values, runs, every)}")
    return found


def _who(name: str, values: Mapping[str, None], runs: Sequence[ComparedRun], every: Sequence[Shared]) -> str:
    """`mini (A and B); pixels (C)`; of what is too long to show, only who shares it."""
    parts = []
    for value in values:
        named = listed([run.label for run, shared in zip(runs, every, strict=True) if shared.get(name) == value])
        parts.append(f"{value} ({named})" if len(value) <= 60 and value[:1] not in "[{" else named)
    return "; ".join(parts)


def comparable(one: ComparedRun, other: ComparedRun) -> bool:
    """Whether two runs have the same conditions, as far as both state them."""
    first, second = conditions(one), conditions(other)
    return all(first[name] == second[name] for name in first.keys() & second.keys())


def groups_of(runs: Sequence[ComparedRun]) -> list[list[int]]:
    """The runs by number, in groups all of whose members are comparable with each other."""
    groups: list[list[int]] = []
    for number, run in enumerate(runs):
        fitting = (group for group in groups if all(comparable(run, runs[member]) for member in group))
        group = next(fitting, None)
        if group is None:
            groups.append([number])
        else:
            group.append(number)
    return groups


def unlike_rows(rows: Sequence[Measurement]) -> str:
    """Why rows of one name and slice are not alike: other units or directions, numbers of answers, or baselines."""
    for what, found in (
        ("units", [row.unit or "none" for row in rows]),
        ("what higher values mean", [row.higher_is for row in rows]),
        ("n", [str(row.n) for row in rows]),
    ):  # fmt: skip
        if len(distinct := list(dict.fromkeys(found))) > 1:
            return f"{what} {'differs' if what != 'units' else 'differ'}: {', '.join(distinct)}"
    exact = dict.fromkeys(f"{row.chance:.6g}" for row in rows if row.chance_kind == "exact" and row.chance is not None)
    kinds = {row.chance_kind for row in rows if row.value is not None}
    if len(exact) > 1 or len(kinds) > 1:
        return f"baselines differ: {', '.join(exact) or listed(sorted(kinds))}"
    return ""


def unlike_training(runs: Sequence[ComparedRun]) -> str:
    """Why accuracies of comparable runs are not alike: another number of optimizer steps than the first run's."""
    rows = [
        {"domain": run.unseen, "seed": run.report.seed, "accuracy": run.report.accuracy}
        for run in runs if run.report.accuracy is not None
    ]  # fmt: skip
    return next((said for row in rows[1:] if (said := unequal_steps([row], [rows[0]]))), "")

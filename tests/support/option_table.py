"""The options of all verbs as a table, with a reason for every gap: `python -m tests.support.option_table` prints it.

docs/command-line.md holds what is printed between its two marks."""

from collections.abc import Mapping

import click
import typer

from fdgsec.cli.app import VERBS, app

WORKING = ("attack", "train", "sweep", "audit", "bench", "claims")
"""The verbs that compute; the others read what these wrote, or keep house."""

PROTOCOL = "the protocol decides it"
OWN_NAME = "has the same under another name"
REASONS: Mapping[str, Mapping[str, str]] = {
    "--attack": {
        "train": "runs no attack", "audit": "has one adversary of its own, the auditor", "bench": "runs no attack",
        "claims": "a claim names its attack (--claim)",
    },
    "--backbone": {"claims": "a claim's target decides it"},
    "--batch-size": {
        "sweep": PROTOCOL, "bench": PROTOCOL + "; --set method.plan.batch_size", "audit": "--set method.plan.batch_size",
        "claims": "a claim's target decides it",
    },
    "--clients": {"claims": "each claim is about its paper's clients"},
    "--client-timeout": {verb: "runs in this process" for verb in ("sweep", "audit", "bench", "claims")},
    "--ca": {verb: "runs in this process" for verb in ("sweep", "audit", "bench", "claims")},
    "--config": {
        "sweep": "no preset is of a sweep", "audit": "no preset is of an audit", "bench": "a protocol is its file (--protocol)",
        "claims": "the ledger is its file (--registration)",
    },
    "--defense": {"bench": "compares methods; sweep measures the accuracy of defenses", "claims": "is about undefended methods"},
    "--dry-run": {
        "sweep": "--limit 0 plans and computes nothing", "audit": "runs one attack with a stated number of --runs",
        "bench": "--limit 0 plans and computes nothing", "claims": "its plan is `fdgsec list claims`",
    },
    "--engine": {verb: "runs in this process" for verb in ("sweep", "audit", "bench", "claims")},
    "--epochs": {
        "sweep": PROTOCOL, "bench": PROTOCOL + "; --set method.plan.epochs", "audit": "--set method.plan.epochs",
        "claims": "a claim's target decides it",
    },
    "--federation": {verb: "runs in this process" for verb in ("sweep", "audit", "bench", "claims")},
    "--fresh": {
        "sweep": "other settings are other points; another --out starts anew", "audit": "keeps nothing that it could reuse",
        "bench": "other settings are other cells; another --out starts anew",
    },
    "--insecure": {verb: "runs in this process" for verb in ("sweep", "audit", "bench", "claims")},
    "--lr": {
        "sweep": PROTOCOL, "bench": PROTOCOL + "; --set method.plan.learning_rate", "audit": "--set method.plan.learning_rate",
        "claims": "a claim's target decides it",
    },
    "--limit": {
        "attack": "has one point", "train": "has one point", "audit": "has one point; --runs says how many messages",
        "claims": "--claim chooses",
    },
    "--norm": {"bench": PROTOCOL, "claims": "a claim's target decides it"},
    "--partition": {"bench": PROTOCOL, "claims": "each claim is about its paper's clients"},
    "--heterogeneity": {"bench": PROTOCOL, "claims": "each claim is about its paper's clients"},
    "--per-class": {
        "attack": "--per-domain; attacks need many images of a class", "sweep": "--per-domain", "audit": "--per-domain",
        "claims": "--per-domain",
    },
    "--preset": {
        "sweep": "no preset is of a sweep", "audit": "no preset is of an audit", "bench": "a protocol is its file (--protocol)",
        "claims": "the ledger is its file",
    },
    "--pretrained": {"claims": "a claim's target decides it"},
    "--profile": {"train": "has no caps", "audit": "--runs and --repeats", "bench": "has no caps"},
    "--protocol": {
        "attack": "trains by --preset or its options", "train": "trains by --preset or its options", "audit": "trains no table",
        "claims": "trains no table",
    },
    "--rounds": {"claims": "a claim's target decides it"},
    "--seed": {"bench": OWN_NAME + " (--seeds)", "claims": OWN_NAME + " (--seeds)"},
    "--seeds": {"attack": "one report is of one seed", "audit": OWN_NAME + " (--repeats)"},
    "--set": {"claims": "a changed method is not the paper's"},
    "--style-size": {"bench": PROTOCOL, "claims": "encodes as the papers do"},
    "--target": {"train": OWN_NAME + " (--method)", "bench": OWN_NAME + " (--methods)", "claims": "a claim names its target"},
    "--threads": {
        "sweep": "takes one thread each, and --workers", "audit": "takes one thread", "bench": "takes one thread each, and --workers",
        "claims": "takes one thread each, and --workers",
    },
    "--unseen-domain": {"bench": OWN_NAME + " (--domains)"},
    "--wait": {verb: "runs in this process" for verb in ("sweep", "audit", "bench", "claims")},
    "--workers": {"audit": "runs one audit after the other"},
    "--allow-partial": {
        "bench": "a paper's table is of the whole dataset", "claims": "a claim is of the whole dataset",
    },
}  # fmt: skip
"""Why a working verb lacks an option that two others have."""


def options() -> dict[str, list[str]]:
    """The long name of every option, with the verbs that take it, in the order of the help page."""
    root = typer.main.get_command(app)
    assert isinstance(root, click.Group)
    context = click.Context(root)
    found: dict[str, list[str]] = {}
    for name in VERBS:
        command = root.get_command(context, name)
        assert command is not None
        for verb, each in _commands(name, command):
            for param in each.params:
                if isinstance(param, click.Option):
                    found.setdefault(_name(param), []).append(verb)
    return found


def _commands(name: str, command: click.Command) -> list[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        return [(f"{name} {sub}", each) for sub, each in command.commands.items()]
    return [(name, command)]


def _name(param: click.Option) -> str:
    return next((each for each in param.opts if each.startswith("--")), param.opts[0])


def gaps() -> dict[str, list[str]]:
    """The working verbs without an option that two or more of them take."""
    taken = {name: [verb for verb in WORKING if verb in verbs] for name, verbs in options().items()}
    return {
        name: [v for v in WORKING if v not in verbs] for name, verbs in taken.items() if 1 < len(verbs) < len(WORKING)
    }


def table() -> str:
    """The Markdown of docs/command-line.md."""
    found, missing = options(), gaps()
    every = [name for name, verbs in found.items() if len(verbs) == len({v for each in found.values() for v in each})]
    shared = [name for name, verbs in found.items() if name not in every and sum(v in verbs for v in WORKING) > 1]
    lines = ["Every verb takes " + ", ".join(f"`{name}`" for name in sorted(every)) + ".", ""]
    lines += ["| option | " + " | ".join(WORKING) + " |", "|---|" + "---|" * len(WORKING)]
    for name in sorted(shared):
        cells = ["yes" if verb in found[name] else REASONS[name][verb] for verb in WORKING]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    lines += ["", "| verb | its other options |", "|---|---|"]
    verbs = dict.fromkeys(verb for each in found.values() for verb in each)
    for verb in verbs:
        own = [f"`{name}`" for name, each in found.items() if verb in each and name not in (*every, *shared)]
        own += [f"`{name}`" for name in shared if verb in found[name]] if verb not in WORKING else []
        lines.append(f"| `{verb}` | {', '.join(own) or 'none'} |")
    assert set(missing) <= set(REASONS)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")

"""Commands on pages are commands: every one is parsed, its names and options are known, and its settings are accepted."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from fdgsec.cli.app import app
from fdgsec.experiments.explain import explain
from fdgsec.experiments.explain_words import explained_word
from fdgsec.experiments.preset_sources import preset_experiment
from fdgsec.experiments.run_config import attack_settings, train_settings
from fdgsec.experiments.settings import Settings
from tests.support.pages import PAGES, ROOT, blocks, commands

SHELL = ("", "sh", "bash")
OF_A_PLUGIN = "docs/extending.md"  # tests/conformance/test_extending.py runs its commands with the package installed
STANDARD = {"pip", "python3", "export", ".", "pytest", "git", "cd", "flower-superlink", "flower-supernode", "flwr"}


@dataclass(frozen=True)
class Command:
    place: str
    words: list[str]

    def __str__(self) -> str:
        return f"{self.place} {' '.join(self.words[:3])}"


def found(*first: str) -> Iterator[Command]:
    for page in PAGES:
        for block in blocks(page) if page.is_file() else ():
            if block.language in SHELL and not block.excused and (block.language or "fdgsec " in block.text):
                yield from (Command(str(block), words) for words in commands(block) if words[0] in first or not first)


FDGSEC = [command for command in found("fdgsec") if not command.place.startswith(OF_A_PLUGIN)]


def parsed(words: list[str]) -> click.Context:
    """The context of a command after all its options were parsed and checked by their types."""
    command = typer.main.get_command(app)
    context, rest, name = click.Context(command, info_name="fdgsec"), words, ""
    while isinstance(command, click.Group) and not (rest and rest[0].startswith("-")):
        name, rest = rest[0], rest[1:]
        inner = command.get_command(context, name)
        assert inner is not None
        if not isinstance(inner, click.Group):
            return inner.make_context(name, list(rest), parent=context)
        command, context = inner, click.Context(inner, info_name=name, parent=context)
    return context


def settings(params: Mapping[str, Any]) -> dict[str, Any]:
    known = {*Settings.__annotations__, "dataset", "adversary", "seed"}
    given = {name: value for name, value in params.items() if name in known and value is not None}
    return {**given, "defenses": params.get("defense") or None}


def test_pages_have_commands():
    assert len(FDGSEC) > 140
    assert {command.words[1] for command in FDGSEC} >= {
        "attack",
        "train",
        "sweep",
        "audit",
        "claims",
        "bench",
        "weights",
    }


@pytest.mark.parametrize("command", FDGSEC, ids=str)
def test_a_command_of_fdgsec_is_accepted(command: Command):
    context = parsed(command.words[1:])
    params = context.params

    assignments = params.get("set_") or ()
    if context.info_name == "attack" and not (params["run"] or params["artifacts"]):
        target = params["target"] or params["positional"] or "ccst-overall"
        given = {**settings(params), "attacks": params["attack"] or None}
        profile, preset = params["profile"] or "quick", params["preset"]
        assert attack_settings(target, given, profile=profile, preset=preset, assignments=assignments)
    if context.info_name == "train":
        preset = params["preset"]
        experiment = preset_experiment(preset) if preset else None
        method = params["method"] or (experiment.method if experiment else "fedavg")
        assert train_settings(method, settings(params), preset=preset, assignments=assignments)
    if context.info_name == "explain":
        assert explained_word(params["name"]) or explain(params["name"])


def test_a_wrong_option_or_name_on_a_page_would_be_found():
    with pytest.raises(click.NoSuchOption):
        parsed(["attack", "--no-such-option"])
    with pytest.raises(Exception, match="did you mean"):
        attack_settings("ccst-overal", {}, profile="quick", preset=None, assignments=())


def test_other_commands_on_pages_are_targets_of_make_modules_of_benchmarks_or_of_the_system():
    makefile = (ROOT / "Makefile").read_text()
    unknown = []
    for command in found():
        words = command.words
        module = re.fullmatch(r"python3? -m (benchmarks[\w.]*).*", " ".join(words))
        if words[0] == "make":
            known = all(
                re.search(rf"^{each}:|^{each} |^\.PHONY:.*\b{each}\b", makefile, re.MULTILINE) for each in words[1:]
            )
        elif module is not None:
            path = ROOT / Path(*module[1].split("."))
            known = path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()
        elif words[0] == "python":
            known = words[1] in ("-m", "-c") or (ROOT / words[1]).is_file()
        else:
            known = words[0] in STANDARD | {"fdgsec"}
        if not known:
            unknown.append(str(command))

    assert unknown == []

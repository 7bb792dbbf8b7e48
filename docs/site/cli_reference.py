"""The reference of the command line, as Markdown, from the commands themselves.

`python docs/site/cli_reference.py` prints it; the site makes it anew in every build."""

import re
from collections.abc import Iterator

import click
import typer

from fdgsec.cli.app import VERBS, app
from fdgsec.cli.help_pages import option_groups

BEGINNING = """# Command line

Every verb of `fdgsec` with its options, made from the commands. `fdgsec VERB --help` prints the same. Exit codes: 0
done, 1 a run failed, 2 wrong input, 3 something is missing (a dataset, weights, an extra), 130 interrupted.

"""


def page() -> str:
    """The whole page: a section for each verb, and one below it for each of its subcommands."""
    root = typer.main.get_command(app)
    assert isinstance(root, click.Group)
    context = click.Context(root, info_name="fdgsec")
    return BEGINNING + "\n".join(line for verb in VERBS for line in _command(root, verb, context, 2))


def _command(group: click.Group, name: str, parent: click.Context, level: int) -> Iterator[str]:
    command = group.get_command(parent, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=parent)
    yield f"{'#' * level} fdgsec {context.command_path.removeprefix('fdgsec ')}\n"
    yield f"    {_one_line(command.get_usage(context))}\n"
    yield f"{_escaped(_one_line(command.help or ''))}\n"
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            yield from _command(command, each, context, level + 1)
        return
    for panel, rows in option_groups(command, context).items():
        yield f"| {panel} | |\n|---|---|"
        yield from (f"| `{option}` | {_cell(_escaped(said))} |" for option, said in rows)
        yield ""


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _cell(text: str) -> str:
    return _one_line(text).replace("|", "\\|")


def _escaped(text: str) -> str:
    """Help is plain text: nothing in it is Markdown, except for code between backticks."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return re.sub(r"([<>\[\]*_`])", r"\\\1", text)
    return "`".join(part if i % 2 else re.sub(r"([<>\[\]*_])", r"\\\1", part) for i, part in enumerate(parts))


if __name__ == "__main__":
    print(page(), end="")

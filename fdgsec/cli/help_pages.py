"""Help pages: options in groups, as plain text, and the options that every verb has."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import click
from typer.core import TyperOption
from typer.utils import get_params_from_function

from fdgsec.runtime.errors import UsageError
from fdgsec.runtime.progress import say_more_or_less

OTHERS = "Output"
PANELS = ("Options", "Data", "Method", "Training", "Attack", "Your own vectors", "Federation", OTHERS)
"""The groups of options in their order."""


def completed(command: click.Command) -> click.Command:
    """Give a verb, or each of its subcommands, the options that all have, and a help page with groups."""
    if isinstance(command, click.Group):
        for each in command.commands.values():
            completed(each)
        return command
    command.params += _common()
    command.format_options = lambda ctx, formatter: _options(command, ctx, formatter)  # type: ignore[method-assign]
    return command


def _argument_help(command: click.Command) -> dict[str, str]:
    """The help of a command's arguments, as declared: newer versions of click drop what typer sets."""
    if command.callback is None:
        return {}
    function = inspect.unwrap(command.callback, stop=lambda each: "__signature__" in vars(each))
    declared = get_params_from_function(function)
    return {name: str(getattr(about.default, "help", "") or "") for name, about in declared.items()}


def _common() -> list[click.Option]:
    def says(name: str) -> Callable[[click.Context, click.Parameter, object], object]:
        def chosen(_ctx: click.Context, _param: click.Parameter, value: object) -> object:
            if isinstance(value, Path):
                _check_appendable(value)
            if value:
                say_more_or_less(**{name: value})
            return value

        return chosen

    path = click.Path(dir_okay=False, path_type=Path)
    return [
        click.Option(
            ["--quiet", "-q"], is_flag=True, expose_value=False, callback=says("quiet"),
            help="Show no progress, and print no more than the answer.",
        ),
        click.Option(
            ["--verbose", "-v"], is_flag=True, expose_value=False, callback=says("verbose"),
            help="Say on stderr when each step ends.",
        ),
        click.Option(
            ["--log-file"], type=path, expose_value=False, callback=says("log_file"),
            help="Append what each step says to this file.",
        ),
    ]  # fmt: skip


def _check_appendable(path: Path) -> None:
    """Raise UsageError where nothing can be appended to the log file `path`, which is made if it is not there."""
    try:
        path.open("a").close()
    except OSError as error:
        raise UsageError(f"--log-file {path} cannot be written: {error.strerror or error}.") from error


def _options(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Write arguments, then options by group."""
    for name, rows in option_groups(command, ctx).items():
        with formatter.section(name):
            formatter.write_dl(rows)


def option_groups(command: click.Command, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
    """What the help page lists under each heading, in its order: an argument or option, and what it does."""
    groups: dict[str, list[tuple[str, str]]] = {}
    arguments = _argument_help(command)
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is not None:
            text = plain_help(record[1])
            if isinstance(param, click.Argument):
                text = f"{arguments.get(param.name or '', '')}  {text}".strip()
            groups.setdefault(_panel(param), []).append((record[0], text))
    order = sorted(groups, key=lambda name: (name != "Arguments", PANELS.index(name) if name in PANELS else -1))
    return {name: groups[name] for name in order}


def plain_help(text: str) -> str:
    """Help as typer writes it, without the backslashes that are meant for rich, and defaults without parentheses."""
    return re.sub(r"\[default: \((.+?)\)(?=[;\]])", r"[default: \1", text.replace("\\[", "["))


def _panel(param: click.Parameter) -> str:
    if isinstance(param, click.Argument):
        return "Arguments"
    if isinstance(param, TyperOption):
        panel = param.rich_help_panel
        return panel if isinstance(panel, str) else "Options"
    return OTHERS

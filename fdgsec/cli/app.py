"""The command line: verbs that are imported when called, and errors as one line with an exit code."""

import logging
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

import click
import typer
from typer.core import TyperGroup

from fdgsec.cli.help_pages import completed
from fdgsec.runtime.disk_room import system_line
from fdgsec.runtime.errors import FdgsecError, message_line, unknown_name
from fdgsec.runtime.interruption import Interrupted
from fdgsec.runtime.invocation import invoked_with
from fdgsec.runtime.progress import Output, output_as
from fdgsec.runtime.version import __version__
from fdgsec.runtime.worker_processes import keep_freed_memory

VERBS: Mapping[str, str] = {
    "attack": "fdgsec.cli.attack:command",
    "audit": "fdgsec.cli.audit:command",
    "claims": "fdgsec.cli.claims:command",
    "sweep": "fdgsec.cli.sweep:command",
    "train": "fdgsec.cli.train:command",
    "bench": "fdgsec.cli.bench:command",
    "serve": "fdgsec.cli.serve:command",
    "join": "fdgsec.cli.join:command",
    "list": "fdgsec.cli.list_verb:command",
    "plot": "fdgsec.cli.plot:command",
    "report": "fdgsec.cli.report:command",
    "runs": "fdgsec.cli.runs:command",
    "compare": "fdgsec.cli.compare:command",
    "gate": "fdgsec.cli.gate:command",
    "explain": "fdgsec.cli.explain:command",
    "doctor": "fdgsec.cli.doctor:command",
    "data": "fdgsec.cli.data:app",
    "weights": "fdgsec.cli.weights:app",
    "cache": "fdgsec.cli.cache:app",
}


class _Stopped(Exception):
    """Ctrl-C, past typer, which would end the command with 130 and without a word."""


class LazyVerbs(TyperGroup):
    """The group of all verbs; a verb's module is imported when the verb is called or its help is listed."""

    def invoke(self, ctx: click.Context) -> object:
        """Call the verb. Raises _Stopped where the user interrupts it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            raise _Stopped(f"interrupted: {stop}" if isinstance(stop, Interrupted) else "interrupted") from stop

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The verbs' names in the order of the help page."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:  # noqa: ARG002 - click's signature
        """Import a verb. Raises UsageError with the nearest name for an unknown one."""
        if cmd_name not in VERBS:
            raise unknown_name("command", cmd_name, VERBS)
        module, _, attribute = VERBS[cmd_name].partition(":")
        verb = getattr(import_module(module), attribute)
        if not isinstance(verb, typer.Typer):
            single = typer.Typer(add_completion=False, rich_markup_mode=None)
            single.command(cmd_name)(verb)
            verb = single
        return completed(typer.main.get_command(verb))


app = typer.Typer(
    name="fdgsec", cls=LazyVerbs, no_args_is_help=True, add_completion=True, rich_markup_mode=None,
    pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]},
    help="Privacy and security analysis of federated domain generalization.",
)  # fmt: skip


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and end."),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    context.obj = {"debug": debug}
    if version:
        typer.echo(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and give its exit code: 0 done, 1 a run failed, 2 bad input, 3 a resource is missing,
    130 interrupted."""
    if arguments is None:  # a process of its own, not a caller's
        keep_freed_memory()
        logging.getLogger("matplotlib").setLevel(logging.ERROR)  # of a cache folder that it cannot write
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [item for item in given if item != "--debug"]
    try:
        with output_as(Output()), invoked_with(given):
            result = app(given, prog_name="fdgsec", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        typer.echo(error.ctx.get_help() if error.ctx is not None else error.format_message())
        return 0
    except _Stopped as stop:
        return _fail(str(stop), 130)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", 130)
    except BrokenPipeError:
        return 0
    except Exception as error:
        if debug:
            raise
        return _fail(*_line_and_code(error))
    return result if isinstance(result, int) else 0


def _line_and_code(error: Exception) -> tuple[str, int]:
    if isinstance(error, click.ClickException):
        where = f" (see `{error.ctx.command_path} --help`)" if isinstance(error, click.UsageError) and error.ctx else ""
        return error.format_message() + where, 2
    if isinstance(error, FdgsecError):
        return str(error), error.exit_code
    if refused := system_line(error):
        return refused, 1
    return f"{type(error).__name__}: {error} (a defect of fdgsec; add --debug for the traceback)", 1


def _fail(text: str, code: int) -> int:
    print(f"fdgsec: {message_line(text)}", file=sys.stderr)
    return code

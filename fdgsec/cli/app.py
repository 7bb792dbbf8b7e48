"""Collects the verbs, and turns every error a user can meet into one line and an exit code."""

import sys
from collections.abc import Sequence

import click
import typer

from fdgsec.cli import (
    attack,
    audit,
    bench,
    cache,
    claims,
    compare,
    data,
    doctor,
    explain,
    join,
    listing,
    plot,
    report,
    serve,
    sweep,
    train,
    weights,
)
from fdgsec.runtime.errors import FdgsecError
from fdgsec.runtime.processes import keep_freed_memory
from fdgsec.runtime.version import __version__

app = typer.Typer(
    name="fdgsec", no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="Privacy and security analysis of federated domain generalization.",
)  # fmt: skip
app.command("attack")(attack.command)
app.command("audit")(audit.command)
app.command("claims")(claims.command)
app.command("sweep")(sweep.command)
app.command("train")(train.command)
app.command("bench")(bench.command)
app.command("serve")(serve.command)
app.command("join")(join.command)
app.command("list")(listing.command)
app.command("plot")(plot.command)
app.command("report")(report.command)
app.command("compare")(compare.command)
app.command("explain")(explain.command)
app.command("doctor")(doctor.command)
app.add_typer(data.app, name="data")
app.add_typer(weights.app, name="weights")
app.add_typer(cache.app, name="cache")


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
    """Run the command line and give its exit code: 0 done, 1 a run failed, 2 bad input, 3 a resource is missing."""
    if arguments is None:  # a process of its own, not a caller's
        keep_freed_memory()
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [item for item in given if item != "--debug"]
    try:
        result = app(given, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        typer.echo(error.ctx.get_help() if error.ctx is not None else error.format_message())
        return 0
    except click.ClickException as error:
        if debug:
            raise
        where = f" (see `{error.ctx.command_path} --help`)" if isinstance(error, click.UsageError) and error.ctx else ""
        return _fail(error.format_message() + where, 2)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", 130)
    except FdgsecError as error:
        if debug:
            raise
        return _fail(str(error), error.exit_code)
    except BrokenPipeError:
        return 0
    except Exception as error:
        if debug:
            raise
        return _fail(f"{type(error).__name__}: {error} (a defect of fdgsec; add --debug for the traceback)", 1)
    return result if isinstance(result, int) else 0


def _fail(text: str, code: int) -> int:
    print(f"fdgsec: {' '.join(text.split())}", file=sys.stderr)
    return code

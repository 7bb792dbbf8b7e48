"""The options that several verbs share: those of `fdgsec.experiments.settings`, and where to read, write and run."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from fdgsec.experiments.settings import Option, Settings

Command = Callable[..., int]


def takes(*names: str) -> Callable[[Command], Command]:
    """Give a command an option for each of these settings, in the place of its parameter `given`, their values by name.

    The value of an option that was not given is None."""
    hints = get_type_hints(Settings, include_extras=True)
    options = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=_option(name, *get_args(hints[name])))
        for name in names
    ]

    def decorated(command: Command) -> Command:
        own = list(signature(command).parameters.values())
        place = [parameter.name for parameter in own].index("given")
        parameters = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in (*own[:place], *options, *own[place + 1 :])]

        @wraps(command)
        def called(**values: Any) -> int:
            return command(given={name: values.pop(name) for name in names}, **values)

        called.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in parameters}
        return called

    return decorated


def _option(name: str, kind: Any, about: Option) -> Any:
    typed = str if get_origin(kind) is Literal else kind  # RunConfig refuses other words, as it does in presets
    flag = about.flag or f"--{name.replace('_', '-')}"
    return Annotated[typed | None, typer.Option(flag, help=about.help, min=about.least)]


Dataset = Annotated[str, typer.Option("--dataset", help="A dataset by name (`fdgsec list datasets`).")]
DataRoot = Annotated[
    Path | None, typer.Option("--data-root", help="Folder or .zip; else $FDGSEC_DATA, else the cache.")
]
Preset = Annotated[
    str | None, typer.Option("--preset", help="A bundled preset (`fdgsec list presets`) or a TOML file.")
]
Seed = Annotated[int, typer.Option("--seed", help="Random seed.")]
ProfileName = Annotated[str, typer.Option("--profile", help="quick (minutes, capped) or full.")]
Defenses = Annotated[list[str] | None, typer.Option("--defense", help="NAME:k=v,...; repeatable, in order.")]
Assignments = Annotated[list[str] | None, typer.Option("--set", help="name.option=value, e.g. method.k=2; repeatable.")]
AllowPartial = Annotated[bool, typer.Option("--allow-partial", help="Go on with an incomplete dataset.")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder for the run; replaced only if fdgsec wrote it.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Reuse no run and no cache.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the document instead of the table.")]
Every = Annotated[bool, typer.Option("--all", help="Print every measurement, not only the answers.")]
Engine = Annotated[
    str, typer.Option("--engine", help="local, flower-sim (Flower's simulation) or flower (nodes elsewhere).")
]
Federation = Annotated[
    str, typer.Option("--federation", help="With --engine flower: the server's HOST:PORT (`fdgsec serve`).")
]
Ca = Annotated[Path | None, typer.Option("--ca", help="The server's certificate; default: fdgsec-federation/ca.crt.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Without TLS: anybody in between reads and writes along.")]
Quorum = Annotated[
    float, typer.Option("--quorum", help="Share of a round's clients that must answer every step, in (0, 1].")
]
ClientTimeout = Annotated[float, typer.Option("--client-timeout", help="Seconds that a client's answer may take.")]
Wait = Annotated[float, typer.Option("--wait", help="Seconds that nodes may take to come online.")]

"""The options that several verbs share: those of `fdgsec.experiments.settings`, and where to read, write and run."""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import click
import typer

from fdgsec.experiments.settings import Option, Settings
from fdgsec.runtime.errors import UsageError

Command = Callable[..., int]
PANELS: Mapping[str, str] = {
    **dict.fromkeys(
        ("per_domain", "per_class", "image_size", "target_domain", "validation_domain", "splits", "roles", "partition",
         "clients", "heterogeneity", "allow_partial"), "Data"
    ),
    **dict.fromkeys(("encoder", "style_size", "local"), "Method"),
    **dict.fromkeys(
        ("backbone", "norm", "pretrained", "rounds", "participation", "adapt", "device", "keep"), "Training"
    ),
}  # fmt: skip
"""The group of each setting on help pages."""


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
    words = get_args(kind) if get_origin(kind) is Literal else ()
    flags = about.flag.split() or [f"--{name.replace('_', '-')}"]
    panel = PANELS.get(name, "Options")
    if words:
        return Annotated[str | None, one_of(*words, flags=flags, help=about.help, panel=panel)]
    return Annotated[kind | None, typer.Option(*flags, help=about.help, min=about.least, rich_help_panel=panel)]


def one_of(*words: str, flags: Sequence[str], help: str, panel: str) -> Any:
    """An option that takes one of these words; help pages and shell completion show them."""
    return typer.Option(*flags, help=help, rich_help_panel=panel, click_type=click.Choice(words))


def stored_settings(preset: str | None, config: Path | None) -> Mapping[str, Any]:
    """The settings of the [run] table of --config; empty without one. Raises UsageError beside --preset."""
    if config is None:
        return {}
    if preset is not None:
        raise UsageError("--config holds the settings of a preset too; leave --preset out.")
    if not config.is_file():
        raise UsageError(f"--config {config} is no file; give a TOML file or a run's config.json.")
    from fdgsec.experiments.run_config import load_preset

    found: Mapping[str, Any] = load_preset(str(config)).get("run", {})
    return found


def shortcuts(learning_rate: float | None, epochs: int | None, batch_size: int | None) -> tuple[str, ...]:
    """--lr, --epochs and --batch-size as the assignments that they stand for."""
    told = {"learning_rate": learning_rate, "epochs": epochs, "batch_size": batch_size}
    return tuple(f"method.plan.{name}={value}" for name, value in told.items() if value is not None)


def check_trained(rounds: int, **told: float | None) -> None:
    """Raise UsageError for an option of training, by its name, where there are no rounds."""
    for name, value in told.items():
        if value is not None and rounds == 0:
            raise UsageError(f"--{name} acts in training, and rounds is 0; add --rounds N, or leave it out.")


Dataset = Annotated[
    str, typer.Option("--dataset", help="A dataset by name (`fdgsec list datasets`).", rich_help_panel="Data")
]
DataRoot = Annotated[
    Path | None,
    typer.Option("--data-root", help="Folder or .zip; else $FDGSEC_DATA, else the cache.", rich_help_panel="Data"),
]
Preset = Annotated[
    str | None,
    typer.Option("--preset", help="A bundled preset (`fdgsec list presets`) or a TOML file.", rich_help_panel="Method"),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="Settings from a file: TOML as in presets, or a run's config.json."),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Random seed.")]
ProfileName = Annotated[
    str, one_of("quick", "full", flags=["--profile"], help="quick takes minutes, with caps.", panel="Options")
]
Defenses = Annotated[
    list[str] | None,
    typer.Option("--defense", help="NAME:k=v,...; repeatable, in order.", rich_help_panel="Method"),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", help="name.option=value, e.g. method.k=2; repeatable.", rich_help_panel="Method"),
]
LearningRate = Annotated[
    float | None, typer.Option("--lr", help="Learning rate (method.plan.learning_rate).", rich_help_panel="Training")
]
Epochs = Annotated[
    int | None,
    typer.Option("--epochs", min=1, help="Epochs per round (method.plan.epochs).", rich_help_panel="Training"),
]
BatchSize = Annotated[
    int | None,
    typer.Option("--batch-size", min=1, help="Images per batch (method.plan.batch_size).", rich_help_panel="Training"),
]
AllowPartial = Annotated[
    bool, typer.Option("--allow-partial", help="Accept an incomplete dataset.", rich_help_panel="Data")
]
Out = Annotated[
    Path | None, typer.Option("--out", help="Output directory (an existing fdgsec run in it is overwritten).")
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Reuse no run and no cache.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the document instead of the table.", rich_help_panel="Output")
]
Every = Annotated[
    bool, typer.Option("--all", help="Print every measurement, not only the answers.", rich_help_panel="Output")
]
Engine = Annotated[
    str,
    one_of(
        "local", "flower-sim", "flower", flags=["--engine"], panel="Federation",
        help="flower-sim: Flower's simulation; flower: nodes elsewhere.",
    ),
]  # fmt: skip
Federation = Annotated[
    str,
    typer.Option(
        "--federation", help="With --engine flower: the server's HOST:PORT (`fdgsec serve`).",
        rich_help_panel="Federation",
    ),
]  # fmt: skip
Ca = Annotated[
    Path | None,
    typer.Option(
        "--ca", help="The server's certificate; default: fdgsec-federation/ca.crt.", rich_help_panel="Federation"
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure", help="Disable TLS; traffic can be read and modified by anyone on the network.",
        rich_help_panel="Federation",
    ),
]  # fmt: skip
Quorum = Annotated[
    float,
    typer.Option(
        "--quorum", help="Share of a round's clients that must answer every step, in (0, 1].",
        rich_help_panel="Federation",
    ),
]  # fmt: skip
ClientTimeout = Annotated[
    float,
    typer.Option("--client-timeout", help="Seconds that a client's answer may take.", rich_help_panel="Federation"),
]
Wait = Annotated[
    float,
    typer.Option("--wait", help="Seconds that nodes may take to come online.", rich_help_panel="Federation"),
]

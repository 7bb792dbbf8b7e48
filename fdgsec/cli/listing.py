"""`fdgsec list`: what there is by name."""

from typing import Annotated

import typer

from fdgsec.errors import UsageError
from fdgsec.registry import suggestion
from fdgsec.tables import LISTS, print_list

What = Annotated[
    str, typer.Argument(help="methods, targets, attacks, defenses, datasets, encoders, backbones, presets.")
]


def command(what: What = "targets") -> int:
    """List methods, targets, attacks, defenses, datasets, encoders, backbones or presets."""
    if what not in LISTS:
        raise UsageError(f"unknown list {what!r}; {suggestion(what, LISTS)}.")
    print_list(what)
    return 0

"""`fdgsec list`: what there is by name."""

from typing import Annotated

import typer

from fdgsec.cli.options import AsJson
from fdgsec.runtime.errors import unknown_name

What = Annotated[
    str,
    typer.Argument(
        help="methods, targets, attacks, defenses, datasets, encoders, backbones, claims, presets, protocols or "
        "ablations."
    ),
]


def command(what: What = "targets", as_json: AsJson = False) -> int:
    """List methods, targets, attacks, defenses, datasets, encoders, backbones, claims, presets, protocols or
    ablations."""
    from fdgsec.cli.print_listings import LISTS, print_list

    if what not in LISTS:
        raise unknown_name("list", what, LISTS)
    print_list(what, as_json=as_json)
    return 0

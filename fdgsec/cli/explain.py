"""`fdgsec explain`: what an attack, claim, defense, method, preset, target or word of a report is."""

import json
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from fdgsec.cli.options import AsJson

if TYPE_CHECKING:
    from fdgsec.experiments.explain import Explanation

WIDTH = 120
Name = Annotated[
    str, typer.Argument(help="An attack, claim, defense, method, preset, target, encoder, or a word of a report.")
]


def command(name: Name, as_json: AsJson = False) -> int:
    """Say what an attack, claim, defense, method or target is, what it needs or sends, and how it is measured; of a
    preset, where each of its values comes from; of a word of a report, what it means."""
    from fdgsec.experiments.explain_words import explained_word

    found = explained_word(name) or _explained_name(name)
    if as_json:
        typer.echo(json.dumps(found.document(), indent=1))
        return 0
    typer.echo(f"{found.kind} {found.name}: {found.title}")
    for heading, text in found.sections:
        typer.echo(f"\n{heading}")
        for line in text.splitlines():
            whole = len(line) <= WIDTH or line.startswith("|")  # a table's row
            for part in [line] if whole else textwrap.wrap(line, WIDTH):
                typer.echo(f"  {part}".rstrip())
    return 0


def _explained_name(name: str) -> "Explanation":
    """As `explain`, whose import takes seconds: words of reports do without it."""
    from fdgsec.experiments.explain import explain

    return explain(name)

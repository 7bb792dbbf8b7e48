"""Web pages from templates: one base, one style sheet, everything in one file and escaped."""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from fdgsec.runtime.version import __version__

Contents = Sequence[tuple[str, str]]
"""The anchors of a page with their names."""


def source(name: str) -> str:
    """The text of a bundled template, style sheet or script."""
    return resources.files("fdgsec.experiments.report").joinpath(name).read_text()


def page(template: str, *, title: str, contents: Contents = (), **values: object) -> str:
    """Fill a bundled template, which extends base.html; what it does not get is an error."""
    fixed: Mapping[str, object] = {
        "title": title, "contents": contents, "css": Markup(source("page.css")), "version": __version__,
    }  # fmt: skip
    return _templates().get_template(template).render(**fixed, **values)


@cache
def _templates() -> Environment:
    """The bundled templates, each compiled once."""
    return Environment(autoescape=True, undefined=StrictUndefined, loader=FunctionLoader(source), trim_blocks=True)

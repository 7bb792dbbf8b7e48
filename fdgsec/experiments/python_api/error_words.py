"""Errors of the verbs as functions: keywords stand where the command line has options."""

import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import ParamSpec, TypeVar

from fdgsec.runtime.errors import FdgsecError

P = ParamSpec("P")
T = TypeVar("T")

KEYWORDS: Mapping[str, str] = {
    "unseen-domain": "target_domain", "with": "local", "set": "assignments", "attack": "attacks",
    "defense": "defenses", "over": "option, values",
}  # fmt: skip
"""Keywords that are not named as their options are."""
_OPTION = re.compile(r"`[^`]*`|(?<![\w-])--([a-z][a-z-]*[a-z])")  # commands in backticks stay what they are


def with_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function's errors speak of its keywords: `rounds` for `--rounds`."""

    @wraps(function)
    def called(*given: P.args, **named: P.kwargs) -> T:
        try:
            return function(*given, **named)
        except FdgsecError as error:
            error.args = tuple(in_keywords(part) if isinstance(part, str) else part for part in error.args)
            raise

    return called


def in_keywords(text: str) -> str:
    """A message with keywords of Python in place of the command line's options."""

    def keyword(found: re.Match[str]) -> str:
        option = found[1]
        return found[0] if option is None else KEYWORDS.get(option, option.replace("-", "_"))

    return _OPTION.sub(keyword, text)

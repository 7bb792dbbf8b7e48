"""What Python's users give, as the verbs take it: strings for paths, objects for encoders."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

    from fdgsec.nn.styles.encoders import StyleEncoder

T = TypeVar("T")


def file_of(given: "T | str") -> "T | Path":
    """What is given, with a path for a string."""
    return Path(given) if isinstance(given, str) else given


def encoder_name(given: "str | StyleEncoder | Callable[[Tensor], Tensor] | None") -> str | None:
    """The name of an encoder; one that is given as an object is registered under its own."""
    if given is None or isinstance(given, str):
        return given
    from fdgsec.nn.styles.callable_encoder import CallableEncoder
    from fdgsec.nn.styles.encoders import StyleEncoder
    from fdgsec.nn.styles.image_styles import register_encoder

    return register_encoder(given if isinstance(given, StyleEncoder) else CallableEncoder(given))


def path_of(given: str | Path | None) -> Path | None:
    """A path for a string; None where nothing is given."""
    return None if given is None else Path(given)

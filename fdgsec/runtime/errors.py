"""Errors that a user can act on, and the exit code of each on the command line."""

import difflib
from collections.abc import Iterable

LONGEST_LINE = 600
"""Characters of a message to a user; what is between its beginning and its end is left out of a longer one."""


class FdgsecError(Exception):
    """An error that a user can act on; it is printed as one line, and the process ends with `exit_code`."""

    exit_code = 1


class UsageError(FdgsecError, ValueError):
    """Invalid usage or input: what is wrong, where, and what to do (exit 2)."""

    exit_code = 2


class DataError(UsageError):
    """A dataset that is present but corrupt, incomplete or a different one (exit 2)."""


class ArtifactError(UsageError):
    """An artifact that violates its schema: shape, dtype, range or a value that is not finite (exit 2)."""


class UnseenError(UsageError):
    """A message that the adversary did not observe: a defense hides it, or the method does not send it (exit 2)."""


class CannotRunError(UsageError):
    """An attack that applies to what was sent, and lacks images, models or further runs that it asks for (exit 2)."""


class TooFewImagesError(CannotRunError):
    """An adversary that has no images to learn from, though it may have some: the dataset is too small (exit 2)."""


class WithheldError(UnseenError, CannotRunError):
    """A message of so few images or clients that a defense lets nothing leave; larger ones would have left (exit 2)."""


class MissingResourceError(FdgsecError):
    """A dataset, weight file or extra that is missing on this machine, with the command that gets it (exit 3)."""

    exit_code = 3


class DatasetNotFoundError(MissingResourceError):
    """A dataset that was not found where it was searched for (exit 3)."""


class WeightsUnavailableError(MissingResourceError):
    """Weights that are not stored and cannot be downloaded; they are never replaced silently (exit 3)."""


def unknown_name(kind: str, name: str, known: Iterable[str], *, note: str = "") -> UsageError:
    """Make the error for an unknown `name`: the nearest known name, then all; `note` says what else is accepted."""
    names = list(known)
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.4)
    meant = f"did you mean {near[0]!r}? " if near else ""
    return UsageError(f"unknown {kind} {name!r}; {meant}known: {', '.join(names) or 'none'}{note}.")


def message_line(text: str) -> str:
    """Make one line of at most LONGEST_LINE printable characters of a text, which may quote files and the network.

    A terminal would obey control characters, and characters that change the direction of writing."""
    if len(text) > 100 * LONGEST_LINE:
        text = f"{text[: 50 * LONGEST_LINE]} {text[-50 * LONGEST_LINE :]}"
    shown = "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
    if len(shown) <= LONGEST_LINE:
        return shown
    head = 2 * LONGEST_LINE // 3
    return f"{shown[:head]} ... {shown[head + 5 - LONGEST_LINE :]}"

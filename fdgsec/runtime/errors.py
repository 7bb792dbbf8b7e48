"""The errors a user can meet, and the exit code that each one means on the command line."""

import difflib
from collections.abc import Iterable


class FdgsecError(Exception):
    """Something a user can act on; printed as one line, `exit_code` ends the process."""

    exit_code = 1


class UsageError(FdgsecError, ValueError):
    """Bad usage or bad input: what is wrong, where, and what to do (exit 2)."""

    exit_code = 2


class DataError(UsageError):
    """A dataset that is there but wrong: corrupt, incomplete or foreign (exit 2)."""


class ArtifactError(UsageError):
    """An artifact that breaks its schema: shape, dtype, range or a value that is not finite (exit 2)."""


class UnseenError(UsageError):
    """An adversary was asked about what it did not see: a defense, or the method, kept it away (exit 2)."""


class MissingResourceError(FdgsecError):
    """A dataset, weight file or extra that is not on this machine, with the command that gets it (exit 3)."""

    exit_code = 3


class DatasetNotFoundError(MissingResourceError):
    """The dataset is not where it was looked for (exit 3)."""


class WeightsUnavailableError(MissingResourceError):
    """Weights are not stored and cannot be fetched; never replaced silently (exit 3)."""


def unknown_name(kind: str, name: str, known: Iterable[str], *, note: str = "") -> UsageError:
    """Word the error for a misspelled `name`: the nearest known one first, then all; `note` says what else would do."""
    names = list(known)
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.4)
    meant = f"did you mean {near[0]!r}? " if near else ""
    return UsageError(f"unknown {kind} {name!r}; {meant}known: {', '.join(names) or 'none'}{note}.")

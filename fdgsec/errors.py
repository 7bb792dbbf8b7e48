"""The errors a user can meet, and the exit code that each one means on the command line."""


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


class MissingResourceError(FdgsecError):
    """A dataset, weight file or extra that is not on this machine, with the command that gets it (exit 3)."""

    exit_code = 3


class DatasetNotFoundError(MissingResourceError):
    """The dataset is not where it was looked for (exit 3)."""


class WeightsUnavailableError(MissingResourceError):
    """Weights are not stored and cannot be fetched; never replaced silently (exit 3)."""

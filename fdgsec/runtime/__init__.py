"""Errors, random streams, files, processes and names: what every other package needs, and nothing about learning."""

from typing import TYPE_CHECKING

from fdgsec.runtime.lazy_imports import lazy_names

if TYPE_CHECKING:
    from fdgsec.runtime.cache_files import atomic, cache_root, write_atomic
    from fdgsec.runtime.errors import (
        ArtifactError,
        DataError,
        DatasetNotFoundError,
        FdgsecError,
        MissingResourceError,
        UnseenError,
        UsageError,
        WeightsUnavailableError,
        unknown_name,
    )
    from fdgsec.runtime.progress import NoProgress, Progressive, progress_bars, warn
    from fdgsec.runtime.random_streams import child, derangement, integer_seed, stream
    from fdgsec.runtime.registry import Target, names, resolve, target_named
else:
    __getattr__ = lazy_names(__name__, __file__)

__all__ = [
    "ArtifactError", "DataError", "DatasetNotFoundError", "FdgsecError", "MissingResourceError", "NoProgress",
    "Progressive", "Target", "UnseenError", "UsageError", "WeightsUnavailableError", "atomic", "cache_root", "child",
    "derangement", "integer_seed", "names", "progress_bars", "resolve", "stream", "target_named", "unknown_name",
    "warn", "write_atomic",
]  # fmt: skip

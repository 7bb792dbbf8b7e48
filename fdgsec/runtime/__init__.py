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
    from fdgsec.runtime.secret_streams import SecretStream, new_key, simulated_key, simulated_stream
else:
    __getattr__ = lazy_names(__name__, __file__)

__all__ = [
    "ArtifactError", "DataError", "DatasetNotFoundError", "FdgsecError", "MissingResourceError", "NoProgress",
    "Progressive", "SecretStream", "Target", "UnseenError", "UsageError", "WeightsUnavailableError", "atomic",
    "cache_root", "child", "derangement", "integer_seed", "names", "new_key", "progress_bars", "resolve",
    "simulated_key", "simulated_stream", "stream", "target_named", "unknown_name", "warn", "write_atomic",
]  # fmt: skip

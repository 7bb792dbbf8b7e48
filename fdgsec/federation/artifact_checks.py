"""What the tensors of every artifact must keep: dtypes, finite numbers within a size, shapes."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from fdgsec.runtime.errors import ArtifactError
from fdgsec.runtime.untrusted_text import check_text

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
RESERVED = "__metadata__"
"""The entry of a safetensors header that is no tensor."""
LARGEST = 1e18
"""The largest size of a float in an artifact: its square is still a float32."""
LARGEST_WEIGHT = 1e36
"""The same of a model's state, whose running variances are squares themselves: the sum of a hundred is a float32."""
MOST_PARTIES = 2**31
"""Numbers of clients and classes lie below."""


def expect_dtype(kind: str, name: str, value: Tensor, legal: Sequence[torch.dtype]) -> None:
    """Raise ArtifactError unless a tensor is dense and of a legal dtype."""
    if value.dtype not in legal or value.layout is not torch.strided:
        named = ", ".join(str(dtype).removeprefix("torch.") for dtype in legal)
        raise ArtifactError(f"{kind}.{name} must be a dense tensor of {named}; it is of {value.dtype}.")


def check_names(kind: str, names: Iterable[object]) -> None:
    """Raise ArtifactError for a name that a file of tensors cannot hold: no text, or the one of its text fields."""
    for name in names:
        if not isinstance(name, str) or name == RESERVED:
            expected = f"text other than {RESERVED}, which names a file's text fields"
            raise ArtifactError(f"{kind} has an entry {str(name)[:40]!r}; its names must be {expected}.")
        check_text(name, error=ArtifactError)


def check_size(kind: str, name: str, value: Tensor, *, largest: float) -> None:
    """Raise ArtifactError for a NaN, an infinity or a number above `largest`. One pass: extremes show all three."""
    if value.numel() == 0:
        return
    least, most = (float(extreme) for extreme in torch.aminmax(value))
    if not (math.isfinite(least) and math.isfinite(most)):
        count = int((~torch.isfinite(value)).sum())
        raise ArtifactError(f"{kind}.{name} has {count} values that are not finite; nothing was accepted.")
    size = max(-least, most)
    if size > largest:
        raise ArtifactError(f"{kind}.{name} holds {size:.4g}; numbers up to {largest:g} are accepted.")


def check_integers(kind: str, name: str, value: Tensor, *, least: int) -> None:
    """Raise ArtifactError for integers outside [least, MOST_PARTIES)."""
    if value.numel() and not least <= int(value.min()) <= int(value.max()) < MOST_PARTIES:
        raise ArtifactError(
            f"{kind}.{name} must lie from {least} to {MOST_PARTIES - 1}; it goes from {int(value.min())} to "
            f"{int(value.max())}."
        )


def expect(condition: bool, kind: str, expected: str, *values: Tensor) -> None:
    """Raise ArtifactError, with what was expected and the shapes that came, unless `condition` holds."""
    if not condition:
        came = ", ".join(str(tuple(value.shape)) for value in values)
        raise ArtifactError(f"{kind} expects {expected}; got {came}.")


def expect_not_negative(kind: str, name: str, value: Tensor) -> None:
    """Raise ArtifactError for a number below 0."""
    if value.numel() and float(value.min()) < 0:
        raise ArtifactError(f"{kind}.{name} must be >= 0; its smallest value is {float(value.min()):.4g}.")

"""Keep freed memory in the process, so that a training step does not fetch its pages anew from the system."""

import ctypes
import os
import sys

VARIABLE = "FDGSEC_HEAP"

# Parameters of glibc's mallopt(3): its malloc.h numbers them.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_TRIM, _PAD = 2**31 - 1, 2**26


def keep_freed_memory() -> bool:
    """Have large blocks come from the heap, and the heap not shrink; say whether that was done. Changes no number.

    By default glibc maps every block of 32 MiB or more, and returns the top of its heap, so that activations of each
    step start as zeroed pages of the system again. Nothing is done where there is no glibc, where GLIBC_TUNABLES or
    MALLOC_* already say how memory is to be had, or where FDGSEC_HEAP is `default`."""
    told = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "") or any(
        name.startswith("MALLOC_") for name in os.environ
    )
    if sys.platform != "linux" or told or os.environ.get(VARIABLE) == "default":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is None:
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    return all(
        mallopt(name, value) == 1 for name, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _TRIM), (_TOP_PAD, _PAD))
    )

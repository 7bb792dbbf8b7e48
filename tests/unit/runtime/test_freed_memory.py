"""Freed memory: kept by the process where it may be, left alone where somebody else decided."""

import os
import subprocess
import sys

import pytest

from fdgsec.runtime import worker_processes
from fdgsec.runtime.worker_processes import VARIABLE, keep_freed_memory

STEPS = """
import resource
import torch
from fdgsec.runtime.worker_processes import keep_freed_memory

kept = keep_freed_memory()
for _ in range(20):
    torch.ones(2**24)  # the heap grows to what steps need
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(2**24)  # 64 MiB, freed at once
print(int(kept), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

TASKS = """
import torch
from fdgsec.runtime.worker_processes import keep_freed_memory, return_freed_memory

def resident():
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[1]) * 4096 >> 20

keep_freed_memory()
blocks = [torch.ones(2**22) for _ in range(40)]  # 16 MiB each
kept = blocks[-1]
del blocks
held = resident()
return_freed_memory()
print(held - resident())
"""

glibc = pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(os, "confstr") or "glibc" not in str(os.confstr("CS_GNU_LIBC_VERSION")),
    reason="only glibc has the switches",
)


def faults(**environment: str) -> tuple[bool, int]:
    own = {name: value for name, value in os.environ.items() if name not in {VARIABLE, "GLIBC_TUNABLES"}}
    ran = subprocess.run(
        [sys.executable, "-c", STEPS], env={**own, **environment}, capture_output=True, check=True, text=True
    )
    kept, count = ran.stdout.split()
    return bool(int(kept)), int(count)


@pytest.mark.slow
@glibc
def test_steps_do_not_fetch_their_pages_anew():
    kept, few = faults()
    left, many = faults(FDGSEC_HEAP="default")

    assert (kept, left) == (True, False)
    assert few < 0.1 * many


@pytest.mark.medium
@glibc
def test_between_tasks_memory_that_nothing_holds_goes_back_though_later_blocks_are_in_use():
    ran = subprocess.run([sys.executable, "-c", TASKS], capture_output=True, check=True, text=True)

    assert int(ran.stdout) > 500  # MiB, of 624


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (VARIABLE, "default"),
        ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=131072"),
        ("MALLOC_TRIM_THRESHOLD_", "131072"),
    ],
)
def test_what_the_user_set_stays(name: str, value: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker_processes.ctypes, "CDLL", lambda _: pytest.fail("the C library was asked"))
    monkeypatch.setenv(name, value)

    assert keep_freed_memory() is False


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_systems_are_left_alone(platform: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker_processes.sys, "platform", platform)

    assert keep_freed_memory() is False


def test_a_c_library_without_the_switch_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    for name in [VARIABLE, "GLIBC_TUNABLES", *(each for each in os.environ if each.startswith("MALLOC_"))]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(worker_processes.sys, "platform", "linux")
    monkeypatch.setattr(worker_processes.ctypes, "CDLL", lambda _: object())

    assert keep_freed_memory() is False

"""Processes end with us, whatever they start and however we end; and a log's telling line."""

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fdgsec.federation.engines.flower.environment import MARK
from fdgsec.federation.engines.flower.orphan_processes import marked_processes, sweep
from fdgsec.federation.engines.flower.process_trees import FlowerFailedError, plain, refuse_taken, running, telling_line
from fdgsec.runtime.errors import UsageError

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks at processes through /proc")

FAMILY = """
import os, subprocess, sys, time, signal
program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
deaf = subprocess.Popen([sys.executable, "-c", program], start_new_session=True, stdout=subprocess.PIPE)
deaf.stdout.readline()
bare = dict(os.environ); bare.pop("FDGSEC_FLOWER_MARK")
unmarked = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True, env=bare)
print("family", os.getpid(), deaf.pid, unmarked.pid, flush=True)
time.sleep(600)
"""
"""A parent, a child in a session of its own that ignores SIGTERM, and one that lost its mark."""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def pids_of(text: str) -> list[int]:
    return [int(word) for word in text.split("family")[1].split()]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.mark.medium
def test_all_that_a_process_started_ends_with_it(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fdgsec.federation.engines.flower.process_trees.GRACE", 0.5)

    with running([sys.executable, "-c", FAMILY], home=tmp_path / "home", log=log) as family:
        family.wait_for("the family", lambda: "family" in family.text(), timeout=30)
        pids = pids_of(family.text())
        assert all(map(alive, pids))

    assert not any(map(alive, pids))
    assert marked_processes(family.mark) == []


def test_a_log_is_appended_to_and_read_by_its_owner_alone(tmp_path: Path, log: Path):
    said = "import time; print('family', flush=True); time.sleep(600)"
    for count in (1, 2):
        with running([sys.executable, "-c", said], home=tmp_path / "home", log=log) as process:
            process.wait_for("its word", lambda: "family" in process.text(), timeout=30)
            assert process.text().split() == ["family"]
        assert log.read_text().split() == ["family"] * count

    assert log.stat().st_mode & 0o777 == 0o600


@pytest.mark.medium
def test_all_ends_where_the_block_raises(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fdgsec.federation.engines.flower.process_trees.GRACE", 0.5)

    def broken() -> None:
        with running([sys.executable, "-c", FAMILY], home=tmp_path / "home", log=log) as family:
            family.wait_for("the family", lambda: "family" in family.text(), timeout=30)
            raise KeyError

    with pytest.raises(KeyError):
        broken()

    assert not any(map(alive, pids_of(log.read_text())))


def test_all_ends_where_we_are_killed(tmp_path: Path, log: Path):
    program = (
        "import sys, time; from pathlib import Path; from fdgsec.federation.engines.flower import process_trees as module;"
        f"family = [sys.executable, '-c', {FAMILY.replace('SIG_IGN', 'SIG_DFL')!r}]\n"
        f"with module.running(family, home=Path({str(tmp_path)!r}), log=Path({str(log)!r})) as run:\n"
        "    run.wait_for('the family', lambda: 'family' in run.text(), timeout=30)\n"
        "    print(run.mark, flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        mark = killed.stdout.readline().strip()
        pids = pids_of(log.read_text())
        reapers = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if mark in command_line(pid)]
        assert len(reapers) == 1
        assert all(map(alive, pids))
        killed.kill()

    with os.fdopen(os.pidfd_open(reapers[0])) as waiter:  # readable once that process ends
        assert select.select([waiter], [], [], 40)[0]
    assert not any(map(alive, pids))


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_strangers_are_left_alone():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={MARK: "another"}) as stranger:
        assert sweep("mine", grace=0.2) == []
        assert stranger.poll() is None
        stranger.communicate(b"\n")

    assert stranger.returncode == 0


def test_a_process_that_ends_before_its_time_is_an_error_with_its_log_and_its_last_word(tmp_path: Path, log: Path):
    log.write_text("ValueError: of an earlier run\n")
    program = "print('starting'); raise OSError('the port is taken')"

    with (
        pytest.raises(FlowerFailedError, match="the thing ended with code 1: OSError: the port is taken") as failure,
        running([sys.executable, "-c", program], home=tmp_path, log=log) as run,
    ):
        run.wait_for("the thing", lambda: False, timeout=30)

    assert str(log) in str(failure.value)
    assert "\n" not in str(failure.value)


def test_a_process_that_never_gets_ready_is_an_error_in_bounded_time(tmp_path: Path, log: Path):
    program = "import time; print('still loading', flush=True); time.sleep(600)"

    with running([sys.executable, "-c", program], home=tmp_path, log=log) as run:
        run.wait_for("the thing", lambda: "still" in run.text(), timeout=30)
        with pytest.raises(FlowerFailedError, match="not ready within 0 s: still loading"):
            run.wait_for("the thing", lambda: False, timeout=0.2)

    assert run.process.returncode == -signal.SIGTERM


def test_a_port_in_use_is_bad_usage():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]

        with pytest.raises(UsageError, match=f"port {port}"):
            refuse_taken("127.0.0.1", port)

    refuse_taken("127.0.0.1", port)


@pytest.mark.parametrize(
    ("lines", "telling"),
    [
        ([], "it wrote nothing"),
        (["INFO :      Starting", "INFO:     Ready"], "Ready"),
        (["ERROR :     Exit Code: 305", "[code: 2004] Failed to activate.", "INFO:     Shutting down"],
         "[code: 2004] Failed to activate."),
        (["Traceback (most recent call last):", '  File "error.py"', "ValueError: by order", "ERROR :     Exit Code: 700",
          "An unhandled exception occurred.", "For more information, visit: <https://flower.ai/ref-exit-codes/700.html>"],
         "ValueError: by order"),
        (["╭─ Error ─────╮", "│ Connection to the SuperLink is unavailable.   │", "╰─────╯"],
         "Connection to the SuperLink is unavailable."),
    ],
)  # fmt: skip
def test_the_telling_line_names_the_error(lines: list[str], telling: str):
    assert telling_line("\n".join(lines)) == telling


def test_a_log_is_read_without_its_colors():
    assert plain(b"\x1b[92mINFO \x1b[0m:   up\n") == "INFO :   up\n"

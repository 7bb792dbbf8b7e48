"""`fdgsec serve` and `fdgsec join` on loopback: who gets in, who does not, and that nothing remains."""

import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fdgsec.experiments.flower.jobs import Job
from fdgsec.experiments.run_config import resolve_settings
from fdgsec.federation.engines.flower import app
from fdgsec.federation.engines.flower.certificates import create_authority, create_node_key, public_key
from fdgsec.federation.engines.flower.connection import Connection
from fdgsec.federation.engines.flower.environment import command_of
from fdgsec.federation.engines.flower.nodes_and_jobs import ONLINE, submit
from fdgsec.federation.engines.flower.process_trees import free_port, running
from fdgsec.federation.engines.flower.step_limits import noise_key
from fdgsec.federation.engines.flower.superlink_control import Control
from tests.support.remaining import remaining, worded
from tests.support.spelled_keys import spellings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks at processes through /proc"),
]
PATIENCE = 120.0
DEFENSE = "private-styles:epsilon=4,delta=1e-5"


@dataclass
class Program:
    """`fdgsec ARGUMENTS` in the background, with all that it says."""

    process: subprocess.Popen[bytes]
    said: Path

    def await_words(self, words: str) -> None:
        """Wait until it said `words`; fail where it ends before, or never does."""
        deadline = time.monotonic() + PATIENCE
        while words not in self.said.read_text():
            assert self.process.poll() is None, self.said.read_text()
            assert time.monotonic() < deadline, self.said.read_text()
            time.sleep(0.1)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and give the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@dataclass
class Federation:
    """A folder with a server and nodes; everything that it starts carries `word`."""

    folder: Path
    port: int
    word: str
    environment: Mapping[str, str]
    programs: list[Program] = field(default_factory=list)

    @property
    def control(self) -> Control:
        """The server as its operator sees it."""
        connection = Connection(address=f"127.0.0.1:{self.port}", ca=self.folder / "fdgsec-federation" / "ca.crt")
        return Control(connection=connection, home=self.folder / "cli")

    def start(self, *arguments: str, added: Mapping[str, str] | None = None) -> Program:
        """Start `fdgsec`, with variables `added` to its environment."""
        said = self.folder / f"said-{len(self.programs)}"
        with said.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "fdgsec.cli", *arguments],
                cwd=self.folder, env={**self.environment, **(added or {})}, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.programs.append(Program(process=process, said=said))
        return self.programs[-1]

    def serve(self, *arguments: str, added: Mapping[str, str] | None = None) -> Program:
        """Start the server, with the nodes' keys unless told otherwise, and wait until it serves."""
        server = self.start("serve", "--port", str(self.port), *(arguments or ("--allow", "keys")), added=added)
        server.await_words("serving at")
        return server

    def join(self, number: int, *more: str, key: str | None, patience: int = 90) -> Program:
        """Start client `number` of 2; without a key in plain HTTP."""
        secure = ("--ca", "fdgsec-federation/ca.crt", "--key", key) if key else ("--insecure",)
        place = ("--partition", str(number % 2), "--of", "2", "--state", f"state{number}")
        where = ("--server", f"127.0.0.1:{self.port}", "--patience", str(patience))
        return self.start("join", *where, *secure, *place, *more)

    def train(self, out: str) -> Program:
        """Run CCST without rounds on two clients, behind noise, to its end."""
        data = ("--dataset", "shapes", "--per-domain", "24", "--image-size", "32", "--partition", "dirichlet")
        where = ("--engine", "flower", "--federation", f"127.0.0.1:{self.port}", "--wait", "60", "--clients", "2")
        method = ("--method", "ccst", "--set", "method.k=2", "--rounds", "0", "--defense", DEFENSE)
        run = self.start("train", *method, *data, *where, "--out", out)
        assert run.process.wait(2 * PATIENCE) == 0, run.said.read_text()
        return run


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    for name in ("keys/node0", "keys/node1", "stranger"):
        create_node_key(tmp_path / name)
    word, environment = worded()
    environment = {**environment, "FDGSEC_CACHE": str(tmp_path / "cache"), "TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    made = Federation(folder=tmp_path, port=free_port(), word=word, environment=environment)
    try:
        yield made
    finally:
        for program in made.programs:
            if program.process.poll() is None:
                program.end()
    assert remaining(word) == []


def test_registered_nodes_come_online_others_do_not_and_nothing_remains(federation: Federation):
    server = federation.serve()
    nodes = [federation.join(number, key=f"keys/node{number}") for number in range(2)]
    for number, node in enumerate(nodes):
        node.await_words(f"client:{number} of 2 has joined")

    stranger = federation.join(2, key="stranger", patience=0)
    assert stranger.process.wait(PATIENCE) == 1
    assert "does not know this node's key; take stranger.pub there" in stranger.said.read_text().splitlines()[-1]

    plain = federation.join(3, key=None)
    assert plain.process.wait(PATIENCE) == 1
    assert "does not speak plain HTTP; TLS is on there" in plain.said.read_text().splitlines()[-1]

    assert sorted(federation.control.nodes().values()) == ["online", "online"]
    assert [node.end(signal.SIGTERM) for node in nodes] == [0, 0]
    assert sorted(federation.control.nodes().values()) == ["offline", "offline"]
    assert server.end(signal.SIGINT) == 0
    assert remaining(federation.word) == []


def test_without_tls_nodes_join_only_where_both_sides_typed_insecure(federation: Federation):
    server = federation.serve("--insecure")
    assert "WITHOUT TLS" in server.said.read_text()
    create_authority(federation.folder / "fdgsec-federation")

    careful = federation.join(1, key="keys/node1")
    assert careful.process.wait(PATIENCE) == 1
    assert "does not speak TLS" in careful.said.read_text().splitlines()[-1]

    careless = federation.join(0, key=None)
    careless.await_words("client:0 of 2 has joined")
    assert careless.end() == 0


def test_flower_s_own_node_in_plain_http_gets_nowhere_at_a_server_with_tls(federation: Federation, tmp_path: Path):
    federation.serve()
    told = [
        "--insecure",
        "--superlink",
        f"127.0.0.1:{federation.port}",
        "--port",
        str(free_port()),
        "--max-wait-time",
        "4",
    ]

    with running([command_of("flower-supernode"), *told], home=tmp_path / "plain", log=tmp_path / "plain.log") as node:
        node.wait_for("its end", lambda: node.process.poll() is not None, timeout=PATIENCE)

    assert node.process.returncode == 1
    assert ONLINE not in node.text()
    assert set(federation.control.nodes().values()) == {"registered"}


def test_an_app_that_is_not_fdgsec_s_own_runs_on_no_node(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    federation.serve()
    federation.join(0, key="keys/node0").await_words("has joined")
    monkeypatch.setattr(app, "CODE", (Path(__file__).parents[1] / "support" / "tiny_flower_app.py").read_text())

    submit(tmp_path / "job", federation.control.connection, timeout=PATIENCE)

    told = json.loads((tmp_path / "job" / "status.json").read_text())
    assert told["answers"] == [{"error": "The FAB could not be verified."}]


def test_runs_and_keys_are_taken_from_the_server_s_own_machine_alone(federation: Federation):
    federation.serve()

    assert answer(federation, "/v1/control/register-node", source="127.0.0.1") != 403
    assert answer(federation, "/v1/control/register-node", source=own_address()) == 403
    assert answer(federation, "/v1/runtime/acquire-task", source=own_address()) == 403
    assert answer(federation, "/v1/fleet/activate-node", source=own_address()) != 403


def own_address() -> str:
    """An address of this machine that is not loopback, which to the server looks like another machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.254", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(probe.getsockname()[0])


def answer(federation: Federation, path: str, *, source: str) -> int:
    context = ssl.create_default_context(cafile=str(federation.control.connection.ca))
    client = http.client.HTTPSConnection(
        "127.0.0.1", federation.port, source_address=(source, 0), context=context, timeout=20
    )
    try:
        client.request("POST", path)
        return client.getresponse().status
    finally:
        client.close()


def test_a_node_joins_again_when_its_server_was_killed_and_comes_back(federation: Federation):
    first = federation.serve()
    node = federation.join(0, key="keys/node0")
    node.await_words("has joined")
    first.process.kill()
    first.process.wait(PATIENCE)

    federation.serve()
    node.await_words("joining again")

    deadline = time.monotonic() + PATIENCE
    while node.said.read_text().count("has joined") < 2:
        assert time.monotonic() < deadline, node.said.read_text()
        time.sleep(0.1)
    assert sorted(federation.control.nodes().values()) == ["online", "registered"]


def test_nothing_remains_of_a_server_and_a_node_that_are_killed(federation: Federation):
    server = federation.serve()
    node = federation.join(0, key="keys/node0")
    node.await_words("has joined")
    assert len(remaining(federation.word)) >= 6

    for program in (node, server):
        program.process.kill()
        program.process.wait(PATIENCE)

    deadline = time.monotonic() + PATIENCE
    while remaining(federation.word):
        assert time.monotonic() < deadline, remaining(federation.word)
        time.sleep(0.1)


def test_a_key_that_is_left_while_the_server_runs_is_let_in_and_out_again(federation: Federation):
    server = federation.serve()
    server.await_words("node1 may join.")
    later = federation.start("serve", "--register", "stranger.pub")
    assert later.process.wait(PATIENCE) == 0
    server.await_words("stranger may join.")
    assert len(federation.control.nodes()) == 3

    (federation.folder / "fdgsec-federation" / "nodes" / "stranger.pub").unlink()
    server.await_words("stranger may not join any more.")

    stranger = federation.join(0, key="stranger", patience=0)
    assert stranger.process.wait(PATIENCE) == 1


def test_a_key_stays_its_client_and_no_key_leaves_its_file(federation: Federation):
    """A third node claims client:0 and is refused in both runs; client:0 is killed between them and comes back."""
    federation.serve("--allow", "keys", "--register", "stranger.pub")
    keys = ("keys/node0", "keys/node1", "stranger")
    nodes = [federation.join(number, "--require-defense", DEFENSE, key=key) for number, key in enumerate(keys)]
    for node in nodes:
        node.await_words("has joined")

    first = federation.train("run-1")
    nodes[0].process.kill()
    nodes[0].process.wait(PATIENCE)
    federation.join(0, "--require-defense", DEFENSE, key="keys/node0").await_words("has joined")
    second = federation.train("run-2")

    bound = federation.folder / "fdgsec-federation" / "clients"
    for run, name in ((first, "run-1"), (second, "run-2")):
        told = json.loads((federation.folder / name / "federation.json").read_text())
        assert sorted(told["clients"]) == ["client:0", "client:1"]
        assert len(told["refused"]) == 1
        assert "it says that it is client:0, " in told["refused"][0]
        assert told["refused"][0] in run.said.read_text()
    for number in range(2):
        assert public_key(bound / f"client-{number}.pub") == public_key(federation.folder / f"keys/node{number}.pub")
    assert leaks(federation.folder) == []
    key = bytes.fromhex((federation.folder / "state0" / "secret.key").read_text())
    (federation.folder / "planted").write_bytes(b"x" + b64encode(b"y" + key))
    assert leaks(federation.folder) == [str(federation.folder / "planted")]


def leaks(folder: Path) -> list[str]:
    """The files that hold a key of a node which is not theirs: nodes' own, runs' secrets, and what noise is drawn from."""
    own = {path: bytes.fromhex(path.read_text()) for path in folder.rglob("secret.key")}
    runs = {path: bytes.fromhex(path.read_text()) for path in folder.rglob("run.secret")}
    noise = [noise_key(path.parent, own[path.parents[1] / "secret.key"]) for path in runs]
    assert (len(own), len(runs)) == (3, 6)
    keys = [*own.values(), *runs.values(), *noise]
    private = [path for path in folder.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]
    words = [spelled for key in keys for spelled in spellings(key)]
    words += [line for path in private for line in path.read_bytes().splitlines()[1:-1]]
    kept = {*own, *runs, *private}
    assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}
    others = [path for path in folder.rglob("*") if path.is_file() and path not in kept]
    assert {"transcript.jsonl", "supernode.log", "superlink.log", "federation.json"} <= {path.name for path in others}
    return [str(path) for path in others if any(word in path.read_bytes() for word in words)]


def test_a_server_gets_nothing_outside_of_the_run_that_it_began(federation: Federation):
    """Flower's own processes between a node and a server app that asks again, and with other settings."""
    support = Path(__file__).parents[1] / "support" / "hostile_server"
    federation.serve(added={"PYTHONPATH": os.pathsep.join([str(support), *sys.path])})
    federation.join(0, "--require-defense", DEFENSE, key="keys/node0").await_words("has joined")
    given = {"per_domain": 24, "image_size": 32, "partition": "dirichlet", "clients": 2, "defenses": [DEFENSE]}
    config = resolve_settings(given, preset=None, defaults={"method": "ccst", "rounds": 0})
    Job(config=config, purpose="train", clients=2).write(federation.folder / "job")

    submit(federation.folder / "job", federation.control.connection, timeout=3 * PATIENCE)

    answers = json.loads((federation.folder / "job" / "status.json").read_text())["answers"]
    assert answers == {
        "share": "answered:",
        "share again": "client:0 was asked to share in round 0 a second time.",
        "undefended": "the server sent other settings than this run began with.",
        "longer": "the server sent other settings than this run began with.",
        "another verb": "<class 'ValueError'>:<'No train function registered with name 'default''> (Flower's error 2)",
    }

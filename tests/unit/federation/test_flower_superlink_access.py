"""The two gates: what a server answers from afar, and which apps a node runs."""

import asyncio
import io
import tracemalloc
import zipfile
from collections.abc import MutableMapping
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

from fdgsec.federation.engines.flower.app import MODULE, PYPROJECT, write_app
from fdgsec.federation.engines.flower.nodes_and_jobs import GATE_SIGN
from fdgsec.federation.engines.flower.superlink_access_control import SIGN, Gate, Receive, Scope, Send
from fdgsec.federation.engines.flower.supernode_app_allowlist import is_own_app

HERE, AFAR = ("127.0.0.1", 4000), ("192.0.2.9", 4000)
SERVER = ("192.0.2.7", 9191)


def status(path: str, client: object, server: object = SERVER, kind: str = "http") -> int:
    """What a server behind the gate answers: 299 is its own word for everything."""
    sent: list[MutableMapping[str, object]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 299, "headers": []})

    async def receive() -> MutableMapping[str, object]:
        return {"type": "http.request"}

    async def send(message: MutableMapping[str, object]) -> None:
        sent.append(message)

    asyncio.run(Gate(app)({"type": kind, "path": path, "client": client, "server": server}, receive, send))
    return int(str(sent[0]["status"]))


@pytest.mark.parametrize("path", ["/v1/fleet/activate-node", "/v1/fleet/pull-messages", "/health"])
def test_nodes_are_answered_from_anywhere(path: str):
    assert status(path, AFAR) == status(path, HERE) == 299


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task", "/v1/runtime/responses", "/docs",
        "/openapi.json", "/", "", "/v1/fleet", "/V1/control/start-run", "//v1/control/start-run", "/v1/control/../fleet/x",
    ],
)  # fmt: skip
def test_everything_else_is_answered_to_the_server_s_own_machine_alone(path: str):
    assert status(path, AFAR) == 403
    assert status(path, HERE) == 299


@pytest.mark.parametrize(
    ("client", "allowed"),
    [
        (("127.0.0.9", 1), True), (("::1", 1), True), (("::ffff:127.0.0.1", 1), True), (("192.0.2.7", 1), True),
        (("::ffff:192.0.2.7", 1), True), (("::ffff:192.0.2.9", 1), False), (("192.0.2.70", 1), False), (("0.0.0.0", 1), False),
        (("localhost", 1), False), (None, False), ((), False), ("127.0.0.1", False), (("fe80::1%eth0", 1), False),
    ],
)  # fmt: skip
def test_the_own_machine_is_known_by_its_address(client: object, allowed: bool):
    assert status("/v1/control/start-run", client) == (299 if allowed else 403)


def test_an_unknown_server_address_opens_nothing():
    assert status("/v1/control/start-run", AFAR, server=None) == 403
    assert status("/v1/control/start-run", None, server=None) == 403


def test_other_protocols_do_not_pass_from_afar():
    assert status("/v1/control/stream", AFAR, kind="websocket") == 403


def test_the_starter_knows_the_gate_by_its_sign():
    assert GATE_SIGN == SIGN
    assert status(SIGN, AFAR) == 204


def bundle(folder: Path) -> bytes:
    return build_fab_from_disk(folder)


def test_the_app_that_flower_builds_from_ours_is_ours(tmp_path: Path):
    assert is_own_app(bundle(write_app(tmp_path)))


def test_the_app_carries_no_path_and_no_data(tmp_path: Path):
    with zipfile.ZipFile(io.BytesIO(bundle(write_app(tmp_path)))) as held:
        content = {name: held.read(name) for name in held.namelist()}

    assert content.keys() == {"pyproject.toml", f"{MODULE}.py", ".info/CONTENT"}
    assert sum(map(len, content.values())) < 2000
    assert str(tmp_path).encode() not in b"".join(content.values())


def test_an_app_with_one_more_file_is_not_ours(tmp_path: Path):
    write_app(tmp_path)
    (tmp_path / "flwr.py").write_text("")

    assert not is_own_app(bundle(tmp_path))


def test_an_app_with_other_code_is_not_ours(tmp_path: Path):
    code = write_app(tmp_path) / f"{MODULE}.py"
    code.write_text(code.read_text() + "import os\n")

    assert not is_own_app(bundle(tmp_path))


def test_an_app_with_other_settings_is_not_ours(tmp_path: Path):
    write_app(tmp_path)
    (tmp_path / "pyproject.toml").write_text(PYPROJECT.replace("dependencies = []", 'dependencies = ["evil"]'))

    assert not is_own_app(bundle(tmp_path))


@pytest.mark.parametrize("content", [b"", b"PK\x05\x06" + bytes(18), b"no zip at all"])
def test_what_is_no_app_is_not_ours(content: bytes):
    assert not is_own_app(content)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_file_that_is_there_twice_is_not_ours(tmp_path: Path):
    ours = io.BytesIO(bundle(write_app(tmp_path)))
    with zipfile.ZipFile(ours, "a") as made:
        made.writestr(f"{MODULE}.py", made.read(f"{MODULE}.py"))

    assert not is_own_app(ours.getvalue())


def test_a_file_beyond_its_limit_is_not_unpacked(tmp_path: Path):
    large = io.BytesIO()
    with zipfile.ZipFile(large, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("pyproject.toml", PYPROJECT)
        made.writestr(f"{MODULE}.py", bytes(10**8))

    assert not is_own_app(large.getvalue())


@pytest.mark.parametrize("packing", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.medium
def test_a_file_that_unpacks_to_more_than_it_says_takes_no_memory(packing: int):
    large, about = io.BytesIO(), zipfile.ZipInfo("pyproject.toml")
    with zipfile.ZipFile(large, "w", packing) as made:
        about.compress_type = packing
        made.writestr(about, bytes(10**8))
    content = large.getvalue().replace((10**8).to_bytes(4, "little"), (100).to_bytes(4, "little"))

    tracemalloc.start()
    ours = is_own_app(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert not ours
    assert peak < 3 * 2**20


@pytest.mark.parametrize("packing", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_file_of_an_app_is_not_ours(packing: int):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", packing) as archive:
        archive.writestr("pyproject.toml", PYPROJECT)
    content = bytearray(made.getvalue())
    for place in range(30, 60):  # the packed bytes
        content[place] ^= 0xFF

    assert not is_own_app(bytes(content))

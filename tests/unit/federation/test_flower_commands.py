"""What Flower's programs are started with, as Flower itself reads it."""

import argparse
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

from fdgsec.federation.engines.flower.commands import Node, Server, Tls, settings_text
from fdgsec.federation.engines.flower.connection import Connection
from fdgsec.federation.engines.flower.environment import MARK, flower_environment
from fdgsec.runtime.errors import UsageError

TLS = Tls(ca=Path("/f/ca.crt"), certificate=Path("/f/server.pem"), key=Path("/f/server.key"))
SETTINGS = {
    "partition-id": 3, "num-partitions": 4, "own-data": True, "state": "/a folder/with = and 'quotes'", "empty": "",
    "require-defenses": '["style-noise:p=0.1,scale=0.05", "dp-sgd"]', "path": "C:\\data",
}  # fmt: skip


def as_superlink(server: Server) -> argparse.Namespace:
    return _parse_args_run_superlink().parse_args(server.arguments())


def as_supernode(node: Node) -> argparse.Namespace:
    return _parse_args_run_supernode().parse_args(node.arguments())


def test_a_server_with_certificates_authenticates_nodes_and_installs_nothing():
    read = as_superlink(Server(host="0.0.0.0", port=9191, tls=TLS))

    assert (read.insecure, read.enable_supernode_auth, read.runtime_dependency_install) == (False, True, False)
    assert (read.ssl_ca_certfile, read.ssl_certfile, read.ssl_keyfile) == (
        "/f/ca.crt",
        "/f/server.pem",
        "/f/server.key",
    )
    assert (read.host, read.port, read.simulation) == ("0.0.0.0", 9191, False)


def test_only_a_server_without_certificates_is_insecure():
    read = as_superlink(Server(host="127.0.0.1", port=9191, tls=None, simulation=True))

    assert (read.insecure, read.enable_supernode_auth, read.simulation) == (True, False, True)


def test_a_node_reads_back_every_setting(tmp_path: Path):
    node = Node(
        server=Connection(address="[::1]:9191", ca=tmp_path / "ca.crt"), key=tmp_path / "key", port=9294, settings=SETTINGS
    )  # fmt: skip

    read = as_supernode(node)

    assert parse_config_args([read.node_config]) == SETTINGS
    assert (read.superlink, read.port, read.host) == ("[::1]:9191", 9294, "127.0.0.1")
    assert (read.root_certificates, read.auth_supernode_private_key) == (
        str(tmp_path / "ca.crt"),
        str(tmp_path / "key"),
    )
    assert (read.insecure, read.runtime_dependency_install) == (False, False)


def test_only_a_node_without_a_certificate_is_insecure():
    assert as_supernode(Node(server=Connection(address="localhost:1", ca=None), key=None, port=1)).insecure is True


@pytest.mark.parametrize("value", ["both ' and \"", "two\nlines", "a\\b'c", "\x7f"])
def test_text_that_flower_cannot_carry_is_refused(value: str):
    with pytest.raises(UsageError, match="state"):
        settings_text({"state": value})


@pytest.mark.parametrize(
    "text", ["", "host", "host:", "host:0", "host:65536", ":9191", "http://host:1", "::1:9191", "a b:1"]
)
def test_what_is_no_address_is_refused(text: str):
    with pytest.raises(UsageError, match="expected HOST:PORT"):
        Connection(address=text, ca=None)


@pytest.mark.parametrize(
    ("host", "here"), [("0.0.0.0", "127.0.0.1:91"), ("::", "[::1]:91"), ("192.0.2.7", "192.0.2.7:91")]
)
def test_a_server_is_reached_from_its_own_machine(host: str, here: str):
    connection = Server(host=host, port=91, tls=TLS).connection

    assert (connection.address, connection.ca, connection.port) == (here, TLS.ca, 91)


def test_flower_runs_quietly_alone_and_on_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    monkeypatch.setenv("FLWR_INTERNAL_GRPC_CONTROL_API", "1")
    monkeypatch.setenv("FDGSEC_DATA", "/somewhere")

    found = flower_environment(tmp_path, mark="abc", added={"FDGSEC_DATA": "/elsewhere"})

    switches = {
        "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "OMP_NUM_THREADS": "1", MARK: "abc",
        "FLWR_HOME": str(tmp_path), "RAY_TMPDIR": str(tmp_path), "FDGSEC_DATA": "/elsewhere",
    }  # fmt: skip
    assert switches.items() <= found.items()
    assert not {"FORWARDED_ALLOW_IPS", "FLWR_INTERNAL_GRPC_CONTROL_API"} & found.keys()
    assert "127.0.0.1" in found["NO_PROXY"].split(",")

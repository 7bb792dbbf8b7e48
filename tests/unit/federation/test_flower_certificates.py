"""Certificates that TLS accepts, keys that Flower accepts, and files that only their owner reads."""

import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from flwr.cli.supernode.register import try_load_public_key

from fdgsec.federation.engines.flower.certificates import (
    certificate_gap,
    certificate_names,
    check_node_key,
    create_authority,
    create_node_key,
    create_server_certificate,
    public_key,
)
from fdgsec.runtime.errors import UsageError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("federation")
    create_authority(made)
    create_server_certificate(made, ["Server.Example.org", "192.0.2.7", "2001:db8::7"])
    return made


def shaken(folder: Path, name: str, *, ca: Path) -> None:
    """Complete a TLS handshake in memory with the server of `folder` under `name`, as strictly as Python can."""
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(folder / "server.pem", folder / "server.key")
    asking = ssl.create_default_context(cafile=str(ca))
    asking.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = served.wrap_bio(up, down, server_side=True)
    client = asking.wrap_bio(down, up, server_hostname=name)
    for end in (client, server, client, server, client):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    assert client.getpeercert()


@pytest.mark.parametrize("name", ["server.example.org", "192.0.2.7", "2001:db8::7", "localhost", "127.0.0.1", "::1"])
def test_the_server_is_accepted_under_every_name_that_was_asked_for_and_at_loopback(folder: Path, name: str):
    shaken(folder, name, ca=folder / "ca.crt")


@pytest.mark.parametrize("name", ["example.org", "192.0.2.8", "evil.server.example.org"])
def test_the_server_is_refused_under_any_other_name(folder: Path, name: str):
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shaken(folder, name, ca=folder / "ca.crt")


def test_another_authority_of_the_same_name_vouches_for_nothing(folder: Path, tmp_path: Path):
    create_authority(tmp_path)

    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(folder, "localhost", ca=tmp_path / "ca.crt")


def test_the_server_certificate_vouches_for_no_other(folder: Path, tmp_path: Path):
    (tmp_path / "ca.crt").write_bytes((folder / "server.pem").read_bytes())
    (tmp_path / "ca.key").write_bytes((folder / "server.key").read_bytes())
    create_server_certificate(tmp_path, [])
    chain = (tmp_path / "server.pem").read_bytes() + (folder / "server.pem").read_bytes()
    (tmp_path / "server.pem").write_bytes(chain)

    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(tmp_path, "localhost", ca=folder / "ca.crt")


def test_what_a_certificate_lacks_is_said(folder: Path):
    server = folder / "server.pem"
    names = ["server.example.org", "192.0.2.7", "2001:db8::7", "localhost", "127.0.0.1", "::1"]

    assert certificate_names(server) == names
    assert certificate_gap(server, ["SERVER.example.org", "2001:DB8:0::7"]) is None
    assert "does not name other.example.org" in str(certificate_gap(server, ["other.example.org"]))
    assert "ended on" in str(certificate_gap(server, [], today=datetime.now(UTC) + timedelta(days=826)))


def test_private_files_are_readable_by_their_owner_alone(folder: Path, tmp_path: Path):
    create_node_key(tmp_path / "node")

    for path in (folder / "ca.key", folder / "server.key", tmp_path / "node"):
        assert path.stat().st_mode & 0o777 == 0o600
    for path in (folder / "ca.crt", folder / "server.pem", tmp_path / "node.pub"):
        assert path.stat().st_mode & 0o777 == 0o644


def test_nothing_is_overwritten_unasked(folder: Path, tmp_path: Path):
    create_node_key(tmp_path / "node")
    before = {path: path.read_bytes() for path in [*folder.iterdir(), *tmp_path.iterdir()] if path.is_file()}

    for again in (
        lambda: create_authority(folder),
        lambda: create_server_certificate(folder, []),
        lambda: create_node_key(tmp_path / "node"),
    ):
        with pytest.raises(UsageError, match="not overwritten"):
            again()

    assert {path: path.read_bytes() for path in before} == before


def test_a_public_key_that_lies_in_the_way_is_kept_and_no_private_key_made(tmp_path: Path):
    (tmp_path / "node.pub").write_text("somebody's\n")

    with pytest.raises(UsageError, match="not overwritten"):
        create_node_key(tmp_path / "node")

    assert (tmp_path / "node.pub").read_text() == "somebody's\n"
    assert not (tmp_path / "node").exists()


def test_flower_and_ssh_read_a_node_s_keys(tmp_path: Path):
    line = create_node_key(tmp_path / "node")
    derived = subprocess.run(["ssh-keygen", "-y", "-f", tmp_path / "node"], capture_output=True, text=True, check=True)

    assert derived.stdout.split()[:2] == line.split()[:2]
    assert try_load_public_key(tmp_path / "node.pub").startswith(b"-----BEGIN PUBLIC KEY-----")
    check_node_key(tmp_path / "node")


def test_a_key_of_ssh_keygen_is_a_node_key_and_its_comment_is_dropped(tmp_path: Path):
    command = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", "me@home", "-f", tmp_path / "node"]
    subprocess.run(command, check=True)

    check_node_key(tmp_path / "node")

    assert public_key(tmp_path / "node.pub").split() == (tmp_path / "node.pub").read_text().split()[:2]


@pytest.mark.parametrize("content", ["", "ssh-rsa AAAA", "-----BEGIN CERTIFICATE-----", "ecdsa-sha2-nistp384 AAAA"])
def test_any_other_file_is_no_key_of_a_node(content: str, tmp_path: Path):
    (tmp_path / "file").write_text(content)

    with pytest.raises(UsageError, match="not a node's public key"):
        public_key(tmp_path / "file")
    with pytest.raises(UsageError, match="not a node's private key"):
        check_node_key(tmp_path / "file")


def test_what_is_neither_name_nor_address_gets_no_certificate(tmp_path: Path):
    create_authority(tmp_path)

    with pytest.raises(UsageError, match="neither a DNS name nor an address"):
        create_server_certificate(tmp_path, ["sérver"])

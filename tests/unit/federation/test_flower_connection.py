"""What is said of a server that is asked: that it answers, that it is another, or that nobody is there."""

import http.server
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fdgsec.federation.engines.flower.certificates import create_authority, create_server_certificate
from fdgsec.federation.engines.flower.connection import AbsentError, Connection, UnreachableError, ask
from fdgsec.federation.engines.flower.nodes_and_jobs import submit
from fdgsec.federation.engines.flower.process_trees import free_port
from fdgsec.runtime.errors import UsageError


class Guarded(http.server.BaseHTTPRequestHandler):
    """Answers /health, and refuses everything else."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


class Quiet(http.server.ThreadingHTTPServer):
    """Says nothing of failed handshakes."""

    def handle_error(self, request: object, client_address: object) -> None:
        pass


@contextmanager
def answering(certificates: Path | None) -> Iterator[str]:
    """Serve at loopback, with the certificates of a folder or without, and give the address."""
    server = Quiet(("127.0.0.1", 0), Guarded)
    if certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("federation")
    create_authority(made)
    create_server_certificate(made, [])
    return made


@pytest.fixture(scope="module")
def secure(folder: Path) -> Iterator[str]:
    with answering(folder) as address:
        yield address


@pytest.fixture(scope="module")
def plain() -> Iterator[str]:
    with answering(None) as address:
        yield address


def test_a_server_answers_who_asks_as_it_speaks(secure: str, plain: str, folder: Path):
    assert ask(Connection(address=secure, ca=folder / "ca.crt"), "/health") == 200
    assert ask(Connection(address=plain, ca=None), "/health") == 200
    assert ask(Connection(address=plain, ca=None), "/v1/control/start-run") == 403


def test_a_server_of_another_authority_is_refused(secure: str, tmp_path: Path):
    create_authority(tmp_path)

    with pytest.raises(UnreachableError, match="is not vouched for by") as refusal:
        ask(Connection(address=secure, ca=tmp_path / "ca.crt"), "/health")

    assert not isinstance(refusal.value, AbsentError)


def test_plain_http_is_told_that_tls_is_on(secure: str):
    with pytest.raises(UnreachableError, match="TLS is on there: give --ca FILE instead of --insecure") as refusal:
        ask(Connection(address=secure, ca=None), "/health")

    assert not isinstance(refusal.value, AbsentError)


def test_tls_is_told_that_it_is_not_spoken_there(plain: str, folder: Path):
    with pytest.raises(UnreachableError, match="does not speak TLS") as refusal:
        ask(Connection(address=plain, ca=folder / "ca.crt"), "/health")

    assert not isinstance(refusal.value, AbsentError)


def test_nobody_is_absent(folder: Path):
    with pytest.raises(AbsentError, match=r"nobody answers at 127\.0\.0\.1"):
        ask(Connection(address=f"127.0.0.1:{free_port()}", ca=folder / "ca.crt"), "/health")


@pytest.mark.medium
def test_a_run_is_not_sent_to_a_server_that_takes_runs_from_its_own_machine_alone(plain: str, tmp_path: Path):
    with pytest.raises(UsageError, match="takes runs from its own machine alone"):
        submit(tmp_path, Connection(address=plain, ca=None), timeout=5)

    assert list(tmp_path.iterdir()) == []

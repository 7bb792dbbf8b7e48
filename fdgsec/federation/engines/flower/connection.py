"""Connections to a server, and a check that it answers: one request at a time, without proxies, in bounded time."""

import http.client
import re
import ssl
from dataclasses import dataclass
from pathlib import Path

from fdgsec.runtime.errors import FdgsecError, UsageError


class UnreachableError(FdgsecError):
    """The server did not answer, or not as expected."""


class AbsentError(UnreachableError):
    """No server answered at all; one may still start there."""


@dataclass(frozen=True, kw_only=True)
class Connection:
    """A server at `address` (HOST:PORT, IPv6 in brackets); `ca` is the certificate of its authority.

    Without `ca` the connection is plain HTTP, which can be read and altered on the way. Raises UsageError for an
    invalid address."""

    address: str
    ca: Path | None

    def __post_init__(self) -> None:
        _split(self.address)

    @property
    def host(self) -> str:
        """Give the address without its port and brackets."""
        return _split(self.address)[0]

    @property
    def port(self) -> int:
        """Give the port."""
        return _split(self.address)[1]


def address_of(host: str, port: int) -> str:
    """Format HOST:PORT, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def ask(connection: Connection, path: str, *, timeout: float = 5.0) -> int:
    """GET `path` and give the status code. Raises UnreachableError with the reason where there is no answer."""
    where = connection.address
    try:
        client = _client(connection, timeout)
        try:
            client.request("GET", path)
            return client.getresponse().status
        finally:
            client.close()
    except ssl.SSLCertVerificationError as error:
        reason = f"{where} is not vouched for by {connection.ca}: {error.verify_message.rstrip('.')}"
    except ssl.SSLError:
        reason = f"{where} does not speak TLS; it was started with --insecure, or is another server"
    except (http.client.HTTPException, ConnectionResetError):
        reason = f"{where} does not speak plain HTTP; TLS is on there: give --ca FILE instead of --insecure"
    except OSError as error:
        raise AbsentError(f"nobody answers at {where}: {error.strerror or error}.") from None
    raise UnreachableError(f"{reason}.")


def _client(connection: Connection, timeout: float) -> http.client.HTTPConnection:
    if connection.ca is None:
        return http.client.HTTPConnection(connection.host, connection.port, timeout=timeout)
    context = ssl.create_default_context(cafile=str(connection.ca))
    return http.client.HTTPSConnection(connection.host, connection.port, timeout=timeout, context=context)


def _split(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"\[([0-9A-Fa-f:.]+)\]:(\d{1,5})|([A-Za-z0-9_.-]+):(\d{1,5})", text)
    port = int(match[2] or match[4]) if match else 0
    if match is None or not 0 < port < 65536:
        raise UsageError(f"{text!r} is no address; expected HOST:PORT, e.g. server.example.org:9191.")
    return match[1] or match[3], port

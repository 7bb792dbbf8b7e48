"""Flower's SuperLink, restricted to nodes for remote requests.

Run it as `python -m fdgsec.federation.engines.flower.superlink_access_control ...`.

Flower serves three APIs on one port. Node authentication protects the nodes' (Fleet). The other two have no
authentication of their own: anybody with access to the port may register a key or start a run (Control), that is run
code on the server and on every node, or take the server's own tasks (Runtime). TLS does not help, because it shows who
the server is, not who asks. Therefore these two answer only the server's own machine. Takes the arguments of
`flower-superlink`; nothing is served where the restriction cannot be installed."""

import ipaddress
import sys
from collections.abc import Awaitable, Callable, MutableMapping

from flwr.superlink import main as superlink
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, flower_superlink
from flwr.superlink.config_loader import SuperLinkLifespanConfig

FROM_AFAR = ("/v1/fleet/", "/health")
"""Paths for everybody: the nodes' own (protected by their keys), and the health check."""
SIGN = "/fdgsec/gate"
"""A path that only the gate answers, by which the starting process checks that the gate is installed."""

Scope = MutableMapping[str, object]
Receive = Callable[[], Awaitable[MutableMapping[str, object]]]
Send = Callable[[MutableMapping[str, object]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class Gate:
    """An ASGI middleware that answers 403 to requests from other machines for paths outside of FROM_AFAR."""

    def __init__(self, app: Application) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request, or refuse it."""
        path = str(scope.get("path", ""))
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif path == SIGN:
            await _answer(send, 204, b"")
        elif path.startswith(FROM_AFAR) or asked_from_here(scope.get("client"), scope.get("server")):
            await self.app(scope, receive, send)
        else:
            await _answer(send, 403, b"fdgsec: answered to the server's own machine alone\n")


def asked_from_here(client: object, server: object) -> bool:
    """Tell whether both ends of a connection, (address, port) each, are on one machine; False where one is unknown."""
    asking, asked = _address(client), _address(server)
    return asking is not None and (asking.is_loopback or asking == asked)


def _address(end: object) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    if not isinstance(end, tuple | list) or not end:
        return None
    try:
        address = ipaddress.ip_address(str(end[0]).partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


async def _answer(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers if body else []})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    """Run `flower-superlink`, with the gate in front of every API."""
    create_app = superlink.create_app

    def create_gated_app(
        config: SuperLinkLifespanConfig | None = None, superlink_lifespan_class: type[SuperLinkLifespan] | None = None
    ) -> object:
        app = create_app(config, superlink_lifespan_class)
        app.add_middleware(Gate)
        return app

    sys.modules[superlink.__name__].__dict__["create_app"] = create_gated_app  # where it is looked up at the start
    flower_superlink()


if __name__ == "__main__":
    main()

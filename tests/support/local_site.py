"""A web server on this machine that misbehaves as told, for tests of what downloads."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@dataclass(kw_only=True)
class Site:
    """What the server hands out, how, and which (path, Range) it was asked for."""

    files: dict[str, bytes]
    address: str = ""
    ranges: bool = True
    etag: str | None = '"v1"'
    kind: str = "application/octet-stream"
    says_length: bool = True
    length: str | None = None  # what it says instead of the true length
    checks_if_range: bool = True
    off_by: int = 0  # parts begin so many bytes after the one that was asked for
    volunteers: bool = False  # it sends parts that nobody asked for
    unsatisfiable: bool = False  # every request is answered with 416
    cuts: list[int] = field(default_factory=list)  # the next answers end after so many bytes of their body
    moved: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def url(self, name: str) -> str:
        return f"{self.address}/{name}"


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[Site]:
    """Serve `files` on 127.0.0.1 until the end of the block."""
    site = Site(files=files)

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _answer(site, self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    site.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _answer(site: Site, request: BaseHTTPRequestHandler) -> None:
    name, wanted = request.path.lstrip("/"), request.headers.get("Range")
    site.asked.append((name, wanted))
    if name in site.moved:
        request.send_response(302)
        request.send_header("Location", site.moved[name])
        request.end_headers()
        return
    if name not in site.files:
        request.send_error(404)
        return
    body, start = site.files[name], 0
    matches = not site.checks_if_range or request.headers.get("If-Range") in (None, site.etag)
    if site.volunteers and not wanted:
        wanted = "bytes=0-"
    span = re.fullmatch(r"bytes=(\d+)-", wanted) if wanted and site.ranges and matches else None
    if site.unsatisfiable or (span and int(span[1]) >= len(body)):
        request.send_response(416)
        request.send_header("Content-Range", f"bytes */{len(body)}")
        request.end_headers()
        return
    if span:
        start = int(span[1]) + site.off_by
        request.send_response(206)
        request.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
    else:
        request.send_response(200)
    end = site.cuts.pop(0) if site.cuts else None  # before the client can go on, or it might set the next answer's cut
    request.send_header("Content-Type", site.kind)
    if site.says_length:
        request.send_header("Content-Length", site.length or str(len(body) - start))
    if site.etag:
        request.send_header("ETag", site.etag)
    request.end_headers()
    with suppress(ConnectionError):  # the client may turn away after the headers
        request.wfile.write(body[start:][:end])

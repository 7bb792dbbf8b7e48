"""Downloads over http and https that can be interrupted and resumed; a target file is complete and checked, or absent.

The bytes received so far are stored beside the target as `NAME.part`, with a note (`NAME.part.json`) that identifies
the version of the file they belong to. The next call requests only the rest (RFC 9110, sections 13.1.5 and 14: If-Range
and Range). If the server cannot send that part, sends another one, or has a different version by now, the download
starts over. Only a complete, checked file gets the target's name. urllib reads the proxies from the environment."""

import hashlib
import http.client
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from fdgsec.runtime.errors import FdgsecError, MissingResourceError
from fdgsec.runtime.untrusted_text import read_json_object

Progress = Callable[[int, int | None], None]  # (bytes done, total bytes or None where the server does not say)

TIMEOUT = 15.0  # seconds without an answer or a byte
ATTEMPTS = 5  # an interrupted download is resumed at once, as long as each attempt receives something
_BLOCK = 1 << 20
_MEGABYTE = 10**6
_HEADERS = {"User-Agent": "fdgsec", "Accept-Encoding": "identity"}  # some servers refuse Python's own name


class DownloadError(MissingResourceError):
    """A file cannot be downloaded; an existing file at the target stays unchanged (exit 3)."""


@dataclass(frozen=True, kw_only=True)
class _Order:
    """One download, and the location of its unfinished file."""

    url: str
    target: Path
    sha256: str | None
    size: int | None

    @property
    def part(self) -> Path:
        return self.target.with_name(f"{self.target.name}.part")

    @property
    def note(self) -> Path:
        return self.target.with_name(f"{self.target.name}.part.json")

    @property
    def done(self) -> int:
        return self.part.stat().st_size if self.part.is_file() else 0

    def validator(self) -> str | None:
        """Give the tag or date of the version the part belongs to ("": the server gave none), None without a part."""
        try:
            note = read_json_object(self.note)
        except FdgsecError:
            return None
        known = note.get("url") == self.url and isinstance(note.get("validator"), str)
        return str(note["validator"]) if known else None

    def begin(self, validator: str) -> None:
        """Delete the part and store the validator of the next one."""
        self.part.unlink(missing_ok=True)
        self.note.write_text(json.dumps({"url": self.url, "validator": validator}))

    def discard(self) -> None:
        """Delete the part and its note."""
        self.part.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)

    def fault(self, file: Path) -> str | None:
        """Describe how `file` differs from the expected size or digest; None where it agrees."""
        if self.size is not None and (found := file.stat().st_size) != self.size:
            return f"{found} bytes; expected {self.size}"
        if self.sha256 is not None:
            with file.open("rb") as handle:
                digest = hashlib.file_digest(handle, "sha256").hexdigest()
            if not digest.startswith(self.sha256):
                return f"sha256 {digest}; expected {self.sha256}"
        return None


def download(url: str, target: Path, *, sha256: str | None, size: int | None, progress: Progress | None = None) -> Path:
    """Download `url` to `target` and give `target`; a correct `target` that is already there is not downloaded again.

    `sha256` is the expected digest, or its first digits where only those are published; `size` is in bytes; None means
    "not known". A `target` that disagrees with them is replaced once the right file is complete. Raises ValueError
    where `url` is not http(s). Raises DownloadError, in one line, where there is no network, the server refuses, the
    disk is too small, the connection breaks repeatedly, or the file is not the expected one. A wrong file is deleted;
    the part of an interrupted download is kept for the next call."""
    if not url.startswith(("https://", "http://")):
        raise ValueError(f"url must be an http(s) address; got {url!r}.")
    order = _Order(url=url, target=target, sha256=sha256, size=size)
    try:
        if target.is_file() and order.fault(target) is None:
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(order):
            _receive(order, progress)
            if fault := order.fault(order.part):
                order.discard()
                raise DownloadError(f"{url} gave another file: {fault}. It was deleted; nothing was stored.")
            order.part.replace(target)
    except OSError as error:
        raise DownloadError(f"{target} cannot be written: {error.strerror or error}.") from error
    return target


def reach(url: str) -> None:
    """Request `url` and discard the answer. Raises DownloadError, in one line, where it cannot be reached."""
    try:
        _open(Request(url, headers=_HEADERS)).close()
    except (OSError, http.client.HTTPException) as error:
        raise DownloadError(f"{url} cannot be reached: {_reason(error)}.") from error


def in_megabytes(show: Callable[[str, int, int], None], what: str) -> Progress:
    """Adapt a progress display of (description, done, total) steps to bytes; a step is a megabyte (1,000,000 bytes)."""

    def advance(done: int, total: int | None) -> None:
        steps = -(-done // _MEGABYTE)
        show(f"{what} (MB)", steps, steps if total is None else -(-total // _MEGABYTE))

    return advance


@contextmanager
def _alone(order: _Order) -> Iterator[None]:
    """Lock the part against other processes, where the system can lock files; an empty part leaves no files behind."""
    with ExitStack() as held:
        if sys.platform != "win32":
            import fcntl

            handle = held.enter_context(order.note.open("a"))
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise DownloadError(f"{order.url} is being downloaded by another process; wait for it.") from error
        try:
            yield
        finally:
            if not order.done:
                order.discard()


def _receive(order: _Order, progress: Progress | None) -> None:
    """Complete the part, in at most `ATTEMPTS` connections."""
    for attempt in range(1, ATTEMPTS + 1):
        before = order.done
        try:
            return _connect(order, progress)
        except (OSError, http.client.HTTPException) as error:
            if order.done <= before or attempt == ATTEMPTS:
                kept = f" The {order.done} bytes so far are kept for the next try." if order.done else ""
                raise DownloadError(f"{order.url} cannot be downloaded: {_reason(error)}.{kept}") from error


def _connect(order: _Order, progress: Progress | None) -> None:
    """Request the missing bytes and append them. Raises OSError or HTTPException where the connection fails."""
    validator = order.validator()
    # without a validator from the server, only a digest can tell afterwards whether two pieces belong to one file
    offset = order.done if validator or (validator == "" and order.sha256) else 0
    headers = dict(_HEADERS)
    if offset:
        headers["Range"] = f"bytes={offset}-"
        headers |= {"If-Range": validator} if validator else {}
    try:
        response = _open(Request(order.url, headers=headers))
    except HTTPError as error:
        if not offset or error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        if error.headers.get("Content-Range") == f"bytes */{offset}":
            return None  # nothing is missing: the last call ended between the last byte and the check
        return _start_over(order, progress)
    with response:
        resumed = response.status == http.client.PARTIAL_CONTENT
        if resumed and not offset:
            raise OSError(f"it sent a part that it was not asked for: {response.headers.get('Content-Range')!r}")
        # some servers send whatever version they have, or whatever range they like
        if resumed and not (_begins_at(response, offset) and _version(response) in ("", validator)):
            return _start_over(order, progress)
        total = _announced(response, offset if resumed else 0)
        _check(order, response, total=total, present=offset if resumed else 0)
        if not resumed:
            order.begin(_version(response))
        _append(response, order.part, total, progress)
    return None


def _start_over(order: _Order, progress: Progress | None) -> None:
    order.part.unlink(missing_ok=True)  # not the note: it holds the lock against other processes
    _connect(order, progress)


def _check(order: _Order, response: http.client.HTTPResponse, *, total: int | None, present: int) -> None:
    """Raise DownloadError where the headers of an answer show that it is not the expected file."""
    if response.headers.get_content_type() == "text/html" and order.target.suffix not in (".html", ".htm"):
        raise DownloadError(
            f"{order.url} gave a web page, not {order.target.name}: open it in a browser and save the file."
        )
    if order.size is not None and total is not None and total != order.size:
        raise DownloadError(f"{order.url} offers {total} bytes; expected {order.size}: it is another file.")
    if total is None and not (order.sha256 or order.size) and not response.headers.get("Transfer-Encoding"):
        raise DownloadError(f"{order.url} does not say how long it is, so that a part could pass for the whole.")
    missing, free = (total or order.size or 0) - present, shutil.disk_usage(order.target.parent).free
    if missing > free:
        raise DownloadError(
            f"{order.url} needs {missing / _MEGABYTE:,.0f} MB in {order.target.parent}, which has "
            f"{free / _MEGABYTE:,.0f} MB free: make room or choose another place."
        )


def _begins_at(response: http.client.HTTPResponse, offset: int) -> bool:
    """Tell whether a partial answer starts at byte `offset`."""
    span = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return span is not None and int(span[1]) == offset


def _announced(response: http.client.HTTPResponse, offset: int) -> int | None:
    """Give the bytes of the whole file, of which this answer is the rest from `offset` on; None where unknown."""
    whole = re.fullmatch(r"bytes \d+-\d+/(\d+)", response.headers.get("Content-Range", ""))
    if offset and whole is not None:
        return int(whole[1])
    length = response.headers.get("Content-Length", "")
    return offset + int(length) if length.isdecimal() else None


def _append(response: http.client.HTTPResponse, file: Path, total: int | None, progress: Progress | None) -> None:
    with file.open("ab") as handle:
        done = handle.tell()
        if progress:
            progress(done, total)
        while block := response.read(_BLOCK):
            done += handle.write(block)
            if progress:
                progress(done, total)
    if total is not None and done != total:
        raise OSError(f"the connection ended after {done} of {total} bytes")


def _version(response: http.client.HTTPResponse) -> str:
    """Give what distinguishes versions of a file: its strong entity tag, else its date, else ""."""
    tag = response.headers.get("ETag", "")
    return tag if tag.startswith('"') else response.headers.get("Last-Modified", "")


class _Redirects(HTTPRedirectHandler):
    """Follows redirects to http and https, but never from https to unencrypted http."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage, newurl: str
    ) -> Request | None:
        """Give the request for the new address, as urllib does."""
        allowed = "https://" if req.type == "https" else ("https://", "http://")
        if not newurl.lower().startswith(allowed):
            raise URLError(f"refused to be sent from {req.type} to {newurl}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(request: Request) -> http.client.HTTPResponse:
    try:
        return cast(http.client.HTTPResponse, build_opener(_Redirects).open(request, timeout=TIMEOUT))
    except HTTPError as error:
        error.close()  # it would hold the connection; code and headers stay readable
        raise


def _reason(error: Exception) -> str:
    """Describe a network error in one printable line; an error without a message is described by its type."""
    text = " ".join(str(error).removeprefix("<urlopen error ").removesuffix(">").split()).rstrip(".")
    return "".join(letter if letter.isprintable() else "?" for letter in text) or type(error).__name__

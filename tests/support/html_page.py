"""Reads a page as a browser would: what it has, and whether its elements are closed in order."""

from collections.abc import Sequence
from html.parser import HTMLParser

VOID = {"meta", "img", "input", "br", "line", "rect", "path", "polyline", "circle"}


class Reader(HTMLParser):
    """Collects what a page has."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.sources: list[str] = []
        self.headings: list[str | None] = []
        self.counts: dict[str, int] = {}
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.ids += [str(given["id"])] if "id" in given else []
        self.targets += [str(given["href"])] if "href" in given else []
        self.sources += [str(given["src"])] if "src" in given else []
        self.headings += [given.get("scope")] if tag == "th" else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data if not self.open or self.open[-1] not in ("style", "script") else ""


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    return reader

"""Pages of Markdown as a reader takes them: headings as places that links name, links, and blocks of code."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "RELEASING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]  # fmt: skip
FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:\A|(?<=\n\n))(?: {4}.*\n(?:\n(?= {4}))?)+")
NOT_RUN = re.compile(r"<!-- not run: [^\n]+ -->\n+\Z")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block of code of a page; `excused` by a comment above it that says why it cannot be run."""

    page: Path
    line: int
    language: str
    text: str
    excused: bool

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, and the indented ones, whose language is empty."""
    text = page.read_text()
    for found in FENCE.finditer(text):
        yield _block(page, text, found, found["language"], found["text"])
    plain = FENCE.sub(lambda found: re.sub(r"[^\n]", "", found[0]), text)
    for found in INDENTED.finditer(plain):
        yield _block(page, plain, found, "", re.sub(r"^ {4}", "", found[0], flags=re.MULTILINE))


def _block(page: Path, text: str, found: re.Match[str], language: str, code: str) -> Block:
    before = text[: found.start()]
    return Block(
        page=page, line=before.count("\n") + 1, language=language, text=code, excused=bool(NOT_RUN.search(before))
    )


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each command of a block, without comments and variables that are set for it.

    A line that ends with a backslash goes on in the next, as in a shell."""
    text = re.sub(r" *\\\n *", " ", block.text)
    for line in text.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&;|<>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in (*lexer, ";"):
            if set(word) <= set("&;|<>"):
                while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                    words = words[1:]
                if words:
                    yield words
                words = []
            else:
                words.append(word)


def links(page: Path) -> Iterator[str]:
    """The targets of a page's links, without code."""
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))
    yield from re.findall(r"\]\(([^()\s]+)\)", text)
    yield from re.findall(r"^\[[^\]]+\]: (\S+)", text, re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The places of a page that a link can name, as in rendered Markdown: headings in lower case with hyphens."""
    text = FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+?)\s*$", text, re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "") for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}

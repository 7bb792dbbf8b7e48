"""What mkdocs does beside rendering docs/: pages made from code, pages from the root, and files that pages link to.

mkdocs calls the functions by their names. Links that leave docs/ (`../benchmarks/results/...`, `docs/...` in pages from
the root) point to places in the repository; the site has copies of those files, so that it works without it."""

import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import api_reference
import cli_reference
import glossary_page
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
FROM_ROOT: Mapping[str, str] = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "RELEASING.md": "releasing.md",
}
"""Pages of the root of the repository, by their paths in the site."""
EMPTY_HEADER = re.compile(r'<th((?: style="[^"<>]*")?)></th>')
"""As Markdown writes it."""
COPIES = "files"
"""The site's folder of files that lie outside docs/."""
SHIM = "assets/worker_in_frame.js"
"""The script that lets search run where the browser refuses workers."""
READABLE = ("assets/readable.css", "assets/readable.js")
"""A style sheet and a script for what axe-core finds in the theme's pages."""
LINK = re.compile(r"(?<=\]\()(?P<target>[^()\s#]+)(?P<anchor>#[^()\s]*)?(?=\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Let search work from disk by the site's own script: the plugin `offline` would load one from the network.

    Add what makes pages readable for everybody."""
    config.extra["polyfills"] = [SHIM]
    config.extra_css.append(READABLE[0])
    config.extra_javascript.append(READABLE[1])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made of code and of the root's files, and copies of the files that pages link to."""
    made = {
        "reference/cli.md": cli_reference.page(),
        "glossary.md": glossary_page.page(),
        **api_reference.pages(),
        **{target: (ROOT / name).read_text() for name, target in FROM_ROOT.items() if (ROOT / name).is_file()},
    }
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    for path in (SHIM, *READABLE):
        files.append(File.generated(config, path, abs_src_path=str(Path(__file__).with_name(posixpath.basename(path)))))
    for linked in sorted(_linked(files)):
        _add_copy(files, config, linked)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - by name
    """Let links to places in the repository point to the site's pages and copies of them."""
    here = page.file.src_uri

    def moved(found: re.Match[str]) -> str:
        place = _place(here, found["target"])
        path = None if place is None else _in_site(place)
        if path is None or files.get_file_from_path(path) is None:
            return found[0]
        return posixpath.relpath(path, posixpath.dirname(here)) + (found["anchor"] or "")

    return LINK.sub(moved, _tables_apart(markdown))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - by name
    """Let a table's cell without words be no header: Markdown makes one of every cell of the first row."""
    return EMPTY_HEADER.sub(r"<td\1></td>", html)


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:  # noqa: ARG001 - called by name
    """Leave the navigation as mkdocs.yml has it. Raises ValueError for a page of docs/ that it does not reach."""
    reached = {page.file.src_uri for page in nav.pages}
    copies = (f"{COPIES}/", "404.md")
    lost = [each.src_uri for each in files.documentation_pages() if each.src_uri not in reached]
    if lost := [path for path in lost if not path.startswith(copies)]:
        raise ValueError(f"mkdocs.yml: the navigation does not reach {', '.join(lost)}; add each to nav.")
    return nav


def _tables_apart(markdown: str) -> str:
    """Put an empty line between a comment and the table below it, which Markdown asks for and GitHub does not."""
    return re.sub(r"(-->)\n(\|)", r"\1\n\n\2", markdown)


def _linked(files: Files) -> Iterator[str]:
    """Paths in the repository, outside docs/, that pages link to."""
    for page in files.documentation_pages():
        for found in LINK.finditer(page.content_string):
            place = _place(page.src_uri, found["target"])
            if place is not None and _in_site(place, copied=False) is None and (ROOT / place).exists():
                yield place


def _place(page: str, target: str) -> str | None:
    """The path in the repository of a link's target; None for an address elsewhere."""
    if re.match(r"[a-z]+:", target):
        return None
    at = {made: name for name, made in FROM_ROOT.items()}.get(page, f"docs/{page}")
    at = at.removeprefix(f"docs/{COPIES}/") if at.startswith(f"docs/{COPIES}/") else at
    return posixpath.normpath(posixpath.join(posixpath.dirname(at), target))


def _in_site(place: str, *, copied: bool = True) -> str | None:
    """The path in the site of a place in the repository."""
    if place.startswith("docs/"):
        return place.removeprefix("docs/")
    if place in FROM_ROOT:
        return FROM_ROOT[place]
    folder = (ROOT / place).is_dir()
    return posixpath.join(COPIES, place, *(["index.md"] if folder else [])) if copied else None


def _add_copy(files: Files, config: MkDocsConfig, place: str) -> None:
    """Add a file of the repository, or a list of the files below a folder."""
    source, path = ROOT / place, str(_in_site(place))
    if source.is_file():
        files.append(File.generated(config, path, abs_src_path=str(source)))
        return
    below = sorted(each for each in source.rglob("*") if each.is_file())
    lines = [f"* [{each.relative_to(source)}]({each.relative_to(source)})" for each in below]
    files.append(File.generated(config, path, content="\n".join([f"# Files of {place}", "", *lines, ""])))
    for each in below:
        inner = f"{COPIES}/{each.relative_to(ROOT).as_posix()}"
        if files.get_file_from_path(inner) is None:
            files.append(File.generated(config, inner, abs_src_path=str(each)))

"""The documentation site: it builds without a warning, needs no network to be read, and its made pages are complete."""

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer

from docs.site import cli_reference, glossary_page
from fdgsec.cli.app import VERBS, app
from fdgsec.experiments.report import glossary

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )

    assert (done.returncode, "WARNING" in done.stderr, "ERROR" in done.stderr) == (0, False, False), done.stderr
    return folder


def commands(group: click.Group, parent: click.Context) -> list[click.Context]:
    """The contexts of all commands below a group, with those of groups within."""
    found = []
    for name in group.list_commands(parent):
        command = group.get_command(parent, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=parent)
        found += [context, *(commands(command, context) if isinstance(command, click.Group) else [])]
    return found


def test_the_command_line_reference_has_every_verb_and_every_option():
    root = typer.main.get_command(app)
    assert isinstance(root, click.Group)
    page = cli_reference.page()
    sections = dict(re.findall(r"^#+ (fdgsec [^\n]+)\n(.*?)(?=^#+ fdgsec |\Z)", page, re.MULTILINE | re.DOTALL))

    found = commands(root, click.Context(root, info_name="fdgsec"))
    assert set(sections) == {context.command_path for context in found} >= {f"fdgsec {verb}" for verb in VERBS}
    for context in found:
        declared = [name for param in context.command.params for name in param.opts if name.startswith("-")]
        hidden = [n for p in context.command.params if getattr(p, "hidden", False) for n in p.opts]
        lacking = {name for name in declared if name not in hidden and name not in sections[context.command_path]}
        assert not lacking


def test_the_glossary_page_has_every_word_with_its_meaning():
    page = glossary_page.page()

    for table in (glossary.WORDS, glossary.MEASUREMENTS, glossary.SLICES):
        assert [name for name, said in table.items() if f"`{name}`" not in page or said not in page] == []


def test_the_navigation_reaches_every_page():
    listed = re.findall(r"\S+\.md$", (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2], re.MULTILINE)
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}

    assert pages <= set(listed)
    assert len(listed) == len(set(listed))


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site: Path):
    loaded = re.compile(
        r"""<(?:script|img|iframe|source)[^>]*\ssrc="([^"]+)|<link[^>]*\shref="([^"]+)|url\(["']?([^"')]+)"""
    )
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]

    assert len(pages) > 80
    addresses = {(page.name, "".join(found)) for page in pages for found in loaded.findall(page.read_text())}
    assert [each for each in sorted(addresses) if re.match(r"(https?:)?//", each[1])] == []
    assert ("index.html", "assets/worker_in_frame.js") in addresses


@pytest.mark.slow
def test_links_within_the_site_lead_to_pages_and_places_that_exist(site: Path):
    """mkdocs checks the links of Markdown; this checks what became of them, and of those that made pages contain."""
    identifiers = {
        page: set(re.findall(r'\sid="([^"]*)"', page.read_text())) | {""} for page in site.rglob("*.html")
    }  # fmt: skip
    broken = []
    for page in identifiers:
        article = page.read_text().partition("<article")[2].partition("</article>")[0]
        for address in map(html.unescape, re.findall(r'<a[^>]*\shref="([^"]*)"', article)):
            path, _, anchor = address.partition("#")
            target = (page.parent / path).resolve() if path else page
            if not re.match(r"[a-z]+:", address) and (
                not target.exists() or (target in identifiers and anchor not in identifiers[target])
            ):
                broken.append((page.name, address))

    assert broken == []


@pytest.mark.slow
def test_every_page_links_to_the_glossary_and_the_reference_shows_docstrings(site: Path):
    for page in site.rglob("*.html"):
        if page.name != "404.html":
            assert re.search(r'<p class="words"><a href="[./]*glossary\.html">', page.read_text()), page

    python = (site / "reference" / "python.html").read_text()
    assert "Run (or reuse) a target, run every applicable attack, and return the report." in python
    assert 'id="fdgsec.attack_vectors"' in python


@pytest.mark.slow
def test_pages_have_what_screen_readers_and_keyboards_need(site: Path):
    """What axe-core found in the theme's pages; whether it still does is seen in a browser alone."""
    for page in site.rglob("*.html"):
        said = page.read_text()
        assert not re.search(r"<th[^>]*>\s*</th>", said), page
        assert re.search(r'<link rel="stylesheet" href="[./]*assets/readable\.css">', said), page
        assert re.search(r'<script src="[./]*assets/readable\.js"></script>', said), page
    assert (site / "assets" / "readable.css").stat().st_size > 0
    assert (site / "assets" / "readable.js").stat().st_size > 0


@pytest.mark.slow
def test_search_finds_a_word_of_a_report(site: Path):
    index = (site / "search" / "search_index.js").read_text()

    assert index.startswith("var __index = {")
    assert "tpr_at_1pct_fpr" in index

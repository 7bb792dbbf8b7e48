"""Links on pages lead to files that exist, and to headings that those files have."""

from pathlib import Path

import pytest

from tests.support.pages import PAGES, ROOT, anchors, links

MADE = {"glossary.md", "reference/cli.md", "reference/python.md"}  # by docs/site, at every build
EXISTING = [page for page in PAGES if page.is_file()]


@pytest.mark.parametrize("page", EXISTING, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path):
    broken = []
    for target in links(page):
        path, _, anchor = target.partition("#")
        if "://" in target or path.startswith("mailto:"):
            continue
        place = (page.parent / path).resolve() if path else page
        if (
            place.suffix == ".md"
            and str(place).startswith(str(ROOT / "docs"))
            and str(place.relative_to(ROOT / "docs")) in MADE
        ):
            continue
        if not place.exists() or (anchor and place.suffix == ".md" and anchor not in anchors(place)):
            broken.append(target)

    assert broken == []


def test_pages_link_to_many_places():
    assert sum(len(list(links(page))) for page in EXISTING) > 200


def test_a_heading_is_named_as_rendered_pages_name_it(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("# FISC's median: `a_b`, or not\n\n## [Linked](x.md) (once)\n\n```\n# no heading\n```\n")

    assert anchors(page) == {"fiscs-median-a_b-or-not", "linked-once"}

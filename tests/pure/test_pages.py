# SPDX-License-Identifier: Apache-2.0
"""The documentation hangs together: every page is in the navigation, every link leads somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "src" / "bitwright"
PAGES = sorted(DOCS.rglob("*.md"))
TEXTS = [*PAGES, *ROOT.glob("*.md"), *(ROOT / "examples").glob("*.md")]
_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
#: A file of the package as pages name it; capitals stand for a name to be chosen.
_FILE = re.compile(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.(?:py|sv|toml|json|c))`")
#: Folders that pages name files below.
_BELOW = (PACKAGE, ROOT, PACKAGE / "rtl")


def entries(nav: Any) -> Iterator[str]:
    """The pages of a navigation, which is lists and mappings in one another."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from entries(part)


def anchors(page: Path) -> set[str]:
    """The names that a page's headings have as targets of links."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", t).strip().lower()) for t in titles}


def test_every_page_is_in_the_navigation() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    named, there = list(entries(nav)), [page.relative_to(DOCS).as_posix() for page in PAGES]
    assert sorted(named) == sorted(there)


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target, anchor in _LINK.findall(text):
        other = (page.parent / target).resolve() if target else page
        assert other.exists(), f"{page.name} links to {target}, which is not there"
        assert not anchor or anchor in anchors(other), f"{page.name}: {target} has no #{anchor}"


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    missing = {
        name
        for name in _FILE.findall(page.read_text())
        if not any((folder / name).exists() for folder in _BELOW)
    }
    assert not missing, f"{page.name} names files that are not there: {sorted(missing)}"

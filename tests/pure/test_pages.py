# SPDX-License-Identifier: Apache-2.0
"""The documentation hangs together: every page is in the navigation, every link leads somewhere."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from bitwright.cli.app import app
from bitwright.pipeline.recipe_keys import keys_below

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


def commands(text: str) -> Iterator[str]:
    """The calls of ``bitwright`` in a page: lines of its blocks, and code in its sentences."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for block in blocks:
        yield from re.findall(r"^(bitwright [^#\n]*)", block.replace("\\\n", " "), re.MULTILINE)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`(bitwright [^`]+)`", prose)


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


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_have_the_verbs_options_and_keys_that_a_page_gives_them(page: Path) -> None:
    wrong = []
    for line in commands(page.read_text()):
        verb, words = typer.main.get_command(app), shlex.split(line)[1:]
        while hasattr(verb, "commands") and words:
            named = words[0] in verb.commands
            if not named and (words[0].startswith("-") or not hasattr(verb, "default")):
                break
            verb = verb.commands[words.pop(0) if named else verb.default]
        if hasattr(verb, "commands") and words and words[0][0].isalpha():
            wrong.append(f"{line}: no verb {words[0]}")
        known = {"--help"} | {name for param in verb.params for name in param.opts}
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        wrong += [f"{line}: no {option}" for option in options - known]
        for option, value in pairwise(words):
            if option == "--set":
                keys_below(value.partition("=")[0])  # raises what is no key
    assert not wrong, "\n".join(wrong)

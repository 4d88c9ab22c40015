# SPDX-License-Identifier: Apache-2.0
"""The pages that are made from the code are current, and what docstrings name is there."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from bitwright.base.docstrings import meanings, own_docstring, parse_docstring
from bitwright.pipeline.recipe_keys import kinds_of_recipes, recipe_keys

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@cache
def references() -> ModuleType:
    spec = importlib.util.spec_from_file_location("references", ROOT / "tools" / "references.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_say_what_the_code_says() -> None:
    made = references().pages()
    there = [DOCS / "reference-recipe.md", *(DOCS / "python").glob("*.md")]
    assert sorted(made) == sorted(page.relative_to(DOCS) for page in there), "make references"
    old = [str(page) for page, text in made.items() if (DOCS / page).read_text() != text]
    assert not old, f"`make references` makes them again: {', '.join(old)}"


@pytest.mark.parametrize("kind", kinds_of_recipes(), ids=lambda kind: kind or "design")
def test_every_key_has_a_meaning_and_says_what_is_allowed(kind: str) -> None:
    keys = [key for section in recipe_keys(kinds_of_recipes()[kind]) for key in section.keys]
    mute = [key.path for key in keys if not key.meaning or not key.allowed]
    assert not mute, f"document below Attributes of their classes: {', '.join(mute)}"


def test_what_pages_and_examples_import_is_there() -> None:
    """Also names of modules of the package."""
    missing = []
    for place, name in sorted(references().imported_by_pages()):
        if not hasattr(importlib.import_module(place), name):
            found = importlib.util.find_spec(f"{place}.{name}")
            missing += [] if found else [f"{place}.{name}"]
    assert not missing, missing


def test_arguments_that_docstrings_name_are_there() -> None:
    wrong = []
    for path in sorted((ROOT / "src" / "bitwright").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                named = parse_docstring(ast.get_docstring(node)).entries.get("Args", {})
                given = node.args
                taken = [*given.posonlyargs, *given.args, *given.kwonlyargs]
                taken += [extra for extra in (given.vararg, given.kwarg) if extra]
                strange = {name.lstrip("*") for name in named} - {each.arg for each in taken}
                wrong += [f"{path.name}: {node.name} has no {name}" for name in strange]
    assert not wrong, "\n".join(wrong)


def test_public_names_have_docstrings_whose_attributes_are_there() -> None:
    silent, wrong = [], []
    rooms = references().public_names()
    for module, names in (pair for modules in rooms.values() for pair in modules.items()):
        for name in names:
            value = getattr(importlib.import_module(module), name)
            if not isinstance(value, type) and not inspect.isfunction(value):
                continue
            if not own_docstring(value):
                silent.append(f"{module}.{name}")
            if isinstance(value, type):
                strange = meanings(value).keys() - attributes(value)
                wrong += [f"{module}.{name} has no {each}" for each in strange]
    assert not silent, f"without a docstring: {', '.join(silent)}"
    assert not wrong, "\n".join(wrong)


def attributes(kind: type) -> set[str]:
    """What a class declares, has, or sets in ``__init__``."""
    found: set[str] = set()
    for base in kind.__mro__:
        found |= {*vars(base), *inspect.get_annotations(base)}
        if base.__module__.startswith("bitwright"):
            tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(base)))
            stored = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
            found |= {node.attr for node in stored if isinstance(node.ctx, ast.Store)}
    return found

# SPDX-License-Identifier: Apache-2.0
"""``python tools/references.py`` (``make references``) writes the pages that are made from the
code: all keys of recipes, and the Python API by room. A test holds that they are current.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sys
import textwrap
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel

import bitwright
from bitwright.base.described import KeySection
from bitwright.base.docstrings import meanings, own_docstring, parse_docstring
from bitwright.pipeline.recipe_keys import kinds_of_recipes, recipe_keys

DOCS = Path(__file__).resolve().parents[1] / "docs"
_MADE = "<!-- Made by `make references`: change the docstrings, not this page. -->"
ROOT = DOCS.parent
#: Modules below a room whose names are public as well.
_BELOW = (
    "bitwright.base.errors",
    "bitwright.interop.artifact",
    "bitwright.ir.executor",
    "bitwright.pipeline.api",
    "bitwright.quantize.ptq",
)
#: The command line has verbs, and papers are no API.
_NO_API = ("bitwright.cli", "bitwright.papers")
_WIDTH = 100


def pages() -> dict[Path, str]:
    """Every page with what it must say."""
    rooms = public_names()
    made = {Path("reference-recipe.md"): recipe_page(), Path("python/index.md"): index_page(rooms)}
    return made | {Path("python") / f"{room}.md": room_page(room, rooms[room]) for room in rooms}


def recipe_page() -> str:
    """All keys of recipes of all kinds, section by section."""
    lines = [
        "# Keys of recipes",
        _MADE,
        "Every key that a recipe may have: what is allowed, the default, and what it means. `[]` "
        "stands for an entry of a list; *nothing* is written `null`. "
        "`bitwright list keys train.float` says the same in the terminal, and "
        "`--set train.float.lr=0.01` changes one key of a recipe for one call.",
    ]
    for kind, root in kinds_of_recipes().items():
        lines += [f"## Recipes of kind {kind}" if kind else "## Recipes of a design"]
        for section in recipe_keys(root):
            lines += _section(section)
    return "\n\n".join(lines) + "\n"


def _section(section: KeySection) -> Iterator[str]:
    first, *others = section.paths
    yield f"### `{first}`" if first else "### At the top"
    yield _markdown(section.summary)
    if others:
        yield f"The same keys stand below {', '.join(f'`{place}`' for place in others)}."
    rows = ["| key | allowed | default | meaning |", "|---|---|---|---|"]
    for key in section.keys:
        cells = (f"`{key.path}`", key.allowed, key.default and f"`{key.default}`", key.meaning)
        rows.append(
            f"| {' | '.join(_markdown(cell).replace('|', chr(92) + '|') for cell in cells)} |"
        )
    yield "\n".join(rows)


def public_names() -> dict[str, dict[str, list[str]]]:
    """The public names, by room and module: what a room's ``__all__`` has, and what the pages and
    examples import from elsewhere.
    """
    rooms = [entry.name for entry in pkgutil.iter_modules(bitwright.__path__) if entry.ispkg]
    modules = {"bitwright", *(f"bitwright.{room}" for room in rooms), *_BELOW}
    found: dict[str, set[str]] = {}
    for module in modules:
        found[module] = _names_of(importlib.import_module(module), module in _BELOW)
    for module, name in imported_by_pages():
        known = found.get(f"bitwright.{module.split('.')[1]}", ()) if "." in module else rooms
        if name not in known:
            found.setdefault(module, set()).add(name)
    by_room: dict[str, dict[str, list[str]]] = {}
    for module in sorted(found):
        if found[module] and not module.startswith(_NO_API):
            names = sorted(found[module], key=lambda name: (name.lower(), name))
            by_room.setdefault((module.split(".") * 2)[1], {})[module] = names
    return by_room


def _names_of(module: ModuleType, whole: bool) -> set[str]:
    """What ``__all__`` has; of a module without one nothing, or the whole of it."""
    own = (
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", "") == module.__name__ and not name.startswith("_")
    )
    return set(getattr(module, "__all__", own if whole else ())) - {"__version__"}


def imported_by_pages() -> set[tuple[str, str]]:
    """Module and name of all that README, the pages and the examples import of the package."""
    examples = (ROOT / "examples").rglob("*")
    texts = [ROOT / "README.md", *DOCS.glob("*.md"), *examples]
    found = set()
    for path in texts:
        if path.suffix not in (".md", ".py"):
            continue
        text = path.read_text(encoding="utf-8")
        blocks = (
            re.findall(r"```python\n(.*?)```", text, re.DOTALL) if path.suffix == ".md" else [text]
        )
        for block in blocks:
            found |= _imports(block)
    return found


def _imports(code: str) -> set[tuple[str, str]]:
    try:
        tree = ast.parse(code)
    except SyntaxError:  # a piece of a program
        return set()
    return {
        (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bitwright")
        for alias in node.names
    }


def index_page(rooms: dict[str, dict[str, list[str]]]) -> str:
    """The list of all pages."""
    rows = ["| room | what it is | names |", "|---|---|---|"]
    for room, modules in rooms.items():
        whole = bitwright if room == "bitwright" else importlib.import_module(f"bitwright.{room}")
        names = ", ".join(f"`{name}`" for found in modules.values() for name in found)
        summary = _markdown(parse_docstring(whole.__doc__).summary)
        rows.append(f"| [{room}]({room}.md) | {summary} | {names} |")
    intro = (
        "The public names of every room: signatures, arguments, errors. Everything else in the "
        "package may change without notice. Mistakes are told by a `BitwrightError` "
        "([errors](base.md)), which says what was expected, what came, where, and what to do. How "
        "the rooms hang together: [the house on one page](../index.md)."
    )
    return "\n\n".join(["# Python API", _MADE, intro, "\n".join(rows)]) + "\n"


def room_page(room: str, modules: dict[str, list[str]]) -> str:
    """The public names of a room."""
    whole = importlib.import_module("bitwright" if room == "bitwright" else f"bitwright.{room}")
    lines = [f"# `{whole.__name__}`", _MADE, *_told(whole.__doc__)]
    for place, names in modules.items():
        module = importlib.import_module(place)
        if module is not whole:
            lines += [f"## `{place}`", _markdown(parse_docstring(module.__doc__).summary)]
        for name in names:
            level = "##" if module is whole else "###"
            lines += [f"{level} `{name}`", *_entry(name, getattr(module, name))]
    return "\n\n".join(line for line in lines if line) + "\n"


def _entry(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, type):
        yield from _class(name, value)
    elif inspect.isfunction(value):
        yield _signature(name, value)
        yield from _told(own_docstring(value))
    else:
        yield f"A value: `{_plain(value)}`" if len(repr(value)) < _WIDTH else "A value."


def _class(name: str, kind: type) -> Iterator[str]:
    is_plain = issubclass(kind, BaseModel | Enum | BaseException)
    yield f"```python\nclass {name}\n```" if is_plain else _signature(f"class {name}", kind)
    yield from _told(own_docstring(kind), meanings(kind))
    if issubclass(kind, Enum):
        yield "Members: " + ", ".join(f"`{member.name}`" for member in kind) + "."
    for method, value in sorted(vars(kind).items()):
        plain = getattr(value, "__func__", value)
        if method.startswith("_") or not inspect.isfunction(plain) or not plain.__doc__:
            continue
        yield _signature(f"{name}.{method}", plain)
        yield from _told(plain.__doc__)
    found = {
        key: parse_docstring(value.__doc__).summary
        for key, value in sorted(vars(kind).items())
        if isinstance(value, property) and not key.startswith("_") and value.__doc__
    }
    yield from _list("Properties", found)


def _told(text: str | None, attributes: dict[str, str] | None = None) -> Iterator[str]:
    """The docstring as Markdown."""
    said = parse_docstring(text)
    yield _markdown(said.summary)
    yield _body(said.body)
    yield from _list("Attributes", attributes or {})
    yield from _list("Arguments", said.entries.get("Args", {}))
    for heading in ("Returns", "Yields"):
        if heading in said.entries:
            yield f"{heading}: {_markdown(said.entries[heading][''])}"
    yield from _list("Raises", said.entries.get("Raises", {}))


def _body(text: str) -> str:
    """Paragraphs and lists as they are; indented blocks are code."""
    lines = [
        line if line.startswith("    ") else _markdown(re.sub(r"::$", ":", line))
        for line in text.split("\n")
    ]
    return "\n".join(lines).strip("\n")


def _list(heading: str, entries: dict[str, str]) -> Iterator[str]:
    if entries:
        told = [f"- `{name}`: {_markdown(text)}" for name, text in entries.items()]
        yield f"{heading}:\n\n" + "\n".join(told)


def _signature(name: str, value: Any) -> str:
    """As one writes it, one argument a line where it is long."""
    try:
        signature = inspect.signature(value)
    except ValueError:
        return f"```python\n{name}(...)\n```"
    shown, bare = [], False
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not bare:
            shown.append("*")
        bare = bare or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        text = f"{stars}{parameter.name}"
        if parameter.annotation is not parameter.empty:
            text += f": {_annotation(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += f" = {_plain(parameter.default)}"
        shown.append(text)
    back = signature.return_annotation
    ends = "" if back in (signature.empty, "None", None) else f" -> {_annotation(back)}"
    line = f"{name}({', '.join(shown)}){ends}"
    if len(line) > _WIDTH:
        line = f"{name}(\n" + textwrap.indent(",\n".join(shown), "    ") + f",\n){ends}"
    return f"```python\n{line}\n```"


def _annotation(given: Any) -> str:
    return given if isinstance(given, str) else getattr(given, "__name__", str(given))


def _plain(value: Any) -> str:
    """A default as one writes it, the same on every machine."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(repr, value)))}}}"
    if isinstance(value, Path):
        return f'Path("{value.name}")'
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    text = repr(value)
    return "..." if " at 0x" in text or "\n" in text or len(text) > _WIDTH else text


def _markdown(text: str) -> str:
    """reStructuredText's code in Markdown's; nothing of it is taken for HTML."""
    parts = re.split(r"(``.+?``|`[^`]+`)", text)
    return "".join(
        part.replace("``", "`")
        if part.startswith("`")
        else part.replace("<", "&lt;").replace("*", r"\*")
        for part in parts
    )


if __name__ == "__main__":
    made = pages()
    (DOCS / "python").mkdir(exist_ok=True)
    for old in {path.relative_to(DOCS) for path in (DOCS / "python").glob("*.md")} - made.keys():
        (DOCS / old).unlink()
    for path, text in made.items():
        (DOCS / path).write_text(text, encoding="utf-8")
    print(f"wrote {len(made)} pages", file=sys.stderr)

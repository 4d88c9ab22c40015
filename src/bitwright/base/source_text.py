# SPDX-License-Identifier: Apache-2.0
"""What a file of Python says, for `bitwright.base.source`: meaning, imports, names of files."""

from __future__ import annotations

import ast
import hashlib
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DATA_FILES = frozenset(
    {".sv", ".c", ".h", ".cpp", ".toml", ".vlt", ".json", ".html", ".css", ".js"}
)
_WORD = re.compile(r"[\w.-]+(/[\w.-]+)*")
#: A function of ours that is looked up by its name, and the beginning of such a name.
_NAMED = re.compile(r"bitwright(\.\w+)+:\w+")
_INSIDE = re.compile(r"bitwright(\.\w+)+\.")
_READERS = frozenset({"__file__", "files", "package_files"})
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

_Import = tuple[int, str, tuple[str, ...]]
"""Dots in front, module, names taken from it."""


@dataclass(frozen=True)
class Source:
    """What a file of Python says, apart from comments, docstrings and layout.

    Attributes:
        meaning: hash of its syntax tree.
        imports: wherever they stand; those of the module's ``__getattr__`` are in ``on_demand``.
        lazy: name -> submodule, of the table ``_LAZY``.
        bound: names that the module itself binds.
        is_facade: it does nothing but import and name: of a package that does, only what is taken
            from it matters.
        folders: packages of which a module is looked up by a name found out at run time.
        words: constants that may name data files; of a data file, names of files in it.
        reads: it looks for files beside itself.
    """

    meaning: str
    imports: tuple[_Import, ...] = ()
    on_demand: tuple[_Import, ...] = ()
    lazy: tuple[tuple[str, str], ...] = ()
    bound: tuple[str, ...] = ()
    is_facade: bool = False
    folders: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    reads: bool = False


def read_source(body: bytes) -> Source:
    """What a file of Python says; one that cannot be parsed is what its bytes are."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(body)
    except (SyntaxError, ValueError):  # importing it will say what is wrong
        return Source(hashlib.sha256(body).hexdigest())
    nodes = list(ast.walk(tree))
    words, dotted, named, folders = set(), set(), set(), set()
    for node in nodes:
        match node:
            case ast.Constant(value=str(text)) if _NAMED.fullmatch(text):
                named.add(text.partition(":")[0])
            case ast.Constant(value=str(text)) if len(text) < 80 and _WORD.fullmatch(text):
                words.add(text)
            case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]) if _INSIDE.match(text):
                folders.add(text.rpartition(".")[0])
            case ast.Name() | ast.Attribute():
                dotted.add(_dotted(node))
    reads = any(name in _READERS or name.rpartition(".")[2] in _READERS for name in dotted)
    imports, on_demand = _imports(tree, dotted)
    imports += tuple((0, name, ()) for name in sorted(named))
    lazy, bound = _lazy_table(tree), _bound(tree)
    is_facade = all(_is_naming(node) for node in tree.body[_documented(tree) :])
    for node in nodes:
        if isinstance(node, _DOCUMENTED) and _documented(node):
            node.body[0] = ast.Pass()
    meaning = hashlib.sha256(ast.dump(tree).encode()).hexdigest()
    files = tuple(sorted(word for word in words if reads or Path(word).suffix in DATA_FILES))
    return Source(
        meaning, imports, on_demand, lazy, bound, is_facade, tuple(sorted(folders)), files, reads
    )


def _documented(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return ast.get_docstring(node, clean=False) is not None


def _imports(tree: ast.Module, dotted: set[str]) -> tuple[tuple[_Import, ...], tuple[_Import, ...]]:
    """Imports, and those of the module's ``__getattr__``; of a whole package those names count that
    are then taken from it.
    """
    found: list[_Import] = []
    on_demand: list[_Import] = []
    attributes: dict[str, set[str]] = {}
    for owner, _, name in (text.rpartition(".") for text in dotted):
        attributes.setdefault(owner, set()).add(name)

    def taken_from(bound: str) -> tuple[str, ...]:
        return tuple(sorted(attributes.get(bound, ())))

    for node, is_asked in _statements(tree):
        target = on_demand if is_asked else found
        if isinstance(node, ast.Import):
            for alias in node.names:
                target.append((0, alias.name, taken_from(alias.asname or alias.name)))
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            target.append((node.level, module, tuple(alias.name for alias in node.names)))
            for alias in node.names:  # it may be a module
                if used := taken_from(alias.asname or alias.name):
                    stem = f"{module}.{alias.name}" if module else alias.name
                    target.append((node.level, stem, used))
    return tuple(found), tuple(on_demand)


def _statements(tree: ast.Module) -> Iterator[tuple[ast.AST, bool]]:
    """All but those for type checking, and whether they are in the module's ``__getattr__``."""
    queue: list[tuple[ast.AST, bool]] = [(node, False) for node in tree.body]
    while queue:
        node, is_asked = queue.pop()
        yield node, is_asked
        inner = [*getattr(node, "handlers", ()), *getattr(node, "cases", ())]
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, ())
            if isinstance(statements, list) and not (field == "body" and _is_typing(node)):
                inner.extend(statements)
        is_asked |= isinstance(node, ast.FunctionDef) and node.name == "__getattr__"
        queue.extend((child, is_asked) for child in inner)


def _is_typing(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and _dotted(node.test).rpartition(".")[2] == "TYPE_CHECKING"


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (inner := _dotted(node.value)):
        return f"{inner}.{node.attr}"
    return ""


def _targets(node: ast.stmt) -> list[str]:
    """Names that a statement assigns."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _bound(tree: ast.Module) -> tuple[str, ...]:
    names = [name for node in tree.body for name in _targets(node)]
    names += [node.name for node in tree.body if isinstance(node, _DOCUMENTED)]
    return tuple(sorted(set(names) - {"__all__", "_LAZY", "__getattr__"}))


def _is_naming(node: ast.stmt) -> bool:
    """Whether a statement only imports, or says what is imported."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Pass():
            return True
        case ast.FunctionDef(name="__getattr__"):
            return True
        case ast.If():
            return _is_typing(node) and not node.orelse
        case ast.Assign() | ast.AnnAssign():
            return bool(_targets(node)) and _is_constant(node.value)
    return False


def _is_constant(node: ast.expr | None) -> bool:
    try:
        ast.literal_eval(node)  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return False
    return True


def _lazy_table(tree: ast.Module) -> tuple[tuple[str, str], ...]:
    for node in tree.body:
        if "_LAZY" in _targets(node) and isinstance(node, ast.Assign | ast.AnnAssign):
            if _is_constant(node.value):
                table = ast.literal_eval(node.value)  # type: ignore[arg-type]
                return tuple(sorted((str(name), str(module)) for name, module in table.items()))
    return ()

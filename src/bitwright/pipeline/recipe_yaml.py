# SPDX-License-Identifier: Apache-2.0
"""YAML with places: a mapping read by the safe loader that remembers the line of every key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from bitwright.base.errors import RecipeError

Path = tuple[int | str, ...]
#: The longest recipe, and the most values in it when every alias is written out: both are a hundred
#: times what the largest recipe has, and small enough to be read at once. And the deepest nesting.
MOST_BYTES, _MOST_VALUES, _DEEPEST = 200_000, 20_000, 50

#: Signs of a number. 1:30:00 is one, too (of base 60), for which PyYAML takes the square of them.
_DIGITS = 100
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class _Loader(yaml.SafeLoader):
    """The safe loader, except that 1e-3 is a number (as in YAML 1.2) and a key stands only once."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


@dataclass(frozen=True)
class Document:
    """Plain values with the place of each.

    Attributes:
        value: the mapping.
        file: named in errors.
        lines: path of keys -> line number from 1, or a word such as ``--set``.
    """

    value: dict[str, Any]
    file: str
    lines: Mapping[Path, int | str]

    def where(self, path: Path) -> str:
        """``file:line: a.b.c`` of the key, or of the nearest section that stands in the file."""
        field = ".".join(map(str, path))
        for length in range(len(path), 0, -1):
            line = self.lines.get(path[:length])
            if isinstance(line, int):
                return f"{self.file}:{line}: {field}"
            if line is not None:
                return f"{line}: {field}"
        return f"{self.file}: {field}" if field else self.file

    def override(self, assignment: str) -> Document:
        """The document after ``a.b.c=value``, the value read as YAML.

        Raises:
            RecipeError: the text is no assignment.
        """
        key, sign, text = assignment.partition("=")
        parts = tuple(key.strip().split("."))
        if not sign or not all(parts):
            raise RecipeError(
                f"expected KEY=VALUE, found {assignment!r}",
                where="--set",
                hint="for example: --set train.float.epochs=3",
            )
        return self.assign(parts, load_value(text, f"--set {assignment}"), "--set")

    def assign(self, path: Path, value: Any, origin: str) -> Document:
        """The document with one value replaced; missing sections on the way are made."""
        made = {path[:length]: origin for length in range(1, len(path))}
        lines = {**made, **self.lines, path: origin}
        return Document(_replaced(self.value, path, value), self.file, lines)


def _replaced(value: Any, path: Path, new: Any) -> dict[str, Any]:
    if isinstance(value, str):  # `model: lenet` stands for `model: {name: lenet}`
        value = {"name": value}
    section = dict(value) if isinstance(value, Mapping) else {}
    first, rest = str(path[0]), path[1:]
    section[first] = _replaced(section.get(first), rest, new) if rest else new
    return section


def load_value(text: str, where: str) -> Any:
    """One YAML value.

    Raises:
        RecipeError: it is no YAML.
    """
    return _read(text, where)[0]


def _read(text: str, where: str) -> tuple[Any, dict[Path, int | str]]:
    """What one document stands for, and the line of every key."""
    if len(text) > MOST_BYTES:
        raise RecipeError(f"has {len(text)} characters, at most {MOST_BYTES} are read", where=where)
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            _check_size(root, where)
            lines: dict[Path, int | str] = {}
            _collect(root, (), lines, where)  # before the loader puts merged keys among the others
            return None if root is None else loader.construct_document(root), lines
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise _syntax_error(error, where) from error
    except (ValueError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        # A date such as 2024-99-99, `!!bool abc`, endless nesting: PyYAML lets all of it through.
        raise RecipeError(f"is no valid YAML: {error}", where=where) from error


def _check_size(root: yaml.Node | None, where: str) -> None:
    """Refuse a document before it is made whose aliases of aliases would fill the memory."""
    waiting = [(root, 0)] if root is not None else []
    seen = 0
    while waiting:
        node, depth = waiting.pop()
        seen += 1
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    line = key.start_mark.line + 1
                    raise RecipeError("a key is a word", where=f"{where}:{line}")
                waiting.append((value, depth + 1))
        elif isinstance(node, yaml.SequenceNode):
            waiting += [(value, depth + 1) for value in node.value]
        if isinstance(node, yaml.ScalarNode) and node.tag in _NUMBERS and len(node.value) > _DIGITS:
            line = node.start_mark.line + 1
            raise RecipeError(f"a number has more than {_DIGITS} signs", where=f"{where}:{line}")
        if seen + len(waiting) > _MOST_VALUES or depth > _DEEPEST:
            raise RecipeError(
                f"stands for more than {_MOST_VALUES} values, or deeper ones than {_DEEPEST}",
                where=where,
                hint="write it without aliases (*name) of aliases, and without one of itself",
            )


def parse_document(text: str, file: str) -> Document:
    """Read a YAML mapping with its places.

    Raises:
        RecipeError: it is no YAML, no mapping, or a key stands twice.
    """
    value, lines = _read(text, file)
    value = {} if value is None else value
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise RecipeError(
            f"expected a mapping of sections, found {type(value).__name__}",
            where=file,
            hint="see the commented recipe that `bitwright init` writes",
        )
    return Document(value, file, lines)


def _collect(node: yaml.Node | None, path: Path, lines: dict[Path, int | str], file: str) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below = (*path, str(key.value))
            line = key.start_mark.line + 1
            if below in lines:
                raise RecipeError(
                    f"the key stands twice, first in line {lines[below]}",
                    where=f"{file}:{line}: {'.'.join(map(str, below))}",
                    hint="keep one of them",
                )
            lines[below] = line
            _collect(value, below, lines, file)
    elif isinstance(node, yaml.SequenceNode):
        for position, value in enumerate(node.value):
            lines[(*path, position)] = value.start_mark.line + 1
            _collect(value, (*path, position), lines, file)


def _syntax_error(error: yaml.YAMLError, file: str) -> RecipeError:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    where = file if mark is None else f"{file}:{mark.line + 1}"
    return RecipeError(
        f"is no valid YAML: {problem}", where=where, hint="check indentation, colons and quotes"
    )

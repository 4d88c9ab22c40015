# SPDX-License-Identifier: Apache-2.0
"""Lines of code by language: without comments, docstrings and empty lines (spec 2.19, 4.7)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

from bitwright.base.errors import DataError
from bitwright.base.files import read_bytes
from bitwright.base.folders import files_below

LANGUAGES = {
    ".py": "Python",
    ".c": "C",
    ".h": "C",
    ".cpp": "C++",
    ".cl": "OpenCL",
    ".sv": "SystemVerilog",
    ".v": "Verilog",
    ".vhd": "VHDL",
    ".vhdl": "VHDL",
}
_MOST_BYTES = 64 << 20
#: Text in quotes first, so that what looks like a comment inside it is none.
_C_TOKENS = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.DOTALL)
_HASH = re.compile(r"^\s*#.*$", re.MULTILINE)


def count_text(text: str, language: str) -> int:
    """Lines that hold code.

    Raises:
        DataError: Python that does not parse.
    """
    if language == "Python":
        text = _without_docstrings(text)
        text = _HASH.sub("", text)
    elif language == "VHDL":
        text = re.sub(r"--[^\n]*", "", text)
    else:
        text = _C_TOKENS.sub(_blank, text)
    return sum(bool(line.strip()) for line in text.splitlines())


def _blank(found: re.Match[str]) -> str:
    """A comment as its line ends; a text as it is."""
    return "\n" * found[0].count("\n") if found[0][0] == "/" else found[0]


def _without_docstrings(text: str) -> str:
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise DataError(f"no Python: {error}", where="lines of code") from error
    lines = text.splitlines()
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, owners) and ast.get_docstring(node, clean=False) is not None:
            body = node.body[0]
            for number in range(body.lineno - 1, body.end_lineno or body.lineno):
                lines[number] = ""
    return "\n".join(lines)


def count_files(paths: Iterable[Path]) -> dict[str, int]:
    """Lines by language of all files (and files in folders) whose ending is known."""
    found: dict[str, int] = {}
    for path in paths:
        inside = files_below(path) if path.is_dir() else [path]
        for file in inside:
            language = LANGUAGES.get(file.suffix.lower())
            if language and file.is_file():
                text = read_bytes(file, most=_MOST_BYTES).decode("utf-8", "replace")
                found[language] = found.get(language, 0) + count_text(text, language)
    return found


def own_lines() -> dict[str, int]:
    """Of this reproduction, by language."""
    return count_files([Path(str(files("bitwright.papers.bnn_soc")))])

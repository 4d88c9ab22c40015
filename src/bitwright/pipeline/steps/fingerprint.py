# SPDX-License-Identifier: Apache-2.0
"""What a step depends on besides the recipe: our own code, the user's model, the data."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import logging
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from bitwright.base.files import atomic_write, cache_dir, sha256_file
from bitwright.base.plugins import load_attribute, plugged
from bitwright.data import Dataset, DataSplits, digest_of
from bitwright.models import ModelSpec

PACKAGE = Path(__file__).resolve().parents[2]
_log = logging.getLogger(__name__)
#: Count up when `_meaning` changes.
_MEANINGS = f"meanings-1-{sys.version_info[0]}.{sys.version_info[1]}.json"
_SOURCES = frozenset({".py", ".sv", ".c", ".h", ".cpp", ".toml", ".vlt", ".json"})


@cache
def code_version(*parts: str) -> str:
    """Hash of what our own code means: comments, docstrings and layout do not count.

    Args:
        parts: folders or modules of the package, such as ``train`` or ``steps/train.py``.
    """
    digest = hashlib.sha256(f"python {sys.version_info[:2]}".encode())
    known_before = len(_meanings())
    for part in sorted(parts):
        place = PACKAGE / part
        files = sorted(place.rglob("*")) if place.is_dir() else [place]
        for path in files:
            if path.suffix in _SOURCES and path.is_file():
                digest.update(path.relative_to(PACKAGE).as_posix().encode())
                digest.update(_own_meaning(path))
    _keep_meanings(known_before)
    return digest.hexdigest()[:32]


def model_version(spec: ModelSpec, folders: Iterable[Path]) -> str:
    """Hash of the source of a user's own model and of the modules beside it that it imports, and
    of the files that a model or its weights are read from.

    Args:
        spec: for a model of the zoo this is empty, as `code_version` covers it; a plug-in's has its
            module.
        folders: where the user's modules lie: the recipe's folder first.
    """
    read = "".join(sha256_file(path) for path in spec.files if path.is_file())
    if not spec.is_own:
        read += _plugged_meaning(spec.name)
        return read[:64] if len(read) <= 64 else hashlib.sha256(read.encode()).hexdigest()
    roots = [folder.resolve() for folder in folders]
    digest = hashlib.sha256()
    seen: set[str] = set()
    queue = [spec.name.partition(":")[0]]
    installed = _installed(queue[0].partition(".")[0], roots)
    while queue:
        name = queue.pop()
        if name in seen:
            continue
        seen.add(name)
        path = _find(name, roots) or (_find(name, [installed[1]]) if installed else None)
        if path is None or (installed and name.partition(".")[0] != installed[0]):
            continue
        digest.update(name.encode() + b"\0" + _meaning(path))
        queue.extend(_imports(path, name, path.name == "__init__.py"))
    digest.update(read.encode())
    return digest.hexdigest()[:32]


def _plugged_meaning(name: str) -> str:
    """Hash of the module that builds a plug-in's model; empty for any other."""
    place = plugged("models").get(name)
    if place is None:
        return ""
    found = importlib.util.find_spec(load_attribute(place).factory.partition(":")[0])
    if found is None or found.origin is None:
        return ""
    return hashlib.sha256(_meaning(Path(found.origin))).hexdigest()


def data_version(splits: DataSplits) -> str:
    """Hash of every image, label and class name of a data set."""
    digest: str = digest_of(splits.train, splits.validation, splits.test)
    return digest


def images_version(part: Dataset) -> str:
    """Hash of which images of their source are in a part, whatever copy they were read from."""
    return hashlib.sha256(part.indices.astype("<i8").tobytes()).hexdigest()[:32]


@contextmanager
def importable(folders: Iterable[Path]) -> Iterator[None]:
    """Let the user's modules be found in these folders, first of all."""
    before = list(sys.path)
    sys.path[:0] = [str(folder) for folder in folders if str(folder) not in sys.path]
    try:
        yield
    finally:
        sys.path[:] = before


@cache
def _own_meaning(path: Path) -> bytes:
    content = sha256_file(path)
    known = _meanings()
    if content not in known:
        known[content] = _meaning(path).hex()
    return bytes.fromhex(known[content])


@cache
def _meanings() -> dict[str, str]:
    """Hash of the bytes of our own files -> of their meaning, as earlier processes have found it:
    to parse all our files takes longer than a small training.
    """
    try:
        found = json.loads((cache_dir("code") / _MEANINGS).read_text(encoding="utf-8"))
        return {str(key): bytes.fromhex(value).hex() for key, value in found.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _keep_meanings(known_before: int) -> None:
    """For the next process; one that cannot be kept is found again."""
    found = _meanings()
    if len(found) == known_before:
        return
    try:
        atomic_write(cache_dir("code") / _MEANINGS, json.dumps(found))
    except OSError as error:
        _log.debug("%s cannot be kept: %s", _MEANINGS, error)


def _meaning(path: Path) -> bytes:
    """A Python file as its syntax tree without docstrings; any other file as it is."""
    content = path.read_bytes()
    if path.suffix != ".py":
        return hashlib.sha256(content).digest()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(content)
    except (SyntaxError, ValueError):  # importing it will say what is wrong
        return hashlib.sha256(content).digest()
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            node.body[0] = ast.Pass()
    return hashlib.sha256(ast.dump(tree).encode()).digest()


def _installed(top: str, roots: list[Path]) -> tuple[str, Path] | None:
    """A model of an installed package: its name and the folder it lies in; nothing is imported."""
    if _find(top, roots) is not None:
        return None
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin)
    return top, path.parents[1] if path.name == "__init__.py" else path.parent


def _find(name: str, roots: list[Path]) -> Path | None:
    """The file of a module in one of the folders."""
    relative = Path(*name.split("."))
    for root in roots:
        for path in (root / relative / "__init__.py", (root / relative).with_suffix(".py")):
            if path.is_file():
                return path
    return None


def _imports(path: Path, name: str, is_package: bool) -> Iterator[str]:
    """Names of the modules that a module imports, and of the packages around it."""
    parents = name.split(".")
    for length in range(1, len(parents)):
        yield ".".join(parents[:length])
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            drop = node.level - (1 if is_package else 0)
            base = parents[: len(parents) - drop] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            if stem:
                yield stem
            yield from (f"{stem}.{alias.name}" if stem else alias.name for alias in node.names)

# SPDX-License-Identifier: Apache-2.0
"""What Python code depends on: the modules that it imports, and what each of them means.

A result that is kept for the next time is kept under a key, and the key must change with the code
that made it. `code_key` follows imports from a module through our package: those at the top of a
file, late ones inside functions, those by name through a lazy table of a package or as
``bitwright.module:function``, and the data files (``.c``, ``.sv``, ``.toml``) that a module names.
Nothing is imported for it.

Three kinds of imports do not count: for type checking; inside ``__getattr__`` of a package, as long
as nobody asks for the name; and those of other people's packages.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import cache, cached_property
from pathlib import Path

from bitwright.base import source_text
from bitwright.base.files import atomic_write, cache_dir, regular_bytes
from bitwright.base.ownership import others_may_write
from bitwright.base.source_text import DATA_FILES, Source, read_source

PACKAGE = Path(__file__).resolve().parents[1]
_log = logging.getLogger(__name__)
_KEPT = f"sources-{sys.version_info[0]}.{sys.version_info[1]}.json"
_KEPT_AT_MOST = 4000
_KEPT_BYTES = 1 << 26
_INCLUDES = frozenset({".c", ".h", ".cpp", ".html", ".css", ".js"})
_FILE_NAME = re.compile(rb"[\w-]+\.\w+")


class Sources:
    """The files of Python below some folders.

    Args:
        roots: where modules are looked for; the first that has one gives it.
        top: only modules of this package, if given.
        named: count files that modules of others name and that are there: beside the module, or
            below its root.
    """

    def __init__(self, roots: Iterable[Path], top: str | None = None, *, named: bool = False):
        self.roots, self.top, self.named = tuple(roots), top, named
        self._places: dict[str, Path | None] = {}
        self._sources: dict[Path, Source] = {}
        self._known_needs: dict[str, tuple[set[str], dict[str, Path]]] = {}

    def closure(self, *modules: str) -> dict[str, Path]:
        """The files that some modules depend on: modules by name, data files by path.

        Args:
            modules: names; one that is not there is passed over.
        """
        found: dict[str, Path] = {}
        seen: set[str] = set()
        queue = list(modules)
        while queue:
            name = queue.pop()
            if name not in seen and self.find(name) is not None:
                seen.add(name)
                needed, files = self._needs(name)
                found.update(files)
                queue.extend(needed)
        return found

    def key(self, *modules: str) -> str:
        """Hash of what some modules depend on; the same on every machine."""
        digest = hashlib.sha256(f"python {sys.version_info[:2]}".encode())
        for name, path in sorted(self.closure(*modules).items()):
            digest.update(f"{name}\0{self.meaning(path)}\0".encode())
        return digest.hexdigest()[:32]

    def meaning(self, path: Path) -> str:
        """Hash of a file: of Python what it means, of any other all that is in it."""
        return self.source(path).meaning

    def source(self, path: Path) -> Source:
        """What a file says, read once."""
        if path not in self._sources:
            self._sources[path] = _sources_kept().of(path)
        return self._sources[path]

    def find(self, name: str) -> Path | None:
        """The file of a module; None if it is not below the roots."""
        if name not in self._places:
            self._places[name] = self._find(name)
        return self._places[name]

    def _find(self, name: str) -> Path | None:
        parts = name.split(".")
        if not all(parts) or any(sign in name for sign in "/\\\0"):
            return None  # it would lead out of the roots
        if self.top is not None and parts[0] != self.top:
            return None
        relative = Path(*parts)
        for root in self.roots:
            for path in (root / relative / "__init__.py", (root / relative).with_suffix(".py")):
                if path.is_file():
                    return path
        return None

    def _needs(self, name: str) -> tuple[set[str], dict[str, Path]]:
        """What one module needs: other modules, and files, its own among them."""
        if name in self._known_needs:
            return self._known_needs[name]
        path = self.find(name)
        assert path is not None
        source = self.source(path)
        files = self._data_of(path, source)
        if not (source.is_facade and path.name == "__init__.py"):
            files[name] = path
        modules = set(_parents(name))
        for folder in source.folders:
            modules.update(self._modules_in(folder))
        for level, stem, names in source.imports:
            base = _absolute(level, stem, name, path.name == "__init__.py")
            modules.add(base)
            for taken in names:
                modules.update(self._named(base, taken, files))
        self._known_needs[name] = modules, files
        return modules, files

    def _named(self, package: str, name: str, found: dict[str, Path]) -> Iterator[str]:
        """Modules behind a name taken from a package; a constant of it is put into ``found``."""
        place = self.find(package)
        if place is None or self.find(f"{package}.{name}") is not None:
            yield f"{package}.{name}"
            return
        source = self.source(place)
        lazy = dict(source.lazy)
        if name in lazy:
            yield lazy[name] if self.find(lazy[name]) else f"{package}.{lazy[name]}"
        elif name in source.bound:
            found[package] = place
        elif not any(name in names for _, _, names in source.imports):
            for level, stem, names in source.on_demand:
                base = _absolute(level, stem, package, place.name == "__init__.py")
                yield base
                for inner in names:
                    yield from self._named(base, inner, found)

    def _modules_in(self, package: str) -> Iterator[str]:
        place = self.find(package)
        if place is not None:
            for path in place.parent.iterdir():
                if path.suffix == ".py" or (path / "__init__.py").is_file():
                    yield f"{package}.{path.stem}"

    def _data_of(self, path: Path, source: Source) -> dict[str, Path]:
        """The data files that a module of a package names: beside it, in folders that hold nothing
        else, or by a path from the package; if it reads and names none, all those beside it.
        """
        package = next((root / "bitwright" for root in self.roots if root in path.parents), None)
        if package is None or package not in path.parents:
            return self._named_by_others(path, source) if self.named else {}
        beside = _data_below(path.parent)
        taken: set[Path] = set()
        for word in source.words:
            if "/" in word and (package / word).is_file():
                taken.add(package / word)
            last = word.rpartition("/")[2]
            taken.update(f for f in beside if last in f.relative_to(path.parent).parts)
            if word.endswith(".py") and (path.parent / word).is_file():
                taken.add(path.parent / word)
        if source.reads and not taken:
            taken.update(beside)
        queue = list(taken)
        while queue:  # what a template or a C file includes
            names = self.source(queue.pop()).words
            included = {file for file in beside if file.name in names} - taken
            taken |= included
            queue.extend(included)
        return {file.relative_to(package.parent).as_posix(): file for file in taken}

    def _named_by_others(self, path: Path, source: Source) -> dict[str, Path]:
        root = next(root for root in self.roots if root in path.parents)
        places = {folder / word for word in source.words for folder in (path.parent, root)}
        files = (place for place in places if place.suffix != ".py" and place.is_file())
        return {file.relative_to(root).as_posix(): file for file in files}


@cache
def our_code() -> Sources:
    """The files of this package."""
    return Sources((PACKAGE.parent,), PACKAGE.name)


@cache
def code_key(*modules: str) -> str:
    """Hash of all code of ours that some of our modules may run.

    Args:
        modules: full names, such as ``bitwright.pipeline.steps.train``.

    Raises:
        LookupError: there is no such module.
    """
    code = our_code()
    for name in modules:
        if code.find(name) is None:
            raise LookupError(f"no module {name}")
    key = code.key(*modules)
    _sources_kept().keep()
    return key


def script_key(script: Path) -> str:
    """Hash of a script, of the modules beside it that it imports, and of our code behind them."""
    key = Sources((script.resolve().parent, PACKAGE.parent)).key(script.stem)
    _sources_kept().keep()
    return key


def module_key(name: str, folders: Iterable[Path] = ()) -> str:
    """Hash of a module that is not ours, of all that it imports from beside it and from us, and of
    the files that it names; of a package that is installed, of what it imports from itself. Empty
    if there is no such module.

    Args:
        name: with its packages: ``package.module``.
        folders: where it is looked for before Python's own path.
    """
    roots = tuple(folder.resolve() for folder in folders)
    code = Sources((*roots, PACKAGE.parent), named=True)
    if code.find(name) is not None:
        return code.key(name)
    top = name.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return ""
    if spec is None:
        return ""
    places = [Path(place).parent for place in spec.submodule_search_locations or ()]
    if not places and spec.origin is not None:
        places = [Path(spec.origin).parent]
    if any(is_installed(place) for place in places):
        return Sources(places, top).key(name)
    return Sources((*places, *roots, PACKAGE.parent), named=True).key(name)


def is_installed(folder: Path) -> bool:
    """Whether a folder is one of Python's own, which everybody's packages share."""
    own = {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib", "stdlib")}
    return folder in own or folder.name in ("site-packages", "dist-packages")


def _parents(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _absolute(level: int, stem: str, module: str, is_package: bool) -> str:
    if not level:
        return stem
    parts = module.split(".")
    base = parts[: len(parts) - level + (1 if is_package else 0)]
    return ".".join([*base, *([stem] if stem else [])])


@cache
def _data_below(folder: Path) -> tuple[Path, ...]:
    """Data files of a folder and of those below it that hold no module."""
    found: list[Path] = []
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix in DATA_FILES:
            found.append(path)
        elif path.is_dir() and not any(path.glob("*.py")):
            found.extend(_data_below(path))
    return tuple(found)


class _Kept:
    """Content hash of a file -> what it says, as earlier processes have found it: to parse all our
    files takes longer than a small training.
    """

    def __init__(self) -> None:
        self._sources: dict[str, Source] = {}
        self._used: set[str] = set()

    @cached_property
    def _before(self) -> dict[str, Source]:
        try:
            place = cache_dir("code") / _KEPT
            if others_may_write(place):
                return {}
            fields = json.loads(regular_bytes(place, _KEPT_BYTES))
            if fields["reader"] != _reader():
                return {}
            return {content: _from_json(entry) for content, entry in fields["sources"].items()}
        except (OSError, ValueError, AttributeError, TypeError, KeyError):
            return {}

    def of(self, path: Path) -> Source:
        body = path.read_bytes()
        content = hashlib.sha256(body).hexdigest()
        self._used.add(content)
        if path.suffix != ".py":
            return Source(content, words=_included(body) if path.suffix in _INCLUDES else ())
        if content not in self._sources:
            known = self._before.get(content)
            self._sources[content] = read_source(body) if known is None else known
        return self._sources[content]

    def keep(self) -> None:
        """For the next process; what cannot be kept is found again."""
        if self._sources.keys() <= self._before.keys():
            return
        every = {**self._before, **self._sources}
        kept = self._sources if len(every) > _KEPT_AT_MOST else every
        try:
            sources = {content: asdict(source) for content, source in kept.items()}
            text = json.dumps({"reader": _reader(), "sources": sources})
            place = cache_dir("code") / _KEPT
            if not others_may_write(place.parent):
                atomic_write(place, text)
        except OSError as error:
            _log.debug("%s cannot be kept: %s", _KEPT, error)
        self._before.update(self._sources)


@cache
def _sources_kept() -> _Kept:
    return _Kept()


@cache
def _reader() -> str:
    """Hash of what reads files: another version of it may find other things in them."""
    return hashlib.sha256(Path(source_text.__file__).read_bytes()).hexdigest()


def _included(body: bytes) -> tuple[str, ...]:
    """Names of files in a template or a C file, such as those that it includes."""
    names = {match.decode() for match in _FILE_NAME.findall(body)}
    return tuple(sorted(name for name in names if Path(name).suffix in _INCLUDES))


def _from_json(fields: dict[str, object]) -> Source:
    def deep(value: object) -> object:
        return tuple(map(deep, value)) if isinstance(value, list) else value

    return Source(**{name: deep(value) for name, value in fields.items()})  # type: ignore[arg-type]

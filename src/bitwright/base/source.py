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

import ast
import hashlib
import json
import logging
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path

from bitwright.base.files import atomic_write, cache_dir

PACKAGE = Path(__file__).resolve().parents[1]
_log = logging.getLogger(__name__)
#: Count up when `Source` or `_read_source` change.
_KEPT = f"sources-5-{sys.version_info[0]}.{sys.version_info[1]}.json"
_KEPT_AT_MOST = 4000
_DATA = frozenset({".sv", ".c", ".h", ".cpp", ".toml", ".vlt", ".json", ".html", ".css", ".js"})
_INCLUDES = frozenset({".c", ".h", ".cpp", ".html", ".css", ".js"})
_FILE_NAME = re.compile(rb"[\w-]+\.\w+")
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


class Sources:
    """The files of Python below some folders.

    Args:
        roots: where modules are looked for; the first that has one gives it.
        top: only modules of this package, if given.
    """

    def __init__(self, roots: Iterable[Path], top: str | None = None) -> None:
        self.roots, self.top = tuple(roots), top
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
        if not name or (self.top is not None and name.partition(".")[0] != self.top):
            return None
        relative = Path(*name.split("."))
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
            return {}
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
        if path.is_file() and path.suffix in _DATA:
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
            fields = json.loads((cache_dir("code") / _KEPT).read_text(encoding="utf-8"))
            return {content: _from_json(entry) for content, entry in fields.items()}
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
            text = json.dumps({content: asdict(source) for content, source in kept.items()})
            atomic_write(cache_dir("code") / _KEPT, text)
        except OSError as error:
            _log.debug("%s cannot be kept: %s", _KEPT, error)
        self._before.update(self._sources)


@cache
def _sources_kept() -> _Kept:
    return _Kept()


def _included(body: bytes) -> tuple[str, ...]:
    """Names of files in a template or a C file, such as those that it includes."""
    names = {match.decode() for match in _FILE_NAME.findall(body)}
    return tuple(sorted(name for name in names if Path(name).suffix in _INCLUDES))


def _from_json(fields: dict[str, object]) -> Source:
    def deep(value: object) -> object:
        return tuple(map(deep, value)) if isinstance(value, list) else value

    return Source(**{name: deep(value) for name, value in fields.items()})  # type: ignore[arg-type]


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
    files = tuple(sorted(word for word in words if reads or Path(word).suffix in _DATA))
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

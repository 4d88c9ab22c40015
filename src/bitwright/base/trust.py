# SPDX-License-Identifier: Apache-2.0
"""Whose code a name leads to: ``package.module:name`` in a recipe, an option or a data file.

What a recipe names lies below the recipe's folder or the current one, or in a package that the user
trusts (`TRUST`), and was made there; a data file names code only where the caller trusts it
(`data_file`). Nothing is imported to find that out.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import BuiltinFunctionType, ModuleType
from typing import Any

from bitwright.base.errors import ModelError
from bitwright.base.source import Sources, is_installed
from bitwright.base.users_modules import UsersModules

#: Variable of the environment: modules and packages that lie elsewhere and whose code recipes and
#: data files may name all the same, with commas between.
TRUST = "BITWRIGHT_TRUST"
#: Where the system keeps Python code of its own, and the places in there that are the user's.
_SYSTEM = tuple(map(Path, ("/usr", "/lib", "/lib64", "/etc", "/bin", "/sbin", "/System")))
_SOURCES = tuple(map(Path, ("/usr/src", "/usr/local/src", "/usr/home")))
#: The folders of the recipe that is being read or run; see `importable`.
FOLDERS: ContextVar[tuple[Path, ...]] = ContextVar("folders", default=())
#: The data file that is being read, and what its reader trusts; see `data_file`.
_FILE: ContextVar[tuple[str, frozenset[str]] | None] = ContextVar("file", default=None)


def is_plugin(name: str) -> bool:
    """Whether a name has the form ``package.module:name``."""
    module, _, attribute = name.partition(":")
    return bool(module) and attribute.isidentifier()


def code_names(value: Any) -> list[str]:
    """All texts of the form ``package.module:name`` in a JSON value."""
    return sorted({text for text in _texts(value) if is_plugin(text)})


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(name)
            yield from _texts(inner)
    elif isinstance(value, Sequence):
        for inner in value:
            yield from _texts(inner)


def module_folders(*folders: Path) -> tuple[Path, ...]:
    """Where the user's own modules are looked for, first of all: these (a recipe's), then where the
    user stands, as with ``python -m``.
    """
    return tuple(dict.fromkeys(folder.resolve() for folder in (*folders, Path.cwd())))


@contextmanager
def importable(*folders: Path, names: Iterable[str] = ()) -> Iterator[None]:
    """Let the user's modules be found in `module_folders`, also by `load_plugin` within: those that
    are named, and what these import. Other code finds there nothing.

    Args:
        names: modules that a recipe names, ``package.module``.
    """
    token = FOLDERS.set(folders)
    tops = {name.partition(".")[0] for name in names}
    finder = UsersModules(module_folders(*folders), tops).open()
    try:
        yield
    finally:
        FOLDERS.reset(token)
        finder.close()


@contextmanager
def data_file(path: Path, trust: Iterable[str] | None = ()) -> Iterator[None]:
    """While a data file is read: a name in it leads to code only where it is trusted.

    Args:
        path: of the file, for messages.
        trust: modules or packages whose code it may name; None: as a recipe.
    """
    token = _FILE.set(None if trust is None else (str(path), frozenset(trust)))
    try:
        yield
    finally:
        _FILE.reset(token)


def check_names(value: Any) -> None:
    """Inside `data_file`: refuse a JSON value of the file that names code which is not trusted.

    Raises:
        ModelError: it does.
    """
    for text in code_names(value):
        if not is_trusted(text.partition(":")[0]):
            place_of_module(text.partition(":")[0], text)


def is_trusted(module: str) -> bool:
    """Whether the user, or the reader of the data file, has named a module or a package of it."""
    file = _FILE.get()
    words = {word.strip() for word in os.environ.get(TRUST, "").split(",")}
    words |= file[1] if file is not None else set()
    words.discard("")
    parts = module.split(".")
    return any(".".join(parts[:count]) in words for count in range(1, len(parts) + 1))


def place_of_module(module: str, name: str) -> Path:
    """The file of a module below `module_folders`.

    Nothing is imported: to look for ``a.b``, Python would import ``a``.

    Raises:
        ModelError: it lies elsewhere or nowhere, or a data file names it.
    """
    file, top = _FILE.get(), module.partition(".")[0]
    if file is not None:
        raise ModelError(
            f"it names code to be run, {name}",
            where=file[0],
            hint=f"if you know and want that code: {TRUST}={top}, or in Python trust=[{module!r}]",
        )
    folders = _own_folders()
    path = _own_file(module, folders)
    if path is None:
        if (lies := Sources(folders).find(module)) is not None:
            raise ModelError(
                f"{lies} is a file of the system or of an installed package",
                where=name,
                hint=f"{TRUST}={top} allows it, too",
            )
        if not _lies_elsewhere(top, folders):
            raise not_there(_first_missing(module, folders), name)
        raise ModelError(
            f"{module} does not lie in {_searched()}",
            where=name,
            hint="code that a recipe names is the user's own and lies beside it; "
            f"{TRUST}={top} allows this package, too",
        )
    return path


def _first_missing(module: str, folders: Sequence[Path]) -> str:
    """The part of a name up to where nothing is found any more."""
    parts = module.split(".")
    for count in range(1, len(parts)):
        if not any((folder / Path(*parts[:count])).is_dir() for folder in folders):
            return ".".join(parts[:count])
    return module


def not_there(module: str, name: str) -> ModelError:
    return ModelError(
        f"cannot import {module!r}",
        where=name,
        hint=f"it is looked for in {_searched()}, and among packages of {TRUST}",
    )


def _own_file(module: str, folders: Iterable[Path]) -> Path | None:
    """The file of a module below the user's folders, but not one of Python or of the system, such
    as is found below ``/usr`` by whoever stands in ``/``.
    """
    path = Sources(folders).find(module)
    parts = Path(*module.split("."))
    if path is None and not any(sign in module for sign in "/\\\0"):  # compiled for Python
        ends = [f"{parts}{suffix}" for suffix in EXTENSION_SUFFIXES]
        path = next((f / end for f in folders for end in ends if (f / end).is_file()), None)
    if path is None:
        return None
    place = path.resolve()
    below = place.parents
    if any(folder in below for folder in _SYSTEM) and not any(f in below for f in _SOURCES):
        return None
    return None if any(map(is_installed, below)) else path


def _lies_elsewhere(top: str, folders: Iterable[Path]) -> bool:
    """Whether Python would find a module or package, but in none of these folders."""
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):  # one that was imported without a spec
        return True
    if spec is None:
        return False
    places = {Path(place).resolve().parent for place in spec.submodule_search_locations or ()}
    return not places & set(folders)


def _own_folders() -> list[Path]:
    """Where the user's own code lies: `module_folders`, and beside the script that is running."""
    folders = [*module_folders(*FOLDERS.get())]
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script is not None:
        folders.append(Path(script).resolve().parent)
    tools = Path(sysconfig.get_path("scripts")).resolve()  # where `bitwright` itself lies
    roots = (tools, Path("/"))
    return [f for f in folders if f not in roots and not any(map(is_installed, (f, *f.parents)))]


def _searched() -> str:
    folders = dict.fromkeys(map(str, _own_folders()))
    said = "no folder: / and folders of installed packages are not looked into"
    return ", ".join(folders) or said


def check_home(found: Any, module: str, name: str) -> None:
    """Refuse a function or class that a module has only imported, from where code lies that is
    neither the user's own nor trusted: ``from os import system``.

    Raises:
        ModelError: it is such a one.
    """
    home = _home_of(found)
    if home is None or home == module or is_trusted(home):
        return
    if _FILE.get() is None and _own_file(home, _own_folders()) is not None:
        return
    raise ModelError(
        f"{name.partition(':')[2]} is not defined in {module}, but in {home}",
        where=name,
        hint=f"write a function of your own that calls it, or {TRUST}={home.partition('.')[0]}",
    )


def _home_of(found: Any) -> str | None:
    """The module that a function or class was taken from; None: it was made where it is, or is no
    function or class.
    """
    owner = getattr(found, "__self__", None)
    if isinstance(found, BuiltinFunctionType) and isinstance(owner, ModuleType):
        return owner.__name__
    home, path = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
    descriptor = getattr(found, "__objclass__", None)  # str.upper
    if descriptor is not None:
        home, path = descriptor.__module__, f"{descriptor.__qualname__}.{found.__name__}"
    if not callable(found) or not isinstance(home, str) or not isinstance(path, str):
        return None
    code = getattr(found, "__code__", None)
    if code is not None:  # what `functools.wraps` says of a wrapper is not where it lies
        file = Path(code.co_filename).resolve()
        if _is_own_path(file):
            return None
    try:
        there: Any = sys.modules[home]
        for part in path.split("."):
            there = getattr(there, part)
    except (KeyError, AttributeError):
        # Made by a function of another module, such as `make_dataclass`; a function of Python has
        # a file, and that is not the user's.
        return home if code is not None else None
    return home if there is found else None


def _is_own_path(file: Path) -> bool:
    return any(
        folder in file.parents and _own_file(".".join(_parts(file, folder)), [folder]) is not None
        for folder in _own_folders()
    )


def _parts(file: Path, folder: Path) -> tuple[str, ...]:
    parts = file.relative_to(folder).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts

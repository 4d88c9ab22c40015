# SPDX-License-Identifier: Apache-2.0
"""Code that the core does not know: the user's own, and plug-ins, which add names to the core.

Both are named as ``package.module:name`` and imported when they are used. What a recipe names lies
below the recipe's folder or the current one, or in a package that the user trusts (`TRUST`); a data
file names code only where the caller trusts it (`data_file`). A plug-in is a module
with a `Plugin` called ``PLUGIN``: one of `BUILT_IN`, or of an installed package that names it as an
entry point of the group ``bitwright.plugins``.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import entry_points
from pathlib import Path
from types import BuiltinFunctionType, ModuleType
from typing import Any, Literal

from bitwright.base.errors import BitwrightError, ModelError, RecipeError
from bitwright.base.source import Sources, is_installed, module_key

#: The plug-ins that come with the package. Nothing else in the core names a paper.
BUILT_IN = ("bitwright.papers.faces", "bitwright.papers.ristretto")
ENTRY_POINTS = "bitwright.plugins"
#: Variable of the environment: modules and packages that lie elsewhere and whose code recipes and
#: data files may name all the same, with commas between.
TRUST = "BITWRIGHT_TRUST"
#: Where the system keeps Python code of its own, and the places in there that are the user's.
_SYSTEM = tuple(map(Path, ("/usr", "/lib", "/lib64", "/etc", "/bin", "/sbin", "/System")))
_SOURCES = tuple(map(Path, ("/usr/src", "/usr/local/src", "/usr/home")))
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
#: The folders of the recipe that is being read or run; see `importable`.
_FOLDERS: ContextVar[tuple[Path, ...]] = ContextVar("folders", default=())
#: The data file that is being read, and what its reader trusts; see `data_file`.
_FILE: ContextVar[tuple[str, frozenset[str]] | None] = ContextVar("file", default=None)
#: Modules of users that were imported here, and files that they name: where each lay, what it said.
_IMPORTED: dict[str, tuple[Path, str]] = {}
Kind = Literal["metrics", "benchmarks", "models", "commands", "recipes"]


@dataclass(frozen=True)
class Plugin:
    """What a plug-in adds: names, each with the ``package.module:name`` that it stands for.

    Attributes:
        metrics: functions from `explore.subject.Subject` to a metric (`explore.search.metrics`).
        benchmarks: functions from (H, W, C), or None for the usual size, to training images and an
            `explore.measuring.Benchmark`, for data whose figure is not the accuracy of a
            classifier; their names stand beside those of data sets.
        models: `models.catalog.ModelInfo` values, by the name of the model.
        recipes: kinds of recipes that are not of a design (their field ``kind``), each with the
            command that runs it, in words.
        commands: functions that get the command line (a `typer.Typer`) and add verbs to it; they
            must import nothing heavy.
    """

    metrics: Mapping[str, str] = field(default_factory=dict)
    benchmarks: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)
    recipes: Mapping[str, str] = field(default_factory=dict)


@cache
def plugins() -> tuple[Plugin, ...]:
    """Those that come with the package, then those of installed packages in order of their names.

    Raises:
        ModelError: an installed plug-in cannot be imported or is none.
    """
    installed = sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name)
    found = [importlib.import_module(name).PLUGIN for name in BUILT_IN]
    for entry in installed:
        try:
            plugin = getattr(entry.load(), "PLUGIN", None)
        except Exception as error:  # an installed package may fail in any way
            raise ModelError(
                f"importing it failed: {type(error).__name__}: {error}",
                where=f"plug-in {entry.name} ({entry.value})",
                hint="mend or uninstall the package that brings it",
            ) from error
        if not isinstance(plugin, Plugin):
            raise ModelError(
                "the module has no PLUGIN",
                where=f"plug-in {entry.name} ({entry.value})",
                hint="PLUGIN = bitwright.base.plugins.Plugin(...)",
            )
        found.append(plugin)
    return tuple(found)


def plugged(kind: Kind) -> dict[str, str]:
    """All names of one kind that plug-ins add; the first plug-in that adds a name has it."""
    found: dict[str, str] = {}
    for plugin in plugins():
        found = {**getattr(plugin, kind), **found}
    return found


def load_attribute(place: str) -> Any:
    """What a ``package.module:name`` of a plug-in stands for."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def is_plugin(name: str) -> bool:
    """Whether a name has the form ``package.module:name``."""
    module, _, attribute = name.partition(":")
    return bool(module) and attribute.isidentifier()


def load_plugin(name: str, field: str) -> Callable[..., Any]:
    """A function or class of the user's own, from `module_folders` or a package of `TRUST`.

    Args:
        name: ``package.module:name``.
        field: of the recipe, for the message.

    Raises:
        RecipeError: the name has another form.
        ModelError: the module cannot be imported, has no such function, or is not to be trusted.
    """
    module, found = _imported(name, field)
    if not callable(found):
        raise _missing(module, name.partition(":")[2])
    plugin: Callable[..., Any] = found
    return plugin


def load_value(name: str, field: str, kind: type) -> Any:
    """A value of the user's own: a function or class is called without arguments, an instance is
    taken as it is.

    Args:
        name: ``package.module:name``.
        field: of the recipe, for the message.
        kind: what it must be.

    Raises:
        RecipeError: the name has another form, calling needs arguments, or gives something else.
        ModelError: the module cannot be imported, has no such name, or the call fails.
    """
    found = load_made(name, field)
    if not isinstance(found, kind):
        package = kind.__module__.rpartition(".")[0]
        raise RecipeError(
            f"{name} gives {type(found).__name__}, not a {package}.{kind.__name__}",
            where=field,
            hint="name a function without arguments that returns one, or the value itself",
        )
    return found


def load_made(name: str, field: str) -> Any:
    """As `load_value`, of any kind: whatever cannot be called is the value."""
    module, found = _imported(name, field)
    attribute = name.partition(":")[2]
    if found is None:
        raise _missing(module, attribute)
    if not callable(found):
        return found
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise RecipeError(
            f"{name} must be callable without arguments: {error}",
            where=field,
            hint=f"write a function beside it, `def mine(): return {attribute}(...)`, and name "
            f"{name.partition(':')[0]}:mine",
        ) from error
    except ValueError:
        pass  # no signature is known: calling it tells
    with users_code(f"calling {name}", name, "correct it; it is called without arguments"):
        return found()


def _imported(name: str, field: str) -> tuple[ModuleType, Any]:
    """The module that a name leads to, and what it stands for there; None: nothing."""
    module_name, _, attribute = name.partition(":")
    if not is_plugin(name):
        raise RecipeError(f"{name!r} is not of the form package.module:name", where=field)
    trusted = _is_trusted(module_name)
    place = None if trusted else _place(module_name, name)
    _forget_others(module_name)
    hint = "correct the module; `python -c 'import ...'` shows the whole traceback"
    with users_code(f"importing {module_name}", name, hint), importable(*_FOLDERS.get()):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise _not_there(str(error.name), name) from error
    found = getattr(module, attribute, None)
    if not trusted:
        lies = Path(str(module.__file__)).resolve()
        if place is not None and place.resolve() != lies:
            raise ModelError(
                f"{module_name} is {lies}, which is imported already, not {place}",
                where=name,
                hint="give the module another name",
            )
    _check_home(found, module_name, name)
    return module, found


def _not_there(module: str, name: str) -> ModelError:
    return ModelError(
        f"cannot import {module!r}",
        where=name,
        hint=f"it is looked for in {_searched()}, and among packages of {TRUST}",
    )


def _is_trusted(module: str) -> bool:
    """Whether the user, or the reader of the data file, has named a module or a package of it."""
    file = _FILE.get()
    words = {word.strip() for word in os.environ.get(TRUST, "").split(",")}
    words |= file[1] if file is not None else set()
    parts = module.split(".")
    return any(".".join(parts[:count]) in words for count in range(1, len(parts) + 1))


def _place(module: str, name: str) -> Path:
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
        if Sources(folders).find(module) is None and not _lies_elsewhere(top, folders):
            raise _not_there(module, name)
        raise ModelError(
            f"{module} does not lie in {_searched()}",
            where=name,
            hint="code that a recipe names is the user's own and lies beside it; "
            f"{TRUST}={top} allows this package, too",
        )
    return path


def _own_file(module: str, folders: Iterable[Path]) -> Path | None:
    """The file of a module below the user's folders, but not one of Python or of the system, such
    as is found below ``/usr`` by whoever stands in ``/``.
    """
    parts = Path(*module.split("."))
    path = Sources(folders).find(module)
    if path is None:  # compiled for Python
        ends = [f"{parts}{suffix}" for suffix in EXTENSION_SUFFIXES]
        path = next((f / end for f in folders for end in ends if (f / end).is_file()), None)
    if path is None or not all(map(str.isidentifier, module.split("."))):
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
    folders = [*module_folders(*_FOLDERS.get())]
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script is not None:
        folders.append(Path(script).resolve().parent)
    tools = Path(sysconfig.get_path("scripts")).resolve()  # where `bitwright` itself lies
    roots = (tools, Path("/"))
    return [f for f in folders if f not in roots and not any(map(is_installed, (f, *f.parents)))]


def _check_home(found: Any, module: str, name: str) -> None:
    """Refuse a function or class that a module has only imported, from where code lies that is
    neither the user's own nor trusted: ``from os import system``.

    Raises:
        ModelError: it is such a one.
    """
    home = _home_of(found)
    if home is None or home == module or _is_trusted(home):
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


def check_names(value: Any) -> None:
    """Inside `data_file`: refuse a JSON value of the file that names code which is not trusted.

    Raises:
        ModelError: it does.
    """
    for text in code_names(value):
        if not _is_trusted(text.partition(":")[0]):
            _place(text.partition(":")[0], text)


@contextmanager
def data_file(path: Path, trust: Iterable[str] = ()) -> Iterator[None]:
    """While a data file is read: a name in it leads to code only where it is trusted.

    Args:
        path: of the file, for messages.
        trust: modules or packages whose code it may name.
    """
    token = _FILE.set((str(path), frozenset(trust)))
    try:
        yield
    finally:
        _FILE.reset(token)


def _forget_others(name: str) -> None:
    """Let a module of the user's own be imported anew if it, or one that it imports, was edited
    since, or is another recipe's of the same name: keys are made of the files as they are now.
    """
    if name.partition(".")[0] == __package__.partition(".")[0]:
        return
    code = Sources(module_folders(*_FOLDERS.get()), named=True)
    now = {part: (path, code.meaning(path)) for part, path in code.closure(name).items()}
    changed = {part for part, entry in now.items() if _IMPORTED.get(part, entry) != entry}
    if changed:
        for part in [*_IMPORTED]:  # those out of sight may import one of them, too
            if code.find(part) is None or changed & code.closure(part).keys():
                sys.modules.pop(part, None)
                del _IMPORTED[part]
        importlib.invalidate_caches()
    _IMPORTED.update({part: entry for part, entry in now.items() if part not in sys.modules})


def _missing(module: ModuleType, attribute: str) -> ModelError:
    public = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
    return ModelError(
        f"module {module.__name__} has no function or class {attribute!r}",
        where=str(module.__file__),
        hint=f"it has: {', '.join(public) or 'none'}",
    )


def code_names(value: Any) -> list[str]:
    """All texts of the form ``package.module:name`` in a JSON value."""
    return sorted({text for text in _texts(value) if is_plugin(text)})


def own_code(value: Any, folders: Iterable[Path]) -> dict[str, str]:
    """The user's own functions that a JSON value names, such as a policy, and hashes of their code.

    Args:
        folders: where the modules lie; see `module_folders`.
    """
    places = tuple(folders)
    keys = {text: module_key(text.partition(":")[0], places) for text in code_names(value)}
    return {text: key for text, key in keys.items() if key}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
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
def importable(*folders: Path) -> Iterator[None]:
    """Let the user's modules be found in `module_folders`, also by `load_plugin` within."""
    token = _FOLDERS.set(folders)
    added = [str(folder) for folder in module_folders(*folders)]
    sys.path[:0] = added
    try:
        yield
    finally:
        _FOLDERS.reset(token)
        for folder in added:
            if folder in sys.path:
                sys.path.remove(folder)


def _searched() -> str:
    return ", ".join(dict.fromkeys(map(str, _own_folders())))


@contextmanager
def users_code(what: str, name: str, hint: str, caller: str = __file__) -> Iterator[None]:
    """Code of the user's own, which may fail in any way: then a `ModelError` says where.

    Args:
        what: is being done, such as ``making the metric``.
        name: what the user has named, where no file is known.
        caller: the file that calls it.
    """
    try:
        yield
    except BitwrightError:
        raise
    except Exception as error:
        raise ModelError(
            f"{what} failed: {type(error).__name__}: {error}",
            where=place_of(error, name, caller),
            hint=hint,
        ) from error


def place_of(error: BaseException, fallback: str, caller: str) -> str:
    """File and line where the user's code failed: the deepest frame in a file of the user's own, or
    if there is none in one of ours, apart from the file that called it.
    """
    place, is_own = fallback, False
    trace = error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        own = not path.startswith(_PACKAGE)
        foreign = "site-packages" in path or "importlib" in path or path in (caller, __file__)
        if not foreign and (own or not is_own):
            place, is_own = f"{path}:{trace.tb_lineno}", own
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename:
        place = f"{error.filename}:{error.lineno}"
    return place

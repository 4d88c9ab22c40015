# SPDX-License-Identifier: Apache-2.0
"""Code that the core does not know: the user's own, and plug-ins, which add names to the core.

Both are named as ``package.module:name`` and imported when they are used; whose code may be named
is in `base.trust`. A plug-in is a module with a `Plugin` called ``PLUGIN``: one of `BUILT_IN`, or
of an installed package that names it as an entry point of the group ``bitwright.plugins``.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from bitwright.base.errors import BitwrightError, ModelError, RecipeError
from bitwright.base.source import Sources, module_key
from bitwright.base.trust import (
    FOLDERS,
    check_home,
    code_names,
    importable,
    is_plugin,
    is_trusted,
    module_folders,
    not_there,
    place_of_module,
)

#: The plug-ins that come with the package. Nothing else in the core names a paper.
BUILT_IN = (
    "bitwright.papers.faces",
    "bitwright.papers.ristretto",
    "bitwright.papers.dpu",
    "bitwright.papers.bnn_soc",
    "bitwright.papers.skynet",
    "bitwright.papers.fpga_training",
)
ENTRY_POINTS = "bitwright.plugins"
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
#: Modules of users that were imported here, and files that they name: where each lay, what it said.
_IMPORTED: dict[str, tuple[Path, str]] = {}
Kind = Literal[
    "metrics", "benchmarks", "models", "commands", "recipes", "schemas", "presets", "platforms",
    "engines", "devices",
]  # fmt: skip


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
        schemas: for such a kind the pydantic model that reads it, for the reference of all keys.
        commands: functions that get the command line (a `typer.Typer`) and add verbs to it; they
            must import nothing heavy.
        presets: mappings as a recipe's section ``quant``, by the name that stands for them there
            (`quantize.presets`).
        platforms: functions from a `explore.bench.subject.BenchSubject` and `SweepSettings` to
            points of a sweep, by a model: rows of `bitwright bench` beside what is measured.
        engines: functions without arguments (or classes) that give a
            `low_precision.arithmetic.geometry.Engine`, by the name that ``low_precision.engine``
            of a recipe has.
        devices: functions without arguments (or classes) that give a
            `low_precision.costs.model.Accelerator`, by its name.
    """

    metrics: Mapping[str, str] = field(default_factory=dict)
    benchmarks: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)
    recipes: Mapping[str, str] = field(default_factory=dict)
    schemas: Mapping[str, str] = field(default_factory=dict)
    presets: Mapping[str, str] = field(default_factory=dict)
    platforms: Mapping[str, str] = field(default_factory=dict)
    engines: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, str] = field(default_factory=dict)


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


def load_plugin(name: str, field: str, *, also: type | None = None) -> Callable[..., Any]:
    """A function or class of the user's own, from `module_folders` or a package of `TRUST`.

    Args:
        name: ``package.module:name``.
        field: of the recipe, for the message.
        also: a value of this type will do as well.

    Raises:
        RecipeError: the name has another form.
        ModelError: the module cannot be imported, has no such function, or is not to be trusted.
    """
    module, found = _imported(name, field)
    if not callable(found) and not (also is not None and isinstance(found, also)):
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
    trusted = is_trusted(module_name)
    place = None if trusted else place_of_module(module_name, name)
    _forget_others(module_name)
    hint = "correct the module; `python -c 'import ...'` shows the whole traceback"
    opened = importable(*FOLDERS.get(), names=[module_name])
    with users_code(f"importing {module_name}", name, hint), opened:
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise not_there(str(error.name), name) from error
    found = getattr(module, attribute, None)
    if not trusted:
        lies = Path(str(module.__file__)).resolve()
        if place is not None and place.resolve() != lies:
            raise ModelError(
                f"{module_name} is {lies}, which is imported already, not {place}",
                where=name,
                hint="give the module another name",
            )
    check_home(found, module_name, name)
    return module, found


def _forget_others(name: str) -> None:
    """Let a module of the user's own be imported anew if it, or one that it imports, was edited
    since, or is another recipe's of the same name: keys are made of the files as they are now.
    """
    if name.partition(".")[0] == __package__.partition(".")[0]:
        return
    code = Sources(module_folders(*FOLDERS.get()), named=True)
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


def own_code(value: Any, folders: Iterable[Path]) -> dict[str, str]:
    """The user's own functions that a JSON value names, such as a policy, and hashes of their code.

    Args:
        folders: where the modules lie; see `module_folders`.
    """
    places = tuple(folders)
    keys = {text: module_key(text.partition(":")[0], places) for text in code_names(value)}
    return {text: key for text, key in keys.items() if key}


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

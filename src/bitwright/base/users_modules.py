# SPDX-License-Identifier: Apache-2.0
"""Finding the user's own modules for whoever may ask, and for nobody else.

They lie beside a recipe or in the current folder, and such a folder may hold anything: with it on
`sys.path`, a file ``queue.py`` of a stranger's would run at the next ``import queue`` of any
library. So the folders are no part of the path: a finder of our own looks into them for a module
that a recipe names, and for what one of the user's modules imports in turn.
"""

from __future__ import annotations

import stat
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from bitwright.base.ownership import is_trusted
from bitwright.base.source import is_installed

_PACKAGE = Path(__file__).resolve().parents[1]
_lock = threading.Lock()


class UsersModules(MetaPathFinder):
    """Finds modules of the user's own; stands on `sys.meta_path` while it is open.

    Args:
        folders: resolved; the first that has a module gives it. What is not named is found in
            those that the module that imports it lies in, or that lie above or below these.
        names: packages and modules (without dots) that may be imported by anybody.
    """

    def __init__(self, folders: Iterable[Path], names: Iterable[str] = ()) -> None:
        self.folders, self.names = tuple(folders), set(names)
        self._opened = 0

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del target
        if path is not None:  # inside a package: where that lies
            return None
        if fullname in self.names:
            return self._found(fullname, self.folders)
        importer = _importer()
        beside = [] if importer is None else [f for f in self.folders if _is_own(importer, f)]
        # Python's own modules are never the user's: libraries may import them later.
        if not beside or fullname in sys.stdlib_module_names:
            return None
        found = self._found(fullname, beside)
        if found is None and PathFinder.find_spec(fullname) is None:
            # Where the user stands, which comes last, only for what lies below it: he may stand
            # among downloads, and a module of his own try what is not installed.
            found = self._found(fullname, [f for f in self.folders if _same_project(f, beside)])
        return found

    def _found(self, name: str, folders: Iterable[Path]) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, [*map(str, folders)])
        if spec is not None and spec.loader is None and PathFinder.find_spec(name) is not None:
            return None  # a folder without code hides no package
        if spec is not None:
            _check_spec(spec)
            self.names.add(name)
        return spec

    def open(self) -> UsersModules:
        """Let modules be found; gives the finder that does so, which is another one if that has the
        same folders.
        """
        with _lock:
            finder = next((f for f in _opened() if f.folders == self.folders), self)
            finder.names |= self.names
            if finder is self and not self._opened:
                sys.meta_path.insert(0, self)
            finder._opened += 1
        return finder

    def close(self) -> None:
        """Find no more, once this was called as often as `open`."""
        with _lock:
            self._opened -= 1
            if not self._opened:
                sys.meta_path.remove(self)


class Opened:
    """What is open here, for another process: unpickled there, it is open for the rest of its life.

    Whoever sends objects of the user's own classes sends this before them.
    """

    def __init__(self) -> None:
        self._finders = [(finder.folders, sorted(finder.names)) for finder in _opened()]

    def __setstate__(self, state: dict[str, list[tuple[tuple[Path, ...], list[str]]]]) -> None:
        vars(self).update(state)
        for folders, names in reversed(self._finders):
            UsersModules(folders, names).open()


def _opened() -> list[UsersModules]:
    return [finder for finder in sys.meta_path if isinstance(finder, UsersModules)]


def _importer() -> Path | None:
    """The file whose code asks for the import that is being done; None: it is none, such as the
    text of an ``exec``.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name != __file__ and frame.f_globals.get("__name__", "").partition(".")[0] not in (
            "importlib", "_frozen_importlib", "_frozen_importlib_external",
        ):  # fmt: skip
            file = Path(name)
            # Code of an ``exec`` lies in "<string>": that is no file of the current folder.
            return file.resolve() if file.is_absolute() and file.is_file() else None
        frame = frame.f_back
    return None


def _check_spec(spec: ModuleSpec) -> None:
    """Where everybody may put a file, as in ``/tmp``, a module must be of somebody whose folders
    one works in, and what Python has compiled is not read: it may be anybody's.

    Raises:
        ImportError: it is another user's.
    """
    places = [*map(Path, spec.submodule_search_locations or ())]
    if spec.origin is not None and spec.has_location:
        places.append(Path(spec.origin))
    for place in places:
        try:
            is_open = bool(place.parent.stat().st_mode & stat.S_IWOTH)
            if not is_open or is_trusted(place):
                continue
        except OSError:
            continue  # it goes just now; whoever loads it says so
        raise ImportError(
            f"{place} is another user's, in a folder into which everybody may write", name=spec.name
        )
    if places and isinstance(spec.loader, SourceFileLoader):
        folder = Path(spec.loader.path).parent
        if folder.stat().st_mode & stat.S_IWOTH:
            spec.loader = _FromSource(spec.loader.name, spec.loader.path)


class _FromSource(SourceFileLoader):
    """Loads a module without what Python keeps compiled beside it."""

    def path_stats(self, path: str) -> Mapping[str, Any]:
        """Nothing that a compiled file could be compared with: it is neither read nor written."""
        raise OSError(path)


def _same_project(folder: Path, folders: Iterable[Path]) -> bool:
    return any(one.is_relative_to(folder) or folder.is_relative_to(one) for one in folders)


def _is_own(file: Path, folder: Path) -> bool:
    """Whether a file is the user's own code below a folder: not ours, and not installed there."""
    if folder not in file.parents or _PACKAGE in file.parents:
        return False
    return not any(map(is_installed, file.parents))

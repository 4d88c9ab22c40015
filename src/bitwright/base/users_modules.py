# SPDX-License-Identifier: Apache-2.0
"""Finding the user's own modules for whoever may ask, and for nobody else.

They lie beside a recipe or in the current folder, and such a folder may hold anything: with it on
`sys.path`, a file ``queue.py`` of a stranger's would run at the next ``import queue`` of any
library. So the folders are no part of the path: a finder of our own looks into them for a module
that a recipe names, and for what one of the user's modules imports in turn.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, ModuleType

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


def _same_project(folder: Path, folders: Iterable[Path]) -> bool:
    return any(one.is_relative_to(folder) or folder.is_relative_to(one) for one in folders)


def _is_own(file: Path, folder: Path) -> bool:
    """Whether a file is the user's own code below a folder: not ours, and not installed there."""
    if folder not in file.parents or _PACKAGE in file.parents:
        return False
    return not any(map(is_installed, file.parents))

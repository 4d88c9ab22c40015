# SPDX-License-Identifier: Apache-2.0
"""The user's own code, named in a recipe as ``package.module:name``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from bitwright.base.errors import ModelError, RecipeError

_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


def is_plugin(name: str) -> bool:
    """Whether a name has the form ``package.module:name``."""
    module, _, attribute = name.partition(":")
    return bool(module) and attribute.isidentifier()


def load_plugin(name: str, field: str) -> Callable[..., Any]:
    """A function or class of the user's own, from an installed package or the present folder.

    Args:
        name: ``package.module:name``.
        field: of the recipe, for the message.

    Raises:
        RecipeError: the name has another form.
        ModelError: the module cannot be imported or has no such function.
    """
    module_name, _, attribute = name.partition(":")
    if not is_plugin(name):
        raise RecipeError(f"{name!r} is not of the form package.module:factory", where=field)
    here = os.getcwd()
    sys.path.insert(0, here)  # a user's module lies where the user stands, as with `python -m`
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ModelError(
            f"cannot import {error.name!r}",
            where=name,
            hint=f"run from the folder that holds it (now {here}), or install it",
        ) from error
    except Exception as error:  # the user's module may fail in any way while it is imported
        raise ModelError(
            f"importing {module_name} failed: {type(error).__name__}: {error}",
            where=place_of(error, name),
            hint="correct the module; `python -c 'import ...'` shows the whole traceback",
        ) from error
    finally:
        if here in sys.path:
            sys.path.remove(here)
    found = getattr(module, attribute, None)
    if not callable(found):
        public = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise ModelError(
            f"module {module_name} has no function or class {attribute!r}",
            where=str(module.__file__),
            hint=f"it has: {', '.join(public) or 'none'}",
        )
    plugin: Callable[..., Any] = found
    return plugin


def place_of(error: BaseException, fallback: str, caller: str = __file__) -> str:
    """File and line where the user's code failed: the deepest frame in a file of the user's own, or
    if there is none in one of ours, apart from the file that called it.
    """
    place, is_own = fallback, False
    trace = error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        own = not path.startswith(_PACKAGE)
        foreign = "site-packages" in path or "importlib" in path or path == caller
        if not foreign and (own or not is_own):
            place, is_own = f"{path}:{trace.tb_lineno}", own
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename:
        place = f"{error.filename}:{error.lineno}"
    return place

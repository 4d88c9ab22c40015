# SPDX-License-Identifier: Apache-2.0
"""Every Python that is started here: none imports what lies in the folder it happens to stand in.

``python -c`` and ``python -m`` look for modules in the current folder first of all, so a file
``queue.py`` in a folder of downloads would run as soon as anything says ``import queue``. Python's
``-P`` leaves that folder out; what a recipe names is found all the same (`base.trust.importable`),
and so is what ``PYTHONPATH`` leads to.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

#: As users type it, for what they are told to do.
INTERPRETER = sys.executable
#: The variable of ``-P``, which a process hands on to those that it starts in turn.
SAFE_PATH = {"PYTHONSAFEPATH": "1"}


def python(*arguments: str) -> list[str]:
    """The command of a Python of its own: this interpreter, without the current folder.

    Whoever runs it adds `SAFE_PATH` to its environment, as `run_process` does.

    Args:
        arguments: as ``python`` takes them, such as ``-m``, a module and its arguments.
    """
    return [sys.executable, "-P", *arguments]


def start_again() -> NoReturn:
    """Replace this process by one of the same command line, for an environment that has changed."""
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


@contextmanager
def safe_children() -> Iterator[None]:
    """Within, others' code starts processes of Python (``multiprocessing``, Ray): they and all that
    they start look for no modules in the current folder.
    """
    before = {name: os.environ.get(name) for name in SAFE_PATH}
    os.environ.update(SAFE_PATH)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

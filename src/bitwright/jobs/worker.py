# SPDX-License-Identifier: Apache-2.0
"""The process of one job: ``python -m bitwright.jobs.worker FOLDER PARENT ASKED``.

ASKED is the hash of what ``job.json`` says: it names a function, so that nobody else may say it.
It ends when the process that started it (its id is PARENT) is gone, so that nothing goes on unseen,
and it holds a lock of its folder, so that a job which is redone never meets what is left of the
first attempt.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from bitwright.base.errors import BitwrightError, RunError
from bitwright.base.files import MOST_TEXT, atomic_write, regular_bytes
from bitwright.base.locks import exclusive
from bitwright.jobs.job import FAILURE, JOB, LOCK, RESULT, SCHEMA, TERMINATED, JobFailure

_LOOK_S = 0.25
_GRACE_S = 2.0
_LOCK_S = 20.0
BUG = 70


def main(arguments: list[str]) -> int:
    """Do the job that lies in a folder; gives the exit code."""
    folder, parent, hashed = Path(arguments[0]), int(arguments[1]), arguments[2]
    signal.signal(signal.SIGTERM, _terminated)
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
    try:
        asked = _asked(folder / JOB, hashed)
        with exclusive(folder / LOCK, wait_s=_LOCK_S):  # an earlier attempt may still be ending
            _do(folder, asked)
    except BitwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        _leave(folder, JobFailure.of(error))
        return error.exit_code
    except Exception as error:  # a bug of ours: this job fails, the others go on
        traceback.print_exc()
        reason = f"an error that Bitwright does not know: {type(error).__name__}: {error}"
        _leave(folder, JobFailure("Bug", reason, hint="the traceback is in the job's log"))
        return BUG
    return 0


def _asked(path: Path, hashed: str) -> dict[str, Any]:
    """What is to be done.

    Raises:
        RunError: it is not what the parent has written.
    """
    text = regular_bytes(path, MOST_TEXT)
    if hashlib.sha256(text).hexdigest() != hashed:
        raise RunError(
            "was changed since it was written, so it is not done",
            where=str(path),
            hint="work in a folder that nobody else may write into",
        )
    return dict(json.loads(text))


def function_of(call: str) -> Callable[[Mapping[str, Any], Path], Any]:
    """The function of ``package.module:function``.

    Raises:
        RunError: there is none.
    """
    module, _, name = call.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise RunError(f"cannot be called: {error}", where=call) from error
    result: Callable[[Mapping[str, Any], Path], Any] = found
    return result


def _do(folder: Path, asked: Mapping[str, Any]) -> None:
    start = time.monotonic()
    value = function_of(asked["call"])(asked["arguments"], folder)
    answer = {
        "schema": SCHEMA,
        **{key: asked[key] for key in ("name", "call", "arguments", "version", "threads")},
        "host": platform.node(),
        "seconds": round(time.monotonic() - start, 3),
        "cpu_seconds": round(_cpu_seconds(), 3),
        "value": value,
    }
    atomic_write(folder / RESULT, json.dumps(answer, indent=1, allow_nan=False) + "\n")


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _leave(folder: Path, failure: JobFailure) -> None:
    """The reason in the folder; on a full disk the log must do."""
    try:
        atomic_write(folder / FAILURE, json.dumps(asdict(failure), indent=1) + "\n")
    except OSError as error:
        print(f"error: {folder / FAILURE} cannot be written: {error}", file=sys.stderr)


def _terminated(number: int, frame: FrameType | None) -> None:
    """Unwinds, so that programs this process has started are ended as well."""
    del number, frame
    sys.exit(TERMINATED)


def _end_with_parent(parent: int) -> None:
    """Ends this process when its parent has died: politely, then for good."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

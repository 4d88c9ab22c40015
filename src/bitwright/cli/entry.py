# SPDX-License-Identifier: Apache-2.0
"""Entry point: runs a verb, and turns every way to fail into one clear message and an exit code."""

from __future__ import annotations

import errno
import locale
import os
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import typer

from bitwright.base.errors import BitwrightError, RunError
from bitwright.base.files import cache_root
from bitwright.base.memory import limit_memory, ran_out
from bitwright.base.ownership import others_above
from bitwright.base.tools.python import start_again
from bitwright.cli.interrupts import EXIT_INTERRUPTED, Interrupts, end_in_time
from bitwright.cli.output import Output, printable_messages

EXIT_BUG = 70
EXIT_USAGE = 2
_UTF8 = "PYTHONUTF8"
#: What Python says of, and keeps for, bytes of names that are no text.
_HALVES, _BYTES = "surrogates not allowed", re.compile(r"[\ud800-\udfff]")

# What a disk or a folder of the user's says; a file that is missing would be a mistake of ours.
_USERS_FILES = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT,
    errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG,
}  # fmt: skip

_FULL = {errno.ENOSPC, errno.EDQUOT}

# ClickException: click's own, or that of the copy inside newer versions of typer.
_UsageProblem: type[Exception] = typer.BadParameter.__mro__[2]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process with its exit code."""
    if arguments is not None:
        sys.exit(run(list(arguments)))
    _in_utf8()
    limit_memory()
    _own_place_for_torch()
    code = run(sys.argv[1:])
    if code == EXIT_INTERRUPTED:
        end_in_time()
    sys.exit(code)


def _own_place_for_torch() -> None:
    """Its compiler makes a folder as soon as it is imported: by default in one where everybody
    writes, under a name that others know; whoever puts a file there ends each training.
    """
    place = cache_root() / "torch"
    made = next(step for step in place.parents if os.path.exists(step))
    if os.access(made, os.W_OK) and not others_above(made):
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(place))


def _in_utf8() -> None:
    """Start again in Python's UTF-8 mode where names of files and texts would be of another code.

    Then files are read and written by every library as they are everywhere else, and names in the
    arguments are what they look like. It is handed on to the processes that are started.
    """
    others = sys.getfilesystemencoding() != "utf-8" or locale.getencoding().lower() != "utf-8"
    if not others or sys.flags.utf8_mode or os.environ.get(_UTF8) == "1":
        return
    os.environ[_UTF8] = "1"
    sys.stdout.flush()
    start_again()


def run(arguments: list[str]) -> int:
    """Run the command line; gives the exit code and never raises."""
    with printable_messages():
        return _run(arguments)


def _run(arguments: list[str]) -> int:
    output = Output(json_wanted="--json" in arguments)
    with Interrupts() as interrupts:
        try:
            from bitwright.cli.app import app  # here: a plug-in may be broken

            result = app(args=arguments, prog_name="bitwright", standalone_mode=False)
            sys.stdout.flush()
            if result == EXIT_INTERRUPTED:  # what newer versions of typer make of Ctrl-C
                _say_interrupted(output, arguments)
            return result if isinstance(result, int) else 0
        except typer.Exit as error:
            return error.exit_code
        except (KeyboardInterrupt, typer.Abort):
            problem = None
        except Exception as error:
            problem = None if interrupts.seen else error
    if problem is None:
        _say_interrupted(output, arguments)
        return EXIT_INTERRUPTED
    return _told(problem, output)


def _say_interrupted(output: Output, arguments: list[str]) -> None:
    """Say it, if there is anybody left to hear: the terminal may have been closed."""
    try:
        output.interrupted(arguments)
        sys.stderr.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):  # what is still to be written when Python ends, too
            os.dup2(nowhere, stream)


def _told(problem: Exception, output: Output) -> int:
    """Say what went wrong; gives the exit code."""
    try:
        raise problem
    except BitwrightError as error:
        output.error(type(error).__name__, error.message, error.where, error.hint, error.exit_code)
        return error.exit_code
    except BrokenPipeError:  # `bitwright list models | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except _UsageProblem as error:
        return _usage_error(error, output)
    except OSError as error:
        if error.errno == errno.ENOMEM:
            return _out_of_memory(output)
        return _file_error(error, output) if error.errno in _USERS_FILES else _bug(error, output)
    except UnicodeEncodeError as error:
        return _name_error(error, output) if error.reason == _HALVES else _bug(error, output)
    except (MemoryError, RuntimeError) as error:
        return _out_of_memory(output) if ran_out(error) else _bug(error, output)
    except Exception as error:  # the last resort: a bug of ours, told without a wall of text
        return _bug(error, output)


def _file_error(error: OSError, output: Output) -> int:
    """A folder that cannot be written, a file in its way, a full disk."""
    if error.errno in _FULL:
        where, hint = _full_disk(error)
    else:
        where = None if error.filename is None else str(error.filename)
        hint = "a place that can be written has to be named (--out)"
    output.error("RunError", error.strerror or str(error), where, hint, RunError.exit_code)
    return RunError.exit_code


def _full_disk(error: OSError) -> tuple[str | None, str]:
    """Where something was to be written, as far as it is known, and what to do. Of a copy the
    second name is that of what is written; many calls of libraries name nothing.
    """
    name = error.filename if error.filename2 is None else error.filename2
    places = {
        "here": Path(),
        "TMPDIR": Path(os.environ.get("TMPDIR", "/tmp")),
        "XDG_CACHE_HOME": cache_root(),
    }
    rooms = []
    for what, place in places.items():
        with suppress(OSError):
            there = next(each for each in (place, *place.absolute().parents) if each.is_dir())
            free = shutil.disk_usage(there).free
            rooms.append(f"{free / 1e6:.0f} MB in {there.absolute()} ({what})")
    hint = f"room is needed where the results go (--out); free now: {', '.join(rooms)}"
    return None if name is None else str(name), hint


def _name_error(error: UnicodeEncodeError, output: Output) -> int:
    """A name of a file that is no text in UTF-8: it cannot be written into one."""
    line = next(line for line in error.object.splitlines() if _BYTES.search(line))
    output.error(
        "RunError",
        f"{line.strip()[:200]!r} holds the name of a file that is no UTF-8, which no file of ours "
        "can hold",
        None,
        "rename the file or folder",
        RunError.exit_code,
    )
    return RunError.exit_code


def _out_of_memory(output: Output) -> int:
    hint = "choose smaller images, a smaller batch_size, a smaller model, or fewer at a time"
    output.error("RunError", "there is not enough memory for this", None, hint, RunError.exit_code)
    return RunError.exit_code


def _usage_error(error: Exception, output: Output) -> int:
    context = getattr(error, "ctx", None)
    hint = f"see: {context.command_path} --help" if context is not None else "see: bitwright --help"
    say = getattr(error, "format_message", error.__str__)
    output.error("UsageError", say(), None, hint, EXIT_USAGE)
    return EXIT_USAGE


def _bug(error: Exception, output: Output) -> int:
    """Keep the traceback in a file, where a report of the bug can take it from."""
    text = "".join(traceback.format_exception(error))
    where = None
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="bitwright-bug-", suffix=".txt", delete=False,
            encoding="utf-8", errors="backslashreplace",
        ) as file:  # fmt: skip
            file.write(text)
        where = str(Path(file.name))
    except OSError:
        pass  # no room even for this: the message alone must do
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    output.error(
        "Bug",
        f"an error that Bitwright does not know: {reason}",
        None,
        f"this is a bug; please report it with {where}" if where else "this is a bug; report it",
        EXIT_BUG,
    )
    return EXIT_BUG

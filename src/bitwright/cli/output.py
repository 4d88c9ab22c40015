# SPDX-License-Identifier: Apache-2.0
"""What a verb prints: tables for people, or one JSON value on standard output and nothing else."""

from __future__ import annotations

import io
import logging
import re
import shlex
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bitwright.base.progress import Progress
    from bitwright.report.table import Table as Results


#: All but newline and tab. They come from names in files of strangers, and a terminal obeys them.
#: Halves of surrogate pairs stand for bytes of names that are no text, and cannot be printed; signs
#: that turn the direction of a line make it read as something else.
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """A text whose control characters, but newline and tab, are written as escapes."""
    return _CONTROLS.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 1 << 8 else f"\\u{code:04x}"


class _PrintableRecord(logging.LogRecord):
    """What is logged, by us or by any library: `printable`, whoever shows it."""

    def getMessage(self) -> str:
        return printable(super().getMessage())


@contextmanager
def printable_messages() -> Iterator[None]:
    """Within, no message reaches the terminal with control characters in it, be it logged or a
    warning, and none fails for signs that the terminal cannot show.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    record, format_warning = logging.getLogRecordFactory(), warnings.formatwarning

    def formatted(*args: Any, **options: Any) -> str:
        return printable(format_warning(*args, **options))

    logging.setLogRecordFactory(_PrintableRecord)
    warnings.formatwarning = formatted
    try:
        yield
    finally:
        logging.setLogRecordFactory(record)
        warnings.formatwarning = format_warning


class Output:
    """Standard output and standard error of one call.

    Args:
        json_wanted: print one JSON value on standard output, no colours, no progress.
    """

    def __init__(self, json_wanted: bool) -> None:
        self.json_wanted = json_wanted

    def value(self, value: Any) -> None:
        """Print the JSON result of the call."""
        from bitwright.base.files import json_text

        encoding = (sys.stdout.encoding or "utf-8").lower().replace("-", "")
        text = json_text(value, indent=1, default=str, ensure_ascii=encoding != "utf8")
        # JSON escapes the control characters up to U+001F itself; the others may stand in it.
        print(_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text))

    def answered(self, value: Any) -> bool:
        """Print the JSON result of the call if JSON is wanted; gives whether it is."""
        if self.json_wanted:
            self.value(value)
        return self.json_wanted

    def table(
        self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], note: str = ""
    ) -> None:
        """Print a table; columns that hold only numbers are set right."""
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.markup import escape as without_markup
        from rich.table import Table

        def escape(text: str) -> str:
            return without_markup(printable(text))

        table = Table(title=escape(title), box=SIMPLE_HEAD, title_justify="left")
        for position, name in enumerate(columns):
            cells = [str(row[position]) for row in rows]
            numeric = bool(cells) and all(_is_number(cell) for cell in cells)
            table.add_column(escape(name), justify="right" if numeric else "left", overflow="fold")
        for row in rows:
            table.add_row(*(escape(str(cell)) for cell in row))
        console = Console(highlight=False)
        if not console.is_terminal:
            console = Console(highlight=False, width=max(120, console.width))
        console.print(table)
        if note:
            console.print(escape(note))

    def results(self, found: Results) -> None:
        """Print a table of results."""
        headings = [column.heading for column in found.columns]
        self.table(found.title, headings, found.cells(), "\n".join(found.notes))

    def say(self, text: str) -> None:
        """A line for people, on standard error with --json."""
        print(printable(text), file=sys.stderr if self.json_wanted else sys.stdout, flush=True)

    def error(
        self, kind: str, message: str, where: str | None, hint: str | None, exit_code: int
    ) -> None:
        """The one message of a call that failed."""
        text = message if where is None else f"{where}: {message}"
        print(f"error: {printable(text)}", file=sys.stderr)
        if hint is not None:
            print(f"  -> {printable(hint)}", file=sys.stderr)
        if self.json_wanted:
            fields = {"type": kind, "message": message, "where": where, "hint": hint}
            self.value({"error": {**fields, "exit_code": exit_code}})

    def interrupted(self, arguments: Sequence[str]) -> None:
        """After Ctrl-C."""
        again = shlex.join(["bitwright", *arguments])
        self.error(
            "Interrupted",
            "interrupted; everything finished so far is kept",
            None,
            f"to go on where it stopped: {again}",
            130,
        )

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """A progress callback: bars on a terminal, plain lines elsewhere, nothing beside JSON."""
        from bitwright.base.progress import no_progress

        if self.json_wanted:
            yield no_progress
            return
        if not sys.stderr.isatty():
            lines = _Lines()
            with lines.watched():
                yield lines
            return
        from rich import progress as bars
        from rich.console import Console

        columns = (
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(bar_width=30),
            bars.TaskProgressColumn(),
            bars.TimeElapsedColumn(),
            bars.TimeRemainingColumn(),
        )
        with bars.Progress(*columns, console=Console(stderr=True), transient=True) as shown:
            yield _Bars(shown)


_SECONDS = re.compile(r" \(\d+ s\)$")


#: Seconds after which a thing is told, and between two lines about the same.
_LASTS, _EACH = 1.0, 10.0


class _Lines:
    """A line of standard error for each thing that lasts, and now and then how far it is: for log
    files, and for whoever waits behind a pipe.
    """

    def __init__(self) -> None:
        self._what, self._done, self._total, self._since = "", 0, 0, 0.0
        self._told, self._told_at = "", 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        what = _SECONDS.sub("", printable(what))
        if what != self._what:
            self._what, self._since = what, time.monotonic()
        self._done, self._total = done, total

    def tell(self, now: float) -> None:
        """Print what is due at a time."""
        what, far = self._what, ""
        if what == self._told:
            far = f": {self._done} of {self._total}" if self._total else ""
            if now - self._told_at < _EACH or not far:
                return
        elif now - self._since < _LASTS:
            return
        self._told, self._told_at = what, now
        print(f"{what}{far}", file=sys.stderr, flush=True)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within, lines are printed as time goes by, whatever else is done."""
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(_LASTS / 2):
                self.tell(time.monotonic())

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


class _Bars:
    """One bar at a time: what is being done now."""

    def __init__(self, shown: Any) -> None:
        self._shown = shown
        self._what = ""
        self._task: Any = None

    def __call__(self, what: str, done: int, total: int) -> None:
        what = _SECONDS.sub("", printable(what))  # the bar itself shows how long it has been
        if what != self._what:
            if self._task is not None:
                self._shown.remove_task(self._task)
            self._what = what
            self._task = self._shown.add_task(what, total=total or None)
        self._shown.update(self._task, completed=done, total=total or None)
        if total and done >= total:
            self._shown.remove_task(self._task)
            self._task, self._what = None, ""


def _is_number(text: str) -> bool:
    return bool(text) and text.replace(" ", "").strip("%x+-").replace(".", "", 1).isdigit()

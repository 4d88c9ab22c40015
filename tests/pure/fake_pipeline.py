# SPDX-License-Identifier: Apache-2.0
"""A small pipeline with the real engine: three steps that write numbers, and faults on demand.

As a program: ``python fake_pipeline.py RUN [STEP:POINT]``; it dies by SIGKILL at that point.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bitwright.pipeline import run as engine
from bitwright.pipeline.context import StepContext
from bitwright.pipeline.run import Run, Step, open_run

FACTS: dict[str, Any] = {"start": 3, "factor": 5, "title": "sum"}
NAMES = ("first", "second", "third")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def make_steps(log: Path, fault: str = "") -> tuple[Step, ...]:
    """first: start; second: first * factor, in resumable parts; third: title and second."""

    def at(point: str) -> None:
        if fault == point:
            die()

    def note(name: str) -> None:
        with log.open("a") as file:
            file.write(name + "\n")

    def first(context: StepContext) -> None:
        note("first")
        (context.folder / "value.txt").write_text(str(FACTS["start"]))
        at("first:middle")
        (context.folder / "more").mkdir()
        (context.folder / "more" / "data.bin").write_bytes(bytes(range(256)))

    def second(context: StepContext) -> None:
        partial = context.folder / "partial.txt"
        note("second:resumed" if partial.exists() else "second")
        partial.write_text("half")
        at("second:middle")
        value = int((context.inputs["first"] / "value.txt").read_text()) * FACTS["factor"]
        (context.folder / "value.txt").write_text(str(value))

    def third(context: StepContext) -> None:
        note("third")
        at("third:middle")
        text = (context.inputs["second"] / "value.txt").read_text()
        (context.folder / "value.txt").write_text(f"{FACTS['title']}={text}")

    return (
        Step("first", (), ("start",), first),
        Step("second", ("first",), ("factor",), second, keeps_partial=True),
        Step("third", ("second",), ("title",), third),
    )


@contextlib.contextmanager
def opened(folder: Path, fault: str = "", facts: Mapping[str, Any] | None = None) -> Any:
    log = folder.parent / "log.txt"
    steps = make_steps(log, fault)
    with open_run(folder, steps, FACTS if facts is None else facts, files={}, notes={}) as run:
        yield run


def result(run: Run) -> str:
    run.execute(NAMES)
    return (run.folder_of("third") / "value.txt").read_text()


def _die_around(module: Any, name: str, count: int, before: bool) -> None:
    """Kill the process before or after the count-th call of a function of the engine."""
    original: Callable[..., Any] = getattr(module, name)
    calls = 0

    def wrapped(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if before and calls == count:
            die()
        value = original(*args)
        if not before and calls == count:
            die()
        return value

    setattr(module, name, wrapped)


def main() -> None:
    folder, fault = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
    name, _, point = fault.partition(":")
    position = NAMES.index(name) + 1 if name in NAMES else 0
    if point == "hashed":
        _die_around(engine, "hash_files", position, before=False)
    elif point == "recorded":
        _die_around(engine, "publish", position, before=True)
    elif point == "published":
        _die_around(engine, "publish", position, before=False)
    elif point == "renaming":  # between the two renames: the old folder is aside, the new not there
        original = Path.rename

        def rename(self: Path, target: Path) -> Path:
            if self.name == f".work-{position:02d}-{name}":
                die()
            return original(self, target)

        Path.rename = rename  # type: ignore[method-assign]
    with opened(folder, fault) as run:
        print(result(run))


if __name__ == "__main__":
    main()

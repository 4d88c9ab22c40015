# SPDX-License-Identifier: Apache-2.0
"""The run directory: what is there is whole, what is done is not done again.

::

    RUN/run.json        schema, versions, where the recipe came from
    RUN/recipe.yaml     the resolved recipe of the last call
    RUN/01-train/       one folder a step; step.json is written last
    RUN/.work-01-train/ a step being built; renamed into place when it is whole

A step is *fresh* when its key (what it depends on) is unchanged, the steps it read are those that
lie there now, and every artefact has the SHA-256 that step.json says. All else is built again. What
is run (RTL) counts only if this user has made it (`base.made`): a run directory that lies where
somebody works, or whose steps are reused, may be a stranger's, and whoever knows a recipe knows the
keys of its steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bitwright.base.files import atomic_write, regular_bytes
from bitwright.base.folders import remove_folder
from bitwright.base.made import is_own, remember
from bitwright.base.progress import Progress, no_progress
from bitwright.pipeline.context import StepContext
from bitwright.pipeline.run_files import (
    SCHEMA,
    StepRecord,
    cannot_write,
    check_run_folder,
    digest_of,
    disk_full,
    hash_files,
    is_whole,
    locked,
    publish,
    read_record,
    recover,
    write_headers,
)
from bitwright.pipeline.run_reuse import SharedStep


@dataclass(frozen=True)
class Step:
    """One step of a pipeline.

    Attributes:
        name: the verb.
        needs: steps whose results it reads; all must be there.
        uses: steps whose results it reads if they are there.
        facts: names of what it depends on besides: parts of the recipe, data, sources.
        function: does the work inside ``context.folder``.
        keeps_partial: it resumes by itself from what an interrupted call left in its folder.
        number: in front of the name of its folder; None counts from 1.
        is_run: others run what it leaves, so that it counts only if this user has made it.
    """

    name: str
    needs: tuple[str, ...]
    facts: tuple[str, ...]
    function: Callable[[StepContext], None]
    uses: tuple[str, ...] = ()
    keeps_partial: bool = False
    number: int | None = None
    is_run: bool = False


@dataclass(frozen=True)
class Outcome:
    """What a call did with one step.

    Attributes:
        was_done: it was there already, here or in another run directory.
        seconds: that the work took, whenever it was done.
        taken_from: the run directory whose result was taken over.
        reason: why a step that had been finished was done again.
    """

    name: str
    folder: Path
    was_done: bool
    seconds: float
    taken_from: Path | None = None
    reason: str = ""


@dataclass
class Run:
    """An opened run directory; use `open_run`.

    Attributes:
        folder: the directory.
        steps: the pipeline, in order.
        facts: name -> plain JSON value; the parts that steps name in ``Step.facts``.
        reuse: a folder of run directories whose finished steps are taken where they are those that
            this run needs.
    """

    folder: Path
    steps: Sequence[Step]
    facts: Mapping[str, Any]
    progress: Progress = no_progress
    reuse: Path | None = None
    _checked: dict[str, StepRecord] = field(default_factory=dict)

    def folder_of(self, name: str) -> Path:
        """Where the result of a step lies, or will lie."""
        return self.folder / self._label(name)

    def is_fresh(self, name: str) -> bool:
        """Whether a step and all it depends on are finished, unchanged and whole."""
        step = self._step(name)
        if not all(self.is_fresh(need) for need in step.needs):
            return False
        record = self._checked.get(name) or read_record(self.folder_of(name))
        if record is None or record.key != self.key(name):
            return False
        if record.inputs != self._input_contents(step):
            return False
        place = self.folder_of(name)
        if name not in self._checked and not is_whole(place, record):
            return False
        if name not in self._checked and not self._may_run(step, place):
            return False
        self._checked[name] = record
        return True

    def _may_run(self, step: Step, folder: Path) -> bool:
        """Whether what a step has left may be run, if others are to do so."""
        return not step.is_run or is_own(folder, self.key(step.name))

    def record(self, name: str) -> StepRecord | None:
        """The record of a fresh step, or None."""
        return self._checked[name] if self.is_fresh(name) else None

    def key(self, name: str) -> str:
        """Hash of everything a step depends on."""
        step = self._step(name)
        parts = {fact: self.facts[fact] for fact in step.facts}
        return digest_of([SCHEMA, name, parts, self._keys_before(step)])

    def reason(self, name: str) -> str:
        """Why a step that was finished is to be done again; empty if it was not, or is fresh."""
        record = read_record(self.folder_of(name))
        if record is None or self.is_fresh(name):
            return ""
        if not self._may_run(self._step(name), self.folder_of(name)):
            return "you have not made it, or it was changed since"
        if record.key == self.key(name):
            return "its files, or those it read, are no longer what they were"
        if not record.parts:
            return "another version of Bitwright did it"
        now = self._parts(self._step(name))
        changed = {
            fact.partition(":")[0]
            for fact, digest in now.items()
            if record.parts.get(fact) != digest
        }
        return f"changed since: {', '.join(sorted(changed)) or 'what it depends on'}"

    def execute(self, names: Sequence[str]) -> list[Outcome]:
        """Run these steps, in pipeline order; fresh ones are left alone.

        Raises:
            BitwrightError: a step failed; those finished before stay.
            RunError: the disk is full.
        """
        return [self._execute(step) for step in self.steps if step.name in names]

    def forget(self, name: str) -> None:
        """Drop a step's result: it is done again when it is wanted."""
        remove_folder(self.folder_of(name))
        self._checked.pop(name, None)

    def closure(self, name: str) -> list[str]:
        """A step and all that it needs, in pipeline order."""
        wanted = {name}
        for step in reversed(self.steps):
            if step.name in wanted:
                wanted.update(step.needs)
        return [step.name for step in self.steps if step.name in wanted]

    def _keys_before(self, step: Step) -> dict[str, str]:
        return {other: self.key(other) for other in (*step.needs, *self._available(step))}

    def _parts(self, step: Step) -> dict[str, str]:
        facts = {fact: digest_of(self.facts[fact]) for fact in step.facts}
        return facts | {f"step {name}": key for name, key in self._keys_before(step).items()}

    def _execute(self, step: Step) -> Outcome:
        if self.is_fresh(step.name):
            seconds = self._checked[step.name].seconds
            return Outcome(step.name, self.folder_of(step.name), True, seconds)
        if self.reuse is None:
            return self._do(step)
        return self._reuse_or_do(self.reuse, step)

    def _reuse_or_do(self, neighbours: Path, step: Step) -> Outcome:
        """Take a step that another run has finished, or do it for all; of two runs that come to it
        at the same time, one does it while the other waits.
        """
        final = self.folder_of(step.name)
        shared = SharedStep(
            neighbours, self._label(step.name), self.key(step.name), self._input_contents(step)
        )

        def waiting(owner: str) -> None:
            self.progress(f"waiting for {owner}, which is doing {step.name} for both", 0, 0)

        with ExitStack() as stack:
            try:
                stack.enter_context(shared.lock(waiting))
                origin = shared.bring(
                    self.work_of(step.name), final, lambda folder: self._may_run(step, folder)
                )
            except OSError as error:
                known = disk_full(error, self.folder, step.name)
                raise known or cannot_write(neighbours, error) from error
            if origin is not None:
                self._checked.pop(step.name, None)
                record = read_record(final)
                return Outcome(step.name, final, True, record.seconds if record else 0.0, origin)
            outcome = self._do(step)
            with suppress(OSError):  # then it is not shared
                shared.keep(final)
            return outcome

    def _do(self, step: Step) -> Outcome:
        final = self.folder_of(step.name)
        reason = self.reason(step.name)
        work = self._prepare(step)
        read = (*step.needs, *self._available(step))
        inputs = {name: self.folder_of(name) for name in read}
        start = time.monotonic()
        try:
            step.function(StepContext(work, inputs, self.progress))
            seconds = time.monotonic() - start
            record = StepRecord(
                step.name,
                self.key(step.name),
                self._input_contents(step),
                hash_files(work),
                seconds,
                self._parts(step),
            )
            atomic_write(work / "step.json", record.to_json())
            publish(work, final)
            if step.is_run:
                remember(final, record.key)
        except Exception as error:
            if not step.keeps_partial:
                remove_folder(work)
            full = disk_full(error, self.folder, step.name)
            if full is None:
                raise
            raise full from error
        self._checked.pop(step.name, None)
        return Outcome(step.name, final, False, seconds, reason=reason)

    def _prepare(self, step: Step) -> Path:
        """An empty folder to work in, or the one that an interrupted call left."""
        work = self.work_of(step.name)
        mark = work / ".key"
        key = digest_of([self.key(step.name), self._input_contents(step)])
        try:
            if not (step.keeps_partial and _holds(mark, key)):
                remove_folder(work)
                work.mkdir()  # what cannot be removed is no part of what is made
            atomic_write(mark, key)
        except OSError as error:
            raise disk_full(error, self.folder, step.name) or cannot_write(work, error) from error
        return work

    def _available(self, step: Step) -> tuple[str, ...]:
        return tuple(name for name in step.uses if self.is_fresh(name))

    def _input_contents(self, step: Step) -> dict[str, str]:
        read = (*step.needs, *self._available(step))
        return {name: self._checked[name].content for name in read if name in self._checked}

    def work_of(self, name: str) -> Path:
        """Where a step is built, and where an interrupted call has left what it had."""
        return self.folder / f".work-{self._label(name)}"

    def _label(self, name: str) -> str:
        step = self._step(name)
        number = self.steps.index(step) + 1 if step.number is None else step.number
        return f"{number:02d}-{name}"

    def _step(self, name: str) -> Step:
        return next(step for step in self.steps if step.name == name)


def _holds(mark: Path, text: str) -> bool:
    """Whether a file that may be a stranger's holds this text and no more."""
    try:
        return regular_bytes(mark, most=len(text)) == text.encode()
    except OSError:
        return False


@contextmanager
def open_run(
    folder: Path,
    steps: Sequence[Step],
    facts: Mapping[str, Any],
    *,
    files: Mapping[str, str],
    notes: Mapping[str, Any],
    progress: Progress = no_progress,
    reuse: Path | None = None,
) -> Iterator[Run]:
    """Open or create a run directory, for this process alone.

    Args:
        files: small files of the directory itself, such as ``recipe.yaml``.
        notes: what else run.json says.
        reuse: as `Run`.

    Raises:
        RunError: it is in use, of another schema, no run directory, or cannot be written.
    """
    check_run_folder(folder)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder))
            write_headers(folder, files, notes)
            recover(folder)
        except OSError as error:
            raise disk_full(error, folder, "") or cannot_write(folder, error) from error
        yield Run(folder, steps, facts, progress, reuse)
